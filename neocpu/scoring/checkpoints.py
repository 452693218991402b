"""Which checkpoint is meant by a path? The file itself, or the best or newest one of a run."""

from pathlib import Path

from neocpu.errors import CheckpointError
from neocpu.parallel.comm import Comm, SingleComm
from neocpu.training.checkpoint import latest
from neocpu.training.checkpoint.folder import FOLDER


def checkpoint_of(path: str | Path, comm: Comm | None = None) -> Path:
    """The checkpoint to use of a path: a file, a folder of results, or its folder of checkpoints.

    Of a folder, the newest one that is complete. Collective over `comm` (None: this process alone).

    Raises CheckpointError where there is none.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    run = path.parent if path.name == FOLDER else path
    newest = latest(run, comm or SingleComm())
    if newest is None:
        raise CheckpointError(
            f"{path}: no checkpoint in this folder; name a run's folder (with {FOLDER}/*.h5) or a "
            "checkpoint file"
        )
    return newest
