"""Which mistake explains a wrong answer? The switch, or the two, that bend the exact model onto it.

A switch explains an answer when the truth bent by it agrees with *all* outputs that were answered,
and the unbent truth does not. Explanations are ranked by how many elements they meet to the bit of
the rounded reference. Where no switch explains the answer, its pattern is looked at: never written,
scaled, transposed, the old state, another rounding.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from neocpu.oracle.adapters import Array
from neocpu.oracle.compare import agrees, judge, malformed, numbers, same_bits
from neocpu.oracle.mirrors import NoMirror, mirror_bits, mirrors_of
from neocpu.oracle.operator import Case, Operator, Truth
from neocpu.oracle.semantics import SWITCHES, switches_for
from neocpu.oracle.truth.formats import FORMATS, nearest, quantum

MOST_PAIRS = 200


@dataclass(frozen=True)
class Diagnosis:
    """One explanation. kind: mistake, quirk, mirror (a peer's bits), or pattern (seen in numbers,
    not proved by a model).
    """

    names: tuple[str, ...]
    kind: str
    about: str
    fix: str = ""


Truths = Mapping[str, Truth]


def _explains(truths: Truths, answers: Mapping[str, Array]) -> bool:
    return all(name in truths and agrees(truths[name], answer) for name, answer in answers.items())


def _closeness(truths: Truths, answers: Mapping[str, Array]) -> float:
    """Share of elements that are the bent reference, rounded: tells explanations with wide bounds
    from exact ones.
    """
    met = count = 0
    for name, answer in answers.items():
        truth = truths[name]
        x = numbers(truth, answer)
        ref = truth.reference if truth.exact else nearest(truth.reference, FORMATS[truth.format])
        with np.errstate(invalid="ignore"):
            met += int(((x == ref) | ((x != x) & (ref != ref))).sum())
        count += x.size
    return met / max(count, 1)


def _bend(op: Operator, case: Case, switches: frozenset[str]) -> Truths | None:
    """The bent truth; None where the model cannot be bent so (a switch may ask for what the case
    lacks).
    """
    try:
        with np.errstate(all="ignore"):
            return op.truth(case.inputs, case.options, switches)
    except (IndexError, KeyError, ValueError, ZeroDivisionError, ArithmeticError):
        return None


def _matters(plain: Truths, bent: Truths) -> bool:
    """True where a switch changes what a case must give, or how it is rounded."""
    return any(name not in bent or not _same(plain[name], bent[name]) for name in plain)


def _same(a: Truth, b: Truth) -> bool:
    """Do two truths ask for the same answer, rounded the same way?"""
    fields = [
        (a.reference, b.reference),
        (a.lower, b.lower),
        (a.upper, b.upper),
        (a.probability, b.probability),
    ]
    return all(
        (x is y)
        or (x is not None and y is not None and np.array_equal(x, y, equal_nan=not a.exact))
        for x, y in fields
    )


def by_switches(
    op: Operator, case: Case, answers: Mapping[str, Array], preset: frozenset[str]
) -> list[Diagnosis]:
    """All single switches that explain the answer, best first; if there are none, all pairs."""
    plain = _bend(op, case, preset)
    if plain is None or _explains(plain, answers):
        return []
    active: list[str] = []
    found: list[tuple[float, tuple[str, ...]]] = []
    for switch in switches_for(op.name):
        if switch.name in preset:
            continue
        bent = _bend(op, case, preset | {switch.name})
        if bent is None or not _matters(plain, bent):
            continue
        active.append(switch.name)
        if _explains(bent, answers):
            found.append((_closeness(bent, answers), (switch.name,)))
    if not found:
        for pair in list(combinations(active, 2))[:MOST_PAIRS]:
            bent = _bend(op, case, preset | set(pair))
            if bent is not None and _explains(bent, answers):
                found.append((_closeness(bent, answers), pair))
    found.sort(key=lambda entry: -entry[0])
    return [_told(names) for _, names in found]


def _told(names: tuple[str, ...]) -> Diagnosis:
    switches = [SWITCHES[name] for name in names]
    kind = "mistake" if any(s.kind == "mistake" for s in switches) else "quirk"
    fix = "; ".join(s.fix for s in switches if s.fix)
    return Diagnosis(names, kind, "; and ".join(s.about for s in switches), fix)


def by_mirror(case: Case, truths: Truths, answers: Mapping[str, Array]) -> list[Diagnosis]:
    """The peers whose bits the answers are."""
    found = []
    for mirror in mirrors_of(case.op):
        try:
            bits = mirror_bits(mirror.preset, case.op, case.inputs, case.options)
        except (NoMirror, IndexError, KeyError, ValueError):
            continue
        if all(
            name in bits and same_bits(truths[name], bits[name], answer)
            for name, answer in answers.items()
        ):
            found.append(mirror)
    if not found:
        return []
    calls = "; ".join(f"{m.preset}, {m.call}" for m in found)
    return [Diagnosis((found[0].preset,), "mirror", f"these are the bits of {calls}")]


Pattern = Callable[[Case, str, Truth, Array], tuple[str, str, str] | None]


def never_written(case: Case, output: str, truth: Truth, x: Array) -> tuple[str, str, str] | None:
    """All zeros, or one value everywhere, where the truth has others."""
    if x.size and not np.any(x) and np.any(truth.reference):
        return (
            "all_zeros",
            f"{output} is zero everywhere",
            "the kernel never wrote it, or wrote another buffer",
        )
    if x.size > 1 and not truth.exact and np.isnan(x).all():
        return "all_nan", f"{output} is NaN everywhere", "look for uninitialised memory or 0/0"
    return None


def old_state(case: Case, output: str, truth: Truth, x: Array) -> tuple[str, str, str] | None:
    """The input of the same name came back."""
    before = case.inputs.get(output)
    if before is None or before.size != x.size or not np.size(x):
        return None
    same = np.array_equal(numbers(truth, before), x, equal_nan=not truth.exact)
    if not same:
        return None
    return (
        "old_state",
        f"{output} is what came in: nothing was updated",
        "return the updated array, or update in place",
    )


def constant_factor(case: Case, output: str, truth: Truth, x: Array) -> tuple[str, str, str] | None:
    """theirs · k = reference for one k that people multiply by."""
    if truth.exact:
        return None
    ref = truth.reference
    use = (
        np.isfinite(x) & np.isfinite(ref) & (x != 0) & (ref != 0) & (np.abs(ref) > 4 * truth.bound)
    )
    if use.sum() < 3:
        return None
    k = float(np.median(ref[use] / x[use]))
    for nice in (k, -1.0, *(f for n in range(2, 129) for f in (float(n), 1.0 / n))):
        if abs(k / nice - 1) < 1e-5 and nice == (
            round(nice) if abs(nice) >= 1 else 1 / round(1 / nice)
        ):
            bound = truth.bound * 1.001 + np.abs(ref) * 2.0**-22
            if (np.abs(x * nice - ref)[use] <= bound[use]).all() and nice != 1:
                how = f"1/{round(nice)}" if nice > 1 else f"{round(1 / nice)}"
                what = f"{output} is {how} times what it should be"
                return (
                    "constant_factor",
                    what,
                    "a division by the world size, batch or length too many, or one missing",
                )
    return None


def rearranged(case: Case, output: str, truth: Truth, x: Array) -> tuple[str, str, str] | None:
    """The right numbers in other places: transposed, samples or columns or whole features in
    another order.
    """
    ref = truth.reference
    if x.ndim != 2 or min(x.shape) < 2 or x.shape != ref.shape:
        return None
    turned = x.reshape(x.shape[::-1]).T
    if judge(truth, turned)[0].all():
        return (
            "transposed",
            f"{output} is laid out column by column",
            "write row-major: sample, then column",
        )
    for axis, what in ((1, "columns (or features)"), (0, "samples")):
        with np.errstate(invalid="ignore"):
            a = np.sort(x.astype(np.float32), axis)
            b = np.sort(np.asarray(ref, np.float32), axis)
            if np.allclose(a, b, rtol=1e-5, atol=0, equal_nan=True) and np.unique(b).size > 4:
                return (
                    "permuted",
                    f"{output} has the right numbers, but its {what} in another order",
                    "check the order",
                )
    return None


def only_rounding(case: Case, output: str, truth: Truth, x: Array) -> tuple[str, str, str] | None:
    """Every error is small against the numbers: rounded on the way, or added in another order and
    precision.
    """
    if truth.exact:
        return None
    ref = truth.reference
    form = FORMATS[truth.format]
    with np.errstate(invalid="ignore"):
        right = judge(truth, x)[0]
        step = np.abs(x - ref)[~right] / quantum(ref[~right], form)
    if not step.size or not np.isfinite(step).all():
        return None
    for name in ("bf16", "fp16"):
        narrow = FORMATS[name]
        if narrow.precision < form.precision and np.array_equal(nearest(x, narrow), x):
            near = np.abs(x - ref) <= quantum(ref, narrow) + truth.bound
            if near[np.isfinite(ref)].all():
                return (
                    f"rounded_to_{name}",
                    f"{output} holds {name} numbers only",
                    f"keep sums and results in {form.name}",
                )
    if step.max() <= 1.0 and form.precision < 24:
        return (
            "rounding_mode",
            f"{output} is off by at most one unit in the last place",
            "round to nearest, ties to even",
        )
    if step.max() <= 64:
        what = (
            f"{output} is off by at most {step.max():.3g} units in the last place: rounding, "
            "not logic"
        )
        return "rounding", what, "sum in a wider type, or in fewer roundings"
    return None


def tail_missing(case: Case, output: str, truth: Truth, x: Array) -> tuple[str, str, str] | None:
    """Wrong elements share their last columns: the tail of a row that is no multiple of a vector."""
    if x.ndim != 2 or x.shape[0] < 2 or not x.size:
        return None
    wrong = ~judge(truth, x)[0]
    columns = np.flatnonzero(wrong.any(0))
    if not columns.size or columns[0] == 0 or columns[-1] != x.shape[1] - 1 or columns[0] % 4:
        return None
    what = f"{output} is wrong in columns {columns[0]} to {columns[-1]} only"
    return (
        "tail_of_row",
        what,
        "the columns after the last whole vector, warp or block are not handled",
    )


PATTERNS: tuple[Pattern, ...] = (
    never_written,
    old_state,
    constant_factor,
    rearranged,
    tail_missing,
    only_rounding,
)


def by_pattern(case: Case, truths: Truths, answers: Mapping[str, Array]) -> list[Diagnosis]:
    """What the numbers themselves tell, for outputs that are wrong."""
    found: dict[tuple[str, ...], Diagnosis] = {}
    for output, answer in answers.items():
        if malformed(truths[output], answer):
            continue
        x = numbers(truths[output], answer)
        if x.shape != np.shape(truths[output].reference) or judge(truths[output], x)[0].all():
            continue
        for pattern in PATTERNS:
            seen = pattern(case, output, truths[output], x)
            if seen is not None:
                found.setdefault((seen[0],), Diagnosis((seen[0],), "pattern", seen[1], seen[2]))
                break
    return list(found.values())


def diagnose(
    op: Operator,
    case: Case,
    truths: Truths,
    answers: Mapping[str, Array],
    preset: frozenset[str] = frozenset(),
) -> list[Diagnosis]:
    """Explanations of a failed answer, best first; empty where none is known."""
    fit = {
        name: a for name, a in answers.items() if name in truths and not malformed(truths[name], a)
    }
    if not fit:
        return []
    exact = _bend(op, case, frozenset()) if preset else None
    if exact is not None and _explains(exact, fit) and not _explains(truths, fit):
        return [
            Diagnosis(
                ("exact",),
                "quirk",
                "the answer follows the exact model, from which the preset departs here",
            )
        ]
    return (
        by_switches(op, case, fit, preset)
        + by_mirror(case, truths, fit)
        + by_pattern(case, truths, fit)
    )
