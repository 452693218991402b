"""Bugs of idioms: pipelines, vector loads, warps that share a row, blocks that take turns.

Written before anybody looked at what the oracle says of them, as a measure of it. `says` has words
of hints that are right where a bug has no name.
"""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch, Lookups
from benchmarks.oracle_mutants.gradients import Merged
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.blocks import columns, places, sums_of
from benchmarks.oracle_mutants.mutants.numbers import bf16, fp16
from benchmarks.oracle_mutants.mutants.weights import weights
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import BACKWARD, FORWARD, MERGES, STEPS, bend
from benchmarks.oracle_mutants.terms import Update

ELSEWHERE = "lookup_from_elsewhere"


def ends_of_bags(part: Lookups) -> Array:
    """Is the lookup the last of its bag?"""
    return np.append(part.sample[1:] != part.sample[:-1], True)[: len(part.sample)]


# Weights.

bend(
    "weights_of_lookup_before",
    FORWARD,
    ELSEWHERE,
    lookup_weights=weights(lambda w, part, b: w[np.maximum(part.position - 1, 0)]),
)
bend(
    "last_weight_ignored",
    FORWARD,
    ELSEWHERE,
    lookup_weights=weights(
        lambda w, part, b: np.where(ends_of_bags(part), F32(1), w[part.position])
    ),
)
bend(
    "every_fourth_weight_ignored",
    FORWARD,
    ELSEWHERE,
    lookup_weights=weights(lambda w, part, b: np.where(part.place % 4 == 3, 1, w[part.position])),
)
bend(
    "weights_of_last_lookup",
    FORWARD,
    ELSEWHERE,
    lookup_weights=weights(
        lambda w, part, b: w[part.position + bag_lengths(part) - 1 - part.place]
    ),
)
bend(
    "weights_of_pairs_swapped",
    FORWARD,
    ELSEWHERE,
    lookup_weights=weights(
        lambda w, part, b: w[
            np.where(
                part.place // 2 * 2 + 1 < bag_lengths(part),
                part.position - part.place + (part.place ^ 1),
                part.position,
            )
        ]
    ),
)
bend(
    "negative_weights_skipped",
    FORWARD,
    "lookup_missing",
    lookup_weights=weights(lambda w, part, b: np.maximum(w[part.position], 0)),
)
bend(
    "gradients_take_weight_of_next_lookup",
    BACKWARD,
    ELSEWHERE,
    gradient_weights=weights(
        lambda w, part, b: w[np.minimum(part.position + 1, len(w) - 1)],
    ),
)
bend(
    "gradients_ignore_last_weight",
    BACKWARD,
    ELSEWHERE,
    gradient_weights=weights(
        lambda w, part, b: np.where(ends_of_bags(part), F32(1), w[part.position])
    ),
)


def bag_lengths(part: Lookups) -> Array:
    """The lookups of the bag of each lookup."""
    return np.bincount(part.sample)[part.sample] if len(part.sample) else part.sample


# Rows and bags.


def rows_of_lookups(change):
    """Rows of other lookups: change(rows, part) of a feature."""

    def feature_rows(k: Kernel, flat: Array, batch: Batch, feature: int, part: Lookups) -> Array:
        return change(Kernel.feature_rows(k, flat, batch, feature, part).copy(), part)

    return feature_rows


def row_ahead(x: Array, part: Lookups) -> Array:
    """A pipeline hands out what was fetched for the next lookup; the last one has its own."""
    last = ends_of_bags(part)
    return np.where(last[:, None], x, np.roll(x, -1, 0))


def late_columns_of_next(x: Array, part: Lookups) -> Array:
    """The second turn over columns reads the row number anew, one lookup too late."""
    x[:, 32:] = row_ahead(x, part)[:, 32:]
    return x


bend("row_prefetched_too_far", FORWARD, ELSEWHERE, feature_rows=rows_of_lookups(row_ahead))
bend(
    "columns_from_32_of_next_lookup",
    FORWARD,
    ELSEWHERE,
    says="columns from 32 on",
    feature_rows=rows_of_lookups(late_columns_of_next),
)
bend(
    "bags_one_lookup_early",
    FORWARD,
    f"bag_starts_early last_lookup_dropped {ELSEWHERE}",
    bag_sums=lambda k, x, w, part, size, lengths, batch: Kernel.bag_sums(
        k, np.roll(x, 1, 0), None if w is None else np.roll(w, 1), part, size, lengths, batch
    ),
)
bend(
    "bag_takes_in_the_next_bag",
    FORWARD,
    "lookup_added",
    stored=lambda k, sums, lengths, batch: sums + np.append(sums[1:], 0 * sums[:1], 0),
)
bend(
    "bags_stored_one_sample_late",
    FORWARD,
    f"permuted {ELSEWHERE}",
    stored=lambda k, sums, lengths, batch: np.roll(sums, 1, 0),
)
bend(
    "odd_samples_not_written",
    FORWARD,
    "",
    says="odd rows",
    stored=lambda k, sums, lengths, batch: sums * (np.arange(len(sums)) % 2 == 0)[:, None],
)
bend(
    "second_half_of_samples_not_written",
    FORWARD,
    "",
    says="second half of the rows",
    stored=lambda k, sums, lengths, batch: sums * (np.arange(len(sums)) < len(sums) / 2)[:, None],
)


def last_rows(place: int):
    """The lookup at a place of its bag reads the last row of the table."""

    def row_numbers(k: Kernel, batch: Batch, feature: int, part: Lookups) -> tuple[Array, Array]:
        row, inside = Kernel.row_numbers(k, batch, feature, part)
        last = int(batch.rows[batch.tables[feature]]) - 1
        return np.where(part.place == place, max(last, 0), row), inside

    return row_numbers


bend("second_lookup_reads_last_row", FORWARD, ELSEWHERE, row_numbers=last_rows(1))


def read_from(step: int):
    """A row's number in the table beside its own, where that has it."""

    def read(k: Kernel, flat: Array, batch: Batch, table: int, row: Array, name: str) -> Array:
        other = min(max(table + step, 0), len(batch.rows) - 1)
        fits = batch.dims[other] == batch.dims[table] and (row < batch.rows[other]).all()
        return Kernel.read(k, flat, batch, other if fits else table, row, name)

    return read


bend("rows_of_next_table", FORWARD, ELSEWHERE, read=read_from(1))
bend("rows_of_table_before", FORWARD, ELSEWHERE, read=read_from(-1))


# Columns.


def quarters_backwards(out: Array) -> Array:
    """The four numbers of a vector from the last to the first."""
    whole = out.shape[1] // 4 * 4
    out[:, :whole] = out[:, :whole].reshape(len(out), -1, 4)[:, :, ::-1].reshape(len(out), whole)
    return out


def second_vector_is_first(out: Array) -> Array:
    """Of each two vectors of 4 columns the second repeats the first."""
    whole = out.shape[1] // 8 * 8
    vectors = out[:, :whole].reshape(len(out), -1, 2, 4)
    vectors[:, :, 1] = vectors[:, :, 0]
    out[:, :whole] = vectors.reshape(len(out), whole)
    return out


def halves_swapped(out: Array) -> Array:
    return np.roll(out, out.shape[1] // 2, 1)


bend("vectors_of_4_backwards", FORWARD, "permuted", vector=columns(quarters_backwards))
bend("halves_of_columns_swapped", FORWARD, "permuted", vector=columns(halves_swapped))
bend(
    "second_vector_repeats_first",
    FORWARD,
    "",
    says="every second 4 columns",
    vector=columns(second_vector_is_first),
)


def scaled_half(out: Array) -> Array:
    """Half a warp adds its numbers to itself."""
    out[:, out.shape[1] // 2 :] *= 2
    return out


bend(
    "second_half_doubled",
    FORWARD,
    "sum_scaled",
    says="second half of the columns",
    vector=columns(scaled_half),
)

# Numbers.

bend(
    "terms_rounded_to_fp16",
    FORWARD,
    "",
    says="fp16",
    bag_sums=lambda k, x, w, part, size, lengths, batch: k.add_up(
        fp16(x if w is None else k.weighted(x, w)), part.sample, size
    ),
)
bend(
    "terms_rounded_to_bf16",
    FORWARD,
    "",
    says="bf16",
    bag_sums=lambda k, x, w, part, size, lengths, batch: k.add_up(
        bf16(x if w is None else k.weighted(x, w)), part.sample, size
    ),
)


def power_of_2(lengths: Array) -> Array:
    """The next power of two, which a shift can divide by."""
    return 2 ** np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)


bend(
    "mean_by_a_shift",
    FORWARD,
    "",
    says="pooling = mean",
    divisor=lambda k, lengths, batch, feature, part: power_of_2(lengths),
)
bend(
    "mean_over_twice_the_length",
    FORWARD,
    "sum_scaled constant_factor divided_by_2",
    divisor=lambda k, lengths, batch, feature, part: 2 * lengths,
)

# Merges.


def again(mask):
    """Some lookups of a row count twice: mask(place, count of its row)."""

    def add_gradients(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
        count = np.bincount(inverse, minlength=size)[inverse]
        twice = np.flatnonzero(mask(places(inverse), count))
        order = np.concatenate([np.arange(len(inverse)), twice])
        return Kernel.add_gradients(k, gradient[order], inverse[order], size)

    return add_gradients


bend(
    "last_lookup_of_row_twice",
    MERGES,
    "lookup_doubled",
    add_gradients=again(lambda place, count: (place == count - 1) & (count > 1)),
)
bend(
    "first_block_of_4_twice",
    MERGES,
    "lookup_doubled",
    add_gradients=again(lambda place, count: (place < 4) & (count > 4)),
)
bend(
    "every_second_lookup_of_row_lost",
    MERGES,
    "lookup_missing duplicate_lost",
    add_gradients=sums_of(lambda place, count: place % 2 == 0),
)
bend(
    "last_block_of_4_lost",
    MERGES,
    "sum_cut lookup_missing",
    add_gradients=sums_of(lambda place, count: (count <= 4) | (place < (count - 1) // 4 * 4)),
)


def beside(step: int):
    """Segments of sorted lookups that take in one of the row beside them."""

    def add_gradients(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
        sums = Kernel.add_gradients(k, gradient, inverse, size)
        rank = places(inverse)
        count = np.bincount(inverse, minlength=size)[inverse]
        edge = rank == 0 if step < 0 else rank == count - 1
        into = inverse + step
        fits = edge & (into >= 0) & (into < size)
        np.add.at(sums, into[fits], gradient[fits])
        return sums

    return add_gradients


bend("segment_takes_in_next_row", MERGES, "lookup_added", add_gradients=beside(-1))
bend("segment_takes_in_row_before", MERGES, "lookup_added", add_gradients=beside(1))
bend(
    "gradient_of_sample_before",
    MERGES,
    ELSEWHERE,
    gradient_rows=lambda k, grad: grad[np.maximum(np.arange(len(grad)) - 1, 0)],
)
bend(
    "gradient_times_count",
    MERGES,
    "sum_scaled",
    leaving=lambda k, merged, batch: merged._replace(
        gradient=(merged.gradient * merged.counts[:, None]).astype(F32)
    ),
)
bend(
    "last_lookup_of_row_subtracted",
    MERGES,
    "lookup_sign",
    add_gradients=lambda k, gradient, inverse, size: Kernel.add_gradients(
        k, gradient * last_negative(inverse), inverse, size
    ),
)


def last_negative(inverse: Array) -> Array:
    """-1 for the last lookup of rows that have several, else 1."""
    count = np.bincount(inverse)[inverse] if len(inverse) else inverse
    last = (places(inverse) == count - 1) & (count > 1)
    return np.where(last, F32(-1), F32(1))[:, None]


# Steps.

bend(
    "states_of_row_before",
    STEPS,
    "step_from_elsewhere",
    state_address=lambda k, place, rows: place.row_base + np.maximum(rows - 1, 0),
)
bend(
    "gradient_of_row_after",
    STEPS,
    "step_from_elsewhere",
    says="the next touched row",
    updated=lambda k, merged, batch, table: merged._replace(
        gradient=np.roll(merged.gradient, -1, 0)
    ),
)


def rows_beside(step: int):
    """A step starts from the weights of the row beside its own."""

    def weights_of(k: Kernel, tables: dict, cells: Array, options: dict) -> Array:
        other = np.clip(cells + step * cells.shape[1], 0, tables["weights"].size - 1)
        return Kernel.weights_of(k, tables, other, options)

    return weights_of


bend("step_from_row_after", STEPS, "step_from_elsewhere", weights_of=rows_beside(1))
bend("step_from_row_before", STEPS, "step_from_elsewhere", weights_of=rows_beside(-1))


def some_columns(mask):
    """A step reaches only some columns: mask(column)."""

    def store_rows(k: Kernel, tables: dict, cells: Array, update: Update, options: dict) -> None:
        update.w = np.where(mask(np.arange(update.columns)), update.w, update.old)
        Kernel.store_rows(k, tables, cells, update, options)

    return store_rows


bend(
    "first_column_not_stepped",
    STEPS,
    "",
    says="the first column",
    store_rows=some_columns(lambda c: c > 0),
)
bend(
    "every_second_vector_not_stepped",
    STEPS,
    "",
    says="every second 4 columns",
    store_rows=some_columns(lambda c: c // 4 % 2 == 0),
)
bend(
    "touched_rows_beyond_4_not_stepped",
    STEPS,
    "step_from_elsewhere old_state",
    updated=lambda k, merged, batch, table: Merged(*(array[:4] for array in merged)),
)
bend(
    "momentum_of_momentum",
    "backward trajectory",
    "",
    says="optimizer = momentum_sgd",
    momentum=lambda k, u, m, g: k.madd(F32(u.options["momentum"]) ** 2, m, g),
)
bend(
    "lamb_ratio_of_roots",
    STEPS,
    "",
    says="lamb",
    lamb_ratio=lambda k, u, weight, direction: np.sqrt(Kernel.lamb_ratio(k, u, weight, direction)),
)
