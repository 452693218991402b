"""Unit 4: does a student's fused backward update each row once, by its merged gradient?"""

from collections.abc import Iterator, Sequence

import numpy as np

from neocpu.oracle.course.unit import Exercise, Problem, Returned, unit_of
from neocpu.oracle.course.units.operators import (
    backward_case,
    backward_reference,
)


def problem(
    about: str, table: tuple[int, int], lengths: Sequence[int], rate: float, eps: float, seed: int
) -> Problem:
    """A batch of bags in a table of (rows, columns) that was trained a while."""
    rng = np.random.default_rng(seed)
    offsets = np.append(0, np.cumsum(lengths, dtype=np.int64))
    return Problem(
        about,
        {
            "table": rng.standard_normal(table).astype(np.float32),
            "sums": rng.uniform(0, 2, table[0]).astype(np.float32),
            "offsets": offsets,
            "rows": rng.integers(0, table[0], int(offsets[-1])),
            "gradient": rng.standard_normal((len(lengths), table[1])).astype(np.float32),
            "rate": rate,
            "eps": eps,
        },
    )


def problems() -> Iterator[Problem]:
    """Single lookups, duplicates within bags and across them, eps that counts."""
    yield problem("one lookup: one row moves", (3, 2), [1], 0.5, 1e-8, 1)
    yield problem("a table of one row, looked up three times", (1, 2), [2, 1], 0.5, 1e-8, 2)
    yield problem("bags of several lookups, one of them empty", (4, 3), [2, 0, 3], 0.1, 1e-8, 3)
    yield problem("no lookup: nothing moves", (3, 2), [0, 0], 0.5, 1e-8, 4)
    yield problem("an eps that counts", (4, 3), [2, 2], 0.5, 1.0, 5)
    for seed in range(6, 12):
        lengths = np.random.default_rng(seed).integers(0, 6, 15)
        yield problem("random bags with many duplicates", (9, 5), lengths.tolist(), 0.25, 0.5, seed)


UNIT = unit_of(
    __file__,
    Exercise(
        function="backward",
        returned=(
            Returned("table", "float32", "as the argument", output="weights"),
            Returned("sums", "float32", "one number for each row", output="sum"),
        ),
        problems=problems,
        expected=backward_reference,
        as_case=backward_case,
    ),
)
