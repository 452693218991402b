"""Unit 6: does a student send every lookup to the ranks that have its row?"""

from collections.abc import Iterator, Sequence

import numpy as np

from neocpu.oracle.course.solutions.ranks import needs
from neocpu.oracle.course.unit import Exercise, Problem, Returned, unit_of
from neocpu.oracle.course.units.operators import (
    bucketize_case,
    bucketize_reference,
)
from neocpu.parallel.sharding.plan import place
from neocpu.tables.specs.specs import TableSpec

PLACE = ("lookup", "rank")


def problem(
    about: str, lengths: Sequence[int], rows: Sequence[int], block: int, ranks: int
) -> Problem:
    """Bags of a table of block * ranks rows."""
    return Problem(
        about,
        {
            "lengths": np.array(lengths, np.int64),
            "rows": np.array(rows, np.int64),
            "block": block,
            "ranks": ranks,
        },
    )


def problems() -> Iterator[Problem]:
    """Rows at the ends of blocks, empty bags, ranks that get nothing, one rank."""
    yield problem("two ranks of four rows", [2, 1], [1, 6, 4], 4, 2)
    yield problem("first and last rows of blocks", [4], [0, 3, 4, 7], 4, 2)
    yield problem("an empty bag between two", [2, 0, 2], [5, 0, 1, 5], 3, 2)
    yield problem("ranks that get nothing", [3], [8, 7, 8], 3, 4)
    yield problem("blocks of one row", [2, 2], [3, 0, 1, 3], 1, 4)
    yield problem("one rank: nothing changes", [1, 2], [4, 0, 2], 5, 1)
    yield problem("bags in which a row comes twice, in falling order", [4], [9, 9, 2, 0], 5, 2)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(0, 7, 12).tolist()
        block, ranks = int(rng.integers(2, 9)), int(rng.integers(2, 6))
        rows = rng.integers(0, block * ranks, sum(lengths)).tolist()
        yield problem("random bags", lengths, rows, block, ranks)


def cut_problem(about: str, scheme: str, rows: Sequence[int], home: int, ranks: int) -> Problem:
    """The rectangles of a table of 11 rows and 8 columns under a scheme of the package."""
    table = TableSpec("C", rows=11, dim=8, features=("C",))
    shards = place((table,), [scheme], ranks, min(ranks, 2)).shards
    rectangles = [(*shard.rows, *shard.cols, shard.rank) for shard in shards]
    return Problem(
        about,
        {
            "rectangles": np.array(rectangles, np.int64),
            "rows": np.array(rows, np.int64),
            "home": home,
            "ranks": ranks,
            "columns": table.dim,
        },
    )


def cut_problems() -> Iterator[Problem]:
    """Each scheme, seen from a rank that has the row and from one that has not."""
    yield cut_problem("a table on one rank, seen from another", "table_wise", [0, 10], 1, 2)
    yield cut_problem("rows cut in two, at their borders", "row_wise", [0, 5, 6, 10], 0, 2)
    yield cut_problem("columns cut in two", "column_wise", [3, 7], 1, 2)
    yield cut_problem("a copy on every rank", "data_parallel", [3, 7], 1, 2)
    yield cut_problem("no lookup", "row_wise", [], 0, 2)
    for home in (0, 3):
        for scheme in ("grid_shard", "row_wise", "column_wise", "table_row_wise", "data_parallel"):
            about = f"{scheme} on 4 ranks, all rows, seen from rank {home}"
            yield cut_problem(about, scheme, range(11), home, 4)


UNIT = unit_of(
    __file__,
    Exercise(
        function="bucketize",
        returned=(
            Returned(
                "lengths", "integer", "ranks * bags numbers, rank after rank", output="lengths"
            ),
            Returned("rows", "integer", "a number for each lookup", output="indices"),
        ),
        problems=problems,
        expected=bucketize_reference,
        as_case=bucketize_case,
    ),
    Exercise(
        function="needs",
        returned=(
            Returned("needed", "bool", "a row for each lookup, a column for each rank", PLACE),
        ),
        problems=cut_problems,
        expected=needs,
    ),
)
