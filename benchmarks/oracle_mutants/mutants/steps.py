"""Bugs in taking steps: which rows, how often, from which state, at which rate, with what decay."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch
from benchmarks.oracle_mutants.gradients import Merged
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import STEPS, bend, named_mistake
from benchmarks.oracle_mutants.terms import Update

# Which rows, and how often.


def one_by_one(k: Kernel, merged: Merged, grad: Array, batch: Batch, table: int) -> list[Merged]:
    """One step for each lookup of a row."""
    rows, gradient = k.table_terms(grad, batch, table)
    steps = []
    while len(rows):
        unique, first = np.unique(rows, return_index=True)
        part = gradient[first]
        steps.append(Merged(unique, part, part * part, np.ones(len(unique), F32)))
        rest = np.delete(np.arange(len(rows)), first)
        rows = rows[rest]
        gradient = gradient[rest]
    return steps


def feature_by_feature(
    k: Kernel, merged: Merged, grad: Array, batch: Batch, table: int
) -> list[Merged]:
    """One step for each feature of a table."""
    return [k.merge(*k.terms(grad, batch, f), batch) for f in k.features_of(batch, table)]


def twice(k: Kernel, merged: Merged, grad: Array, batch: Batch, table: int) -> list[Merged]:
    """Two halves of a row's lookups, a step for each."""
    rows, gradient = k.table_terms(grad, batch, table)
    half = len(rows) // 2
    return [
        k.merge(rows[:half], gradient[:half], batch),
        k.merge(rows[half:], gradient[half:], batch),
    ]


named_mistake("duplicates_in_sequence", STEPS, table_steps=one_by_one)
named_mistake("features_in_sequence", STEPS, table_steps=feature_by_feature)
bend("lookups_in_two_halves", STEPS, table_steps=twice)
bend("step_taken_twice", STEPS, table_steps=lambda k, merged, *call: [merged, merged])


def chosen(mask):
    """Only some of the touched rows step: mask(k, merged, batch, table)."""

    def updated(k: Kernel, merged: Merged, batch: Batch, table: int) -> Merged:
        kept = mask(k, merged, batch, table)
        return Merged(*(array[kept] for array in merged))

    return updated


bend(
    "last_touched_row_skipped",
    STEPS,
    updated=chosen(lambda k, m, b, t: np.arange(len(m.rows)) < len(m.rows) - 1),
)
bend(
    "first_touched_row_skipped",
    STEPS,
    updated=chosen(lambda k, m, b, t: np.arange(len(m.rows)) > 0),
)
bend(
    "last_row_of_table_skipped",
    STEPS,
    updated=chosen(lambda k, m, b, t: m.rows < b.rows[t] - 1),
)
bend("row_0_skipped", STEPS, updated=chosen(lambda k, m, b, t: m.rows > 0))
bend(
    "rows_of_zero_gradient_skipped",
    STEPS,
    updated=chosen(lambda k, m, b, t: (m.gradient != 0).any(axis=1)),
)
bend(
    "last_table_skipped",
    STEPS,
    updated=chosen(
        lambda k, m, b, t: np.full(len(m.rows), t + 1 < len(b.rows) or len(b.rows) == 1)
    ),
)
bend(
    "rows_updated_every_32nd_skipped",
    STEPS,
    updated=chosen(lambda k, m, b, t: np.arange(len(m.rows)) % 32 != 31),
)


def all_rows(k: Kernel, merged: Merged, batch: Batch, table: int) -> Merged:
    """Every row of the table steps, with gradient 0 where nothing looked it up."""
    rows = np.arange(batch.rows[table])
    gradient = np.zeros((len(rows), merged.gradient.shape[1]), F32)
    gradient[merged.rows] = merged.gradient
    squares = np.zeros_like(gradient)
    squares[merged.rows] = merged.squares
    counts = np.zeros(len(rows), F32)
    counts[merged.rows] = merged.counts
    return Merged(rows, gradient, squares, counts)


def row_0_too(k: Kernel, merged: Merged, batch: Batch, table: int) -> Merged:
    """Row 0 steps with gradient 0 though nothing looked it up."""
    if not len(merged.rows) or merged.rows[0] == 0:
        return merged
    zero = np.zeros((1, merged.gradient.shape[1]), F32)
    return Merged(
        np.concatenate([[0], merged.rows]),
        np.concatenate([zero, merged.gradient]),
        np.concatenate([zero, merged.squares]),
        np.append(F32(0), merged.counts),
    )


named_mistake("untouched_rows_step", STEPS, updated=all_rows)
bend("row_0_always_steps", STEPS, updated=row_0_too)
bend(
    "row_after_steps",
    STEPS,
    updated=lambda k, m, b, t: m._replace(rows=np.minimum(m.rows + 1, b.rows[t] - 1)),
)

# States.

bend(
    "state_of_next_row",
    STEPS,
    state_address=lambda k, place, rows: place.row_base + np.roll(rows, -1),
)
bend(
    "state_by_row_times_D",
    STEPS,
    state_address=lambda k, place, rows: (
        place.row_base + rows * place.columns % (int(rows.max(initial=0)) + 1)
    ),
)
bend("state_by_row_without_base", STEPS, state_address=lambda k, place, rows: rows)
bend("state_columns_backwards", STEPS, state_cells=lambda k, cells: cells[:, ::-1])


def kept_old(*names: str):
    """States that are not written."""

    def step(k: Kernel, u: Update) -> None:
        old = {name: state.copy() for name, state in u.states.items()}
        Kernel.step(k, u)
        for name in names or old:
            if name in old:
                u.states[name] = old[name]

    return step


bend("states_not_written", STEPS, "states_not_stored", step=kept_old())
bend("sum_not_written", STEPS, "states_not_stored", step=kept_old("sum"))
bend("momentum_not_written", STEPS, "states_not_stored", step=kept_old("momentum_buffer"))
bend("first_moment_not_written", STEPS, "", step=kept_old("exp_avg"))
bend("second_moment_not_written", STEPS, "", step=kept_old("exp_avg_sq"))
bend("square_avg_not_written", STEPS, "", step=kept_old("square_avg"))
bend("prev_iter_not_written", STEPS, "", step=kept_old("prev_iter"))
bend("row_counter_not_written", STEPS, "", step=kept_old("row_counter"))


def rows_kept(k: Kernel, u: Update) -> None:
    """States move, rows do not."""
    Kernel.step(k, u)
    u.w = u.old


def zeroed(k: Kernel, tables: dict[str, Array], inputs: dict[str, Array]) -> None:
    """States begin at 0 at every step."""
    for name, array in tables.items():
        if name != "weights":
            array[:] = 0


def restored(k: Kernel, tables: dict[str, Array], inputs: dict[str, Array]) -> None:
    """States begin at every step as they were before the first."""
    for name, array in tables.items():
        if name != "weights":
            array[:] = inputs.get(name, 0)


bend("rows_not_written", STEPS, step=rows_kept)
bend("states_zeroed_before_step", "trajectory", "state_not_kept states_ignored", before_step=zeroed)
bend(
    "states_restored_before_step",
    "trajectory",
    "state_not_kept states_not_stored",
    before_step=restored,
)

# Rates and steps.

named_mistake("step_counted_late", STEPS, step_number=lambda k, t: t - 1)
named_mistake("step_counted_early", STEPS, step_number=lambda k, t: t + 1)
named_mistake("step_always_1", STEPS, step_number=lambda k, t: 1)
bend("step_counted_twice", STEPS, "", step_number=lambda k, t: 2 * t)
bend(
    "evaluations_counted",
    "trajectory",
    "evaluation_counts",
    count_step=lambda k, trained, training: trained + 1,
)
bend("evaluations_train", "trajectory", trains=lambda k, training: True)
bend("step_not_counted", "trajectory", "step_always_1", count_step=lambda k, trained, training: 1)
named_mistake("rate_of_last_step", "trajectory", rate_number=lambda k, n: max(n - 1, 0))
bend("rate_of_next_step", "trajectory", rate_number=lambda k, n: min(n + 1, 5))
bend("rate_of_first_step", "trajectory", rate_number=lambda k, n: 0)
bend("rate_squared", STEPS, "rate_twice", rate=lambda k, u: F32(u.lr * u.lr))
named_mistake("rate_missing", STEPS, rate=lambda k, u: F32(1))
bend("rate_fp16", STEPS, "hyper_in_fp16", rate=lambda k, u: F32(np.float16(u.lr * F32(0.999))))
bend(
    "rate_negative",
    STEPS,
    "sign_flipped",
    rate=lambda k, u: -u.lr,
)


def stale(k: Kernel, tables: dict[str, Array], answers: dict[str, Array], n: int) -> Array:
    """Lookups read the rows of the step before."""
    return answers.get(f"step{n - 2}/weights", tables["weights"])


bend("lookup_reads_stale_rows", "trajectory", weights_seen=stale)

# Decay.


def with_decay(change):
    """Another weight decay, for the rules that have it."""

    def step(k: Kernel, u: Update) -> None:
        change(u)
        Kernel.step(k, u)

    return step


def without_decay(u: Update) -> None:
    """No decay."""
    u.decay = 0.0
    u.mode = "none"


def swapped_decay(u: Update) -> None:
    """l2 for decoupled, decoupled for l2."""
    u.mode = {"l2": "decoupled", "decoupled": "l2"}.get(u.mode, u.mode)


def decay_times(factor: float):
    """Stronger or weaker decay."""

    def change(u: Update) -> None:
        u.decay *= factor

    return with_decay(change)


bend("decay_ignored", STEPS, "weight_decay_ignored", step=with_decay(without_decay))
bend("decay_swapped", STEPS, "weight_decay_swapped", step=with_decay(swapped_decay))
bend("decay_doubled", STEPS, "", step=decay_times(2))
bend("decay_halved", STEPS, "", step=decay_times(0.5))
bend("decay_grows", STEPS, "decay_sign_flipped counter_decay_grows", step=decay_times(-1))
named_mistake("decay_without_rate", STEPS, decay_factor=lambda k, u: F32(1.0 - u.decay))
bend(
    "decay_as_quotient",
    STEPS,
    decay_factor=lambda k, u: F32(1.0 / (1.0 + float(u.options["learning_rate"]) * u.decay)),
)


def decay_last(k: Kernel, u: Update, factor, direction: Array) -> None:
    """Decay after the step."""
    u.w = k.madd(-np.asarray(factor, F32), direction, u.w)
    u.w = k.decayed(u)


named_mistake("decay_after_step", STEPS, subtract=decay_last)


def l2_after_state(k: Kernel, u: Update, new: Array) -> Array:
    """The state takes the gradient without decay."""
    return (u.raw * u.raw).astype(F32)


bend("l2_not_in_state", STEPS, "decay_not_in_state", square_of=l2_after_state)
