"""Does a sweep try what it was asked to, once, and rank it?"""

import csv
import json
from pathlib import Path
from typing import IO, Any

import pytest

from neocpu.core.errors import ConfigError, Stopped, TrainingError
from neocpu.train.run.trainer import Trainer
from neocpu.train.sweep import runs
from neocpu.train.sweep.runs import Interrupted
from neocpu.train.sweep.space import grid_axis, points, random_axis
from neocpu.train.sweep.trials import SweepFolder, SweepTrial
from tests.jobs import invoke
from tests.small_run import CONFIG, write_log


def test_a_grid_is_all_its_points() -> None:
    grid = [grid_axis("model.top=[5,1],[1]"), grid_axis("optimizer.dense.name=sgd,adam")]
    chosen = points(grid, [], 0, 1)
    assert [list(point.values()) for point in chosen] == [
        [[5, 1], "sgd"],
        [[5, 1], "adam"],
        [[1], "sgd"],
        [[1], "adam"],
    ]
    trial = SweepTrial(1, chosen[1] | {"parallel.plan": {"C*": "row_wise"}, "x": 1e-5})
    assert trial.overrides == [
        "model.top=[5, 1]",
        'optimizer.dense.name="adam"',
        'parallel.plan={ "C*" = "row_wise" }',
        "x=1e-05",
    ]


def test_draws_stay_when_more_are_asked_for() -> None:
    axes = [random_axis("a=log(1e-3, 1e-1)"), random_axis("b=int(2,5)")]
    few = points([], axes, 3, 7)
    many = points([], [*axes, random_axis("c=uniform(-1,1)"), random_axis("d=x,y")], 20, 7)
    assert [{"a": point["a"], "b": point["b"]} for point in many[:3]] == few
    assert all(1e-3 <= point["a"] <= 1e-1 and -1 <= point["c"] <= 1 for point in many)
    assert {point["b"] for point in many} == {2, 3, 4, 5}
    assert {point["d"] for point in many} == {"x", "y"}
    assert points([], axes, 3, 8) != few
    both = points([grid_axis("g=1,2")], axes, 2, 7)
    assert [point["g"] for point in both] == [1, 1, 2, 2] and both[0]["a"] == both[2]["a"]


@pytest.mark.parametrize(
    ("grid", "random", "trials", "words"),
    [
        (["a"], [], 0, "write it as key=values"),
        (["a=1", "a=2"], [], 0, "a is there twice"),
        ([], [], 0, "nothing to try"),
        ([], ["a=log(0,1)"], 1, "begins above 0"),
        ([], ["a=int(1.5,3)"], 1, "invalid literal"),
        ([], ["a=uniform(3,1)"], 1, "must be below"),
        ([], ["a=log(1,2)"], 0, "needs --trials"),
        (["a=1"], [], 3, "a grid is tried whole"),
        (["a=[1,2"], [], 0, "no list of TOML values"),
    ],
)
def test_what_cannot_be_tried(grid: list[str], random: list[str], trials: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        points([*map(grid_axis, grid)], [*map(random_axis, random)], trials, 1)


def test_a_sweep_ranks_goes_on_and_outlives_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "log.h5")
    (tmp_path / "c.toml").write_text(CONFIG)
    out = tmp_path / "out"
    sweep: list[Any] = ["sweep", tmp_path / "c.toml", "--out", out]
    sweep += ["--set", f"data.train={log}", "--set", f"data.test={log}"]
    rates = "optimizer.dense.learning_rate"
    done = invoke(*sweep, "--grid", f"{rates}=0.1,1e30", "--grid", "model.top=[5,1],[2]")
    ranked = json.loads((out / "results.json").read_text())
    assert [trial["settings"] for trial in ranked[:1]] == [{rates: 0.1, "model.top": [5, 1]}]
    assert ranked[0]["split"] == "test" and ranked[0]["error"] == ""
    errors = {trial["trial"]: trial["error"] for trial in ranked[1:]}
    assert "it must be 1" in errors["trial-0002"] and "is nan" in errors["trial-0003"]
    assert done.output.count("failed:") == 6  # as each ended, and below the table
    with open(out / "results.csv") as file:
        rows = [*csv.DictReader(file)]
    assert float(rows[0]["logloss"]) == ranked[0]["metrics"]["logloss"]
    assert rows[0]["model.top"] == "[5, 1]" and rows[0]["seconds"]

    # the same once more, with another value: only that is run, and a kill loses little
    state = json.loads((out / "sweep.json").read_text())
    state["trials"][0].update(metrics={}, split="")  # as killed after run.json was written
    (out / "sweep.json").write_text(json.dumps(state))
    run = Trainer.run
    runs: list[Path] = []

    def stopped(trainer: Trainer) -> Any:
        runs.append(trainer.out)
        raise Stopped(15, "stopped after step 1")

    monkeypatch.setattr(Trainer, "run", stopped)
    more = [*sweep, "--grid", f"{rates}=0.1,0.01", "--grid", "model.top=[5,1]"]
    with pytest.raises(Interrupted, match="stopped during trial-0005") as interrupted:
        invoke(*more)
    assert interrupted.value.exit_status == 143 and len(runs) == 1
    monkeypatch.setattr(Trainer, "run", run)
    done = invoke(*more)
    assert "2/2 trial-0005" in done.output and "trial-0002" not in done.output
    table = [line.split() for line in done.output.splitlines() if line.startswith("trial")]
    assert table[0][:2] == ["trial", "split"] and table[0][-3:] == [
        "learning_rate",
        "top",
        "seconds",
    ]
    assert sorted(row[0] for row in table[1:]) == ["trial-0001", "trial-0005"]
    assert [row[2] for row in table[1:]] == sorted(row[2] for row in table[1:])
    with pytest.raises(TrainingError, match="trials of another sweep"):
        invoke(*more, "--set", "training.seed=2")


def test_a_rank_that_was_killed_fails_its_trial_and_a_signal_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "neocpu: error: rank 1 was killed by SIGKILL"

    class Ran:
        """A trial on ranks, which has ended."""

        status = 137

        def __init__(self, line: list[str], stdout: IO[bytes], stderr: int) -> None:
            stdout.write(f"{said}\n".encode())

        def wait(self) -> int:
            return self.status

    monkeypatch.setattr(runs.subprocess, "Popen", Ran)
    trial = SweepTrial(1, {})
    runs.run_on_ranks(trial, "tiny.toml", [], tmp_path, 2)
    assert trial.error == "rank 1 was killed by SIGKILL"
    Ran.status = 143
    with pytest.raises(Interrupted):
        runs.run_on_ranks(trial, "tiny.toml", [], tmp_path, 2)


def test_a_damaged_state_is_told(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(TrainingError, match="damaged"):
        SweepFolder(tmp_path, {})
