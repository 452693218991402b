"""May a file be written here? Never over a file that is being read, by whatever name."""

import os
from collections.abc import Iterable
from pathlib import Path

from neocpu.core.errors import DataError


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
