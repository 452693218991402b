"""How does a run survive? Its state goes to DIR/checkpoints/step-%08d.h5, and comes back on any ranks and plan.

Saving: pass 1 over the state counts its rows; rank 0 lays the file out under a temporary name; in pass 2 every rank
writes and hashes the blocks that it owns; rank 0 adds the hashes, marks the file complete and renames it. Until then
older checkpoints stay as they are. Loading: every rank reads and verifies the blocks that its rectangles need.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from neocpu.errors import CheckpointError, TrainingError
from neocpu.parallel.comm import Comm
from neocpu.training.checkpoint_file import BlockWriter, CheckpointFile, complete, lay_out
from neocpu.training.identity import refuse_other_data
from neocpu.training.report import versions
from neocpu.training.state import Block, State, dense_fields, digest_of, state_of

T = TypeVar("T")
FOLDER = "checkpoints"


def checkpoints(out: Path) -> list[Path]:
    """Checkpoints in a folder of results, oldest first."""
    return sorted((Path(out) / FOLDER).glob("step-????????*.h5"), key=lambda path: (len(path.name), path.name))


def save(out: Path, world: Any, step: int, *, keep: int = 2, data: Mapping[str, Any] | None = None) -> str:
    """Write the state of a `training.world.World` after `step` steps; returns its digest. Collective.

    keep : newest checkpoints that stay. data : description of the data (`identity.py`), JSON-able.

    Raises CheckpointError on all ranks where it cannot be written; older checkpoints are then untouched.
    """
    comm, state, path = world.comm, state_of(world), Path(out) / FOLDER / f"step-{step:08d}.h5"
    partial = path.with_name(f".{path.name}.partial")
    try:
        digest = _write(partial, state, world, step, data or {})
        _first_rank(comm, path, lambda: _publish(partial, path, keep))
    except BaseException:
        if comm.rank == 0:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
        raise
    return digest


def _write(partial: Path, state: State, world: Any, step: int, data: Mapping[str, Any]) -> str:
    comm, config, header = world.comm, world.config, world.config.header()
    index = state.index(hashes=False)
    dense = json.dumps([t.name.removeprefix("dense/") for t in state.tensors if t.name.startswith("dense/")])
    attributes = {
        "step": step,
        "seed": np.uint64(config.training.seed),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "ranks": comm.size,
        "dense": dense,
    }
    texts = {
        "config": config.text,
        "overrides": json.dumps(config.overrides),
        "header": json.dumps(header),
        "data": json.dumps(data),
        "versions": json.dumps(versions()),
    }

    def begin() -> bytes:
        partial.parent.mkdir(parents=True, exist_ok=True)
        for old in partial.parent.glob(".step-*.partial"):  # of runs that were killed; the folder is locked
            old.unlink()
        offsets = lay_out(partial, state.tensors, index, attributes, texts)
        _reserve(partial)
        return json.dumps(offsets).encode()

    offsets = json.loads(_first_rank(comm, partial, begin))
    error: OSError | None = None
    writer: BlockWriter | None = None
    try:
        writer = BlockWriter(partial, state.tensors, index, offsets)
    except OSError as problem:
        error = problem

    def write(block: Block) -> None:
        nonlocal error
        if error is None and writer is not None:
            try:
                writer.write(block)
            except OSError as problem:  # go on without writing: the other ranks still need this one's rows
                error = problem

    index = state.index(visit=write)
    try:
        if writer is not None:
            writer.close()
    except OSError as problem:
        error = error or problem
    comm.agree(None if error is None else _failed(partial, error))
    digest = digest_of(header, step, state.tensors, index)
    _first_rank(comm, partial, lambda: complete(partial, state.tensors, index, digest))
    return digest


def _reserve(path: Path) -> None:
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


def latest(out: Path, comm: Comm) -> Path | None:
    """The newest complete checkpoint with a sound index in a folder of results; None without one. Collective."""
    found = b""
    if comm.rank == 0:
        for path in reversed(checkpoints(out)):
            with contextlib.suppress(CheckpointError), CheckpointFile(path):
                found = str(path.resolve()).encode()
                break
    name = comm.allgather_bytes(found)[0].decode()
    return Path(name) if name else None


def load(path: Path, world: Any, data: Mapping[str, Any] | None = None, *, split: str | None = None) -> int:
    """Bring a world that was just built to the state of a checkpoint, of any ranks and plan; its step. Collective.

    data : description of the data (`identity.py`); vocabularies, and rows of `split`, must be those of the checkpoint.

    Raises CheckpointError on all ranks: broken file, other data, or a config that changes the bits (it names the keys).
    """
    error: CheckpointError | None = None
    step = 0
    try:
        with CheckpointFile(path) as file:
            refuse_changes(file, world.config.header())
            if data is not None:
                refuse_other_data(file, data, split)
            _load_dense(file, world)
            _load_tables(file, world)
            step = file.step
    except CheckpointError as problem:
        error = problem
    except OSError as problem:
        error = CheckpointError(f"{path}: cannot be read: {problem}")
    except TrainingError as problem:  # a weight that the table's format does not have
        error = CheckpointError(f"{path}: {problem}")
    world.comm.agree(error)
    return step


def refuse_changes(file: CheckpointFile, header: Mapping[str, Any]) -> None:
    """Raise CheckpointError if the config differs from the checkpoint's in keys that decide the bits."""
    changes = differences(file.header, header)
    if changes:
        shown = "; ".join(f"{key} was {before}, now {now}" for key, before, now in changes[:5])
        more = f"; and {len(changes) - 5} more" if len(changes) > 5 else ""
        raise CheckpointError(
            f"{file.path}: the config changed in keys that may not change on resume: {shown}{more}; "
            "restore them, or start anew in another --out"
        )


def differences(old: Any, new: Any, key: str = "") -> list[tuple[str, str, str]]:
    """(key, old, new) of all values in which two JSON trees differ; entries of lists are called by their "name"."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = list(dict.fromkeys([*old, *new]))
        pairs = [(f"{key}.{name}" if key else name, old.get(name), new.get(name)) for name in names]
        return [change for inner, a, b in pairs for change in differences(a, b, inner)]
    if _named(old) and _named(new):
        if [x["name"] for x in old] != [x["name"] for x in new]:
            return [(key, json.dumps([x["name"] for x in old]), json.dumps([x["name"] for x in new]))]
        return [change for a, b in zip(old, new) for change in differences(a, b, f"{key}.{a['name']}")]
    return [] if old == new else [(key, _shown(old), _shown(new))]


def _named(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(x, Mapping) and "name" in x for x in value)


def _shown(value: Any) -> str:
    return "absent" if value is None else json.dumps(value)


def _load_dense(file: CheckpointFile, world: Any) -> None:
    for name, fields in dense_fields(world).items():
        number = file.number(f"dense/{name}")
        tensor, shapes = file.tensors[number], tuple((k, v.shape[1:]) for k, v in fields.items())
        if (tensor.rows, tensor.fields) != (len(fields["value"]), shapes):
            raise CheckpointError(f"{file.path}: dense/{name} has another shape than the model; is it other data?")
        for block in file.blocks(number):
            for field, values in block.values.items():
                fields[field][block.rows] = values


def _load_tables(file: CheckpointFile, world: Any) -> None:
    tbe = world.embedding.tbe
    for i, shard in enumerate(world.plan.local(world.comm.rank)):
        number = file.number(f"tables/{world.plan.tables[shard.table].name}")
        for block in file.blocks(number, *shard.rows):
            mine = (block.rows >= shard.rows[0]) & (block.rows < shard.rows[1])
            cut = {k: v[mine, slice(*shard.cols)] if v.ndim == 2 else v[mine] for k, v in block.values.items()}
            tbe.load_rows(i, block.rows[mine] - shard.rows[0], cut)
