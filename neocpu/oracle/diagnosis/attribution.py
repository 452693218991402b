"""What do wrong sums lack, or have too much? Told of all of them together, with the lookup.

Of each wrong sum (groups.py, bags.py, steps.py) many others are tried: one lookup left out, added
twice, with another sign, taken from a neighbour, rounded; the sum cut at some lookup; its columns
in another order; a step in two parts, from other states. What fits most wrong sums of an operator
is told.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Ints
from neocpu.oracle.diagnosis.bags import wrong_bags
from neocpu.oracle.diagnosis.evidence import CaseTrial
from neocpu.oracle.diagnosis.groups import Group, Mask, wrong_rows, wrong_segments
from neocpu.oracle.diagnosis.places import columns_in_common
from neocpu.oracle.diagnosis.steps import updated_rows
from neocpu.oracle.truth.numbers import Real

MOST_CASES = 12  # the smallest ones that failed
MOST_GROUPS = 8  # wrong sums of one case
FEW_GROUPS = 5  # of a larger case, most of which a hint has to fit that fits the small ones
MOST_PLACES = 128  # of a lookup in a sum that are tried; of longer sums those at both ends
# Of the wrong sums that one sentence has to fit. Those at the ends of a feature may have no
# neighbour to take from; and no sum is another one by chance.
LEAST_SHARE = 0.6
MOST_ROWS = 64  # of a table, all of which are tried
MOST_FOREIGN = 16  # lookups of a sum that are tried with each of them
CUTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # lookups that a block takes
STRIDES = (2, 4)  # lookups that a loop takes at once
ORDERS: dict[str, Callable[[Ints], Ints]] = {
    "swapped in pairs": lambda column: column ^ 1,
    "the halves swapped": lambda column: (column + column.size // 2) % column.size,
    "vectors of 4 backwards": lambda column: column ^ 3,
    "from the last to the first": lambda column: column[::-1],
    "one column late": lambda column: np.roll(column, 1),
    "one column early": lambda column: np.roll(column, -1),
}
GROUPS: dict[str, Callable[[CaseTrial], Iterator[Group]]] = {
    "lookup": wrong_bags,
    "segment_sum": wrong_segments,
    "unique_gradient": wrong_rows,
    "backward": updated_rows,
}
FIXES = {
    "lookup_missing": "check where the loop over the lookups of a sum begins and ends",
    "lookup_doubled": "check where blocks of a loop begin: one lookup is in two of them",
    "lookup_sign": "add what was subtracted",
    "lookup_from_elsewhere": "check how the place of a row, a weight or a gradient is computed",
    "lookup_added": "check where the loop over the lookups of a sum begins and ends",
    "lookup_rounded": "keep rows, weights and gradients in fp32 until they are added",
    "permuted": "check the order of columns: which thread loads and stores which",
    "sum_cut": "check how the parts of a long sum are joined: all of them count, each once",
    "sum_scaled": "look for a factor or divisor that is missing or applied twice",
    "stepped_in_parts": "add the whole segment of a row before its one step",
    "step_from_elsewhere": "check what a step reads and what it writes",
}


class SumHint(NamedTuple):
    """What fits a wrong sum: a name, and a sentence about any such sum."""

    name: str
    about: str


class Attribution(NamedTuple):
    """What fits most of the wrong sums of an operator."""

    hint: SumHint
    fitting: int
    total: int
    example: str  # where
    cases: tuple[str, ...]
    columns: str = ""  # that all these sums have in common

    @property
    def about(self) -> str:
        """All of it in a sentence."""
        share = f"{self.fitting} of {self.total} wrong sums" if self.total > 1 else "the wrong sum"
        columns = f", {self.columns}" if self.columns else ""
        return f"of {share} {self.hint.about}{columns} (first: {self.example})"

    @property
    def fix(self) -> str:
        """What to do about it."""
        return FIXES[self.hint.name]


def attributed(trials: Sequence[CaseTrial]) -> Attribution | None:
    """What fits most wrong sums of some failed cases of one operator; None if nothing does."""
    counts: Counter[SumHint] = Counter()
    order: dict[SumHint, int] = {}
    examples: dict[SumHint, str] = {}
    cases: dict[SumHint, set[str]] = {}
    wrong: dict[SumHint, list[Mask]] = {}
    total = 0
    trials = sorted(trials, key=lambda trial: trial.size)
    for trial in trials[:MOST_CASES]:
        for group in islice(wrong_sums(trial), MOST_GROUPS):
            total += 1
            for rank, hint in enumerate(dict.fromkeys(hints_of(group))):
                counts[hint] += 1
                order[hint] = min(order.get(hint, rank), rank)
                examples.setdefault(hint, f"{trial.case.name}, {group.place}")
                cases.setdefault(hint, set()).add(trial.case.name)
                # Of an update whose states alone are wrong no column is.
                if group.wrong.any():
                    wrong.setdefault(hint, []).append(group.wrong[None])
    if not counts:
        return None
    # Of hints that fit as many, the one that came first says most.
    best = min(counts, key=lambda hint: (-counts[hint], order[hint]))
    if counts[best] < LEAST_SHARE * total:
        return None
    larger = {trial.case.name for trial in trials[MOST_CASES:] if _fits_case(best, trial)}
    columns = columns_in_common(wrong.get(best, []))
    names = tuple(sorted(cases[best] | larger))
    return Attribution(best, counts[best], total, examples[best], names, columns)


def _fits_case(hint: SumHint, trial: CaseTrial) -> bool:
    """Does a hint fit most of the first wrong sums of a case?"""
    fitting = [hint in hints_of(group) for group in islice(wrong_sums(trial), FEW_GROUPS)]
    return any(fitting) and sum(fitting) >= LEAST_SHARE * len(fitting)


def wrong_sums(trial: CaseTrial) -> Iterator[Group]:
    """The wrong sums of a case; none of operators that add nothing up.

    What is not finite fits anything, or nothing.
    """
    if trial.op.name in GROUPS and not trial.preset:
        with np.errstate(all="ignore"):
            for group in GROUPS[trial.op.name](trial):
                if np.isfinite(group.terms).all():
                    yield group


def hints_of(group: Group) -> Iterator[SumHint]:
    """All that fits a wrong sum, what says most first."""
    with np.errstate(all="ignore"):
        yield from _whole(group)
        if len(group.terms):
            places = _places(len(group.terms))
            yield from _cut(group, places)
            yield from _single(group, places)
            yield from _from_elsewhere(group, places)
            yield from _foreign(group)
            yield from _added(group)
            yield from _strided(group)
            yield from _scaled(group)


def _places(count: int) -> Ints:
    """Places of lookups that are tried."""
    if count <= MOST_PLACES:
        return np.arange(count)
    ends = np.arange(8)
    cuts = np.array(CUTS)
    near = np.concatenate([ends, cuts - 1, cuts, count - 1 - ends, count - cuts])
    return np.unique(near[(near >= 0) & (near < count)])


def _named(places: Ints, fits: Mask, count: int, name: str, words: str) -> Iterator[SumHint]:
    """Hints of one lookup, from the most certain place to any.

    words : with {} for the lookup.
    """
    fitting = places[fits]
    if 0 in fitting:
        yield SumHint(name, words.format("the first lookup"))
    if count - 1 in fitting:
        yield SumHint(name, words.format("the last lookup"))
    for place in fitting[:4].tolist():
        yield SumHint(name, words.format(f"lookup {place} (from 0)"))
    if fitting.size:
        yield SumHint(name, words.format("one lookup"))


def _tried(group: Group, candidates: Iterable[tuple[SumHint, Real]]) -> Iterator[SumHint]:
    """The hints whose sums [D] fit."""
    hints, sums = zip(*candidates)
    fits = group.fits(np.stack(sums))
    yield from (hint for hint, right in zip(hints, fits) if right)


def _whole(group: Group) -> Iterator[SumHint]:
    """Hints on the sum as a whole, and on what a step reads."""
    for name, fits in group.others.items():
        if fits:
            yield SumHint("step_from_elsewhere", name)
    total = group.terms.sum(0)
    candidates = [(SumHint(*hint), other) for hint, other in group.sums.items()]
    candidates.append((SumHint("lookup_sign", "the sum has the wrong sign"), -total))
    if not total.size % 4:
        for words, order in ORDERS.items():
            hint = SumHint("permuted", f"columns stand in another order: {words}")
            candidates.append((hint, total[order(np.arange(total.size))]))
    yield from _tried(group, candidates)


def _cut(group: Group, places: Ints) -> Iterator[SumHint]:
    """Hints on sums of which one end is lost, or stepped by itself."""
    count = len(group.terms)
    ends = places[places > 0]
    if count < 2 or not ends.size:
        return
    before = np.cumsum(group.terms, 0)[ends - 1]
    after = group.terms.sum(0) - before
    for end in ends[group.fits(before)].tolist():
        yield SumHint("sum_cut", f"only the first {end} lookups count")
        yield SumHint("sum_cut", "lookups at the end are lost")
    for end in ends[group.fits(after)].tolist():
        if end == count - 1:
            yield SumHint("sum_cut", "only the last lookup counts")
        yield SumHint("sum_cut", f"the first {end} lookups are lost")
        yield SumHint("sum_cut", "lookups at the beginning are lost")
    for end in ends[group.fits(before + group.terms.sum(0))].tolist():
        yield SumHint("lookup_doubled", f"the first {end} lookups count twice")
        yield SumHint("lookup_doubled", "several lookups count twice")
    for end in ends[group.fits(after + group.terms.sum(0))].tolist():
        yield SumHint("lookup_doubled", f"lookups from {end} (from 0) on count twice")
        yield SumHint("lookup_doubled", "several lookups count twice")
    if group.steps is not None:
        for end in ends[group.steps(before, after)].tolist():
            yield SumHint("stepped_in_parts", f"the first {end} lookups are stepped by themselves")
            yield SumHint("stepped_in_parts", "a row is stepped in two parts")


def _strided(group: Group) -> Iterator[SumHint]:
    """Hints on every so many lookups, that are lost or take something else than their own."""
    total = group.terms.sum(0)
    candidates = []
    for stride in STRIDES:
        for place in range(min(stride, len(group.terms))):
            some = group.terms[place::stride].sum(0)
            which = f"lookups {stride}k + {place} (from 0)"
            candidates.append((SumHint("lookup_missing", f"{which} are missing"), total - some))
            candidates.append((SumHint("lookup_missing", f"{which} alone count"), some))
            for source, other in group.known().items():
                hint = SumHint("lookup_from_elsewhere", f"{which} take {source}")
                candidates.append((hint, total - some + other[place::stride].sum(0)))
    if candidates:
        yield from _tried(group, candidates)


def _single(group: Group, places: Ints) -> Iterator[SumHint]:
    """Hints on one lookup that is missing, doubled or subtracted."""
    total = group.terms.sum(0)
    terms = group.terms[places]
    count = len(group.terms)
    for factor, name, words in (
        (-1, "lookup_missing", "{} is missing"),
        (1, "lookup_doubled", "{} counts twice"),
        (-2, "lookup_sign", "{} is subtracted"),
    ):
        yield from _named(places, group.fits(total + factor * terms), count, name, words)


def _from_elsewhere(group: Group, places: Ints) -> Iterator[SumHint]:
    """Hints on lookups that take something else than their own."""
    total = group.terms.sum(0)
    every = [
        (SumHint("lookup_from_elsewhere", f"every lookup takes {source}"), other.sum(0))
        for source, other in group.known().items()
    ]
    if every:
        yield from _tried(group, every)
    for source, other in group.substitutes.items():
        fits = group.fits(total + other[places] - group.terms[places])
        words = f"{{}} takes {source}"
        yield from _named(places, fits, len(other), "lookup_from_elsewhere", words)


def _foreign(group: Group) -> Iterator[SumHint]:
    """Hints on one lookup, of several, that takes any other row of its table."""
    if group.table is None or group.factors is None or len(group.table) > MOST_ROWS:
        return
    if len(group.terms) < 2:  # any bug that exchanges it does so
        return
    total = group.terms.sum(0)
    for term, factor in zip(group.terms[:MOST_FOREIGN], group.factors):
        if group.fits(total - term + group.table * factor).any():
            yield SumHint("lookup_from_elsewhere", "one lookup takes another row of its table")
            return


def _added(group: Group) -> Iterator[SumHint]:
    """Hints on what does not belong to a sum."""
    total = group.terms.sum(0)
    for source, extra in group.extras.items():
        if group.fits((total + extra)[None])[0]:
            yield SumHint("lookup_added", f"{source} is added")


def _scaled(group: Group) -> Iterator[SumHint]:
    """Hints on a factor: the number of lookups, another simple number, or any."""
    total = group.terms.sum(0, keepdims=True)
    count = float(len(group.terms))
    factors = {"the number of lookups": count, "2": 2.0, "4": 4.0, "8": 8.0}
    for words, factor in factors.items():
        if factor > 1 and group.fits(total * factor)[0]:
            yield SumHint("sum_scaled", f"the sum is multiplied by {words}")
        if factor > 1 and group.fits(total / factor)[0]:
            yield SumHint("sum_scaled", f"the sum is divided by {words}")
    if group.answer is not None and total.size > 1:
        factor = float(np.median(group.answer / total))
        # A sum of 0 was lost, or not written: no factor makes it.
        if np.isfinite(factor) and factor and group.fits(total * factor)[0]:
            yield SumHint("sum_scaled", "each sum is multiplied by a number of its own")
