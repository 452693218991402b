"""How is a file kept to one process at a time? By `flock` on the file itself.

The system releases such a lock when the process ends, however it ends. Where file locks do not work
(some network file systems) FILE.held is created exclusively instead; it is removed if the process
that made it is known to be dead, which only its own machine can tell, until it is started anew.
"""

import contextlib
import errno
import glob
import hashlib
import os
import secrets
import socket
import time
from pathlib import Path
from typing import NamedTuple

from neocpu.core.cores import host_key, is_running
from neocpu.core.errors import StorageError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["UNSUPPORTED", "claim", "fcntl", "holder"]

# what `flock` reports on file systems without locks
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
ATTEMPTS = 10  # to make a lock file that others release meanwhile
NAME = 100  # characters of a lock file's name in the names of its successors


def held_by(path: Path) -> Path:
    """The lock file that stands for a lock of `path` where locks do not work."""
    return path.with_name(path.name + ".held")


def holder() -> str:
    """The line of a lock file that says which process has it: this one."""
    return (
        f"process {os.getpid()} on {socket.gethostname()} since "
        f"{time.strftime('%Y-%m-%d %H:%M:%S')} ({_machine()})\n"
    )


def _machine() -> str:
    """A word for this machine since it was started: copies of one have one name."""
    return f"machine {hashlib.sha256(host_key().encode()).hexdigest()[:12]}"


def claim(lock_file: Path) -> bool:
    """Make a lock file; false if another process has it.

    A lock file of a dead process of this host is replaced. Of processes that find the same one, the
    one that makes its `_successor` replaces it; the others would remove the new holder's file. A
    process that dies in between leaves a successor, which is claimed in the same way.
    """
    for _ in range(ATTEMPTS):
        if _make(lock_file):
            _remove_leftovers(lock_file)
            return True
        stale = _read(lock_file)
        if stale is None:
            continue  # released meanwhile
        if not _holder_is_dead(stale.text):
            return False
        successor = _successor(lock_file, stale)
        if not claim(successor):
            return False
        try:
            # after it was read another process may have replaced it
            if _read(lock_file) == stale:
                os.replace(_private(lock_file), lock_file)
                _remove_leftovers(lock_file)
                return True
        finally:
            successor.unlink(missing_ok=True)
    return False


class _Content(NamedTuple):
    """What a lock file says, and which file it is: `inode` and `written` (ns) change with it."""

    text: str
    inode: int
    written: int


def _read(lock_file: Path) -> _Content | None:
    """The content of a lock file; None if there is no such file."""
    try:
        with open(lock_file, errors="replace") as file:
            status = os.fstat(file.fileno())
            return _Content(file.read(), status.st_ino, status.st_mtime_ns)
    except FileNotFoundError:
        return None
    except OSError:
        return _Content("", 0, 0)  # another user's


def _successor(lock_file: Path, stale: _Content) -> Path:
    """The lock file that gives the right to replace this very content of a lock file."""
    # the inode and time are in it: a later file with the same words has another successor
    identity = hashlib.sha256(repr(stale).encode()).hexdigest()[:16]
    return lock_file.with_name(f"{lock_file.name[:NAME]}.{identity}")


def _private(lock_file: Path) -> Path:
    """A new file of this process alone that names it as the holder."""
    name = f".{lock_file.name[:NAME]}.{os.getpid()}-{secrets.token_hex(8)}"
    private = lock_file.with_name(name)
    # complete before it has the lock's name: nobody may read half of it
    private.write_text(holder())
    return private


def _remove_leftovers(lock_file: Path) -> None:
    """Remove what processes that were killed in `claim` left; the caller holds the lock.

    Nobody needs their files: a successor counts only while the content that it succeeds is there.
    """
    name = glob.escape(lock_file.name[:NAME])
    for pattern in (f"{name}.*", f".{name}.*"):
        for path in lock_file.parent.glob(pattern):
            content = _read(path)
            if content is not None and path != lock_file and _holder_is_dead(content.text):
                path.unlink(missing_ok=True)


def _make(lock_file: Path) -> bool:
    """Make a lock file with its content at once; false if there is one.

    File systems without links get an empty file that is then filled.
    """
    private = _private(lock_file)
    try:
        os.link(private, lock_file)
        return True
    except FileExistsError:
        # a network file system may report this for a link that it has just made
        with contextlib.suppress(OSError):
            return os.path.samefile(private, lock_file)
        return False
    except OSError:
        with contextlib.suppress(FileExistsError), open(lock_file, "x") as file:
            file.write(holder())
            return True
        return False
    finally:
        private.unlink(missing_ok=True)


class FileLock:
    """A lock on an open file: exclusive for a writer, shared for readers.

    Raises StorageError if another process has it.
    """

    def __init__(self, path: Path, handle: int, exclusive: bool) -> None:
        self._lock_file: Path | None = None
        try:
            if fcntl is None:
                raise OSError(errno.ENOSYS, "no file locks")
            # of the open file, not of the process, as POSIX locks are: a second open is refused too
            fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(
                f"{path}: in use by another process; wait for it, or use another file"
            ) from None
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            # without locks readers cannot be counted, so only writers keep each other out
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


def _holder_is_dead(text: str) -> bool:
    """Whether a lock file's text names a process of this host that does not exist any more."""
    try:
        word, pid, _, host = text.split()[:4]
        # a process number says nothing of another host, or of this one before it was started anew
        if word != "process" or host != socket.gethostname():
            return False
        if "(machine " in text and _machine() not in text:
            return False
        return not is_running(int(pid))
    except ValueError:
        return False
