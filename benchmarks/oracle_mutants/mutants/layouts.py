"""Bugs in jagged layouts: bounds, offsets, keys, ranks, bags, segments."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Lookups
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.numbers import flushed, fp16, narrow_sums
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import bend

# Rows.


def wrapped(x: Array) -> Array:
    """Numbers in 32 bits."""
    return np.asarray(x).astype(np.int64).astype(np.int32).astype(np.int64)


bend(
    "bounds_replaced_by_0",
    "bounds_check",
    "out_of_bounds_row_0",
    replacement=lambda k, row, rows: np.zeros_like(row),
)
bend(
    "bounds_replaced_by_last",
    "bounds_check",
    replacement=lambda k, row, rows: np.full_like(row, rows - 1),
)
bend(
    "bounds_wrapped",
    "bounds_check",
    "out_of_bounds_wraps",
    replacement=lambda k, row, rows: row % rows,
)
bend(
    "bounds_of_32_bits",
    "bounds_check",
    is_outside=lambda k, row, rows: Kernel.is_outside(k, wrapped(row), rows),
)
bend(
    "bounds_allow_one_more",
    "bounds_check",
    is_outside=lambda k, row, rows: (row != -1) & ((row < 0) | (row > rows)),
)
bend("bounds_refuse_pruned", "bounds_check", is_outside=lambda k, r, n: (r < 0) | (r >= n))
bend("bounds_allow_negative", "bounds_check", is_outside=lambda k, row, rows: row >= rows)
bend("bounds_count_once", "bounds_check", counted_outside=lambda k, bad, row: int(bad.any()))
bend(
    "bounds_count_different",
    "bounds_check",
    counted_outside=lambda k, bad, row: len(np.unique(row[bad])),
)
bend(
    "linear_index_product_32_bits",
    "linear_index",
    "row_offset_32bit",
    element=lambda k, base, row, columns: base + wrapped(row * columns),
)
bend(
    "linear_index_32_bits",
    "linear_index",
    "row_offset_32bit",
    element=lambda k, base, row, columns: wrapped(base + row * columns),
)
bend(
    "linear_index_product_unsigned",
    "linear_index",
    "row_offset_32bit",
    element=lambda k, base, row, columns: base + (row * columns & 0xFFFFFFFF),
)
bend(
    "linear_index_bases_32_bits",
    "linear_index",
    "table_offset_32bit",
    element_bases=lambda k, batch: wrapped(Kernel.element_bases(k, batch)),
)
bend(
    "linear_index_row_base_missing",
    "linear_index",
    "",
    row_bases=lambda k, batch: np.zeros_like(batch.rows),
)
bend(
    "linear_index_pruned_counted",
    "linear_index",
    "",
    is_read=lambda k, row: np.ones(len(row), bool),
)
bend(
    "linear_index_row_32_bits",
    "linear_index",
    "",
    row_number=lambda k, base, row: wrapped(base + row),
)
bend(
    "linear_index_feature_is_table",
    "linear_index",
    "feature_is_table",
    tables_of_features=lambda k, tables, rows: np.arange(len(tables)) % len(rows),
)

# Offsets and lengths.

bend(
    "cumsum_32_bits",
    "lengths_to_offsets",
    cumsum=lambda k, lengths: wrapped(Kernel.cumsum(k, lengths)),
)
bend(
    "cumsum_inclusive",
    "lengths_to_offsets",
    cumsum=lambda k, lengths: (
        np.concatenate([np.cumsum(lengths.astype(np.int64)), [0]])
        if len(lengths)
        else np.zeros(1, np.int64)
    ),
)
bend(
    "cumsum_blocks_of_2_restart",
    "lengths_to_offsets",
    cumsum=lambda k, lengths: restarted(lengths.astype(np.int64), 2),
)
bend(
    "cumsum_last_missing",
    "lengths_to_offsets",
    cumsum=lambda k, lengths: (
        np.concatenate([[0], np.cumsum(lengths[:-1].astype(np.int64)), [0]])
        if len(lengths)
        else np.zeros(1, np.int64)
    ),
)


def restarted(lengths: Array, size: int) -> Array:
    """Running sums that lose the carry of every block."""
    sums = [np.cumsum(lengths[i : i + size]) for i in range(0, len(lengths), size)]
    return np.concatenate([[0], *sums]).astype(np.int64)


bend(
    "lengths_reversed", "offsets_to_lengths", differences=lambda k, offsets: np.diff(offsets)[::-1]
)
bend(
    "lengths_from_next",
    "offsets_to_lengths",
    differences=lambda k, offsets: np.append(np.diff(offsets)[1:], 0),
)
bend("lengths_negative", "offsets_to_lengths", differences=lambda k, o: o[:-1] - o[1:])
bend("lengths_at_least_1", "offsets_to_lengths", differences=lambda k, o: np.maximum(np.diff(o), 1))

# Keys.

bend(
    "permute_inverse",
    "permute",
    "permutation_inverted",
    key_order=lambda k, permute: (
        np.argsort(permute) if len(set(permute.tolist())) == len(permute) else permute[::-1]
    ),
)
bend("permute_ignored", "permute", key_order=lambda k, permute: np.arange(len(permute)))
bend(
    "permute_lengths_not_moved",
    "permute",
    permuted_lengths=lambda k, lengths, order: lengths[np.arange(len(order)) % len(lengths)],
)
bend(
    "permute_values_not_moved",
    "permute",
    permuted_places=lambda k, offsets, bags: (
        np.arange(len(Kernel.permuted_places(k, offsets, bags))) % max(int(offsets[-1]), 1)
    ),
)
bend(
    "permute_weights_not_moved",
    "permute",
    weight_places=lambda k, places: (
        np.arange(len(places)) % max(len(places), 1)
        if places.max(initial=-1) < 0
        else np.sort(places)
    ),
)
bend(
    "permute_bags_backwards",
    "permute",
    permuted_places=lambda k, offsets, bags: Kernel.permuted_places(k, offsets, bags)[::-1],
)

# Bags of rows.

bend("select_sorted", "index_select", selected=lambda k, values, select: values[np.sort(select)])
bend(
    "select_one_off",
    "index_select",
    selected=lambda k, values, select: values[np.minimum(select + 1, len(values) - 1)],
)
bend(
    "select_nan_zeroed",
    "index_select",
    selected=lambda k, values, select: np.nan_to_num(values[select]),
)
bend(
    "select_repeats_once",
    "index_select",
    selected=lambda k, values, select: np.where(repeated(select)[:, None], F32(0), values[select]),
)


def repeated(select: Array) -> Array:
    """Has the number come before?"""
    _, first = np.unique(select, return_index=True)
    mask = np.ones(len(select), bool)
    mask[first] = False
    return mask


bend(
    "bags_not_selected",
    "jagged_index_select",
    bag_places=lambda k, offsets, select: (
        np.arange(len(Kernel.bag_places(k, offsets, select))) % max(int(offsets[-1]), 1)
    ),
)
bend(
    "selected_lengths_unmoved",
    "jagged_index_select",
    selected_lengths=lambda k, lengths, select: lengths[: len(select)],
)
bend(
    "selected_bags_one_row",
    "jagged_index_select",
    bag_places=lambda k, offsets, select: np.repeat(
        np.minimum(offsets[select], offsets[-1] - 1), np.diff(offsets)[select]
    ),
)
bend("padding_0", "jagged_to_padded_dense", padding=lambda k, padding: F32(0))
bend("padding_nan", "jagged_to_padded_dense", padding=lambda k, padding: F32(np.nan))
bend(
    "padded_on_the_left",
    "jagged_to_padded_dense",
    dense_place=lambda k, place, lengths, most: place + np.maximum(most - lengths, 0),
)
bend(
    "padded_cuts_front",
    "jagged_to_padded_dense",
    "padding_cuts_front",
    dense_place=lambda k, place, lengths, most: place - np.maximum(lengths - most, 0),
)
bend(
    "padded_last_row_lost",
    "jagged_to_padded_dense",
    dense_place=lambda k, place, lengths, most: np.where(place == lengths - 1, -1, place),
)
bend(
    "unpadded_beyond_repeats",
    "padded_dense_to_jagged",
    unpadded=lambda k, dense, bag, place, inside: dense[bag, place],
)
bend(
    "unpadded_first_bag_for_all",
    "padded_dense_to_jagged",
    unpadded=lambda k, dense, bag, place, inside: Kernel.unpadded(k, dense, bag * 0, place, inside),
)
bend(
    "unpadded_one_place_late",
    "padded_dense_to_jagged",
    unpadded=lambda k, dense, bag, place, inside: Kernel.unpadded(
        k, np.roll(dense, -1, axis=1), bag, place, inside
    ),
)
bend("unique_of_32_bits", "unique", "", unique_keys=lambda k, indices: indices & 0xFFFFFFFF)


def by_occurrence(k: Kernel, unique: Array, inverse: Array, counts: Array) -> dict[str, Array]:
    """Numbers in the order in which they first occur."""
    _, first = np.unique(inverse, return_index=True)
    order = np.argsort(first)
    back = np.argsort(order)
    return {"unique": unique[order], "inverse": back[inverse], "counts": counts[order]}


bend("unique_by_occurrence", "unique", "", unique_parts=by_occurrence)
bend(
    "unique_counts_less_one",
    "unique",
    "",
    unique_parts=lambda k, unique, inverse, counts: {
        "unique": unique,
        "inverse": inverse,
        "counts": counts - 1,
    },
)
bend(
    "unique_inverse_is_sorted",
    "unique",
    "",
    unique_parts=lambda k, unique, inverse, counts: {
        "unique": unique,
        "inverse": np.sort(inverse),
        "counts": counts,
    },
)

# Segments.


def segments(change):
    """Other ends of segments: change(begins, ends, last)."""
    return lambda k, offsets: change(offsets[:-1], offsets[1:], offsets[-1])


def segment_lengths(part: Lookups) -> Array:
    """Rows of the segment of each row."""
    return np.bincount(part.sample)[part.sample]


bend(
    "segment_end_one_short",
    "segment_sum",
    "last_lookup_dropped segment_ends_early",
    segments=segments(lambda b, e, last: (b, e - 1)),
)
bend(
    "segment_end_inclusive",
    "segment_sum",
    "bag_ends_late",
    segments=segments(lambda b, e, last: (b, np.minimum(e + 1, last))),
)
bend(
    "segment_begin_one_late",
    "segment_sum",
    "first_lookup_dropped segment_starts_late",
    segments=segments(lambda b, e, last: (b + 1, e)),
)
bend(
    "segment_sum_cut_at_32",
    "segment_sum",
    "duplicates_capped_32 bag_capped_32",
    segment_kept=lambda k, part: part.place < 32,
)
bend(
    "segment_sum_cut_at_1024",
    "segment_sum",
    "duplicates_capped_1024 bag_capped_1024",
    segment_kept=lambda k, part: part.place < 1024,
)
bend(
    "segment_sum_tail_of_4_lost",
    "segment_sum",
    "duplicate_tail_dropped_4 bag_tail_dropped_4",
    segment_kept=lambda k, part: part.place < segment_lengths(part) // 4 * 4,
)
bend(
    "segment_sum_in_fp16",
    "segment_sum",
    "merged_in_fp16 accumulated_narrow",
    add_up=narrow_sums(fp16),
)
bend(
    "segment_sum_flushed",
    "segment_sum",
    "subnormals_flushed",
    vector=lambda k, out: flushed(out),
)
bend(
    "segment_sum_last_column_lost",
    "segment_sum",
    vector=lambda k, out: np.where(np.arange(out.shape[1]) < out.shape[1] - 1, out, F32(0)),
)
