"""How does a run survive? Its state goes to DIR/checkpoints/step-%08d.h5, and comes back on any
ranks and plan.

Saving is `saving.py`. Loading: every rank reads and verifies the blocks that its
rectangles need.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.errors import CheckpointError, TrainingError
from neocpu.parallel.comm import Comm
from neocpu.training.checkpoint.reading import CheckpointFile
from neocpu.training.checkpoint.saving import checkpoints, save
from neocpu.training.identity import refuse_other_data
from neocpu.training.state import dense_fields

__all__ = ["checkpoints", "differences", "latest", "load", "refuse_changes", "save"]


def latest(out: Path, comm: Comm) -> Path | None:
    """The newest complete checkpoint with a sound index in a folder of results; None without one.
    Collective.
    """
    found = b""
    if comm.rank == 0:
        for path in reversed(checkpoints(out)):
            with contextlib.suppress(CheckpointError), CheckpointFile(path):
                found = str(path.resolve()).encode()
                break
    name = comm.allgather_bytes(found)[0].decode()
    return Path(name) if name else None


def load(
    path: Path,
    world: Any,
    data: Mapping[str, Any] | None = None,
    *,
    split: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> int:
    """Bring a world that was just built to the state of a checkpoint, of any ranks and plan; its
    step. Collective.

    data : description of the data (`identity.py`); vocabularies, and rows of `split`, must be those
        of the checkpoint.
    tell : of a run that goes on from here, is told so, and whether its bits will be others.

    Raises CheckpointError on all ranks: broken file, other data, or a config that changes the bits
    (it names the keys).
    """
    error: CheckpointError | None = None
    step = 0
    rounded = ""
    try:
        with CheckpointFile(path) as file:
            refuse_changes(file, world.config.header())
            if data is not None:
                refuse_other_data(file.path, json.loads(file.text("data")), data, split)
            _load_dense(file, world)
            _load_tables(file, world)
            step = file.step
            rounded = file.quantized
    except CheckpointError as problem:
        error = problem
    except OSError as problem:
        error = CheckpointError(f"{path}: cannot be read: {problem}")
    except TrainingError as problem:  # a weight that the table's format does not have
        error = CheckpointError(f"{path}: {problem}")
    world.comm.agree(error)
    if tell:
        other = (
            f"; it is rounded to {rounded}, so the bits will not be those of a run that went on"
            if rounded
            else ""
        )
        tell(f"resuming from {path.name}{other}")
    return step


def refuse_changes(file: CheckpointFile, header: Mapping[str, Any]) -> None:
    """Raise CheckpointError if the config differs from the checkpoint's in keys that decide the
    bits.
    """
    changes = differences(file.header, header)
    if changes:
        shown = "; ".join(f"{key} was {before}, now {now}" for key, before, now in changes[:5])
        more = f"; and {len(changes) - 5} more" if len(changes) > 5 else ""
        raise CheckpointError(
            f"{file.path}: the config changed in keys that may not change on resume: "
            f"{shown}{more}; "
            "restore them, or start anew in another --out"
        )


def differences(old: Any, new: Any, key: str = "") -> list[tuple[str, str, str]]:
    """(key, old, new) of all values in which two JSON trees differ; entries of lists are called by
    their "name".
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = list(dict.fromkeys([*old, *new]))
        pairs = [(f"{key}.{name}" if key else name, old.get(name), new.get(name)) for name in names]
        return [change for inner, a, b in pairs for change in differences(a, b, inner)]
    if _named(old) and _named(new):
        if [x["name"] for x in old] != [x["name"] for x in new]:
            return [
                (key, json.dumps([x["name"] for x in old]), json.dumps([x["name"] for x in new]))
            ]
        return [
            change for a, b in zip(old, new) for change in differences(a, b, f"{key}.{a['name']}")
        ]
    return [] if old == new else [(key, _shown(old), _shown(new))]


def _named(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(x, Mapping) and "name" in x for x in value)
    )


def _shown(value: Any) -> str:
    return "absent" if value is None else json.dumps(value)


def _load_dense(file: CheckpointFile, world: Any) -> None:
    for name, fields in dense_fields(world).items():
        number = file.number(f"dense/{name}")
        tensor = file.tensors[number]
        shapes = tuple((k, v.shape[1:]) for k, v in fields.items())
        if (tensor.rows, tensor.fields) != (len(fields["value"]), shapes):
            raise CheckpointError(
                f"{file.path}: dense/{name} has another shape than the model; is it other data?"
            )
        for blocks in file.blocks(number):
            for field, values in blocks.values.items():
                fields[field][blocks.rows] = values


def _load_tables(file: CheckpointFile, world: Any) -> None:
    tbe = world.embedding.tbe
    for i, shard in enumerate(world.plan.local(world.comm.rank)):
        number = file.number(f"tables/{world.plan.tables[shard.table].name}")
        for blocks in file.blocks(number, *shard.rows):
            mine = slice(*np.searchsorted(blocks.rows, shard.rows))
            cut = {
                k: v[mine, slice(*shard.cols)] if v.ndim == 2 else v[mine]
                for k, v in blocks.values.items()
            }
            tbe.load_rows(i, blocks.rows[mine] - shard.rows[0], cut)
