"""Does training survive hours of everything that can happen to it?

    python -m tests.soak --hours 2 [--faults 1000] [--hosts 3] [--ranks 4] [--seed 0]

Jobs of several kinds, and drawn ones (`promise_draws.py`), run in lives. Each life resumes what the
one before left, on other hosts, ranks, plans, memories and kinds of checkpoints, and meets faults
(`soak_faults.py`). Asked of every life:

* it ends, in time, with all its processes, and leaves no shared memory on any host;
* it ends well, or by the fault, or with one clear message, never with a traceback;
* no checkpoint that was complete is lost, but by the fault that removes it;
* who reaches the end has the digest of the run that nobody disturbed.

Hosts are those of `hosts.py`; disks that fill up, hang or cannot be written are file systems that
only root can mount. Faults that this system does not allow are left out, which is said.
"""

import argparse
import collections
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hosts import Host, Room, room, why_not
from promise_cases import (
    DRAWN,
    FAMILIES,
    MAIN,
    ROWS,
    Family,
    family_of,
    write_data,
    write_file,
)
from promise_draws import MIRROR, UNCUT, Drawn, ways
from soak_faults import (
    CLOCK,
    COLD,
    FAULTS,
    MARK,
    POISONED,
    STILL,
    Disk,
    Fault,
    Life,
    Place,
    kill_all,
)

from neocpu.parallel.watch.words import STALLED

LIMIT = 300.0  # seconds of a life
ERROR = "neocpu: error: "
RESTARTED = ": the run goes on in "
RESCUED = " was left in memory by "
KILLED_LEAVE = (".ranks", ".ended")  # pages of the ranks of a host
PARITY = "neocpu-*-[0-9]*"  # rows that outlive the ranks of a host, until a next life takes them


class Broken(AssertionError):
    """A life did what it must not do."""


@dataclass(frozen=True)
class Job:
    """What is trained: a family of the promise, and settings that decide its bits.

    Of a family that is bound, all lives have one rank and these settings, and none is asked for a
    checkpoint, which rounds the rows in caches wider than their homes (docs/memory.md §4).
    """

    name: str
    family: Family | Drawn
    settings: tuple[str, ...] = ()


_LEVELS = (
    'memory.placement={ "wide" = "ddr_over_ssd", "large" = "hbm_over_ddr_over_ssd", '
    '"*" = "hbm_over_ddr" }'
)
JOBS = (
    Job("fp32 rows", FAMILIES[MAIN]),
    Job("fp16 and fp8 rows", FAMILIES["narrow"]),
    Job("adam", FAMILIES["adam"]),
    Job(
        "int8 rows under fp32 caches",
        replace(FAMILIES[MAIN], bound=True),
        (
            "tables.wide.format=int8",
            "tables.large.format=int8",
            _LEVELS,
            "memory.cache_format=fp32",
            "memory.policy=lru",
        ),
    ),
)


def jobs(seed: int) -> Iterator[Job]:
    """Those above, beginning with one by the seed, each followed by a drawn one, for ever."""
    for number, job in enumerate(itertools.islice(itertools.cycle(JOBS), seed % len(JOBS), None)):
        yield job
        family = family_of(f"{DRAWN}{seed + number}")
        if not family.day:
            yield Job(f"{DRAWN}{seed + number}", family)


@dataclass
class Counts:
    """What was done, and how it ended."""

    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    lives: int = 0
    ends: int = 0  # runs that reached theirs
    restarts: int = 0  # lives that went on by themselves
    rescued: int = 0  # lives that went on from the rows in memory
    broken: int = 0  # lives that did what they must not do

    def report(self) -> str:
        """In words."""
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return (
            f"{sum(self.faults.values()):,} faults in {self.lives:,} lives ({kinds}), which "
            f"went on by themselves {self.restarts:,} times and from rows left in memory "
            f"{self.rescued:,} times; {self.ends:,} runs reached their end; {self.broken:,} lives "
            "did what they must not do"
        )


def sentences(text: str) -> list[str]:
    """The errors that a life has told, but that a rank sees it stand still, which comes before."""
    return [
        line
        for line in text.splitlines()
        if line.startswith(ERROR) and not line.startswith(ERROR + STALLED)
    ]


def complaint(status: int, text: str, lost: int, may_fail: bool, cut_off: bool) -> str:
    """What is wrong with how a life ended; "": nothing.

    lost : steps that the newest checkpoint fell back. may_fail : a fault could end it. cut_off : it
    was killed as a whole, and could say nothing.
    """
    said = sentences(text)
    if "Traceback" in text:
        return "a traceback"
    if lost > 0:
        return f"the last {lost} steps that were in a checkpoint are lost"
    if len(said) > 1 or text.count(ERROR + STALLED) > 1 + text.count(RESTARTED):
        return "several sentences"
    if status and not may_fail:
        return f"it failed with status {status}"
    if status and not (said or cut_off or "stopped" in text):
        return f"it failed with status {status}, and no sentence"
    return ""


def names_of(faults: Sequence[Fault]) -> str:
    """In words."""
    return ", ".join(fault.name for fault in faults) or "nothing"


class Soak:
    """Jobs, their lives and what was counted."""

    def __init__(self, place: Place, folder: Path, steps: int, ranks: int) -> None:
        self.place = place
        self.folder = folder
        self.ranks = ranks
        self.counts = Counts()
        self.seconds = 2.0  # that an undisturbed run takes
        self._fixed = (
            "training.epochs=100000",
            f"training.steps={steps}",
            "checkpoint.every_steps=4",
            "eval.every_steps=60",
            "parallel.warn_after=5",
            f"parallel.timeout={STILL:g}",
        )
        (folder / "clock").mkdir()
        (folder / "clock" / "sitecustomize.py").write_text(CLOCK)
        write_data(folder)
        write_file(folder / POISONED, 100, ROWS, poisoned=True)

    def faults(self, job: Job, ranks: int, readers: bool) -> list[Fault]:
        """Those that can be made here, to a life of this job."""
        allowed = {
            "": True,
            "hosts": self.place.room is not None and ranks > 1,
            "readers": readers,
            "disk": self.place.disk.mounted,
            "frozen disk": self.place.disk.freezes,
        }
        return [
            fault
            for fault in FAULTS
            if allowed[fault.needs] and not (job.family.bound and fault.asks)
        ]

    def job(self, job: Job, until: Callable[[], bool]) -> None:
        """Live until the job has reached its end, or `until` says so."""
        (self.folder / "job.toml").write_text(job.family.toml(self.folder))
        expected = self._undisturbed(job)
        while expected and not until():
            if self._live(job, expected):
                return

    def _clear(self) -> None:
        """Remove what lives of a job leave."""
        shutil.rmtree(self.place.out, ignore_errors=True)
        shutil.rmtree(self.folder / MIRROR, ignore_errors=True)
        self._clear_memory()

    def _undisturbed(self, job: Job) -> str:
        """The digest of a run without faults; "": the config that was drawn cannot be trained."""
        for _ in range(2):  # the first compiles, perhaps
            self._clear()
            begun = time.monotonic()
            status, text = self._end(self._start(job, (), 1, {}, resume=False))
            if status and job.name.startswith(DRAWN):  # its rates are too high
                return ""
            if status:
                raise Broken(f"{job.name}: a run without faults failed: {text}")
            self.seconds = time.monotonic() - begun
        digest = self._digest()
        self._clear()
        return digest

    def _live(self, job: Job, expected: str) -> bool:
        """One life; whether the job reached its end."""
        chance = self.place.chance
        self.counts.lives += 1
        before = self._newest()
        ranks = 1 if job.family.bound else chance.randint(1, self.ranks)
        readers = chance.random() < 0.3
        faults = self._drawn_faults(self.faults(job, ranks, readers))
        settings = [each for fault in faults for each in fault.settings]
        if readers:
            settings += ["readers.count=2", "memory.warm=false"]
        variables = {name: value for fault in faults for name, value in fault.variables.items()}
        life = self._start(job, [*self._ways(job), *settings], ranks, variables, resume=True)
        patience = chance.uniform(0.3, 1.1) * self.seconds * (1 + ranks) / 2
        struck: list[Fault] = []  # a life that has ended is not struck any more
        # lives are mostly starts: without this few faults would strike a step
        in_steps = chance.random() < 0.6
        if in_steps:
            patience = chance.uniform(0.0, 0.5)
        try:
            for fault in faults:
                if in_steps and fault.strike is not None:
                    self._await_steps(life, before)
                life.wait(0 if fault.strike is None else patience / len(faults))
                if life.running():
                    struck.append(fault)
                    if fault.strike is not None:
                        fault.strike(self.place, life)
            status, text = self._end(life)
        except Broken as error:
            raise Broken(f"{job.name}, {ranks} rank(s), {names_of(struck)}: {error}") from None
        finally:
            self.place.mend()
            self.counts.faults.update(fault.name for fault in struck)
        names = names_of(struck)
        print(
            f"{job.name}, {ranks} rank(s): {names}: status {status}, {life.seconds():.0f} s",
            flush=True,
        )
        lost = 0 if any(fault.loses for fault in struck) else before - self._newest()
        may_fail = any(fault.fatal for fault in struck)
        wrong = complaint(status, text, lost, may_fail, life.cut_off)
        self.counts.restarts += text.count(RESTARTED)
        self.counts.rescued += text.count(RESCUED)
        ended = not status and (self.place.out / "run.json").exists() and "stopped" not in text
        if not wrong and ended and self._digest() != expected:
            wrong = "another digest than undisturbed"
        if wrong:
            raise Broken(f"{job.name}, {ranks} rank(s): {names}: {wrong}\n{text}")
        if not ended:
            return False
        self.counts.ends += 1
        return True

    def _await_steps(self, life: Life, before: int) -> None:
        """Wait until a life has a checkpoint beyond those before it, or has ended."""
        while life.running() and self._newest() <= before and life.seconds() < LIMIT:
            life.wait(0.02)

    def _drawn_faults(self, possible: Sequence[Fault]) -> list[Fault]:
        """Some faults: what is there from the start, and at last what may end the life."""
        chance = self.place.chance
        shares = [fault.share for fault in possible]
        drawn = chance.choices(possible, shares, k=chance.randint(2, 12))
        # what is there from the start is there once, and what may end a life strikes it once
        once = dict.fromkeys(fault for fault in drawn if fault.strike is None or fault.fatal)
        drawn = [*once, *(fault for fault in drawn if fault not in once)]
        return sorted(drawn, key=lambda fault: (fault.strike is not None, fault.fatal))

    def _ways(self, job: Job) -> Iterator[str]:
        """Settings that change no bit."""
        chance = self.place.chance
        if self.place.room is None:  # else hosts have memory of their own
            yield f"memory.folder={self.folder / 'memory'}"
        for override in ways(chance, job.family):
            yield override.replace(MIRROR, str(self.folder / MIRROR))
        if not job.family.bound:
            yield f"parallel.plan={chance.choice((*UNCUT, 'auto'))}"

    def _start(
        self,
        job: Job,
        settings: Sequence[str],
        ranks: int,
        variables: Mapping[str, str],
        *,
        resume: bool,
    ) -> Life:
        """Start a life; ranks on hosts where there are some."""
        mark = f"{os.getpid()}-{self.counts.lives}-{time.monotonic_ns()}"
        sets = (*self._fixed, *job.settings, *settings)
        config = self.folder / "job.toml"
        command = [sys.executable, "-m", "neocpu", "train", str(config), "--out"]
        command += [str(self.place.out), *["--resume"] * resume]
        command += [word for one in sets for word in ("--set", one)]
        hosts: list[int] = []
        if ranks > 1 and self.place.room is not None:
            dealt = collections.Counter(self._dealt(self.place.room, ranks))
            hosts = sorted(dealt)
            command += ["--hosts", ",".join(f"host{number}:{dealt[number]}" for number in hosts)]
        elif ranks > 1:
            command += ["--ranks", str(ranks)]
        if ranks > 1 and self.place.chance.random() < 0.4:
            command += ["--restarts", "2"]
        environment = dict(os.environ)
        if self.place.room is not None:
            environment = self.place.room.environment()
            command = self.place.room.command(command)
        environment |= {MARK: mark, "NUMBA_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        environment |= self._places(variables, environment.get("PYTHONPATH", ""))
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        parity = any(one.startswith("checkpoint.parity=") and one[-1] != "0" for one in sets)
        return Life(process, mark, hosts, parity)

    def _dealt(self, hosts: Room, ranks: int) -> Iterator[int]:
        """The host of each rank: some of the room's, each of them with one at least."""
        chance = self.place.chance
        used = chance.sample(
            range(len(hosts.names)), chance.randint(1, min(ranks, len(hosts.names)))
        )
        yield from used
        yield from chance.choices(used, k=ranks - len(used))

    def _places(self, variables: Mapping[str, str], path: str) -> dict[str, str]:
        """Variables of a fault that are folders here; one of kernels is new."""
        places = {name: str(self.folder / value) for name, value in variables.items()}
        if "PYTHONPATH" in places:
            places["PYTHONPATH"] = os.pathsep.join(filter(None, [places["PYTHONPATH"], path]))
        if COLD in variables.values():
            shutil.rmtree(self.folder / COLD, ignore_errors=True)
        return places

    def _end(self, life: Life) -> tuple[int, str]:
        """Wait for the end; (exit status, all that was printed)."""
        try:
            out, err = life.process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired as error:
            kill_all(self.place, life)
            raise Broken(f"a life did not end in {LIMIT:.0f} s") from error
        for _ in range(50):
            if not (left := life.processes()):
                break
            time.sleep(0.1)
        else:
            kill_all(self.place, life)
            raise Broken(f"processes {sorted(left)} outlive their run\n{out}\n{err}")
        status = int(life.process.returncode)
        if left := list(self._left(life, status, f"{out}{err}")):
            raise Broken(f"shared memory is left: {', '.join(left)}\n{out}\n{err}")
        return status, f"{out}\n{err}"

    def _left(self, life: Life, status: int, text: str) -> Iterator[str]:
        """What is left of a life in the shared memory of the hosts, and may not be."""
        if self.place.room is None:  # others use that of this machine
            return
        killed = bool(status) or RESTARTED in text
        for number in range(len(self.place.room.names)):
            for name in self.place.room.on_host(number, ["ls", "-A", "/dev/shm"]).split():
                if fnmatch(name, PARITY):
                    # for the next life; a host that this one did not use may have older rows
                    stays = killed or not life.parity or number not in life.hosts
                else:
                    # the page of a job that was killed goes with the next job that is a minute
                    # later there; MPICH's file has a name until its ranks have met
                    stays = "mpich_shm_" in name or (killed and name.endswith(KILLED_LEAVE))
                if not stays:
                    yield f"host{number}: {name}"
        self._clear_memory(f"! -name '{PARITY}'")

    def _clear_memory(self, which: str = "") -> None:
        """Remove files of the shared memory of the hosts; which : a condition of `find`."""
        for number in range(len(self.place.room.names) if self.place.room is not None else 0):
            self.place.room.on_host(number, ["sh", "-c", f"find /dev/shm -type f {which} -delete"])

    def _digest(self) -> str:
        return str(json.loads((self.place.out / "run.json").read_text())["digest"])

    def _newest(self) -> int:
        """Step of the newest complete checkpoint."""
        names = (self.place.out / "checkpoints").glob("step-????????.h5")
        return max((int(path.stem.removeprefix("step-")) for path in names), default=0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak for so many hours, or so many faults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=0.05, help="how long, at most")
    parser.add_argument("--faults", type=int, default=10**9, help="how many, at most")
    parser.add_argument("--hosts", type=int, default=3, help="hosts of a life, at most")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of a life, at most")
    parser.add_argument("--steps", type=int, default=60, help="steps of a run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    end = time.monotonic() + 3600 * options.hours
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # hosts and disks go
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="neocpu-soak-")))
        disk = Disk(folder / "disk")
        stack.callback(disk.close)
        place = Place(disk.folder / "out", disk, random.Random(options.seed))
        if reason := why_not():
            print(f"{reason}: their faults are left out")
        else:
            # hosts see what is mounted before they are made
            place.room = stack.enter_context(room([Host()] * options.hosts))
        if not disk.freezes:
            print("no root: disks that hang are left out" + ", and full ones" * (not disk.mounted))
        soak = Soak(place, folder, options.steps, options.ranks)

        def enough() -> bool:
            return time.monotonic() > end or sum(soak.counts.faults.values()) >= options.faults

        for job in jobs(options.seed):
            if enough():
                break
            try:
                soak.job(job, enough)
            except Broken as error:
                soak.counts.broken += 1
                print(f"BROKEN: {error}")
            print(f"{job.name}: {soak.counts.report()}", flush=True)
    print(soak.counts.report())
    return int(soak.counts.broken > 0)


if __name__ == "__main__":
    # so that hosts and disks go with it
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
