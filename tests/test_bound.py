"""Does the bound hold for every plan, whatever its rectangles, and not only for the candidates?"""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.schemes import Shard
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.models import COST_MODELS
from neocpu.plan.cost.row_curves import RowCurve
from neocpu.plan.cost.seconds import loads_of
from neocpu.plan.cost.work import Workload, rectangles_of
from neocpu.plan.machines import machine_file
from neocpu.plan.machines.machine import EmbeddingRates, Machine
from neocpu.plan.search.cuts import RANK
from neocpu.plan.search.options import CODES, SearchTask, options_of
from neocpu.plan.search.pricing import answer_of_plan
from neocpu.plan.search.search import plan_tables
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.specs.specs import TableSpec
from tests.test_search import MACHINE, ROUNDING

# rates that rise and fall with the bytes of a row and with the rows
BENT = replace(
    MACHINE,
    embeddings=tuple(
        EmbeddingRates(work, rows, 2, (16.0, 100.0, 300.0), rates)
        for work in ("lookup", "update")
        for rows, rates in ((50, (9e9, 4e10, 3e10)), (2000, (2e9, 3e10, 8e10)))
    ),
)
MACHINES: dict[str, Machine] = {
    "toy": MACHINE,
    "bent": BENT,
    "zionex": machine_file.load("zionex"),
}
Box = tuple[int, int, int, int]
Boxes = tuple[Box, ...]


def cuts_of(box: Box) -> list[Boxes]:
    """All ways to cut (row, end, column, end), columns in steps of 4, into rectangles."""
    low, high, left, right = box
    ways: set[Boxes] = {(box,)}
    for row in range(low + 1, high):
        halves = cuts_of((low, row, left, right)), cuts_of((row, high, left, right))
        ways |= {tuple(sorted(above + below)) for above, below in product(*halves)}
    for column in range(left + 4, right, 4):
        halves = cuts_of((low, high, left, column)), cuts_of((low, high, column, right))
        ways |= {tuple(sorted(near + far)) for near, far in product(*halves)}
    return sorted(ways)


def scheme_of(table: TableSpec, cut: Boxes, by_nodes: bool = False) -> str:
    by_rows = any(high - low < table.rows for low, high, _, _ in cut)
    by_columns = any(right - left < table.dim for _, _, left, right in cut)
    return {
        (False, False): "table_wise",
        (True, False): "table_row_wise" if by_nodes else "row_wise",
        (False, True): "column_wise",
        (True, True): "grid_shard",
    }[by_rows, by_columns]


def plan_of(
    tables: tuple[TableSpec, ...],
    cuts: list[list[Shard]],
    layout: Layout,
    by_nodes: bool = False,
) -> Plan:
    schemes = []
    for table, shards in zip(tables, cuts):
        boxes = tuple((*shard.rows, *shard.cols) for shard in shards)
        copied = len(set(boxes)) < len(boxes)
        schemes.append("data_parallel" if copied else scheme_of(table, boxes, by_nodes))
    whole = tuple(sorted(shard for shards in cuts for shard in shards))
    return Plan(tables, tuple(schemes), whole, layout.ranks, layout.ranks_per_node).check()


@st.composite
def random_cuts(draw: st.DrawFn, number: int, table: TableSpec, ranks: int) -> list[Shard]:
    """A table in strips of columns, each cut by rows in its own way, or copied."""
    whole = (0, table.rows), (0, table.dim)
    if ranks > 1 and draw(st.integers(0, 4)) == 0:
        return [Shard(number, *whole, rank) for rank in range(ranks)]
    shards = []
    steps = st.sets(st.integers(1, max(table.dim // 4 - 1, 1)), max_size=3)
    inner = {4 * step for step in draw(steps) if 4 * step < table.dim}
    for cols in pairwise(sorted({0, table.dim} | inner)):
        places = draw(st.sets(st.integers(1, max(table.rows - 1, 1)), max_size=3))
        edges = sorted({0, table.rows} | {row for row in places if row < table.rows})
        shards += [
            Shard(number, rows, cols, draw(st.integers(0, ranks - 1))) for rows in pairwise(edges)
        ]
    return shards


@settings(max_examples=60)
@given(data=st.data())
def test_no_plan_of_any_rectangles_is_faster_than_the_bound(data: st.DataObject) -> None:
    machine = MACHINES[data.draw(st.sampled_from(sorted(MACHINES)))]
    name = data.draw(st.sampled_from(("neo", "neo", *sorted(COST_MODELS))))
    layouts = [Layout(1, 1), Layout(2, 2), Layout(4, 2), Layout(5, 2)]
    layouts += [Layout(9, 3), Layout(16, 8)]
    layouts += [Layout(1, 1, "", 2), Layout(4, 2, "", 3), Layout(2, 2, "", 4, 2)]  # of groups
    layout = data.draw(st.sampled_from(layouts))
    layout = replace(layout, route=data.draw(st.sampled_from(("direct", "two_level"))))
    shapes = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from((1, 2, 49, 3000, 10**5)), st.sampled_from((3, 4, 18, 64, 160))
            ),
            min_size=1,
            max_size=3,
        )
    )
    tables = tuple(TableSpec(f"t{i}", *shape, (f"f{i}",)) for i, shape in enumerate(shapes))
    pooling = {table.name: float(data.draw(st.sampled_from((1, 7, 60)))) for table in tables}
    # the first row of a table may be all that is looked up, or the last
    curves = {
        table.name: RowCurve((0.0, *step, float(table.rows)), (0.0, *share, 1.0))
        for table in tables
        if table.rows > 2
        and data.draw(st.booleans())
        and (step := (data.draw(st.sampled_from((1.0, 7.0, table.rows - 1.0))),))
        and (share := (data.draw(st.sampled_from((0.0, 0.9, 1.0))),))
    }
    work = Workload(data.draw(st.sampled_from((16, 4096))), pooling, curves=curves)
    model = COST_MODELS[name](machine, tables, work, layout)
    cuts = [data.draw(random_cuts(i, table, layout.ranks)) for i, table in enumerate(tables)]
    plan = plan_of(tables, cuts, layout, by_nodes=data.draw(st.booleans()))
    placement = data.draw(st.sampled_from(("hbm", "hbm_over_ddr", "ddr")))
    memories = tuple(m for m in ("hbm", "ddr", "ssd") if getattr(machine, m).capacity_bytes)
    priced = answer_of_plan(
        plan, layout, model, work, Capacity(memories=memories, placements=(placement,))
    )
    assert priced.bound <= priced.seconds * ROUNDING
    # limits that this plan just keeps
    taken = priced.memory.max(axis=0)
    tight = Capacity(hbm=int(taken[0]), ddr=int(taken[1]), memories=memories, placements=("auto",))
    placed = replace(tight, placements=(placement,))
    assert answer_of_plan(plan, layout, model, work, placed).bound <= priced.seconds * ROUNDING
    if tight.hbm:
        assert answer_of_plan(plan, layout, model, work, tight).bound <= priced.seconds * ROUNDING


@pytest.mark.parametrize("machine", ["toy", "bent"])
def test_the_bound_is_below_the_best_of_all_plans(machine: str) -> None:
    """Two tiny tables in all their cuts, each rectangle on each rank, copies too."""
    layout = Layout(2, 1)
    tables = (TableSpec("a", 3, 8, ("f",)), TableSpec("b", 2, 8, ("g",)))
    work = Workload(512, {"a": 30.0, "b": 1.0})
    model = COST_MODELS["neo"](MACHINES[machine], tables, work, layout)
    loads = []
    for number, table in enumerate(tables):
        of_table = []
        for cut in cuts_of((0, table.rows, 0, table.dim)):
            for ranks in product(range(layout.ranks), repeat=len(cut)):
                shards = [Shard(number, box[:2], box[2:], rank) for box, rank in zip(cut, ranks)]
                of_table.append(shards)
        whole = (0, table.rows), (0, table.dim)
        of_table.append([Shard(number, *whole, rank) for rank in range(layout.ranks)])
        other = [Shard(1 - number, (0, tables[1 - number].rows), (0, 8), 0)]
        pairs = [[shards, other][:: 1 - 2 * number] for shards in of_table]
        plans = [rectangles_of(plan_of(tables, pair, layout)) for pair in pairs]
        # loads add up, so those of the other table are taken off
        ground = np.zeros((layout.ranks, len(model.phases)))
        beside = plans[0].table != number
        np.add.at(ground, plans[0].rank[beside], model.seconds(plans[0])[beside])
        loads.append(np.stack([loads_of(model, r, layout.ranks) - ground for r in plans]))
    together = loads[0][:, None] + loads[1][None]
    best = float(together.max(axis=2).sum(axis=2).min()) + model.fixed_seconds
    answer = plan_tables(tables, "auto", layout, model, work)
    assert answer.bound <= best * ROUNDING
    assert best <= answer.seconds * ROUNDING
    assert answer.seconds <= 1.1 * best


@pytest.mark.parametrize(("ranks", "dim"), [(2, 16), (16, 16), (16, 64)])
def test_the_bound_of_a_public_model_knows_that_cut_columns_have_two_rectangles(
    ranks: int, dim: int
) -> None:
    layout = Layout(ranks, min(ranks, 8))
    tables = tuple(TableSpec(f"t{i}", 50_000, dim, (f"f{i}",)) for i in range(3 * ranks))
    work = Workload(65_536, dict.fromkeys((table.name for table in tables), 12.0))
    model = COST_MODELS["torchrec"](MACHINES["zionex"], tables, work, layout)
    assert plan_tables(tables, "auto", layout, model, work).above_bound < 0.02


def test_a_table_cut_on_a_node_into_most_of_its_rows_and_one_is_above_the_bound() -> None:
    layout = Layout(16, 8)
    tables = tuple(TableSpec(f"t{i}", 50_000, 16, (f"f{i}",)) for i in range(16))
    work = Workload(65_536, dict.fromkeys((table.name for table in tables), 60.0))
    model = COST_MODELS["torchrec"](MACHINES["zionex"], tables, work, layout)
    cuts = [
        [Shard(i, (0, 49_999), (0, 16), i), Shard(i, (49_999, 50_000), (0, 16), (i + 1) % 16)]
        for i in range(16)
    ]
    plan = plan_of(tables, cuts, layout, by_nodes=True)
    priced = answer_of_plan(plan, layout, model, work, Capacity())
    assert 0.99 * priced.seconds <= priced.bound <= priced.seconds * ROUNDING


def test_a_public_model_has_no_grid_of_a_nodes_rows_on_any_ranks() -> None:
    layout = Layout(16, 8)
    tables = (TableSpec("t", 50_000, 64, ("f",)),)
    work = Workload(65_536, {"t": 60.0})
    lowest = {}
    for name in ("neo", "torchrec"):
        model = COST_MODELS[name](MACHINES["zionex"], tables, work, layout)
        task = SearchTask(tables, ("auto",), layout, model, work, Capacity())
        options = options_of(task)
        grids = np.flatnonzero((options.scheme == CODES["grid_shard"]) & (options.home == RANK))
        lowest[name] = min(options.rows[options.pieces(grid)].max() for grid in grids.tolist())
    assert lowest["neo"] <= 50_000 / 8 < lowest["torchrec"]
