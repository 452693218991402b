"""Does the automatic plan balance, fit and explain?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.core.errors import ConfigError, PlanError
from neocpu.parallel.sharding.schemes import SCHEMES, Shard
from neocpu.plan.cost.cost import shard_cost
from neocpu.plan.cost.work import Workload
from neocpu.plan.search.auto import make_plan
from neocpu.tables.specs.specs import TableSpec

KAGGLE = (
    1460,
    583,
    10131227,
    2202608,
    305,
    24,
    12517,
    633,
    3,
    93145,
    5683,
    8351593,
    3194,
    27,
    14992,
    5461306,
)
TABLES = tuple(TableSpec(f"C{i}", rows, 16, (f"f{i}",)) for i, rows in enumerate(KAGGLE, 1))
BYTES = sum(KAGGLE) * 17 * 4


@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(
        st.tuples(st.integers(1, 10**7), st.sampled_from((1, 4, 16, 40, 128))), max_size=12
    ),
    ranks=st.integers(1, 8),
    per_node=st.none() | st.integers(1, 8),
)
def test_automatic_plans_are_whole_and_repeatable(
    seed: int, sizes: list[tuple[int, int]], ranks: int, per_node: int | None
) -> None:
    tables = [TableSpec(f"t{i}", rows, dim, (f"f{i}",)) for i, (rows, dim) in enumerate(sizes)]
    work = Workload(batch=1 + seed % 5000, pooling={"t0": seed % 40})
    plan = make_plan(tables, "auto", ranks, per_node, work)
    assert plan == make_plan(tables, "auto", ranks, per_node, work)
    assert set(plan.schemes) <= set(SCHEMES)


def test_small_tables_are_replicated_and_large_ones_spread() -> None:
    plan = make_plan(TABLES, "auto", 4)
    by_name = dict(zip([t.name for t in TABLES], plan.schemes))
    assert by_name["C9"] == by_name["C6"] == "data_parallel"
    assert by_name["C3"] == by_name["C12"] == "table_wise"
    # The four largest tables are on four ranks.
    assert len({plan.of_table(t)[0].rank for t in (2, 3, 11, 15)}) == 4


def test_a_table_that_outweighs_all_others_is_cut() -> None:
    tables = [
        TableSpec("big", 40_000_000, 128, ("a",)),
        *(TableSpec(f"t{i}", 10**5, 128, (f"b{i}",)) for i in range(6)),
    ]
    plan = make_plan(tables, "auto", 4, work=Workload(pooling={"big": 50}))
    assert plan.schemes[0] != "table_wise"
    assert {shard.rank for shard in plan.of_table(0)} == {0, 1, 2, 3}


@pytest.mark.parametrize("slack", [1.03, 1.2, 2.0])
def test_the_budget_is_kept(slack: float) -> None:
    budget = int(BYTES / 4 * slack)
    plan = make_plan(TABLES, "auto", 4, budget=budget)
    assert max(plan.rank_bytes((0, 1))) <= budget


def test_what_does_not_fit_is_named_with_numbers() -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(TABLES, "auto", 4, budget=BYTES // 5)
    message = str(caught.value)
    assert f"all tables with their optimizer state take {BYTES:,} bytes" in message
    assert f"4 rank(s) have {BYTES // 5:,} each" in message
    assert "use more ranks" in message


def test_fixed_schemes_are_obeyed() -> None:
    plan = make_plan(TABLES, {"C1*": "row_wise", "C3": "column_wise"}, 3)
    assert all(s == "row_wise" for t, s in zip(TABLES, plan.schemes) if t.name.startswith("C1"))
    assert plan.schemes[2] == "column_wise"
    with pytest.raises(ConfigError, match="no scheme"):
        make_plan(TABLES, "rowwise", 2)
    with pytest.raises(PlanError, match="at least 1"):
        make_plan(TABLES, "auto", 2, 0)


def test_costs_follow_the_written_formulas() -> None:
    spec = TableSpec("t", 1000, 16, ("a", "b"))
    work = Workload(100, {"t": 3.0}, (0, 1))
    whole = shard_cost(spec, Shard(0, (0, 1000), (0, 16), 0), 2, False, work)
    assert whole.compute == 2 * 4 * 16 * 600 + 8 * 17 * 600
    assert whole.communication == 8 * 600 + 8 * 200 * 16
    assert whole.memory == 1000 * 17 * 4
    half = shard_cost(spec, Shard(0, (0, 500), (0, 16), 0), 2, False, work)
    assert half.compute == whole.compute / 2
    # There is a pooled output for each bag, however many rows the shard has.
    assert half.communication == 8 * 300 + 12 * 200 * 16
    assert shard_cost(spec, Shard(0, (0, 1000), (0, 16), 0), 1, False, work).communication == 0


def test_replica_groups_cost_what_copies_cost() -> None:
    tables = (TableSpec("t", 1000, 16, ("a", "b")),)
    work = Workload(400, {"t": 3.0}, (0, 1))
    whole = Shard(0, (0, 1000), (0, 16), 0)
    copied = shard_cost(tables[0], whole, 4, True, work)
    # a table of a group of one rank has a copy on every rank
    assert shard_cost(tables[0], whole, 1, False, work.of_group(tables, 4)) == copied
    assert shard_cost(tables[0], whole, 2, True, work.of_group(tables, 2)) == copied
    alone = shard_cost(tables[0], whole, 2, False, Workload(200, {"t": 3.0}, (0, 1)))
    grouped = shard_cost(tables[0], whole, 2, False, work.of_group(tables, 2))
    # its 1,000 rows are touched in both groups, and by all 1,200 lookups of one
    assert grouped.communication - alone.communication == 8 * 17 * 1000 + 4 * 18 * 1000
