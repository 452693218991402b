"""Where memory is short, is every plan found that fits, and is it near what can be had?"""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from neocpu.core.errors import PlanError
from neocpu.parallel.sharding.plan import Plan, place
from neocpu.parallel.sharding.schemes import Shard
from neocpu.plan.cost.capacity import buffer_bytes
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import StepSeconds
from neocpu.plan.cost.work import TableArrays, Workload
from neocpu.plan.machines import machine_file
from neocpu.plan.search import search
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.auto import make_plan
from neocpu.plan.search.cuts import ALL, RANK
from neocpu.plan.search.options import CODES
from neocpu.plan.search.pricing import answer_of_plan
from neocpu.plan.search.question import PlanQuestion
from neocpu.plan.search.search import plan_tables
from neocpu.plan.search.trials import Trials, is_same, of_answer
from neocpu.plan.show.moves import moved_bytes, planned_anew
from neocpu.plan.simulation.scenario import Scenario, placed_by
from neocpu.plan.tiers.limits import TOGETHER
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.before.machine_plans import question_of
from neocpu.train.before.preflight import buffer_memory
from neocpu.train.config import config as configs
from tests.test_search import ROUNDING, Shapes, model_of

MODEL_F = "data/models/neo-f.toml"
MEMORIES = ("hbm", "ddr")


def planned(shapes: Shapes, layout: Layout, capacity: Capacity, spec: str = "auto") -> Answer:
    model, tables, work = model_of(shapes, layout)
    return plan_tables(tables, spec, layout, model, work, capacity)


def first_fit(shapes: Shapes, ranks: int, capacity: Capacity) -> tuple[str, ...] | None:
    """The memory of each table, rows over all ranks, the first that has room; None: no room."""
    left = {"hbm": capacity.hbm, "ddr": capacity.ddr}
    chosen = []
    for rows, dim, _ in shapes:
        # weights and one float of state for each row
        need = -(-rows // ranks) * (4 * dim + 4)
        memory = next((name for name in MEMORIES if need <= left[name]), None)
        if memory is None:
            return None
        left[memory] -= need
        chosen.append(memory)
    return tuple(chosen)


@pytest.mark.parametrize("sizes", ["equal", "two", "log-normal"])
@settings(max_examples=8)
@given(
    seed=st.integers(0, 10**6),
    tables=st.integers(2, 24),
    layout=st.sampled_from([Layout(2, 2), Layout(6, 4), Layout(8, 4)]),
    filled=st.floats(0.9, 0.99),
)
def test_what_fits_by_rows_fits_and_costs_no_more(
    sizes: str, seed: int, tables: int, layout: Layout, filled: float
) -> None:
    rng = np.random.default_rng(seed)
    weights = {
        "equal": np.ones(tables),
        "two": rng.choice([1.0, 0.37], tables),
        "log-normal": np.exp(rng.normal(0.0, 1.0, tables)),
    }[sizes]
    capacity = Capacity(hbm=10**6, ddr=4 * 10**6, memories=MEMORIES, placements=("auto",))
    room = filled * layout.ranks * (capacity.hbm + capacity.ddr)
    heights = (weights / weights.sum() * room / (4 * 64 + 4)).astype(int)
    shapes = [(max(int(rows), 1), 64, int(rng.integers(1, 30))) for rows in heights]
    chosen = first_fit(shapes, layout.ranks, capacity)
    assume(chosen is not None)
    assert chosen is not None
    answer = planned(shapes, layout, capacity)
    assert (answer.memory[:, :2] <= [capacity.hbm, capacity.ddr]).all()
    by_rows = planned(shapes, layout, replace(capacity, placements=chosen), "row_wise")
    assert answer.seconds <= by_rows.seconds * ROUNDING


def test_model_f_is_planned_where_it_fits() -> None:
    config = configs.load(MODEL_F, ["memory.placement=auto"])
    machine = machine_file.load("zionex")
    question = question_of(config, machine, 128)
    answer = question.answer()
    assert (answer.memory <= answer.capacity * ROUNDING)[:, :2].all()
    # at most 25 of the 26 equal tables have room in the DDR: they give way one by one
    assert answer.placements.count("ddr") + answer.placements.count("hbm_over_ddr") <= 25
    # activations are in the fast memory only
    assert question.capacity.hbm == 34 * 10**9
    assert question.capacity.ddr == machine.ddr.capacity_bytes // 8
    assert replace(question, reserved=0.0).capacity.hbm == machine.hbm.capacity_bytes


def test_rows_over_all_ranks_come_before_smaller_rectangles() -> None:
    names = ["row_wise", "grid_shard", "row_wise", "table_wise", "column_wise"]
    bytes_of_candidates = np.array([100.0, 60.0, 50.0, 80.0, 70.0])
    options = SimpleNamespace(
        scheme=np.array([CODES[name] for name in names]),
        home=np.array([ALL, ALL, RANK, RANK, RANK]),
        peak_bytes=np.stack([bytes_of_candidates] * (TOGETHER + 1), axis=1),
        start=np.array([0, 3, 5]),
        table=np.array([0, 0, 0, 1, 1]),
    )
    assert search._over_all_ranks(options).tolist() == [True, False, False, False, True]


def test_giants_are_cut_into_grids_on_any_ranks() -> None:
    layout = Layout(64, 8)
    dim = 64
    capacity = Capacity(hbm=10**8)
    rows = int(0.9 * capacity.hbm * layout.ranks / 7 / (4 * dim + 4))
    answer = planned([(rows, dim, 20)] * 7, layout, capacity)
    over_all = planned([(rows, dim, 20)] * 7, layout, capacity, "row_wise")
    beside = answer.model.fixed_seconds
    assert answer.seconds - beside < 0.4 * (over_all.seconds - beside)
    # more than the even cuts of a scheme, and each rank as full as it may be at most
    assert len({shard.shape for shard in answer.plan.shards}) > 2
    assert (answer.memory[:, 0] <= capacity.hbm).all()


@given(
    seed=st.integers(0, 10**6),
    tables=st.integers(2, 8),
    layout=st.sampled_from([Layout(2, 2), Layout(4, 2), Layout(5, 5)]),
)
@settings(max_examples=15)
def test_pinned_rectangles_stay_and_the_search_places_the_others(
    seed: int, tables: int, layout: Layout
) -> None:
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.integers(20, 5000)), 32, int(rng.integers(1, 20))) for _ in range(tables)]
    model, specs, work = model_of(shapes, layout)
    # the first table in blocks of unequal rows, two of them on one rank
    cuts = [0, 3, 7, shapes[0][0]]
    ranks = [0, 1, 1]
    pins = {
        0: [Shard(0, rows, (0, 32), rank) for rows, rank in zip(pairwise(cuts), ranks)],
        1: [Shard(1, (0, shapes[1][0]), (0, 32), layout.ranks - 1)],
    }
    spec = {"t0": "row_wise", "t1": "table_wise"}
    answer = plan_tables(specs, spec, layout, model, work, Capacity(), pins)
    assert {number: list(answer.plan.of_table(number)) for number in pins} == pins
    completed = make_plan(specs, spec, layout.ranks, layout.ranks_per_node, work, fixed=pins)
    priced = answer_of_plan(completed, layout, model, work)
    assert answer.seconds <= priced.seconds * ROUNDING
    assert answer_of_plan(answer.plan, layout, model, work).seconds == pytest.approx(answer.seconds)


def test_all_pinned_rectangles_of_a_rank_must_fit_it() -> None:
    layout = Layout(2, 2)
    model, specs, work = model_of([(4000, 32, 1), (10, 32, 1)], layout)
    halves = [Shard(0, rows, (0, 32), 1) for rows in ((0, 2000), (2000, 4000))]
    # one half of the table has room on a rank, both have not
    capacity = Capacity(hbm=3000 * (4 * 32 + 4))
    with pytest.raises(PlanError, match="no plan was found that fits"):
        plan_tables(specs, {"t0": "row_wise"}, layout, model, work, capacity, {0: halves})
    apart = [halves[0], replace(halves[1], rank=0)]
    answer = plan_tables(specs, {"t0": "row_wise"}, layout, model, work, capacity, {0: apart})
    assert set(answer.plan.of_table(0)) == set(apart)


def test_no_more_moves_than_allowed_and_what_may_move_helps() -> None:
    layout = Layout(4, 2)
    tables = tuple(TableSpec(f"t{i}", 1000 * (i + 1), 32, (f"f{i}",)) for i in range(8))
    work = Workload(batch=4096, pooling={"t0": 40.0, "t5": 20.0})
    question = PlanQuestion(tables, work, layout, machine_file.load("zionex"))
    # all on one rank
    present = Plan(
        tables=tables,
        schemes=("table_wise",) * 8,
        shards=tuple(Shard(i, (0, table.rows), (0, 32), 0) for i, table in enumerate(tables)),
        ranks=4,
        ranks_per_node=2,
    )
    assert moved_bytes(present, present, (0, 1)) == 0
    half = [Shard(0, (0, 1000), (0, 16), 0), Shard(0, (0, 1000), (16, 32), 3)]
    cut = replace(
        present,
        schemes=("column_wise", *present.schemes[1:]),
        shards=(*half, *present.shards[1:]),
    )
    assert moved_bytes(present, cut, (0, 1)) == 1000 * (16 * 4 + 4)
    free = question.answer()
    everything = moved_bytes(present, free.plan, (0, 1))
    assert planned_anew(question, present, everything).plan == free.plan
    assert planned_anew(question, present, 0).plan == present
    steps = [question.price(present).seconds]
    for most in (everything // 8, everything // 2, everything):
        answer = planned_anew(question, present, most)
        assert moved_bytes(present, answer.plan, (0, 1)) <= most
        steps.append(answer.seconds)
    assert steps == sorted(steps, reverse=True) and steps[1] < steps[0]


def test_what_a_step_holds_beside_the_rows_counts() -> None:
    """68.7 GB of pooled vectors on one rank, and as many of their gradients, fit no GPU."""
    machine = machine_file.load("zionex")
    layout = Layout(8, 8)
    tables = tuple(TableSpec(f"t{i}", 1000, 1024 if not i else 16, (f"f{i}",)) for i in range(8))
    work = Workload(batch=16_777_216)
    model = StepSeconds(machine, tables, work, layout)
    capacity = Capacity.of_machine(machine)
    with pytest.raises(PlanError, match=r"'t0' .* needs 137,\d{3},\d{3},\d{3} on a rank"):
        plan_tables(tables, "table_wise", layout, model, work, capacity)
    answer = plan_tables(tables, "column_wise", layout, model, work, capacity)
    held = buffer_bytes(answer.rectangles, of_rectangles(answer, work))
    rows = answer.plan.rank_bytes(work.state_floats)
    by_rank = np.bincount(answer.rectangles.rank, held, layout.ranks) + rows
    np.testing.assert_allclose(answer.memory[:, 0], by_rank, rtol=1e-6)
    scenario = Scenario(machine, 8, tables, work)
    assert placed_by(scenario, answer.plan).memory == pytest.approx(by_rank.max())


def of_rectangles(answer: Answer, work: Workload) -> TableArrays:
    arrays = TableArrays.of(answer.plan.tables, work)
    return TableArrays(*(column[answer.rectangles.table] for column in arrays))


def test_the_preflight_counts_them_too() -> None:
    config = configs.loads(
        "[data]\ntrain = 'none.h5'\n[training]\nbatch_size = 16777216\n"
        "[model]\nembedding_dim = 64\nbottom = [64]\n"
        "[tables]\na = { rows = 50 }\nb = { rows = 50 }\n"
    )
    alone = place(config.tables, ["table_wise"] * 2, 8)
    holder = alone.of_table(0)[0].rank
    # rows of lookups, lengths, 64 columns of vectors and of gradients; less a rank's even part
    held = 16_777_216 * (8 + 4 + 64 * 8)
    assert buffer_memory(config, alone, holder, {}) == held - held // 4
    idle = next(rank for rank in range(8) if not alone.local(rank))
    assert buffer_memory(config, alone, idle, {}) == 0


def hand_plan(answer: Answer) -> Plan:
    """The plan with table 0 in three uneven blocks of rows, two of them on one rank."""
    table = answer.plan.tables[0]
    edges = [(0, 10), (10, 700), (700, table.rows)]
    cut = [Shard(0, rows, (0, table.dim), rank) for rows, rank in zip(edges, (1, 0, 1))]
    shards = tuple(sorted([*cut, *(s for s in answer.plan.shards if s.table)]))
    schemes = ("row_wise", *answer.plan.schemes[1:])
    return replace(answer.plan, shards=shards, schemes=schemes).check()


def test_a_plan_cut_by_hand_is_kept_as_it_is() -> None:
    layout = Layout(4, 2)
    answer = planned([(5000, 64, 20), (3000, 128, 9)], layout, Capacity())
    priced = answer_of_plan(hand_plan(answer), layout, answer.model, answer.work)
    trials = Trials(priced, Capacity())
    kept = of_answer(trials, 0)
    assert kept.words == "row_wise in 3, hbm"
    assert [is_same(way, kept) for way in trials.of_schemes(0)].count(True) == 1
    # a table that stays as some candidate has it adds none
    assert [is_same(way, of_answer(trials, 1)) for way in trials.of_schemes(1)].count(True) == 1
