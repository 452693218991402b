"""What does FBGEMM do with an index outside its table? `bounds_check_indices`, in place, as code
that calls it expects.

FATAL raises; WARNING and IGNORE move malformed offsets to where they make sense and rewrite such an
index to 0, so that row 0 is read, and trained, in its stead. -1 is a pruned row and passes
everywhere. This is FBGEMM's way, kept here only: elsewhere neocpu never writes to an index, and
raises.
"""

import logging

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neocpu.errors import IndexRangeError
from neocpu.peers.fbgemm.names import BoundsCheckMode, of
from neocpu.peers.fbgemm.operators import operator

Ints = NDArray[np.int64]
LOG = logging.getLogger(__name__)
CHECKED = {0: "fatal", 1: "warning", 2: "ignore", 4: "ignore", 5: "warning", 6: "fatal"}


class OutOfBounds(IndexRangeError, RuntimeError):
    """A lookup points outside its table, or offsets are malformed; also the RuntimeError that
    FBGEMM raises.
    """


@operator(
    "(Tensor rows_per_table, Tensor(a!) indices, Tensor(b!) offsets, int bounds_check_mode, "
    "Tensor(c!) warning, "
    "Tensor(d!)? weights=None, Tensor? B_offsets=None, SymInt max_B=-1, Tensor? b_t_map=None, int "
    "info_B_num_bits=-1, "
    "int info_B_mask=-1, int bounds_check_version=1, bool prefetch_pipeline=False) -> ()"
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
    """Check, and mend in place, indices int[n] and offsets int[bags+1] of features with
    rows_per_table i64[F].

    warning i64[1] counts what was mended. B_offsets int[F+1]: first bag of each feature, where
    batches vary. The last five arguments have no meaning on a CPU. Raises OutOfBounds in mode
    FATAL, and for shapes that do not fit. FBGEMM: the operator of that name.
    """
    mode = CHECKED.get(int(bounds_check_mode))
    if mode is None:
        raise OutOfBounds(f"bounds_check_mode {bounds_check_mode} checks nothing")
    if offsets.dtype != indices.dtype:
        offsets = offsets.to(indices.dtype)
    features = rows_per_table.numel()
    bags = offsets.numel() - 1
    index = indices.detach().numpy()
    ends = offsets.detach().numpy()
    if B_offsets is not None:
        if max_B < 0:
            raise OutOfBounds(f"max_B is {max_B}; with B_offsets it must be the largest batch")
        first = B_offsets.numpy().astype(np.int64)
    else:
        if not features or bags % features:
            raise OutOfBounds(
                f"{offsets.numel()} offsets do not make whole batches of {features} features plus "
                "one"
            )
        first = np.arange(features + 1) * (bags // features)
    if weights is not None and weights.numel() and weights.shape[0] != index.size:
        raise OutOfBounds(
            f"weights size {weights.shape[0]} is not equal to indices size {index.size}"
        )
    if mode == "warning":
        warning.zero_()
    found = _mend_offsets(ends, index.size, mode) + _mend_indices(
        index, ends, first, rows_per_table.numpy(), mode
    )
    if mode == "warning" and found:
        warning.add_(found)


def _mend_offsets(ends: Ints, count: int, mode: str) -> int:
    """Make offsets ascend within [0, count] and end there; how many bags were wrong."""
    if mode == "fatal":
        if ends[-1] != count:
            raise OutOfBounds(f"the last offset is {ends[-1]}, but there are {count} indices")
        if ends[0] < 0 or (np.diff(ends) < 0).any():
            bag = int(np.argmax(np.diff(ends) < 0))
            raise OutOfBounds(
                f"offsets[{bag}:{bag + 2}] = {ends[bag : bag + 2].tolist()} descend, or begin "
                "below 0"
            )
        return 0
    found = int(ends[-1] != count)
    ends[-1] = count
    good = np.maximum.accumulate(np.clip(ends, 0, count))
    starts = good[:-1].copy()
    starts[:1] = ends[:1]
    wrong = (starts < 0) | (starts > ends[1:]) | (ends[1:] > count)
    if mode == "warning" and (found or wrong.any()):
        LOG.warning(
            "offsets are malformed (%d indices); the first bad bag is %d",
            count,
            int(np.argmax(wrong)),
        )
    ends[:] = good
    return found + int(wrong.sum())


def _mend_indices(index: Ints, ends: Ints, first: Ints, rows: Ints, mode: str) -> int:
    """Indices outside their table become 0; how many."""
    limit = np.zeros(index.size, np.int64)
    limit[ends[first[0]] :] = np.repeat(rows, np.diff(ends[first]))
    limit[: ends[first[0]]] = np.iinfo(np.int64).max  # in no bag
    wrong = (index < -1) | (index >= limit)
    if not wrong.any():
        return 0
    at = int(np.argmax(wrong))
    bag = int(np.searchsorted(ends, at, side="right")) - 1
    feature = int(np.searchsorted(first, bag, side="right")) - 1
    where = (
        f"index {index[at]} of feature {feature}, sample {bag - int(first[feature])}: its "
        f"table has {rows[feature]} rows"
    )
    if mode == "fatal":
        raise OutOfBounds(where)
    if mode == "warning":
        LOG.warning("%s; it becomes 0 (%d in all)", where, int(wrong.sum()))
    index[wrong] = 0
    return int(wrong.sum())


def refuse_outside(rows: Ints, index: Ints, ends: Ints, first: Ints) -> None:
    """Raise OutOfBounds for the first index outside its feature's table: what mode NONE must still
    not read.

    rows i64[F] of the features' tables, index i64[n], ends i64[bags+1], first i64[F+1]: first bag
    of each feature.
    """
    _mend_offsets(ends, index.size, "fatal")
    _mend_indices(index, ends, first, rows, "fatal")


def mode_of(value: object) -> int:
    """The number of a mode given as FBGEMM's member, ours, a number or a name; V2 modes are those
    of version 1.
    """
    found = of(BoundsCheckMode, value)
    return {4: 2, 5: 1, 6: 0}.get(found.value, found.value)


def as_numpy(tensor: Tensor) -> Ints:
    """int64 array of an index tensor."""
    return tensor.detach().to(torch.int64).contiguous().numpy()
