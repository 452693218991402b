"""Do planners follow rows that are not alike? Curves, what they cost, and cuts along them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import BagColumn, FeatureColumn
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import SingleComm
from neocpu.plan.cost.cost import lookups_of
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.models import COST_MODELS
from neocpu.plan.cost.row_curves import curve_of
from neocpu.plan.cost.traffic.demand import MeanDemand, sample_cuts
from neocpu.plan.cost.traffic.shard_columns import ShardColumns
from neocpu.plan.cost.work import TableArrays, Workload, rectangles_of
from neocpu.plan.search.auto import make_plan
from neocpu.plan.search.pricing import answer_of_plan
from neocpu.plan.search.search import plan_tables
from neocpu.plan.search.trials import Trials, of_answer
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.before.datasets import converted
from neocpu.train.before.plans import plan_for_data
from tests import small_run
from tests.test_search import MACHINE

ROWS = 5000
TABLES = (TableSpec("hot", ROWS, 32, ("f",)), TableSpec("even", ROWS, 32, ("g",)))


def ranked_lookups(count: int, power: float, seed: int = 3) -> np.ndarray:
    """Rows of lookups of which row r is looked up as (r + 1)^-power, as a vocabulary by frequency
    numbers them.
    """
    weights = np.arange(1, ROWS + 1) ** -power
    rng = np.random.default_rng(seed)
    return rng.choice(ROWS, count, p=weights / weights.sum())


LOOKUPS = ranked_lookups(20_000, 1.05)
WORK = Workload(2048, {"hot": 40.0, "even": 1.0}, curves={"hot": curve_of(LOOKUPS, ROWS)})


def counted(plan: Plan, lookups: np.ndarray) -> np.ndarray:
    """Part of the lookups of table 0 that each rank gets."""
    shares = np.zeros(plan.ranks)
    for shard in plan.of_table(0):
        inside = (lookups >= shard.rows[0]) & (lookups < shard.rows[1])
        shares[shard.rank] += inside.mean() * (shard.shape[1] / plan.tables[0].dim)
    return shares


def test_rows_that_are_looked_up_alike_have_no_curve() -> None:
    uniform = np.random.default_rng(0).integers(0, ROWS, 10_000)
    assert curve_of(uniform, ROWS) is None
    assert curve_of(np.zeros(0, np.int64), ROWS) is None
    assert curve_of(np.zeros(9, np.int64), 1) is None
    assert curve_of(uniform // 2, ROWS) is not None


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=300), st.integers(61, 200), st.integers(2, 9)
)
def test_a_curve_is_near_its_lookups_and_its_blocks_hold_all_rows(
    rows: list[int], height: int, blocks: int
) -> None:
    lookups = np.array(rows)
    curve = curve_of(lookups, height)
    if curve is None:
        return
    at = np.arange(height + 1)
    share = np.searchsorted(np.sort(lookups), at) / lookups.size
    near = 1.36 / np.sqrt(lookups.size) + 1e-12
    assert (np.abs(curve.below(at) - share) <= near).all() or len(curve.rows) == 65
    assert (np.diff(curve.distinct_below(at, 40.0)) >= 0).all()
    assert curve.distinct_below(np.array([0, height]), 40.0).tolist() == [0.0, 1.0]
    for evenness in (0.0, 0.5, 1.0):
        edges = curve.edges(blocks, evenness)
        assert (edges[0], edges[-1]) == (0, height) and len(edges) <= blocks + 1
        assert (np.diff(edges) > 0).all()


def test_a_rectangle_costs_what_its_rows_are_asked() -> None:
    plan = make_plan(TABLES, {"hot": "row_wise", "even": "table_wise"}, 4, work=WORK)
    rectangles = rectangles_of(plan, WORK)
    arrays = TableArrays.of(TABLES, WORK)
    each = TableArrays(*(column[rectangles.table] for column in arrays))
    of_hot = rectangles.table == 0
    shares = counted(plan, LOOKUPS)
    # equal rows: the first rank has nearly all of the work
    assert shares[0] > 0.7
    np.testing.assert_allclose(rectangles.lookups_of(each)[of_hot], shares, atol=0.02)
    assert rectangles.lookups_of(each)[~of_hot] == pytest.approx([1.0])
    cuts = sample_cuts(4, WORK.batch, 4)
    demand = MeanDemand(TABLES, WORK.pooling, cuts, curves=WORK.curves)
    sent = demand.lookups(ShardColumns.of(plan)).sum(axis=0) / WORK.batch
    home = plan.of_table(1)[0].rank
    np.testing.assert_allclose(sent - (np.arange(4) == home), 40 * shares, atol=0.8)
    # hot rows repeat, so fewer distinct ones are theirs than lookups
    assert rectangles.distinct_of(each)[0] < rectangles.lookups_of(each)[0]
    by_bytes = [lookups_of(TABLES[0], shard, 4, False, WORK) for shard in plan.of_table(0)]
    np.testing.assert_allclose(np.array(by_bytes) / (2048 * 40), shares, atol=0.02)


@pytest.mark.parametrize("name", sorted(COST_MODELS))
def test_the_search_cuts_rows_into_equal_work(name: str) -> None:
    layout = Layout(4, 2)
    spec = {"hot": "row_wise, table_wise", "even": "auto"}
    model = COST_MODELS[name](MACHINE, TABLES, WORK, layout)
    answer = plan_tables(TABLES, spec, layout, model, WORK)
    shares = counted(answer.plan, LOOKUPS)
    # the other table's rank may have less of this one
    assert shares.max() < 0.4
    again = answer_of_plan(answer.plan, layout, model, WORK, spec=spec)
    assert again.seconds == pytest.approx(answer.seconds)
    assert answer.bound <= answer.seconds
    kept = of_answer(Trials(answer, Capacity()), 0)
    assert kept.alternative.seconds == pytest.approx(answer.seconds)
    alike = plan_tables(TABLES, spec, layout, model, Workload(2048, WORK.pooling))
    assert answer.seconds < answer_of_plan(alike.plan, layout, model, WORK).seconds


def test_row_wise_that_is_named_alone_has_equal_rows() -> None:
    layout = Layout(4, 2)
    model = COST_MODELS["neo"](MACHINE, TABLES, WORK, layout)
    answer = plan_tables(TABLES, {"hot": "row_wise", "even": "auto"}, layout, model, WORK)
    assert sorted(shard.rows for shard in answer.plan.of_table(0)) == [
        (first, first + ROWS // 4) for first in range(0, ROWS, ROWS // 4)
    ]
    again = answer_of_plan(answer.plan, layout, model, WORK)
    assert again.seconds == pytest.approx(answer.seconds)


def test_the_planner_that_counts_bytes_cuts_rows_into_equal_lookups() -> None:
    spec = {"hot": "row_wise, table_wise", "even": "auto"}
    work = Workload(2048, {"hot": 4000.0, "even": 1.0}, curves=WORK.curves)
    plan = make_plan(TABLES, spec, 4, work=work)
    assert counted(plan, LOOKUPS).max() < 0.27
    # where memory is short, equal rows are the finest cut
    row_bytes = 32 * 4 + 4
    tight = make_plan(TABLES, spec, 4, work=work, budget=row_bytes * ROWS * 2 // 4 + 4096)
    assert max(shard.shape[0] for shard in tight.of_table(0)) == ROWS // 4


def test_a_run_measures_how_its_rows_are_looked_up(tmp_path: Path) -> None:
    """Codes that are rows, most of them small, in a table that is worth cutting."""
    samples = 4000
    lookups = ranked_lookups(samples * 8, 1.05).astype(np.uint32)
    codes = {
        "one": BagColumn(lookups, np.full(samples, 8, np.int32)),
        "many": np.arange(samples, dtype=np.uint32) % 30,
    }
    log = tmp_path / "log.h5"
    columns = [FeatureColumn("one", hotness=0), FeatureColumn("many")]
    with DatasetWriter(log, ["a"], columns) as writer:
        writer.append(np.zeros(samples, np.float32), np.zeros((samples, 1), np.float32), codes)
    config = small_run.config_of(log, "data.rows_by=code", f"tables.one.rows={ROWS}")
    comm = SingleComm()
    data = converted(config, comm)
    assert data is not None
    curves = data.row_curves()
    assert set(curves) == {"one"}
    plan = plan_for_data(config, comm, data, 4)
    assert counted(plan, lookups).max() < 0.5
