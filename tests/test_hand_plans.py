"""Are the search's plans good where tasks are extreme? (`benchmarks/hand_plans.py`)"""

from dataclasses import replace

import pytest

from benchmarks.hand_plans import CASES, Case, HandTask, by_hand
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.search import plan_tables

GIANTS = Case("giants", 33, 64, 0.85, (256,), lookups=(5, 6), giants=3, hot=200)


def answer(task: HandTask) -> Answer:
    return plan_tables(task.tables, "auto", task.layout, task.model, task.work, task.capacity)


@pytest.mark.parametrize(
    ("case", "model", "most"),
    [
        # caches fill the ranks first, and leave room for the buffers of cuts
        pytest.param(CASES[1], "torchrec", 0.7, marks=pytest.mark.long),
        # giants in small rectangles on all ranks, so that hot tables have room on all
        pytest.param(GIANTS, "torchrec", 0.25, marks=pytest.mark.long),
        # some tables cost less in two by rows than whole
        (CASES[3], "torchrec", 0.32),
        # memories that are full are not tried
        pytest.param(CASES[10], "neo", 2.0, marks=pytest.mark.long),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else str(value),
)
def test_the_search_comes_so_near_to_the_bound(case: Case, model: str, most: float) -> None:
    assert 0 <= answer(HandTask.of(case, model)).above_bound < most


@pytest.mark.parametrize("model", ["neo", "torchrec"])
def test_no_plan_by_hand_is_better(model: str) -> None:
    task = HandTask.of(CASES[3], model)
    seconds, _, plans = by_hand(task, 60.0)
    assert plans > 50
    assert answer(task).seconds <= seconds


@pytest.mark.parametrize(
    ("filled", "pins", "spec", "most"),
    [
        (5.0, {"t0": (0, 1, 2), "t1": (4, 5, 6, 7)}, "auto", 0.3),
        (0.85, {}, "table_wise, row_wise, column_wise, grid_shard", 0.55),
    ],
)
def test_pins_and_lists_of_schemes_fill_ranks_where_memory_is_short(
    filled: float, pins: dict[str, tuple[int, ...]], spec: str, most: float
) -> None:
    task = HandTask.of(Case("pinned", 6, 8, filled), "torchrec")
    work = replace(task.work, pins=pins)
    best = plan_tables(task.tables, spec, task.layout, task.model, work, task.capacity)
    for number, ranks in enumerate(pins.values()):
        assert {shard.rank for shard in best.plan.of_table(number)} <= set(ranks)
    assert best.above_bound < most
