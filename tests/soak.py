"""Does training survive hours of everything that can happen to it?

    python -m tests.soak --hours 2 [--faults 1000] [--ranks 4] [--seed 0]

Jobs of several kinds (row formats, wide caches over narrow rows) run in lives. Each life resumes
what the one before left, on other ranks, plans, placements, policies and kinds of checkpoints, and
meets faults: kills of one rank or all, SIGSTOP, SIGTERM, a nearly full or full disk, a disk that
cannot be written, folders that are removed, a slow disk, a clock that jumps. Asked of every life:

* it ends, in time, with all its processes;
* it ends well, or by the fault, or with one clear message, never with a traceback;
* no checkpoint that was complete is lost, but by the fault that removes it;
* who reaches the end has the digest of the run that nobody disturbed.

Disks that fill up or cannot be written are file systems in memory, which only root can mount; else
these faults are left out, which is said.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from jobs import kill, start
from promise_cases import FAMILIES, MAIN, PLANS, write_data

LIMIT = 300.0  # seconds of a life
MARK = "NEOCPU_SOAK"  # in the environment of all processes of a life
DISK_BYTES = 256 << 20
PLACEMENTS = ("hbm", "hbm_over_ddr", "ddr_over_ssd", "hbm_over_ddr_over_ssd")
POLICIES = ("lru", "lfu", "sieve", "lookahead")
# A module that Python imports at the start: the clock jumps by up to three years, there and back.
CLOCK = """
import random, time
_time, _ns, _chance = time.time, time.time_ns, random.Random()
_jump = [0.0]
def _now():
    if _chance.random() < 0.1:
        _jump[0] = _chance.uniform(-1e8, 1e8)
    return _time() + _jump[0]
time.time = _now
time.time_ns = lambda: int(1e9 * _now())
"""


class Broken(AssertionError):
    """A life did what it must not do."""


@dataclass(frozen=True)
class Job:
    """What is trained: a family of the promise, and settings that decide its bits.

    free : any ranks, plan and memory give the same bits. Otherwise all lives have `settings`.
    """

    name: str
    family: str
    settings: tuple[str, ...] = ()
    free: bool = True


_LEVELS = (
    'memory.placement={ "wide" = "ddr_over_ssd", "large" = "hbm_over_ddr_over_ssd", '
    '"*" = "hbm_over_ddr" }'
)
JOBS = (
    Job("fp32 rows", MAIN),
    Job("fp16 and fp8 rows", "narrow"),
    Job("adam", "adam"),
    Job(
        "int8 rows under fp32 caches",
        MAIN,
        (
            "tables.wide.format=int8",
            "tables.large.format=int8",
            _LEVELS,
            "memory.cache_format=fp32",
            "memory.policy=lru",
        ),
        free=False,
    ),
)


class Disk:
    """A small file system in memory, mounted at a folder; without root, just the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "neocpu-soak", str(folder)]
        with contextlib.suppress(OSError):
            subprocess.run(command, capture_output=True, check=False)
        self.mounted = os.path.ismount(folder)

    def fill(self, left: int) -> None:
        """Take all space but `left` bytes, where it can be written."""
        if os.statvfs(self.folder).f_flag & os.ST_RDONLY:
            return
        with open(self.folder / "ballast", "wb") as file, contextlib.suppress(OSError):
            while True:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, 1 << 16)
        size = (self.folder / "ballast").stat().st_size
        with contextlib.suppress(OSError):
            os.truncate(self.folder / "ballast", max(size - left, 0))

    def free(self) -> None:
        """Give the space back, and let it be written again."""
        self.writable(True)
        (self.folder / "ballast").unlink(missing_ok=True)

    def writable(self, can_write: bool) -> None:
        """Remount it for reading and writing, or for reading only."""
        if self.mounted:
            mode = "rw" if can_write else "ro"
            command = ["mount", "-o", f"remount,{mode}", str(self.folder)]
            subprocess.run(command, capture_output=True, check=False)

    def close(self) -> None:
        """Unmount it."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)


class Life:
    """One run that was started, and what is done to it."""

    def __init__(self, process: "subprocess.Popen[str]", mark: str) -> None:
        self.process = process
        self.mark = mark
        self.deadline = time.monotonic() + LIMIT

    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def processes(self) -> list[int]:
        """All its processes that live."""
        wanted = f"{MARK}={self.mark}".encode()
        numbers = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and wanted in (path / "environ").read_bytes().split(b"\0"):
                    numbers.append(int(path.name))
        return numbers

    def ranks(self) -> list[int]:
        """Those that train."""
        numbers = []
        for number in self.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
                if b"neocpu" in words and b"python" in words[0]:
                    numbers.append(number)
        return numbers

    def signal(self, numbers: Sequence[int], what: signal.Signals) -> None:
        """Send a signal."""
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, what)


@dataclass(frozen=True)
class Fault:
    """Something that happens to a life.

    strike : does it, after the life began. settings : it needs at the start. fatal : the life may
    end badly. loses : checkpoints may be gone. needs_disk : only on a file system of its own.
    """

    name: str
    strike: Callable[["Soak", Life], None] | None = None
    settings: tuple[str, ...] = ()
    fatal: bool = False
    loses: bool = False
    needs_disk: bool = False
    clock: bool = False


def _kill_all(soak: "Soak", life: Life) -> None:
    kill(life.process)
    life.signal(life.processes(), signal.SIGKILL)


def _kill_one(soak: "Soak", life: Life) -> None:
    ranks = life.ranks() or life.processes()
    life.signal(soak.chance.sample(ranks, min(1, len(ranks))), signal.SIGKILL)


def _stop(soak: "Soak", life: Life) -> None:
    ranks = life.ranks()
    some = soak.chance.sample(ranks, soak.chance.randint(min(1, len(ranks)), len(ranks)))
    life.signal(some, signal.SIGSTOP)
    time.sleep(soak.chance.uniform(0.05, 0.8))
    life.signal(some, signal.SIGCONT)


def _terminate(soak: "Soak", life: Life) -> None:
    life.signal([life.process.pid], signal.SIGTERM)


def _fill(soak: "Soak", life: Life) -> None:
    soak.disk.fill(soak.chance.choice((0, 4096, 8192, 16384, 24576, 1 << 16, 1 << 20)))


def _lock(soak: "Soak", life: Life) -> None:
    soak.disk.writable(False)


def _remove(soak: "Soak", life: Life) -> None:
    shutil.rmtree(soak.out, ignore_errors=True)


FAULTS = (
    Fault("kill all", _kill_all, fatal=True),
    Fault("kill one rank", _kill_one, fatal=True),
    *[Fault("SIGSTOP", _stop)] * 3,
    Fault("SIGTERM", _terminate, fatal=True),
    Fault("full disk", _fill, fatal=True, needs_disk=True),
    Fault("read-only disk", _lock, fatal=True, needs_disk=True),
    Fault("removed folder", _remove, fatal=True, loses=True),
    Fault("slow disk", settings=("memory.ssd_bandwidth=20000000", "memory.ssd_iops=2000")),
    Fault("clock jumps", clock=True),
)


class Soak:
    """Jobs, their lives and what was counted."""

    def __init__(self, folder: Path, steps: int, ranks: int, seed: int) -> None:
        self.folder = folder
        self.ranks = ranks
        self.chance = random.Random(seed)
        self.disk = Disk(folder / "disk")
        self.out = self.disk.folder / "out"
        self.counts: collections.Counter[str] = collections.Counter()
        self.lives = 0
        self.ends = 0
        self.seconds = 2.0  # that an undisturbed run takes
        self._expected: dict[str, str] = {}  # digests of undisturbed runs, by job
        self._fixed = (
            "training.epochs=100000",
            f"training.steps={steps}",
            "checkpoint.every_steps=4",
            "eval.every_steps=60",
        )
        (folder / "clock").mkdir()
        (folder / "clock" / "sitecustomize.py").write_text(CLOCK)
        write_data(folder)

    def faults(self, job: Job) -> list[Fault]:
        """Those that can be made here, to this job.

        A signal asks for a checkpoint, which rounds the rows in caches wider than their homes: jobs
        that are not free would end with other bits (docs/memory.md §4).
        """
        return [
            fault
            for fault in FAULTS
            if (self.disk.mounted or not fault.needs_disk)
            and (job.free or fault.strike is not _terminate)
        ]

    def job(self, job: Job, until: Callable[[], bool]) -> None:
        """Live until the job has reached its end, or `until` says so."""
        config = self.folder / "job.toml"
        config.write_text(FAMILIES[job.family].toml(self.folder))
        if job.name not in self._expected:
            self._expected[job.name] = self._undisturbed(job)
        while not until():
            if self._live(job, self._expected[job.name]):
                return

    def _undisturbed(self, job: Job) -> str:
        """The digest of a run without faults."""
        for _ in range(2):  # the first compiles, perhaps
            shutil.rmtree(self.out, ignore_errors=True)
            begun = time.monotonic()
            self._end(self._start(job, (), 1, resume=False, clock=False), may_fail=False)
            self.seconds = time.monotonic() - begun
        digest = self._digest()
        shutil.rmtree(self.out)
        return digest

    def _live(self, job: Job, expected: str) -> bool:
        """One life; whether the job reached its end."""
        chance = self.chance
        self.lives += 1
        before = self._newest()
        faults = chance.sample(self.faults(job), chance.randint(1, 5))
        faults.sort(key=lambda fault: fault.fatal)  # what may end it comes last
        settings = [each for fault in faults for each in fault.settings]
        ranks = chance.randint(1, self.ranks) if job.free else 1
        settings += self._ways(job)
        clock = any(fault.clock for fault in faults)
        life = self._start(job, settings, ranks, resume=True, clock=clock)
        patience = chance.uniform(0.3, 1.1) * self.seconds * (1 + ranks) / 2
        try:
            for fault in faults:
                self.counts[fault.name] += 1
                if fault.strike is None:
                    continue
                with contextlib.suppress(subprocess.TimeoutExpired):
                    life.process.wait(patience / len(faults))
                if life.running():
                    fault.strike(self, life)
            status, text = self._end(life, may_fail=any(fault.fatal for fault in faults))
        finally:
            self.disk.free()
        names = ", ".join(fault.name for fault in faults)
        if not any(fault.loses for fault in faults) and self._newest() < before:
            raise Broken(f"{names}: checkpoint {before} is gone\n{text}")
        if status or not (self.out / "run.json").exists() or "stopped" in text:
            return False
        if self._digest() != expected:
            raise Broken(f"{names}: another digest than undisturbed\n{text}")
        shutil.rmtree(self.out)
        self.ends += 1
        return True

    def _ways(self, job: Job) -> Iterator[str]:
        """Settings that change no bit."""
        chance = self.chance
        yield f"checkpoint.full_every={chance.choice((0, 1, 3))}"
        if job.free:
            yield f"memory.prefetch={chance.randrange(3)}"
            plan = chance.choice([name for name in PLANS if isinstance(PLANS[name], str)])
            yield f"parallel.plan={plan}"
            yield f"parallel.planner={chance.choice(('greedy', 'search'))}"
            yield f"memory.placement={chance.choice(PLACEMENTS)}"
            yield f"memory.policy={chance.choice(POLICIES)}"
            yield f"parallel.machine={chance.choice(('', 'zionex'))}"
            yield f"training.pipeline={chance.choice(('off', 'input', 'full'))}"

    def _start(
        self, job: Job, settings: Sequence[str], ranks: int, *, resume: bool, clock: bool
    ) -> Life:
        mark = f"{os.getpid()}-{self.lives}-{time.monotonic_ns()}"
        added = {MARK: mark}
        if clock:
            paths = [str(self.folder / "clock"), os.environ.get("PYTHONPATH", "")]
            added["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        kept = dict(os.environ)
        os.environ.update(added)
        try:
            sets = (*self._fixed, *job.settings, *settings)
            process = start(self.folder / "job.toml", self.out, ranks, *sets, resume=resume)
        finally:
            os.environ.clear()
            os.environ.update(kept)
        return Life(process, mark)

    def _end(self, life: Life, may_fail: bool) -> tuple[int, str]:
        """Wait for the end; (exit status, all that was printed)."""
        try:
            out, err = life.process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired as error:
            kill(life.process)
            life.signal(life.processes(), signal.SIGKILL)
            raise Broken(f"a life did not end in {LIMIT:.0f} s") from error
        except ValueError:  # it was killed, and its output is closed
            out, err = "", ""
        text = f"{out}\n{err}"
        for _ in range(50):
            if not (left := life.processes()):
                break
            time.sleep(0.1)
        else:
            raise Broken(f"processes {left} outlive their run\n{text}")
        status = int(life.process.returncode)
        if "Traceback" in text:
            raise Broken(f"a traceback\n{text}")
        if status and not may_fail:
            raise Broken(f"a life failed with status {status}\n{text}")
        return status, text

    def _digest(self) -> str:
        return str(json.loads((self.out / "run.json").read_text())["digest"])

    def _newest(self) -> int:
        """Step of the newest complete checkpoint."""
        names = (self.out / "checkpoints").glob("step-????????.h5")
        return max((int(path.stem.removeprefix("step-")) for path in names), default=0)

    def report(self) -> str:
        """What was done."""
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return (
            f"{sum(self.counts.values()):,} faults in {self.lives:,} lives ({kinds}); "
            f"{self.ends:,} runs reached their end, all with the digest of an undisturbed one"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak for so many hours, or so many faults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=0.05, help="how long, at most")
    parser.add_argument("--faults", type=int, default=10**9, help="how many, at most")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of a life, at most")
    parser.add_argument("--steps", type=int, default=60, help="steps of a run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    end = time.monotonic() + 3600 * options.hours
    with tempfile.TemporaryDirectory(prefix="neocpu-soak-") as folder:
        soak = Soak(Path(folder), options.steps, options.ranks, options.seed)

        def enough() -> bool:
            return time.monotonic() > end or sum(soak.counts.values()) >= options.faults

        try:
            if not soak.disk.mounted:
                print("no root: full and read-only disks are left out")
            while not enough():
                for job in JOBS:
                    if enough():
                        break
                    soak.job(job, enough)
                    print(f"{job.name}: {soak.report()}", flush=True)
        finally:
            soak.disk.close()
    print(soak.report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
