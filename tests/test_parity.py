"""Do the rows of ranks that are killed come back from memory, whenever and whichever are killed?

Ranks are threads here, and a kill is an exception that nobody catches, between any two writes to
what outlives them; `test_parity_kills.py` kills processes.
"""

import gc
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.core.errors import ConfigError, TrainingError
from neocpu.parallel.parity.groups import groups_of
from neocpu.parallel.parity.records import checksum
from neocpu.parallel.transport import comm as comm_file
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.storage.lasting import LastingFile
from neocpu.train.checkpoint import keeping
from neocpu.train.checkpoint.keeping import RECORD
from neocpu.train.run.online import OnlineTrainer
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.results import RunReport
from tests.small_run import config_of

STEPS = 12
SETS = ("training.epochs=4", "training.batch_size=64")
SHAPES = {
    "rows of one float state": ("optimizer.sparse.name=exact_rowwise_adagrad",),
    "two states of a column": ("optimizer.sparse.name=adam", 'parallel.plan="row_wise"'),
    "halves": ("model.embedding_format=bf16_split", 'parallel.plan="column_wise"'),
    "codes": ("model.embedding_format=fp8_e4m3", "optimizer.sparse.name=exact_adagrad"),
    "copies": ('parallel.plan={one = "data_parallel", many = "row_wise"}',),
    "pipelined": ("training.pipeline=full", "eval.every_steps=2"),
}


class Killed(BaseException):
    """A rank is no more."""


@dataclass
class Kill:
    """Kills a rank at one of its writes.

    at : which of them, counted from 0. after : is it done before the rank ends?
    """

    rank: int
    at: int
    after: bool
    count: int = field(default=0)

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of `LastingFile` with the kill."""

        def killing(file: LastingFile, *arguments: Any) -> Any:
            if file.facts["rank"] != self.rank:
                return method(file, *arguments)
            self.count += 1
            if self.count - 1 == self.at and not self.after:
                raise Killed
            result = method(file, *arguments)
            if self.count - 1 == self.at:
                raise Killed
            return result

        return killing


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder for what outlives ranks."""
    folder = tmp_path / "memory"
    folder.mkdir()
    yield folder
    gc.collect()  # locks of files end with their maps


def run(
    log: Path, out: Path, *sets: str, ranks: int, resume: bool = False
) -> tuple[str, list[str]]:
    """The digest of a run, and the lines it told."""
    told: list[str] = []
    config = config_of(log, *SETS, *sets)

    def body(comm: Comm) -> str:
        report = RunReport(out, comm.rank, tell=told.append)
        return str(Trainer(config, comm, out, resume=resume, report=report).run()["digest"])

    return run_threads(ranks, body, timeout=60)[0], told


def killed(log: Path, out: Path, kill: Kill, *sets: str, ranks: int) -> bool:
    """Run until a rank is killed; was it, before the end?"""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("log", "write_note", "complete", "begin"):
            patch.setattr(LastingFile, name, kill.around(getattr(LastingFile, name)))
        try:
            run(log, out, *sets, ranks=ranks)
        except Killed:
            pass
        else:
            return False
    gc.collect()
    return True


def left_of(memory: Path) -> dict[int, Path]:
    return {int(path.name.rpartition("-")[2]): path for path in memory.glob("neocpu-*")}


@pytest.fixture(scope="module")
def digests(log: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of runs that nobody touches, by shape."""
    folder = tmp_path_factory.mktemp("whole")
    return {
        shape: run(log, folder / str(number), *sets, ranks=1)[0]
        for number, (shape, sets) in enumerate(SHAPES.items())
    }


@settings(max_examples=12)
@given(data=st.data())
def test_a_run_goes_on_whoever_is_killed_whenever(
    data: st.DataObject,
    log: Path,
    digests: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("killed")
    memory = folder / "memory"
    memory.mkdir()
    shape = data.draw(st.sampled_from(list(SHAPES)))
    ranks = data.draw(st.integers(2, 4))
    parity = data.draw(st.integers(1, 3))
    kill = Kill(data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, 110)), True)
    kill.after = data.draw(st.booleans())
    every = data.draw(st.integers(1, 3))
    sets = (*SHAPES[shape], f"checkpoint.parity={parity}", f'memory.folder="{memory}"')
    sets += (f"checkpoint.parity_every={every}",)
    if not killed(log, folder / "out", kill, *sets, ranks=ranks):
        assert not left_of(memory)
        return
    files = left_of(memory)
    begun = len(files) == ranks and min(
        LastingFile.open(p, lock=False).turn for p in files.values()
    )
    lost = data.draw(st.integers(-1, ranks - 1))  # -1: none
    gone = lost in files and data.draw(st.booleans())
    if gone:
        files[lost].unlink()
    elif lost in files:
        damage(files[lost])
    again = data.draw(st.integers(1, 4))
    digest, told = run(log, folder / "out", *sets, ranks=again, resume=True)
    assert digest == digests[shape], told
    if begun is not False and begun > 0:
        assert any("left in memory by" in line for line in told), told
        assert any(f"rank {lost} was gone" in line for line in told) == gone, told
    assert not left_of(memory)
    assert not (folder / "out" / RECORD).exists()


def damage(path: Path) -> None:
    """Turn bits of rows, some of which a step has changed."""
    file = LastingFile.open(path, lock=False)
    file.data[np.flatnonzero(file.data)[::7]] ^= 4


def test_two_lost_ranks_of_a_group_mean_the_checkpoint(
    log: Path, memory: Path, tmp_path: Path
) -> None:
    sets = (f'memory.folder="{memory}"', "checkpoint.every_steps=4")
    kill = Kill(0, 79, False)  # some steps after the second checkpoint was begun
    assert killed(log, tmp_path / "out", kill, *sets, "checkpoint.parity=3", ranks=4)
    files = left_of(memory)
    files[1].unlink()
    damage(files[3])
    digest, told = run(log, tmp_path / "out", *sets, "checkpoint.parity=3", ranks=4, resume=True)
    assert digest == run(log, tmp_path / "whole", ranks=1)[0]
    (line,) = [line for line in told if "of no use" in line]
    assert "rank 1 was gone and rank 3 was damaged" in line
    assert "its rows are not those that were written" in line
    assert "resuming from step-00000004.h5" in told or "resuming from step-00000008.h5" in told
    assert not left_of(memory)


@pytest.mark.parametrize("how", ["another run's", "another config's", "none of this run"])
def test_what_others_left_is_not_taken(how: str, log: Path, memory: Path, tmp_path: Path) -> None:
    sets = ("checkpoint.parity=1", f'memory.folder="{memory}"')
    out = tmp_path / "out"
    whole, _ = run(log, tmp_path / "whole", ranks=1)
    assert killed(log, out, Kill(1, 60, False), *sets, ranks=2)
    if how == "another run's":
        (out / RECORD).write_text(
            json.dumps(json.loads((out / RECORD).read_text()) | {"token": "x"})
        )
    elif how == "none of this run":
        (out / RECORD).unlink()
    else:
        sets += ("training.seed=5",)
        whole, _ = run(log, tmp_path / "other", "training.seed=5", ranks=1)
    digest, told = run(log, out, *sets, ranks=2, resume=True)
    assert digest == whole
    assert any("starting at step 0" in line for line in told)
    assert any("the config changed" in line for line in told) == (how == "another config's")
    assert not left_of(memory)


def test_a_newer_checkpoint_is_what_a_run_goes_on_from(
    log: Path, memory: Path, tmp_path: Path
) -> None:
    sets = ("checkpoint.parity=1", f'memory.folder="{memory}"', "checkpoint.every_steps=1")
    assert killed(log, tmp_path / "out", Kill(1, 60, False), *sets, ranks=2)
    _, told = run(log, tmp_path / "out", *sets, ranks=2, resume=True)
    assert not any("left in memory" in line for line in told)
    assert any(line.startswith("resuming from") for line in told)


def test_a_folder_that_is_not_there_is_made(log: Path, memory: Path, tmp_path: Path) -> None:
    """As examples/slurm/train.sh names one for each job."""
    folder = memory / "rows" / "of a job"
    sets = ("checkpoint.parity=1", f'memory.folder="{folder}"')
    assert killed(log, tmp_path / "out", Kill(1, 60, False), *sets, ranks=2)
    _, told = run(log, tmp_path / "out", *sets, ranks=2, resume=True)
    assert any("left in memory" in line for line in told)
    assert folder.is_dir() and not left_of(folder)


def test_memory_that_is_too_small_is_told_beforehand(tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        pytest.skip("no /dev/shm")
    path = shm / f"neocpu-test-{tmp_path.parent.name}-{tmp_path.name}"
    with pytest.raises(TrainingError, match=r"do not fit /dev/shm, of which [\d,.]+ MiB are free"):
        LastingFile.create(path, {}, 1 << 50, 0)
    assert not path.exists()


@pytest.mark.parametrize("parity", [1, 3])
def test_files_take_the_room_that_was_asked_for_beforehand(
    parity: int, log: Path, memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    complete = LastingFile.complete

    def seen(file: LastingFile, turn: int) -> None:
        complete(file, turn)
        sizes.append(file.path.stat().st_size)

    monkeypatch.setattr(LastingFile, "complete", seen)
    sets = (f"checkpoint.parity={parity}", f'memory.folder="{memory}"', "tables.one.rows=50_000")
    run(log, tmp_path / "out", *sets, ranks=4)
    needs: list[int] = []
    monkeypatch.setattr(keeping, "check_folder", lambda config, out, size: needs.append(size))
    run(log, tmp_path / "again", *sets, ranks=4)
    # pages, and what the file says of its run
    assert 0 < max(sizes) - max(needs) / 4 < 1 << 16
    monkeypatch.undo()
    usage = shutil.disk_usage(tmp_path)._replace(free=4 * max(sizes) - (1 << 20))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(TrainingError, match=r"MiB of rows with their parity do not fit .*memory, "):
        run(log, tmp_path / "refused", *sets, ranks=4)
    assert not left_of(memory)


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        (("memory.placement=ddr_over_ssd", "memory.ddr=4096"), "'one' are in caches"),
        (("tables.many.kind=cafe",), "move in training"),
        (("parallel.towers=true",), "parallel.towers"),
    ],
)
def test_parity_is_refused_where_it_cannot_hold(
    sets: tuple[str, ...], why: str, log: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"checkpoint.parity.*{why}"):
        config_of(log, *sets, "checkpoint.parity=2")


def test_parity_is_refused_online(log: Path, tmp_path: Path) -> None:
    config = config_of(log, "checkpoint.parity=2")
    with pytest.raises(ConfigError, match="it is for `neocpu train`"):
        OnlineTrainer(config, None, tmp_path / "out", [str(log)]).run()


def test_groups_go_by_hosts_whatever_a_config_calls_nodes(
    log: Path, memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = ("checkpoint.parity=1", f'memory.folder="{memory}"')
    found: list[list[tuple[int, ...]]] = []
    real = keeping.ParityKeeper.take

    def take(keeper: keeping.ParityKeeper, size: int) -> Any:
        found.append(keeper.groups)
        return real(keeper, size)

    monkeypatch.setattr(keeping.ParityKeeper, "take", take)
    _, told = run(log, tmp_path / "one", *sets, ranks=4)
    assert any("but not that host" in line for line in told)
    # ranks 0 and 1 of one host, 2 and 3 of another, though all are one node
    host = {f"rank {rank}": "aabb"[rank] for rank in range(4)}
    monkeypatch.setattr(comm_file, "host_key", lambda: host[threading.current_thread().name])
    _, told = run(log, tmp_path / "two", *sets, ranks=4)
    assert not any("but not that host" in line for line in told)
    assert found[0] == [(0, 1), (2, 3)] and found[-1] == [(0, 2), (1, 3)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 8))
def test_groups_have_all_ranks_and_spread_over_hosts(hosts: list[int], data_ranks: int) -> None:
    groups = groups_of(hosts, data_ranks)
    if len(hosts) == 1:
        assert not groups
        return
    assert sorted(rank for group in groups for rank in group) == list(range(len(hosts)))
    sizes = {len(group) for group in groups}
    assert min(sizes) >= 2 and max(sizes) - min(sizes) <= 1
    assert max(sizes) <= max(data_ranks + 1, 3)
    per_host = {hosts.count(host) for host in hosts}
    if len(per_host) == 1 and max(sizes) <= len(set(hosts)):
        assert all(len({hosts[rank] for rank in group}) == len(group) for group in groups)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**32 - 1), st.data())
def test_a_checksum_follows_changes_and_sees_each(
    count: int, words: int, seed: int, data: st.DataObject
) -> None:
    random = np.random.default_rng(seed)
    rows = np.sort(random.choice(1000, count, replace=False))
    before, after = random.integers(0, 2**64, (2, count, words), np.uint64)
    follows = checksum(3, rows, after) - checksum(3, rows, before)
    assert (checksum(3, rows, before) + follows) % 2**64 == checksum(3, rows, after)
    row = data.draw(st.integers(0, count - 1))
    changed = after.copy()
    changed[row, data.draw(st.integers(0, words - 1))] ^= np.uint64(
        1 << data.draw(st.integers(0, 63))
    )
    assert checksum(3, rows, changed) != checksum(3, rows, after)
    assert checksum(3, rows[row : row + 1], after[row : row + 1]) + checksum(
        3, np.delete(rows, row), np.delete(after, row, axis=0)
    ) in (checksum(3, rows, after), checksum(3, rows, after) + 2**64)
