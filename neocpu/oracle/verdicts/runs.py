"""Does a kernel answer the same question the same way each time? Differences between its runs.

An answer with one more leading axis holds several runs. Where all are right and differ, additions
were in another order each time: a warning. Elements that are right in some runs and wrong in others
are a race; which elements they are, and what stands there, says which.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Bools, Ints
from neocpu.oracle.adapters import Array
from neocpu.oracle.operator import Case, Operator, Truth
from neocpu.oracle.semantics import Mistake
from neocpu.oracle.truth.bags import bags_of

PLACES_SHOWN = 5
PLACES_LOCATED = 2000  # elements whose table, row and column are looked up
GARBAGE = 1e6  # times the largest number of the reference
NEAR = 4.0  # bounds within which an error is one of rounding

Place = tuple[tuple[str, int], ...]


def has_runs(expected: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Has an answer of that shape one more leading axis than expected, of runs or seeds?

    A flat output may have any shape: as many elements as expected are one answer.
    """
    if len(expected) == 1:
        inner = int(np.prod(shape[1:], dtype=np.int64))
        size = int(np.prod(shape, dtype=np.int64))
        return len(shape) > 1 and size not in (0, expected[0]) and inner == expected[0]
    return shape[1:] == expected and len(shape) > len(expected) and shape[0] > 0


class RunDifferences(NamedTuple):
    """What differs between runs."""

    warning: str = ""  # all runs are right, or all are wrong
    message: str = ""  # some are right and some wrong
    race: Mistake | None = None


class _Runs(NamedTuple):
    """The runs of one output, flat: arrays [runs, elements]."""

    op: Operator
    case: Case
    output: str
    truth: Truth
    x: Array
    wrong: Bools

    def located(self, elements: Ints) -> list[dict[str, int]]:
        """Table, row, column, … of some elements."""
        shape = np.shape(self.truth.reference)
        indices = np.stack(np.unravel_index(elements, shape), axis=1).tolist()
        return [self.op.locate(self.case, self.output, tuple(index)) for index in indices]


def differences(
    op: Operator, case: Case, output: str, truth: Truth, x: Array, right: Bools
) -> RunDifferences:
    """What differs between the runs x[runs, ...] of an output, and whether it is a race.

    right : which elements are within the bounds, of the shape of x.
    """
    count = len(x)
    flat = x.reshape(count, -1)
    runs = _Runs(op, case, output, truth, flat, ~right.reshape(count, -1))
    # Two NaN are alike.
    unlike = (flat != flat[:1]) & ~((flat != flat) & (flat[:1] != flat[:1]))
    differing = np.flatnonzero(unlike.any(0))
    if not differing.size:
        return RunDifferences()
    often = runs.wrong.sum(0)
    sometimes = np.flatnonzero((often > 0) & (often < count))
    if not sometimes.size:
        within = ", all within bounds" if not often.any() else ""
        warning = (
            f"not deterministic: {differing.size:,} elements differ between {count} runs{within}"
        )
        return RunDifferences(warning + _why(runs, differing))
    race = _race(runs, sometimes)
    message = (
        f"a race: {sometimes.size:,} elements are right in some of {count} runs and wrong in "
        f"others ({_listed(runs, sometimes)}); {race.about}"
    )
    return RunDifferences(message=message, race=race)


def _why(runs: _Runs, differing: Ints) -> str:
    """A reason for differences within the bounds, in brackets."""
    if runs.truth.probability is not None:
        return " (the random numbers are others in each run of one seed)"
    terms = _terms(runs, runs.located(differing[:PLACES_LOCATED]))
    if terms is not None and min(terms) > 1:
        return " (unordered additions: only elements that several lookups add to)"
    return " (unordered additions)"


def _without_column(place: dict[str, int]) -> Place:
    """The row, or the sample and feature, that an element belongs to."""
    return tuple((name, number) for name, number in place.items() if name != "column")


def _counted(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _listed(runs: _Runs, elements: Ints) -> str:
    """Rows or samples that are sometimes wrong, and in how many runs."""
    sample = elements[:PLACES_LOCATED]
    runs_of: dict[Place, Bools] = {}
    for element, place in zip(sample.tolist(), runs.located(sample)):
        outer = _without_column(place)
        wrong = runs.wrong[:, element]
        runs_of[outer] = runs_of.get(outer, np.zeros_like(wrong)) | wrong
    shown = [
        f"{' '.join(f'{name} {number}' for name, number in place)} in {_counted(int(wrong.sum()))}"
        for place, wrong in list(runs_of.items())[:PLACES_SHOWN]
    ]
    ellipsis = "" if len(runs_of) <= PLACES_SHOWN and sample.size == elements.size else ", …"
    return ", ".join(shown) + ellipsis


def _race(runs: _Runs, sometimes: Ints) -> Mistake:
    """Which kind of race the elements show that are wrong in some runs only."""
    wrong_runs: Bools = np.asarray(runs.wrong[:, sometimes].any(1))
    # Two runs alone could be so by chance.
    if len(wrong_runs) > 2 and not wrong_runs[0] and wrong_runs[1:].all():
        return Mistake(
            "kept_between_runs",
            "the first run is right and every later one wrong: something is kept between calls",
            "clear buffers and workspaces, and update copies of the inputs",
        )
    if len(wrong_runs) > 2 and wrong_runs[0] and not wrong_runs[1:].any():
        return Mistake(
            "first_run_wrong",
            "the first run alone is wrong: it reads what only a run before it would have written",
            "initialise buffers and workspaces before their first use",
        )
    return _by_value(runs) or _by_place(runs, sometimes)


def _by_value(runs: _Runs) -> Mistake | None:
    """What the wrong numbers are: zeros, garbage, or nearly right."""
    truth = runs.truth
    value = runs.x[runs.wrong]
    reference, bound = (
        np.broadcast_to(part.reshape(-1), runs.x.shape)[runs.wrong]
        for part in (truth.reference, truth.bound)
    )
    if not np.any(value) and np.any(reference):
        return Mistake(
            "not_always_written",
            "what is wrong is 0: in some runs it is not written, or read before it is",
            "wait for all blocks (a barrier, a stream's event) before the output is read",
        )
    magnitudes = np.abs(truth.reference[np.isfinite(truth.reference)])
    # At least 1, so that an output of zeros does not make garbage of ordinary numbers.
    largest = float(magnitudes.max(initial=1.0))
    garbage = ~(np.abs(value) <= GARBAGE * largest)
    if np.isfinite(reference).all() and garbage.any():
        return Mistake(
            "uninitialised_memory",
            "numbers of any size stand there, others in each run: memory that was never written",
            "clear the output or accumulators first, and check the size of the launch",
        )
    with np.errstate(invalid="ignore"):
        near = np.abs(value - reference) <= NEAR * bound
    if not truth.exact and near.all() and bound.all():
        return Mistake(
            "order_beyond_bound",
            "sums differ by a few bounds: additions in another order each time, too coarsely",
            "sum in a wider type, or in a fixed order",
        )
    return None


def _by_place(runs: _Runs, sometimes: Ints) -> Mistake:
    """Where the wrong elements are: rows with duplicates, whole rows, anywhere."""
    places = runs.located(sometimes[:PLACES_LOCATED])
    terms = _terms(runs, places)
    if terms is not None and min(terms) > 1:
        return Mistake(
            "lost_updates",
            "only elements that several lookups add to are wrong: additions of some are lost",
            "add with atomics, or sort by row and let one block reduce each segment",
        )
    if _whole_rows(runs, sometimes, places):
        return Mistake(
            "rows_race",
            "whole rows are wrong at once: two blocks write a row, or read it while it is written",
            "give each row to one block, and write it once",
        )
    return Mistake(
        "race",
        "threads read or write the same elements in no fixed order",
        "look for a missing barrier between writing and reading shared memory",
    )


def _whole_rows(runs: _Runs, sometimes: Ints, places: list[dict[str, int]]) -> bool:
    """Is most of a row wrong wherever one of its elements is?"""
    rows = Counter(map(_without_column, places))
    if max(rows.values()) < 2:
        return False
    elements = sometimes[: len(places)]
    group = {row: k for k, row in enumerate(rows)}
    of_element = np.array([group[_without_column(place)] for place in places])
    wrong = runs.wrong[:, elements]
    count = np.stack([np.bincount(of_element, w, len(rows)) for w in wrong])
    size = np.bincount(of_element, minlength=len(rows))
    return bool((count[count > 0] >= 0.75 * np.broadcast_to(size, count.shape)[count > 0]).all())


def _terms(runs: _Runs, places: list[dict[str, int]]) -> list[int] | None:
    """How many lookups add to each element: duplicates of its row, or its bag's length.

    None where the operator has no such sums.
    """
    inputs = runs.case.inputs
    needed = {"indices", "offsets", "feature_table", "rows", "dims"}
    if not needed <= inputs.keys() or not places:
        return None
    try:
        bags = bags_of(inputs, runs.op.complete(runs.case.options), frozenset())
    except (KeyError, ValueError):
        return None
    if all("row" in place and "table" in place for place in places):
        lookups = Counter(zip(bags.table.tolist(), bags.row.tolist()))
        return [lookups[place["table"], place["row"]] for place in places]
    if all("sample" in place and "feature" in place for place in places):
        lengths = dict(zip(zip(bags.feature.tolist(), bags.sample.tolist()), bags.length.tolist()))
        return [lengths.get((place["feature"], place["sample"]), 0) for place in places]
    return None
