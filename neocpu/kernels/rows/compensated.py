"""How are bags pooled for little more than fp32 sums cost? In two floats for each column, and the
processor tells whether they hold the exact sum.

    high' = fl(high + x)    rest = x - (high' - high)    low' = low + rest

If the differences and the sum of rests are exact, high + low grows by exactly x (Dekker), whatever
was rounded in `high`. So that addition is done quietly (`simd/quiet.py`); the others set the flag
if they round. Against fp64 no term is widened, and a vector has twice the lanes. The differences
are exact while `high` is larger than the term: it starts with a power of two above the sums, which
is taken off in the end. The smaller that is, the more bits are left for `low`: it follows the sums
of the group before. What the flag refuses, or is not finite, is left to fp64 (`lookup.group_sums`).
"""

import math
from typing import NamedTuple

import numpy as np

from neocpu.kernels.compile.jit import inlined
from neocpu.kernels.operands import Bag
from neocpu.kernels.simd.bags import (
    LONG,
    SHORT,
    compensated_rows_16,
    compensated_rows_long,
    compensated_rows_short,
    view,
)
from neocpu.kernels.simd.flags import rounded
from neocpu.kernels.simd.quiet import QUIET

INFINITE = 0xFF000000  # bits of an infinity, shifted left by one


@inlined
def may_compensate(terms, entry, k, end):
    """Can `round_group` pool bags of entry k that end at `end`? Unweighted ones of one entry, in
    whole vectors: other lookups are too few to be worth the time to compile.
    """
    whole = entry.width[k] % 16 == 0 and end <= entry.first[k + 1]
    return QUIET and whole and terms.weights.size == 0


class Attempts(NamedTuple):
    """What a task knows of its groups so far.

    k      : the entry of the last one
    peak   : that of its sums, bits shifted left by one; 0 if it is unknown
    misses : two for each group that failed, one less for each that did not
    pause  : groups to be left to fp64
    """

    k: int
    peak: int
    misses: int
    pause: int


NO_ATTEMPT = Attempts(-1, 0, 0, 0)


@inlined
def start_of(peak):
    """What sums begin with that are about as large as `peak`: three to six times it."""
    # bits shifted left by one: the exponent is the top byte
    return np.float32(math.ldexp(1.5, (peak >> 24) - 125)) if peak > 0 else np.float32(0.0)


@inlined
def largest(peaks):
    """Largest of the maxima, i64; they begin anew."""
    peak = np.int64(0)
    for i in range(16):
        peak = max(peak, np.int64(peaks[i]))
        peaks[i] = np.uint32(0)
    return peak


@inlined
def sum_compensated(terms, bag, start, out, peaks):
    """out[:width] f32 = sums of one bag, rounded, right or not; the width is a multiple of 16."""
    column = np.int64(0)
    while column < bag.width:
        left = bag.width - column
        line = view(out, column, left)
        if left >= LONG:
            compensated_rows_long(terms, bag, column, start, line, peaks)
            column += LONG
        elif left >= SHORT:
            compensated_rows_short(terms, bag, column, start, line, peaks)
            column += SHORT
        else:
            compensated_rows_16(terms, bag, column, start, line, peaks)
            column += 16


class BagGroup(NamedTuple):
    """Bags [begin, end) of entry k."""

    k: int
    begin: int
    end: int


@inlined
def round_group(terms, entry, offsets, group, lines, peak, peaks, out):
    """Sums of the bags of a group, rounded, to their lines of `out`; returns (are all right?, the
    peak of their sums, 0 if it is unknown).

    peak  : that of the group before, bits shifted left by one; 0 if it is unknown
    peaks : u32[16], zeros
    """
    k, begin, end = group
    pitch = lines.pitch[k]
    place = lines.place[k] + (begin - entry.first[k]) * pitch
    start = start_of(peak)
    # clear what earlier arithmetic left in the flag
    rounded()
    # where the peak is unknown, the first bag is added once more than the others, to learn it
    b = begin - (1 if peak == 0 else 0)
    while b < end:
        i = max(b, begin)
        bag = Bag(offsets[i], offsets[i + 1], entry.base[k], entry.stride[k], entry.width[k])
        sum_compensated(terms, bag, start, view(out, place + (i - begin) * pitch, bag.width), peaks)
        if b < begin:
            start = start_of(largest(peaks))
            rounded()
        b += 1
    exact = not rounded()
    peak = largest(peaks)
    finite = peak < INFINITE
    return exact and finite, peak if finite else np.int64(0)


@inlined
def try_group(terms, entry, offsets, group, lines, attempts, peaks, out):
    """`round_group`, unless many groups failed; returns (are all right?, the new attempts)."""
    if attempts.pause > 0:
        return False, Attempts(attempts.k, attempts.peak, attempts.misses, attempts.pause - 1)
    # rows of another table may be of another size
    peak = attempts.peak if attempts.k == group.k else 0
    exact, peak = round_group(terms, entry, offsets, group, lines, peak, peaks, out)
    if exact:
        return True, Attempts(group.k, peak, max(attempts.misses - 1, 0), 0)
    # a group that fails costs twice what one that does not saves: so from a third on it pauses
    misses = min(attempts.misses + 2, 8)
    return False, Attempts(group.k, peak, misses, (1 << misses) >> 2)
