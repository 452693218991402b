"""Which checkpoints does a folder hold, and which of them may go?

The newest ones that can be read stay, and so do others by the policy, the one that is noted as
the best, and every file that one of these is based on. Rank 0 alone looks and deletes, for all
ranks; its result, and its error, is everyone's (`on_first_rank`).

DIR/checkpoints/best.json names the best: {"file", "step", "metric", "value"}. That file stays,
whatever `checkpoint.keep` says, until a better one has its note. Where only the host of rank 0 has
the checkpoints, others are lent copies until the run has loaded them (`lent`).
"""

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from neocpu.core.errors import REMEDIES, CheckpointError
from neocpu.core.types import Tree
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.train.checkpoint.layout import Extents
from neocpu.train.checkpoint.links import Link, base_of
from neocpu.train.checkpoint.policy import SavingPolicy
from neocpu.train.fit.keys import FILE as FIT
from neocpu.train.watch.results import read_json, write_json

T = TypeVar("T")

FOLDER = "checkpoints"
PATTERN = "step-????????*.h5"
NOTE = "best.json"  # names the best checkpoint


def checkpoints(out: Path) -> list[Path]:
    """Checkpoints in a folder of results, oldest first.

    Raises CheckpointError for a folder that cannot be listed.
    """
    folder = Path(out) / FOLDER
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be listed: {error.strerror}") from error
    paths = [folder / name for name in names if Path(name).match(PATTERN)]
    # steps of more than eight digits have longer names
    return sorted(paths, key=lambda path: (len(path.name), path.name))


class Bases:
    """What files are based on, each of them read once as long as it does not change."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, ...], str | None]] = {}

    def of(self, path: Path) -> str | None:
        """Name of the file that a file is based on; None for a whole one.

        Raises CheckpointError for a file that cannot be read.
        """
        status = os.stat(path)
        # reading every file of a folder at each checkpoint would cost more with each of them
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if path not in self._known or self._known[path][0] != identity:
            self._known[path] = (identity, base_of(path))
        return self._known[path][1]


def publish(partial: Path, path: Path, policy: SavingPolicy, bases: Bases) -> list[str]:
    """Give a complete file its name, and delete files that no longer matter; the names of these.

    Raises OSError.

    A file of that name that cannot be read (a newer version's, perhaps) becomes NAME.unusable.
    """
    _set_aside(path, bases)
    os.replace(partial, path)
    # a name that is lost with the power would be a checkpoint that was reported
    _sync(path.parent)
    deleted = []
    for old in _expired(path, policy, bases):
        with contextlib.suppress(OSError):
            old.unlink()
            deleted.append(old.name)
    return deleted


def _set_aside(path: Path, bases: Bases) -> None:
    """Keep a file that is in the way and cannot be read: somebody else may read it."""
    try:
        bases.of(path)
    except FileNotFoundError:
        return
    except (CheckpointError, OSError):
        os.replace(path, path.with_name(f"{path.name}.unusable"))


def _expired(path: Path, policy: SavingPolicy, bases: Bases) -> list[Path]:
    """Files that may be deleted, now that `path` is there.

    One that cannot be read counts for nothing: it stays, and so does all that is older, which it
    may be based on.
    """
    base_names: dict[Path, str | None] = {}
    candidates: list[Path] = []
    for each in checkpoints(path.parent.parent):
        try:
            base_names[each] = bases.of(each)
            candidates.append(each)
        except (CheckpointError, OSError):
            # what it is based on cannot be known, so nothing older may go
            candidates.clear()
    older = [each for each in candidates if each != path]
    readable = [each for each in base_names if each != path]
    # the new one counts as the newest even where files of later steps were left
    kept = policy.kept([*readable, path])
    kept |= {each for each in readable if each.name == _noted(path.parent)}
    needed = set(kept)
    for each in kept:
        base = base_names.get(each)
        # a kept file needs its whole chain
        while base is not None and (based_on := each.with_name(base)) not in needed:
            needed.add(based_on)
            base = base_names.get(based_on)
    return [each for each in older if each not in needed]


def _noted(folder: Path) -> str:
    """Name of the best checkpoint; "": none is noted."""
    name = read_json(folder / NOTE).get("file")
    return name if isinstance(name, str) else ""


def bases_in(folder: Path) -> list[Path]:
    """Files of a folder that other checkpoints of it are based on."""
    bases = []
    for path in sorted(folder.glob("*.h5")):
        with contextlib.suppress(CheckpointError, OSError):
            base = base_of(path)
            if base is not None:
                bases.append(path.with_name(base))
    return bases


def _sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    # a rename is durable once its folder is synced, not its file
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # shares of Windows (CIFS) and other file systems sync files only
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def failed(path: Path, error: OSError) -> CheckpointError:
    """The error that a checkpoint could not be written."""
    why = error.strerror or str(error)
    remedy = REMEDIES.get(error.errno or 0, REMEDIES[errno.ENOSPC])
    return CheckpointError(
        f"{path} could not be written: {why}; older checkpoints are intact; {remedy}, and go on "
        "with --resume"
    )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """A block in which a checkpoint is written: its OSError is told as `failed`."""
    try:
        yield
    except OSError as error:
        raise failed(path, error) from error


@dataclass
class Elsewhere:
    """What ranks write of a file on disks of hosts that do not see rank 0's.

    somewhere, here : are there such ranks, and is this one? extents : what this one wrote.
    """

    somewhere: bool = False
    here: bool = False
    extents: Extents = field(default_factory=dict)

    def look(self, comm: Comm, partial: Path) -> None:
        """See who sees a file that rank 0 has just made. Collective."""
        self.here = not partial.exists()
        self.somewhere = bool(comm.largest(int(self.here)))
        if self.here:
            partial.parent.mkdir(parents=True, exist_ok=True)

    def collect(self, comm: Comm, partial: Path, path: Path) -> None:
        """Bring it to rank 0, once all have written. Collective.

        Raises CheckpointError on all ranks.
        """
        if not self.somewhere:
            return
        from neocpu.parallel.transport.host_files import collect

        with comm.agreeing(), explained(path):
            collect(comm, partial, self.extents if self.here else {})
        if self.here:
            partial.unlink(missing_ok=True)


def on_first_rank(comm: Comm, path: Path, work: Callable[[], T]) -> T:
    """Do something on rank 0; what it returns, and its error, is that of all ranks."""

    def done() -> T:
        with explained(path):
            return work()

    return comm.on_first_rank(done)


def write_note(out: Path, note: Tree) -> None:
    """Note which checkpoint of a folder of results is the best. Raises OSError."""
    write_json(Path(out) / FOLDER / NOTE, dict(note))


def best_checkpoint(out: Path) -> Path | None:
    """The best checkpoint of a run, where it has noted one that is still there."""
    name = _noted(Path(out) / FOLDER)
    # a note that was edited must not lead out of the folder
    if not name or Path(name).name != name:
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
    if not paths and (out / FIT).is_file():
        raise CheckpointError(
            f"{folder}: a fit of `neocpu fit`, which `neocpu predict` and `neocpu eval` take, and "
            "nothing else does"
        )
    if not paths:
        raise CheckpointError(
            f"{folder}: no checkpoint in it; name a checkpoint (step-….h5), or the folder of a run "
            "that has written one"
        )
    return paths[-1]


def checkpoint_of(path: str | Path, comm: Comm | None = None) -> Path:
    """`best_or_last` of a path, the same on all ranks. Collective; comm None: this process alone.

    Rank 0 looks: the others may see an older state of a network folder. Raises as
    `refuse_other_files`.
    """
    comm = comm or SingleComm()
    chosen = Path(comm.on_first_rank(lambda: str(best_or_last(Path(path)))))
    refuse_other_files(chosen, comm)
    return chosen


def refuse_other_files(path: Path, comm: Comm) -> None:
    """Raise CheckpointError on all ranks where the file is another one, or cannot be read, on one
    of their hosts. Collective.
    """
    if comm.size == 1:
        return
    own_host = socket.gethostname()
    with comm.agreeing():
        try:
            link = Link(path)
        except CheckpointError as error:
            raise CheckpointError(f"{error} (on {own_host})") from error
        link.close()
    (first_host, first), *others = comm.allgather((own_host, link.digest))
    for host, digest in others:
        if digest != first:
            raise CheckpointError(
                f"{path} on {host} is another checkpoint than on {first_host}; copy it from there"
            )


@contextmanager
def lent(out: Path, comm: Comm) -> Iterator[None]:
    """Every rank sees rank 0's checkpoints of a folder of results during the block. Collective.

    Raises CheckpointError on all ranks where another host has checkpoints of its own there: the
    newest ones may be those.
    """
    from neocpu.parallel.transport.host_files import apart, deliver

    names = comm.on_first_rank(lambda: [path.name for path in checkpoints(out)])
    files = [Path(out) / FOLDER / name for name in names]
    own = [] if any(file.exists() for file in files) else checkpoints(out)
    foreign = None
    if own and comm.rank:
        foreign = CheckpointError(
            f"{own[-1].parent} on {socket.gethostname()} has checkpoints that rank 0 does not see; "
            "name the host first whose checkpoints are to be gone on with, and remove the others"
        )
    comm.agree(foreign)
    missing = [file for file in files if apart(comm, file)]
    borrowed = [file for file in missing if not file.exists()]
    try:
        for file in missing:
            deliver(comm, file, file)
        yield
    finally:
        for file in borrowed:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
