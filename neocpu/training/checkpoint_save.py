"""How does a state get to disk? Hashed and copied as it is now, written under a temporary name, renamed once it is complete.

Every rank goes through its blocks once: it hashes them and keeps what is to be written, if that takes little memory; else it
goes through them again to write. Rank 0 lays the file out, adds the hashes, marks the file complete and renames it. Until then
older checkpoints stay as they are.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from neocpu.errors import CheckpointError
from neocpu.parallel.comm import Comm
from neocpu.training.blocks import Blocks, Ints, Tensor, digest_of
from neocpu.training.checkpoint_file import Offsets, Part, RowWriter, complete, lay_out
from neocpu.training.report import versions
from neocpu.training.state import State, state_of

T = TypeVar("T")
FOLDER = "checkpoints"
ROOM = 128 << 20  # bytes of rows that a rank keeps in memory until they are written


def checkpoints(out: Path) -> list[Path]:
    """Checkpoints in a folder of results, oldest first."""
    return sorted((Path(out) / FOLDER).glob("step-????????*.h5"), key=lambda path: (len(path.name), path.name))


def save(out: Path, world: Any, step: int, *, keep: int = 2, data: Mapping[str, Any] | None = None) -> str:
    """Write the state of a `training.world.World` after `step` steps; returns its digest. Collective.

    keep : newest checkpoints that stay. data : description of the data (`identity.py`), JSON-able.

    Raises CheckpointError on all ranks where it cannot be written; older checkpoints are then untouched.
    """
    comm, path = world.comm, Path(out) / FOLDER / f"step-{step:08d}.h5"
    partial = path.with_name(f".{path.name}.partial")
    try:
        digest = _write(partial, state_of(world), world, step, data or {})
        _first_rank(comm, path, lambda: _publish(partial, path, keep))
    except BaseException:
        if comm.rank == 0:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
        raise
    return digest


class Snapshot:
    """What one rank writes: how many rows of each tensor, and the rows themselves while they take at most `room` bytes."""

    def __init__(self, tensors: Sequence[Tensor], room: int) -> None:
        self.tensors, self.counts = tensors, np.zeros(len(tensors), np.int64)
        self._room, self._parts = room, list[Part]()

    def add(self, blocks: Blocks) -> None:
        """Take the next blocks."""
        self.counts[blocks.tensor] += blocks.rows.size
        if self._room >= 0:
            self._parts.append(part := Part.of(blocks, self.tensors[blocks.tensor]))
            self._room -= part.bytes
            if self._room < 0:
                self._parts.clear()

    def parts(self, state: State) -> Iterator[Part]:
        """All of it. Collective: where some rank kept too little, all go through the state again."""
        if state.comm.largest(self._room < 0):
            self._parts.clear()
            yield from (Part.of(blocks, self.tensors[blocks.tensor]) for blocks in state.blocks())
        else:
            yield from self._parts


def _write(partial: Path, state: State, world: Any, step: int, data: Mapping[str, Any]) -> str:
    comm, header = world.comm, world.config.header()
    snapshot = Snapshot(state.tensors, ROOM)
    index = state.index(visit=snapshot.add)
    digest = digest_of(header, step, state.tensors, index)
    attributes, texts = _facts(state, world, step, data)

    def begin() -> bytes:
        partial.parent.mkdir(parents=True, exist_ok=True)
        for old in partial.parent.glob(".step-*.partial"):  # of runs that were killed; the folder is locked
            old.unlink()
        offsets = lay_out(partial, state.tensors, index, attributes, texts)
        reserve(partial)
        return json.dumps(offsets).encode()

    offsets = json.loads(_first_rank(comm, partial, begin))
    error = _write_parts(partial, state, offsets, snapshot)
    comm.agree(None if error is None else _failed(partial, error))
    _first_rank(comm, partial, lambda: complete(partial, state.tensors, index, digest))
    return digest


def _write_parts(partial: Path, state: State, offsets: Offsets, snapshot: Snapshot) -> OSError | None:
    """Write this rank's rows; what went wrong. Goes on without writing then: the other ranks still need this one's rows."""
    error: OSError | None = None
    writer: RowWriter | None = None
    before = _before(state.comm, snapshot.counts)
    try:
        writer = RowWriter(partial, state.tensors, offsets, before)
    except OSError as problem:
        error = problem
    for part in snapshot.parts(state):
        if error is None and writer is not None:
            try:
                writer.write(part)
            except OSError as problem:
                error = problem
    try:
        if writer is not None:
            writer.close()
    except OSError as problem:
        error = error or problem
    return error


def _before(comm: Comm, counts: Ints) -> Ints:
    """Sum of the counts of lower ranks."""
    everyone = np.empty(comm.size * counts.size, np.int64)
    comm.allgatherv(counts, everyone, np.full(comm.size, counts.size, np.int64))
    return everyone.reshape(comm.size, -1)[: comm.rank].sum(axis=0)


def _facts(state: State, world: Any, step: int, data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Attributes and texts of a file."""
    config = world.config
    attributes = {
        "step": step,
        "seed": np.uint64(config.training.seed),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "ranks": world.comm.size,
        "dense": json.dumps([t.name.removeprefix("dense/") for t in state.tensors if not t.table]),
    }
    texts = {
        "config": config.text,
        "overrides": json.dumps(config.overrides),
        "header": json.dumps(config.header()),
        "data": json.dumps(data),
        "versions": json.dumps(versions()),
    }
    return attributes, texts


def reserve(path: Path) -> None:
    """Claim the file's space, so that a full disk is noticed before anything is written."""
    file = os.open(path, os.O_RDWR)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, max(os.fstat(file).st_size, 1))
    finally:
        os.close(file)


def _publish(partial: Path, path: Path, keep: int) -> None:
    """Give a complete file its name, and delete the oldest ones."""
    _sync(partial)
    os.replace(partial, path)
    _sync(path.parent)
    others = [old for old in checkpoints(path.parent.parent) if old != path]
    for old in others[: max(len(others) - (keep - 1), 0)]:
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
        f"{path.with_name(path.name.removeprefix('.').removesuffix('.partial'))} could not be written: {why}; "
        "older checkpoints are intact. Make room and go on with --resume"
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
