"""How is a file kept to one process at a time? By `flock` on the file itself.

The system releases such a lock when the process ends, however it ends. Where file locks do not work
(some network file systems) FILE.held is created exclusively instead; it is removed if the process
that made it is known to be dead.
"""

import contextlib
import errno
import os
import socket
import time
from pathlib import Path

from neocpu.errors import StorageError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["UNSUPPORTED", "claim", "fcntl", "holder"]

# what `flock` reports on file systems without locks
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


def held_by(path: Path) -> Path:
    """The lock file that stands for a lock of `path` where locks do not work."""
    return path.with_name(path.name + ".held")


def holder() -> str:
    """The line of a lock file that says which process has it: this one."""
    return (
        f"process {os.getpid()} on {socket.gethostname()} since "
        f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n"
    )


def claim(lock_file: Path) -> bool:
    """Make a lock file; false if another process has it.

    A lock file of a dead process of this host is replaced.
    """
    for _ in range(2):
        try:
            file = os.open(lock_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            if not _holder_is_dead(lock_file):
                return False
            lock_file.unlink(missing_ok=True)
            continue
        with os.fdopen(file, "w") as text:
            text.write(holder())
        return True
    return False


class FileLock:
    """A lock on an open file: exclusive for a writer, shared for readers.

    Raises StorageError if another process has it.
    """

    def __init__(self, path: Path, handle: int, exclusive: bool) -> None:
        self._lock_file: Path | None = None
        try:
            if fcntl is None:
                raise OSError(errno.ENOSYS, "no file locks")
            fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(
                f"{path}: in use by another process; wait for it, or use another file"
            ) from None
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            if exclusive:
                self._claim(path)

    def _claim(self, path: Path) -> None:
        lock_file = held_by(path)
        if claim(lock_file):
            self._lock_file = lock_file
            return
        with contextlib.suppress(OSError):
            raise StorageError(
                f"{path}: in use by {lock_file.read_text().strip()} (this file system has no "
                f"locks: if that process is no more, remove {lock_file})"
            )
        raise StorageError(f"{path}: in use by another process; wait for it, or use another file")

    def release(self) -> None:
        """Remove the lock file, if there is one; closing the file ends its lock."""
        if self._lock_file is not None:
            self._lock_file.unlink(missing_ok=True)
            self._lock_file = None


def _holder_is_dead(lock_file: Path) -> bool:
    """Whether the holder was a process of this host that does not exist any more."""
    try:
        word, pid, _, host = lock_file.read_text().split()[:4]
        if word != "process" or host != socket.gethostname():
            return False
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False
