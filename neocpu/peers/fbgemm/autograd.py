"""How does a lookup take part in torch's differentiation? Functions whose backward performs the
update.

As in FBGEMM, the rows are no differentiable input: a placeholder of no elements makes the result
require a gradient, and when that gradient arrives, rows and states are updated at once. Only the
per-sample weights, if they want one, get a gradient.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from neocpu.peers.fbgemm import engine


class FusedLookup(torch.autograd.Function):
    """Rows of a module; its backward calls `module.update`."""

    @staticmethod
    def forward(
        ctx: Any,
        placeholder: Tensor,
        weights: Tensor | None,
        module: Any,
        asked: engine.LookupRequest,
        wanted: Any,
    ) -> Any:
        ctx.module = module
        ctx.asked = asked
        ctx.wanted = wanted
        return module.look_up(asked)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        found = ctx.module.update(ctx.asked, grad, ctx.wanted if ctx.needs_input_grad[1] else None)
        of_placeholder = torch.zeros(0) if ctx.needs_input_grad[0] else None
        return of_placeholder, found, None, None, None


class DenseLookup(torch.autograd.Function):
    """Rows of a parameter, whose gradient is dense."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weights: Tensor | None,
        module: Any,
        asked: engine.LookupRequest,
        wanted: Any,
    ) -> Any:
        ctx.module = module
        ctx.asked = asked
        ctx.wanted = wanted
        return module.look_up(asked)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        dense, weights = ctx.module.gradients(
            ctx.asked,
            grad,
            ctx.needs_input_grad[0],
            ctx.wanted if ctx.needs_input_grad[1] else None,
        )
        return dense, weights, None, None, None


def wanted_features(
    feature_requires_grad: Tensor | None, features: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which features' per-sample weights get a gradient: bool[F]."""
    if feature_requires_grad is None:
        return np.ones(features, bool)
    return feature_requires_grad.detach().to(torch.bool).numpy()
