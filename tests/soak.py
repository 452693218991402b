"""Does training survive hours of everything that can happen to it?

    python -m tests.soak --hours 2 [--faults 1000] [--hosts 3] [--ranks 4] [--record FILE]

Jobs of several kinds, and drawn ones (`promise_draws.py`), run in lives. Each life resumes what the
one before left, on other hosts, ranks, plans, memories and kinds of checkpoints, and meets faults
(`soak_faults.py`); one that starts itself again (`--restarts`) meets many that would end it. Most
of a life is its start, so faults wait for its steps. Asked of every life:

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
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from hashlib import sha256
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
RESTARTS = 20  # of a life that starts itself again
MOST_SECONDS = 10.0  # that an undisturbed run is believed to take, though it may have compiled
MOST_FAULTS = 30  # of a life
KNOWN = 24  # seeds of drawn configs: so few that their kernels are compiled already
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
    """Those above, beginning with one by the seed, for ever; each is followed by a drawn one."""
    drawn = drawn_jobs(seed)
    for job in itertools.islice(itertools.cycle(JOBS), seed % len(JOBS), None):
        yield job
        yield next(drawn)


def drawn_jobs(seed: int) -> Iterator[Job]:
    """Drawn configs of one day, the known ones again and again."""
    for number in itertools.count(seed):
        name = f"{DRAWN}{number % KNOWN}"
        family = family_of(name)
        if not family.day:
            yield Job(name, family)


@dataclass
class Lived:
    """One life. faults : those that struck. restarts, rescued : times that it went on by itself,
    and from rows left in memory. said : its last error. ended : the run reached its end. wrong :
    what it must not do.
    """

    job: str
    ranks: int
    faults: list[str] = field(default_factory=list)
    status: int = 0
    seconds: float = 0.0
    restarts: int = 0
    rescued: int = 0
    said: str = ""
    ended: bool = False
    wrong: str = ""
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))


class Record:
    """Lives, and what undisturbed runs reached, in a file of JSON lines: a soak goes on with it.

    path : of the file; None: there is none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.lives: list[Lived] = []
        self._reached: dict[str, tuple[str, float]] = {}
        lines = path.read_text().splitlines() if path is not None and path.exists() else ()
        for entry in map(json.loads, lines):
            if "config" in entry:
                self._reached[entry["config"]] = (entry["digest"], entry["seconds"])
            else:
                self.lives.append(Lived(**entry))

    def add(self, life: Lived) -> None:
        """Note a life."""
        self.lives.append(life)
        self._write(asdict(life))

    def undisturbed(self, config: str, run: Callable[[], str]) -> tuple[str, float]:
        """Digest and seconds of a run without faults, which is made where it is not known yet."""
        key = sha256(config.encode()).hexdigest()
        if key not in self._reached:
            begun = time.monotonic()
            digest = run()
            self._reached[key] = (digest, time.monotonic() - begun)
            self._write({"config": key, "digest": digest, "seconds": self._reached[key][1]})
        return self._reached[key]

    def _write(self, entry: Mapping[str, object]) -> None:
        if self._path is not None:
            with open(self._path, "a") as file:
                file.write(json.dumps(entry) + "\n")

    @property
    def faults(self) -> collections.Counter[str]:
        """How often each fault struck."""
        return collections.Counter(name for life in self.lives for name in life.faults)

    def report(self) -> str:
        """In words."""
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        lives = self.lives
        return (
            f"{self.faults.total():,} faults in {len(lives):,} lives ({kinds}), which went on by "
            f"themselves {sum(life.restarts for life in lives):,} times and from rows left in "
            f"memory {sum(life.rescued for life in lives):,} times; "
            f"{sum(life.ended for life in lives):,} runs reached their end; "
            f"{sum(bool(life.wrong) for life in lives):,} lives did what they must not do"
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
    """Jobs and their lives, in a record.

    limit : seconds of a life. most_faults : of one. restarts : how often one starts itself again,
    drawn from these. possible : what may happen.
    """

    limit = LIMIT
    most_faults = MOST_FAULTS
    restarts: Sequence[int] = (0, 2, RESTARTS, RESTARTS)
    possible: Sequence[Fault] = FAULTS

    def __init__(self, place: Place, folder: Path, steps: int, ranks: int, record: Record) -> None:
        self.place = place
        self.folder = folder
        self.ranks = ranks
        self.record = record
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
            for fault in self.possible
            if allowed[fault.needs] and not (job.family.bound and fault.asks)
        ]

    def job(self, job: Job, until: Callable[[], bool]) -> None:
        """Live until the job has reached its end, or `until` says so."""
        text = job.family.toml(self.folder)
        (self.folder / "job.toml").write_text(text)
        # the folder has another name each time
        config = "\n".join([text.replace(str(self.folder), ""), *self._fixed, *job.settings])
        expected, seconds = self.record.undisturbed(config, lambda: self._undisturbed(job))
        self._clear()
        while expected and not until():
            if self._live(job, expected, min(seconds, MOST_SECONDS)):
                return

    def _clear(self) -> None:
        """Remove what lives of a job leave."""
        shutil.rmtree(self.place.out, ignore_errors=True)
        shutil.rmtree(self.folder / MIRROR, ignore_errors=True)
        self._clear_memory()

    def _undisturbed(self, job: Job) -> str:
        """The digest of a run without faults; "": the config that was drawn cannot be trained."""
        self._clear()
        status, text = self._end(self._start(job, (), 1, {}, resume=False))
        if status and job.name.startswith(DRAWN):  # its rates are too high
            return ""
        if status:
            raise Broken(f"{job.name}: a run without faults failed: {text}")
        return self._digest()

    def _live(self, job: Job, expected: str, seconds: float) -> bool:
        """One life; whether the job reached its end. seconds : that an undisturbed run takes."""
        chance = self.place.chance
        before = self._newest()
        ranks = 1 if job.family.bound else chance.randint(1, self.ranks)
        lived = Lived(job.name, ranks)
        readers = chance.random() < 0.3
        restarts = chance.choice(self.restarts)
        faults = self._drawn_faults(self.faults(job, ranks, readers), restarts)
        settings = [each for fault in faults for each in fault.settings]
        if readers:
            settings += ["readers.count=2", "memory.warm=false"]
        variables = {name: value for fault in faults for name, value in fault.variables.items()}
        life = self._start(
            job, [*self._ways(job), *settings], ranks, variables, resume=True, restarts=restarts
        )
        pauses = [chance.uniform(0.0, 0.2) for _ in faults]
        # lives are mostly starts: without this few faults would strike a step
        compiles = any(COLD in fault.variables.values() for fault in faults)
        in_steps = chance.random() < 0.75 and not compiles
        if not in_steps:
            patience = chance.uniform(0.3, 1.1) * seconds * (1 + ranks) / 2
            pauses = [patience / len(faults)] * len(faults)
        struck: list[Fault] = []  # a life that has ended is not struck any more
        text = ""
        try:
            for fault, pause in zip(faults, pauses):
                if fault.strike is not None:
                    if in_steps:
                        self._await_steps(life, self._newest())
                    life.wait(pause)
                if life.running():
                    struck.append(fault)
                    if fault.strike is not None:
                        fault.strike(self.place, life)
            lived.status, text = self._end(life)
            lost = 0 if any(fault.loses for fault in struck) else before - self._newest()
            may_fail = life.excused or any(fault.fatal for fault in struck)
            lived.wrong = complaint(lived.status, text, lost, may_fail, life.cut_off)
            results = self.place.out / "run.json"
            lived.ended = not lived.status and results.exists() and "stopped" not in text
            if not lived.wrong and lived.ended and self._digest() != expected:
                lived.wrong = "another digest than undisturbed"
        except Broken as error:
            lived.wrong = str(error)
        finally:
            self.place.mend()
        lived.seconds = round(life.seconds(), 1)
        lived.faults = [fault.name for fault in struck]
        lived.restarts = text.count(RESTARTED)
        lived.rescued = text.count(RESCUED)
        lived.said = "".join(sentences(text)[-1:])
        self.record.add(lived)
        line = f"{job.name}, {ranks} rank(s): {names_of(struck)}: status {lived.status}"
        print(f"{line}, {lived.restarts} of {restarts} restarts, {lived.seconds:.0f} s", flush=True)
        if lived.wrong:
            raise Broken(f"{line}: {lived.wrong}\n{text}")
        return lived.ended

    def _await_steps(self, life: Life, before: int) -> None:
        """Wait until a life has a checkpoint beyond those before it, or has ended."""
        while life.running() and self._newest() <= before and life.seconds() < self.limit:
            life.wait(0.02)

    def _drawn_faults(self, possible: Sequence[Fault], restarts: int) -> list[Fault]:
        """Some faults: what is there from the start, and at last what may end the life; what it
        outlives, so many times, stands anywhere between.
        """
        chance = self.place.chance
        there = [one for one in possible if one.strike is None and chance.random() < one.share]
        strikes = [one for one in possible if one.strike is not None]
        shares = [one.share for one in strikes]
        drawn = chance.choices(strikes, shares, k=chance.randint(2, self.most_faults))
        ends = [one for one in drawn if one.ends(restarts)]
        return [*there, *(one for one in drawn if one not in ends), *dict.fromkeys(ends)]

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
        restarts: int = 0,
    ) -> Life:
        """Start a life; ranks on hosts where there are some."""
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        sets = (*self._fixed, *job.settings, *settings)
        config = self.folder / "job.toml"
        command = [sys.executable, "-m", "neocpu", "train", str(config), "--out"]
        command += [str(self.place.out), *["--resume"] * resume, *self._shown()]
        command += [word for one in sets for word in ("--set", one)]
        hosts: list[int] = []
        if ranks > 1 and self.place.room is not None:
            dealt = collections.Counter(self._dealt(self.place.room, ranks))
            hosts = sorted(dealt)
            command += ["--hosts", ",".join(f"host{number}:{dealt[number]}" for number in hosts)]
        elif ranks > 1:
            command += ["--ranks", str(ranks)]
        if restarts:
            command += ["--restarts", str(restarts)]
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
        alone = None if ranks > 1 else int(restarts > 0)
        return Life(process, mark, hosts, parity, alone)

    def _shown(self) -> Sequence[str]:
        """Options by which ranks tell what they do."""
        trace = ("--trace", str(self.folder / "trace.json"), "--force")
        return self.place.chance.choice(((), ("--logs", str(self.folder / "logs")), trace))

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
            out, err = life.process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired as error:
            kill_all(self.place, life)
            raise Broken(f"a life did not end in {self.limit:.0f} s") from error
        status = int(life.process.returncode)
        self._look_behind(life, status, f"{out}\n{err}")
        return status, f"{out}\n{err}"

    def _look_behind(self, life: Life, status: int, text: str, seconds: float = 5.0) -> None:
        """Raise Broken for processes that a life leaves, after so many seconds, and for memory."""
        end = time.monotonic() + seconds
        while left := life.processes():
            if time.monotonic() > end:
                kill_all(self.place, life)
                raise Broken(f"processes {sorted(left)} outlive their run\n{text}")
            time.sleep(0.1)
        if names := list(self._left(life, status, text)):
            raise Broken(f"shared memory is left: {', '.join(names)}\n{text}")

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


def options_of(about: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """What a soak is asked for; about : it, to who asks for help."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=0.05, help="how long, at most")
    parser.add_argument("--faults", type=int, default=10**9, help="how many, at most")
    parser.add_argument("--hosts", type=int, default=3, help="hosts of a life, at most")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of a life, at most")
    parser.add_argument("--steps", type=int, default=60, help="steps of a run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="a file of lives, with which a soak goes on")
    # hosts, disks and clusters go
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    return parser.parse_args(arguments)


def soaked(soak: Soak, options: argparse.Namespace) -> int:
    """Exit status of a soak for so many hours, or so many faults; it is printed what it saw."""
    end = time.monotonic() + 3600 * options.hours

    def enough() -> bool:
        return time.monotonic() > end or soak.record.faults.total() >= options.faults

    broken = False
    for job in jobs(options.seed):
        if enough():
            break
        try:
            soak.job(job, enough)
        except Broken as error:
            broken = True
            print(f"BROKEN: {error}", flush=True)
    print(soak.record.report())
    return int(broken)


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak over hosts."""
    options = options_of(__doc__, arguments)
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
        record = Record(options.record)
        return soaked(Soak(place, folder, options.steps, options.ranks, record), options)


if __name__ == "__main__":
    sys.exit(main())
