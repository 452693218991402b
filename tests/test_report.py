"""Are a run's files whole, in order after a resume, and written by rank 0 alone?"""

import importlib.util
import json
from pathlib import Path

import pytest

from neocpu.embedding.specs import TableSpec
from neocpu.parallel.plan import Plan, place
from neocpu.training import results as reports
from neocpu.training.metrics import Metrics
from neocpu.training.results import RunReport, versions


def lines(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def measured(value: float) -> Metrics:
    return Metrics(10, value, 0.9, None, 1.0, 0.5)


def test_metrics_are_json_lines_and_are_told(tmp_path: Path) -> None:
    shown: list[str] = []
    report = RunReport(tmp_path, 0, tell=shown.append)
    report.metrics(4, 40, "valid", measured(0.5))
    assert lines(tmp_path) == [
        {
            "step": 4,
            "samples": 40,
            "split": "valid",
            "measured": 10,
            "logloss": 0.5,
            "ne": 0.9,
            "auc": None,
            "calibration": 1.0,
            "accuracy": 0.5,
        }
    ]
    assert shown == [
        "step 4, valid: logloss 0.50000, ne 0.90000, calibration 1.00000, accuracy 0.50000"
    ]


def test_after_a_resume_no_step_is_measured_twice(tmp_path: Path) -> None:
    first = RunReport(tmp_path, 0)
    for step in (10, 20, 30):
        first.metrics(step, step, "train", measured(0.5))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 40, "samp')
    second = RunReport(tmp_path, 0)
    for split in ("train", "valid"):
        second.metrics(20, 20, split, measured(0.4))
    assert [(line["step"], line["split"], line["logloss"]) for line in lines(tmp_path)] == [
        (10, "train", 0.5),
        (20, "train", 0.4),
        (20, "valid", 0.4),
    ]


def test_plan_summary_and_picture(tmp_path: Path) -> None:
    report = RunReport(tmp_path, 0)
    plan = place([TableSpec("C1", 9, 4, ("C1",))], ["row_wise"], 2)
    report.plan(plan)
    report.metrics(1, 10, "train", measured(0.5))
    report.finish({"digest": "ab", "steps": 1})
    assert Plan.from_dict(json.loads((tmp_path / "plan.json").read_text())) == plan
    assert json.loads((tmp_path / "run.json").read_text()) == {"digest": "ab", "steps": 1}
    assert (tmp_path / "loss.png").exists() == (importlib.util.find_spec("matplotlib") is not None)
    assert not list(tmp_path.glob(".*"))


def test_without_matplotlib_there_is_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports.importlib.util, "find_spec", lambda name: None)
    report = RunReport(tmp_path, 0)
    report.metrics(1, 10, "train", measured(0.5))
    report.finish({})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl", "run.json"]


def test_other_ranks_write_and_say_nothing(tmp_path: Path) -> None:
    report = RunReport(tmp_path, 1, tell=pytest.fail)
    report.tell("hello")
    report.metrics(1, 1, "train", measured(0.5))
    report.finish({})
    with report.progress(10, 0) as advance:
        advance(1, 5)
    assert not list(tmp_path.iterdir())


def test_versions() -> None:
    names = versions()
    assert (
        set(names) >= {"python", "neocpu", "numba", "numpy", "mpi4py", "h5py"}
        and "unknown" not in names.values()
    )
