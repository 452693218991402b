"""Bugs of merged gradients and of steps as users report them (see reports.py)."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch, Lookups
from benchmarks.oracle_mutants.gradients import Merged
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.blocks import places, sums_of
from benchmarks.oracle_mutants.mutants.idioms import (
    again,
    some_columns,
)
from benchmarks.oracle_mutants.mutants.numbers import bf16, tf32
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import BACKWARD, MERGES, STEPS, bend
from benchmarks.oracle_mutants.terms import Update

# Merges.


def lanes_from_32_lost(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
    """Of 64 sorted lookups a mask of 32 bits names those that join the row before them."""
    order = np.argsort(inverse, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    kept = (rank % 64 < 32) | (places(inverse) == 0)
    return Kernel.add_gradients(k, gradient[kept], inverse[kept], size)


bend(
    "lanes_from_32_of_64_lost",
    MERGES,
    "lookup_missing duplicate_lost sum_cut",
    add_gradients=lanes_from_32_lost,
)
bend(
    "remainder_of_blocks_of_16_lost",
    MERGES,
    "lookup_missing sum_cut",
    add_gradients=sums_of(lambda place, count: (count < 16) | (place < count // 16 * 16)),
)
bend(
    "segments_of_128_keep_last_block",
    MERGES,
    "sum_cut lookup_missing duplicate_lost",
    add_gradients=sums_of(lambda place, count: place // 128 == (count - 1) // 128),
)
bend(
    "gradients_in_tf32_before_merge",
    MERGES,
    "lookup_rounded gradients_in_tf32",
    says="TF32",
    arriving=lambda k, gradient, batch: tf32(gradient),
)


def kept_lengths(k: Kernel, lengths: Array, batch: Batch, feature: int, part: Lookups) -> Array:
    """Lookups of each bag that are not pruned."""
    _, inside = k.row_numbers(batch, feature, part)
    return np.bincount(part.sample, inside, len(lengths)).astype(np.int64)


bend(
    "gradient_of_mean_over_kept",
    BACKWARD,
    "mean_counts_kept",
    divisor=kept_lengths,
)


def with_table_before(k: Kernel, grad: Array, batch: Batch, table: int) -> tuple[Array, Array]:
    """Keys of the sort lack the table: equal rows of two neighbouring tables are one."""
    rows, gradient = Kernel.table_terms(k, grad, batch, table)
    if table == 0 or batch.dims[table - 1] != batch.dims[table]:
        return rows, gradient
    other, more = Kernel.table_terms(k, grad, batch, table - 1)
    shared = np.isin(other, rows)
    return np.concatenate([rows, other[shared]]), np.concatenate([gradient, more[shared]])


bend(
    "equal_rows_of_two_tables_merged",
    MERGES,
    "lookup_added",
    says="table",
    table_terms=with_table_before,
)
bend(
    "third_feature_of_table_lost",
    MERGES,
    "lookup_missing",
    says="feature",
    features_of=lambda k, batch, table: Kernel.features_of(k, batch, table)[:2],
)


def odd_columns_overwritten(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
    """An addition of two halves at once stores the second of them."""
    sums = Kernel.add_gradients(k, gradient, inverse, size)
    sums[inverse, 1::2] = gradient[:, 1::2]
    return sums


def late_clip(k: Kernel, x: Array, w: Array) -> Array:
    limit = getattr(k, "limit", 0.0)
    product = Kernel.weighted(k, x, w)
    return np.clip(product, -F32(limit), F32(limit)) if limit else product


def clip_noted(k: Kernel, gradient: Array, limit: float) -> Array:
    k.limit = limit
    return gradient


bend(
    "odd_columns_of_duplicates_overwritten",
    MERGES,
    "last_duplicate_wins sum_cut",
    says="odd columns",
    add_gradients=odd_columns_overwritten,
)
bend(
    "clip_after_weights",
    BACKWARD,
    "",
    says="max_gradient",
    clipped=clip_noted,
    weighted=late_clip,
)
bend(
    "pairs_of_lookups_twice_in_long_segments",
    MERGES,
    "lookup_doubled",
    add_gradients=again(lambda place, count: (count > 8) & (place % 8 < 2)),
)

# Steps.

bend(
    "momentum_kept_in_bf16",
    STEPS,
    "",
    says="bf16|momentum",
    momentum=lambda k, u, m, g: bf16(Kernel.momentum(k, u, m, g)),
)
bend(
    "eps_times_rate",
    STEPS,
    "",
    says="eps",
    root=lambda k, u, x: (k.sqrt(x) + u.eps * u.lr).astype(F32),
)


def last_chunk_twice(k: Kernel, u: Update, g: Array) -> Array:
    """The last of the warps of 32 columns adds its squares twice where it is not full."""
    square = k.square_of(u, g)
    tail = u.columns % 32
    extra = k.column_sum(square[:, u.columns - tail :]) if tail else F32(0)
    return k.over((k.column_sum(square) + extra).astype(F32), F32(u.columns))


bend(
    "mean_square_adds_last_chunk_twice",
    STEPS,
    "",
    says="columns|D |rowwise",
    mean_square=last_chunk_twice,
)


def decay_of_each_lookup(k: Kernel, u: Update) -> Array:
    """A row decays once for each lookup."""
    if u.mode not in ("decoupled", "decoupled_global") or not u.decay:
        return u.w
    return (u.w * (k.decay_factor(u) ** u.lookups)[:, None]).astype(F32)


bend(
    "decay_for_each_lookup",
    STEPS,
    "",
    says="decay",
    decayed=decay_of_each_lookup,
)
bend(
    "age_since_first_step",
    STEPS,
    "",
    says="rmsprop|adagradw|counter",
    age=lambda k, u: np.full_like(u.states["prev_iter"], F32(u.t)),
)
bend(
    "states_of_touched_row_before",
    STEPS,
    "step_from_elsewhere",
    state_address=lambda k, place, rows: place.row_base + np.roll(rows, 1),
)
bend(
    "touched_rows_beyond_32_not_stepped",
    STEPS,
    "step_from_elsewhere old_state",
    says="rows",
    updated=lambda k, merged, batch, table: Merged(*(array[:32] for array in merged)),
)
bend(
    "columns_beyond_128_not_stepped",
    STEPS,
    "",
    says="columns from 128 on|from column 128 on",
    store_rows=some_columns(lambda c: c < 128),
)


def half_stale(k: Kernel, tables: dict, answers: dict, step: int) -> Array:
    """The second half of the table is read before its update lands."""
    before = answers.get(f"step{step - 1}/weights")
    older = answers.get(f"step{step - 2}/weights")
    seen = tables["weights"].copy()
    if before is not None and older is not None:
        seen[seen.size // 2 :] = older[seen.size // 2 :]
    return seen


bend("second_half_of_rows_seen_late", "trajectory", "rows_of_earlier_step", weights_seen=half_stale)
bend(
    "counter_counts_lookups",
    STEPS,
    "",
    says="row_counter|counter",
    counted=lambda k, u, n: (n + u.lookups - F32(1)).astype(F32),
)
bend(
    "lamb_trust_ratio_of_square_norms",
    STEPS,
    "",
    says="lamb",
    lamb_ratio=lambda k, u, weight, direction: Kernel.lamb_ratio(
        k, u, weight * weight, direction * direction
    ),
)
bend(
    "second_moment_of_unmerged_gradients",
    STEPS,
    "squares_before_merge",
    square_of=lambda k, u, g: u.squares if g is u.g else (g * g).astype(F32),
)
