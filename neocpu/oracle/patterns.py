"""What do wrong numbers show by themselves, where no model of a mistake explains them?

Never written, the old state, scaled, transposed or permuted, the tail of a row missing, rounded in
another way. A pattern looks at one output; it is a hint, not a proof.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.oracle.adapters import Array
from neocpu.oracle.compare import judge, numbers
from neocpu.oracle.operator import Case, Truth
from neocpu.oracle.truth.formats import FORMATS, nearest, quantum

LARGEST_FACTOR = 128  # world sizes, batches, lengths that people multiply by or forget


class Pattern(NamedTuple):
    """What was seen in an output."""

    name: str
    about: str
    fix: str


Recogniser = Callable[[Case, str, Truth, Array], Pattern | None]


def never_written(case: Case, output: str, truth: Truth, x: Array) -> Pattern | None:
    """All zeros, or NaN everywhere, where the truth has other numbers."""
    if x.size and not np.any(x) and np.any(truth.reference):
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
    factor = _simple_factor(float(np.median(ref[use] / x[use])))
    if factor is None:
        return None
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
            same = np.allclose(answered, expected, rtol=1e-5, atol=0, equal_nan=True)
            if same and np.unique(expected).size > 4:
                return Pattern(
                    name="permuted",
                    about=f"{output} has the right numbers, but its {what} in another order",
                    fix="check the order",
                )
    return None


def tail_missing(case: Case, output: str, truth: Truth, x: Array) -> Pattern | None:
    """Only the last columns are wrong: the tail of a row that is no multiple of a vector."""
    if x.ndim != 2 or x.shape[0] < 2 or not x.size:
        return None
    wrong = ~judge(truth, x)[0]
    columns = np.flatnonzero(wrong.any(0))
    if not columns.size or columns[0] == 0 or columns[-1] != x.shape[1] - 1 or columns[0] % 4:
        return None
    return Pattern(
        name="tail_of_row",
        about=f"{output} is wrong in columns {columns[0]} to {columns[-1]} only",
        fix="the columns after the last whole vector, warp or block are not handled",
    )


def only_rounding(case: Case, output: str, truth: Truth, x: Array) -> Pattern | None:
    """Every error is a few units in the last place: another rounding, order or precision."""
    if truth.exact:
        return None
    ref = truth.reference
    form = FORMATS[truth.format]
    with np.errstate(invalid="ignore"):
        right = judge(truth, x)[0]
        ulps = np.abs(x - ref)[~right] / quantum(ref[~right], form)
    if not ulps.size or not np.isfinite(ulps).all():
        return None
    for name in ("bf16", "fp16"):
        if FORMATS[name].precision < form.precision and _rounded_to(truth, x, name):
            return Pattern(
                name=f"rounded_to_{name}",
                about=f"{output} holds {name} numbers only",
                fix=f"keep sums and results in {form.name}",
            )
    if ulps.max() <= 1.0 and form.precision < 24:
        return Pattern(
            name="rounding_mode",
            about=f"{output} is off by at most one unit in the last place",
            fix="round to nearest, ties to even",
        )
    if ulps.max() <= 64:
        most = f"{ulps.max():.3g} units in the last place"
        return Pattern(
            name="rounding",
            about=f"{output} is off by at most {most}: rounding, not logic",
            fix="sum in a wider type, or in fewer roundings",
        )
    return None


def _rounded_to(truth: Truth, x: Array, name: str) -> bool:
    """Are all numbers of a narrow format, and within one of its units of the reference?"""
    form = FORMATS[name]
    if not np.array_equal(nearest(x, form), x):
        return False
    ref = truth.reference
    near: NDArray[np.bool_] = np.abs(x - ref) <= quantum(ref, form) + truth.bound
    return bool(near[np.isfinite(ref)].all())


# The first one that fits is reported.
RECOGNISERS: tuple[Recogniser, ...] = (
    never_written,
    old_state,
    constant_factor,
    rearranged,
    tail_missing,
    only_rounding,
)


def first_pattern(case: Case, output: str, truth: Truth, x: Array) -> Pattern | None:
    """The first pattern that the numbers x of a wrong output show."""
    for recogniser in RECOGNISERS:
        pattern = recogniser(case, output, truth, x)
        if pattern is not None:
            return pattern
    return None
