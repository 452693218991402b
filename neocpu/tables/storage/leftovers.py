"""What did processes leave that were killed while they wrote a file? Parts under another name.

A file is written as `.NAME.part-HOST-PROCESS`, or in a folder of that name, and renamed once it is
whole. Who writes the same file next removes the parts of processes of this host that are no more;
those of other hosts stay, because nobody here knows whether they run.
"""

import contextlib
import glob
import os
import platform
import shutil
from pathlib import Path

__all__ = ["part_of", "remove_parts"]


def part_of(path: Path) -> Path:
    """The name under which this process writes `path`."""
    return path.with_name(f"{_prefix(path)}{os.getpid()}")


def remove_parts(path: Path) -> None:
    """Remove what processes of this host that are no more left of `path`."""
    prefix = _prefix(path)
    for part in path.parent.glob(f"{glob.escape(prefix)}*"):
        # a name of another host that begins alike ends in no number
        process = part.name[len(prefix) :]
        if process.isascii() and process.isdigit() and not _is_running(int(process)):
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
                continue
            with contextlib.suppress(OSError):
                part.unlink()


def _prefix(path: Path) -> str:
    return f".{path.name}.part-{platform.node()}-"


def _is_running(process: int) -> bool:
    try:
        # signal 0 is not sent: it only asks whether the process is there
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
