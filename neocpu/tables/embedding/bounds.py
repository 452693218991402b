"""Does every lookup point into its table, and do the offsets make sense?

Faults are counted exactly; the caller's arrays stay as they are.

    fatal     the first fault raises, and is named by table, sample, position and value
    warning   faults are repaired in copies and counted
    ignore    as warning: counting costs nothing here, and who ignores the counts is free to

Repairs are those of FBGEMM's `bounds_check_indices`: a row out of range becomes `outside` (0
there), offsets are clamped, the last one becomes the number of lookups. A row of -1 is a pruned
one: allowed, counted, left alone.
"""

from dataclasses import dataclass

import numpy as np

from neocpu.core.errors import IndexRangeError
from neocpu.core.types import Elements, Ints
from neocpu.kernels.rows import lookup as kernels

MODES = ("fatal", "warning", "ignore")


@dataclass(frozen=True)
class Bounds:
    """Lookups that are safe to do, and the faults of those that were asked for.

    indices, offsets : i64, the caller's arrays, or repaired copies.
    outside, pruned : i64[T], lookups of each table out of its range, and of -1.
    malformed : bags with impossible offsets, and wrong ends of the offsets.
    """

    indices: Ints
    offsets: Ints
    outside: Ints
    pruned: Ints
    malformed: int


def bag_cuts(features: int, offsets: Elements, batch_sizes: Elements | None) -> Ints:
    """First bag of every feature, and the number of bags: i64[F+1].

    batch_sizes : i64[F], or i64[F, ranks], or None: the same for all.

    Raises IndexRangeError if `offsets` has another length.
    """
    bags = offsets.size - 1
    if batch_sizes is None:
        if bags < 0 or (bags % features if features else bags):
            raise IndexRangeError(
                f"offsets has {offsets.size} entries; {features} features need F*B + 1 of them"
            )
        return np.arange(features + 1, dtype=np.int64) * (bags // max(features, 1))
    sizes = np.asarray(batch_sizes, np.int64).reshape(features, -1).sum(axis=1)
    if sizes.sum() != bags:
        raise IndexRangeError(
            f"offsets has {offsets.size} entries; batch sizes add up to {int(sizes.sum())} bags "
            "and need one more"
        )
    return np.append(0, np.cumsum(sizes)).astype(np.int64)


def _malformed_error(
    bag: int, cuts: Ints, offsets: Ints, lookups: int, table: Ints
) -> IndexRangeError:
    """What is wrong with the offsets of a bag, or with their ends."""
    bags = offsets.size - 1
    if bag == bags:
        return IndexRangeError(
            f"offsets run from {offsets[0]} to {offsets[bags]}; they must run from 0 to the "
            f"number of indices, {lookups}"
        )
    feature = int(np.searchsorted(cuts, bag, side="right")) - 1
    return IndexRangeError(
        f"table {table[feature]}, feature {feature}, sample {bag - cuts[feature]}: "
        f"offsets[{bag}:{bag + 2}] = [{offsets[bag]}, {offsets[bag + 1]}] is no range of "
        f"{lookups} indices"
    )


def _outside_error(
    j: int, cuts: Ints, offsets: Ints, indices: Ints, table: Ints, rows: Ints
) -> IndexRangeError:
    """Which table, feature, sample and position lookup j is, and what it asked for."""
    bag = int(np.searchsorted(offsets, j, side="right")) - 1
    feature = int(np.searchsorted(cuts, bag, side="right")) - 1
    return IndexRangeError(
        f"table {table[feature]}, feature {feature}, sample {bag - cuts[feature]}, position "
        f"{j - offsets[bag]}: row {indices[j]} is outside [0, {rows[table[feature]]})"
    )


def bounds_check(
    rows: Elements,
    feature_table: Elements,
    indices: Elements,
    offsets: Elements,
    mode: str = "fatal",
    batch_sizes: Elements | None = None,
    outside: int = 0,
) -> Bounds:
    """Check lookups before they are done; FBGEMM: `bounds_check_indices`.

    rows : [T], of each table; like all of these, integers of any width.
    feature_table : [F], its table.
    indices, offsets : [n], [bags+1], feature-major.
    batch_sizes : [F] or [F, ranks], bags of each feature where they differ.
    outside : what a row out of range becomes: 0 as in FBGEMM, or -1 to read nothing.

    Raises IndexRangeError (mode fatal; any mode if the lengths do not fit).
    """
    if mode not in MODES:
        raise ValueError(f"bounds_check {mode!r}: it is one of {', '.join(MODES)}")
    heights, table = (np.ascontiguousarray(a, np.int64) for a in (rows, feature_table))
    lookup_rows, ends = (np.ascontiguousarray(a, np.int64).reshape(-1) for a in (indices, offsets))
    cuts = bag_cuts(table.size, ends, batch_sizes)
    malformed = 0
    # offsets come first: a lookup is named by its bag, which they define
    bag = kernels.first_malformed(ends, lookup_rows.size)
    if bag >= 0:
        if mode == "fatal":
            raise _malformed_error(int(bag), cuts, ends, lookup_rows.size, table)
        ends = ends.copy()
        malformed = int(kernels.mend_offsets(ends, lookup_rows.size))
    first = ends[cuts]
    limit = heights[table]
    feature_outside, feature_pruned = np.zeros((2, table.size), np.int64)
    j = int(kernels.count_outside(first, lookup_rows, limit, feature_outside, feature_pruned))
    if j >= 0:
        if mode == "fatal":
            raise _outside_error(j, cuts, ends, lookup_rows, table, heights)
        # faults are repaired in copies: the caller may look at what it asked for
        lookup_rows = lookup_rows.copy()
        kernels.mend_rows(first, lookup_rows, limit, outside)
    table_outside, table_pruned = np.zeros((2, heights.size), np.int64)
    # features may share a table, whose counts then add up; a plain index would keep the last one
    np.add.at(table_outside, table, feature_outside)
    np.add.at(table_pruned, table, feature_pruned)
    return Bounds(lookup_rows, ends, table_outside, table_pruned, malformed)
