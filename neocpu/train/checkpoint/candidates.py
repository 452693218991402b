"""From which checkpoint does a run go on? The newest that can be used; why not others is said."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from neocpu.core.errors import CheckpointError
from neocpu.parallel.transport.comm import Comm
from neocpu.train.checkpoint.folder import checkpoints
from neocpu.train.watch.results import silent

if TYPE_CHECKING:
    from neocpu.train.checkpoint.reading import CheckpointFile

Tell = Callable[[str], None]
Rows = tuple[int, tuple[int, int]]  # number of a tensor, and which of its rows


class Candidates:
    """The checkpoints of a folder, newest first, as far as they can be used; all is collective."""

    def __init__(self, out: Path, comm: Comm, tell: Tell) -> None:
        self._out = out
        self._comm = comm
        self._tell = tell
        self._refused: list[str] = []
        self._left: list[Path] = []
        error: CheckpointError | None = None
        if comm.rank == 0:
            try:
                self._left = checkpoints(out)
            except CheckpointError as problem:
                error = problem
        comm.agree(error)

    def next(self) -> Path | None:
        """The next one that can be opened; None where there are none at all.

        Raises CheckpointError where there are some, but all were refused.
        """
        from neocpu.train.checkpoint.reading import CheckpointFile

        newest = ""
        error: CheckpointError | None = None
        while self._left and not newest:  # on rank 0
            path = self._left.pop()
            try:
                with CheckpointFile(path):
                    newest = str(path.resolve())
            except CheckpointError as problem:
                self.refuse(path, str(problem))
        if self._comm.rank == 0 and not newest and self._refused:
            error = CheckpointError(
                f"{self._out} has checkpoints, but none that can be used, and a run from step 0 "
                f"would overwrite them: {'; '.join(self._refused)}. Choose another --out, upgrade "
                "neocpu if they are newer, or remove them"
            )
        self._comm.agree(error)
        newest = self._comm.allgather_bytes(newest.encode())[0].decode()
        return Path(newest) if newest else None

    def refuse(self, path: Path, why: str) -> None:
        """Say that a file is passed over, and why."""
        self._refused.append(why if str(path) in why else f"{path}: {why}")
        self._tell(f"passing over {path.name}: {why}")

    @property
    def last(self) -> bool:
        """Whether no others are left."""
        return not self._comm.largest(len(self._left))


def latest(out: Path, comm: Comm, tell: Tell = silent) -> Path | None:
    """The newest complete checkpoint with a sound index in a folder of results.

    None where there are no checkpoints. tell : is given a line for each that is passed over.
    Collective.

    Raises CheckpointError on all ranks where none of several can be used, or the folder cannot be
    read.
    """
    return Candidates(out, comm, tell).next()


def share_of_rows(file: "CheckpointFile", comm: Comm) -> Iterator[Rows]:
    """All tensors of a file, and the share of their rows that this rank reads."""
    for number, tensor in enumerate(file.tensors):
        first = tensor.rows * comm.rank // comm.size
        yield number, (first, tensor.rows * (comm.rank + 1) // comm.size)


def sound(
    out: Path,
    comm: Comm,
    needed: "Callable[[CheckpointFile, Comm], Iterable[Rows]]" = share_of_rows,
    tell: Tell = silent,
) -> Path | None:
    """The newest checkpoint of a folder whose blocks are sound; None where there is none.

    An online run needs it before it opens its files: what they are, and which rows they look up,
    is in the checkpoint that the run goes on from. The last one that is left is not verified here,
    since whoever loads it raises for its blocks. Collective.

    needed : what this rank verifies of a file.

    Raises CheckpointError on all ranks as `latest` does.
    """
    candidates = Candidates(out, comm, tell)
    while (path := candidates.next()) is not None:
        trouble = "" if candidates.last else _damage(path, comm, needed)
        if not trouble:
            return path
        candidates.refuse(path, trouble)
    return None


def _damage(
    path: Path, comm: Comm, needed: "Callable[[CheckpointFile, Comm], Iterable[Rows]]"
) -> str:
    """What is wrong with the blocks of a file that any rank needs; "": nothing. Collective."""
    from neocpu.train.checkpoint.reading import CheckpointFile

    trouble = ""
    try:
        with CheckpointFile(path) as file:
            for number, rows in needed(file, comm):
                for _ in file.blocks(number, *rows):
                    pass
    except CheckpointError as problem:
        trouble = str(problem)
    troubles = comm.allgather_bytes(trouble.encode())
    return next((text.decode() for text in troubles if text), "")
