"""Where do copies of logs lie, converted ones and those of stores? In one folder of the user's, of
a limited size.

    NEOCPU_DATA_CACHE       the folder; default: data in the cache of neocpu, ~/.cache/neocpu/data
    NEOCPU_DATA_CACHE_GIB   its size; default 20, and a tenth of its disk at most

Where a new copy needs room, those that were not used for the longest time go, but none that a run
uses: a run holds a shared lock on its copies until its process ends. Time of use is the access
time, which is set by hand, as most disks do not keep it.
"""

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from neocpu.core.errors import ConfigError
from neocpu.core.targets import nearest_existing, remove_parts
from neocpu.kernels.compile.trust import base_folder

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

FOLDER = "NEOCPU_DATA_CACHE"
SIZE = "NEOCPU_DATA_CACHE_GIB"
COPIES = "*.converted.h5"
REMOTE = "remote"  # the folder of what stores hold, as they hold it
GIB = 1 << 30
DEFAULT_GIB = 20.0
DISK_SHARE = 0.1
GRACE = 600.0  # seconds after its last use in which a copy stays: a run may be about to open it
DAY = 86400.0  # seconds in which a copy counts as in use where the file system has no locks
MOST_HELD = 256  # copies that a process holds, so that files to open are left for other things

_held: dict[Path, int] = {}  # copies that this process uses: path -> descriptor


class CachedCopy(NamedTuple):
    """A copy in the cache: its size in bytes, seconds since its last use, and is it in use?"""

    path: Path
    size: int
    idle: float
    in_use: bool

    @property
    def may_go(self) -> bool:
        """Whether no run uses it, or is about to open it."""
        return not self.in_use and self.idle >= GRACE


def cache_folder() -> Path:
    """The folder of converted copies, which may not exist yet."""
    return Path(os.environ.get(FOLDER) or base_folder() / "data").expanduser()


def limit() -> int:
    """How many bytes the copies may take together. Raises ConfigError for a wrong size."""
    text = os.environ.get(SIZE, "")
    try:
        size = float(text) if text else DEFAULT_GIB
    except ValueError:
        size = -1.0
    if not 0 <= size < float("inf"):
        raise ConfigError(f"{SIZE} = {text!r} is no size in GiB")
    if text:
        return round(size * GIB)
    disk = shutil.disk_usage(nearest_existing(cache_folder())).total
    return min(int(size * GIB), int(DISK_SHARE * disk))


def copies() -> list[CachedCopy]:
    """The copies in the cache, those first that were not used for the longest time."""
    now = time.time()
    cached = []
    for path in (*cache_folder().glob(COPIES), *_remote_files()):
        # another process may remove one meanwhile
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            idle = max(now - status.st_atime, 0.0)
            cached.append(CachedCopy(path, status.st_size, idle, _in_use(path, idle)))
    return sorted(cached, key=lambda copy: -copy.idle)


def _remote_files() -> list[Path]:
    """Copies of files of stores; what is hidden belongs to them."""
    files = (cache_folder() / REMOTE).rglob("*")
    return [path for path in files if path.is_file() and not path.name.startswith(".")]


def is_cached(copy: Path) -> bool:
    """Does a copy lie in the cache?"""
    return copy.is_relative_to(cache_folder())


def use(copy: Path) -> bool:
    """Hold a copy until this process ends; False: it is gone.

    Copies outside the cache are only looked for.
    """
    if not is_cached(copy):
        return copy.exists()
    try:
        handle = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    status = os.fstat(handle)
    with contextlib.suppress(OSError):  # no locks here; its time of use keeps it a while
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_SH)
        os.utime(copy, ns=(time.time_ns(), status.st_mtime_ns))
    if (earlier := _held.pop(copy, None)) is not None:
        os.close(earlier)
    _held[copy] = handle
    while len(_held) > MOST_HELD:
        os.close(_held.pop(next(iter(_held))))
    # it may have been removed before it was locked
    return copy.exists()


def _in_use(path: Path, idle: float) -> bool:
    """Does a process hold a copy?"""
    if path in _held:
        return True
    with _exclusive(path) as alone:
        if alone is None:
            return idle < DAY
        return not alone


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[bool | None]:
    """Hold a copy alone: True; False where another process holds it, None where nobody can say."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if fcntl is None:
            yield None
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            yield False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
            return
        yield True
    finally:
        os.close(handle)


def remove(copy: CachedCopy) -> bool:
    """Remove a copy and its report; False: a run uses it, or it cannot be removed."""
    if copy.in_use:
        return False
    with contextlib.suppress(OSError), _exclusive(copy.path) as alone:
        if alone is False:
            return False
        copy.path.unlink()
        for name in (f"{copy.path.name}.errors.txt", f".{copy.path.name}.mark"):
            copy.path.with_name(name).unlink(missing_ok=True)
        return True
    return False


def clear() -> tuple[list[CachedCopy], list[CachedCopy]]:
    """Remove all copies that no run uses, and what conversions that were killed have left.

    Returns the copies that are removed, and those that stay.
    """
    for part in cache_folder().glob(f".{COPIES}.part-*"):
        remove_parts(part.with_name(part.name[1:].partition(".part-")[0]))
    for part in (cache_folder() / REMOTE).rglob(".*.part"):
        part.unlink(missing_ok=True)
    gone: list[CachedCopy] = []
    left: list[CachedCopy] = []
    for copy in copies():
        (gone if remove(copy) else left).append(copy)
    return gone, left


def has_room(needed: int) -> bool:
    """Make room for a copy of so many bytes; False where the cache cannot have it."""
    folder = cache_folder()
    if not is_writable(folder):
        return False
    present = copies()
    total = sum(copy.size for copy in present)
    idle = [copy for copy in present if copy.may_go]

    def lacking() -> int:
        return max(total + needed - limit(), needed - shutil.disk_usage(folder).free)

    # in vain, none should go
    if lacking() > sum(copy.size for copy in idle):
        return False
    for copy in idle:
        if lacking() > 0 and remove(copy):
            total -= copy.size
    return lacking() <= 0


def is_writable(folder: Path) -> bool:
    """Can files be written into a folder, which is made where it is missing?"""
    probe = folder / f".neocpu-{os.getpid()}"
    try:
        # what is in a log may be private
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def making(copy: Path) -> Iterator[None]:
    """One process at a time makes a copy in the cache; the others wait for it."""
    if not is_cached(copy) or fcntl is None:
        yield
        return
    lock = copy.with_name(f".{copy.name}.lock")
    with open(lock, "a") as file:
        with contextlib.suppress(OSError):  # without locks both make it, and the last one stays
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
