"""Which checkpoint is meant by a path? The file itself, or the best or newest one of a run."""

from pathlib import Path

from neocpu.errors import CheckpointError
from neocpu.parallel.comm import Comm, SingleComm
from neocpu.training.checkpoint.best import best_or_last


def checkpoint_of(path: str | Path, comm: Comm | None = None) -> Path:
    """The checkpoint to use of a path: a file, a folder of results, or its folder of checkpoints.

    Of a folder, the best one on the valid split where the run noted one, else the newest.
    Collective over `comm` (None: this process alone).

    Raises CheckpointError where there is none.
    """
    comm = comm or SingleComm()
    error: CheckpointError | None = None
    name = ""
    if comm.rank == 0:  # the others may see an older state of a network folder
        try:
            name = str(best_or_last(Path(path)))
        except CheckpointError as problem:
            error = problem
    comm.agree(error)
    return Path(comm.allgather_bytes(name.encode())[0].decode())
