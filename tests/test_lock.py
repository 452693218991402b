"""Is a folder of results kept to one run, and from being overwritten?"""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neocpu.errors import TrainingError
from neocpu.parallel.comm import Comm, SingleComm
from neocpu.parallel.threads import run_threads
from neocpu.training import run_folder as lock
from neocpu.training.run_folder import RunLock

HOLD = """
import sys, time
from pathlib import Path
from neocpu.parallel.comm import SingleComm
from neocpu.training import run_folder as lock
if sys.argv[2] == "plain":
    lock.fcntl = None
with lock.RunLock(Path(sys.argv[1]), SingleComm(), resume=True):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["flock", "plain"])
def test_a_second_run_is_refused_and_a_killed_one_leaves_the_folder_free(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "plain":
        monkeypatch.setattr(lock, "fcntl", None)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), kind], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(TrainingError, match=f"in use by another run: process {holder.pid} on"):
            RunLock(tmp_path, SingleComm(), resume=True).__enter__()
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    with RunLock(tmp_path, SingleComm(), resume=True):
        pass


def test_results_are_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"
    with RunLock(out, SingleComm(), resume=False):
        (out / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(
        TrainingError, match=r"already has results \(metrics\.jsonl\); go on with --resume"
    ):
        RunLock(out, SingleComm(), resume=False).__enter__()
    for _ in range(2):
        with RunLock(out, SingleComm(), resume=True):
            pass


def test_all_ranks_hear_the_same(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")

    def body(comm: Comm) -> str:
        with pytest.raises(TrainingError) as caught:
            RunLock(tmp_path, comm, resume=False).__enter__()
        return str(caught.value)

    assert len(set(run_threads(3, body))) == 1
    with RunLock(tmp_path, SingleComm(), resume=True):  # rank 0 let go of it
        pass


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match=r"cannot be used for results: .*choose another --out"):
        RunLock(tmp_path / "file" / "run", SingleComm(), resume=False).__enter__()


def test_file_systems_without_locks_use_an_exclusive_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with RunLock(tmp_path, SingleComm(), resume=False):
        assert "process" in (tmp_path / "lock.held").read_text()
        with pytest.raises(TrainingError, match=f"in use by another run: process {os.getpid()}"):
            RunLock(tmp_path, SingleComm(), resume=False).__enter__()
    assert not (tmp_path / "lock.held").exists()
    (tmp_path / "lock.held").write_text("process 1 on elsewhere since 2020-01-01 00:00:00\n")
    with pytest.raises(TrainingError, match=r"on elsewhere .*remove .*lock\.held"):
        RunLock(tmp_path, SingleComm(), resume=False).__enter__()
