"""Do unequal ranks hold what they have room for, and as much as they can do in time?"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.cli.plan import plan
from neocpu.cli.simulate import simulate
from neocpu.core.errors import ConfigError, PlanError
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import StepSeconds, loads_of, step_seconds
from neocpu.plan.machines.machine import ComputePeak, Machine, MemoryPeak
from neocpu.plan.machines.machine_file import load, loads, text
from neocpu.plan.machines.unequal import UnequalRanks
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.options import SearchTask, options_of
from neocpu.plan.search.search import plan_tables
from neocpu.plan.search.trials import Trials
from neocpu.plan.tiers.limits import rank_limits
from neocpu.plan.tiers.placements import Capacity
from tests.test_search import MACHINE, ROUNDING, SHAPES, SMALL, Shapes, every_plan, model_of


def planned(shapes: Shapes, layout: Layout, machine: Machine, capacity: Capacity) -> Answer:
    _, tables, work = model_of(shapes, layout)
    model = StepSeconds(machine, tables, work, layout)
    return plan_tables(tables, "auto", layout, model, work, capacity)


@settings(max_examples=12)
@given(data=st.data(), shapes=SHAPES, tight=st.booleans())
def test_a_plan_for_unequal_ranks_fits_and_has_its_price(
    data: st.DataObject, shapes: Shapes, tight: bool
) -> None:
    ranks = data.draw(st.integers(1, 8))
    layout = Layout(ranks, data.draw(st.integers(1, ranks)))
    unequal = tuple(
        UnequalRanks(str(rank), data.draw(st.sampled_from((0.3, 0.5, 1.0))), speed)
        for rank in range(ranks)
        if (speed := data.draw(st.sampled_from((0.0, 0.25, 0.5, 1.0, 2.0))))
    )
    machine = replace(MACHINE, unequal=unequal)
    size = sum(rows * (4 * dim + 4) for rows, dim, _ in shapes)
    capacity = Capacity(hbm=int(size * (3.5 if tight else 20)), memories=("hbm",), unequal=unequal)
    answer = planned(shapes, layout, machine, capacity)
    limits = rank_limits(capacity, answer.plan.tables, answer.work, ranks)
    assert (answer.memory[:, 0] <= limits[:, 0] * ROUNDING).all()
    loads = loads_of(answer.model, answer.rectangles, ranks)
    np.testing.assert_allclose(answer.loads, loads, rtol=1e-12)
    np.testing.assert_allclose(answer.seconds, step_seconds(answer.model, loads), rtol=1e-12)
    assert answer.bound <= answer.seconds * ROUNDING
    trials = Trials(answer, capacity).of_table(0)
    assert min(trial.alternative.seconds for trial in trials) > 0


@settings(max_examples=8)
@given(shapes=SMALL, speed=st.sampled_from((0.25, 0.5, 3.0)), crowding=st.sampled_from((1.0, 1.5)))
def test_the_search_comes_close_to_the_best_plan_of_unequal_ranks(
    shapes: Shapes, speed: float, crowding: float
) -> None:
    layout = Layout(2, 2)
    machine = replace(MACHINE, unequal=(UnequalRanks("1", 1.0, speed),))
    _, tables, work = model_of(shapes, layout)
    model = StepSeconds(machine, tables, work, layout)
    model.crowding = crowding
    answer = plan_tables(tables, "auto", layout, model, work)
    options = options_of(
        SearchTask(tables, ["auto"] * len(tables), layout, model, work, Capacity())
    )
    exact = every_plan(options, layout, rank_limits(Capacity(), tables, work, layout.ranks))
    assert answer.bound - model.fixed_seconds <= exact * ROUNDING
    assert exact <= (answer.seconds - model.fixed_seconds) * ROUNDING
    assert answer.seconds - model.fixed_seconds <= 1.1 * exact


def test_a_slow_rank_has_less_to_do_and_a_small_one_less_to_hold() -> None:
    shapes = [(2000, 64, 20)] * 40
    layout = Layout(4, 4)
    machine = replace(MACHINE, unequal=(UnequalRanks("0", 0.25, 1.0), UnequalRanks("3", 1.0, 0.5)))
    capacity = replace(Capacity.of_machine(machine, ("hbm",)), hbm=12_000_000, buffers=False)
    answer = planned(shapes, layout, machine, capacity)
    held = answer.memory[:, 0]
    assert held[0] <= 12_000_000 / 4
    assert held[3] < 0.7 * held[1]
    # all finish together all the same, but for the one that is full
    assert answer.loads.sum(axis=1)[1:].min() > 0.8 * answer.loads.sum(axis=1).max()
    alike = planned(shapes, layout, MACHINE, replace(capacity, unequal=()))
    assert alike.seconds < answer.seconds


FILE = """
[[unequal]]
ranks = "0-3, 8"
memory = 0.5
speed = 0.8
"""


def test_a_machines_file_says_which_ranks_are_unequal() -> None:
    machine = loads(text(load("zionex")) + FILE)
    assert machine.unequal == (UnequalRanks("0-3, 8", 0.5, 0.8),)
    assert loads(text(machine)) == machine


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("0-3, 8", "3-0", r"unequal\[0\].ranks: '3-0' must ascend"),
        ("memory = 0.5", "memory = 0", r"unequal\[0\].memory: 0.0 must be above 0"),
        ("speed = 0.8", "speed = 0", r"unequal\[0\].speed: 0 must be above 0"),
        ("speed", "spede", "spede: no such key; did you mean"),
        ("speed = 0.8", '[[unequal]]\nranks = "8"', "rank 8 is in an entry above"),
    ],
)
def test_entries_that_are_none_are_told(old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loads(text(load("zionex")) + FILE.replace(old, new))


def test_a_simulation_refuses_unequal_ranks(tmp_path: Path) -> None:
    path = tmp_path / "box.toml"
    path.write_text(text(load("zionex")) + FILE)
    arguments = ["mlperf-like", "--machine", str(path), "--ranks", "16"]
    outcome = CliRunner().invoke(simulate, arguments)
    assert isinstance(outcome.exception, ConfigError)
    assert "ranks of a simulation are alike" in str(outcome.exception)


JOB = """
[data]
train = "none.h5"
[model]
embedding_dim = 16
[training]
batch_size = 64
[parallel]
plan = {plan}
[tables]
a = {{ rows = 20000 }}
b = {{ rows = 20000 }}
"""


def test_jobs_on_one_machine_share_its_memory(tmp_path: Path) -> None:
    """Three jobs that each take most of two of the four ranks: only two have room."""
    machine = replace(
        MACHINE,
        name="box",
        ddr=MemoryPeak(),
        ssd=MemoryPeak(),
        compute=ComputePeak(fp32_flops_per_s=1e9),
    )
    (tmp_path / "box.toml").write_text(text(machine))
    machine_options = ["--machine", str(tmp_path / "box.toml"), "--ranks", "4", "--reserve", "0.8"]
    for name in ("auto", "one.json", "two.json"):
        (tmp_path / f"{name}.toml").write_text(JOB.format(plan=f'"{name}"'))
    job = str(tmp_path / "auto.toml")

    def run(*options: str) -> Result:
        return CliRunner().invoke(plan, [job, *machine_options, *options])

    keep = ["--set", "parallel.plan=table_wise"]
    assert run(*keep, "--out", str(tmp_path / "one.json")).exit_code == 0
    one = ["--beside", str(tmp_path / "one.json.toml")]
    assert run(*keep, *one, "--out", str(tmp_path / "two.json")).exit_code == 0
    files = [load_plan(tmp_path / f"{name}.json") for name in ("one", "two")]
    assert files[0] | files[1] == {0, 1, 2, 3} and not files[0] & files[1]
    third = run(*keep, *one, "--beside", str(tmp_path / "two.json.toml"))
    assert isinstance(third.exception, PlanError)
    wrong = run("--beside", job)
    assert "its parallel.plan must be a plan file" in str(wrong.exception)


def load_plan(path: Path) -> set[int]:
    """Ranks that a plan file names."""
    tables = json.loads(path.read_text())["tables"]
    return {rectangle["rank"] for table in tables for rectangle in table["rectangles"]}
