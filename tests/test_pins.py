"""Are tables kept to the ranks and schemes that are named for them, by every planner?"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.core.errors import ConfigError, PlanError
from neocpu.parallel.sharding.pins import named_ranks
from neocpu.parallel.sharding.plan import choose_schemes
from neocpu.parallel.sharding.schemes import SCHEMES
from neocpu.parallel.transport.comm import SingleComm
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.models import COST_MODELS
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.options import SearchTask, options_of
from neocpu.plan.search.planners import planner_of
from neocpu.plan.tiers.limits import rank_limits
from neocpu.plan.tiers.placements import Capacity
from neocpu.train.before.plans import make_plan
from neocpu.train.config import config as configs
from tests.test_search import MACHINE, ROUNDING, SHAPES, SMALL, Shapes, every_plan, model_of

# one scheme, several, or any; a pinned table cannot be on all ranks
CHOICES = st.sampled_from(
    ("auto", "row_wise", "grid_shard", "table_wise, column_wise", "row_wise, table_row_wise", "*")
)


def planned(
    planner: str,
    shapes: Shapes,
    layout: Layout,
    pins: dict[str, tuple[int, ...]],
    spec: str | dict[str, str] = "auto",
    capacity: Capacity | None = None,
) -> Answer:
    """A planner's answer where tables t0, t1, ... are pinned."""
    _, tables, work = model_of(shapes, layout)
    work = replace(work, pins=pins)
    model = COST_MODELS["neo"](MACHINE, tables, work, layout)
    return planner_of(planner)(tables, spec, layout, model, work, capacity)


@settings(max_examples=16)
@given(data=st.data(), shapes=SHAPES, planner=st.sampled_from(("search", "greedy")))
def test_pins_and_lists_of_schemes_are_kept(
    data: st.DataObject, shapes: Shapes, planner: str
) -> None:
    ranks = data.draw(st.integers(1, 8))
    layout = Layout(ranks, data.draw(st.integers(1, ranks)))
    names = [f"t{number}" for number in range(len(shapes))]
    some = st.frozensets(st.integers(0, ranks - 1), min_size=1)
    pins = {n: tuple(sorted(data.draw(some))) for n in names if data.draw(st.booleans())}
    anything = ", ".join(n for n in SCHEMES if n != "data_parallel")
    spec = {name: data.draw(CHOICES).replace("*", anything) for name in names}
    # all memory is twice what the tables need at most, for those of each rank too
    size = sum(rows * (4 * dim + 4) for rows, dim, _ in shapes)
    answer = planned(planner, shapes, layout, pins, spec, Capacity(total=size))
    plan = answer.plan.check()
    assert answer.bound <= answer.seconds * ROUNDING
    assert max(plan.rank_bytes((0, 1))) <= size
    allowed = choose_schemes(plan.tables, spec)
    for number, name in enumerate(names):
        on = {shard.rank for shard in plan.of_table(number)}
        assert on <= set(pins.get(name, range(ranks)))
        assert allowed[number] == "auto" or plan.schemes[number] in allowed[number].split(",")


@settings(max_examples=8)
@given(shapes=SMALL, data=st.data())
def test_the_search_comes_close_to_the_best_pinned_plan(
    shapes: Shapes, data: st.DataObject
) -> None:
    layout = Layout(3, 3)
    pins = {"t0": data.draw(st.sampled_from(((0,), (1,), (0, 2), (1, 2))))}
    answer = planned("search", shapes, layout, pins)
    tables = answer.plan.tables
    options = options_of(
        SearchTask(tables, ["auto"] * len(tables), layout, answer.model, answer.work, Capacity())
    )
    exact = every_plan(options, layout, rank_limits(Capacity(), tables, answer.work, layout.ranks))
    assert exact <= (answer.seconds - answer.model.fixed_seconds) * ROUNDING
    assert answer.seconds - answer.model.fixed_seconds <= 1.1 * exact


@settings(max_examples=8)
@given(data=st.data(), shapes=SHAPES)
def test_what_first_fit_fits_under_pins_is_found(data: st.DataObject, shapes: Shapes) -> None:
    """Rows over the ranks of each pin: as much memory as that takes is enough."""
    ranks = data.draw(st.integers(2, 6))
    groups = ((0,), tuple(range(ranks // 2, ranks)), tuple(range(ranks)))
    pins = {f"t{number}": data.draw(st.sampled_from(groups)) for number in range(len(shapes))}
    taken = [0] * ranks
    for number, (rows, dim, _) in enumerate(shapes):
        on = pins[f"t{number}"]
        step = -(-rows // len(on))
        for index, rank in enumerate(on):
            taken[rank] += max(0, min(step, rows - index * step)) * (4 * dim + 4)
    capacity = Capacity(hbm=max(taken), memories=("hbm",))
    answer = planned("search", shapes, Layout(ranks, ranks), pins, capacity=capacity)
    assert answer.memory[:, 0].max() <= max(taken)


def test_a_group_of_tables_shares_a_node() -> None:
    """Some tables on one node, all others wherever they cost least."""
    shapes = [(50_000, 64, 30), (50_000, 64, 30), (40_000, 128, 5), (9000, 16, 1)]
    pins = {"t0": (4, 5, 6, 7), "t1": (4, 5, 6, 7)}
    layout = Layout(8, 4)
    answer = planned("search", shapes, layout, pins)
    free = planned("search", shapes, layout, {})
    assert free.seconds <= answer.seconds
    # both share their four ranks evenly, and the rest has the other node almost for itself
    on = {rank for t in (0, 1) for rank in (s.rank for s in answer.plan.of_table(t))}
    assert on == {4, 5, 6, 7}
    with pytest.raises(PlanError, match=r"does not fit|no plan was found that fits"):
        planned("search", shapes, layout, pins, capacity=Capacity(hbm=5_000_000))


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("3", (3,)), ("0-3, 8", (0, 1, 2, 3, 8)), ("5,5-6 ,5", (5, 6))],
)
def test_ranks_are_named_by_runs(text: str, ranks: tuple[int, ...]) -> None:
    assert named_ranks(text) == ranks


CONFIG = """
[data]
train = "none.h5"
[tables]
a = { rows = 1000 }
b = { rows = 50, features = ["b", "c"] }
"""


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["parallel.pins={a = 'x'}"], "'x' names no ranks"),
        (["parallel.pins={a = '3-1'}"], "'3-1' must ascend"),
        (["parallel.pins={a = '0-9999999'}"], "stay below"),
        (["parallel.pins={q = '1'}"], "no table matches 'q'"),
        (["parallel.pins={a = '1'}", "parallel.plan=data_parallel"], "which is on all ranks"),
        (["parallel.pins={a = '1'}", "parallel.towers=true"], "towers decide"),
        (["parallel.plan='row_wise, rowwise'"], "'rowwise' is no scheme; did you mean 'row_wise'"),
    ],
)
def test_pins_that_are_none_are_told(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        configs.loads(CONFIG, overrides=overrides)


@pytest.mark.parametrize("planner", ["greedy", "search"])
def test_a_config_pins_its_tables(planner: str) -> None:
    keys = [f"parallel.planner={planner}", "parallel.pins={a = '1-2', b = '3'}"]
    keys += ["parallel.plan={a = 'row_wise', b = 'auto'}"]
    config = configs.loads(CONFIG, overrides=keys)
    plan = make_plan(config, SingleComm(), {}, 4)
    assert {shard.rank for shard in plan.of_table(0)} == {1, 2}
    assert {shard.rank for shard in plan.of_table(1)} == {3}
    with pytest.raises(ConfigError, match=r"there is no rank 2: the 2 rank\(s\)"):
        make_plan(config, SingleComm(), {}, 2)
