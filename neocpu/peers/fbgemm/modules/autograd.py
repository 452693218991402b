"""How does a lookup take part in torch's differentiation? By autograd functions.

The backward of `FusedLookup` performs the update. As in FBGEMM, the rows are no differentiable
input: an empty placeholder makes the result require a gradient, and when that gradient arrives,
rows and states are updated at once. Only per-sample weights get a gradient, if they require one.
"""

from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from neocpu.peers.fbgemm.context import Context, Gradients
from neocpu.peers.fbgemm.modules import engine

# Whether each feature's per-sample weights get a gradient: bool[F].
Flags: TypeAlias = NDArray[np.bool_]


class ForwardModule(Protocol):
    """A module that looks up a batch; its subclass of `_Lookup` knows what gives gradients."""

    def forward_pass(self, batch: engine.FeatureBatch) -> Tensor:
        """The pooled output."""


class _Lookup(torch.autograd.Function):
    """What the lookups share: the forward pass of a module. Their gradients differ."""

    @staticmethod
    def forward(
        ctx: Context,
        rows: Tensor,
        weights: Tensor | None,
        module: ForwardModule,
        batch: engine.FeatureBatch,
        features: Flags | None,
    ) -> Tensor:
        ctx.module = module
        ctx.batch = batch
        ctx.features = features
        return module.forward_pass(batch)


class FusedLookup(_Lookup):
    """Lookup in a module; its backward calls `module.update`."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> Gradients:
        weight_grad = ctx.module.update(
            ctx.batch, grad, ctx.features if ctx.needs_input_grad[1] else None
        )
        # Empty, as the placeholder is: nothing is left for an optimizer of torch to do.
        placeholder_grad = torch.zeros(0) if ctx.needs_input_grad[0] else None
        return placeholder_grad, weight_grad, None, None, None


class SparseLookup(_Lookup):
    """Lookup in a module without an optimizer: its rows get a sparse gradient."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> Gradients:
        features = ctx.features if ctx.needs_input_grad[1] else None
        row_grad, weight_grad = ctx.module.sparse_gradients(ctx.batch, grad, features)
        return row_grad, weight_grad, None, None, None


class DenseLookup(_Lookup):
    """Lookup in a parameter, whose gradient is dense."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> Gradients:
        row_grad, weight_grad = ctx.module.gradients(
            ctx.batch,
            grad,
            ctx.needs_input_grad[0],
            ctx.features if ctx.needs_input_grad[1] else None,
        )
        return row_grad, weight_grad, None, None, None


def features_with_gradient(feature_requires_grad: Tensor | None, count: int) -> Flags:
    """Which features' per-sample weights get a gradient: bool[F]."""
    # As in FBGEMM: unless told otherwise, weights of all features may have a gradient.
    if feature_requires_grad is None:
        return np.ones(count, bool)
    return feature_requires_grad.detach().to(torch.bool).numpy()
