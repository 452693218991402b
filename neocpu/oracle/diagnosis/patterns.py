"""What do wrong numbers show by themselves, where no model of a mistake explains them?

Never written, the old state, scaled, transposed or permuted, the tail of a row missing, rounded to
another format. A pattern looks at one output; it is a hint, not a proof. Only `rounding_of_all`
looks at all failed cases at once: errors that are rounding show in all of them, in both directions.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Bools
from neocpu.oracle.adapters import Array
from neocpu.oracle.operator import Case, Truth
from neocpu.oracle.truth.bends import SMALLEST_NORMAL
from neocpu.oracle.truth.formats import FORMATS, above, below, nearest, quantum
from neocpu.oracle.verdicts.compare import judge, malformed, numbers

LARGEST_FACTOR = 128  # world sizes, batches, lengths that people multiply by or forget
MOST_ULPS = 64  # of an error that may be rounding
VECTORS = (2, 4, 8, 16, 32, 64, 128)  # columns that a kernel takes at once
LEAST_ELEMENTS = 8  # wrong ones, without which nothing is said of their signs


class Pattern(NamedTuple):
    """What was seen in an output."""

    name: str
    about: str
    fix: str


Recogniser = Callable[[Case, str, Truth, Array], Pattern | None]


def never_written(case: Case, output: str, truth: Truth, x: Array) -> Pattern | None:
    """All zeros, or NaN everywhere, where the truth has other numbers.

    Zeros for subnormal numbers are no output that nobody wrote.
    """
    if x.size and not np.any(x) and (np.abs(truth.reference) >= SMALLEST_NORMAL).any():
        return Pattern(
            name="all_zeros",
            about=f"{output} is zero everywhere",
            fix="the kernel never wrote it, or wrote another buffer",
        )
    if x.size > 1 and not truth.exact and np.isnan(x).all():
        return Pattern(
            name="all_nan",
            about=f"{output} is NaN everywhere",
            fix="look for uninitialised memory or 0/0",
        )
    return None


def old_state(case: Case, output: str, truth: Truth, x: Array) -> Pattern | None:
    """The input of the same name came back."""
    before = case.inputs.get(output)
    if before is None or before.size != x.size or not np.size(x):
        return None
    if not np.array_equal(numbers(truth, before), x, equal_nan=not truth.exact):
        return None
    return Pattern(
        name="old_state",
        about=f"{output} is what came in: nothing was updated",
        fix="return the updated array, or update in place",
    )


def constant_factor(case: Case, output: str, truth: Truth, x: Array) -> Pattern | None:
    """The answer times k is the reference, for one k that people multiply by."""
    if truth.exact:
        return None
    ref = truth.reference
    # elements that are clearly not 0, so that their quotient means something
    use = (
        np.isfinite(x) & np.isfinite(ref) & (x != 0) & (ref != 0) & (np.abs(ref) > 4 * truth.bound)
    )
    if use.sum() < 3:
        return None
    if (~judge(truth, x)[0] & ~use).any():
        return None
    # The median: a few elements may be wrong for another reason.
    factor = _simple_factor(float(np.median(ref[use] / x[use])))
    if factor is None:
        return None
    # The multiplication itself rounds, and what was multiplied may be at its bound.
    bound = truth.bound * 1.001 + np.abs(ref) * 2.0**-22
    if (np.abs(x[use] * factor - ref[use]) > bound[use]).any():
        return None
    times = f"1/{round(factor)}" if abs(factor) > 1 else f"{round(1 / factor)}"
    return Pattern(
        name="constant_factor",
        about=f"{output} is {times} times what it should be",
        fix="a division by the world size, batch or length too many, or one missing",
    )


def _simple_factor(quotient: float) -> float | None:
    """The whole number or reciprocal of one that a quotient is; None for 1 and for others.

    Exactly so for any number, nearly so (1e-5) for -1 and numbers up to LARGEST_FACTOR.
    """
    # a median is 0 where half of the signs are wrong
    if not sys.float_info.min <= abs(quotient) <= sys.float_info.max:
        return None
    whole = float(round(quotient)) if abs(quotient) >= 1 else 1 / round(1 / quotient)
    if quotient == whole and quotient != 1:
        return quotient
    factors = [-1.0]
    for n in range(2, LARGEST_FACTOR + 1):
        factors += [float(n), 1.0 / n]
    return next((factor for factor in factors if abs(quotient / factor - 1) < 1e-5), None)


def rearranged(case: Case, output: str, truth: Truth, x: Array) -> Pattern | None:
    """The right numbers in other places: transposed, or samples, columns, features permuted."""
    ref = truth.reference
    if x.ndim != 2 or min(x.shape) < 2 or x.shape != ref.shape:
        return None
    if np.allclose(x, ref, rtol=1e-5, atol=0, equal_nan=True):
        return None  # nothing is in another place
    if judge(truth, x.reshape(x.shape[::-1]).T)[0].all():
        return Pattern(
            name="transposed",
            about=f"{output} is laid out column by column",
            fix="write row-major: sample, then column",
        )
    for axis, what in ((1, "columns (or features)"), (0, "samples")):
        with np.errstate(invalid="ignore"):
            answered = np.sort(x.astype(np.float32), axis)
            expected = np.sort(np.asarray(ref, np.float32), axis)
            equal = np.allclose(answered, expected, rtol=1e-5, atol=0, equal_nan=True)
            if equal and np.unique(expected).size > 4:
                return Pattern(
                    name="permuted",
                    about=f"{output} has the right numbers, but its {what} in another order",
                    fix="check the order",
                )
    return None


def tail_missing(case: Case, output: str, truth: Truth, x: Array) -> Pattern | None:
    """Only the last columns of rows are wrong: those after a number, or after vectors."""
    blocks = [np.asarray(block.any(0)) for block in by_row(case, ~judge(truth, x)[0])]
    wrong = [(block.size, int(np.argmax(block))) for block in blocks if block.any()]
    right = [block.size for block in blocks if block.size and not block.any()]
    # Of rows narrower than a vector all columns are beyond the last whole one.
    if all(first == 0 for _, first in wrong):
        return None
    if not all(bool(block[-1:].any()) for block in blocks if block.any()):
        return None
    where = ""
    firsts = {first for _, first in wrong}
    first = min(firsts)
    if len(firsts) == 1 and first % 4 == 0 and all(width <= first for width in right):
        where = f"from column {first} on"
    for vector in VECTORS:
        if all(c == width // vector * vector for width, c in wrong) and not any(
            width % vector for width in right
        ):
            where = f"after the last whole {vector} columns of a row"
    if not right and all(c == width - 1 for width, c in wrong):
        where = "in the last column of rows"
    if not where:
        return None
    return Pattern(
        name="tail_of_row",
        about=f"{output} is wrong {where} only",
        fix="the columns after the last whole vector, warp or block are not handled",
    )


def by_row(case: Case, wrong: Bools) -> Iterator[Bools]:
    """Which elements of an output are wrong, [rows, columns], by feature or by table."""
    dims = case.inputs.get("dims")
    rows = case.inputs.get("rows")
    features = case.inputs.get("feature_table")
    if dims is None or rows is None or features is None:
        return
    widths = dims[features]
    if wrong.ndim == 2 and wrong.shape[1] == widths.sum():
        yield from np.split(wrong, np.cumsum(widths)[:-1], axis=1)
    elif wrong.ndim == 2:
        yield wrong
    elif wrong.ndim == 1 and wrong.size == (rows * dims).sum():
        for table, count, dim in zip(np.split(wrong, np.cumsum(rows * dims)[:-1]), rows, dims):
            yield table.reshape(int(count), int(dim))


def narrowed(case: Case, output: str, truth: Truth, x: Array) -> Pattern | None:
    """All numbers are neighbours of the truth in a narrower format."""
    if truth.exact:
        return None
    form = FORMATS[truth.format]
    for name in ("bf16", "fp16"):
        if FORMATS[name].precision < form.precision and _rounded_to(truth, x, name):
            return Pattern(
                name=f"rounded_to_{name}",
                about=f"{output} holds {name} numbers only",
                fix=f"keep sums and results in {form.name}",
            )
    return None


def _rounded_to(truth: Truth, x: Array, name: str) -> bool:
    """Are all numbers of a narrow format, and next to the reference in it?"""
    form = FORMATS[name]
    if not np.array_equal(nearest(x, form), x):
        return False
    # Where a right answer may hold such numbers, they are not what is wrong.
    wrong = ~judge(truth, x)[0]
    if judge(truth, nearest(np.asarray(truth.reference), form))[0][wrong].any():
        return False
    return bool(_neighbours(truth, x, name)[np.isfinite(truth.reference)].all())


def _neighbours(truth: Truth, x: Array, name: str) -> Bools:
    """Which numbers are one of the two of a format around the reference, give or take its bound."""
    form = FORMATS[name]
    with np.errstate(invalid="ignore"):
        lowest = below(truth.reference - truth.bound, form)
        highest = above(truth.reference + truth.bound, form)
        return np.asarray((x >= lowest) & (x <= highest))


# The first one that fits is reported.
RECOGNISERS: tuple[Recogniser, ...] = (
    never_written,
    old_state,
    constant_factor,
    rearranged,
    tail_missing,
    narrowed,
)

Truths = Mapping[str, Truth]
Answers = Mapping[str, Array]


def wrong_outputs(truths: Truths, answers: Answers) -> Iterator[tuple[str, Truth, Array, Bools]]:
    """Outputs that are wrong: name, truth, numbers, and which elements are right."""
    for output, answer in answers.items():
        truth = truths[output]
        if malformed(truth, answer):
            continue
        x = numbers(truth, answer)
        if x.shape != np.shape(truth.reference):
            continue
        right = judge(truth, x)[0]
        if not right.all():
            yield output, truth, x, right


def unwritten(case: Case, truths: Truths, answers: Answers) -> Pattern | None:
    """Outputs that are wrong because they are zero, NaN or what came in, all of them."""
    patterns = []
    for output, truth, x, _ in wrong_outputs(truths, answers):
        pattern = never_written(case, output, truth, x) or old_state(case, output, truth, x)
        if pattern is None:
            return None
        patterns.append(pattern)
    return patterns[0] if patterns else None


def patterns_of(case: Case, truths: Truths, answers: Answers) -> list[Pattern]:
    """The pattern of each wrong output; none where one of them shows nothing."""
    patterns = []
    for output, truth, x, _ in wrong_outputs(truths, answers):
        fitting = (recogniser(case, output, truth, x) for recogniser in RECOGNISERS)
        pattern = next((p for p in fitting if p is not None), None)
        if pattern is None:
            return []
        patterns.append(pattern)
    return patterns


def rounding_of_all(cases: Sequence[tuple[Case, Truths, Answers]]) -> Pattern | None:
    """Another rounding, order or precision: a few last places in every wrong element, both ways.

    cases : all failed ones of an operator. Errors that go one way, such as toward zero, or always
        against the step of an update, are logic.
    """
    count = 0
    largest = 0.0
    narrow = True
    signs = np.zeros(3)  # of the errors: upward, away from zero, along the step of an update
    for case, truths, answers in cases:
        for output, truth, x, right in wrong_outputs(truths, answers):
            wrong = ~right
            ref = truth.reference[wrong]
            if truth.exact or not np.isfinite(x[wrong]).all() or not np.isfinite(ref).all():
                return None  # what should be NaN or infinite is no matter of rounding
            form = FORMATS[truth.format]
            error = x[wrong] - ref
            largest = max(largest, float((np.abs(error) / quantum(ref, form)).max()))
            narrow &= form.precision < 24 and bool(_neighbours(truth, x, truth.format).all())
            count += error.size
            # Without numbers before the update there is no step to go along with: signs of 0.
            step = np.zeros(1)
            before = case.inputs.get(output)
            if before is not None and before.size == x.size:
                step = ref - numbers(truth, before)[wrong]
            way = np.sign(error)
            signs += [way.sum(), (way * np.sign(ref)).sum(), (way * np.sign(step)).sum()]
    if count < LEAST_ELEMENTS or not np.isfinite(largest):
        return None
    if narrow:
        if any("stochastic" in case.options.values() for case, _, _ in cases):
            return None  # either neighbour may be right: how often each is, its verdict says
        return Pattern(
            name="rounding_mode",
            about="what is wrong is the other neighbour of the exact number",
            fix="round to nearest, ties to even",
        )
    # Three deviations of a fair coin: beyond that errors go one way.
    if largest > MOST_ULPS or np.abs(signs).max() > 3 * math.sqrt(count):
        return None
    size = f"{largest:.3g} units in the last place"
    return Pattern(
        name="rounding",
        about=f"all errors are at most {size}, up and down: rounding, not logic",
        fix="sum in a wider type, or in fewer roundings",
    )
