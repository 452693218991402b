"""Bugs in the gradients of rows: terms, duplicates, segments, races, clipping."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch
from benchmarks.oracle_mutants.gradients import Merged
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.numbers import bf16, flushed, fp16, narrow_sums
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import BACKWARD, MERGES, bend, named_mistake

# Terms.

bend(
    "gradient_without_weights",
    MERGES,
    "gradient_without_weights weights_ignored",
    gradient_weights=lambda k, *geometry: None,
)
bend(
    "gradient_weights_squared",
    MERGES,
    "weights_twice",
    gradient_weights=lambda k, batch, f, part: (
        None if batch.weights is None else (batch.weights**2)[part.position]
    ),
)
bend(
    "gradient_weights_by_place",
    MERGES,
    "weights_restart",
    gradient_weights=lambda k, batch, f, part: (
        None if batch.weights is None else batch.weights[part.place]
    ),
)
named_mistake(
    "gradient_of_next_sample", BACKWARD, gradient_rows=lambda k, grad: np.roll(grad, -1, axis=0)
)
bend("gradient_of_sample_0", BACKWARD, gradient_rows=lambda k, grad: grad[:1].repeat(len(grad), 0))
bend(
    "gradient_transposed",
    BACKWARD,
    gradient_rows=lambda k, grad: grad.T.copy().reshape(grad.shape),
)
bend(
    "gradient_one_column_off",
    BACKWARD,
    column_starts=lambda k, batch: Kernel.column_starts(k, batch) + 1,
)
bend(
    "gradient_of_first_feature",
    BACKWARD,
    column_starts=lambda k, batch: np.zeros(len(batch.tables), np.int64),
)


def scaled(factor: float):
    """Gradients times a constant."""
    return lambda k, merged, batch: merged._replace(gradient=(merged.gradient * F32(factor)))


bend("gradient_over_2", MERGES, "divided_by_2", leaving=scaled(1 / 2))
bend("gradient_over_4", MERGES, "divided_by_4", leaving=scaled(1 / 4))
bend("gradient_over_8", MERGES, "divided_by_8", leaving=scaled(1 / 8))
bend("gradient_over_16", MERGES, "divided_by_8 divided_by_2", leaving=scaled(1 / 16))
bend("gradient_over_3", MERGES, leaving=scaled(1 / 3))
bend("gradient_times_2", MERGES, leaving=scaled(2))
bend("gradient_one_part_in_1000_large", MERGES, leaving=scaled(1.001))
bend("gradient_sign_flipped", MERGES, "sign_flipped", leaving=scaled(-1))
bend(
    "gradient_over_batch",
    MERGES,
    leaving=lambda k, merged, batch: merged._replace(
        gradient=merged.gradient / F32(max(batch.batch_sizes.max(initial=1), 1))
    ),
)
bend("gradient_fp16", MERGES, "gradients_in_fp16", arriving=lambda k, gradient, b: fp16(gradient))
bend("gradient_bf16", MERGES, "gradients_in_bf16", arriving=lambda k, gradient, b: bf16(gradient))
bend(
    "gradient_subnormals_flushed",
    MERGES,
    "subnormals_flushed",
    arriving=lambda k, gradient, b: flushed(gradient),
    leaving=lambda k, merged, b: merged._replace(gradient=flushed(merged.gradient)),
)
bend(
    "gradient_specials_zeroed",
    MERGES,
    arriving=lambda k, gradient, b: np.where(np.isfinite(gradient), gradient, F32(0)),
)

# Clipping.

named_mistake("clip_ignored", MERGES, clipped=lambda k, gradient, limit: gradient)
bend(
    "clip_from_above_only",
    MERGES,
    clipped=lambda k, gradient, limit: np.minimum(gradient, F32(limit)) if limit else gradient,
)
bend(
    "clip_at_half",
    MERGES,
    clipped=lambda k, gradient, limit: Kernel.clipped(k, gradient, limit / 2),
)


def clipped_by_norm(k: Kernel, gradient: Array, limit: float) -> Array:
    """The whole gradient of a bag is scaled down."""
    if not limit:
        return gradient
    norm = np.sqrt((gradient**2).sum(axis=1, keepdims=True))
    return (gradient * np.minimum(1, limit / np.maximum(norm, 1e-30))).astype(F32)


def clipped_late(k: Kernel, merged: Merged, batch: Batch) -> Merged:
    """Merged gradients are clipped."""
    limit = float(batch.options.get("max_gradient", 0.0))
    return merged._replace(gradient=Kernel.clipped(k, merged.gradient, limit))


bend("clip_by_norm", MERGES, clipped=clipped_by_norm)
named_mistake(
    "clip_after_merge", MERGES, clipped=lambda k, gradient, limit: gradient, leaving=clipped_late
)

# Duplicates.


def order_in_row(inverse: Array) -> tuple[Array, Array]:
    """The place of each lookup among those of its row, and how many the row has."""
    order = np.argsort(inverse, kind="stable")
    counts = np.bincount(inverse)
    place = np.empty(len(inverse), np.int64)
    begins = np.cumsum(counts) - counts
    place[order] = np.arange(len(inverse)) - begins[inverse[order]]
    return place, counts[inverse]


def only(kept):
    """Some of a row's lookups are added: kept(place, count, k) -> mask."""

    def add_gradients(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
        if not len(inverse):
            return Kernel.add_gradients(k, gradient, inverse, size)
        chosen = kept(*order_in_row(inverse), k)
        return Kernel.add_gradients(k, gradient[chosen], inverse[chosen], size)

    return add_gradients


def lost(share: float, least: int):
    """A share of the lookups of rows with many is lost."""

    def kept(place: Array, count: Array, k: Kernel) -> Array:
        drawn = np.random.default_rng(k.seed).random(len(place))
        return (drawn >= share) | (count < least)

    return kept


named_mistake(
    "last_duplicate_wins", MERGES, add_gradients=only(lambda place, count, k: place == count - 1)
)
named_mistake(
    "first_duplicate_wins", MERGES, add_gradients=only(lambda place, count, k: place == 0)
)
bend(
    "last_duplicate_lost",
    MERGES,
    "duplicate_lost",
    add_gradients=only(lambda place, count, k: (place < count - 1) | (count == 1)),
)
bend(
    "one_duplicate_lost",
    MERGES,
    "duplicate_lost",
    add_gradients=only(lambda place, count, k: place != np.where(count > 2, count // 2, -1)),
)
bend(
    "duplicates_lost_in_races",
    MERGES,
    "duplicate_lost",
    add_gradients=only(lost(0.05, 3)),
)
bend(
    "duplicates_lost_seldom",
    MERGES,
    "duplicate_lost",
    add_gradients=only(lost(0.01, 8)),
)
bend(
    "segments_cut_at_32",
    MERGES,
    "duplicates_capped_32",
    add_gradients=only(lambda place, count, k: place < 32),
)
bend(
    "segments_cut_at_64",
    MERGES,
    "",
    add_gradients=only(lambda place, count, k: place < 64),
)
bend(
    "segments_cut_at_1024",
    MERGES,
    "duplicates_capped_1024",
    add_gradients=only(lambda place, count, k: place < 1024),
)
bend(
    "segments_unrolled_by_2_tail_lost",
    MERGES,
    "duplicate_tail_dropped_2",
    add_gradients=only(lambda place, count, k: (place < count // 2 * 2) | (count == 1)),
)
bend(
    "segments_unrolled_by_4_tail_lost",
    MERGES,
    "duplicate_tail_dropped_4",
    add_gradients=only(lambda place, count, k: (place < count // 4 * 4) | (count < 4)),
)
bend(
    "segments_every_32nd_lost",
    MERGES,
    add_gradients=only(lambda place, count, k: place % 32 != 31),
)
bend(
    "segments_last_block_only",
    MERGES,
    add_gradients=only(lambda place, count, k: place >= (count - 1) // 32 * 32),
)


def blocks_stored(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
    """Blocks of 64 sorted lookups store their sums, over those of the block before."""
    order = np.argsort(inverse, kind="stable")
    sums = np.zeros((size, gradient.shape[1]), F32)
    for start in range(0, len(order), 64):
        block = order[start : start + 64]
        rows = np.unique(inverse[block])
        part = Kernel.add_gradients(k, gradient[block], inverse[block], size)
        sums[rows] = part[rows]
    return sums


def averaged(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
    """The mean of a row's gradients."""
    counts = np.maximum(np.bincount(inverse, minlength=size), 1).astype(F32)
    return Kernel.add_gradients(k, gradient, inverse, size) / counts[:, None]


def root_averaged(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
    """The sum of a row's gradients over the root of their number."""
    counts = np.maximum(np.bincount(inverse, minlength=size), 1).astype(F32)
    return Kernel.add_gradients(k, gradient, inverse, size) / np.sqrt(counts)[:, None]


def unsorted_neighbours(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
    """Only neighbouring duplicates are merged, the last run is stored."""
    last = np.zeros(size, np.int64)
    change = np.concatenate([[True], inverse[1:] != inverse[:-1]]) if len(inverse) else []
    run = np.cumsum(change)
    last[inverse] = run
    kept = last[inverse] == run
    return Kernel.add_gradients(k, gradient[kept], inverse[kept], size)


bend("segments_overwritten_at_block_edges", MERGES, add_gradients=blocks_stored)
named_mistake("duplicates_averaged", MERGES, add_gradients=averaged)
bend("duplicates_over_root_of_count", MERGES, add_gradients=root_averaged)
bend("neighbours_merged_only", MERGES, "last_run_wins", add_gradients=unsorted_neighbours)
named_mistake("merged_in_fp16", MERGES, add_gradients=narrow_sums(fp16))
named_mistake("merged_in_bf16", MERGES, add_gradients=narrow_sums(bf16))
bend(
    "first_gradient_twice",
    MERGES,
    add_gradients=lambda k, gradient, inverse, size: (
        Kernel.add_gradients(k, gradient, inverse, size)
        + Kernel.add_gradients(k, gradient[: len(inverse) // 9], inverse[: len(inverse) // 9], size)
    ),
)
bend(
    "very_last_gradient_lost",
    MERGES,
    merged_lookups=lambda k, rows: np.arange(len(rows)) < len(rows) - 1,
)
bend(
    "greatest_row_lost",
    MERGES,
    merged_lookups=lambda k, rows: rows < rows.max(initial=0),
)
bend(
    "row_0_lost",
    MERGES,
    merged_lookups=lambda k, rows: rows > 0,
)
bend(
    "rows_beyond_256_lost",
    MERGES,
    merged_lookups=lambda k, rows: rows < 256,
)
bend(
    "rows_hashed_to_64",
    MERGES,
    merged_lookups=lambda k, rows: first_with_key(rows % 64, rows),
)


def first_with_key(keys: Array, rows: Array) -> Array:
    """Of different rows of one key the first one is kept."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return rows[first[inverse]] == rows


bend(
    "first_feature_of_table_only",
    MERGES,
    features_of=lambda k, batch, table: Kernel.features_of(k, batch, table)[:1],
)
bend(
    "last_feature_of_table_only",
    MERGES,
    features_of=lambda k, batch, table: Kernel.features_of(k, batch, table)[-1:],
)

# The answer of unique_gradient.

bend(
    "unique_rows_without_base",
    "unique_gradient",
    unique_answer=lambda k, rows, values: {
        "rows": np.where(rows >= 8, rows - 8, rows),
        "values": values,
    },
)
bend(
    "unique_rows_descending",
    "unique_gradient",
    unique_answer=lambda k, rows, values: {"rows": rows[::-1], "values": values},
)
bend(
    "unique_values_of_next_row",
    "unique_gradient",
    unique_answer=lambda k, rows, values: {"rows": rows, "values": np.roll(values, 1)},
)
