"""How is a folder of results kept to one run at a time, and from being overwritten by accident?

Rank 0 holds an `flock` on DIR/lock for the run; the system drops it when the process ends, however
it ends. Where file locks do not work (some network file systems), DIR/lock.held is created
exclusively instead, and a holder that is seen to be dead is put aside.
"""

import contextlib
import errno
import json
import os
import time
from pathlib import Path
from typing import Self

from neocpu.core.errors import TrainingError
from neocpu.core.types import JsonObject
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.storage.lock import UNSUPPORTED, claim, holder
from neocpu.train.checkpoint.folder import checkpoints
from neocpu.train.fit.keys import FILE

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

RESTARTS = "restarts.jsonl"  # a line for each restart of the run (`survival.py`)
LOCK = "lock"
HELD = "lock.held"  # where file locks do not work
# seconds that a run that goes on waits for the folder: after a kill, ranks may take a moment to end
PATIENCE = 3.0
RESULTS = ("run.json", "metrics.jsonl", "checkpoints/*.h5", FILE)
# names under which results are written before they get their own
UNFINISHED = (".*.part-*", "checkpoints/.step-*.partial")


def has_results(out: Path) -> Path | None:
    """A file that a run left in this folder, if there is one."""
    return next((path for pattern in RESULTS for path in out.glob(pattern)), None)


def fit_file(path: str | Path) -> Path | None:
    """The file of a fit: of a folder without a run, or this one by its name; None: no fit."""
    path = Path(path)
    if path.is_dir():
        return path / FILE if (path / FILE).is_file() and not checkpoints(path) else None
    return path if path.name == FILE else None


def restarts_of(out: Path) -> list[JsonObject]:
    """The restarts of a run, oldest first: time, reason, checkpoint (null: step 0), pause; on hosts
    also ranks, and left_out: why, by host.
    """
    restarts = []
    with contextlib.suppress(OSError):
        for line in (out / RESTARTS).read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                restarts.append(json.loads(line))
    return restarts


def in_use(out: Path) -> bool:
    """Does a run hold this folder now? A guess where file locks do not work."""
    if (out / HELD).exists():
        return True
    if fcntl is None:
        return False
    try:
        with open(out / LOCK, "rb") as file:
            # shared: two who look do not hold each other up
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


class RunLock:
    """A folder reserved for one run: `with RunLock(out, comm, resume=False): ...`. Collective.

    Creates `out`. Raises TrainingError on all ranks if another run holds it, if it holds results
    and `resume` is false, or if it cannot be written. With `resume` it waits up to `PATIENCE`
    seconds for a run that is just ending.
    """

    def __init__(self, out: Path, comm: Comm, *, resume: bool) -> None:
        self.out = Path(out)
        self.comm = comm
        self.resume = resume
        self._file: int | None = None  # descriptor of the locked file
        self._exclusive: Path | None = None  # file whose existence is the lock

    def __enter__(self) -> Self:
        try:
            with self.comm.agreeing():
                if self.comm.rank == 0:
                    self._begin()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._release()
        # a folder that was removed under the run shows as a missing file somewhere
        if isinstance(error, FileNotFoundError) and self._had(error.filename):
            raise TrainingError(
                f"{error.filename} was removed while the run used it; start the run again"
            ) from error

    def follow(self) -> str:
        """If the folder was renamed or removed under the run, make it again and lock that one.

        Returns a line that says so, "" where nothing happened. On rank 0.
        """
        if self._file is None:
            return ""
        held = os.fstat(self._file)
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self.out / LOCK), held):
                return ""
        where = "removed"
        with contextlib.suppress(OSError):  # where the system tells names of open files
            moved = Path(os.readlink(f"/proc/self/fd/{self._file}"))
            where = f"renamed to {moved.parent}" if moved.exists() else where
        self._release()
        self._take()
        return f"{self.out} was {where} while the run writes to it, and is made again"

    def _begin(self) -> None:
        """Lock the folder, if it is fit for a run, and clear it of what killed runs left."""
        try:
            self._take()
            self._refuse_results()
            self._remove_leftovers()
        except (OSError, ValueError) as problem:  # ValueError: a NUL character in the name
            reason = problem.strerror if isinstance(problem, OSError) else problem
            raise TrainingError(
                f"{self.out}: cannot be used for results: {reason}; choose another --out"
            ) from problem

    def _had(self, name: str | bytes | int | None) -> bool:
        """Whether a file is in this folder, or the folder itself."""
        if not isinstance(name, str):
            return False
        path = Path(name).absolute()
        return self.out.absolute() in (path, *path.parents)

    def _take(self) -> None:
        """Lock the folder for this process; TrainingError if another one holds it."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / LOCK
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if fcntl is None:
                raise OSError(errno.ENOSYS, "no file locks")
            self._wait_for(file)
        except BlockingIOError:
            os.close(file)
            raise self._busy(path) from None
        except OSError as error:
            os.close(file)
            if error.errno not in UNSUPPORTED:
                raise
            self._take_exclusively()
            return
        os.ftruncate(file, 0)
        # for the message of whoever finds it locked
        os.pwrite(file, holder().encode(), 0)
        self._file = file

    def _wait_for(self, file: int) -> None:
        """Lock an open file; BlockingIOError where another process keeps it."""
        end = time.monotonic() + (PATIENCE if self.resume else 0.0)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise
            # flock cannot wait for a limited time
            time.sleep(0.1)

    def _take_exclusively(self) -> None:
        """The same where file locks do not work."""
        path = self.out / HELD
        if not claim(path):
            raise self._busy(path)
        self._exclusive = path

    def _busy(self, path: Path) -> TrainingError:
        """The error that another run, named in the file, holds the folder."""
        run = ""
        with contextlib.suppress(OSError):
            run = path.read_text().strip()
        if not run:
            return TrainingError(
                f"{self.out} is in use by another run; wait, or choose another --out"
            )
        # the system drops a file lock with its process, but an exclusive file may outlive it
        hint = f" (if that run is no more, remove {path})" if path.name == HELD else ""
        return TrainingError(
            f"{self.out} is in use by another run: {run}{hint}; wait, or choose another --out"
        )

    def _refuse_results(self) -> None:
        """TrainingError if a new run would write among the results of another one."""
        checkpoints(self.out)  # raises an error where nobody can tell what is there
        result = has_results(self.out)
        if result is not None and not self.resume:
            raise TrainingError(
                f"{self.out} already has results ({result.relative_to(self.out)}); go on with "
                "--resume, choose another --out, or remove it"
            )

    def _remove_leftovers(self) -> None:
        """Remove files that killed runs had not finished: the folder is locked, so nobody writes
        them any more.
        """
        for pattern in UNFINISHED:
            for path in self.out.glob(pattern):
                path.unlink(missing_ok=True)

    def _release(self) -> None:
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None
        if self._exclusive is not None:
            self._exclusive.unlink(missing_ok=True)
            self._exclusive = None
