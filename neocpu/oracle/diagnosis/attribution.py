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
from neocpu.oracle.diagnosis.regions import columns_in_common
from neocpu.oracle.diagnosis.selections import Selection, selections, tried_places
from neocpu.oracle.diagnosis.steps import updated_rows
from neocpu.oracle.truth.numbers import Real

MOST_CASES = 12  # the smallest ones that failed
MOST_GROUPS = 8  # wrong sums of one case
FEW_GROUPS = 5  # of a larger case, most of which a hint has to fit that fits the small ones
# Of the wrong sums that one sentence has to fit. Those at the ends of a feature may have no
# neighbour to take from; and no sum is another one by chance.
LEAST_SHARE = 0.6
NEARLY_WHOLE = 0.05  # how near a whole number a factor is that is tried
MOST_ROWS = 64  # of a table, all of which are tried
MOST_FOREIGN = 16  # lookups of a sum that are tried with each of them
MOST_WEIGHED = 64  # lookups of a sum, whose weights are looked for
MOST_EXCHANGED = 512  # lookups of a sum of which some are tried with what is beside them
LEAST_COLUMNS = 4  # of a sum that one number or one row may be added to
SOME = {
    "lookup_missing": "some lookups are missing",
    "lookup_doubled": "some lookups count twice",
    "lookup_sign": "some lookups are subtracted",
}
# What whole numbers that lookups are multiplied by mean, where these are all that there are.
FACTORS = {"lookup_missing": (0, 1), "lookup_doubled": (1, 2), "lookup_sign": (-1, 1)}
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
    vague: bool = False  # it does not say which lookup


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
    written: set[SumHint] = set()
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
                # Sums of 0 alone are more likely sums that nobody wrote.
                if group.answer is None or group.answer.any():
                    written.add(hint)
                # Of an update whose states alone are wrong no column is.
                if group.wrong.any():
                    wrong.setdefault(hint, []).append(group.wrong[None])
    if not counts:
        return None
    # Of hints that fit as many, the one that came first says most.
    best = min(counts, key=lambda hint: (-counts[hint], order[hint]))
    if counts[best] < LEAST_SHARE * total or best not in written:
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
            yield from _selected(group)
            yield from _parts(group)
            yield from _from_elsewhere(group)
            yield from _foreign(group)
        yield from _added(group)
        if len(group.terms):
            yield from _scaled(group)
            yield from _multiplied(group)


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
    if group.rivals is not None and group.fits(group.rivals).any():
        words = "the sum is another row's or sample's"
        yield SumHint("lookup_from_elsewhere", words, vague=True)


def _selected(group: Group) -> Iterator[SumHint]:
    """Hints on some lookups that are missing, doubled, subtracted, or take something else.

    Those that are sure of their place come before those that are not.
    """
    chosen = selections(len(group.terms), group.begin)
    if not chosen:
        return
    # Of short sums most selections are the same few.
    masks, number = np.unique(np.stack([s.mask for s in chosen]), axis=0, return_inverse=True)
    number = number.reshape(-1)
    weights = masks.astype(np.float64)
    subset = weights @ group.terms
    total = group.terms.sum(0)
    for name, singular, plural, sums in (
        ("lookup_missing", "is missing", "are missing", total - subset),
        ("lookup_doubled", "counts twice", "count twice", total + subset),
        ("lookup_sign", "is subtracted", "are subtracted", total - 2 * subset),
        ("lookup_missing", "alone counts", "alone count", subset),
    ):
        fits = group.fits(sums)[number]
        yield from _worded(chosen, fits, name, singular, plural)
        if fits.any():
            yield SumHint(name, SOME[name], vague=True)
    if len(group.terms) > MOST_EXCHANGED:
        return
    for source, other in group.known().items():
        fits = group.fits(total - subset + weights @ other)[number]
        words = f"takes {source}", f"take {source}"
        yield from _worded(chosen, fits, "lookup_from_elsewhere", *words)


def _worded(
    chosen: Sequence[Selection], fits: Mask, name: str, one: str, several: str
) -> Iterator[SumHint]:
    """Hints on the selections that fit, the vague ones last."""
    fitting = [selection for selection, right in zip(chosen, fits) if right]
    for vague in (False, True):
        for selection in fitting:
            words = selection.vague if vague else selection.words
            verb = several if "lookups" in words else one
            cut = selection.at_end and name == "lookup_missing"
            if words:
                yield SumHint("sum_cut" if cut else name, f"{words} {verb}", vague)


def _parts(group: Group) -> Iterator[SumHint]:
    """Hints on a row whose lookups are stepped in two parts."""
    ends = tried_places(len(group.terms))[1:]
    if group.steps is None or not ends.size:
        return
    before = np.cumsum(group.terms, 0)[ends - 1]
    for end in ends[group.steps(before, group.terms.sum(0) - before)].tolist():
        yield SumHint("stepped_in_parts", f"the first {end} lookups are stepped by themselves")
        yield SumHint("stepped_in_parts", "a row is stepped in two parts")


def _from_elsewhere(group: Group) -> Iterator[SumHint]:
    """Hints on lookups all of which take something else than their own."""
    every = [
        (SumHint("lookup_from_elsewhere", f"every lookup takes {source}"), other.sum(0))
        for source, other in group.known().items()
    ]
    if every:
        yield from _tried(group, every)


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
    for where, terms in zip(("after its end", "before its beginning"), group.beside or ()):
        fits = group.fits(total + np.cumsum(terms, 0)) if len(terms) else np.zeros(0, bool)
        for count in np.flatnonzero(fits).tolist():
            words = f"the {count + 1} lookups {where} are" if count else f"the lookup {where} is"
            yield SumHint("lookup_added", f"{words} added")
        if fits.any():
            yield SumHint("lookup_added", f"lookups {where} are added", vague=True)
    if group.answer is None or total.size < LEAST_COLUMNS:
        return
    excess = group.answer - total
    if group.fits((total + np.median(excess))[None])[0]:
        yield SumHint("lookup_added", "one number is added to all columns")
    if group.table is not None and len(group.table) <= MOST_ROWS:
        # The weight with which a row comes nearest to what there is too much.
        weight = group.table @ excess / (group.table**2).sum(1)
        if group.fits(total + np.nan_to_num(weight)[:, None] * group.table).any():
            yield SumHint("lookup_added", "a row of the table is added, with some weight")


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


def _multiplied(group: Group) -> Iterator[SumHint]:
    """Hints on what each lookup is multiplied by, where there are columns enough to tell."""
    count = len(group.terms)
    if group.answer is None or count >= min(int(group.wrong.sum()), MOST_WEIGHED):
        return
    answer = group.answer[group.wrong]
    rows = group.substitutes.get("no weight", group.terms)  # a weight of 0 hides its row
    if not np.isfinite(answer).all() or not np.isfinite(rows).all():
        return
    factors, _, rank, _ = np.linalg.lstsq(group.terms.T[group.wrong], answer, rcond=None)
    whole = np.rint(factors)
    is_whole = rank == count and np.abs(factors - whole).max() < NEARLY_WHOLE
    if is_whole and group.fits((whole @ group.terms)[None])[0]:
        for name, values in FACTORS.items():
            if np.isin(whole, values).all():
                yield SumHint(name, SOME[name], vague=True)
    weights = np.linalg.lstsq(rows.T[group.wrong], answer, rcond=None)[0]
    if count > 1 and group.fits((weights @ rows)[None])[0]:
        words = "lookups have other weights than their own"
        yield SumHint("lookup_from_elsewhere", words, vague=True)
