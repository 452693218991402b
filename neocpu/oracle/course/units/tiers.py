"""Unit 9: does a student's cache keep the right rows, and lose no change?"""

from collections.abc import Iterator, Sequence

import numpy as np

from neocpu.oracle.course.solutions.tiers import cache
from neocpu.oracle.course.unit import CourseUnit, Exercise, Problem, Returned, Slip


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


UNIT = CourseUnit(
    name="tiers",
    title="memory tiers",
    reads="units 4 and 8; dictionaries",
    exercises=(
        Exercise(
            function="cache",
            returned=(
                Returned("hits", "bool", "true or false for each access", ("access",)),
                Returned("written", "integer", "the rows that are written back", ("place",)),
            ),
            problems=problems,
            expected=cache,
            slips=(
                Slip(
                    "the row that came first leaves, used again or not (FIFO)",
                    "every access makes a row the newest, a hit too",
                    (("        last[row] = now\n", "        last.setdefault(row, now)\n"),),
                ),
                Slip(
                    "the newest row leaves",
                    "the row whose last access is the longest ago has the least time",
                    (("key=lambda old: last[old])", "key=lambda old: -last[old])"),),
                ),
                Slip(
                    "lfu is done as lru",
                    "lfu: the fewest accesses; only among equals the oldest",
                    (
                        (
                            'if policy == "lru" else min(by_age, key=lambda old: count[old])',
                            "",
                        ),
                    ),
                ),
                Slip(
                    "lfu: of equals the row leaves that came first",
                    "a dictionary keeps the order in which keys came; take the least "
                    "(count, last access)",
                    (("min(by_age, key=lambda old: count", "min(last, key=lambda old: count"),),
                ),
                Slip(
                    "lfu counts go on when a row has left",
                    "delete the count with the row: it counts from 1 when it comes back",
                    (("del last[leaving], count[leaving]", "del last[leaving]"),),
                ),
                Slip(
                    "a row that leaves is written back, changed or not",
                    "only rows that were changed since they came are written",
                    (
                        (
                            (
                                "            if leaving in changed:\n"
                                "                written.append(leaving)\n"
                                "                changed.remove(leaving)\n"
                            ),
                            (
                                "            written.append(leaving)\n"
                                "            changed.discard(leaving)\n"
                            ),
                        ),
                    ),
                ),
                Slip(
                    "changed rows that are left at the end are lost",
                    "write back what is changed and still in the cache, by number",
                    (("    written += sorted(changed)\n", ""),),
                ),
                Slip(
                    "changed rows that leave are lost",
                    "a row that was changed is written back before its line is given away",
                    (("                written.append(leaving)\n", ""),),
                ),
                Slip(
                    "a row that is read after a change counts as unchanged",
                    "a read leaves the mark of a change as it is",
                    (
                        (
                            "            changed.add(row)\n",
                            (
                                "            changed.add(row)\n"
                                "        else:\n"
                                "            changed.discard(row)\n"
                            ),
                        ),
                    ),
                ),
                Slip(
                    "a row that was written back still counts as changed when it comes again",
                    "take the mark away with the row",
                    (("                changed.remove(leaving)\n", ""),),
                ),
                Slip(
                    "one line stays empty",
                    "a row leaves only when all lines are taken, before the new one comes",
                    (("len(last) == lines", "len(last) == max(lines - 1, 1)"),),
                ),
            ),
        ),
    ),
    hints="""\
A dictionary from row to the time of its last access is the cache: its keys are the rows that
are there. Two more things are kept of each: how often it was used, and whether it was changed.

On a miss, and only if the cache is full, one row leaves: first choose it, then write it back if
it was changed, then delete all that is kept of it.

For lfu take min over (count, last access).
""",
)
