"""Bugs of threads and blocks: lanes, halves, borders of blocks, neighbours, what stays from before.

Written when the oracle had no name for any of them, to see what it says then.
"""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch, Lookups
from benchmarks.oracle_mutants.gradients import Merged
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import BACKWARD, FORWARD, MERGES, STEPS, bend

BLOCK = 8  # lookups that a block takes


def places(inverse: Array) -> Array:
    """The place of each lookup among those of its row."""
    order = np.argsort(inverse, kind="stable")
    begins = np.searchsorted(inverse[order], inverse[order])
    place = np.empty(len(inverse), np.int64)
    place[order] = np.arange(len(inverse)) - begins
    return place


def sums_of(keep):
    """Only some lookups of a row count: keep(place, count of its row)."""

    def add_gradients(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
        count = np.bincount(inverse, minlength=size)[inverse]
        kept = keep(places(inverse), count)
        return Kernel.add_gradients(k, gradient[kept], inverse[kept], size)

    return add_gradients


bend(
    "segment_cut_first_block_only",
    MERGES,
    "sum_cut",
    add_gradients=sums_of(lambda place, count: place < BLOCK),
)
bend(
    "segment_cut_last_block_wins",
    MERGES,
    "sum_cut",
    add_gradients=sums_of(lambda place, count: place // BLOCK == (count - 1) // BLOCK),
)
bend(
    "lookup_at_block_border_lost",
    MERGES,
    "lookup_missing",
    add_gradients=sums_of(lambda place, count: place != BLOCK),
)
bend(
    "second_lookup_of_row_lost",
    MERGES,
    "lookup_missing duplicate_lost",
    add_gradients=sums_of(lambda place, count: place != 1),
)


def border_twice(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
    """The last lookup of the first block is the first of the second one, too."""
    again = np.flatnonzero(places(inverse) == 2)
    order = np.concatenate([np.arange(len(inverse)), again])
    return Kernel.add_gradients(k, gradient[order], inverse[order], size)


bend("lookup_at_border_counts_twice", MERGES, "lookup_doubled", add_gradients=border_twice)


def first_subtracted(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
    sign = np.where(places(inverse) == 0, F32(-1), F32(1))[:, None]
    return Kernel.add_gradients(k, gradient * sign, inverse, size)


bend("first_lookup_subtracted", MERGES, "lookup_sign", add_gradients=first_subtracted)


def blocks_in_turn(
    k: Kernel, merged: Merged, grad: Array, batch: Batch, table: int
) -> list[Merged]:
    """A row's lookups in blocks of 2, a step for each block."""
    rows, gradient = k.table_terms(grad, batch, table)
    _, inverse = np.unique(rows, return_inverse=True)
    block = places(inverse) // 2
    return [
        k.merge(rows[block == b], gradient[block == b], batch)
        for b in range(int(block.max(initial=-1)) + 1)
    ]


bend("step_for_each_block_of_2", STEPS, "stepped_in_parts", table_steps=blocks_in_turn)


def columns(change):
    """Other columns of a result: change(out) of fp32[n, D]."""
    return lambda k, out: change(out.copy())


def zeroed(mask):
    def change(out: Array) -> Array:
        out[:, mask(np.arange(out.shape[1]), out.shape[1])] = 0
        return out

    return change


bend("second_half_of_columns_0", FORWARD, "", vector=columns(zeroed(lambda c, n: c >= n // 2)))
bend("odd_columns_0", FORWARD, "", vector=columns(zeroed(lambda c, n: c % 2 == 1)))
bend("lane_3_of_4_0", FORWARD, "", vector=columns(zeroed(lambda c, n: c % 4 == 3)))


def lanes_swapped(out: Array) -> Array:
    pairs = out.shape[1] // 2
    swapped = out[:, : 2 * pairs].reshape(len(out), pairs, 2)[:, :, ::-1]
    out[:, : 2 * pairs] = swapped.reshape(len(out), 2 * pairs)
    return out


bend("lanes_swapped_in_pairs", FORWARD, "permuted", vector=columns(lanes_swapped))


def other_row(step: int):
    """Rows beside those that are asked for; the last stays."""

    def row_numbers(k: Kernel, batch: Batch, feature: int, part: Lookups) -> tuple[Array, Array]:
        row, inside = Kernel.row_numbers(k, batch, feature, part)
        limit = int(batch.rows[batch.tables[feature]]) - 1
        return np.clip(row + step, 0, max(limit, 0)), inside

    return row_numbers


bend("row_after_its_own", FORWARD, "lookup_from_elsewhere", row_numbers=other_row(1))
bend("row_before_its_own", FORWARD, "lookup_from_elsewhere", row_numbers=other_row(-1))


def every_eighth_from_row_0(
    k: Kernel, batch: Batch, feature: int, part: Lookups
) -> tuple[Array, Array]:
    row, inside = Kernel.row_numbers(k, batch, feature, part)
    return np.where(part.place == 2, 0, row), inside


bend(
    "third_lookup_reads_row_0",
    FORWARD,
    "lookup_from_elsewhere",
    row_numbers=every_eighth_from_row_0,
)
bend(
    "weights_shifted_by_one",
    FORWARD,
    "lookup_from_elsewhere",
    lookup_weights=lambda k, batch, f, part: (
        None
        if batch.weights is None
        else batch.weights[np.minimum(part.position + 1, len(batch.weights) - 1)]
    ),
)
bend(
    "second_weight_ignored",
    FORWARD,
    "lookup_from_elsewhere",
    lookup_weights=lambda k, batch, f, part: (
        None
        if batch.weights is None
        else np.where(part.place == 1, F32(1), batch.weights[part.position])
    ),
)
bend(
    "bags_shifted_by_one",
    FORWARD,
    "bag_ends_late first_lookup_dropped lookup_from_elsewhere",
    bag_sums=lambda k, x, w, part, size, lengths, batch: Kernel.bag_sums(
        k, np.roll(x, -1, 0), None if w is None else np.roll(w, -1), part, size, lengths, batch
    ),
)


def tf32(x: Array) -> Array:
    """Numbers of 11 bits, by cutting."""
    return (np.ascontiguousarray(x, F32).view(np.uint32) & np.uint32(0xFFFFE000)).view(F32)


def tf32_nearest(x: Array) -> Array:
    bits = np.ascontiguousarray(x, F32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(F32)


bend(
    "weights_in_tf32_rounded",
    FORWARD,
    "",
    weighted=lambda k, x, w: (tf32_nearest(x) * tf32_nearest(w)[:, None]).astype(F32),
)
bend(
    "gradients_in_tf32_rounded",
    BACKWARD,
    "",
    arriving=lambda k, gradient, batch: tf32_nearest(gradient),
)


bend(
    "second_moment_never_falls",
    STEPS,
    "second_moment_maximum",
    kept_second=lambda k, u, v: np.maximum(v, u.states["exp_avg_sq"]),
)


def half_written(k: Kernel, merged: Merged, batch: Batch, table: int) -> Merged:
    """Only every second touched row steps: a warp takes two, and forgets one."""
    return Merged(*(array[::2] for array in merged))


bend("every_second_touched_row_steps", STEPS, "step_from_elsewhere old_state", updated=half_written)


def gradients_one_row_late(k: Kernel, merged: Merged, batch: Batch, table: int) -> Merged:
    """A row takes the gradient of the touched row before it."""
    return merged._replace(gradient=np.roll(merged.gradient, 1, 0))


bend("gradient_of_row_before", STEPS, "", updated=gradients_one_row_late)
