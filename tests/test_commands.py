"""Do the commands train, resume, evaluate and predict, from a raw log to files, with one digest
throughout?
"""

import errno
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

import neocpu
from neocpu.cli import train as train_command
from neocpu.core.errors import CheckpointError, DataError, TrainingError
from neocpu.serve.scoring.score_file import ScoreFile
from neocpu.train.checkpoint.reading import CheckpointFile
from tests.jobs import invoke

ROOT = Path(__file__).resolve().parent.parent
ROWS = 900


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw logs of 900 and 300 rows, and a run of 7 steps over them."""
    folder = tmp_path_factory.mktemp("commands")
    with gzip.open(ROOT / "data" / "tiny-criteo-train.tsv.gz", "rt") as file:
        lines = [next(file) for _ in range(ROWS + 300)]
    (folder / "train.tsv").write_text("".join(lines[:ROWS]))
    (folder / "test.tsv").write_text("".join(lines[ROWS:]))
    assert "digest " in train(folder, "run").output
    return folder


def train(folder: Path, out: str, *more: str, resume: bool = False) -> Result:
    sets = [
        f"data.train={folder}/train.tsv",
        f"data.test={folder}/test.tsv",
        "training.batch_size=128",
        *more,
    ]
    flags = [part for override in sets for part in ("--set", override)] + ["--resume"] * resume
    return invoke("train", ROOT / "data" / "models" / "tiny.toml", "--out", folder / out, *flags)


def summary(folder: Path, out: str = "run") -> dict[str, Any]:
    return json.loads((folder / out / "run.json").read_text())


def newest(folder: Path, out: str = "run") -> Path:
    return max((folder / out / "checkpoints").glob("*.h5"))


def test_a_run_leaves_a_summary_and_a_checkpoint(folder: Path) -> None:
    written = summary(folder)
    assert written["steps"] == 8 and written["samples"] == ROWS and written["ranks"] == 1
    assert set(written) >= {
        "digest",
        "seconds",
        "samples_per_second",
        "cold_start_seconds",
        "metrics",
        "plan",
        "traffic",
        "versions",
    }
    assert set(written["metrics"]["test"]) >= {"logloss", "ne", "auc", "calibration"}
    with CheckpointFile(newest(folder)) as file:
        assert file.digest == written["digest"] == file.recomputed_digest()
        described = json.loads(file.text("data"))
    assert described["splits"]["train"]["rows"] == ROWS


def test_results_are_safe_from_a_second_run(folder: Path) -> None:
    with pytest.raises(TrainingError, match="already has results"):
        train(folder, "run")


def test_a_resumed_run_ends_with_the_same_digest(folder: Path) -> None:
    train(folder, "halves", "training.steps=3", "checkpoint.every_steps=2")
    assert summary(folder, "halves")["digest"] != summary(folder)["digest"]
    newest(folder, "halves").unlink()  # as if killed after step 2
    done = train(folder, "halves", "checkpoint.keep=5", resume=True)
    assert "resuming from step-00000002.h5" in done.output
    assert done.output.splitlines()[-1] == f"digest {summary(folder)['digest']}"
    assert invoke("checkpoint", "diff", newest(folder), newest(folder, "halves")).return_value == 0


def test_a_summary_that_nobody_can_read_ends_no_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(train_command, "print_summary", full)
    monkeypatch.setattr(train_command, "forget_output", lambda: None)
    done = train(folder, "full", "training.steps=1")
    assert done.return_value is None
    assert "stdout cannot be written (No space left on device); the summary is" in done.output
    assert summary(folder, "full")["steps"] == 1


def test_resume_without_a_checkpoint_says_so(folder: Path) -> None:
    done = train(folder, "none", "training.steps=1", resume=True)
    assert "no complete checkpoint" in done.output and "starting at step 0" in done.output


def test_resume_at_the_end_says_that_there_is_nothing_to_train(folder: Path) -> None:
    train(folder, "short", "training.steps=2")
    done = train(folder, "short", "training.steps=1", resume=True)
    assert (
        "nothing to train: step-00000002.h5 is at step 2 and the run ends at step 1" in done.output
    )


def test_a_raw_log_is_converted_aloud_and_skipped_lines_are_counted(folder: Path) -> None:
    raw = folder / "faulty.tsv"
    lines = (folder / "train.tsv").read_text().splitlines()
    raw.write_text("\n".join([*lines[:20], "nonsense", *lines[20:40]]) + "\n")
    done = train(folder, "faulty", f"data.train={raw}", "data.on_error=skip", "training.steps=1")
    assert "train: converting" in done.output
    assert "1 malformed lines of" in done.output and ".errors.txt" in done.output


def test_compile_plans_with_the_data_once_it_is_converted(folder: Path) -> None:
    model = ROOT / "data" / "models" / "tiny.toml"
    done = invoke("compile", model, "--set", f"data.train={folder}/train.tsv")
    assert "are ready after" in done.output and "not converted yet" not in done.output
    done = invoke("compile", model, "--set", f"data.train={folder}/none.tsv")
    assert "not converted yet" in done.output


def test_resume_refuses_changed_keys_and_other_data(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"training\.seed was 1, now 2"):
        train(folder, "run", "training.seed=2", resume=True)
    with pytest.raises(
        CheckpointError,
        match=rf"data\.train are other data now: 300 rows .* on {ROWS} rows.*training\.init_from",
    ):
        train(folder, "run", f"data.train={folder}/test.tsv", resume=True)


def test_eval_gives_the_metrics_of_the_run(folder: Path) -> None:
    done = invoke("eval", newest(folder), folder / "test.tsv", "--json")
    assert json.loads(done.stdout.splitlines()[-1]) == summary(folder)["metrics"]["test"]
    assert (
        "auc "
        in invoke(
            "eval", newest(folder), folder / "test.tsv", "--set", "training.batch_size=128"
        ).stdout
    )


def test_predict_writes_all_rows_in_order(folder: Path) -> None:
    done = invoke("predict", newest(folder), folder / "test.tsv", "--out", folder / "scores.csv")
    assert "300 predictions" in done.output
    lines = (folder / "scores.csv").read_text().splitlines()
    assert lines[0] == "row,prediction"
    rows, scores = zip(*(line.split(",") for line in lines[1:]))
    assert [int(row) for row in rows] == list(range(300))
    assert len(set(scores)) > 250 and all(0 < float(score) < 1 for score in scores)
    unlabelled = "".join(
        line.partition("\t")[2] for line in (folder / "test.tsv").read_text().splitlines(True)
    )
    (folder / "unlabelled.tsv").write_text(unlabelled)
    invoke(
        "predict",
        newest(folder),
        folder / "unlabelled.tsv",
        "--unlabelled",
        "--out",
        folder / "again.csv",
    )
    assert (folder / "again.csv").read_text() == (folder / "scores.csv").read_text()


def test_predictions_that_fail_leave_no_file(tmp_path: Path) -> None:
    writer = ScoreFile(tmp_path / "scores.csv")
    writer.write(np.array([0.1, 0.25], np.float32))
    writer.discard()
    assert not list(tmp_path.iterdir())


def test_predictions_on_a_full_disk_are_told(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / ".p.csv.partial").symlink_to("/dev/full")
    writer = ScoreFile(tmp_path / "p.csv")
    writer.write(np.zeros(10, np.float32))
    with pytest.raises(DataError, match="cannot be written: No space left on device"):
        writer.finish()
    writer.discard()
    assert not list(tmp_path.iterdir())


def test_a_model_in_a_notebook(folder: Path) -> None:
    model = neocpu.load(newest(folder))
    assert model.digest == summary(folder)["digest"]
    assert model.tables["C1"][[0, 17]].shape == (2, 8)
    assert model.dense["top.2.bias"].shape == (1,)


@pytest.fixture(autouse=True)
def threads_stay() -> Iterator[None]:
    """Commands set thread counts for their own process; this one is shared."""
    assert "numba" in sys.modules
    from neocpu.kernels.compile.threads import use_threads

    yield
    use_threads(1 << 10)
