"""How is a file written? Whole or not at all, and never over one that is being read."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neocpu.core.errors import DataError


def draft_of(path: Path) -> Path:
    """The name under which this process writes a file before it gets its own."""
    # beside it: only within a file system is a rename atomic
    return path.with_name(f".{path.name}.{os.getpid()}")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write a file that gets its name `path` once the block is done.

    A reader sees the old file or the new one; after an error nothing is left of the new one. Raises
    OSError where it cannot be written.
    """
    draft = draft_of(path)
    try:
        yield draft
        os.replace(draft, path)
    finally:
        with suppress(OSError, ValueError):  # ValueError: a NUL character in the name
            draft.unlink(missing_ok=True)


def refuse_sources(target: Path, sources: Iterable[Path]) -> None:
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


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and number of a file, the same by whatever name; None if there is no such file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
