"""How do the modules take part in torch.compile? Each lookup is one operator of the graph.

The operators of namespace `neocpu` name their module by a number (`handle`): it is a constant of
the graph, and the module's rows and states never enter it. So a compiled update happens in the
module's own memory, as an eager one does. It is not optimised away, because its result, the
gradient of the module's placeholder, is one of the graph's.

    tbe_check    bounds check; repairs indices and offsets in place
    tbe_lookup   pooled output of a module with a fused optimizer; its gradient is
    tbe_update   the update: gradients of the placeholder and of the per-sample weights
    dense_lookup, dense_gradients   the same for rows with a dense gradient
    nbit_lookup  pooled output of inference tables; repairs indices and offsets in place
"""

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neocpu.peers.fbgemm.context import Context, Gradients, Inputs
from neocpu.peers.fbgemm.modules.autograd import Flags, features_with_gradient
from neocpu.peers.fbgemm.modules.engine import FeatureBatch

# Modules by their handle; weak, so that a graph keeps no module alive.
_MODULES: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
_HANDLES = itertools.count(1)
_LIBRARY = torch.library.Library("neocpu", "FRAGMENT")
# Arguments that all lookups share: batch_sizes is [F, R] flat, or empty where all have one size.
_BATCH = "Tensor indices, Tensor offsets, Tensor? features, SymInt[] batch_sizes, int handle"


class Compilable(nn.Module):
    """A module with a handle; copies and loaded modules get handles of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._take_handle()

    def _take_handle(self) -> None:
        self.handle = next(_HANDLES)
        _MODULES[self.handle] = self

    def __setstate__(self, state: dict[str, object]) -> None:
        # The handle in the state is that of the module that was copied or saved.
        super().__setstate__(state)
        self._take_handle()


def sizes_of(batch_size_per_feature_per_rank: Sequence[Sequence[int]] | None) -> list[int]:
    """Batch sizes, flat; empty where all features have one size."""
    return [size for sizes in batch_size_per_feature_per_rank or () for size in sizes]


def output_shape(
    indices: Tensor, offsets: Tensor, dims: Sequence[int], sizes: Sequence[int], pooled: bool
) -> tuple[int, ...]:
    """The shape of a lookup's output.

    dims : [F], columns of each feature. sizes : from `sizes_of`.
    """
    if not pooled:
        return indices.shape[0], dims[0]
    if not sizes:
        return (offsets.shape[0] - 1) // len(dims), sum(dims)
    ranks = len(sizes) // len(dims)
    return (sum(dim * sum(sizes[f * ranks : (f + 1) * ranks]) for f, dim in enumerate(dims)),)


def _weighted_features(features: Tensor | None, weighted: bool) -> Tensor | None:
    """Which features' weights get a gradient, as an operator's argument; bool[0]: none of them."""
    # None already means all features, so "none of them" needs a value of its own.
    return features if weighted else torch.zeros(0, dtype=torch.bool)


# ---- what is computed ----


def _check(
    handle: int, indices: Tensor, offsets: Tensor, weights: Tensor | None, sizes: Sequence[int]
) -> None:
    _MODULES[handle].check_bounds(indices, offsets, weights, sizes)


class _Call(NamedTuple):
    """The arguments that all lookups share, in the order of `_BATCH`."""

    weights: Tensor | None
    indices: Tensor
    offsets: Tensor
    features: Tensor | None
    sizes: Sequence[int]
    handle: int

    @property
    def module(self) -> Any:
        """The module that is called."""
        return _MODULES[self.handle]

    @property
    def batch(self) -> FeatureBatch:
        """The lookups as the module takes them."""
        lookups = (self.indices, self.offsets, self.weights, self.sizes)
        return self.module.feature_batch(*lookups)

    @property
    def flags(self) -> Flags | None:
        """`_weighted_features` as `update` and `gradients` take it: bool[F], or None."""
        if self.features is not None and not self.features.numel():
            return None
        return features_with_gradient(self.features, len(self.module.feature_table_map))

    def weight_gradient_fake(self) -> Tensor:
        """A tensor of the shape and dtype of the gradient of the weights."""
        if self.weights is None or (self.features is not None and self.features.shape[0] == 0):
            return torch.empty(0)
        return self.weights.new_empty(self.weights.shape)


def _lookup(rows: Tensor, *arguments: Any) -> Tensor:
    call = _Call(*arguments[:-2])
    return call.module.forward_pass(call.batch)


def _update(grad: Tensor, placeholder: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    call = _Call(*arguments)
    weight_gradient = call.module.update(call.batch, grad, call.flags)
    # An operator of torch returns tensors, never None; nobody reads this one.
    return torch.zeros(0), torch.zeros(0) if weight_gradient is None else weight_gradient


def _dense_gradients(grad: Tensor, table: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    *shared, rows = arguments
    call = _Call(*shared)
    gradients = call.module.gradients(call.batch, grad, rows, call.flags)
    # As above: a tensor stands for a gradient that nobody asked for.
    row_gradient, weight_gradient = (torch.zeros(0) if g is None else g for g in gradients)
    return row_gradient, weight_gradient


def _nbit_lookup(
    indices: Tensor, offsets: Tensor, weights: Tensor | None, handle: int, *_: object
) -> Tensor:
    return _MODULES[handle].look_up(indices, offsets, weights)


# ---- shapes and dtypes ----


def _lookup_fake(rows: Tensor, *arguments: Any) -> Tensor:
    shape, dtype = arguments[-2:]
    return rows.new_empty(shape, dtype=dtype)


def _update_fake(grad: Tensor, placeholder: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return placeholder.new_empty(0), _Call(*arguments).weight_gradient_fake()


def _dense_gradients_fake(grad: Tensor, table: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    *shared, rows = arguments
    row_gradient = table.new_empty(table.shape if rows else (0,))
    return row_gradient, _Call(*shared).weight_gradient_fake()


_RESULT = "SymInt[] shape, ScalarType dtype) -> Tensor"
_CHECKED = "Tensor(a!) indices, Tensor(b!) offsets, Tensor? weights, "
# By name: the schema, the function, and the one that says the result's shapes and dtypes.
_OPERATORS: dict[str, tuple[str, Callable[..., object], Callable[..., object]]] = {
    "tbe_check": (
        f"(int handle, {_CHECKED}SymInt[] batch_sizes) -> ()",
        _check,
        lambda *arguments: None,
    ),
    "tbe_lookup": (
        f"(Tensor placeholder, Tensor? weights, {_BATCH}, {_RESULT}",
        _lookup,
        _lookup_fake,
    ),
    "tbe_update": (
        f"(Tensor grad, Tensor placeholder, Tensor? weights, {_BATCH}) -> (Tensor, Tensor)",
        _update,
        _update_fake,
    ),
    "dense_lookup": (
        f"(Tensor table, Tensor? weights, {_BATCH}, {_RESULT}",
        _lookup,
        _lookup_fake,
    ),
    "dense_gradients": (
        f"(Tensor grad, Tensor table, Tensor? weights, {_BATCH}, bool rows) -> (Tensor, Tensor)",
        _dense_gradients,
        _dense_gradients_fake,
    ),
    "nbit_lookup": (
        f"({_CHECKED}int handle, {_RESULT}",
        _nbit_lookup,
        _lookup_fake,
    ),
}
for _name, (_schema, _function, _fake) in _OPERATORS.items():
    _LIBRARY.define(_name + _schema)
    _LIBRARY.impl(_name, _function, "CPU")
    torch.library.register_fake(f"neocpu::{_name}", _fake, lib=_LIBRARY)


# ---- gradients ----


def _save(ctx: Context, inputs: Inputs, output: Tensor) -> None:
    # Tensors are saved by torch, which notices when they are changed in between.
    rows, weights, indices, offsets, features, ctx.sizes, ctx.handle, _, _ = inputs
    ctx.save_for_backward(rows, weights, indices, offsets, features)


def _update_backward(ctx: Context, grad: Tensor) -> Gradients:
    placeholder, weights, indices, offsets, features = ctx.saved_tensors
    weighted = ctx.needs_input_grad[1]
    features = _weighted_features(features, weighted)
    batch = (weights, indices, offsets, features, ctx.sizes, ctx.handle)
    gradients = torch.ops.neocpu.tbe_update(grad, placeholder, *batch)
    return gradients[0], gradients[1] if weighted else None, *[None] * 7


def _dense_backward(ctx: Context, grad: Tensor) -> Gradients:
    table, weights, indices, offsets, features = ctx.saved_tensors
    needs_rows, weighted = ctx.needs_input_grad[:2]
    features = _weighted_features(features, weighted)
    batch = (weights, indices, offsets, features, ctx.sizes, ctx.handle)
    gradients = torch.ops.neocpu.dense_gradients(grad, table, *batch, needs_rows)
    row_gradient = gradients[0] if needs_rows else None
    return row_gradient, gradients[1] if weighted else None, *[None] * 7


for _name, _backward in (("tbe_lookup", _update_backward), ("dense_lookup", _dense_backward)):
    torch.library.register_autograd(
        f"neocpu::{_name}", _backward, setup_context=_save, lib=_LIBRARY
    )
