"""Unit 3: is a student's sum exact, and rounded once?"""

from collections.abc import Iterator, Sequence

import numpy as np

from neocpu.core.types import Elements
from neocpu.kernels.twins.numbers.exact import exact_sum
from neocpu.oracle.course.unit import CourseUnit, Exercise, Problem, Returned, Slip


def our_sum(terms: Elements) -> Elements:
    """The twin's sum as fp32."""
    return np.asarray(exact_sum(terms.tolist()), np.float32)


def problem(about: str, terms: Sequence[float] | Elements) -> Problem:
    """Some fp32 numbers."""
    return Problem(about, {"terms": np.array(terms, np.float32)})


def problems() -> Iterator[Problem]:
    """Sums that fp32, fp64 and two roundings get wrong, then random ones of many magnitudes."""
    yield problem("three small numbers", [1.5, 2.25, -0.5])
    yield problem("nothing to add", [])
    yield problem("1 between two large numbers that cancel", [2.0**24, 1, 1, -(2.0**24)])
    yield problem(
        "1 between numbers that only a wider type than fp64 holds", [2.0**80, 1, -(2.0**80)]
    )
    yield problem("half a unit in the last place: a tie, to even, downwards", [1, 2.0**-24])
    yield problem("a tie, to even, upwards", [1, 2.0**-23, 2.0**-24])
    yield problem(
        "a little more than a tie, by less than fp64 sees: rounded twice it is a tie",
        [1, 2.0**-24, 2.0**-90],
    )
    yield problem("a little less than a tie", [1, 2.0**-23, 2.0**-24, -(2.0**-90)])
    yield problem("the same below zero", [-1, -(2.0**-24), -(2.0**-90)])
    yield problem("the smallest numbers there are", [2.0**-149, 2.0**-149, 2.0**-126])
    yield problem("a sum that cancels to nothing", [3.5, -1.25, -2.25])
    for seed in range(6):
        rng = np.random.default_rng(seed)
        terms = rng.standard_normal(60) * 10.0 ** rng.uniform(-20, 20, 60)
        terms = terms.astype(np.float32)
        pairs = np.concatenate([terms[:30], -terms[:30], terms[30:] / np.float32(2**30)])
        yield problem("pairs that cancel, and small numbers between them", rng.permutation(pairs))


WHOLE = """\
    total = 0  # in units of 2^-149, of which every fp32 number is a multiple
    for term in terms.tolist():
        top, below = term.as_integer_ratio()
        total += (top << 149) // below
"""


HALF = "if rest > half:"
KAHAN = """\
    so_far = lost = np.float32(0)
    for term in terms:
        step = term - lost
        after = so_far + step
        lost = (after - so_far) - step
        so_far = after
    return so_far
"""


def _instead(code: str) -> tuple[tuple[str, str], ...]:
    """The edit that computes the sum another way."""
    return ((WHOLE, f"    return np.float32({code})\n{WHOLE}"),)


UNIT = CourseUnit(
    name="order",
    title="the order of a sum",
    reads="unit 2; how a floating-point number is stored: sign, exponent, fraction",
    exercises=(
        Exercise(
            function="exact_sum",
            returned=(Returned("sum", "float32", "one number"),),
            problems=problems,
            expected=our_sum,
            slips=(
                Slip(
                    "the terms are added one by one in fp32, in the order in which they come",
                    "every addition rounds; keep the running sum in a form that never does",
                    _instead("terms.cumsum(dtype=np.float32)[-1] if terms.size else 0"),
                ),
                Slip(
                    "the terms are added in fp32 by magnitude, small ones first",
                    "sorting moves the errors, and pairs that cancel cancel whatever was added "
                    "between them; keep a sum that never rounds",
                    _instead(
                        "terms[np.argsort(np.abs(terms), kind='stable')].cumsum("
                        "dtype=np.float32)[-1] if terms.size else 0"
                    ),
                ),
                Slip(
                    "np.sum adds them in fp32",
                    "np.sum adds in pairs, and every addition still rounds",
                    _instead("terms.sum()"),
                ),
                Slip(
                    "the running sum is kept in fp64",
                    "53 bits hold 2^24 and 1 together, but not 2^80 and 1",
                    _instead("sum(terms.tolist())"),
                ),
                Slip(
                    "np.sum adds them in fp64",
                    "53 bits hold 2^24 and 1 together, but not 2^80 and 1",
                    _instead("terms.sum(dtype=np.float64)"),
                ),
                Slip(
                    "what each addition in fp32 loses is carried to the next one (Kahan's sum)",
                    "what is carried rounds as well, and is lost beside a large term; keep a sum "
                    "that never rounds",
                    ((WHOLE, KAHAN + WHOLE),),
                ),
                Slip(
                    "the exact sum is rounded twice: to fp64, then to fp32",
                    "math.fsum and float() round to 53 bits first, which may make a tie of what "
                    "was none; go from whole numbers to 24 bits at once",
                    _instead("math.fsum(terms.tolist())"),
                ),
                Slip(
                    "ties are rounded away from zero",
                    "where the rest is exactly half, round up only if the last kept bit is 1",
                    (
                        (
                            "if rest > half or (shift and rest == half and kept % 2):",
                            "if shift and rest >= half:",
                        ),
                    ),
                ),
                Slip(
                    "ties are rounded toward zero",
                    "where the rest is exactly half, round up if the last kept bit is 1",
                    (("if rest > half or (shift and rest == half and kept % 2):", HALF),),
                ),
                Slip(
                    "the bits beyond the 24th are cut off",
                    "compare them with half a unit of the last kept bit",
                    (
                        (
                            "if rest > half or (shift and rest == half and kept % 2):",
                            "if rest > size:",
                        ),
                    ),
                ),
            ),
        ),
    ),
    hints="""\
fp64 is not enough: two fp32 numbers can be 2^277 apart. Python's whole numbers have no width,
so they add without error.

Every fp32 number is a whole number of 2^-149: float.as_integer_ratio() gives it exactly.

At the end keep the upper 24 bits of the total, compare the rest with half a unit of the last
one kept (a tie goes to the even number), and math.ldexp puts the exponent back.
""",
)
