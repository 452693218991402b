"""How is a file written? Whole or not at all, and never over one that is being read.

It is written as `.NAME.part-HOST-PROCESS`, or in a folder of that name, and renamed once it is
whole. Who writes the same file next removes what processes of this host left that were killed while
they wrote; parts of other hosts stay, because nobody here knows whether they are still written.
"""

import errno
import glob
import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neocpu.core.cores import is_running
from neocpu.core.errors import DataError


def nearest_existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists, which is on the disk where it will be.

    Raises FileNotFoundError where there is none.
    """
    for place in (path, *path.absolute().parents):
        if place.exists():
            return place
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def part_of(path: Path) -> Path:
    """The name under which this process writes a file before it gets its own."""
    # beside it: only within a file system is a rename atomic
    return path.with_name(f"{_prefix(path)}{os.getpid()}")


def remove_parts(path: Path) -> None:
    """Remove what processes of this host that are no more left of a file."""
    prefix = _prefix(path)
    for part in path.parent.glob(f"{glob.escape(prefix)}*"):
        # a name of another host that begins alike ends in no number
        process = part.name[len(prefix) :]
        if process.isascii() and process.isdigit() and not is_running(int(process)):
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
                continue
            with suppress(OSError):
                part.unlink()


def _prefix(path: Path) -> str:
    return f".{path.name}.part-{platform.node()}-"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write a file that gets its name `path` once the block is done.

    A reader sees the old file or the new one; after an error nothing is left of the new one. Raises
    OSError where it cannot be written.
    """
    part = part_of(path)
    try:
        yield part
        os.replace(part, path)
        remove_parts(path)
    finally:
        with suppress(OSError, ValueError):  # ValueError: a NUL character in the name
            part.unlink(missing_ok=True)


def refuse_sources(target: Path, sources: Iterable[str | Path]) -> None:
    """Raise DataError if the target is one of the sources: by another spelling, or by a link."""
    identity = _identity(target)
    if identity is None:
        return
    for source in sources:
        if _identity(source) == identity:
            alias = "" if str(source) == str(target) else f" (as {source})"
            raise DataError(
                f"{target}: is read by the same command{alias}, so it cannot be written; name "
                "another file"
            )


def _identity(path: str | Path) -> tuple[int, int] | None:
    """Device and number of a file, the same by whatever name; None if there is no such file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
