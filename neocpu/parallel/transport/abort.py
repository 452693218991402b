"""How does a job of many ranks end when one fails, or is asked to stop? At once, everywhere, and
with one message.

`guard` catches what `main` lets through. The first rank of a host to claim the job's marker file
prints; then the job is aborted with the error's exit status, so no rank waits for one that is gone.
An error raised by `comm.agree` is printed only by the rank it came from, and that a signal stopped
all ranks by rank 0. `StopSignal` turns SIGTERM and Ctrl-C into a flag that training looks at.
"""

import hashlib
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Self

from neocpu.core.cores import ADDRESS_LIMIT, addresses_left
from neocpu.core.errors import REMEDIES, EnvironmentProblem, NeocpuError, Stopped

PATIENCE = 5.0  # seconds that a rank with nothing to say gives the one that speaks
UNREACHED = "Other MPI error"  # how MPICH's reasons begin that are no mistake of the caller
_STARTED = time.time()  # of this process, nearly


@dataclass
class _Job:
    """Which job this process belongs to, once `join_job` has told."""

    token: str = ""
    rank: int | None = None
    abort: Callable[[int], None] | None = None


_job = _Job()
# what `signal.signal` takes and gives
Handler = Callable[[int, FrameType | None], object] | int | None


def join_job(token: str, rank: int, abort: Callable[[int], None]) -> None:
    """Tell the guard which job this process belongs to: a token that all ranks share, its rank, how
    to end the job.
    """
    _job.token = token
    _job.rank = rank
    _job.abort = abort


def guard(main: Callable[[], int | None], abort: Callable[[int], None] | None = None) -> int:
    """Exit status of `main`; if it fails, print once for the whole job and end all ranks.

    abort : ends the job before `join_job` was called, for a rank that fails while others already
        wait for it.

    A NeocpuError is printed without traceback and sets its own status; Ctrl-C gives 130; what the
    machine lacks (`REMEDIES`) is one line and status 1; anything else is a bug and is printed with
    traceback and rank, status 1. All ranks are expected to leave together, and nothing is aborted,
    after SystemExit, and after Stopped and a NeocpuError with a status above 128: a run that a
    signal stopped.
    """
    try:
        return main() or 0
    except Stopped as stopped:
        return _leave_together(f"neocpu: {stopped}{stopped.hint}", stopped.exit_status)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        return _end_job(NeocpuError(str(stop.code)), str(stop.code), 1, abort)
    except KeyboardInterrupt as error:
        return _end_job(error, "neocpu: interrupted", 128 + signal.SIGINT, abort)
    except NeocpuError as error:
        if error.exit_status > 128:
            return _leave_together(f"neocpu: {_one_line(error)}", error.exit_status)
        launched = bool(_job.abort or abort)
        text = f"neocpu: error: {_one_line(error)}{_where(error, launched)}"
        return _end_job(error, text, error.exit_status, abort)
    except BaseException as error:
        if lack := _what_lacks(error):
            return _end_job(error, f"neocpu: error: {lack}", 1, abort)
        if type(error).__module__ == "mpi4py.MPI":
            # MPI lost another rank: the launcher ends this one too, or one beside it says why
            _wait_for(_marker())
            if str(error).startswith(UNREACHED):
                return _end_job(error, f"neocpu: error: {_unreached(error)}", 1, abort)
        rank = _job.rank
        where = "" if rank is None else f" on rank {rank}"
        text = (
            "".join(traceback.format_exception(error))
            + f"neocpu: unexpected {type(error).__name__}{where}: {error}"
        )
        return _end_job(error, text, 1, abort)


def _where(error: NeocpuError, launched: bool) -> str:
    """On which host, of an error that others may not have: of this machine, or a file's on it."""
    own = isinstance(error, EnvironmentProblem) or isinstance(error.__cause__, OSError)
    agreed = hasattr(error, "spoken_by")
    return f" (on {socket.gethostname()})" if launched and own and not agreed else ""


def _unreached(error: BaseException) -> str:
    """That MPI cannot reach another rank, and the last of its reasons, which is the deepest."""
    *_, reason = str(error).splitlines()
    return (
        f"rank {_job.rank} cannot reach another one ({reason.strip()}): that one was killed, or "
        "its host or link is lost; go on with --resume"
    )


def _what_lacks(error: BaseException) -> str:
    """What the machine lacks, and what helps, where that is what an error of the system says."""
    if isinstance(error, MemoryError) and addresses_left() < math.inf:
        return f"no more memory can be mapped; raise the limit on addresses ({ADDRESS_LIMIT})"
    if not isinstance(error, OSError) or error.errno not in REMEDIES:
        return ""
    file = f"{error.filename}: " if error.filename else ""
    return f"{file}{error.strerror}; {REMEDIES[error.errno]}"


def _end_job(
    error: BaseException, text: str, status: int, abort: Callable[[int], None] | None
) -> int:
    abort = _job.abort or abort
    if abort is None:
        _print(text)
        return status
    marker = _marker()
    speaker = getattr(error, "spoken_by", _job.rank)
    if speaker == _job.rank and _claim(marker):
        _print(text)
        with suppress(OSError):
            marker.write_text("done")
        time.sleep(0.2)  # the launcher still has to read what was printed
    else:
        _wait_for(marker)
    abort(status)
    return status


def has_spoken() -> bool:
    """Has a rank of this host said why the job ends?"""
    return _marker().exists()


def _leave_together(text: str, status: int) -> int:
    # all ranks stop by themselves after the same step, and finish what they write: one speaks
    if not _job.rank:
        _print(text)
    _claim(_marker())  # for those of this host that look for the reason
    return status


def _marker() -> Path:
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:  # no file can be opened anywhere, so everybody speaks
        folder = os.sep
    return Path(folder) / f"neocpu-{_job.token or launch_token()}.said"


def _print(text: str) -> None:
    """Say it on stderr; the exit status says enough where that cannot be written."""
    # stdout first: what was printed before the error comes before it
    for stream, words in ((sys.stdout, ""), (sys.stderr, text.rstrip("\n") + "\n")):
        with suppress(OSError, ValueError, AttributeError):  # full, closed, or none
            stream.write(words)
            stream.flush()


def _one_line(error: BaseException) -> str:
    """Its message without line ends, as those that HDF5 writes."""
    return " ".join(line.strip() for line in str(error).splitlines())


def _claim(marker: Path) -> bool:
    """Did this process create the marker? If the folder cannot be written, everybody speaks.

    A marker from before this process started is of an earlier one with the same parent, a shell.
    """
    with suppress(OSError):  # another user's, or just removed by another rank
        for old in marker.parent.glob("neocpu-*.said"):
            written = old.stat().st_mtime
            # a marker is needed for seconds: one of yesterday was left by a job that was killed
            if time.time() - written > 86400 or (old == marker and written < _STARTED - 1.0):
                old.unlink()
    try:
        # to create it is to claim it: the file system lets one rank of a host succeed
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    except OSError:
        pass
    return True


def _wait_for(marker: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if marker.read_text() == "done":
                # the words of the rank that spoke are on their way through the launcher
                time.sleep(0.3)
                return
        except OSError:
            pass
        time.sleep(0.05)


def launch_token() -> str:
    """A name that ranks of one job and host share before they can talk: their launcher's process
    and job numbers.
    """
    parent = os.getppid()
    try:
        # numbers of processes are used again: the start time tells two launchers apart
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = ""
    names = (
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "PMIX_NAMESPACE",
        "PALS_APID",
        "FLUX_JOB_ID",
        "LSB_JOBID",
    )
    facts = [str(parent), started, *(os.environ.get(name, "") for name in names)]
    return hashlib.sha256("/".join(facts).encode()).hexdigest()[:16]


class StopSignal:
    """From now until `restore`, SIGTERM, SIGUSR1, SIGUSR2 and, once `started`, SIGINT only set
    `number`, so that a run can end with a checkpoint.

    Launchers pass them on from mpiexec to the ranks, except that Open MPI's kills the ranks soon
    after a SIGTERM or SIGINT: there, and as Slurm's early warning (`--signal=USR1@120`), SIGUSR1 is
    the one to send.

    Ranks get the signal at different steps: agree on it with `comm.largest(stop.number)`. Until the
    run has started there is nothing to lose, so Ctrl-C is a KeyboardInterrupt; afterwards a second
    one is, more than a second after the first. One within another begins with what the outer one
    holds already (`held_signals`). Outside the main thread, which alone has signals, it knows those
    that are held.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
    held = 0  # that came before this process had a run

    def __init__(self, started: bool = True) -> None:
        self._number = StopSignal.held
        self.started = started
        self._heed: Callable[[], None] = lambda: None
        self._when = time.monotonic()
        self._before: dict[signal.Signals, Handler] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in self.SIGNALS}

    @property
    def number(self) -> int:
        """The signal that came (0: none); outside the main thread the one that is held."""
        return self._number or (0 if self._before else StopSignal.held)

    def start(self, heed: Callable[[], None] = lambda: None) -> None:
        """The run has started: Ctrl-C is held from now on.

        heed : is called once a signal is there.
        """
        self.started = True
        self._heed = heed
        if self._number:
            heed()

    def restore(self) -> None:
        """Give the signals back to whoever had them before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # a terminal's Ctrl-C may come twice within a moment: to the process group, and passed on by
        # mpiexec
        again = self._number and time.monotonic() - self._when > 1.0
        if number == signal.SIGINT and (again or not self.started):
            raise KeyboardInterrupt
        if not self._number:
            self._number = number
            self._when = time.monotonic()
            self._heed()

    @staticmethod
    def exit_status(number: int) -> int:
        """Exit status of a run that a signal stopped, as shells count: 128 + signal."""
        return 128 + number


@contextmanager
def held_signals() -> Iterator[None]:
    """Hold the signals of `StopSignal`, but Ctrl-C: a run within looks at them when it begins, and
    one that comes after its last step changes nothing.
    """

    def hold(number: int, frame: FrameType | None) -> None:
        StopSignal.held = StopSignal.held or number

    before: dict[int, Handler] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = set(StopSignal.SIGNALS) - {signal.SIGINT}
        before = {number: signal.signal(number, hold) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        StopSignal.held = 0


class Terminated(NeocpuError):
    """A signal asked the program to end; what it had not finished is removed."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}; what was not finished is removed")
        self.exit_status = StopSignal.exit_status(number)


@contextmanager
def ended_by_signals(*more: int) -> Iterator[None]:
    """SIGTERM, and more signals, raise `Terminated` within the block, as Ctrl-C raises
    KeyboardInterrupt, so that whoever writes files can remove them. For work that no checkpoint
    keeps.
    """
    numbers = (signal.SIGTERM, *more)

    def end(number: int, frame: FrameType | None) -> None:
        # another one would end what removes the files
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def let_finish() -> None:
    """The work of this process is done: signals that ask it to stop cannot spoil its status."""
    for number in set(StopSignal.SIGNALS) - {signal.SIGINT}:
        signal.signal(number, signal.SIG_IGN)
