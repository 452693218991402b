"""Bugs in finding lookups: bags, rows, tables, addresses."""

import numpy as np

from benchmarks.oracle_mutants.geometry import Batch, Lookups
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import BACKWARD, FORWARD, GEOMETRY, bend, named_mistake


def bag_lengths(part: Lookups) -> Array:
    """The number of lookups in the bag of each lookup."""
    return np.bincount(part.sample)[part.sample] if len(part.sample) else part.sample


# Bags.

bend("bag_end_one_short", GEOMETRY, "last_lookup_dropped", ends=lambda k, ends, begins, b: ends - 1)
bend("bag_begin_one_late", GEOMETRY, "first_lookup_dropped", begins=lambda k, begins, b: begins + 1)
bend("bag_end_inclusive", GEOMETRY, "bag_ends_late", ends=lambda k, ends, begins, b: ends + 1)
bend(
    "bag_begin_one_early",
    GEOMETRY,
    "bag_starts_early",
    begins=lambda k, begins, b: np.maximum(begins - 1, 0),
)
bend(
    "backward_bag_end_one_short",
    BACKWARD,
    "last_lookup_dropped",
    ends=lambda k, ends, begins, b: ends - 1,
)
bend(
    "backward_bag_end_inclusive",
    BACKWARD,
    "bag_ends_late",
    ends=lambda k, ends, begins, b: ends + 1,
)


def cap(longest: int):
    """Bags cut off at so many lookups."""
    return lambda k, batch, feature, part: part.place < longest


bend("bags_cut_at_32", GEOMETRY, "bag_capped_32", kept=cap(32))
bend("bags_cut_at_64", GEOMETRY, "", kept=cap(64))
bend("bags_cut_at_1024", GEOMETRY, "bag_capped_1024", kept=cap(1024))
bend("backward_bags_cut_at_32", BACKWARD, "bag_capped_32", kept=cap(32))


def whole_groups(size: int):
    """Lookups of a loop unrolled `size` times without its remainder."""
    return lambda k, batch, feature, part: part.place < bag_lengths(part) // size * size


bend("unrolled_by_2_tail_lost", GEOMETRY, "bag_tail_dropped_2", kept=whole_groups(2))
bend("unrolled_by_4_tail_lost", GEOMETRY, "bag_tail_dropped_4", kept=whole_groups(4))
bend("unrolled_by_8_tail_lost", GEOMETRY, "bag_tail_dropped_8", kept=whole_groups(8))
bend("backward_unrolled_by_4_tail_lost", BACKWARD, "bag_tail_dropped_4", kept=whole_groups(4))


def tail_twice(k: Kernel, batch: Batch, feature: int, part: Lookups) -> Array:
    """The remainder of a loop unrolled four times is read twice."""
    tail = part.place >= bag_lengths(part) // 4 * 4
    return np.repeat(np.arange(len(part.place)), 1 + (tail & (bag_lengths(part) % 4 == 3)))


bend("unrolled_by_4_tail_twice", FORWARD, kept=tail_twice)
bend(
    "last_chunk_of_32_lost",
    GEOMETRY,
    kept=lambda k, b, f, part: (part.place < 32) | (bag_lengths(part) % 32 != 0),
)
bend("every_32nd_lookup_lost", GEOMETRY, kept=lambda k, b, f, part: part.place % 32 != 31)
bend("bags_of_one_skipped", GEOMETRY, kept=lambda k, b, f, part: bag_lengths(part) > 1)
bend("first_bag_skipped", GEOMETRY, kept=lambda k, b, f, part: part.sample > 0)
bend(
    "last_bag_of_each_feature_skipped",
    GEOMETRY,
    kept=lambda k, batch, feature, part: part.sample < batch.batch_sizes[feature] - 1,
)
bend(
    "last_feature_skipped",
    GEOMETRY,
    kept=lambda k, b, f, part: np.full(len(part.sample), f + 1 < len(b.tables) or f == 0),
)
bend(
    "very_last_lookup_lost",
    GEOMETRY,
    kept=lambda k, batch, feature, part: part.position < len(batch.indices) - 1,
)
bend(
    "very_first_lookup_lost",
    GEOMETRY,
    kept=lambda k, batch, feature, part: part.position > 0,
)


def first_of_each_row(k: Kernel, batch: Batch, feature: int, part: Lookups) -> Array:
    """Of a row's lookups in a bag only the first is read."""
    keys = np.stack([part.sample, batch.of(feature, part)])
    _, first = np.unique(keys, axis=1, return_index=True)
    return np.sort(first)


bend("duplicates_in_bag_read_once", FORWARD, "bag_deduplicated", kept=first_of_each_row)


def runs_read_once(k: Kernel, batch: Batch, feature: int, part: Lookups) -> Array:
    """A lookup of the same row as the one before is taken for it."""
    row = batch.of(feature, part)
    same = np.zeros(len(row), bool)
    same[1:] = (row[1:] == row[:-1]) & (part.sample[1:] == part.sample[:-1])
    return ~same


bend("repeated_row_read_once", FORWARD, kept=runs_read_once)


def prefetched(k: Kernel, batch: Batch, feature: int, part: Lookups) -> Array:
    """The pipeline's last stage reads the row before once more."""
    last = part.place == bag_lengths(part) - 1
    return np.arange(len(part.place)) - (last & (part.place > 0))


bend("pipeline_repeats_row", FORWARD, kept=prefetched)


def lost_in_races(k: Kernel, batch: Batch, feature: int, part: Lookups) -> Array:
    """One lookup of a long bag is lost to a race."""
    drawn = np.random.default_rng(k.seed).random(len(part.place))
    return (drawn >= 0.05) | (bag_lengths(part) < 8)


bend("lookups_lost_in_races", FORWARD, kept=lost_in_races)
bend(
    "offsets_of_first_feature_for_all",
    GEOMETRY,
    first_bags=lambda k, batch: np.zeros_like(batch.batch_sizes),
)
bend(
    "features_one_bag_apart_too_far",
    GEOMETRY,
    first_bags=lambda k, batch: np.arange(len(batch.batch_sizes)) * (batch.batch_sizes + 1),
)


def sample_major(k: Kernel, batch: Batch, feature: int) -> Array:
    """Bags are counted sample by sample, feature by feature."""
    bags = np.arange(batch.batch_sizes[feature]) * len(batch.tables) + feature
    first = int((np.cumsum(batch.batch_sizes) - batch.batch_sizes)[feature])
    return bags - first


bend("bags_sample_major", GEOMETRY, bag_numbers=sample_major)
bend(
    "bags_backwards",
    GEOMETRY,
    bag_numbers=lambda k, batch, feature: np.arange(batch.batch_sizes[feature])[::-1],
)
bend(
    "batch_of_first_feature_for_all",
    GEOMETRY,
    first_bags=lambda k, batch: np.arange(len(batch.tables)) * batch.batch_sizes[:1].sum(),
)
bend(
    "longest_batch_for_all",
    GEOMETRY,
    first_bags=lambda k, batch: (
        np.arange(len(batch.tables)) * int(batch.batch_sizes.max(initial=0))
    ),
)
bend(
    "offsets_16_bits",
    GEOMETRY,
    offset_values=lambda k, offsets: offsets & 0xFFFF,
)

# Rows.

bend("rows_16_bits", GEOMETRY, index_values=lambda k, x: np.where(x < 0, x, x & 0xFFFF))
bend("rows_8_bits", GEOMETRY, index_values=lambda k, x: np.where(x < 0, x, x & 0xFF))
bend(
    "rows_one_too_high",
    GEOMETRY,
    index_values=lambda k, x: np.where(x < 0, x, x + 1).astype(np.int64),
)


def pruned_to(row_of):
    """Pruned lookups read a row."""

    def row_numbers(k: Kernel, batch: Batch, feature: int, part: Lookups) -> tuple[Array, Array]:
        row, inside = Kernel.row_numbers(k, batch, feature, part)
        pruned = batch.of(feature, part) == -1
        rows = int(batch.rows[batch.tables[feature]])
        return np.where(pruned, row_of(row, rows), row), inside | pruned

    return row_numbers


def row_before(row: Array, rows: int) -> Array:
    """The row of the lookup before."""
    return np.concatenate([row[:1], row[:-1]])


named_mistake("pruned_reads_last_row", GEOMETRY, row_numbers=pruned_to(lambda row, rows: rows - 1))
named_mistake("pruned_reads_row_0", GEOMETRY, row_numbers=pruned_to(lambda row, rows: 0))
bend("pruned_reads_row_before", GEOMETRY, row_numbers=pruned_to(row_before))


def until_pruned(k: Kernel, batch: Batch, feature: int, part: Lookups) -> Array:
    """A pruned lookup ends its bag."""
    pruned = np.cumsum(batch.of(feature, part) == -1)
    before = np.where(part.place == 0, pruned - (batch.of(feature, part) == -1), 0)
    return pruned == np.maximum.accumulate(before)


bend("pruned_ends_bag", GEOMETRY, kept=until_pruned)


def outside_to(row_of):
    """Rows out of range are read elsewhere."""

    def row_numbers(k: Kernel, batch: Batch, feature: int, part: Lookups) -> tuple[Array, Array]:
        row, inside = Kernel.row_numbers(k, batch, feature, part)
        number = batch.of(feature, part)
        rows = int(batch.rows[batch.tables[feature]])
        outside = ~inside & (number != -1)
        return np.where(outside, row_of(number, rows), row), inside | outside

    return row_numbers


bend(
    "outside_reads_row_0",
    GEOMETRY,
    "out_of_bounds_row_0",
    row_numbers=outside_to(lambda row, rows: 0),
)
bend(
    "outside_wraps",
    GEOMETRY,
    "out_of_bounds_wraps",
    row_numbers=outside_to(lambda row, rows: row % rows),
)
bend(
    "outside_clamped",
    GEOMETRY,
    "out_of_bounds_clamped",
    row_numbers=outside_to(lambda row, rows: np.clip(row, 0, rows - 1)),
)
bend("row_after_last_allowed", FORWARD, inside=lambda k, row, rows: (row >= 0) & (row <= rows))
bend("last_row_refused", GEOMETRY, inside=lambda k, row, rows: (row >= 0) & (row < rows - 1))
bend("row_0_is_padding", GEOMETRY, inside=lambda k, row, rows: (row > 0) & (row < rows))

# Tables and memory.

named_mistake(
    "feature_is_table",
    GEOMETRY,
    tables_of_features=lambda k, tables, rows: np.arange(len(tables)) % len(rows),
)
bend(
    "tables_sorted",
    GEOMETRY,
    tables_of_features=lambda k, tables, rows: np.sort(tables),
)
bend(
    "first_table_for_all",
    FORWARD,
    bases=lambda k, batch, widths: np.zeros_like(widths),
)
bend(
    "tables_begin_one_row_late",
    FORWARD,
    bases=lambda k, batch, widths: (
        Kernel.bases(k, batch, widths) + np.where(np.arange(len(widths)) > 0, widths, 0)
    ),
)
bend(
    "rows_apart_as_in_first_table",
    FORWARD,
    row_stride=lambda k, batch, table, width: int(width * batch.dims[0] // batch.dims[table]),
)
bend(
    "rows_padded_to_8",
    FORWARD,
    row_stride=lambda k, batch, table, width: -(-width // 8) * 8,
)
bend(
    "rows_one_apart_too_few",
    FORWARD,
    row_stride=lambda k, batch, table, width: max(width - 1, 1),
)
