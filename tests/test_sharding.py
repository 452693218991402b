"""Does every scheme hold every cell of a table exactly once, wherever it is cut?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.parallel.sharding.schemes import SCHEMES, RankLayout, Shard, column_blocks, row_blocks

LAYOUTS = st.integers(1, 8).flatmap(
    lambda ranks: st.builds(RankLayout, st.just(ranks), st.integers(1, ranks))
)


def cells(shards: list[Shard], rows: int, dim: int) -> np.ndarray:
    """How often each cell is held."""
    count = np.zeros((rows, dim), np.int64)
    for shard in shards:
        count[slice(*shard.rows), slice(*shard.cols)] += 1
    return count


@pytest.mark.parametrize("name", SCHEMES)
@given(layout=LAYOUTS, rows=st.integers(1, 40), dim=st.integers(1, 40))
def test_every_home_covers_the_table(name: str, layout: RankLayout, rows: int, dim: int) -> None:
    scheme = SCHEMES[name]
    for home in scheme.choices(layout):
        shards = scheme.cut(7, rows, dim, layout, home)
        assert (cells(shards, rows, dim) == (layout.ranks if name == "data_parallel" else 1)).all()
        assert all(s.table == 7 and 0 <= s.rank < layout.ranks and min(s.shape) > 0 for s in shards)
        assert all(s.cols[0] % 4 == 0 for s in shards)
        # at most one rectangle of a table on a rank
        assert len({s.rank for s in shards}) == len(shards)
        if scheme.homes == "node":
            assert {s.rank for s in shards} <= set(layout.nodes[home])
        if scheme.homes == "rank":
            assert [s.rank for s in shards] == [home]


def test_row_blocks_are_those_of_fbgemm() -> None:
    assert list(row_blocks(10, 4)) == [(0, 3), (3, 6), (6, 9), (9, 10)]
    # ranks 5 to 7 hold nothing
    assert list(row_blocks(9, 8)) == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 9)]
    assert list(row_blocks(2, 8)) == [(0, 1), (1, 2)]


def test_columns_are_cut_at_multiples_of_four() -> None:
    assert list(column_blocks(16, 4)) == [(0, 4), (4, 8), (8, 12), (12, 16)]
    assert list(column_blocks(20, 3)) == [(0, 8), (8, 16), (16, 20)]
    assert list(column_blocks(13, 2)) == [(0, 8), (8, 13)]
    assert list(column_blocks(6, 8)) == [(0, 4), (4, 6)]
    assert list(column_blocks(1, 8)) == [(0, 1)]


def test_the_last_node_may_be_smaller() -> None:
    assert RankLayout(7, 3).nodes == (range(3), range(3, 6), range(6, 7))
    grid = SCHEMES["grid_shard"].cut(0, 10, 12, RankLayout(7, 3), 0)
    assert grid == [
        Shard(0, (0, 4), (0, 4), 0),
        Shard(0, (4, 8), (0, 4), 1),
        Shard(0, (8, 10), (0, 4), 2),
        Shard(0, (0, 4), (4, 8), 3),
        Shard(0, (4, 8), (4, 8), 4),
        Shard(0, (8, 10), (4, 8), 5),
        Shard(0, (0, 10), (8, 12), 6),
    ]
