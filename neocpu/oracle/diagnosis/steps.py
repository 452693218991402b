"""Which rows does a fused update get wrong, and what step would give them? Groups of `backward`.

The step of one row is computed anew from any sum of gradients, other states or another row, by the
exact rule; the answer is then judged by what comes out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from neocpu.oracle.diagnosis.evidence import CaseTrial
from neocpu.oracle.diagnosis.groups import (
    Group,
    Mask,
    compared_output,
    group_of_row,
    shifted_gradients,
)
from neocpu.oracle.operator import Options
from neocpu.oracle.ops.backward import BoundedTables
from neocpu.oracle.ops.lookup import rounding_of
from neocpu.oracle.truth.bags import SCALED, bags_of
from neocpu.oracle.truth.formats import in_format
from neocpu.oracle.truth.global_decay import is_active
from neocpu.oracle.truth.hyper import Hyper
from neocpu.oracle.truth.lookups import merged
from neocpu.oracle.truth.numbers import Bounded, Real
from neocpu.oracle.truth.rules import RULES, RowUpdate, limited
from neocpu.oracle.verdicts.compare import judge

NONE: frozenset[str] = frozenset()
MOST_ROWS = 64  # of a table, whose states are tried


@dataclass
class _SteppedRow:
    """One row and its states as they came in."""

    w: Bounded  # [1, D]
    states: dict[str, Bounded]  # [1, D] or [1]

    def times(self, count: int) -> "_SteppedRow":
        """The same row so many times."""

        def repeated(x: Bounded) -> Bounded:
            shape = (count, *x.value.shape[1:])
            parts = (np.broadcast_to(array, shape).copy() for array in (x.value, x.error))
            return Bounded(*parts)

        return _SteppedRow(repeated(self.w), {name: repeated(x) for name, x in self.states.items()})


@dataclass
class _Step:
    """The update of one row, and what the answer says that it is afterwards."""

    options: Options
    formats: Mapping[str, str]
    row: _SteppedRow
    answers: dict[str, tuple[Real, Mask]]  # by output: numbers [1, D] or [1], and which are wrong
    gradient_error: Real  # [D]
    lookups: int

    def after(self, totals: Real, row: _SteppedRow) -> _SteppedRow:
        """Rows after a step from sums of gradients [C, D]."""
        error = np.broadcast_to(self.gradient_error, totals.shape)
        update = RowUpdate(
            w=row.w,
            g=Bounded(totals, error),
            states=dict(row.states),
            formats=self.formats,
            lookups=np.full(len(totals), float(self.lookups)),
        )
        hyper = Hyper(self.options, NONE)
        w = limited(RULES[str(self.options["optimizer"])](update, hyper), hyper)
        return _SteppedRow(w, update.states)

    def agrees(self, row: _SteppedRow, only: str = "") -> Mask:
        """Which of C rows the answer may be, in the elements where it is wrong.

        only : an output, beside which others are not looked at.
        """
        count = len(row.w.value)
        right = np.ones(count, bool)
        for name, (x, wrong) in self.answers.items():
            if only not in ("", name):
                continue
            number = row.w if name == "weights" else row.states[name]
            form = str(self.options["weights_format"]) if name == "weights" else self.formats[name]
            rounding = rounding_of(self.options, NONE) if name == "weights" else "nearest"
            truth = in_format(number, form, rounding)
            near = judge(truth, np.broadcast_to(x, truth.reference.shape))[0]
            right &= (near | ~wrong).reshape(count, -1).all(1)
        return right

    def fits(self, totals: Real) -> Mask:
        """Whether the answer is one step from sums [C, D]."""
        return self.agrees(self.after(totals, self.row.times(len(totals))))

    def fits_steps(self, early: Real, late: Real) -> Mask:
        """Whether it is a step from one sum and then one from another, [C, D] each."""
        return self.agrees(self.after(late, self.after(early, self.row.times(len(early)))))


def updated_rows(trial: CaseTrial) -> Iterator[Group]:
    """The rows that `backward` gets wrong; none of row-scaled or split rows."""
    inputs = trial.case.inputs
    options = trial.op.complete(trial.case.options)
    if options["weights_format"] in SCALED or "weights_low" in inputs or is_active(options):
        return
    bags = bags_of(inputs, options, NONE)
    tables = BoundedTables(inputs, options, NONE)
    outputs = {key: compared_output(trial, key) for key in trial.truths}
    merges = merged(bags, inputs, options, NONE)
    for table, merge in merges.items():
        for number, row in enumerate(merge.rows.tolist()):
            answers = {}
            for key, compared in outputs.items():
                if compared is not None:
                    place = _places(tables, key, table, row)
                    answers[key] = (compared[1][place], compared[2][place])
            if not any(wrong.any() for _, wrong in answers.values()):
                continue
            step = _Step(
                options=options,
                formats=tables.layout.formats,
                row=_row_of(tables, table, row),
                answers=answers,
                gradient_error=merge.gradient.error[number],
                lookups=int(np.diff(merge.starts)[number]),
            )
            _, wrong = answers.get("weights", (np.zeros(1), np.ones(1, bool)))
            yield replace(
                group_of_row(merges, table, number, step.fits, wrong.reshape(-1)),
                substitutes=shifted_gradients(bags, inputs, options, table, row),
                steps=step.fits_steps,
                others=_others(step, tables, table, row, merge.gradient.value[number]),
            )


def _places(tables: BoundedTables, output: str, table: int, row: int) -> slice:
    """Where an output holds a row of a table."""
    geometry = tables.geometry
    if output in tables.layout.row:
        number = int(geometry.first_row[table]) + row
        return slice(number, number + 1)
    width = int(geometry.dims[table])
    begin = int(geometry.first_element[table]) + row * width
    return slice(begin, begin + width)


def _row_of(tables: BoundedTables, table: int, row: int) -> _SteppedRow:
    """A row and its states."""

    def taken(x: Bounded, name: str) -> Bounded:
        numbers = x.take(_places(tables, name, table, row))
        return numbers if name in tables.layout.row else numbers.reshape(1, -1)

    states = {name: taken(state, name) for name, state in tables.states.items()}
    return _SteppedRow(taken(tables.weights, "weights"), states)


def _others(
    step: _Step, tables: BoundedTables, table: int, row: int, total: Real
) -> dict[str, bool]:
    """What the right sum gives with something else that the step reads."""
    own = step.row
    right = total[None]
    rows = {
        "rows take a step from a gradient of 0": step.after(np.zeros_like(right), own.times(1)),
        "rows take their step twice": step.after(right, step.after(right, own.times(1))),
    }
    wrong = {name for name, (_, mask) in step.answers.items() if mask.any()}
    # What is right says as much as what is wrong.
    if "weights" not in wrong:
        rows["states are as they were before the step, rows are not"] = own
    elif wrong == {"weights"} and own.states:
        rows["rows are as they were before the step, states are not"] = own
    else:
        rows["rows are as they were before the step"] = own
    for name, other_table, other_row in (
        ("the row after", table, row + 1),
        ("the row before", table, row - 1),
        ("the same row of the next table", table + 1, row),
        ("the same row of the table before", table - 1, row),
    ):
        geometry = tables.geometry
        inside = 0 <= other_table < geometry.rows.size
        if not inside or geometry.dims[other_table] != geometry.dims[table]:
            continue
        if not 0 <= other_row < geometry.rows[other_table]:
            continue
        other = _row_of(tables, other_table, other_row)
        if own.states:
            with_states = _SteppedRow(own.w, other.states).times(1)
            rows[f"a step reads the states of {name}"] = step.after(right, with_states)
        rows[f"a step starts from the weights of {name}"] = step.after(
            right, _SteppedRow(other.w, own.states).times(1)
        )
    others = {name: bool(step.agrees(candidate)[0]) for name, candidate in rows.items()}
    if own.states and "weights" in wrong:
        others["a step reads the states of another row"] = _reads_another(
            step, tables, table, total
        )
    return others


def _reads_another(step: _Step, tables: BoundedTables, table: int, total: Real) -> bool:
    """Does the right sum give the weights with the states of any row of the table?

    Who reads other states may write them there, too: of states nothing is asked.
    """
    geometry = tables.geometry
    count = min(int(geometry.rows[table]), MOST_ROWS)
    states = {}
    for name, state in tables.states.items():
        by_row = name in tables.layout.row
        begin = int((geometry.first_row if by_row else geometry.first_element)[table])
        width = 1 if by_row else int(geometry.dims[table])
        numbers = state.take(slice(begin, begin + count * width)).copy()
        states[name] = numbers if by_row else numbers.reshape(count, width)
    own = step.row.times(count)
    # A row number that is off may count in the states of rows alone.
    of_rows = {k: state for k, state in states.items() if k in tables.layout.row}
    totals = np.broadcast_to(total, (count, total.size)).copy()
    return any(
        step.agrees(step.after(totals, _SteppedRow(own.w, moved)), only="weights").any()
        for moved in (states, {**own.states, **of_rows})
    )
