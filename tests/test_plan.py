"""Is a plan whole, told well, and the same after saving?"""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.core.errors import ConfigError, PlanError
from neocpu.parallel.sharding.plan import Plan, choose_schemes, place, shard_bytes
from neocpu.parallel.sharding.schemes import SCHEMES, Shard
from neocpu.tables.specs.specs import TableSpec

TABLES = tuple(
    TableSpec(f"C{i}", 5 + 13 * i % 37, dim, (f"f{i}",))
    for i, dim in enumerate((16, 8, 64, 5, 1, 12, 16, 128))
)


@given(
    schemes=st.lists(st.sampled_from(list(SCHEMES)), min_size=len(TABLES), max_size=len(TABLES)),
    ranks=st.integers(1, 8),
    per_node=st.integers(1, 8),
)
def test_placed_plans_are_whole_and_survive_saving(
    schemes: list[str], ranks: int, per_node: int
) -> None:
    plan = place(TABLES, schemes, ranks, per_node)
    assert plan.check() is plan
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert sorted(shard for rank in range(ranks) for shard in plan.local(rank)) == list(plan.shards)
    assert all(list(plan.local(rank)) == sorted(plan.local(rank)) for rank in range(ranks))
    assert [plan.replicated(t) for t in range(len(TABLES))] == [
        s == "data_parallel" for s in schemes
    ]
    assert plan.ranks_per_node == min(per_node, ranks)


def test_table_wise_tables_are_spread_by_cost() -> None:
    tables = [
        TableSpec(f"t{i}", rows, 4, (f"f{i}",)) for i, rows in enumerate((60, 50, 40, 30, 20, 10))
    ]
    plan = place(tables, ["table_wise"] * 6, 2)
    # 60+30+20 | 50+40+10: largest first, to the emptier rank
    assert plan.rank_bytes() == [16 * 110, 16 * 100]
    dearest = place(tables, ["table_wise"] * 6, 2, costs=[1, 1, 1, 1, 1, 100])
    assert [s.table for s in dearest.local(dearest.of_table(5)[0].rank)] == [5]
    onto = place(tables[:3], ["table_wise", "table_wise", "table_row_wise"], 4, 2, costs=[8, 8, 1])
    assert {s.rank for s in onto.of_table(2)} in ({0, 1}, {2, 3})


def one(shards: list[Shard], scheme: str = "row_wise", ranks: int = 2) -> Plan:
    return Plan((TableSpec("C1", 10, 8, ("f",)),), (scheme,), tuple(shards), ranks, ranks)


@pytest.mark.parametrize(
    ("shards", "words"),
    [
        (
            [Shard(0, (0, 4), (0, 8), 0), Shard(0, (5, 10), (0, 8), 1)],
            "'C1': rows [4, 5), columns [0, 8) are on no rank",
        ),
        ([Shard(0, (0, 10), (0, 4), 0)], "'C1': rows [0, 10), columns [4, 8) are on no rank"),
        ([], "'C1': rows [0, 10), columns [0, 8) are on no rank"),
        (
            [Shard(0, (0, 6), (0, 8), 0), Shard(0, (5, 10), (0, 8), 1)],
            "rows [5, 6), columns [0, 8) are held more than once",
        ),
        (
            [Shard(0, (0, 10), (0, 8), 0), Shard(0, (0, 10), (0, 8), 1)],
            "held more than once, by ranks [0, 1]",
        ),
        ([Shard(0, (0, 11), (0, 8), 0)], "empty or outside"),
        ([Shard(0, (0, 0), (0, 8), 0)], "empty or outside"),
        ([Shard(0, (0, 10), (0, 8), 2)], "outside [0, 2)"),
        ([Shard(0, (0, 10), (0, 6), 0), Shard(0, (0, 10), (6, 8), 1)], "multiple of 4"),
        ([Shard(1, (0, 10), (0, 8), 0)], "belongs to no table"),
    ],
)
def test_a_broken_plan_names_table_and_gap(shards: list[Shard], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        one(shards).check()
    assert words in str(caught.value)


def test_data_parallel_is_whole_on_every_rank() -> None:
    whole = [Shard(0, (0, 10), (0, 8), rank) for rank in range(2)]
    one(whole, "data_parallel").check()
    with pytest.raises(PlanError, match="whole on every rank"):
        one(whole[:1], "data_parallel").check()
    with pytest.raises(PlanError, match="ranks per node"):
        replace(one(whole, "data_parallel"), ranks_per_node=3).check()
    with pytest.raises(PlanError, match="schemes for"):
        replace(one(whole), schemes=()).check()


def test_a_shard_has_fewer_numbers_than_2_to_the_63() -> None:
    huge = TableSpec("huge", 2**60, 8, ("h",))
    with pytest.raises(PlanError, match=r"'huge': 1,152,921,504,606,846,976 rows x 8 .*row_wise"):
        place([huge], ["table_wise"], 2)
    assert len(place([huge], ["row_wise"], 2).shards) == 2


def test_exact_names_win_then_the_first_pattern() -> None:
    spec = {"C*": "row_wise", "C3": "column_wise", "C[12]": "table_wise"}
    assert choose_schemes(TABLES[:4], spec) == ("row_wise", "row_wise", "row_wise", "column_wise")
    assert choose_schemes(TABLES[:3], {"C1": "row_wise"}) == ("auto", "row_wise", "auto")
    assert choose_schemes(TABLES[:2], "grid_shard") == ("grid_shard", "grid_shard")
    assert choose_schemes((), "auto") == ()


def test_misspelt_schemes_and_patterns_are_named() -> None:
    with pytest.raises(ConfigError, match=r"'row_wize' is no scheme; did you mean 'row_wise'\?"):
        choose_schemes(TABLES, "row_wize")
    with pytest.raises(ConfigError, match=r"no table matches 'D\*'; the tables are C0, C1"):
        choose_schemes(TABLES, {"D*": "row_wise"})


def test_a_saved_plan_that_is_none_is_refused() -> None:
    for data in ({}, {"tables": [{}]}, {"ranks": 1, "ranks_per_node": 1, "tables": [{"nme": "x"}]}):
        with pytest.raises(PlanError, match="not a saved plan"):
            Plan.from_dict(data)
    data = place(TABLES, ["row_wise"] * 8, 4).to_dict()
    del data["tables"][2]["shards"][1]
    with pytest.raises(PlanError, match="'C2'"):
        Plan.from_dict(data)


def test_replica_groups_hold_the_same() -> None:
    group = place(TABLES, list(SCHEMES)[:1] * 4 + list(SCHEMES)[1:5], 4, 2)
    plan = group.in_groups(2, 2)
    assert plan.ranks == 8 and len(plan.shards) == 2 * len(group.shards)
    assert plan.group == group
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert plan.text().endswith("2 replica groups of 4 ranks: each holds a copy of every table")
    # of a data_parallel table each rank uses its own copy
    assert plan.schemes[4] == "row_wise" and plan.replicated(6)
    serving = [[rank for rank in range(8) if plan.serves(t, rank, 5)] for t in (4, 6)]
    assert serving == [[4, 5, 6, 7], [5]]
    moved = replace(plan.shards[0], rank=3 - plan.shards[0].rank)
    with pytest.raises(PlanError, match=r"must hold what the first one holds, but Shard\(table=0"):
        replace(plan, shards=(moved, *plan.shards[1:])).check()
    with pytest.raises(PlanError, match=r"8 rank\(s\) are no 3 groups of equally many"):
        replace(plan, replica_groups=3).check()
    with pytest.raises(PlanError, match="groups of 4 ranks are no whole nodes of 3 ranks, nor"):
        group.in_groups(2, 3)
    # one group may have a smaller last node
    assert group.in_groups(1, 3).ranks_per_node == 3
    cached = replace(TABLES[0], format="bf16", cache_format="fp32")
    with pytest.raises(PlanError, match="copies of its bf16 rows would differ"):
        place([cached], ["row_wise"], 2).in_groups(2, 2)


def test_the_printed_plan_counts_optimizer_state() -> None:
    plan = place(
        [TableSpec("C1", 1000, 16, ("f",)), TableSpec("C2", 7, 4, ("g",))],
        ["row_wise", "data_parallel"],
        4,
    )
    assert shard_bytes(plan.tables[0], plan.of_table(0)[0], (0, 1)) == 250 * 17 * 4
    assert plan.rank_bytes((1, 0)) == [2 * 4 * (250 * 16 + 7 * 4)] * 4
    assert plan.text((0, 1)).splitlines() == [
        "table  scheme         ranks  rows x dim  bytes each",
        "C1     row_wise       0-3    1,000 x 16  17,000",
        "C2     data_parallel  0-3    7 x 4       140",
    ]
