"""Are a run's files whole, in order after a resume, and written by rank 0 alone?"""

import importlib.util
import json
import os
import shutil
import warnings
from pathlib import Path

import pytest

from neocpu.cli.train import activations_line, print_summary
from neocpu.core.errors import EnvironmentProblem
from neocpu.parallel.sharding.plan import Plan, place
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.watch import results as reports
from neocpu.train.watch.metrics import Metrics
from neocpu.train.watch.rank_log import rank_log
from neocpu.train.watch.results import RunReport, versions
from tests import recorded


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


def links(seconds: bool = False) -> dict[str, object]:
    """Traffic of a collective by link, in bytes or in seconds."""
    names = ("same_rank", "same_node", "other_node")
    if not seconds:
        return {name: {"bytes": 1234 * 10**power} for power, name in enumerate(names)}
    return {name: {"seconds": value} for name, value in zip(names, (0.9996, 1.0, None))}


def queue(name: str, hidden: float) -> dict[str, object]:
    times = {"alone": {"mean": 0.25}, "under_way": {"mean": 0.5}}
    return (
        times
        | {"name": name, "queue": "input", "hidden": hidden}
        | {"exposed": {"mean": 0.125, "max": 0.75}}
    )


SUMMARY = {
    "metrics": {"train": {"logloss": 0.5, "auc": None, "samples": 12}, "test": {"auc": 0.75}},
    "baseline": {
        "split": "test",
        "model": "logistic regression",
        "rows": 12_345,
        "metrics": {"logloss": 0.5, "auc": 0.625, "calibration": None},
    },
    "steps": 10,
    "samples": 12_000,
    "seconds": 2.5,
    "samples_per_second": 4800.0,
    "cold_start_seconds": 1.25,
    "memory_per_rank": 3 << 20,
    "checkpoints": {
        "written": 3,
        "of_changes": 1,
        "in_background": 2,
        "bytes": 5 << 20,
        "seconds": 0.5,
        "parity": {"seconds": 0.25, "bytes": 7 << 20},
        "mirror": {"place": "there", "files": 2, "bytes": 6 << 20, "seconds": 1.5, "behind": 1},
        "cost_seconds": 0.75,
        "mtbf_hours": 24.0,
        "best_minutes": 6.5,
        "lost_share": 0.0125,
    },
    "ranks": 2,
    "traffic": {"alltoall": {"calls": 1500, **links()}},
    "machine": {
        "name": "zionex",
        "nodes": 2,
        "ranks_per_node": 8,
        "collectives": {
            "alltoall": {**links(seconds=True), "seconds": 2.0, "waited_seconds": 0.5},
        },
    },
    "readers": {
        "count": 3,
        "by_reader": [
            {"samples": 3000, "seconds": 1.5},
            {"samples": 0, "seconds": 0.0},
            {"samples": 9000, "seconds": 3.0},
        ],
        "waited_seconds": 0.5,
        "started_seconds": 1.75,
        "depth": 2.5,
        "queue_bytes": 9 << 20,
    },
    "tiers": [
        {
            "table": "a_long_name_of_a_table",
            "tier": "hbm",
            "rows": 1000,
            "bytes": 4 << 20,
            "unique": 800,
            "unique_misses": 100,
            "conflict_unique_misses": 1234,
        },
        {
            "table": "t",
            "tier": "ssd",
            "rows": 20_000,
            "bytes": 8 << 20,
            "index_bytes": 60_000,
            "read": 1100,
            "written": 2200,
        },
        {"table": "u", "tier": "hbm", "rows": 0, "bytes": 0, "unique": 0}
        | {"unique_misses": 0, "conflict_unique_misses": 0},
    ],
    "stall_seconds": 0.125,
    "crash_cost": {"steps": 4, "seconds": 1.5},
    "digest": "abc",
}


def test_what_a_run_says_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    for set_speed in (False, True):
        queues = [queue("input", 0.75)]
        exchanges = {"set_speed": set_speed, "queues": queues, "collectives": [queue("a", 0.5)]}
        print_summary({**SUMMARY, "exchanges": exchanges}, Path("out"))
    alone = {"ranks": 1, "cold_start_seconds": None, "baseline": None, "tiers": []}
    print_summary({**SUMMARY, **alone, "seconds": 0.0}, Path("out"))
    recorded.check("what a run says", recorded.lines_of(capsys.readouterr().out))


def test_what_is_said_of_activations() -> None:
    sizes = {"block": 3 << 20, "budget": 4 << 20, "moved": 5 << 19}
    assert activations_line({**sizes, "remade": 1234, "stall_seconds": 0.25}) == (
        "activations: 3.0 of 4.0 MiB; 2.5 MiB left and came back, 1,234 were computed again; "
        "steps waited 0.25 s"
    )


def test_without_matplotlib_there_is_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports.importlib.util, "find_spec", lambda name: None)
    report = RunReport(tmp_path, 0)
    report.metrics(1, 10, "train", measured(0.5))
    report.finish({})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl", "run.json"]


def test_what_a_picture_raises_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(picture: Path) -> None:
        raise ValueError("Key backend: 'nonsense' is not a valid value;\n supported are ['agg']")

    monkeypatch.setattr(reports, "draw", fail)
    shown: list[str] = []
    RunReport(tmp_path, 0, tell=shown.append).finish({"digest": "ab"})
    assert json.loads((tmp_path / "run.json").read_text()) == {"digest": "ab"}
    (line,) = shown
    assert line == (
        f"warning: {tmp_path}/loss.png cannot be written: Key backend: 'nonsense' is not a valid "
        "value; supported are ['agg']; the run goes on without it"
    )


def test_metrics_on_a_full_disk_are_told_once_and_no_half_line_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    full = True

    def write(file: int, data: bytes) -> int:
        return real(file, data[:20] if full else data)

    shown: list[str] = []
    report = RunReport(tmp_path, 0, tell=shown.append)
    report.metrics(1, 10, "train", measured(0.5))
    monkeypatch.setattr(reports.os, "write", write)
    for step in (2, 3):
        report.metrics(step, 10 * step, "train", measured(0.5))
    full = False
    report.metrics(4, 40, "train", measured(0.5))
    assert [line["step"] for line in lines(tmp_path)] == [1, 4]
    (line,) = (line for line in shown if not line.startswith("step "))
    assert line == (
        f"warning: {tmp_path}/metrics.jsonl cannot be written: No space left on device; the run "
        "goes on without it"
    )
    assert len(shown) == 5


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    shown: list[str] = []
    report = RunReport(out, 0, tell=shown.append)
    report.ranks({"token": "of the job"})
    report.metrics(1, 10, "train", measured(0.5))
    shutil.rmtree(out)
    report.metrics(2, 20, "train", measured(0.5))
    report.metrics(3, 30, "train", measured(0.5))
    assert [line["step"] for line in lines(out)] == [2, 3]
    assert json.loads((out / "ranks.json").read_text()) == {"token": "of the job"}
    assert [line for line in shown if not line.startswith("step ")] == [
        f"{out} was removed while the run writes to it, and is made again"
    ]
    shutil.rmtree(out)
    out.write_text("in the way")
    report.finish({})
    assert [line.split(":")[0] for line in shown[-2:]] == ["warning", "warning"]


def test_a_line_that_nobody_can_read_ends_no_run(tmp_path: Path) -> None:
    shown: list[str] = []

    def tell(text: str) -> None:
        shown.append(text)
        raise BrokenPipeError(32, "Broken pipe")

    report = RunReport(tmp_path, 0, tell=tell)
    for step in (1, 2):
        report.metrics(step, 10, "train", measured(0.5))
    assert len(shown) == 1
    assert len(lines(tmp_path)) == 2


def test_bytes_that_are_no_text_are_dropped_on_resume(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\xff\xfe\n' + b"[" * 9999)
    RunReport(tmp_path, 0).metrics(2, 20, "train", measured(0.5))
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


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


def test_listeners_hear_every_line_and_one_that_fails_is_dropped(tmp_path: Path) -> None:
    shown: list[str] = []
    heard: list[dict[str, object]] = []

    def failing(line: dict[str, object]) -> None:
        raise KeyError("no such board")

    def spoiling(line: dict[str, object]) -> None:
        heard.append(dict(line))
        line.clear()

    listeners = (failing, spoiling, heard.append, lambda line: line["step"] == 2)
    report = RunReport(tmp_path, 0, tell=shown.append, listeners=listeners)
    report.metrics(1, 10, "train", measured(0.5))
    assert not report.stop_asked
    report.metrics(2, 20, "train", measured(0.5))
    assert report.stop_asked
    first, second = lines(tmp_path)
    assert heard == [first, first, second, second]
    warnings = [line for line in shown if line.startswith("warning")]
    assert len(warnings) == 1 and "KeyError: 'no such board'" in warnings[0]


def test_each_rank_logs_its_phases_its_warnings_and_its_end(tmp_path: Path) -> None:
    def body(comm: Comm) -> None:
        with rank_log(tmp_path / "logs", comm) as log:
            report = RunReport(tmp_path, comm.rank, log=log)
            report.tell("hello")
            report.note(f"phase of rank {comm.rank}")
            if comm.rank == 0:
                warnings.warn("mind the gap", stacklevel=1)
            comm.barrier()

    with pytest.warns(UserWarning, match="mind the gap"):
        run_threads(2, body)
    first, second = ((tmp_path / "logs" / f"rank-{rank}.log").read_text() for rank in (0, 1))
    for text in ("rank 0 of 2", "hello", "phase of rank 0", "done"):
        assert text in first
    assert "phase of rank 1" in second and "hello" not in second
    with pytest.raises(KeyError), rank_log(tmp_path / "logs", SingleComm()):
        raise KeyError("lost")
    again = (tmp_path / "logs" / "rank-0.log").read_text()
    assert again.startswith(first) and "ended by KeyError: 'lost'" in again
    assert "Traceback" in again
    (tmp_path / "file").touch()
    with (
        pytest.raises(EnvironmentProblem, match=r"rank-0\.log: cannot be written"),
        rank_log(tmp_path / "file", SingleComm()),
    ):
        pass
