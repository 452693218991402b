"""Unit 2: does a student's embedding bag add up the right rows?"""

from collections.abc import Iterator, Sequence

import numpy as np

from neocpu.oracle.course.unit import Exercise, Problem, Returned, unit_of
from neocpu.oracle.course.units.operators import lookup_case, lookup_reference


def problem(
    about: str, table: Sequence[int], lengths: Sequence[int], weighted: bool, mean: bool, seed: int
) -> Problem:
    """Bags of these lengths in a table of (rows, columns)."""
    rng = np.random.default_rng(seed)
    offsets = np.append(0, np.cumsum(lengths, dtype=np.int64))
    n = int(offsets[-1])
    weights = rng.integers(-3, 5, n) / 2 if weighted else np.ones(n)
    return Problem(
        about,
        {
            "table": rng.integers(-20, 20, table).astype(np.float32) / 8,
            "offsets": offsets,
            "rows": rng.integers(0, table[0], n),
            "weights": weights.astype(np.float32),
            "mean": mean,
        },
    )


def problems() -> Iterator[Problem]:
    """Empty bags at every end, duplicates, weights, means, long bags."""
    yield problem("two bags of two lookups", (4, 2), [2, 2], False, False, 1)
    yield problem("three bags, the second of them empty", (5, 2), [3, 0, 2], False, False, 2)
    yield problem("empty bags first and last", (5, 2), [0, 2, 1, 0], False, False, 3)
    yield problem("weights", (5, 2), [3, 0, 2], True, False, 4)
    yield problem("means, one of an empty bag", (5, 2), [3, 0, 2], False, True, 5)
    yield problem(
        "weighted means: the divisor is the number of lookups", (6, 2), [4, 1, 3], True, True, 6
    )
    yield problem("a table of one row: only duplicates", (1, 3), [4, 2], True, False, 7)
    yield problem("no lookup at all", (3, 2), [0, 0, 0], False, True, 8)
    yield problem("no bag at all", (3, 2), [], False, False, 9)
    rng = np.random.default_rng(10)
    for seed in range(10, 16):
        lengths = rng.integers(0, 12, 20).tolist()
        weighted, mean = bool(seed & 1), bool(seed & 2)
        yield problem("random bags of 0 to 11 lookups", (30, 5), lengths, weighted, mean, seed)
    yield problem("bags of 40 lookups and more", (50, 3), [40, 0, 77], True, True, 17)


UNIT = unit_of(
    __file__,
    Exercise(
        function="pool",
        returned=(Returned("out", "float32", "a row for each bag", output="out"),),
        problems=problems,
        expected=lookup_reference,
        as_case=lookup_case,
    ),
)
