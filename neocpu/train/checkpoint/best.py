"""Which checkpoint of a run was the best on the valid split? A note says it, and keeps its file.

DIR/checkpoints/best.json names it: {"file", "step", "metric", "value"}. The file
stays, whatever `checkpoint.keep` says, until a better one has its note.
"""

from pathlib import Path

from neocpu.core.errors import CheckpointError
from neocpu.core.types import Tree
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.train.checkpoint.folder import FOLDER, NOTE, checkpoints, read_note
from neocpu.train.watch.results import write_json


def write_note(out: Path, note: Tree) -> None:
    """Note which checkpoint of a folder of results is the best. Raises OSError."""
    write_json(Path(out) / FOLDER / NOTE, dict(note))


def best_checkpoint(out: Path) -> Path | None:
    """The best checkpoint of a run, where it has noted one that is still there."""
    name = read_note(Path(out) / FOLDER).get("file")
    # a note that was edited must not lead out of the folder
    if not isinstance(name, str) or Path(name).name != name:
        return None
    path = Path(out) / FOLDER / name
    return path if path.is_file() else None


def best_or_last(folder: Path) -> Path:
    """The checkpoint that stands for a run: its best where it noted one, else its last.

    folder : the folder of results, its folder of checkpoints, or a checkpoint, which is returned.

    Raises CheckpointError where there is none.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return folder
    out = folder.parent if folder.name == FOLDER else folder
    if best := best_checkpoint(out):
        return best
    paths = checkpoints(out)
    if not paths:
        raise CheckpointError(
            f"{folder}: no checkpoint in it; name a checkpoint (step-….h5), or the folder of a run "
            "that has written one"
        )
    return paths[-1]


def checkpoint_of(path: str | Path, comm: Comm | None = None) -> Path:
    """`best_or_last` of a path, the same on all ranks. Collective; comm None: this process alone.

    Rank 0 looks: the others may see an older state of a network folder.
    """
    comm = comm or SingleComm()
    return Path(comm.on_first_rank(lambda: str(best_or_last(Path(path))).encode()).decode())
