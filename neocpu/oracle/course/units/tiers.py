"""Unit 9: does a student's cache keep the right rows, and lose no change?"""

from collections.abc import Iterator, Sequence

import numpy as np

from neocpu.oracle.course.solutions.tiers import cache
from neocpu.oracle.course.unit import Exercise, Problem, Returned, unit_of


def problem(
    about: str, rows: Sequence[int], writes: Sequence[bool], lines: int, policy: str
) -> Problem:
    """Accesses to a cache that is empty at first."""
    return Problem(
        about,
        {
            "rows": np.array(rows, np.int64),
            "writes": np.array(writes, bool),
            "lines": lines,
            "policy": policy,
        },
    )


def problems() -> Iterator[Problem]:
    """Small traces in which the two policies part, then Zipf's."""
    read = [False] * 8
    yield problem("a cache that is never full", [3, 5, 3, 5], read[:4], 2, "lru")
    yield problem("lru: a row that is used again stays", [1, 2, 1, 3, 1, 2], read[:6], 2, "lru")
    yield problem(
        "lru: changed rows are written when they leave", [1, 2, 3, 4], [True] * 4, 2, "lru"
    )
    yield problem(
        "a changed row that is read later is still changed",
        [1, 1, 2, 3, 4],
        [True, False, False, False, False],
        2,
        "lru",
    )
    yield problem(
        "a row that comes back is not changed any more",
        [1, 2, 3, 1, 2, 3],
        [True, False, False, False, False, False],
        2,
        "lru",
    )
    yield problem("lfu: the rarest leaves, not the oldest", [1, 1, 2, 3, 1, 2], read[:6], 2, "lfu")
    yield problem("lfu: of equals the oldest leaves", [1, 2, 3, 2, 4, 3], read[:6], 2, "lfu")
    yield problem(
        "lfu: of equals the one leaves whose last access is the longest ago",
        [1, 2, 2, 1, 3, 1],
        read[:6],
        2,
        "lfu",
    )
    yield problem(
        "lfu: a row that comes back counts from 1",
        [1, 1, 1, 2, 3, 3, 3, 3, 2, 2, 1, 2, 1],
        [False] * 13,
        2,
        "lfu",
    )
    yield problem("a cache of one line", [1, 1, 2, 1], [True, False, True, False], 1, "lru")
    yield problem("no access", [], [], 3, "lfu")
    for seed in range(6):
        rng = np.random.default_rng(seed)
        rows = (rng.zipf(1.3, 300) % 40).tolist()
        writes = (rng.random(300) < 0.3).tolist()
        policy = "lfu" if seed % 2 else "lru"
        yield problem(
            f"{policy}: a few rows very often, many now and then", rows, writes, 8, policy
        )


UNIT = unit_of(
    __file__,
    Exercise(
        function="cache",
        returned=(
            Returned("hits", "bool", "true or false for each access", ("access",)),
            Returned("written", "integer", "the rows that are written back", ("place",)),
        ),
        problems=problems,
        expected=cache,
    ),
)
