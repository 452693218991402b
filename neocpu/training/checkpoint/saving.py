"""How does a state get to disk? Hashed and copied as it is now, written under a temporary name,
renamed once it is complete.

    snapshot   every rank goes through its blocks once: it hashes them and keeps what is to be written      training waits
    write      a thread of every rank writes and syncs what was kept, and commits its SSD file           training goes on
    finish     all ranks have written: rank 0 marks the file complete, renames it, deletes old ones         training waits

Where a rank would keep more than it has room for, all go through their blocks again and write them
while training waits. Until a file is renamed, older checkpoints stay as they are. Between two whole
files, those with the rows that changed (Check-N-Run).
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from neocpu.errors import CheckpointError
from neocpu.parallel.comm import Comm
from neocpu.training.checkpoint import snapshot as checkpoint_snapshot
from neocpu.training.checkpoint.layout import Offsets, complete, file_bytes, lay_out
from neocpu.training.checkpoint.reading import CheckpointFile, base_of
from neocpu.training.checkpoint.snapshot import Snapshot, facts_of, shares_of, write_parts
from neocpu.training.state import State, state_of
from neocpu.training.state_blocks import Index, Ints, Tensor, digest_of

T = TypeVar("T")
FOLDER = "checkpoints"
ROOM = 128 << 20  # bytes of rows that a rank keeps in memory until they are written


def checkpoints(out: Path) -> list[Path]:
    """Checkpoints in a folder of results, oldest first."""
    return sorted(
        (Path(out) / FOLDER).glob("step-????????*.h5"), key=lambda path: (len(path.name), path.name)
    )


def save(
    out: Path, world: Any, step: int, *, keep: int = 2, data: Mapping[str, Any] | None = None
) -> str:
    """Write the whole state of a `training.world.World` after `step` steps; returns its digest.
    Collective.

    keep : newest checkpoints that stay. data : description of the data (`identity.py`), JSON-able.

    Raises CheckpointError on all ranks where it cannot be written; older checkpoints are then
    untouched.
    """
    saver = Saver(out, world, keep=keep, data=data)
    digest = saver.save(step)
    saver.finish()
    return digest


@dataclass(frozen=True)
class _Newest:
    """What the next file may be based on: its name, step, digest and index; how many files of
    changes it needs, and their bytes; the format to which it is rounded.
    """

    name: str
    step: int
    digest: str
    index: Index
    chain: int
    bytes: int
    quantized: str = ""


@dataclass
class _Pending:
    """A file that is being written."""

    partial: Path
    path: Path
    step: int
    digest: str = ""
    thread: threading.Thread | None = None
    error: BaseException | None = None


class Saver:
    """The checkpoints of one run; every method but `abandon` is collective.

    keep : newest checkpoints that stay, and what they are based on. full_every : of so many
    checkpoints one is whole, or more where changes take more than the whole. quantize : round the
    weights of float32 tables to this row format in all files but the last; "": in none. room :
    bytes of a rank that rows may take until they are written. background : may training go on
    meanwhile?
    """

    def __init__(
        self,
        out: Path,
        world: Any,
        *,
        keep: int = 2,
        full_every: int = 1,
        quantize: str = "",
        data: Mapping[str, Any] | None = None,
        room: int = ROOM,
        background: bool = False,
    ) -> None:
        self.folder = Path(out) / FOLDER
        self.world = world
        self.comm = world.comm
        self._keep = keep
        self._every = full_every
        self._data = data or {}
        self._quantize = quantize
        self._room = room
        self._background = background
        self._newest: _Newest | None = None
        self._pending: _Pending | None = None
        self.counts = {"written": 0, "of_changes": 0, "in_background": 0, "bytes": 0}
        self.stalled = 0.0  # seconds that training waited
        self.safe = -1  # step of the newest one that is complete on the disk
        self.rounded = False  # is the newest that was begun?
        if full_every > 1:
            world.embedding.tbe.changes.track()

    def resume(self, path: Path, step: int) -> None:
        """The world was just loaded from a checkpoint; the next one may hold what changed since."""
        self.safe = step
        if self._every <= 1 or path.parent.resolve() != self.folder.resolve():
            return
        error: CheckpointError | None = None
        try:
            with CheckpointFile(path) as file:
                chain = len(file.links) - 1
                if file.quantized:
                    return  # what its rows are rounded to once more may differ
                self._newest = _Newest(
                    path.name, file.step, file.digest, file.index, chain, file.changes
                )
        except CheckpointError as problem:
            error = problem
        self.comm.agree(error)

    def save(self, step: int, last: bool = False) -> str:
        """Take a snapshot of the state after `step` steps, and write it, or begin to; its digest.

        last : the run ends, so nothing is rounded, and the SSD file, else committed with the
            checkpoint, is needed no more.

        Raises CheckpointError on all ranks where that, or the one before, cannot be written.
        """
        self.finish()
        begun = time.perf_counter()
        path = self.folder / f"step-{step:08d}.h5"
        pending = _Pending(path.with_name(f".{path.name}.partial"), path, step)
        try:
            self._begin(pending, last)
        except BaseException:
            self._remove(pending)
            raise
        self._pending = pending
        self.rounded = bool(self._quantize) and not last
        if pending.thread is None:
            self._end()
        self.stalled += time.perf_counter() - begun
        return pending.digest

    def poll(self) -> None:
        """Complete what was written in the background, if all ranks have; else return at once."""
        if (pending := self._pending) and pending.thread:
            begun = time.perf_counter()
            if not self.comm.largest(pending.thread.is_alive()):
                self._end()
            self.stalled += time.perf_counter() - begun

    def finish(self) -> None:
        """Wait for what is being written, and complete it. Raises CheckpointError where that fails."""
        if self._pending:
            begun = time.perf_counter()
            self._end()
            self.stalled += time.perf_counter() - begun

    def abandon(self) -> None:
        """The run ends otherwise: what is not complete is removed. Not collective."""
        if pending := self._pending:
            self._pending = None
            if pending.thread:
                pending.thread.join()
            self._remove(pending)

    def report(self) -> dict[str, Any]:
        """Checkpoints written, how many of them hold changes only, and were written in the
        background; bytes of all; seconds that training waited for them, on this rank.
        """
        return {**self.counts, "seconds": self.stalled}

    # ---- from snapshot to file ----

    def _begin(self, pending: _Pending, last: bool) -> None:
        quantize = "" if last else self._quantize
        state = state_of(self.world, quantize)
        step = pending.step
        base = self._base(state, quantize)
        self._newest = None  # until this one is laid out
        snapshot = Snapshot(state.tensors, self._room)
        index = changes = state.index(snapshot.add, base is not None)
        attributes, texts = facts_of(state, self.world, step, self._data)
        if base:
            index = changes.over(base.index)
            attributes |= {"base": base.name, "base_step": base.step, "base_digest": base.digest}
        pending.digest = digest_of(self.world.config.header(), step, state.tensors, index)
        before, counts = shares_of(self.comm, snapshot.counts)
        offsets = self._lay_out(pending, state.tensors, counts, attributes, texts)
        kept = not self.comm.largest(int(snapshot.room < 0))
        parts = snapshot.taken() if kept else snapshot.again(state, base is not None)
        first = changes if self.comm.rank == 0 else None
        note = json.dumps({"step": step, "digest": pending.digest}).encode()
        commit = None if last else self.world.embedding.tbe.seal(note)

        def write() -> None:
            try:
                pending.error = write_parts(
                    pending.partial, state.tensors, offsets, before, first, parts
                )
                if commit and pending.error is None:
                    commit()
            except Exception as error:
                pending.error = error

        if kept and self._background:
            pending.thread = threading.Thread(target=write, name="checkpoint")
            pending.thread.start()
        else:
            write()
        self.world.embedding.tbe.changes.clear()
        size = file_bytes(state.tensors, counts)
        if self._every > 1:
            chain, total = (base.chain + 1, base.bytes + size) if base else (0, 0)
            self._newest = _Newest(
                pending.path.name, step, pending.digest, index, chain, total, quantize
            )
        for name, more in zip(
            self.counts, (1, int(base is not None), int(pending.thread is not None), size)
        ):
            self.counts[name] += more

    def _base(self, state: State, quantize: str) -> _Newest | None:
        """What the next file is to be based on; None: it is to be whole."""
        newest = self._newest
        if newest is None or newest.chain + 1 >= self._every or newest.quantized != quantize:
            return None
        if self.comm.largest(
            int(self.comm.rank == 0 and not (self.folder / newest.name).is_file())
        ):
            return None  # somebody took it away
        whole = [
            (newest.index.rows_of(i), 0, here.stop - here.start)
            for i, here in enumerate(map(newest.index.of, range(len(state.tensors))))
        ]
        return newest if newest.bytes < file_bytes(state.tensors, np.array(whole)) else None

    def _lay_out(
        self,
        pending: _Pending,
        tensors: Sequence[Tensor],
        counts: Ints,
        attributes: Mapping[str, Any],
        texts: Mapping[str, str],
    ) -> Offsets:
        def lay() -> bytes:
            self.folder.mkdir(parents=True, exist_ok=True)
            # of runs that were killed; the folder is locked
            for old in self.folder.glob(".step-*.partial"):
                old.unlink()
            offsets = lay_out(pending.partial, tensors, counts, attributes, texts)
            checkpoint_snapshot.reserve(pending.partial)
            return json.dumps(offsets).encode()

        return json.loads(_first_rank(self.comm, pending.path, lay))

    def _end(self) -> None:
        """Wait for this rank's part of a file, then for the others', and give it its name."""
        pending = self._pending
        self._pending = None
        assert pending is not None
        if pending.thread:
            pending.thread.join()
        try:
            error = pending.error
            self.comm.agree(_failed(pending.path, error) if isinstance(error, OSError) else error)
            _first_rank(self.comm, pending.path, lambda: _publish(pending, self._keep))
        except BaseException:
            self._newest = None
            self._remove(pending)
            raise
        self.safe = pending.step

    def _remove(self, pending: _Pending) -> None:
        if self.comm.rank == 0:
            with contextlib.suppress(OSError):
                pending.partial.unlink(missing_ok=True)


def _publish(pending: _Pending, keep: int) -> None:
    """Give a complete file its name, and delete the oldest ones but for those that others are based
    on.
    """
    complete(pending.partial, pending.digest)
    _sync(pending.partial)
    os.replace(pending.partial, pending.path)
    _sync(pending.path.parent)
    others = [old for old in checkpoints(pending.path.parent.parent) if old != pending.path]
    cut = max(len(others) - (keep - 1), 0)
    needed = {pending.path.name, *(old.name for old in others[cut:])}
    for name in list(needed):
        while (base := base_of(pending.path.with_name(name))) is not None and base not in needed:
            needed.add(name := base)
    for old in others[:cut]:
        if old.name not in needed:
            old.unlink()


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _failed(path: Path, error: OSError) -> CheckpointError:
    why = error.strerror or str(error)
    return CheckpointError(
        f"{path} could not be written: {why}; older checkpoints are intact. Make room and go on "
        "with --resume"
    )


def _first_rank(comm: Comm, path: Path, work: Callable[[], T]) -> T | bytes:
    """Do something on rank 0; its error is everybody's, and bytes that it returns go to all ranks."""
    error: CheckpointError | None = None
    result: T | None = None
    if comm.rank == 0:
        try:
            result = work()
        except OSError as problem:
            error = _failed(path, problem)
        except RuntimeError as problem:  # HDF5 reports some failures of the disk so
            error = _failed(path, OSError(str(problem)))
    comm.agree(error)
    return comm.allgather_bytes(result if isinstance(result, bytes) else b"")[0]
