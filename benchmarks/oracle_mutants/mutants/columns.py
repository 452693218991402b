"""Bugs in the columns of results: tails, orders, where features begin."""

import numpy as np

from benchmarks.oracle_mutants.geometry import Batch
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import FORWARD, GEOMETRY, bend, named_mistake

# Columns.


def columns(change, *, operators=GEOMETRY, name, true=""):
    """A bug in the columns of a result."""
    bend(name, operators, true, vector=lambda k, out: change(out.copy()))


def zeroed(first):
    """Columns from first(D) on stay 0."""

    def change(out: Array) -> Array:
        out[:, first(out.shape[1]) :] = 0
        return out

    return change


columns(zeroed(lambda d: d // 4 * 4), name="tail_of_4_columns_lost")
columns(zeroed(lambda d: d // 8 * 8 if d > 8 else d), name="tail_of_8_columns_lost")
columns(zeroed(lambda d: d // 32 * 32 if d > 32 else d), name="tail_of_32_columns_lost")
columns(zeroed(lambda d: 128), name="columns_beyond_128_lost")
columns(zeroed(lambda d: 256), name="columns_beyond_256_lost")
columns(zeroed(lambda d: 1024), name="columns_beyond_1024_lost")
columns(zeroed(lambda d: max(d - 1, 0)), name="last_column_lost")
columns(lambda out: out[:, ::-1], name="columns_backwards")
columns(lambda out: np.roll(out, 1, axis=1), name="columns_rotated")


def pairs_swapped(out: Array) -> Array:
    """Columns 2c and 2c + 1 change places."""
    even = out.shape[1] // 2 * 2
    swapped = np.arange(even) ^ 1
    out[:, :even] = out[:, swapped]
    return out


columns(pairs_swapped, name="pairs_of_columns_swapped")
columns(lambda out: out[::-1], operators=FORWARD, name="samples_backwards")
columns(lambda out: -out, operators=FORWARD, name="lookup_sign_flipped")
named_mistake(
    "columns_in_table_order",
    "lookup weight_gradient backward unique_gradient trajectory",
    column_starts=lambda k, batch: starts_by_table(batch),
)


def starts_by_table(batch: Batch) -> Array:
    """First columns of features, ordered by table."""
    order = np.argsort(batch.tables, kind="stable")
    widths = batch.dims[batch.tables][order]
    starts = np.empty_like(widths)
    starts[order] = np.cumsum(widths) - widths
    return starts


bend(
    "columns_by_width_of_feature",
    GEOMETRY,
    column_starts=lambda k, batch: np.arange(len(batch.tables)) * batch.dims[batch.tables],
)
bend(
    "columns_by_greatest_width",
    FORWARD,
    column_starts=lambda k, batch: np.arange(len(batch.tables)) * int(batch.dims.max()),
)


def by_sample(k: Kernel, parts: list[Array], batch: Batch) -> Array:
    """A flat output, sample by sample where all batches are of one size."""
    if not batch.variable:
        return Kernel.side_by_side(k, parts, batch)
    return np.concatenate([part.T.reshape(-1) for part in parts])


bend("flat_output_column_major", FORWARD, side_by_side=by_sample)
bend(
    "flat_output_features_backwards",
    FORWARD,
    side_by_side=lambda k, parts, batch: Kernel.side_by_side(
        k, parts[::-1] if batch.variable else parts, batch
    ),
)
bend(
    "flat_gradient_backwards",
    "backward unique_gradient weight_gradient",
    gradient_starts=lambda k, sizes: (np.cumsum(sizes[::-1]) - sizes[::-1])[::-1],
)
bend(
    "flat_gradient_by_first_size",
    "backward unique_gradient weight_gradient",
    gradient_starts=lambda k, sizes: np.arange(len(sizes)) * sizes[:1].sum(),
)
