"""How is a file kept to one process at a time? By `flock` on the file itself, which ends with the
process however it ends.

Where file locks do not work (some network file systems) FILE.held is created exclusively instead;
one whose holder is seen to be dead is put aside.
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

UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


def held_by(path: Path) -> Path:
    """The file that stands for the lock of `path` where locks do not work."""
    return path.with_name(path.name + ".held")


def holder() -> str:
    """The line by which a lock says who has it: this process."""
    return (
        f"process {os.getpid()} on {socket.gethostname()} since "
        f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n"
    )


def claim(held: Path) -> bool:
    """Make the file that stands for a lock, unless another process has it; one of a process of this
    host that is gone is put aside.
    """
    for _ in range(2):
        try:
            file = os.open(held, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            if not _dead(held):
                return False
            held.unlink(missing_ok=True)
            continue
        with os.fdopen(file, "w") as text:
            text.write(holder())
        return True
    return False


class FileLock:
    """A lock on an open file: exclusive for a writer, shared for readers. Raises StorageError if
    another process has it.
    """

    def __init__(self, path: Path, handle: int, exclusive: bool) -> None:
        self._held: Path | None = None
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
                self._take(path)

    def _take(self, path: Path) -> None:
        held = held_by(path)
        if claim(held):
            self._held = held
            return
        with contextlib.suppress(OSError):
            raise StorageError(
                f"{path}: in use by {held.read_text().strip()} (this file system has no locks: if "
                "that process is no more, "
                f"remove {held})"
            )
        raise StorageError(f"{path}: in use by another process; wait for it, or use another file")

    def release(self) -> None:
        """Give it back; closing the file does the rest."""
        if self._held is not None:
            self._held.unlink(missing_ok=True)
            self._held = None


def _dead(held: Path) -> bool:
    """Was it a process of this host that is gone?"""
    try:
        word, pid, _, host = held.read_text().split()[:4]
        if word != "process" or host != socket.gethostname():
            return False
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False
