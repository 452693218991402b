"""Unit 2: does a student's embedding bag add up the right rows?"""

from collections.abc import Iterator, Sequence

import numpy as np

from neocpu.oracle.course.unit import CourseUnit, Exercise, Problem, Returned, Slip
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


UNIT = CourseUnit(
    name="bags",
    title="embedding bags",
    reads="unit 1",
    exercises=(
        Exercise(
            function="pool",
            returned=(Returned("out", "float32", "a row for each bag", output="out"),),
            problems=problems,
            expected=lookup_reference,
            as_case=lookup_case,
            slips=(
                Slip(
                    "the last bag is left out, as if its offset were",
                    "there is one bag less than there are offsets: range(len(offsets) - 1)",
                    (("range(len(out))", "range(len(out) - 1)"),),
                ),
                Slip(
                    "an empty bag has the first lookup of the next one, as np.add.reduceat adds",
                    "set the bags without lookups to zero afterwards",
                    (
                        (
                            "begin, end = offsets[bag], offsets[bag + 1]",
                            (
                                "begin, end = offsets[bag], offsets[bag + 1]\n"
                                "        end = max(end, min(begin + 1, len(rows)))"
                            ),
                        ),
                    ),
                ),
                Slip(
                    "a bag has its last lookup only",
                    "out[bags] += x adds once to each bag, however often it occurs in bags; "
                    "np.add.at(out, bags, x) adds every time",
                    (("out[bag] += weights", "out[bag] = weights"),),
                ),
                Slip(
                    "every bag reads rows from the beginning again",
                    "rows[lookup] goes on from bag to bag: it is indexed among all lookups",
                    (("table[rows[lookup]]", "table[rows[lookup - begin]]"),),
                ),
                Slip(
                    "a weighted mean divides by the sum of the weights",
                    "divide by the number of lookups, whatever their weights",
                    (("/= end - begin", "/= weights[begin:end].sum()"),),
                ),
                Slip(
                    "the sum of a bag goes on from that of the bag before",
                    "begin every bag with zeros",
                    (
                        ("float32)\n    for", "float32)\n    total = 0\n    for"),
                        ("out[bag] +=", "total = total +"),
                        ("        if mean", "        out[bag] = total\n        if mean"),
                    ),
                ),
            ),
        ),
    ),
    hints="""\
Two loops are enough: over the bags, and over the lookups of a bag. There is one bag less than
there are offsets.

rows and weights have an element for each lookup, so both are read at the lookup's number, which
goes on from bag to bag.

range(offsets[b], offsets[b + 1]) has the lookups of bag b, none where it is empty. Divide only
where it is not, and after the sum.
""",
)
