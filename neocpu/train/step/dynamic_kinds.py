"""How do rows move between tables while a model trains, with the same bits on any plan? Between
segments of steps only, and by decisions that every rank takes alike.

    step 1 ... N | decide | step N + 1 ... 2 N | decide | ...

In a segment maps stay as they are, so that batches may be read, sent and looked up ahead. Each rank
notes the lookups of its samples with their importance. Every few steps the ranks tell each other
what they noted, and take it in: batch by batch, key by key, sample by sample, an order that no plan
and no number of ranks changes. Between two segments no batch is under way; then rows move.

Lookups are exchanged in few large messages rather than in each step, since nothing waits for them:
the bytes are the same, and a step has no exchange more.

Of a table of kind "cafe" a sketch decides: a new hot row is a copy of the shared row that its id
had, optimizer state included. An id that is hot no more goes back to its shared row; what its own
row had learnt is dropped, as in the published code, and the row waits for another id.

A kind that wants this has a `DynamicMap` in its compositions, and a class here in RULES.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from neocpu.core.jagged import KJT, InverseKJT
from neocpu.core.types import Floats, FloatsByName, Ints
from neocpu.kernels.rows.sketch import Observations, PooledGradient, importances
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.distinct_bags import expand
from neocpu.tables.embedding.hot_sketch import HotSketch, SketchSizes
from neocpu.tables.specs.compositions import DynamicMap
from neocpu.train.config.config import Config
from neocpu.train.model.composition_layout import KeyVectors
from neocpu.train.step.table_rows import TableRows

if TYPE_CHECKING:
    from neocpu.train.model.logical_rows import MovedRows

PIECE = 1 << 16  # rows that are copied at a time


class HotRows:
    """The sketch of one logical table, and its two physical tables.

    tables : numbers of the table of hot rows, and of shared ones.
    """

    def __init__(self, dynamic: DynamicMap, tables: Sequence[int]) -> None:
        self.sketch = HotSketch(SketchSizes(rows=dynamic.rows, **dict(dynamic.options)))
        self._hot, self._shared = tables

    def map(self, rows: Ints, outs: Sequence[Ints]) -> None:
        """Rows of the hot table and of the shared one, -1 in one of them."""
        self.sketch.map(rows, outs[0], outs[1])

    def observe(self, seen: Observations) -> None:
        """Take in the lookups of all ranks."""
        self.sketch.observe(seen)

    def decide(self, rows: TableRows) -> None:
        """Give rows to ids that have become hot. Collective."""
        promoted = self.sketch.decide()
        # whole rows travel to all ranks: in pieces, for the sake of memory
        for first in range(0, promoted.logical_rows.size, PIECE):
            piece = slice(first, first + PIECE)
            # ids may share a row
            sources, positions = np.unique(promoted.shared_rows[piece], return_inverse=True)
            values = rows.read(self._shared, sources)
            copies = {field: value[positions] for field, value in values.items()}
            rows.write(self._hot, promoted.hot_rows[piece], copies)

    def numbers(self) -> Floats:
        """The state of the sketch."""
        return self.sketch.numbers()

    def load(self, numbers: Floats) -> None:
        """Take up a state that `numbers` gave."""
        self.sketch.load(numbers)


TOGETHER = 16  # steps whose lookups travel together, at most
NOTED_BYTES = 24  # of a lookup: row and importance, noted and exchanged


def memory_of(config: Config, pooling: Mapping[str, float]) -> tuple[int, int]:
    """Bytes that a rank needs to know where rows are, and bytes of that in a checkpoint.

    pooling : mean lookups per sample of each physical table; 1 where it is not known.
    """
    moved = [each for each in config.compositions if each.dynamic is not None]
    state = sum(each.dynamic.bytes for each in moved if each.dynamic is not None)
    numbers = state * 3 // 2  # fp32 digits of an entry take half as much again
    lookups = sum(pooling.get(each.terms[0][0].table, 1.0) for each in moved)
    exchanged = int(NOTED_BYTES * TOGETHER * config.training.batch_size * lookups)
    return state + numbers + exchanged, numbers


class DynamicRows(Protocol):
    """Which rows the ids of one logical table have; the same on all ranks."""

    def map(self, rows: Ints, outs: Sequence[Ints]) -> None:
        """Write the rows of each physical table i64[n] for rows i64[n] of the logical one."""

    def observe(self, seen: Observations) -> None:
        """Take in the lookups of all ranks in some batches."""

    def decide(self, rows: TableRows) -> None:
        """Move rows. Collective."""

    def numbers(self) -> Floats:
        """All that there is to know, as numbers f32[n, m] of one shape: digest and checkpoint have
        them.
        """

    def load(self, numbers: Floats) -> None:
        """Take up what `numbers` gave."""


class _Maker(Protocol):
    def __call__(self, dynamic: DynamicMap, tables: Sequence[int]) -> DynamicRows: ...


RULES: dict[str, _Maker] = {"hot": HotRows}


@dataclass
class _Member:
    """A logical table whose rows move.

    dynamic, rows : what it is, and where its rows are. parts : its keys in the model. lookups,
    importance : noted since the last exchange, a list for each step of arrays for each key.
    """

    name: str
    dynamic: DynamicMap
    rows: DynamicRows
    parts: tuple[KeyVectors, ...]
    lookups: list[list[Ints]] = field(default_factory=list)
    importance: list[list[Floats]] = field(default_factory=list)

    @property
    def tensor(self) -> str:
        """Name of its state among those of dense parameters."""
        return f"kinds.{self.name}.{self.dynamic.rule}"


class DynamicKinds:
    """All tables of a model whose rows move; `parts` : the keys of the model.

    first_column : of the first pooled vector in E physical. rows : of the physical tables.
    """

    def __init__(
        self,
        config: Config,
        comm: Comm,
        parts: Sequence[KeyVectors],
        first_column: int,
        rows: TableRows,
    ) -> None:
        # batches may be under way on the others
        self._comm = comm.queue("moving rows")
        self._first_column = first_column
        self._rows = rows
        self._members = _members(config, parts)
        keys = [vectors.sources for member in self._members for vectors in member.parts]
        self._keys = {source.key for sources in keys for source in sources}

    # ---- within a segment ----

    def steps_left(self, step: int) -> int:
        """Steps of the segment that begins with this one (counted from 1)."""
        return min(
            member.dynamic.every - (step - 1) % member.dynamic.every for member in self._members
        )

    def translate(self, batch: KJT | InverseKJT) -> KJT | InverseKJT:
        """A batch with rows of physical tables in place of those of logical ones."""
        if isinstance(batch, KJT):
            return self._translate(batch, range(len(batch.keys)))
        position = {key: number for number, key in enumerate(batch.keys)}
        groups = tuple(
            replace(
                group, kjt=self._translate(group.kjt, [position[key] for key in group.kjt.keys])
            )
            for group in batch.groups
        )
        plain = self._translate(batch.plain, [position[key] for key in batch.plain.keys])
        return replace(batch, plain=plain, groups=groups)

    def _translate(self, kjt: KJT, keys: Sequence[int]) -> KJT:
        """The same for a KJT of keys with these numbers in the model."""
        if self._keys.isdisjoint(keys):
            return kjt
        position = {key: i for i, key in enumerate(keys)}
        values = kjt.values.astype(np.int64)  # a copy
        for member in self._members:
            for vectors in member.parts:
                if vectors.sources[0].key not in position:
                    continue
                runs = [_run(kjt, position[source.key]) for source in vectors.sources]
                rows = np.ascontiguousarray(kjt.values[runs[0]], np.int64)
                member.rows.map(rows, [values[run] for run in runs])
        return replace(kjt, values=values)

    def note(self, batch: KJT | InverseKJT, gradient: Floats) -> None:
        """Note the lookups of a batch, which has logical rows, with the gradient f32[b, columns] of
        E physical.
        """
        # lookups count as often as samples have them, however they travelled
        kjt = batch if isinstance(batch, KJT) else expand(batch)
        for member in self._members:
            member.lookups.append([])
            member.importance.append([])
            for vectors in member.parts:
                source = vectors.sources[0]
                run = _run(kjt, source.key)
                first = source.key * kjt.samples
                offsets = kjt.offsets[first : first + kjt.samples + 1] - run.start
                rows = kjt.values[run].astype(np.int64)  # a copy: the batch may go
                weights = np.empty(0, np.float32) if kjt.weights is None else kjt.weights[run]
                column = self._first_column + source.column
                pooled = PooledGradient(gradient, column, source.width)
                importance = np.empty(rows.size, np.float32)
                importances(rows, offsets, weights, pooled, source.pooling == "mean", importance)
                member.lookups[-1].append(rows)
                member.importance[-1].append(importance)

    def exchange(self) -> None:
        """Let all ranks take in what was noted. Collective; batches may be under way."""
        if not self._members[0].lookups:
            return
        rows = [run for member in self._members for step in member.lookups for run in step]
        numbers = [run for member in self._members for step in member.importance for run in step]
        counts = np.array([run.size for run in rows], np.int64)
        ranks = self._comm.size
        all_counts = np.empty(ranks * counts.size, np.int64)
        self._comm.allgatherv(counts, all_counts, np.full(ranks, counts.size, np.int64))
        sizes = all_counts.reshape(ranks, -1)
        totals = sizes.sum(axis=1)
        all_rows = np.empty(int(totals.sum()), np.int64)
        all_numbers = np.empty(all_rows.size, np.float32)
        self._comm.allgatherv(np.concatenate(rows), all_rows, totals)
        self._comm.allgatherv(np.concatenate(numbers), all_numbers, totals)
        ends = np.cumsum(all_counts).reshape(ranks, -1)
        runs = np.stack([ends - sizes, ends], axis=2)  # [rank, run, first and last lookup]
        first = 0
        for member in self._members:
            keys = len(member.parts)
            batches = len(member.lookups)
            last = first + keys * batches
            # the samples of a key are those of rank 0, then of rank 1, ...
            starts = np.ascontiguousarray(runs[:, first:last].swapaxes(0, 1).reshape(-1, 2))
            cuts = np.arange(batches + 1, dtype=np.int64) * keys * ranks
            member.rows.observe(Observations(all_rows, all_numbers, starts, cuts))
            member.lookups.clear()
            member.importance.clear()
            first = last

    # ---- between segments ----

    def end_step(self, step: int) -> bool:
        """A step is over: has a segment ended, so that rows moved? Then no batch is under way.

        Collective.
        """
        ended = self.steps_left(step) == 1
        # what is noted takes memory until it is exchanged
        if ended or len(self._members[0].lookups) >= TOGETHER:
            self.exchange()
        if ended:
            self._decide(step)
        return ended

    def _decide(self, step: int) -> None:
        """Move the rows that are due after so many steps."""
        # moves under way end, so that a row is in one place
        self._rows.begin()
        for member in self._members:
            if step % member.dynamic.every == 0:
                member.rows.decide(self._rows)

    # ---- state ----

    @property
    def maps(self) -> "dict[str, MovedRows]":
        """Where the rows of each logical table are now."""
        return {member.name: partial(_moved, member.rows, member.parts) for member in self._members}

    def fields(self) -> dict[str, FloatsByName]:
        """What digest and checkpoint have of where rows are, as of a dense parameter. Collective
        where something was noted since the last exchange.
        """
        self.exchange()
        # as fp32 numbers, so that file and digest need to know nothing of sketches
        return {member.tensor: {"value": member.rows.numbers()} for member in self._members}

    def load(self, fields: Mapping[str, FloatsByName]) -> None:
        """Take up what `fields` gave."""
        for member in self._members:
            member.rows.load(fields[member.tensor]["value"])


def maps_of(
    config: Config, parts: Sequence[KeyVectors], numbers: FloatsByName
) -> "dict[str, MovedRows]":
    """Where the rows of each logical table are in a checkpoint with these numbers, by the names
    that `DynamicKinds.fields` gives them. parts : keys of the model; only their tables count.
    """
    maps: dict[str, MovedRows] = {}
    for member in _members(config, parts):
        member.rows.load(np.asarray(numbers[member.tensor]))
        maps[member.name] = partial(_moved, member.rows, member.parts)
    return maps


def _moved(rows: DynamicRows, parts: Sequence[KeyVectors], numbers: Ints) -> list[Ints]:
    """Rows of each physical table."""
    outs = [np.empty_like(numbers) for _ in parts[0].sources]
    rows.map(numbers, outs)
    return outs


def _members(config: Config, parts: Sequence[KeyVectors]) -> list[_Member]:
    """The tables of these keys whose rows move."""
    names = {vectors.table for vectors in parts}
    tables = {spec.name: number for number, spec in enumerate(config.tables)}
    members = []
    for composition in config.compositions:
        dynamic = composition.dynamic
        if dynamic is None or composition.table not in names:
            continue
        own_tables = [tables[term.table] for term in composition.terms[0]]
        member = _Member(
            name=composition.table,
            dynamic=dynamic,
            rows=RULES[dynamic.rule](dynamic, own_tables),
            parts=tuple(vectors for vectors in parts if vectors.table == composition.table),
        )
        members.append(member)
    return members


def _run(kjt: KJT, key: int) -> slice:
    """Where the lookups of a key stand."""
    first = kjt.offsets[key * kjt.samples]
    return slice(int(first), int(kjt.offsets[(key + 1) * kjt.samples]))
