"""Does the search find plans that are whole, that fit, and that are better than simple ones?"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from neocpu.core.errors import ConfigError, PlanError
from neocpu.parallel.sharding.plan import Plan, PlanSpec, place
from neocpu.parallel.sharding.schemes import Shard
from neocpu.parallel.transport.comm import SingleComm
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.models import COST_MODELS
from neocpu.plan.cost.seconds import CostModel, StepSeconds, loads_of, step_seconds
from neocpu.plan.cost.work import Workload, rectangles_of
from neocpu.plan.files.plan_file import text as text_of_plan
from neocpu.plan.machines.machine import LinkPeak, Machine, MemoryPeak
from neocpu.plan.machines.unequal import UnequalRanks
from neocpu.plan.search import search as stages
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.bound import bounded
from neocpu.plan.search.cuts import ALL, RANK
from neocpu.plan.search.drafts import PlanDraft, build, lay, spread
from neocpu.plan.search.norms import Norm
from neocpu.plan.search.options import Options, SearchTask, options_of
from neocpu.plan.search.partition import PARTITIONERS
from neocpu.plan.search.pricing import answer_of_plan
from neocpu.plan.search.search import greedy, plan_tables
from neocpu.plan.search.trials import Trials
from neocpu.plan.tiers.limits import rank_limits
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.before.plans import make_plan
from neocpu.train.config import config as configs
from tests import recorded

MACHINE = Machine(
    nodes=4,
    ranks_per_node=2,
    hbm=MemoryPeak(10**7, 1e12),
    ddr=MemoryPeak(10**8, 5e10, shared="node"),
    ssd=MemoryPeak(10**10, 2e9, 1e6),
    host_device=LinkPeak(3e10),
    inside_node=LinkPeak(3e11, 1e-6),
    between_nodes=LinkPeak(2e10, 5e-6),
)
Shapes = list[tuple[int, int, int]]
SHAPES = st.lists(
    st.tuples(st.integers(1, 10**5), st.sampled_from((1, 4, 16, 40, 128, 256)), st.integers(1, 40)),
    min_size=1,
    max_size=8,
)
LAYOUTS = st.tuples(st.integers(1, 8), st.integers(1, 8)).map(
    lambda sizes: Layout(sizes[0], min(sizes))
)
SIX = [(10**5, 64, 20), (5000, 64, 1), (30, 64, 3), (40_000, 128, 1), (700, 16, 8), (90_000, 32, 2)]
ROUNDING = 1 + 1e-9


def model_of(
    shapes: Shapes, layout: Layout, name: str = "neo"
) -> tuple[CostModel, tuple[TableSpec, ...], Workload]:
    tables = tuple(
        TableSpec(f"t{i}", rows, dim, (f"f{i}",)) for i, (rows, dim, _) in enumerate(shapes)
    )
    pooling = {f"t{i}": float(hotness) for i, (_, _, hotness) in enumerate(shapes)}
    work = Workload(batch=512, pooling=pooling)
    return COST_MODELS[name](MACHINE, tables, work, layout), tables, work


def search(
    shapes: Shapes, layout: Layout, capacity: Capacity | None = None, name: str = "neo"
) -> Answer:
    model, tables, work = model_of(shapes, layout, name)
    return plan_tables(tables, "auto", layout, model, work, capacity)


def arrays_of(result: Any) -> Iterator[np.ndarray]:
    """The numbers in what a stage of the search returns."""
    if isinstance(result, PlanDraft):
        yield from (result.choice, result.node, result.item_piece, result.item_rank)
        yield from (result.seconds, result.bytes)
    elif isinstance(result, dict):
        yield from arrays_of([*result.values()])
    elif isinstance(result, list | tuple):
        for each in result:
            yield from arrays_of(each)
    elif isinstance(result, float | np.ndarray):
        yield np.asarray(result)


SHORT = Capacity(hbm=7 * 10**7)
MEMORIES = Capacity(10**7, 10**8, 10**9, placements=("auto",))


@pytest.mark.parametrize(
    ("case", "shapes", "layout", "capacity", "name"),
    [
        ("free", SIX, Layout(4, 2), Capacity(), "neo"),
        ("memories", SIX, Layout(6, 4), MEMORIES, "neo"),
        ("short", SIX * 3, Layout(4, 2), SHORT, "neo"),
        ("unsynchronised", SIX, Layout(4, 2), Capacity(hbm=3 * 10**7), "torchrec"),
        ("unequal", SIX * 3, Layout(4, 2), replace(SHORT, buffers=True), "neo"),
    ],
)
def test_each_stage_finds_what_was_recorded(
    case: str,
    shapes: Shapes,
    layout: Layout,
    capacity: Capacity,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries: list[recorded.Entry] = []

    def noted(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keys: Any) -> Any:
            result = function(*args, **keys)
            result = [*result] if isinstance(result, Iterator) else result
            for array in arrays_of(result):
                entries.append((f"{stage} {array.shape}", recorded.summary(array)))
            return result

        return call

    for stage in ("priced_candidates", "ranges_of", "bounded", "starts", "improve"):
        monkeypatch.setattr(stages, stage, noted(stage, getattr(stages, stage)))
    monkeypatch.setattr(stages.Filled, "drafts", noted("filled", stages.Filled.drafts))
    model, tables, work = model_of(shapes, layout, name)
    spec: PlanSpec = "auto"
    pins = {}
    if case == "unequal":  # and a table that has its rectangles, another that has its ranks
        slow = (UnequalRanks("1", 0.8, 0.5), UnequalRanks("2", 1.0, 2.0))
        capacity = replace(capacity, unequal=slow)
        work = replace(work, pins={"t3": (1, 2)})
        model = StepSeconds(replace(MACHINE, unequal=slow), tables, work, layout)
        spec = {"t1": "row_wise"}
        pins = {1: [Shard(1, (0, 1000), (0, 64), 0), Shard(1, (1000, 5000), (0, 64), 3)]}
    answer = plan_tables(tables, spec, layout, model, work, capacity, pins)
    shown = recorded.lines_of(text_of_plan(answer.plan, answer.placements))
    seconds = [1e3 * answer.seconds, 1e3 * answer.bound]
    recorded.check(f"stages of a search, {case}", [*entries, *shown, ("ms", seconds)])


@settings(max_examples=15)
@given(shapes=SHAPES, layout=LAYOUTS, name=st.sampled_from(sorted(COST_MODELS)))
def test_the_answer_is_a_whole_plan_and_its_price(
    shapes: Shapes, layout: Layout, name: str
) -> None:
    answer = search(shapes, layout, name=name)
    plan = answer.plan
    assert plan.shards == tuple(sorted(plan.shards))
    loads = loads_of(answer.model, answer.rectangles, layout.ranks)
    np.testing.assert_allclose(answer.loads, loads, rtol=1e-12)
    np.testing.assert_allclose(answer.seconds, step_seconds(answer.model, loads), rtol=1e-12)
    for ours, expected in zip(answer.rectangles, rectangles_of(plan)):
        np.testing.assert_array_equal(ours, expected)
    assert answer.memory[:, 0].tolist() == plan.rank_bytes(answer.work.state_floats)
    assert answer.bound <= answer.seconds
    again = search(shapes, layout, name=name)
    assert again.plan == plan
    assert again.seconds == answer.seconds


def test_the_norm_of_a_draft_is_that_of_its_loads() -> None:
    draft: Any = SimpleNamespace(seconds=np.array([[1e-9, 4.0], [3e-9, 4.0], [0.0, 5.0]]))
    norms = [float(np.linalg.norm(phase, 8)) for phase in draft.seconds.T]
    assert Norm(draft, 3).now == pytest.approx(sum(norms))
    assert Norm(draft, 3).heat().sum() == pytest.approx(sum(norms))


@settings(max_examples=12)
@given(shapes=SHAPES, layout=LAYOUTS, name=st.sampled_from(sorted(COST_MODELS)))
def test_never_worse_than_any_heuristic(shapes: Shapes, layout: Layout, name: str) -> None:
    model, tables, work = model_of(shapes, layout, name)
    best = plan_tables(tables, "auto", layout, model, work).seconds
    heuristics = [greedy(tables, "auto", layout, model, work, None).plan]
    for scheme in ("table_wise", "row_wise", "data_parallel"):
        heuristics.append(
            place(tables, [scheme] * len(tables), layout.ranks, layout.ranks_per_node)
        )
    for plan in heuristics[:2]:
        assert best <= answer_of_plan(plan, layout, model, work).seconds * ROUNDING
    options = options_of(
        SearchTask(tables, ["table_wise"] * len(tables), layout, model, work, Capacity())
    )
    limits = rank_limits(Capacity(), tables, work, layout.ranks)
    laid = lay(options, layout, limits, options.start[:-1])
    assert laid is not None
    for partitioner in PARTITIONERS.values():
        draft = build(options, layout, limits, laid, partitioner)
        assert draft is not None
        assert best <= (model.fixed_seconds + draft.value) * ROUNDING


def every_plan(options: Options, layout: Layout, limits: np.ndarray) -> float:
    """Seconds of the best plan, by looking at all of them; infinite where none fits."""
    ways: list[list[tuple[np.ndarray, np.ndarray]]] = []
    for table in range(options.start.size - 1):
        of_table = []
        for candidate in options.of_table(table):
            home = options.home[candidate]
            if home == RANK:
                pieces = options.repeated(candidate)
                homes = product(range(layout.ranks), repeat=pieces.size)
                spreads = [(np.array(ranks), pieces) for ranks in homes]
            elif home == ALL:
                spreads = [tuple(spread(options, candidate, 0, layout))]
            else:
                nodes = range(options.first_node[candidate], options.last_node[candidate])
                spreads = [tuple(spread(options, candidate, node, layout)) for node in nodes]
            for ranks, pieces in spreads:
                load = np.zeros((layout.ranks, options.piece_seconds.shape[1]))
                size = np.zeros(limits.shape)
                np.add.at(load, ranks, options.seconds_on(ranks, pieces))
                np.add.at(size, ranks, options.piece_bytes[pieces])
                of_table.append((load, size))
        ways.append(of_table)
    best = np.inf
    for chosen in product(*ways):
        if (sum(size for _, size in chosen) <= limits * ROUNDING).all():
            best = min(best, options.objective(sum(load for load, _ in chosen)))
    return float(best)


SMALL = st.lists(
    st.tuples(st.integers(1, 5000), st.sampled_from((4, 16, 64, 128)), st.integers(1, 40)),
    min_size=1,
    max_size=2,
)


@settings(max_examples=12)
@given(
    shapes=SMALL,
    layout=st.sampled_from([Layout(2, 2), Layout(2, 1), Layout(3, 3)]),
    crowding=st.sampled_from((1.0, 1.0, 1.5)),
)
def test_the_bound_holds_and_the_search_comes_close_in_small_cases(
    shapes: Shapes, layout: Layout, crowding: float
) -> None:
    model, tables, work = model_of(shapes, layout)
    model.crowding = crowding  # ranks for each core
    options = options_of(
        SearchTask(tables, ["auto"] * len(tables), layout, model, work, Capacity())
    )
    limits = rank_limits(Capacity(), tables, work, layout.ranks)
    exact = every_plan(options, layout, limits)
    answer = plan_tables(tables, "auto", layout, model, work)
    found = answer.seconds - model.fixed_seconds
    assert bounded(options, layout, limits).seconds <= exact * ROUNDING
    assert exact <= found * ROUNDING
    assert found <= 1.1 * exact


@settings(max_examples=4)
@given(
    shapes=st.lists(
        st.tuples(st.integers(10, 5000), st.sampled_from((4, 16, 64)), st.integers(1, 40)),
        min_size=2,
        max_size=3,
    ),
    layout=st.sampled_from([Layout(2, 2), Layout(3, 3)]),
    room=st.sampled_from((0.0, 0.7, 1.5)),
)
def test_the_solver_agrees(shapes: Shapes, layout: Layout, room: float) -> None:
    pytest.importorskip("scipy", reason="scipy: the exact yardstick")
    from tests.exact_plans import fewest_seconds

    model, tables, work = model_of(shapes, layout)
    total = sum(table.rows * table.row_bytes(table.dim, work.state_floats) for table in tables)
    hbm = int(total / layout.ranks * room)
    capacity = Capacity(hbm=hbm, memories=("hbm", "ddr"), placements=("auto",))
    options = options_of(SearchTask(tables, ["auto"] * len(tables), layout, model, work, capacity))
    limits = rank_limits(capacity, tables, work, layout.ranks)
    exact = fewest_seconds(options, layout, limits, gap=1e-4)
    assert bounded(options, layout, limits).seconds <= exact * (1 + 2e-4)
    answer = plan_tables(tables, "auto", layout, model, work, capacity)
    found = answer.seconds - model.fixed_seconds
    assert exact <= found * (1 + 2e-4)
    event(f"search above exact: {int(100 * (found / exact - 1) + 0.5)} %")


@pytest.mark.parametrize("scheme", ["table_wise", "auto"])
def test_the_solver_finds_the_best_of_all_plans(scheme: str) -> None:
    pytest.importorskip("scipy", reason="scipy: the exact yardstick")
    from tests.exact_plans import fewest_seconds

    layout = Layout(2, 2)
    model, tables, work = model_of([(3000, 64, 30), (3000, 64, 30)], layout)
    options = options_of(SearchTask(tables, [scheme] * 2, layout, model, work, Capacity()))
    limits = rank_limits(Capacity(), tables, work, layout.ranks)
    exact = fewest_seconds(options, layout, limits, gap=1e-6)
    assert exact == pytest.approx(every_plan(options, layout, limits), rel=1e-5)


def test_what_does_not_fit_is_split_placed_below_or_refused() -> None:
    shapes = [(10**4, 64, 30), (10**4, 64, 1), (10**4, 64, 1), (2000, 128, 40)]
    layout = Layout(4, 4)
    sizes = [rows * (4 * dim + 4) for rows, dim, _ in shapes]
    half = sum(sizes) // 8
    everywhere = ("hbm", "ddr", "ssd")
    answer = search(shapes, layout, Capacity(hbm=half, memories=everywhere, placements=("auto",)))
    assert (answer.memory[:, 0] <= half).all()
    assert any(name != "hbm" for name in answer.placements)
    # the tables that a step reads most keep the fast memory
    assert answer.placements[0] == answer.placements[3] == "hbm"
    assert answer.bound <= answer.seconds

    total = sum(sizes) // 4 + 10**5
    whole = search(shapes, layout, Capacity(total=total))
    assert max(whole.plan.rank_bytes((0, 1))) <= total
    with pytest.raises(PlanError, match=r"no plan was found that fits.*bytes in hbm"):
        search(shapes, layout, Capacity(hbm=half))


def test_rows_go_to_ssd_where_nothing_else_has_room() -> None:
    shapes = [(10**5, 64, 2), (10**4, 64, 30)]
    size = 10**4 * 260
    capacity = Capacity(
        hbm=size, ddr=2 * size, memories=("hbm", "ddr", "ssd"), placements=("auto",)
    )
    answer = search(shapes, Layout(2, 2), capacity)
    assert answer.placements[0] == "hbm_over_ddr_over_ssd"
    assert (answer.memory[:, :2] <= [size, 2 * size]).all()


def test_row_scaled_tables_are_not_cut_by_columns() -> None:
    layout = Layout(4, 2)
    tables = [TableSpec("a", 100, 128, ("f",), format="int8", cache_format="fp32")]
    work = Workload(batch=4096, pooling={"a": 50.0})
    model = StepSeconds(MACHINE, tables, work, layout)
    options = options_of(SearchTask(tables, ["auto"], layout, model, work, Capacity()))
    assert (options.parts == 1).all()
    assert plan_tables(tables, "auto", layout, model, work).plan.check()


def test_named_schemes_are_kept() -> None:
    layout = Layout(4, 2)
    shapes = [(100, 64, 3)] * 8
    model, tables, work = model_of(shapes, layout)
    schemes = [
        "row_wise",
        "column_wise",
        "data_parallel",
        "table_row_wise",
        "table_column_wise",
        "grid_shard",
        "table_wise",
        "table_wise",
    ]
    spec = {table.name: scheme for table, scheme in zip(tables, schemes)}
    answer = plan_tables(tables, spec, layout, model, work)
    assert list(answer.plan.schemes) == schemes
    assert {shard.rank for shard in answer.plan.of_table(1)} <= set(range(4))
    with pytest.raises(ConfigError, match="rowwise"):
        plan_tables(tables, "rowwise", layout, model, work)


def test_alternatives_are_priced_as_their_plans() -> None:
    layout = Layout(4, 2)
    answer = search([(5000, 64, 20), (100, 16, 1), (3000, 128, 9), (10, 8, 2)], layout)
    plan = answer.plan
    for table in range(4):
        trials = Trials(answer, answer.budget).of_table(table)
        others = [trial.alternative for trial in trials]
        assert [other.seconds for other in others] == sorted(other.seconds for other in others)
        kept = [shard for shard in plan.shards if shard.table != table]
        spec = plan.tables[table]
        for other in others:
            whole = Shard(table, (0, spec.rows), (0, spec.dim), other.home)
            copies = [replace(whole, rank=rank) for rank in range(4)]
            cut = {"table_wise": [whole], "data_parallel": copies}.get(other.scheme)
            if cut is None:
                continue
            schemes = (*plan.schemes[:table], other.scheme, *plan.schemes[table + 1 :])
            changed = replace(plan, schemes=schemes, shards=tuple(sorted(kept + cut)))
            price = answer_of_plan(changed, layout, answer.model, answer.work)
            assert other.seconds == pytest.approx(price.seconds)
            assert other.missing_bytes == 0
    tight = Trials(answer, Capacity(hbm=100_000)).of_table(0)
    assert any(trial.alternative.missing_bytes > 0 for trial in tight)


# ---- published models ----


def shared(name: str) -> Any:
    """A file of the test data."""
    folder = os.environ.get("NEOCPU_TEST_DATA")
    path = Path(folder or ".") / name
    if not folder or not path.exists():
        pytest.skip(f"NEOCPU_TEST_DATA has no {name}")
    return json.loads(path.read_text())


def imbalance(plan: Plan, work: Workload) -> float:
    """Lookups that the ranks receive, the most over the mean; copies receive none."""
    received = np.zeros(plan.ranks)
    for shard in plan.shards:
        if not plan.replicated(shard.table):
            spec = plan.tables[shard.table]
            part = shard.shape[0] / spec.rows
            received[shard.rank] += work.pooling[spec.name] * part * work.batch
    return float(received.max() / received.mean())


def test_the_traced_plan_is_improved() -> None:
    """MLPerf DLRMv2 on 8 ranks: one rank of the traced plan receives 3.9 times the mean."""
    trace = shared("param_dlrm_8rank_decoded.json")
    shapes = shared("table_configs.json")["mlperf_dlrmv2"]
    tables = [
        TableSpec(f"t{i}", rows, trace["config"]["dim"], (f"f{i}",))
        for i, rows in enumerate(shapes["rows"])
    ]
    pooling = {f"t{i}": float(count) for i, count in enumerate(shapes["multi_hot_sizes"])}
    work = Workload(batch=8 * trace["config"]["local_batch"], pooling=pooling)
    layout = Layout(8, 8)
    copied = trace["data_parallel_tables"]
    shards = [
        Shard(table, (0, tables[table].rows), (0, 16), int(rank))
        for rank, numbers in trace["plan_table_wise"].items()
        for table in numbers
    ]
    shards += [Shard(t, (0, tables[t].rows), (0, 16), rank) for t in copied for rank in range(8)]
    schemes = tuple("data_parallel" if t in copied else "table_wise" for t in range(26))
    traced = Plan(tuple(tables), schemes, tuple(sorted(shards)), 8, 8).check()
    assert imbalance(traced, work) == pytest.approx(3.92, abs=0.01)

    model = StepSeconds(MACHINE, tables, work, layout)
    answer = plan_tables(tables, "auto", layout, model, work)
    assert answer.seconds < answer_of_plan(traced, layout, model, work).seconds
    # 100 of the 206 lookups of a sample are one table's, and 27 another's
    assert imbalance(answer.plan, work) < 1.35


# ---- training ----

CONFIG = """
[data]
train = "none.h5"
[parallel]
planner = "search"
[tables]
a = { rows = 1000 }
b = { rows = 50, features = ["b", "c"] }
"""


def test_a_config_chooses_its_planner_and_machine(tmp_path: Path) -> None:
    comm = SingleComm()
    plan = make_plan(configs.loads(CONFIG), comm, {}, 4)
    assert plan.ranks == 4
    machine = tmp_path / "box.toml"
    machine.write_text("""name = "box"
[hbm]
capacity_bytes = 1_000_000
bandwidth_bytes_per_s = 1e9
[inside_node]
bandwidth_bytes_per_s = 1e8
[compute]
fp32_flops_per_s = 1e9
""")
    named = configs.loads(CONFIG, overrides=[f"parallel.machine={machine}"])
    assert make_plan(named, comm, {}, 4).check()
    lost = configs.loads(CONFIG, overrides=["parallel.machine=nowhere.toml"])
    with pytest.raises(ConfigError, match=r"nowhere.toml: cannot read the machine"):
        make_plan(lost, comm, {}, 4)
    with pytest.raises(ConfigError, match=r"parallel.planner"):
        configs.loads(CONFIG, overrides=["parallel.planner=best"])
    small = configs.loads(CONFIG, overrides=["parallel.memory=100"])
    with pytest.raises(PlanError, match="no plan was found that fits"):
        make_plan(small, comm, {}, 4)
