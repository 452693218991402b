"""What may happen to a run? Faults, what they need, and the disk and the links that they strike.

A fault strikes a life (`soak.py`), and lasts until `mend`, or for a time of its own.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hosts import Room

MARK = "NEOCPU_SOAK"  # in the environment of all processes of a life
RANK = b"PMI_RANK="  # in that of ranks
READER = b"neocpu.ingest.readers.reader"  # in the command of readers
DISK_BYTES = 256 << 20
STILL = 12.0  # seconds for which a run may stand still (parallel.timeout)
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


class Disk:
    """A small file system in a file, mounted at a folder; in memory where that cannot be mounted,
    and without root just the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        image = folder.with_suffix(".img")
        with open(image, "wb") as file:
            file.truncate(DISK_BYTES)
        # one that can be frozen comes first
        for command in (
            ["mkfs.ext4", "-q", str(image)],
            ["mount", "-o", "loop", str(image), str(folder)],
        ):
            _attempt(command)
        self.freezes = os.path.ismount(folder)
        if not self.freezes:
            _attempt(
                ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "neocpu-soak", str(folder)]
            )
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
            _attempt(["mount", "-o", f"remount,{'rw' if can_write else 'ro'}", str(self.folder)])

    def freeze(self, frozen: bool) -> None:
        """Let nobody write, who then waits; or go on."""
        _attempt(["fsfreeze", "-f" if frozen else "-u", str(self.folder)])

    def close(self) -> None:
        """Unmount it."""
        if self.mounted:
            _attempt(["umount", "-l", str(self.folder)])


def _attempt(command: Sequence[str]) -> None:
    """Run a command that may fail, or be missing."""
    with contextlib.suppress(OSError):
        subprocess.run(command, capture_output=True, check=False)


@dataclass
class Place:
    """Where lives are lived, and with what luck.

    room : of hosts; None: this system allows none.
    """

    out: Path
    disk: Disk
    chance: random.Random
    room: Room | None = None

    def mend(self) -> None:
        """End all faults that last."""
        self.disk.free()


class Life:
    """One run that was started, and what is done to it.

    hosts : numbers of those that it has ranks on; () where it has none of the room. parity : its
    rows outlive its ranks. alone : place of its one rank among its processes of `neocpu train`,
    the first of which was called; None: it has several, which mpiexec starts.
    """

    def __init__(
        self,
        process: "subprocess.Popen[str]",
        mark: str,
        hosts: Sequence[int] = (),
        parity: bool = False,
        alone: int | None = None,
    ) -> None:
        self.process = process
        self._alone = alone
        self.hosts = hosts
        self.parity = parity
        self._begun = time.monotonic()
        self._mark = f"{MARK}={mark}".encode()
        self.cut_off = False  # its launcher was killed, and can say nothing
        self.excused = False  # what ended it was neither a fault nor the run

    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def seconds(self) -> float:
        """How long ago it began."""
        return time.monotonic() - self._begun

    def wait(self, seconds: float) -> None:
        """Wait for its end, so long at most."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def processes(self) -> dict[int, Sequence[bytes]]:
        """All its processes that live, with their environments."""
        processes = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                words = (path / "environ").read_bytes().split(b"\0")
                if state != "Z" and self._mark in words:
                    processes[int(path.name)] = words
        return processes

    def ranks(self) -> list[int]:
        """Those that train; none while they are started again."""
        readers = self.readers()
        everybody = {n: words for n, words in self.processes().items() if n not in readers}
        ranks = [
            number
            for number, words in everybody.items()
            if any(word.startswith(RANK) for word in words)
        ]
        return ranks if self._alone is None else self._called()[self._alone :][:1]

    def readers(self) -> list[int]:
        """Those that read data for others."""
        numbers = []
        for number in self.processes():
            with contextlib.suppress(OSError):
                if READER in Path(f"/proc/{number}/cmdline").read_bytes():
                    numbers.append(number)
        return numbers

    def launcher(self) -> list[int]:
        """The process of `neocpu train` that was called, once it runs."""
        return self._called()[:1]

    def _called(self) -> list[int]:
        """Processes of `neocpu train` that mpiexec did not start, the oldest first."""
        numbers = []
        for number, words in self.processes().items():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
                of_command = b"python" in command[0] and b"train" in command
                if of_command and not any(word.startswith(RANK) for word in words):
                    numbers.append(number)
        return sorted(numbers, key=begun_at)

    def signal(self, numbers: Sequence[int], what: signal.Signals) -> None:
        """Send a signal."""
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, what)


@dataclass(frozen=True, eq=False)  # one object each
class Fault:
    """Something that happens to a life.

    strike : does it, after the life began. settings, variables : it needs at the start. fatal : the
    life may end badly. loses : checkpoints may be gone. needs : what the system must allow. asks :
    it asks for a checkpoint. share : how often it happens, beside others; of what is there from the
    start, in so many of all lives. outlived : a run that starts itself again goes on after it.
    put_back : so does a job, as its scheduler starts it again, or mostly is not even asked to.
    """

    name: str
    strike: Callable[[Place, Life], None] | None = None
    settings: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    fatal: bool = False
    loses: bool = False
    needs: str = ""
    asks: bool = False
    share: float = 1.0
    outlived: bool = False
    put_back: bool = False

    def ends(self, restarts: int) -> bool:
        """Does it end, mostly, a life that starts itself again so often?"""
        return self.fatal and not (self.put_back or (restarts and self.outlived))


def kill_all(place: Place, life: Life) -> None:
    """A power cut."""
    life.cut_off = True
    while life.running() and (numbers := list(life.processes())):
        life.signal(numbers, signal.SIGKILL)


def kill_one(place: Place, life: Life) -> None:
    """SIGKILL to a rank, as a system without memory sends it."""
    ranks = life.ranks()
    life.cut_off |= ranks == life.launcher()  # no rank is there, or but one
    life.signal(place.chance.sample(ranks, min(1, len(ranks))), signal.SIGKILL)


def kill_launcher(place: Place, life: Life) -> None:
    """SIGKILL to `neocpu train` itself."""
    life.cut_off = True
    life.signal(life.launcher(), signal.SIGKILL)


def kill_host(place: Place, life: Life) -> None:
    """All that runs on a host is gone at once."""
    assert place.room is not None
    network = place.room.network(place.chance.choice(life.hosts))
    numbers = [number for number in life.processes() if network_of(number) == network]
    life.signal(numbers, signal.SIGKILL)


def kill_reader(place: Place, life: Life) -> None:
    """SIGKILL to one of two readers: the other one reads what it had."""
    readers = life.readers()
    if len(readers) > 1:
        life.signal([place.chance.choice(readers)], signal.SIGKILL)


def begun_at(number: int) -> int:
    """When a process began, in ticks since the system did; 0: it is gone. Numbers start again."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19])
    return 0


def catches(number: int, what: signal.Signals) -> bool:
    """Has a process a handler for a signal?"""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{number}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (what - 1) & 1)
    return False


def network_of(number: int) -> int:
    """The network of a process; 0: it is gone."""
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{number}/ns/net").st_ino
    return 0


def stop(place: Place, life: Life) -> None:
    """Some ranks stand still for less than a second."""
    _stop_for(place, life, place.chance.uniform(0.05, 0.8))


def stop_long(place: Place, life: Life) -> None:
    """Some ranks stand still, perhaps longer than a run may."""
    _stop_for(place, life, place.chance.uniform(1.0, 1.5 * STILL))


def _stop_for(place: Place, life: Life, seconds: float) -> None:
    ranks = life.ranks()
    some = place.chance.sample(ranks, place.chance.randint(min(1, len(ranks)), len(ranks)))
    life.signal(some, signal.SIGSTOP)
    life.wait(seconds)
    life.signal(list(life.processes()), signal.SIGCONT)  # nsenter stops with its child


def terminate(place: Place, life: Life) -> None:
    """SIGTERM."""
    launcher = life.launcher()
    # before it looks out for signals, while Python still starts, it can say nothing
    life.cut_off |= not all(catches(number, signal.SIGTERM) for number in launcher)
    life.signal(launcher, signal.SIGTERM)


def fill(place: Place, life: Life) -> None:
    """The disk is full, or nearly."""
    place.disk.fill(place.chance.choice((0, 4096, 8192, 16384, 24576, 1 << 16, 1 << 20)))


def lock(place: Place, life: Life) -> None:
    """The disk can only be read."""
    place.disk.writable(False)


def hang(place: Place, life: Life) -> None:
    """The disk does not answer, perhaps for longer than a run may stand still."""
    place.disk.freeze(True)
    try:
        life.wait(place.chance.uniform(0.5, 1.5 * STILL))
    finally:
        place.disk.freeze(False)


def remove(place: Place, life: Life) -> None:
    """The folder is removed."""
    shutil.rmtree(place.out, ignore_errors=True)


def cut(place: Place, life: Life) -> None:
    """A host's link is away, for 1 to 20 s, which may be longer than a run may stand still."""
    assert place.room is not None
    number = place.chance.choice(life.hosts)
    place.room.link(number, up=False)
    try:
        life.wait(20 ** place.chance.random())
    finally:
        place.room.link(number, up=True)


def slow_link(place: Place, life: Life) -> None:
    """A host's link carries little, for some seconds."""
    assert place.room is not None
    number = place.chance.choice(life.hosts)
    place.room.shape(number, 10 ** place.chance.uniform(6, 8))
    try:
        life.wait(place.chance.uniform(0.5, 5.0))
    finally:
        place.room.shape(number, 0)


POISONED = "nan.h5"  # the train data with a number that is none
COLD = "cold"  # a folder of kernels, empty at the start
FAULTS = (
    Fault("kill all", kill_all, fatal=True),
    Fault("kill one rank", kill_one, fatal=True, outlived=True),
    Fault("kill the launcher", kill_launcher, fatal=True, share=0.5),
    Fault("kill a host", kill_host, fatal=True, needs="hosts", outlived=True),
    Fault("kill a reader", kill_reader, needs="readers", share=2.0),
    Fault("SIGSTOP, short", stop, share=2.0),
    Fault("SIGSTOP, long", stop_long, fatal=True, share=0.3, outlived=True),
    Fault("SIGTERM", terminate, fatal=True, asks=True),
    Fault("link away", cut, fatal=True, needs="hosts", outlived=True),
    Fault("slow link", slow_link, fatal=True, needs="hosts", outlived=True),
    Fault("full disk", fill, fatal=True, needs="disk"),
    Fault("read-only disk", lock, fatal=True, needs="disk"),
    Fault("disk that hangs", hang, fatal=True, needs="frozen disk", share=0.5),
    Fault("removed folder", remove, fatal=True, loses=True, share=0.3, outlived=True),
    Fault(
        "slow disk", settings=("memory.ssd_bandwidth=20000000", "memory.ssd_iops=2000"), share=0.3
    ),
    Fault("clock jumps", variables={"PYTHONPATH": "clock"}, share=0.3),
    Fault(
        "NaN in the log",
        settings=(f"data.train={POISONED}", "training.on_nonfinite=stop"),
        fatal=True,
        share=0.04,
    ),
    Fault(
        "kill in a cold compile",
        kill_all,
        variables={"NEOCPU_CACHE_DIR": COLD},
        fatal=True,
        share=0.01,
    ),
)
