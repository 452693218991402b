"""What do the failed cases have in common that the passed ones have not?

A facet is a fact of a case that can be told in a few words: an option, or a shape ("rows of more
than 1,024 columns"). A facet, its opposite, or a pair of them separates the failed cases of an
operator when all of them have it and no passed one has, more often than chance would have it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import lgamma

import numpy as np

from neocpu.oracle.adapters import Array, codes_of
from neocpu.oracle.operator import Case

WIDTHS = (4, 16, 32, 64, 128, 256, 512, 1024)  # columns
COUNTS = (1, 2, 4, 8, 32, 256, 1024)  # lookups of a bag, or duplicates of a row
MULTIPLES = (2, 4, 8, 32)
SMALLEST_NORMAL = 2.0**-126
# Natural logarithm of the chance, per facet tried, that cases drawn at random separate as well.
LEAST_SURPRISE = -3.0
IGNORED = ("seed",)  # options that say nothing
SMALL = 8192  # bytes of the inputs of a case in a quick suite, at most
MOST_EXCEPTIONS = 0.1  # passed cases that have the facet, for each failed one


Completed = Callable[[Case], Mapping[str, object]]


@dataclass(frozen=True)
class Separation:
    """A fact that failed cases have, and passed ones have not."""

    about: str
    failed: int  # cases, all of which have it
    passed: int  # passed cases without it
    exceptions: int = 0  # passed cases that have it, too

    def __str__(self) -> str:
        against = f"none of the {self.passed} passed ones"
        if self.exceptions:
            against = f"only {self.exceptions} of the {self.passed + self.exceptions} passed ones"
        return f"common to all {self.failed} failed cases and {against}: {self.about}"


def facets_of(case: Case, options: Mapping[str, object]) -> dict[str, bool]:
    """Facts of a case by their words.

    options : complete.
    """
    facets = {
        f"{name} = {value}": True
        for name, value in options.items()
        if name not in IGNORED and not isinstance(value, float)
    }
    for name, value in options.items():
        if isinstance(value, float):
            facets[f"{name} = {value:g}"] = True
    facets |= {f"input {name}": True for name in case.inputs if "/" not in name}
    facets |= _tables(case.inputs)
    facets |= _lookups(case.inputs)
    facets |= _numbers(case.inputs)
    return facets


def _tables(inputs: Mapping[str, Array]) -> dict[str, bool]:
    """Facts of tables and features."""
    facets = {}
    if "dims" in inputs and inputs["dims"].size:
        dims = inputs["dims"]
        for width in WIDTHS:
            facets[f"rows of more than {width:,} columns"] = bool(dims.max() > width)
        for multiple in MULTIPLES:
            facets[f"rows whose columns are no multiple of {multiple}"] = bool(
                (dims % multiple).any()
            )
        facets["tables of different widths"] = bool((dims != dims[0]).any())
        facets["several tables"] = dims.size > 1
    if "rows" in inputs and inputs["rows"].size:
        for count in (256, 65_536):
            facets[f"tables of more than {count:,} rows"] = bool(inputs["rows"].max() > count)
    if "feature_table" in inputs:
        features = inputs["feature_table"]
        facets["features that share a table"] = np.unique(features).size < features.size
        facets["features in another order than their tables"] = bool((np.diff(features) < 0).any())
        facets["several features"] = features.size > 1
    return facets


def _lookups(inputs: Mapping[str, Array]) -> dict[str, bool]:
    """Facts of bags and their lookups, of the step that has most of them."""
    facets: dict[str, bool] = {}
    steps = [name[: -len("indices")] for name in inputs if name.split("/")[-1] == "indices"]
    for step in steps:
        indices = inputs[f"{step}indices"]
        kept = indices[indices >= 0]
        facts = {
            "pruned lookups": bool((indices < 0).any()),
            "no lookups at all": indices.size == 0,
            "indices of 32 bits": indices.dtype.itemsize == 4,
            "per-sample weights": f"{step}per_sample_weights" in inputs,
        }
        duplicates = int(np.unique(kept, return_counts=True)[1].max(initial=0))
        for count in COUNTS:
            facts[f"rows with more than {count:,} lookups"] = duplicates > count
        if f"{step}offsets" in inputs:
            lengths = np.diff(inputs[f"{step}offsets"])
            facts["empty bags"] = bool((lengths == 0).any())
            facts["bags of different lengths"] = bool((lengths != lengths[:1]).any())
            for count in COUNTS:
                facts[f"bags of more than {count:,} lookups"] = bool((lengths > count).any())
            for multiple in (2, 4, 8):
                facts[f"bags whose length is no multiple of {multiple}"] = bool(
                    (lengths % multiple).any()
                )
            facts["one bag for each feature"] = (
                lengths.size <= inputs.get("feature_table", np.ones(1)).size
            )
        # One step that has it is enough for a trajectory to have it.
        facets |= {name: facets.get(name, False) or value for name, value in facts.items()}
    return facets


def _numbers(inputs: Mapping[str, Array]) -> dict[str, bool]:
    """Facts of the numbers: what is not finite, or subnormal."""
    facets = {"numbers that are not finite": False, "subnormal numbers": False}
    for array in inputs.values():
        x = codes_of(array)
        if x.dtype.kind != "f" or not x.size:
            continue
        size = np.abs(x[np.isfinite(x)])
        facets["numbers that are not finite"] |= size.size < x.size
        facets["subnormal numbers"] |= bool(((size > 0) & (size < SMALLEST_NORMAL)).any())
    return facets


def _opposite(facet: str) -> str:
    """The words for cases that have not a facet."""
    if " = " in facet:
        return facet.replace(" = ", " other than ")
    if facet.startswith("no "):
        return f"not {facet}"
    return f"no {facet}"


def telling_cases(
    cases: Iterable[Case], complete: Completed, always: Callable[[Case], bool]
) -> list[Case]:
    """A few small cases of every operator that have, together, every facet that small cases have.

    complete : a case's options with the defaults. always : is a case among them anyway?
    """
    small: dict[str, list[Case]] = {}
    for case in cases:
        if sum(array.nbytes for array in case.inputs.values()) <= SMALL:
            small.setdefault(case.op, []).append(case)
    separations = []
    for same_op in small.values():
        facets = {case.name: _told(case, complete(case)) for case in same_op}
        missing = set().union(*facets.values())
        chosen = [case for case in same_op if always(case)]
        separations += chosen
        missing -= set().union(*(facets[case.name] for case in chosen))
        while missing:
            counts = [len(facets[case.name] & missing) for case in same_op]
            best = same_op[int(np.argmax(counts))]
            missing -= facets[best.name]
            separations.append(best)
    return separations


def _told(case: Case, options: Mapping[str, object]) -> set[str]:
    """What a case tells; of options that are fractions, only whether they are 0."""
    # Fractions have too many values for a small suite to have each.
    kinds = {k: v != 0 if isinstance(v, float) else v for k, v in options.items()}
    return {facet for facet, has in facets_of(case, kinds).items() if has}


Facts = Mapping[str, frozenset[str]]  # cases that have each facet


def facts_of(cases: Iterable[tuple[Case, Mapping[str, object]]]) -> dict[str, frozenset[str]]:
    """The cases that have each facet, and those that have its opposite; only what tells apart.

    Of facets that the same cases have, the first one is kept.
    """
    having: dict[str, set[str]] = {}
    names = set()
    for case, options in cases:
        names.add(case.name)
        for facet, value in facets_of(case, options).items():
            if value:
                having.setdefault(facet, set()).add(case.name)
    facts: dict[str, frozenset[str]] = {}
    contents = set()
    for facet, members in having.items():
        for about, group in ((facet, members), (_opposite(facet), names - members)):
            key = frozenset(group)
            if 0 < len(key) < len(names) and key not in contents:
                contents.add(key)
                facts[about] = key
    return facts


def separated(failed: set[str], passed: set[str], facts: Facts) -> Separation | None:
    """The facet, or pair of facets, that separates failed cases from passed ones; None if none.

    facts : as facts_of gives them, of these cases and perhaps others.
    """
    if not failed or not passed:
        return None
    common = {about: group for about, group in facts.items() if failed <= group}
    best: tuple[str, ...]
    ranked = [(len(group & passed), (about,)) for about, group in common.items()]
    exceptions, best = min(ranked, key=lambda pair: pair[0], default=(len(passed), ()))
    tried = len(facts)
    if exceptions:
        for (first, a), (second, b) in combinations(common.items(), 2):
            # The first pair without exceptions: there is no better one.
            if not a & b & passed:
                exceptions = 0
                best = (first, second)
                # Who looks at more facts finds one by chance more often.
                tried = len(facts) ** 2 // 2
                break
    if exceptions > MOST_EXCEPTIONS * len(failed) or not best:
        return None
    if _chance(len(failed), len(passed), exceptions) + np.log(tried) > LEAST_SURPRISE:
        return None
    return Separation(" and ".join(best), len(failed), len(passed) - exceptions, exceptions)


def _chance(failed: int, passed: int, exceptions: int) -> float:
    """Logarithm of the chance that the failed cases, drawn at random, are all in the same group."""

    def choose(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    return choose(failed + exceptions, failed) - choose(failed + passed, failed)
