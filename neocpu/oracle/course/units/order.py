"""Unit 3: is a student's sum exact, and rounded once?"""

from collections.abc import Iterator, Sequence

import numpy as np

from neocpu.core.types import Elements
from neocpu.kernels.twins.numbers.exact import exact_sum
from neocpu.oracle.course.unit import Exercise, Problem, Returned, unit_of


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


UNIT = unit_of(
    __file__,
    Exercise(
        function="exact_sum",
        returned=(Returned("sum", "float32", "one number"),),
        problems=problems,
        expected=our_sum,
    ),
)
