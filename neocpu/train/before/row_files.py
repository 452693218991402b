"""Where are the SSD files of a run? In its folder, unless the config names another one.

A run that ends removes its own; a run that was killed leaves them.
"""

from pathlib import Path

from neocpu.core.errors import NeocpuError, StorageError
from neocpu.parallel.transport.comm import Comm


def row_folder(out: Path) -> Path:
    """The folder for SSD files in a folder of results."""
    return out / "rows"


def remove_row_files(out: Path, comm: Comm) -> None:
    """Remove SSD files that killed runs, maybe of more ranks, left in a folder of results.

    Collective.

    Raises StorageError on all ranks where a file is in use or cannot be removed.
    """
    error: NeocpuError | None = None
    folder = row_folder(out)
    try:
        if comm.rank == 0:
            # each rank replaces its own, but there may have been more ranks
            for path in folder.glob("rank-*.h5"):
                from neocpu.tables.storage.row_tools import remove

                remove(path)
    except StorageError as problem:
        error = problem
    except OSError as problem:
        error = StorageError(f"{folder}: cannot be cleared: {problem.strerror}; remove it")
    comm.agree(error)
