"""Which mistake explains a wrong answer? The switch, or pair of switches, whose model gives it.

A switch explains an answer when the truth under that switch agrees with *all* outputs that were
answered, and the plain truth does not. Explanations are ranked by how many elements equal the
rounded reference bit for bit. Besides, the pattern of the numbers is looked at (patterns.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from neocpu.oracle.adapters import Array
from neocpu.oracle.compare import agrees, judge, malformed, numbers, same_bits
from neocpu.oracle.mirrors import NoMirror, mirror_bits, mirrors_of
from neocpu.oracle.operator import Case, Operator, Truth
from neocpu.oracle.patterns import first_pattern
from neocpu.oracle.semantics import SWITCHES, switches_for
from neocpu.oracle.truth.formats import FORMATS, nearest

MOST_PAIRS = 200  # of switches that are tried on one answer

Truths = Mapping[str, Truth]
Answers = Mapping[str, Array]


@dataclass(frozen=True)
class Diagnosis:
    """One explanation of a wrong answer."""

    names: tuple[str, ...]  # of switches, a preset, or a pattern
    kind: str  # mistake, quirk, mirror (a peer's bits), or pattern (not proved by a model)
    about: str
    fix: str = ""

    @property
    def title(self) -> str:
        """All names, for people."""
        return " + ".join(self.names)


def _explains(truths: Truths, answers: Answers) -> bool:
    return all(name in truths and agrees(truths[name], answer) for name, answer in answers.items())


def _share_of_equal_elements(truths: Truths, answers: Answers) -> float:
    """Share of elements that are the rounded reference.

    Of two explanations that both hold within bounds, the one with the larger share is more likely.
    """
    equal = count = 0
    for name, answer in answers.items():
        truth = truths[name]
        x = numbers(truth, answer)
        ref = truth.reference if truth.exact else nearest(truth.reference, FORMATS[truth.format])
        with np.errstate(invalid="ignore"):
            equal += int(((x == ref) | ((x != x) & (ref != ref))).sum())
        count += x.size
    return equal / max(count, 1)


def _truth_under(op: Operator, case: Case, switches: frozenset[str]) -> Truths | None:
    """The truth under some switches; None where they ask for an input that the case lacks."""
    try:
        with np.errstate(all="ignore"):
            return op.truth(case.inputs, case.options, switches)
    except (IndexError, KeyError, ValueError, ZeroDivisionError, ArithmeticError):
        return None


def _differ(plain: Truths, bent: Truths) -> bool:
    """Does a switch change what a case must give, or how it is rounded?"""
    return any(name not in bent or not _same_truth(plain[name], bent[name]) for name in plain)


def _same_truth(a: Truth, b: Truth) -> bool:
    """Do two truths ask for the same answer, rounded the same way?"""
    for part in ("reference", "lower", "upper", "probability"):
        x = getattr(a, part)
        y = getattr(b, part)
        if x is y:
            continue
        if x is None or y is None or not np.array_equal(x, y, equal_nan=not a.exact):
            return False
    return True


def by_switches(
    op: Operator, case: Case, answers: Answers, preset: frozenset[str]
) -> list[Diagnosis]:
    """All single switches that explain the answer, best first; if there are none, all pairs."""
    plain = _truth_under(op, case, preset)
    if plain is None or _explains(plain, answers):
        return []
    active: list[str] = []
    explanations: list[tuple[float, tuple[str, ...]]] = []
    for switch in switches_for(op.name):
        if switch.name in preset:
            continue
        bent = _truth_under(op, case, preset | {switch.name})
        if bent is None or not _differ(plain, bent):
            continue
        active.append(switch.name)
        if _explains(bent, answers):
            explanations.append((_share_of_equal_elements(bent, answers), (switch.name,)))
    if not explanations:
        for pair in list(combinations(active, 2))[:MOST_PAIRS]:
            bent = _truth_under(op, case, preset | set(pair))
            if bent is not None and _explains(bent, answers):
                explanations.append((_share_of_equal_elements(bent, answers), pair))
    explanations.sort(key=lambda explanation: -explanation[0])
    return [_switch_diagnosis(names) for _, names in explanations]


def _switch_diagnosis(names: tuple[str, ...]) -> Diagnosis:
    switches = [SWITCHES[name] for name in names]
    kind = "mistake" if any(s.kind == "mistake" for s in switches) else "quirk"
    fix = "; ".join(s.fix for s in switches if s.fix)
    return Diagnosis(names, kind, "; and ".join(s.about for s in switches), fix)


def by_mirror(case: Case, truths: Truths, answers: Answers) -> list[Diagnosis]:
    """One diagnosis with all peers whose bits the answers are; none if there is no such peer."""
    equal = []
    for mirror in mirrors_of(case.op):
        try:
            bits = mirror_bits(mirror.preset, case.op, case.inputs, case.options)
        except (NoMirror, IndexError, KeyError, ValueError):
            continue
        if all(
            name in bits and same_bits(truths[name], bits[name], answer)
            for name, answer in answers.items()
        ):
            equal.append(mirror)
    if not equal:
        return []
    calls = "; ".join(f"{mirror.preset}, {mirror.call}" for mirror in equal)
    return [Diagnosis((equal[0].preset,), "mirror", f"these are the bits of {calls}")]


def by_pattern(case: Case, truths: Truths, answers: Answers) -> list[Diagnosis]:
    """What the numbers themselves show, for outputs that are wrong: one diagnosis per pattern."""
    diagnoses: dict[str, Diagnosis] = {}
    for output, answer in answers.items():
        truth = truths[output]
        if malformed(truth, answer):
            continue
        x = numbers(truth, answer)
        if x.shape != np.shape(truth.reference) or judge(truth, x)[0].all():
            continue
        pattern = first_pattern(case, output, truth, x)
        if pattern is not None:
            diagnosis = Diagnosis((pattern.name,), "pattern", pattern.about, pattern.fix)
            diagnoses.setdefault(pattern.name, diagnosis)
    return list(diagnoses.values())


def diagnose(
    op: Operator,
    case: Case,
    truths: Truths,
    answers: Answers,
    preset: frozenset[str] = frozenset(),
) -> list[Diagnosis]:
    """Explanations of a failed answer, best first; empty where none is known.

    truths : under the switches of the preset.
    """
    readable = {
        name: answer
        for name, answer in answers.items()
        if name in truths and not malformed(truths[name], answer)
    }
    if not readable:
        return []
    exact = _truth_under(op, case, frozenset()) if preset else None
    if exact is not None and _explains(exact, readable) and not _explains(truths, readable):
        about = "the answer follows the exact model, from which the preset departs here"
        return [Diagnosis(("exact",), "quirk", about)]
    return (
        by_switches(op, case, readable, preset)
        + by_mirror(case, truths, readable)
        + by_pattern(case, truths, readable)
    )
