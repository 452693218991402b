"""How does a run survive a crash? By checkpoints.

Its state goes to DIR/checkpoints/step-%08d.h5, and comes back on any ranks and plan.

Saving is `saving.py`; loading is here: every rank reads and verifies the blocks that its rectangles
need. A run goes on from the newest checkpoint that can be used; why not from others is said.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from neocpu.core.errors import CheckpointError, TrainingError
from neocpu.core.types import JsonObject, Tree
from neocpu.parallel.transport.comm import Comm
from neocpu.train.checkpoint.folder import checkpoints, refuse_other_files
from neocpu.train.checkpoint.saving import save
from neocpu.train.state.blocks import not_finite
from neocpu.train.state.identity import refuse_other_data
from neocpu.train.state.state import replicated_fields
from neocpu.train.watch.results import silent

if TYPE_CHECKING:
    from neocpu.train.checkpoint.reading import CheckpointFile
    from neocpu.train.step.world import World

__all__ = [
    "checkpoints",
    "differences",
    "latest",
    "load",
    "refuse_changes",
    "save",
    "sound",
    "sound_for",
]

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
        with comm.agreeing():
            if comm.rank == 0:
                self._left = checkpoints(out)

    def next(self) -> Path | None:
        """The next one that can be opened; None where there are none at all.

        Raises CheckpointError where there are some, but all were refused.
        """
        from neocpu.train.checkpoint.reading import CheckpointFile

        newest = ""
        while self._left and not newest:  # on rank 0
            path = self._left.pop()
            try:
                with CheckpointFile(path):
                    newest = str(path.resolve())
            except CheckpointError as problem:
                self.refuse(path, str(problem))
        with self._comm.agreeing():
            if self._comm.rank == 0 and not newest and self._refused:
                raise CheckpointError(
                    f"{self._out} has checkpoints, but none that can be used, and a run from step "
                    f"0 would overwrite them: {'; '.join(self._refused)}. Choose another --out, "
                    "upgrade neocpu if they are newer, or remove them"
                )
        newest = self._comm.allgather(newest)[0]
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
    return next(filter(None, comm.allgather(trouble)), "")


def sound_for(out: Path, world: "World", tell: Tell) -> Path | None:
    """The newest checkpoint of a folder of results that a world can be brought to; None: none.

    One with a block that is damaged is passed over before any of its rows are in the world, which
    `tell` is told. Collective.

    Raises CheckpointError on all ranks where there are checkpoints but none that can be used.
    """

    def needed(file: "CheckpointFile", comm: Comm) -> Iterator[Rows]:
        # one of another config is refused when it is loaded, whatever its blocks hold
        if not differences(file.header, world.config.header()):
            yield from _needed(file, world)

    return sound(out, world.comm, needed, tell)


def _needed(file: "CheckpointFile", world: "World") -> Iterator[Rows]:
    """The tensors of a file that a rank loads, and which of their rows."""
    for name in replicated_fields(world):
        number = file.number(f"dense/{name}")
        yield number, (0, file.tensors[number].rows)
    for shard in world.plan.local(world.comm.rank):
        yield file.number(f"tables/{world.plan.tables[shard.table].name}"), shard.rows


def load(
    path: Path,
    world: "World",
    data: JsonObject | None = None,
    *,
    split: str | None = None,
    tell: Tell = silent,
    warn: Tell = silent,
) -> int:
    """Bring a world that was just built to the state of a checkpoint, of any ranks and plan.

    Returns the checkpoint's step. Collective.

    data : description of the data (`identity.py`); vocabularies, and samples of `split`, must be
        those of the checkpoint.
    tell : for a run that goes on from here; is given a line that says so, and whether the run's
        bits will differ because the checkpoint is rounded.
    warn : is given a line where a number is not finite.

    Raises CheckpointError on all ranks: broken file, another one on another host, other data, or a
    config that changes the bits (it names the keys).
    """
    from neocpu.train.checkpoint.reading import CheckpointFile

    refuse_other_files(path, world.comm)
    with world.comm.agreeing(), CheckpointFile(path) as file:
        # what a faulty row does is free where nothing is trained
        refuse_changes(file, world.config.header(), () if split else ("data.on_error",))
        if data is not None:
            refuse_other_data(file.path, file.data(), data, split)
        try:
            unsound = _load_dense(file, world) or _load_tables(file, world)
        except TrainingError as problem:  # a weight that the table's format does not have
            raise CheckpointError(f"{path}: {problem}") from problem
        step = file.step
        quantized = file.quantized
    if text := next(filter(None, world.comm.allgather(unsound)), ""):
        warn(f"warning: {path.name}: {text}: predictions that need it will not be numbers")
    caveat = ""
    if quantized:
        caveat = f"; it is rounded to {quantized}, so the bits will not be those of a run that "
        caveat += "went on"
    tell(f"resuming from {path.name}{caveat}")
    return step


def refuse_changes(file: "CheckpointFile", header: Tree, free: Collection[str] = ()) -> None:
    """Raise CheckpointError if a config changes keys of the checkpoint that decide the bits.

    free : keys that may change.
    """
    changes = [change for change in differences(file.header, header) if change[0] not in free]
    if changes:
        shown = "; ".join(f"{key} was {before}, now {now}" for key, before, now in changes[:5])
        more = f"; and {len(changes) - 5} more" if len(changes) > 5 else ""
        raise CheckpointError(
            f"{file.path}: the config changed in keys that may not change on resume: "
            f"{shown}{more}; restore them, or choose another --out, where training.init_from "
            "starts with this model"
        )


def differences(old: object, new: object, key: str = "") -> list[tuple[str, str, str]]:
    """(key, old value, new value) of all values in which two JSON trees differ.

    A list whose entries have a "name" is compared by these names.
    """
    changes: list[tuple[str, str, str]] = []
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            inner = f"{key}.{name}" if key else name
            changes += differences(old.get(name), new.get(name), inner)
    # tables and heads: a message names them instead of counting
    elif _has_names(old) and _has_names(new):
        old_names = [entry["name"] for entry in old]
        new_names = [entry["name"] for entry in new]
        if old_names != new_names:
            return [(key, json.dumps(old_names), json.dumps(new_names))]
        for name, old_entry, new_entry in zip(old_names, old, new):
            changes += differences(old_entry, new_entry, f"{key}.{name}")
    elif old != new:
        changes.append((key, _shown(old), _shown(new)))
    return changes


def _has_names(value: object) -> TypeGuard[list[JsonObject]]:
    """Whether a value is a list of objects with names."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(entry, Mapping) and "name" in entry for entry in value)


def _shown(value: object) -> str:
    return "absent" if value is None else json.dumps(value)


def _load_dense(file: "CheckpointFile", world: "World") -> str:
    """Copy dense parameters and their optimizer's state from a file, and where rows are.

    Returns the first number that is not finite, "" where all are.
    """
    unsound = ""
    replicated = replicated_fields(world)
    for name, fields in replicated.items():
        number = file.number(f"dense/{name}")
        tensor = file.tensors[number]
        shapes = tuple((field, value.shape[1:]) for field, value in fields.items())
        if (tensor.rows, tensor.fields) != (len(fields["value"]), shapes):
            raise CheckpointError(
                f"{file.path}: dense/{name} has another shape than the model; is it other data?"
            )
        for blocks in file.blocks(number):
            unsound = unsound or not_finite(tensor.name, blocks.rows, blocks.values)
            for field, values in blocks.values.items():
                fields[field][blocks.rows] = values
    if world.dynamic is not None:
        world.dynamic.load(replicated)
    return unsound


def _load_tables(file: "CheckpointFile", world: "World") -> str:
    """Give this rank's shards their rows from a file.

    Returns the first number that is not finite, "" where all are.
    """
    unsound = ""
    tbe = world.embedding.tbe
    for i, shard in enumerate(world.plan.local(world.comm.rank)):
        name = f"tables/{world.plan.tables[shard.table].name}"
        number = file.number(name)
        cols = slice(*shard.cols)
        for blocks in file.blocks(number, *shard.rows):
            # a block may reach beyond the shard's rows
            inside = slice(*np.searchsorted(blocks.rows, shard.rows))
            values = {
                field: value[inside, cols] if value.ndim == 2 else value[inside]
                for field, value in blocks.values.items()
            }
            unsound = unsound or not_finite(name, blocks.rows[inside], values)
            tbe.load_rows(i, blocks.rows[inside] - shard.rows[0], values)
    return unsound
