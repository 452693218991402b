"""Does `memory.placement = "auto"` keep the budgets and find the fastest placements?"""

from itertools import product

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from test_planner import KAGGLE, TABLES
from test_tiers import run

from neocpu.cli.plan import plan as plan_command
from neocpu.core.errors import ConfigError, TrainingError
from neocpu.parallel.sharding.plan import place
from neocpu.plan.cost.work import Workload
from neocpu.plan.search.auto import make_plan
from neocpu.plan.tiers.tiers import CODE, KINDS, TOO_LARGE, StepModel, demands, place_tables
from neocpu.tables.embedding.tiered import MemoryPlan
from neocpu.tables.specs.specs import TableSpec
from neocpu.tables.tiers.placement import PLACEMENTS
from tests.small_run import config_of

# The search is not exact, so the cases are the same in every run. Of 2,057 drawn cases of 2 to 6
# tables, one was above the best placement by more than this: by 41 %, as a last resort, whose
# caches are too small for a batch. None of 12,342 larger budgets made a step slower.
GAP = 1e-6
BUDGETS = st.one_of(st.just(0), st.integers(3000, 10**6), st.integers(10**6, 10**9))
CASES = st.tuples(
    st.lists(
        st.tuples(st.integers(1, 10**6), st.sampled_from((4, 16, 64)), st.integers(1, 50)),
        min_size=1,
        max_size=7,
    ),
    st.sampled_from(("auto", "row_wise", "column_wise", "data_parallel")),
    st.sampled_from((1, 2, 3)),
)


def plan_and_work(case):
    """Plan and workload of a drawn case."""
    sizes, scheme, ranks = case
    tables = [TableSpec(f"t{i}", rows, dim, (f"f{i}",)) for i, (rows, dim, _) in enumerate(sizes)]
    work = Workload(2048, {f"t{i}": float(pooling) for i, (_, _, pooling) in enumerate(sizes)})
    return make_plan(tables, scheme, ranks, work=work), work


def seconds_of(model, places):
    """Seconds of a step with these placements."""
    return float(model.seconds(np.array([[CODE[name] for name in places]]))[0])


def chosen(plan, work, hbm, ddr):
    """Placements within every rank's budgets and their seconds; (None, inf) if none fits."""
    try:
        places = place_tables(plan, ["auto"] * len(plan.tables), work, hbm, ddr)
    except TrainingError:
        return None, float("inf")
    memory = MemoryPlan(placements=places, hbm=hbm, ddr=ddr)
    for rank in range(plan.ranks):
        # Raises if a budget is exceeded.
        memory.rooms(plan.tables, plan.local(rank), work.state_floats)
    return places, seconds_of(StepModel(plan, work, hbm, ddr), places)


@settings(max_examples=60, derandomize=True)
@given(case=CASES, hbm=BUDGETS, ddr=BUDGETS, more=st.sampled_from((1.01, 2.0, 30.0)))
def test_budgets_are_kept_and_larger_ones_cost_no_time(case, hbm, ddr, more):
    plan, work = plan_and_work(case)
    places, seconds = chosen(plan, work, hbm, ddr)
    for wider in ((int(hbm * more), ddr), (hbm, int(ddr * more))):
        assert chosen(plan, work, *wider)[1] <= seconds * (1 + GAP)
    if places is None:
        return
    if not ddr:
        assert not any(PLACEMENTS[name].ssd for name in places)
    if not hbm:
        assert set(places) <= ({"ddr", "ddr_over_ssd"} if ddr else {"hbm"})
    # a table with more demand per byte that is no larger is as fast, unless that would cost more
    demand = demands(plan, work)
    size = [t.rows * t.row_bytes(t.dim, (0, 1)) for t in plan.tables]
    model = StepModel(plan, work, hbm, ddr)
    for a, b in product(range(len(places)), repeat=2):
        if demand[a] > demand[b] and size[a] <= size[b]:
            exchanged = list(places)
            exchanged[a] = places[b]
            exchanged[b] = places[a]
            slower = seconds_of(model, exchanged) >= seconds * (1 - 1e-6)
            faster_memory = KINDS.index(places[a]) <= KINDS.index(places[b])
            assert faster_memory or slower, (places, a, b)


def largest_first(plan, work, hbm, ddr):
    """Whole tables wherever there is room, the largest first; the others cached."""
    size = [t.rows * t.row_bytes(t.dim, work.state_floats) / plan.ranks for t in plan.tables]
    room = {"hbm": 0.9 * hbm, "ddr": 0.9 * ddr}
    places = ["hbm_over_ddr_over_ssd"] * len(size)
    for t in sorted(range(len(size)), key=lambda t: -size[t]):
        for memory in room:
            if size[t] <= room[memory]:
                room[memory] -= size[t]
                places[t] = memory
                break
    return places


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("pooling", [{}, {"C3": 20.0, "C10": 60.0, "C9": 3.0}])
def test_simple_rivals_are_not_better(ranks, pooling):
    work = Workload(2048, pooling)
    plan = place(TABLES, ["row_wise"] * len(TABLES), ranks)
    whole = sum(KAGGLE) * 68 // ranks
    for hbm, ddr in product(
        (whole // 1000, whole // 30, whole // 3), (whole // 50, whole // 4, 2 * whole)
    ):
        places, seconds = chosen(plan, work, hbm, ddr)
        model = StepModel(plan, work, hbm, ddr)
        uniform = [[name] * len(TABLES) for name in PLACEMENTS]
        for rival in (*uniform, largest_first(plan, work, hbm, ddr)):
            assert seconds <= seconds_of(model, rival), (places, rival)


@settings(max_examples=60, derandomize=True)
@given(case=CASES.filter(lambda case: len(case[0]) <= 4), hbm=BUDGETS, ddr=BUDGETS)
def test_the_search_is_as_good_as_trying_every_placement(case, hbm, ddr):
    plan, work = plan_and_work(case)
    _, seconds = chosen(plan, work, hbm, ddr)
    if not (hbm or ddr):
        return
    kinds = [
        CODE[name]
        for name in KINDS
        if (hbm or "hbm" not in name) and (ddr or not PLACEMENTS[name].ssd)
    ]
    every = np.array(list(product(kinds, repeat=len(plan.tables))))
    best = StepModel(plan, work, hbm, ddr).seconds(every).min()
    if best >= TOO_LARGE:
        return
    assert best * (1 - 1e-9) <= seconds <= best * (1 + GAP)


def test_some_tables_are_given_and_what_cannot_fit_says_what_would_help():
    plan = place(TABLES, ["row_wise"] * len(TABLES), 2)
    work = Workload()
    named = ["ddr_over_ssd", *["auto"] * (len(TABLES) - 2), "hbm"]
    with pytest.raises(
        TrainingError, match=r"memory\.ddr is 9,000 bytes .* raise it by [\d,]+, use more ranks"
    ):
        place_tables(plan, named, work, 0, 9000)
    places = place_tables(plan, named, work, 400_000_000, 10**9)
    assert (places[0], places[-1]) == ("ddr_over_ssd", "hbm")
    assert places[8] == "hbm"
    assert places[2] != "hbm"
    assert place_tables(plan, named, work) == ("ddr_over_ssd", *["hbm"] * (len(TABLES) - 1))
    assert "auto" not in place_tables(plan, ["auto"] * len(TABLES), work, 1, 10**9)


def test_caches_over_an_ssd_hold_a_batch_wherever_some_plan_lets_them():
    tables = [TableSpec(f"t{i}", 300 + 150 * i, 8, (f"f{i}",)) for i in range(20)]
    plan = place(tables, ["table_wise"] * 20, 1)
    work = Workload(128)
    for hbm, ddr in ((120_000, 400_000), (20_000, 300_000), (0, 300_000)):
        places, seconds = chosen(plan, work, hbm, ddr)
        assert seconds < 1
        assert "ddr_over_ssd" in places
        rooms = MemoryPlan(placements=places, hbm=hbm, ddr=ddr).rooms(tables, plan.local(0), (0, 1))
        for table, name, room in zip(tables, places, rooms):
            if PLACEMENTS[name].ssd:
                assert room.lines[0] + room.scratch >= min(128, table.rows)
    # No room for a batch: the last resort, which may work all the same.
    places, seconds = chosen(plan, work, 0, 60_000)
    assert places is not None
    assert seconds > 1


def test_a_run_places_its_tables_and_ends_with_the_same_digest(log, tmp_path):
    whole = run(log, tmp_path / "whole", "auto", "training.steps=20")
    assert {entry["placement"] for entry in whole["placements"]} == {"hbm"}
    budgets = ("training.steps=20", "memory.hbm=1_500", "memory.ddr=30_000")
    for ranks in (1, 3):
        tight = run(log, tmp_path / f"tight-{ranks}", "auto", *budgets, ranks=ranks)
        assert tight["digest"] == whole["digest"]
        assert {entry["placement"] for entry in tight["placements"]} == {"hbm", "ddr"}
        assert all(entry["demand"] > 0 for entry in tight["placements"])


def test_wider_caches_and_chosen_placements_exclude_each_other(log):
    wide = ("tables.one.format=fp16", "memory.cache_format=fp32")
    with pytest.raises(ConfigError, match="may leave it without a cache"):
        config_of(log, *wide, "memory.placement=auto")
    with pytest.raises(
        ConfigError, match=r"other tables would decide how many rows of table 'one'"
    ):
        config_of(log, *wide, 'memory.placement={one = "ddr_over_ssd", many = "auto"}')


def test_a_plan_shows_what_was_chosen_and_why():
    overrides = ("memory.placement=auto", "memory.hbm=20_000_000", "memory.ddr=200_000_000")
    options = [option for override in overrides for option in ("--set", override)]
    arguments = ["data/models/criteo-kaggle.toml", "--ranks", "2", *options]
    result = CliRunner().invoke(plan_command, arguments)
    assert result.exit_code == 0, result.output
    caches, *lines = result.output.split("\n\n")[1].splitlines()[::-1]
    assert caches.startswith("caches: lru")
    lines.reverse()
    assert " ".join(lines[0].split()) == "table placement bytes a step per byte bytes cached"
    assert lines[1].split()[:2] == ["C9", "hbm"]
    assert lines[-1].split()[:2] == ["C3", "hbm_over_ddr_over_ssd"]
    demand = [float(line.split()[2]) for line in lines[1:]]
    assert demand == sorted(demand, reverse=True)
    assert len(demand) == 26
