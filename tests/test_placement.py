"""Does `memory.placement = "auto"` keep its budgets, gain by larger ones, and put what is asked for
most into the fastest?
"""

from itertools import product

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from test_planner import KAGGLE, TABLES
from test_tiers import run

from neocpu.cli.plan import plan as plan_command
from neocpu.embedding.specs import TableSpec
from neocpu.embedding.tiered import MemoryPlan
from neocpu.errors import ConfigError, TrainingError
from neocpu.parallel.plan import place
from neocpu.planner.auto import make_plan
from neocpu.planner.cost import Workload
from neocpu.planner.tiers import Model, demands, place_tables
from neocpu.storage.placement import PLACEMENTS
from tests.small_run import config_of

FASTEST = ("hbm", "hbm_over_ddr", "ddr", "hbm_over_ddr_over_ssd", "ddr_over_ssd")
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


def made(case):
    """Plan and work of a drawn case."""
    sizes, scheme, ranks = case
    tables = [TableSpec(f"t{i}", rows, dim, (f"f{i}",)) for i, (rows, dim, _) in enumerate(sizes)]
    work = Workload(2048, {f"t{i}": float(pooling) for i, (_, _, pooling) in enumerate(sizes)})
    return make_plan(tables, scheme, ranks, work=work), work


def chosen(plan, work, hbm, ddr):
    """Placements and their modelled seconds; (None, inf) where nothing fits. Every rank's rooms are
    within its budgets.
    """
    try:
        places = place_tables(plan, ["auto"] * len(plan.tables), work, hbm, ddr)
    except TrainingError:
        return None, float("inf")
    memory = MemoryPlan(places, hbm, ddr)
    for rank in range(plan.ranks):
        # raises where they are beyond
        memory.rooms(plan.tables, plan.local(rank), work.state_floats)
    return places, Model(plan, work, hbm, ddr).seconds(places)


@settings(max_examples=60)
@given(case=CASES, hbm=BUDGETS, ddr=BUDGETS, more=st.sampled_from((1.01, 2.0, 30.0)))
def test_budgets_are_kept_and_larger_ones_cost_no_time(case, hbm, ddr, more):
    plan, work = made(case)
    places, seconds = chosen(plan, work, hbm, ddr)
    for wider in ((int(hbm * more), ddr), (hbm, int(ddr * more))):
        assert chosen(plan, work, *wider)[1] <= seconds * (1 + 1e-9)
    if places is None:
        return
    if not ddr:
        assert not any(PLACEMENTS[name].ssd for name in places)
    if not hbm:
        assert set(places) <= ({"ddr", "ddr_over_ssd"} if ddr else {"hbm"})
    asked = demands(plan, work)
    size = [t.rows * t.row_bytes(t.dim, (0, 1)) for t in plan.tables]
    # what is asked for more, per byte, and is no larger, is as fast
    for a, b in product(range(len(places)), repeat=2):
        if asked[a] > asked[b] and size[a] <= size[b]:
            assert FASTEST.index(places[a]) <= FASTEST.index(places[b]) or places[a] == "ddr", (
                places,
                a,
                b,
            )


def greedy(plan, work, hbm, ddr):
    """Whole tables wherever there is room, the largest first; the others cached."""
    size = [t.rows * t.row_bytes(t.dim, work.state_floats) for t in plan.tables]
    held = {"hbm": 0.0, "ddr": 0.0}
    found = {}
    for t in sorted(range(len(size)), key=lambda t: -size[t]):
        room = {"hbm": 0.9 * hbm, "ddr": 0.9 * ddr}
        name = next(
            (m for m in room if held[m] + size[t] / plan.ranks <= room[m]), "hbm_over_ddr_over_ssd"
        )
        held[name] = held.get(name, 0) + size[t] / plan.ranks
        found[t] = name
    return [found[t] for t in range(len(size))]


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
        model = Model(plan, work, hbm, ddr)
        for rival in (*([name] * len(TABLES) for name in PLACEMENTS), greedy(plan, work, hbm, ddr)):
            assert seconds <= model.seconds(rival), (places, rival)


@settings(max_examples=15)
@given(
    sizes=st.lists(st.tuples(st.integers(1000, 10**6), st.integers(1, 20)), min_size=3, max_size=3),
    hbm=st.integers(10**5, 10**8),
    ddr=st.integers(10**6, 10**8),
)
def test_close_to_the_best_of_all(sizes, hbm, ddr):
    tables = [TableSpec(f"t{i}", rows, 16, (f"f{i}",)) for i, (rows, _) in enumerate(sizes)]
    work = Workload(2048, {f"t{i}": float(pooling) for i, (_, pooling) in enumerate(sizes)})
    plan = place(tables, ["table_wise"] * 3, 1)
    _, seconds = chosen(plan, work, hbm, ddr)
    model = Model(plan, work, hbm, ddr)
    best = min(model.seconds(places) for places in product(PLACEMENTS, repeat=3))
    assert best <= seconds <= 1.25 * best


def test_some_tables_are_given_and_what_cannot_fit_says_what_would_help():
    plan = place(TABLES, ["row_wise"] * len(TABLES), 2)
    work = Workload()
    named = ["ddr_over_ssd", *["auto"] * (len(TABLES) - 2), "hbm"]
    with pytest.raises(
        TrainingError, match=r"memory\.ddr is 9,000 bytes .* raise it by [\d,]+, use more ranks"
    ):
        place_tables(plan, named, work, 0, 9000)
    found = place_tables(plan, named, work, 400_000_000, 10**9)
    assert (
        (found[0], found[-1]) == ("ddr_over_ssd", "hbm") and found[8] == "hbm" and found[2] != "hbm"
    )
    assert place_tables(plan, named, work) == ("ddr_over_ssd", *["hbm"] * (len(TABLES) - 1))
    assert "auto" not in place_tables(plan, ["auto"] * len(TABLES), work, 1, 10**9)


def test_caches_over_an_ssd_hold_a_batch_wherever_some_plan_lets_them():
    tables = [TableSpec(f"t{i}", 300 + 150 * i, 8, (f"f{i}",)) for i in range(20)]
    plan = place(tables, ["table_wise"] * 20, 1)
    work = Workload(128)
    for hbm, ddr in ((120_000, 400_000), (20_000, 300_000), (0, 300_000)):
        places, seconds = chosen(plan, work, hbm, ddr)
        assert seconds < 1 and "ddr_over_ssd" in places
        rooms = MemoryPlan(places, hbm, ddr).rooms(tables, plan.local(0), (0, 1))
        for table, name, room in zip(tables, places, rooms):
            if PLACEMENTS[name].ssd:
                assert room.lines[0] + room.scratch >= min(128, table.rows)
    # no room for a batch: the last resort, which may work all the same
    places, seconds = chosen(plan, work, 0, 60_000)
    assert places is not None and seconds > 1


def test_a_run_places_its_tables_and_ends_with_the_same_digest(log, tmp_path):
    whole = run(log, tmp_path / "whole", "auto", "training.steps=20")
    assert {entry["placement"] for entry in whole["placements"]} == {"hbm"}
    budgets = ("training.steps=20", "memory.hbm=9_000", "memory.ddr=30_000")
    for ranks in (1, 3):
        found = run(log, tmp_path / f"tight-{ranks}", "auto", *budgets, ranks=ranks)
        assert found["digest"] == whole["digest"]
        assert all(
            "over" in entry["placement"] and entry["demand"] > 0 for entry in found["placements"]
        )


def test_wider_caches_and_chosen_placements_exclude_each_other(log):
    wide = ("tables.one.format=fp16", "memory.cache_format=fp32")
    with pytest.raises(ConfigError, match="may leave it without a cache"):
        config_of(log, *wide, "memory.placement=auto")
    with pytest.raises(
        ConfigError, match=r"other tables would decide how many rows of table 'one'"
    ):
        config_of(log, *wide, 'memory.placement={one = "ddr_over_ssd", many = "auto"}')


def test_a_plan_shows_what_was_chosen_and_why():
    given = ("memory.placement=auto", "memory.hbm=20_000_000", "memory.ddr=200_000_000")
    sets = [part for key in given for part in ("--set", key)]
    told = CliRunner().invoke(
        plan_command, ["data/models/criteo-kaggle.toml", "--ranks", "2", *sets]
    )
    assert told.exit_code == 0, told.output
    lines = told.output.split("\n\n")[1].splitlines()
    assert lines[0].split() == [
        "table",
        "placement",
        "bytes",
        "a",
        "step",
        "per",
        "byte",
        "bytes",
        "cached",
    ]
    assert lines[1].split()[:2] == ["C9", "hbm"] and lines[-1].split()[:2] == [
        "C3",
        "hbm_over_ddr_over_ssd",
    ]
    asked = [float(line.split()[2]) for line in lines[1:]]
    assert asked == sorted(asked, reverse=True) and len(asked) == 26
