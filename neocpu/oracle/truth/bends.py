"""What do mistakes do to the numbers of bags, duplicates and rows? Bends that several models share.

Each function returns its argument as it came where no switch bends it.
"""

import numpy as np

from neocpu.core.types import Bools, Ints
from neocpu.oracle.operator import Switches
from neocpu.oracle.truth.numbers import Bounded, Real

CAPS = (32, 1024)  # of kernels that handle a warp or a block of lookups
UNROLLED = (2, 4, 8)  # lookups that a loop takes at once
PADDED = (4, 8, 32, 128)  # columns that a vector, a warp or a block takes at once
LOST_PLACES = 16
# Switches that stand for NAME_0, NAME_1, …: each element of an answer may follow another one.
VARIANTS = {"duplicate_lost": LOST_PLACES}
SMALLEST_NORMAL = 2.0**-126


def bent_limits(first: Ints, end: Ints, switches: Switches) -> tuple[Ints, Ints]:
    """First lookup of every bag, and the one after its last, of loops that end too early."""
    longest = int((end - first).max(initial=0))
    for cap in CAPS:
        # Lengths first: whoever asks for a switch notes that it may matter here.
        if longest > cap and f"bag_capped_{cap}" in switches:
            end = np.minimum(end, first + cap)
    for count in UNROLLED:
        if f"bag_tail_dropped_{count}" in switches:
            # Bags that other switches have bent may end before they begin.
            end = first + np.maximum(end - first, 0) // count * count
    return first, end


def limits_by_table(
    first: Ints, end: Ints, table: Ints, sample: Ints, switches: Switches
) -> tuple[Ints, Ints]:
    """Limits of bags that are found by table instead of feature.

    table, sample : of each bag.
    """
    if "offsets_by_table" not in switches or not first.size:
        return first, end
    batch = int(sample.max()) + 1
    # With more tables than features a kernel would read beyond the offsets.
    bag = np.minimum(table * batch + sample, first.size - 1)
    return first[bag], end[bag]


def kept_duplicates(starts: Ints, switches: Switches) -> Bools | None:
    """Which terms of the segments starts[s]:starts[s + 1] count; None: all of them."""
    count = np.diff(starts)
    size = np.repeat(count, count)
    place = np.arange(size.size) - np.repeat(starts[:-1], count)
    kept = None
    if "last_duplicate_wins" in switches:
        kept = place == size - 1
    if "first_duplicate_wins" in switches:
        kept = place == 0
    if "segment_ends_early" in switches:
        kept = place < size - 1
    if "segment_starts_late" in switches:
        kept = place > 0
    longest = int(count.max(initial=0))
    for cap in CAPS:
        if longest > cap and f"duplicates_capped_{cap}" in switches:
            kept = place < cap
    for number in UNROLLED:
        if f"duplicate_tail_dropped_{number}" in switches:
            kept = place < size // number * number
    if longest > 1 and "duplicate_lost" in switches:
        lost = 1
        for k in range(LOST_PLACES):
            lost = k if f"duplicate_lost_{k}" in switches else lost
        # A single lookup has nobody to race with.
        kept = (size < 2) | (place != np.minimum(lost, size - 1))
    return kept


def flushed(x: Real, switches: Switches) -> Real:
    """Numbers of which the subnormal ones are 0."""
    if "subnormals_flushed" not in switches:
        return x
    return np.where(np.abs(x) < SMALLEST_NORMAL, 0.0, x)


def flushed_bounded(x: Bounded, switches: Switches) -> Bounded:
    """Bounded numbers of which the subnormal ones are 0."""
    if "subnormals_flushed" not in switches:
        return x
    return Bounded(flushed(x.value, switches), x.error)


def padded_width(columns: int, switches: Switches) -> int:
    """Columns that a mean over a row divides by."""
    for multiple in PADDED:
        if f"mean_over_padded_{multiple}" in switches:
            return -(-columns // multiple) * multiple
    return columns
