"""Is a folder of results kept to one run, and from being overwritten?"""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from neocpu.core.errors import TrainingError
from neocpu.core.targets import part_of, remove_parts, whole_file
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.storage import lock as storage_lock
from neocpu.train.run import folder as lock
from neocpu.train.run.folder import RunLock
from tests.jobs import ran

HOLD = """
import sys, time
from pathlib import Path
from neocpu.parallel.transport.comm import SingleComm
from neocpu.train.run import folder as lock
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
    monkeypatch.setattr(lock, "PATIENCE", 0.2)
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


def test_a_holder_that_has_not_said_its_name_yet_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    monkeypatch.setattr(lock, "fcntl", None)
    (tmp_path / lock.HELD).touch()
    with pytest.raises(TrainingError, match="is in use by another run; wait, or choose another"):
        RunLock(tmp_path, SingleComm(), resume=True).__enter__()


RACE = """
import multiprocessing, os, subprocess, sys
from pathlib import Path
from neocpu.tables.storage import lock

PROCESSES, ROUNDS = 6, 150
folder, dead = Path(sys.argv[1]), sys.argv[2]
fork = multiprocessing.get_context("fork")
meeting = fork.Barrier(PROCESSES)
claims = fork.Array("i", ROUNDS)

def race(rank):
    for number in range(ROUNDS):
        path = folder / f"{number}.held"
        if rank == 0:
            path.write_text(dead)
        meeting.wait()
        claimed = lock.claim(path)
        with claims.get_lock():
            claims[number] += claimed
        meeting.wait()

racers = [fork.Process(target=race, args=(rank,)) for rank in range(PROCESSES)]
for racer in racers:
    racer.start()
for racer in racers:
    racer.join()
print([claims[number] for number in range(ROUNDS) if claims[number] != 1])
"""


@pytest.fixture(scope="module")
def dead() -> str:
    """The line of a lock file whose process is no more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return f"process {process.pid} on {socket.gethostname()} since 2020-01-01 00:00:00\n"


def test_of_many_processes_that_find_a_dead_ones_file_one_gets_it(
    tmp_path: Path, dead: str
) -> None:
    done = ran([sys.executable, "-c", RACE, str(tmp_path), dead], timeout=120)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert len(list(tmp_path.iterdir())) == 150  # and nothing beside the lock files


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_who_sees_a_dead_holder_does_not_remove_the_next_one(
    tmp_path: Path, dead: str, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process stops after it saw that the holder is dead; another one claims meanwhile."""
    path = tmp_path / "x.held"
    path.write_text(dead)
    looks_dead = storage_lock._holder_is_dead
    inner: list[bool] = []

    def pause(text: str) -> bool:
        monkeypatch.setattr(storage_lock, "_holder_is_dead", looks_dead)
        inner.append(storage_lock.claim(path))
        return True

    if not links:
        monkeypatch.setattr(os, "link", refuse_links)
    monkeypatch.setattr(storage_lock, "_holder_is_dead", pause)
    assert [storage_lock.claim(path), *inner] == [False, True]
    assert f"process {os.getpid()} on" in path.read_text()


def test_a_dead_process_of_another_machine_of_that_name_may_live(tmp_path: Path, dead: str) -> None:
    path = tmp_path / "x.held"
    mine = storage_lock.holder()
    number = mine.split()[1]
    text = mine.replace(f"process {number} ", f"process {dead.split()[1]} ")
    path.write_text(text.replace("(machine ", "(machine 0"))
    assert not storage_lock.claim(path)
    path.write_text(text)
    assert storage_lock.claim(path)


def refuse_links(*paths: object) -> None:
    """`os.link` of a file system that has none."""
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_a_process_killed_while_it_replaces_a_dead_holder_stops_nobody(
    tmp_path: Path, dead: str
) -> None:
    path = tmp_path / "x.held"
    path.write_text(dead)
    stale = storage_lock._read(path)
    assert stale is not None
    storage_lock._successor(path, stale).write_text(dead)
    (tmp_path / ".x.held.1-2").write_text(dead)
    assert storage_lock.claim(path)
    assert not storage_lock.claim(path)
    assert [left.name for left in tmp_path.iterdir()] == ["x.held"]


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


def test_what_a_killed_run_had_not_finished_goes_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for name in (".plan.json.part-a-123", ".fit.h5.part-b-7", "checkpoints/.step-2.partial"):
        (tmp_path / name).write_text("half")
    (tmp_path / ".plan.json.mine").write_text("another program's")
    with RunLock(tmp_path, SingleComm(), resume=False):
        assert sorted(path.name for path in tmp_path.rglob("*")) == [
            ".plan.json.mine",
            "checkpoints",
            "lock",
        ]


def test_parts_of_dead_processes_of_this_host_go(tmp_path: Path, dead: str) -> None:
    path = tmp_path / "log[1].tsv"
    number = dead.split()[1]
    mine = part_of(path)
    dead_one = mine.with_name(mine.name.rpartition("-")[0] + f"-{number}")
    elsewhere = path.with_name(f".{path.name}.part-elsewhere-{number}")
    for part in (mine, dead_one, elsewhere):
        part.write_text("half")
    remove_parts(path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, elsewhere])


def test_who_writes_a_file_next_removes_the_part_of_a_process_that_was_killed(
    tmp_path: Path, dead: str
) -> None:
    path = tmp_path / "model.onnx"
    part_of(path).with_name(part_of(path).name.rpartition("-")[0] + f"-{dead.split()[1]}").touch()
    with whole_file(path) as part:
        part.write_text("whole")
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_with_nul_is_an_error_with_words() -> None:
    with pytest.raises(TrainingError, match=r"cannot be used for results: .*embedded null"):
        RunLock(Path("a\0b"), SingleComm(), resume=False).__enter__()


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
