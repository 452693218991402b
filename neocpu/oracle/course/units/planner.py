"""Unit 8: is a student's plan possible, and as good as the greedy one?"""

from collections.abc import Iterator, Sequence

import numpy as np

from neocpu.core.types import Elements
from neocpu.oracle.course.solutions.planner import place
from neocpu.oracle.course.unit import (
    Arguments,
    Exercise,
    Problem,
    Returned,
    unit_of,
)


def plan_fault(arguments: Arguments, answer: dict[str, Elements]) -> str:
    """Why a plan is none, or is slower than the greedy one; "" where it is as good or better."""
    owner = answer["owner"]
    seconds, sizes = arguments["seconds"], arguments["sizes"]
    ranks, room = arguments["ranks"], arguments["room"]
    if owner.shape != seconds.shape:
        return f"owner has the shape {list(owner.shape)}, expected {list(seconds.shape)}"
    for table in np.flatnonzero((owner < 0) | (owner >= ranks)):
        return f"table {table} is on rank {owner[table]}; there are the ranks 0 to {ranks - 1}"
    taken = np.bincount(owner, weights=sizes, minlength=ranks)
    if taken.max(initial=0) > room:
        rank = int(np.argmax(taken))
        return f"rank {rank} has tables of {taken[rank]:g} bytes, but room for {room:g} only"
    load = np.bincount(owner, weights=seconds, minlength=ranks)
    greedy = np.bincount(place(seconds, sizes, ranks, room), weights=seconds, minlength=ranks)
    if load.max() > greedy.max() * (1 + 1e-9):
        rank = int(np.argmax(load))
        return (
            f"rank {rank} takes {load[rank]:.6g} seconds; the greedy way's slowest rank takes "
            f"{greedy.max():.6g}"
        )
    return ""


def problem(
    about: str, seconds: Sequence[float], sizes: Sequence[int], ranks: int, room: int
) -> Problem:
    """Tables to be placed."""
    return Problem(
        about,
        {
            "seconds": np.array(seconds, np.float64),
            "sizes": np.array(sizes, np.int64),
            "ranks": ranks,
            "room": room,
        },
    )


def problems() -> Iterator[Problem]:
    """Orders that fool round robin, and rooms that fool the greedy one that does not look."""
    yield problem("four tables on two ranks", [4, 3, 2, 1], [1, 1, 1, 1], 2, 10)
    yield problem("small tables first", [1, 1, 1, 1, 4], [1] * 5, 2, 10)
    yield problem("large and small by turns", [9, 1, 8, 1, 7, 1], [1] * 6, 2, 10)
    yield problem("one rank", [3, 1], [2, 2], 1, 4)
    yield problem("more ranks than tables", [3, 1], [2, 2], 4, 4)
    yield problem(
        "a quick table that takes most of a rank's room", [5, 4, 3, 2], [1, 9, 5, 4], 2, 10
    )
    yield problem("many bytes and few seconds", [1, 2, 3, 4], [8, 1, 1, 1], 2, 9)
    yield problem("tables that take no time", [0, 0, 2, 2], [1, 1, 1, 1], 2, 4)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        seconds = rng.pareto(1.2, 26) + 0.1
        sizes = rng.integers(1, 40, 26)
        room = int(sizes.sum() / 4 * 1.3) + 20
        yield problem(
            "26 tables of very different sizes", seconds.tolist(), sizes.tolist(), 4, room
        )


LOOP = 'for table in np.argsort(-seconds, kind="stable"):'

UNIT = unit_of(
    __file__,
    Exercise(
        function="place",
        returned=(Returned("owner", "integer", "a rank for each table", ("table",)),),
        problems=problems,
        expected=place,
        fault=plan_fault,
    ),
)
