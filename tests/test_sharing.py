"""Do jobs that share a device get their shares of it, keep out of each other's way, and lose no row
when one of them is killed?
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neocpu.core.errors import ConfigError, StorageError
from neocpu.tables.embedding.tiered import TieredEmbedding
from neocpu.tables.storage.device import Device
from neocpu.tables.storage.row_file import RowFile, RowTable
from neocpu.tables.storage.sharing import REFRESH, TICKETS, Claim, Ticket
from neocpu.train.run.trainer import Trainer
from tests.small_run import config_of

HOLD = """
import os, sys
from pathlib import Path
from neocpu.tables.storage.row_file import RowFile, RowTable
from neocpu.tables.storage.sharing import Claim, Ticket
ticket = Ticket(Path(sys.argv[1]), "killed", "rank-0.h5", Claim(3.0, disk=10**6))
RowFile.create(ticket.rows / "rank-0.h5", [RowTable("t", 10, 8)])
print("held", flush=True)
sys.stdin.read()
"""
# a job that is killed while its step 9 updates rows
KILLED = """
import os, signal, sys
from pathlib import Path
from neocpu.tables.embedding.tiered import TieredEmbedding
from neocpu.train.run.trainer import Trainer
from tests.small_run import config_of
settle, calls = TieredEmbedding.settle, []
def settle_or_die(self):
    settle(self)
    calls.append(1)
    if len(calls) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
TieredEmbedding.settle = settle_or_die
Trainer(config_of(Path(sys.argv[1]), *sys.argv[3:]), None, Path(sys.argv[2])).run()
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_shares_follow_the_jobs_that_come_go_and_are_killed(tmp_path: Path) -> None:
    clock = Clock()
    ticket = Ticket(tmp_path, "a", "rank-0.h5", Claim(1.0, disk=1000), clock)
    assert ticket.share() == 1.0
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdin is not None
    left = tmp_path / "killed" / "rank-0.h5"
    try:
        assert other.stdout.readline() == "held\n"
        assert ticket.share() == 1.0  # as it was looked up
        clock.now += REFRESH
        assert ticket.share() == 0.25
        slept: list[float] = []
        device = Device(100.0, share=ticket.share, clock=clock, sleep=slept.append)
        device.pay(device.begin(), 1, 50)
        assert slept == [2.0]  # a quarter of 100 bytes a second
        # who comes while it lives leaves its file alone
        third = Ticket(tmp_path, "c", "rank-0.h5", Claim(4.0), clock)
        assert third.share() == 0.5 and left.exists()
        third.close()
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
        other.stdin.close()
    clock.now += REFRESH
    assert ticket.share() == 1.0 and left.exists()
    mine = ticket.rows / "rank-0.h5"
    with RowFile.create(mine, [RowTable("t", 10, 8)]):
        last = Ticket(tmp_path, "d", "rank-0.h5", Claim(1.0), clock)
        assert not left.exists() and mine.exists()
        last.close()
    ticket.close()
    assert not list((tmp_path / TICKETS).glob("*.json"))


def test_bytes_that_are_reserved_are_nobody_elses(tmp_path: Path) -> None:
    ticket = Ticket(tmp_path, "a", "rank-0.h5", Claim(1.0, disk=10**6, memory=10**6))
    for claim, key in ((Claim(1.0, disk=10**18), "ssd"), (Claim(1.0, memory=10**18), "ddr")):
        fault = rf"1 rank\(s\) that share it have reserved 1,000,000 bytes .*memory\.{key}"
        with pytest.raises(StorageError, match=fault):
            Ticket(tmp_path, "b", "rank-0.h5", claim)
    assert len(list((tmp_path / TICKETS).glob("*.json"))) == 1 and ticket.share() == 1.0
    ticket.close()
    for keys, fault in (
        (["memory.share=1"], "set that too"),
        (
            ["memory.share=1", f"memory.folder={tmp_path}", "memory.placement=ddr_over_ssd"],
            r"set memory\.ssd too",
        ),
    ):
        with pytest.raises(ConfigError, match=fault):
            config_of(tmp_path / "log.h5", *keys)


def test_a_job_beside_one_that_is_killed_ends_as_alone_and_so_does_the_killed_one(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("training.epochs=9", "training.steps=24", "checkpoint.every_steps=4")
    over = ("memory.placement=ddr_over_ssd", "memory.ssd=50000000", "memory.ssd_bandwidth=1e9")
    shared = (*keys, *over, f"memory.folder={tmp_path / 'ssd'}", "memory.share=1")
    other = (*shared, "training.seed=7")
    alone = [
        Trainer(config_of(log, *keys, *more), None, tmp_path / f"alone-{len(more)}").run()
        for more in ((), ("training.seed=7",))
    ]
    shares = []
    settle = TieredEmbedding.settle

    def run_the_other_meanwhile(tbe: TieredEmbedding) -> None:
        settle(tbe)
        shares.append(tbe._ticket.share())
        if len(shares) == 5:
            command = [sys.executable, "-c", KILLED, str(log), str(tmp_path / "killed"), *other]
            root = Path(__file__).parent.parent
            done = subprocess.run(command, cwd=root, check=False, capture_output=True)
            assert done.returncode == -signal.SIGKILL, done.stderr.decode()

    monkeypatch.setattr(TieredEmbedding, "settle", run_the_other_meanwhile)
    beside = Trainer(config_of(log, *shared), None, tmp_path / "beside").run()
    monkeypatch.undo()
    assert beside["digest"] == alone[0]["digest"]
    left = list((tmp_path / "ssd").glob("killed-*/*.h5"))
    assert len(left) == 1 and not list((tmp_path / "ssd").glob("beside-*"))
    resumed = Trainer(config_of(log, *other), None, tmp_path / "killed", resume=True).run()
    assert resumed["digest"] == alone[1]["digest"] != alone[0]["digest"]
    assert not left[0].exists() and not list((tmp_path / "ssd" / TICKETS).glob("*.json"))
