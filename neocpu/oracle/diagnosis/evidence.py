"""What do the answers of one case say of a switch? The bent truth against the plain one.

A bent truth predicts a wrong element when the element is right under it and its bound is sharp:
finite, and no wider than a few plain bounds or than a part of the difference that it claims. So a
division by zero, whose bound is infinite, predicts nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from neocpu.core.types import Bools, Doubles, Elements
from neocpu.oracle.adapters import Array
from neocpu.oracle.diagnosis.findings import EXACT, Diagnosis, Effect
from neocpu.oracle.operator import Case, Operator, Switches, Truth, Truths
from neocpu.oracle.truth.bends import VARIANTS
from neocpu.oracle.truth.formats import FORMATS, nearest
from neocpu.oracle.verdicts.compare import judge, malformed, numbers

LEAST_WORK = 2500  # of one truth of the smallest case, in products and elements
SHARP_SHARE = 0.25  # of the difference of both references: the widest bound that predicts
SHARP_BOUNDS = 8.0  # plain bounds that a bent one may be as wide as

Answers = Mapping[str, Array]
# what the truth may raise where switches ask for an input that the case lacks
PROBLEMS = (IndexError, KeyError, ValueError, ZeroDivisionError, ArithmeticError)


class AskedSwitches(frozenset[str]):
    """A set of switches that notes which names the truth asked for."""

    asked: set[str]

    def __new__(cls, names: Iterable[str] = ()) -> Self:
        """The set of these names, nothing asked yet."""
        switches = super().__new__(cls, names)
        switches.asked = set()
        return switches

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def __or__(self, names: AbstractSet[Any]) -> "AskedSwitches":
        union = type(self)(super().__or__(names))
        union.asked = self.asked
        return union


@dataclass
class CaseTrial:
    """One answered case, and what was found out about it."""

    op: Operator
    case: Case
    truths: Truths  # under the switches of the preset
    answers: Answers
    failed: bool
    preset: frozenset[str] = frozenset()
    proved: tuple[Diagnosis, ...] = ()  # what the verdicts prove without a bent truth
    effects: dict[tuple[str, ...], Effect | None] = field(default_factory=dict)
    bent: int = 0  # truths that were computed for effects
    _asked: frozenset[str] | None = None

    @property
    def size(self) -> int:
        """About how long its truth takes: products and elements."""
        inputs = self.case.inputs
        widest = int(np.max(inputs.get("dims", np.ones(1)), initial=1))
        lookups = sum(x.size for name, x in inputs.items() if name.split("/")[-1] == "indices")
        return lookups * widest + sum(x.size for x in inputs.values())

    @property
    def work(self) -> int:
        """What one truth takes: products and elements, beside what the smallest case takes."""
        return LEAST_WORK + self.size

    def asked(self) -> frozenset[str]:
        """The switches that the truth of this case asks for: no other one can change it."""
        if self._asked is None:
            switches = AskedSwitches(self.preset)
            self.truth_under(switches)
            self._asked = frozenset(switches.asked)
        return self._asked

    def truth_under(self, switches: Switches) -> Truths | None:
        """The truth under some switches; None where they ask for an input that the case lacks."""
        try:
            with np.errstate(all="ignore"):
                return self.op.truth(self.case.inputs, self.case.options, switches)
        except PROBLEMS:
            return None

    def effect(self, names: tuple[str, ...]) -> Effect | None:
        """What some switches say of the answers; None where they change nothing."""
        if names not in self.effects:
            self.effects[names] = self._effect(names)
        return self.effects[names]

    def _effect(self, names: tuple[str, ...]) -> Effect | None:
        exact = names == EXACT
        # Truths take long: a switch that nobody asks for is not tried.
        if not exact and not self.asked() & set(names):
            return None
        bent = self._computed(frozenset()) if exact else self._bent(names)
        if bent is None or not differ(self.truths, bent):
            return None
        return effect_of(self.truths, bent, self.answers)

    def _computed(self, switches: Switches) -> Truths | None:
        """`truth_under`, counted."""
        self.bent += 1
        return self.truth_under(switches)

    def _bent(self, names: tuple[str, ...]) -> Truths | None:
        """The truth under switches; of one with variants, of each element the nearest variant."""
        switches = self.preset | set(names)
        switch = next((name for name in names if name in VARIANTS), "")
        if not switch:
            return self._computed(switches)
        variants: list[Truths] = [self.truths]  # no row, or no duplicate, may be lost
        for k in range(VARIANTS[switch]):
            bent = self._computed(switches | {f"{switch}_{k}"})
            if bent is None:
                return None
            if k and not differ(variants[-1], bent):
                break  # no row has so many duplicates
            variants.append(bent)
        return {
            name: nearest_variant([variant[name] for variant in variants], self.answers.get(name))
            for name in variants[0]
        }


def nearest_variant(truths: Sequence[Truth], answer: Array | None) -> Truth:
    """The truth that has, of each element, the variant that is nearest to the answer."""
    first = truths[0]
    shapes = {np.shape(truth.reference) for truth in truths}
    if answer is None or len(truths) == 1 or len(shapes) > 1 or malformed(first, answer):
        return first
    if first.exact or first.probability is not None:
        return first
    x = numbers(first, answer)
    with np.errstate(invalid="ignore"):
        errors = np.stack([np.abs(x - truth.reference) - truth.bound for truth in truths])
    best = np.argmin(np.where(np.isnan(errors), np.inf, errors), axis=0)[None]
    parts: dict[str, Elements] = {}
    for part in ("reference", "bound", "lower", "upper"):
        if getattr(first, part) is not None:
            variants = np.stack([getattr(truth, part) for truth in truths])
            parts[part] = np.take_along_axis(variants, best, 0)[0]
    return replace(first, typical=None).with_arrays(parts)


def differ(plain: Truths, bent: Truths) -> bool:
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


def agreement(truths: Truths, answers: Answers) -> bool:
    """Are all elements of all answers right?"""
    for name, answer in answers.items():
        if name not in truths or malformed(truths[name], answer):
            return False
        if not judge(truths[name], numbers(truths[name], answer))[0].all():
            return False
    return True


class _Comparison(NamedTuple):
    """Of one output, element by element."""

    wrong: Bools  # under the plain truth
    right: Bools  # under the bent truth
    sharp: Bools  # the bent truth predicts something there
    apart: Bools  # no number is right under both
    equal: int  # elements that are the bent reference, rounded


def effect_of(plain: Truths, bent: Truths, answers: Answers) -> Effect:
    """What a bent truth says of the answers of a case."""
    wrong = predicted = equal = count = 0
    agrees = True
    apart = contradicted = False
    for name, answer in answers.items():
        if name not in bent:
            agrees = False
            continue
        comparison = _compared(plain[name], bent[name], answer)
        wrong += int(comparison.wrong.sum())
        predicted += int((comparison.wrong & comparison.right & comparison.sharp).sum())
        agrees &= bool(comparison.right.all())
        apart |= bool(comparison.apart.any())
        contradicted |= bool((comparison.apart & ~comparison.wrong & ~comparison.right).any())
        equal += comparison.equal
        count += comparison.wrong.size
    return Effect(wrong, predicted, agrees, apart, contradicted, equal / max(count, 1))


def _compared(plain: Truth, bent: Truth, answer: Array) -> _Comparison:
    """One output under both truths. Where they differ in shape, only one can be right."""
    if malformed(plain, answer) or malformed(bent, answer):
        fits_plain = not malformed(plain, answer)
        fits_bent = not malformed(bent, answer)
        if not answer.size:
            # That there is nothing is right or wrong as one element is.
            one = np.ones(1, bool)
            apart = one & (fits_plain != fits_bent)
            return _Comparison(one & (not fits_plain), one & fits_bent, one, apart, 0)
        everywhere = np.ones(answer.shape, bool)
        wrong = everywhere & (not fits_plain)
        right = ~everywhere
        if fits_plain:
            wrong = ~judge(plain, numbers(plain, answer))[0].reshape(answer.shape)
        if fits_bent:
            right = judge(bent, numbers(bent, answer))[0].reshape(answer.shape)
        apart = everywhere if fits_plain != fits_bent else ~everywhere
        return _Comparison(wrong, right, everywhere, apart, 0)
    x = numbers(plain, answer)
    right_plain = judge(plain, x)[0]
    right_bent = judge(bent, x)[0]
    sharp = np.broadcast_to(_sharp(plain, bent), x.shape)
    apart = np.broadcast_to(_apart(plain, bent), x.shape)
    reference = bent.reference
    if not bent.exact:
        # Answers are numbers of the format, so an equal one is the reference rounded.
        reference = nearest(bent.reference, FORMATS[bent.format])
    with np.errstate(invalid="ignore"):
        equal = (x == reference) | ((x != x) & (reference != reference))
    return _Comparison(~right_plain, right_bent, sharp, apart, int(equal.sum()))


def _width(truth: Truth) -> Doubles:
    """How far right elements may be from each other, at most."""
    if truth.lower is None or truth.upper is None:
        return truth.bound
    with np.errstate(invalid="ignore"):
        narrow = truth.upper - truth.lower
        exact = (truth.upper == truth.lower) | np.isnan(truth.upper) & np.isnan(truth.lower)
    return np.minimum(truth.bound, np.where(exact, 0.0, np.where(np.isnan(narrow), np.inf, narrow)))


def _sharp(plain: Truth, bent: Truth) -> Bools:
    """Where the bent truth says what must stand there."""
    if plain.exact:
        return np.ones(np.shape(plain.reference), bool)
    bent_width = _width(bent)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(bent.reference - plain.reference)
        sharp = bent_width <= SHARP_BOUNDS * _width(plain)
        sharp |= bent_width <= SHARP_SHARE * difference
        return np.asarray((sharp | ~np.isfinite(bent.reference)) & np.isfinite(bent_width))


def _apart(plain: Truth, bent: Truth) -> Bools:
    """Where no number is right under both truths."""
    if plain.exact:
        return np.asarray(plain.reference != bent.reference)
    with np.errstate(invalid="ignore"):
        difference = np.abs(plain.reference - bent.reference)
        apart = difference > plain.bound + bent.bound
        if (
            plain.lower is not None
            and plain.upper is not None
            and bent.lower is not None
            and bent.upper is not None
        ):
            apart = apart | (bent.lower > plain.upper) | (bent.upper < plain.lower)
            if plain.probability is not None and bent.probability is None:
                # one of two numbers where the plain truth allows both, each by its chance
                apart = apart | ((plain.lower < plain.upper) & (bent.lower == bent.upper))
        classes = np.isfinite(plain.reference) != np.isfinite(bent.reference)
        classes &= np.isfinite(plain.bound) & np.isfinite(bent.bound)
        return np.asarray(apart | classes)
