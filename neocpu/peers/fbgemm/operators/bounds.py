"""What does FBGEMM do with an index outside its table? `bounds_check_indices` does the same.

FATAL raises. WARNING and IGNORE repair malformed offsets and rewrite an index out of range to 0,
in the caller's tensors, so that row 0 is read and trained instead. -1 is a pruned row and passes
everywhere. Only this file behaves so: elsewhere neocpu never writes to an index, and raises.
"""

import logging

import numpy as np
import torch
from torch import Tensor

from neocpu.core.errors import IndexRangeError
from neocpu.core.types import Ints
from neocpu.peers.fbgemm.names import BoundsCheckMode, Option, of
from neocpu.peers.fbgemm.operators.registry import operator

LOG = logging.getLogger(__name__)
# FBGEMM's numbers of the modes that check (3 is NONE; 4 to 6 are version 2 of the others).
CHECKED = {0: "fatal", 1: "warning", 2: "ignore", 4: "ignore", 5: "warning", 6: "fatal"}


class OutOfBounds(IndexRangeError, RuntimeError):
    """An index outside its table or malformed offsets; also the RuntimeError that FBGEMM raises."""


@operator(
    "(Tensor rows_per_table, Tensor(a!) indices, Tensor(b!) offsets, int bounds_check_mode, "
    "Tensor(c!) warning, Tensor(d!)? weights=None, Tensor? B_offsets=None, SymInt max_B=-1, "
    "Tensor? b_t_map=None, int info_B_num_bits=-1, int info_B_mask=-1, "
    "int bounds_check_version=1, bool prefetch_pipeline=False) -> ()"
)
def bounds_check_indices(
    rows_per_table: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bounds_check_mode: int,
    warning: Tensor,
    weights: Tensor | None = None,
    B_offsets: Tensor | None = None,
    max_B: int = -1,
    b_t_map: Tensor | None = None,
    info_B_num_bits: int = -1,
    info_B_mask: int = -1,
    bounds_check_version: int = 1,
    prefetch_pipeline: bool = False,
) -> None:
    """Check indices int[n] and offsets int[bags+1], and repair them in place.

    rows_per_table : i64[F], rows of each feature's table. warning : i64[1], counts repairs.
    B_offsets int[F+1]: first bag of each feature, where batches vary. The last five arguments have
    no meaning on a CPU. Raises OutOfBounds in mode FATAL, and for shapes that do not fit. FBGEMM:
    the operator of that name.
    """
    mode = CHECKED.get(int(bounds_check_mode))
    if mode is None:
        raise OutOfBounds(f"bounds_check_mode {bounds_check_mode} checks nothing")
    if offsets.dtype != indices.dtype:
        offsets = offsets.to(indices.dtype)
    features = rows_per_table.numel()
    bags = offsets.numel() - 1
    # Views of the caller's memory, which repairs are written to.
    index_array = indices.detach().numpy()
    offset_array = offsets.detach().numpy()
    # With batches of several sizes the number of bags says nothing about features.
    if B_offsets is not None:
        if max_B < 0:
            raise OutOfBounds(f"max_B is {max_B}; with B_offsets it must be the largest batch")
        first_bag = B_offsets.numpy().astype(np.int64)
    else:
        if not features or bags % features:
            raise OutOfBounds(
                f"{offsets.numel()} offsets do not make whole batches of {features} features plus "
                "one"
            )
        first_bag = np.arange(features + 1) * (bags // features)
    if weights is not None and weights.numel() and weights.shape[0] != index_array.size:
        raise OutOfBounds(
            f"weights size {weights.shape[0]} is not equal to indices size {index_array.size}"
        )
    if mode == "warning":
        warning.zero_()
    # Offsets first: they say which table an index belongs to.
    malformed = _repair_offsets(offset_array, index_array.size, mode) + _repair_indices(
        index_array, offset_array, first_bag, rows_per_table.numpy(), mode
    )
    if mode == "warning" and malformed:
        warning.add_(malformed)


def _repair_offsets(offsets: Ints, count: int, mode: str) -> int:
    """Make offsets ascend within [0, count] and end at count; the number of malformed bags."""
    if mode == "fatal":
        if offsets[-1] != count:
            raise OutOfBounds(f"the last offset is {offsets[-1]}, but there are {count} indices")
        if offsets[0] < 0 or (np.diff(offsets) < 0).any():
            bag = int(np.argmax(np.diff(offsets) < 0))
            raise OutOfBounds(
                f"offsets[{bag}:{bag + 2}] = {offsets[bag : bag + 2].tolist()} descend, or begin "
                "below 0"
            )
        return 0
    wrong_ends = int(offsets[-1] != count)
    # As in FBGEMM, the last offset is set whatever the others are.
    offsets[-1] = count
    repaired = np.maximum.accumulate(np.clip(offsets, 0, count))
    starts = repaired[:-1].copy()
    # The first bag has no bag before it: its own start is the one that may be wrong.
    starts[:1] = offsets[:1]
    wrong = (starts < 0) | (starts > offsets[1:]) | (offsets[1:] > count)
    if mode == "warning" and (wrong_ends or wrong.any()):
        LOG.warning(
            "offsets are malformed (%d indices); the first bad bag is %d",
            count,
            int(np.argmax(wrong)),
        )
    offsets[:] = repaired
    return wrong_ends + int(wrong.sum())


def _repair_indices(indices: Ints, offsets: Ints, first_bag: Ints, rows: Ints, mode: str) -> int:
    """Rewrite indices outside their table to 0; the number of them."""
    limit = np.zeros(indices.size, np.int64)
    limit[offsets[first_bag[0]] :] = np.repeat(rows, np.diff(offsets[first_bag]))
    # Indices before the first bag are never looked up.
    limit[: offsets[first_bag[0]]] = np.iinfo(np.int64).max
    # -1 is a pruned row, and right in every mode.
    wrong = (indices < -1) | (indices >= limit)
    if not wrong.any():
        return 0
    position = int(np.argmax(wrong))
    bag = int(np.searchsorted(offsets, position, side="right")) - 1
    feature = int(np.searchsorted(first_bag, bag, side="right")) - 1
    sample = bag - int(first_bag[feature])
    message = (
        f"index {indices[position]} of feature {feature}, sample {sample}: its table has "
        f"{rows[feature]} rows"
    )
    if mode == "fatal":
        raise OutOfBounds(message)
    if mode == "warning":
        # FBGEMM logs the first one only, too, and counts the others.
        LOG.warning("%s; it becomes 0 (%d in all)", message, int(wrong.sum()))
    indices[wrong] = 0
    return int(wrong.sum())


def refuse_outside(rows: Ints, indices: Ints, offsets: Ints, first_bag: Ints) -> None:
    """Raise OutOfBounds for the first index outside its feature's table.

    Lookups in mode NONE are refused so, as memory outside a table must not be read. rows i64[F]:
    of each feature's table; indices i64[n]; offsets i64[bags+1]; first_bag i64[F+1].
    """
    _repair_offsets(offsets, indices.size, "fatal")
    _repair_indices(indices, offsets, first_bag, rows, "fatal")


def mode_of(value: Option) -> int:
    """The number of a mode (FBGEMM's or our member, a number or a name), V2 modes as version 1."""
    mode = of(BoundsCheckMode, value)
    return {4: 2, 5: 1, 6: 0}.get(mode.value, mode.value)


def as_numpy(tensor: Tensor) -> Ints:
    """int64 array of an index tensor."""
    return tensor.detach().to(torch.int64).contiguous().numpy()
