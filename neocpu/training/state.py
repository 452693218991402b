"""What is the state of training, whoever holds it? Blocks of whole rows in a fixed order, and one
digest of them.

Every block of `blocks.py` has one owner: it receives the parts of its rows from the rectangles that
hold them, a few megabytes at a time, and puts them together. So digest and checkpoint do not depend
on the plan (`docs/arithmetic.md` §11).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neocpu.parallel.comm import Comm
from neocpu.parallel.plan import Plan
from neocpu.training.checkpoint.number_codes import Code
from neocpu.training.initial import fields_of, initial_rows
from neocpu.training.state_blocks import (
    BLOCK,
    F32,
    NOTHING,
    Blocks,
    Index,
    Ints,
    Tensor,
    Values,
    among,
    by_tensor,
    digest_of,
    per_block,
    runs_of,
)

ROUND = 4 << 20  # bytes of whole blocks that an owner receives at a time; less for very many ranks
CANONICAL_NAN = np.uint32(0x7FC00000)


class Embeddings(Protocol):
    """What is asked of the tables of one rank (`embedding.tbe`); shard i is `plan.local(rank)[i]`."""

    def flush(self) -> None: ...

    def existing(self, shard: int, lo: int, hi: int) -> Ints: ...

    def values(self, shard: int, rows: Ints) -> Mapping[str, Any]: ...

    @property
    def changes(self) -> Any: ...  # `embedding.changes.Changes`


class State:
    """The training state of a run; all methods are collective and leave it as it is.

    dense : parameter -> its fields, "value" first; each an f32 array of one shape, equal on all
        ranks.
    embeddings, plan : this rank's tables. initial(table, rows) : whole rows before training, in the
        order of fields.
    quantize : round the weights of float32 tables to rows of this format on the way out; "": to
        none.
    """

    def __init__(
        self,
        comm: Comm,
        dense: Mapping[str, Values],
        plan: Plan,
        embeddings: Embeddings,
        fields: Callable[[int], Sequence[tuple[str, tuple[int, ...]]]],
        initial: Callable[[int, Ints], dict[str, F32]],
        quantize: str = "",
    ) -> None:
        self.comm = comm
        self.plan = plan
        self._dense = dense
        self._embeddings = embeddings
        self._initial = initial
        tensors = [
            Tensor(
                f"dense/{name}",
                len(values["value"]),
                tuple((k, v.shape[1:]) for k, v in values.items()),
            )
            for name, values in dense.items()
        ]
        for number, spec in enumerate(plan.tables):
            shape = (("weight", (spec.dim,)), *fields(number))
            wide = spec.row_format.exact
            tensors.append(
                Tensor(
                    f"tables/{spec.name}", spec.rows, shape, spec.format, quantize if wide else ""
                )
            )
        self.tensors = tuple(tensors)
        self._starts = np.cumsum([0, *(tensor.blocks for tensor in tensors)], dtype=np.int64)
        self._shards: dict[int, list[int]] = {}
        for i, shard in enumerate(plan.local(comm.rank)):
            self._shards.setdefault(shard.table, []).append(i)

    # ---- which blocks there are, and who owns them ----

    def _rows_per_block(self, rows: Callable[[int, int], Ints]) -> tuple[Ints, Ints]:
        """Blocks with rows, i64[n] ascending, counted over all tensors, and how many of all ranks'
        are in each; the same on all ranks. `rows(i, height)`: those of my shard i.

        An upper bound: a row that several ranks hold in parts or as replicas counts for each of
        them.
        """
        parts = [np.arange(self._starts[len(self._dense)] if self.comm.rank == 0 else 0)]
        for i, shard in enumerate(self.plan.local(self.comm.rank)):
            first = self._starts[len(self._dense) + shard.table]
            parts.append((rows(i, shard.rows[1] - shard.rows[0]) + shard.rows[0]) // BLOCK + first)
        # ascending each; shards of a table may have the same blocks
        runs = [runs_of(part) for part in parts]
        blocks, counts = (np.concatenate([run[k] for run in runs]) for k in range(2))
        sizes = np.empty(self.comm.size, np.int64)
        self.comm.allgatherv(
            np.array([blocks.size], np.int64), sizes, np.ones(self.comm.size, np.int64)
        )
        if 4 * int(sizes.sum()) > int(
            self._starts[-1]
        ):  # most blocks have rows: a count for each is less than their numbers
            dense = np.bincount(blocks, counts, minlength=int(self._starts[-1])).astype(np.int32)
            everyone = _add_over_ranks(dense, self.comm)
            found = np.flatnonzero(everyone)
            return found, everyone[found].astype(np.int64)
        everybody = [np.empty(int(sizes.sum()), np.int64) for _ in range(2)]
        for mine, all_ in zip((blocks, counts), everybody):
            self.comm.allgatherv(mine, all_, sizes)
        found, of = np.unique(everybody[0], return_inverse=True)
        return found, np.bincount(of, everybody[1], minlength=found.size).astype(np.int64)

    def _schedule(self, since: bool) -> list[list[Ints]]:
        """schedule[r][q]: blocks that rank q owns and assembles in round r, ascending; ownership is
        contiguous.
        """
        self._embeddings.flush()
        blocks, rows = self._rows_per_block(
            lambda i, height: self._embeddings.existing(i, 0, height)
        )
        self._changed = (
            [self._embeddings.changes.rows(i) for i in range(len(self.plan.local(self.comm.rank)))]
            if since
            else []
        )
        if since:
            chosen, _ = self._rows_per_block(lambda i, height: self._changed[i])
            blocks, rows = chosen, rows[np.searchsorted(blocks, chosen)]
        tensor = np.searchsorted(self._starts, blocks, side="right") - 1
        size = (
            np.array([t.rows for t in self.tensors], np.int64)[tensor]
            - (blocks - self._starts[tensor]) * BLOCK
        )
        rows = np.where(tensor < len(self._dense), BLOCK, rows)
        weight = (
            np.minimum(np.minimum(rows, size), BLOCK)
            * np.array([t.row_bytes for t in self.tensors])[tensor]
        )
        middle = np.cumsum(weight) - weight // 2
        owner = middle * self.comm.size // max(int(weight.sum()), 1)
        budget = max(min(ROUND, 16 * ROUND // self.comm.size), 1)
        chunks = []
        for q in range(self.comm.size):
            mine = np.flatnonzero(owner == q)
            _, sizes = runs_of((np.cumsum(weight[mine]) - 1) // budget)
            chunks.append(np.split(blocks[mine], np.cumsum(sizes)[:-1]) if mine.size else [])
        rounds = max(map(len, chunks))
        return [
            [parts[r] if r < len(parts) else NOTHING for parts in chunks] for r in range(rounds)
        ]

    def blocks(self, since: bool = False) -> Iterator[Blocks]:
        """The blocks that this rank owns, in order, without empty ones. Exhaust it: the ranks go in
        rounds.

        since : only blocks with rows that changed since the last checkpoint, empty ones too; all of
            dense parameters.
        """
        for owned in self._schedule(since):
            pieces = self._exchange(owned, since)
            for tensor, numbers in by_tensor(self._starts, owned[self.comm.rank]):
                found = self._assemble(tensor, numbers, pieces.get(tensor, ()), since)
                if found.numbers.size:
                    yield found

    # ---- one round ----

    def _exchange(self, owned: Sequence[Ints], since: bool) -> dict[int, list["_Piece"]]:
        """Send the parts of table rows to their owners; the parts of my blocks, by tensor."""
        outgoing = [_Stream() for _ in owned]
        for rank, (stream, blocks) in enumerate(zip(outgoing, owned)):
            self._pack(stream, blocks, rank == self.comm.rank, since)
        counts = self.comm.alltoall(np.array([stream.counts() for stream in outgoing], np.int64))
        ints = self._swap(
            [part for s in outgoing for part in s.ints],
            [s.counts()[0] for s in outgoing],
            counts[:, 0],
            "i8",
        )
        floats = self._swap(
            [part for s in outgoing for part in s.floats],
            [s.counts()[1] for s in outgoing],
            counts[:, 1],
            "f4",
        )
        return self._unpack(ints, floats)

    def _swap(
        self, parts: list[NDArray[Any]], sends: list[int], recvs: Ints, dtype: str
    ) -> NDArray[Any]:
        if self.comm.size == 1:  # what I send myself is what I have
            return (
                np.concatenate(parts)
                if len(parts) > 1
                else parts[0]
                if parts
                else np.empty(0, dtype)
            )
        into = np.empty(int(recvs.sum()), dtype)
        self.comm.alltoallv(np.concatenate([np.empty(0, dtype), *parts]), sends, into, recvs)
        return into

    def _pack(self, stream: "_Stream", blocks: Ints, mine: bool, since: bool) -> None:
        """Append what my rectangles hold of some blocks. Of a replicated table the owner has a copy
        itself.
        """
        for tensor, numbers in by_tensor(self._starts, blocks):
            table = tensor - len(self._dense)
            if table < 0 or (self.plan.replicated(table) and not mine):
                continue
            first = int(numbers[0]) * BLOCK
            end = (int(numbers[-1]) + 1) * BLOCK
            for i in self._shards.get(table, ()):
                shard = self.plan.local(self.comm.rank)[i]
                lo = max(first, shard.rows[0])
                hi = min(end, shard.rows[1])
                if lo >= hi:
                    continue
                rows = self._embeddings.existing(i, lo - shard.rows[0], hi - shard.rows[0])
                # else the blocks are all that have rows between the first and the last of them
                if since:
                    rows = rows[among((rows + shard.rows[0]) // BLOCK, numbers)]
                if rows.size:
                    values = self._embeddings.values(i, rows)
                    numbered = rows + shard.rows[0]
                    if since:  # changed rows are sent as ~row
                        numbered ^= -among(rows, self._changed[i]).astype(np.int64)
                    stream.ints += [np.array([tensor, rows.size, *shard.cols], np.int64), numbered]
                    stream.floats += [
                        values[name].reshape(-1) for name, _ in self._held(tensor, shard.cols[0])
                    ]

    def _held(self, tensor: int, left: int) -> list[tuple[str, tuple[int, ...]]]:
        """Fields of which a part of the columns from `left` on has something: fields without
        columns go with the first.
        """
        return [(name, shape) for name, shape in self.tensors[tensor].fields if shape or left == 0]

    def _unpack(self, ints: Ints, floats: F32) -> dict[int, list["_Piece"]]:
        found: dict[int, list[_Piece]] = {}
        at = place = 0
        while at < ints.size:
            tensor, count, left, right = ints[at : at + 4].tolist()
            rows = ints[at + 4 : at + 4 + count]
            at += 4 + count
            values = {}
            for name, shape in self._held(tensor, left):
                width = (right - left,) if shape else ()
                size = count * (right - left if shape else 1)
                values[name] = floats[place : place + size].reshape(count, *width)
                place += size
            changed = rows < 0
            found.setdefault(tensor, []).append(
                _Piece(np.where(changed, ~rows, rows), (left, right), values, changed)
            )
        return found

    def _assemble(
        self, tensor: int, numbers: Ints, pieces: Sequence["_Piece"], since: bool
    ) -> Blocks:
        """Blocks of one tensor, put together."""
        if tensor < len(self._dense):  # all blocks of a dense parameter are there
            fields = self._dense[self.tensors[tensor].name.removeprefix("dense/")]
            first = int(numbers[0]) * BLOCK
            end = (int(numbers[-1]) + 1) * BLOCK
            values = {name: _canonical(value[first:end]) for name, value in fields.items()}
            return Blocks.of(
                tensor, np.arange(first, first + len(values["value"]), dtype=np.int64), values
            )
        rows = _all_rows(pieces)
        before = self._initial(tensor - len(self._dense), rows)
        values = {name: _canonical(_joined(name, before[name], rows, pieces)) for name in before}
        kept = np.zeros(rows.size, np.bool_)
        for name, value in values.items():
            kept |= (
                (value.view(np.uint32) != before[name].view(np.uint32))
                .reshape(rows.size, -1)
                .any(axis=1)
            )
        changed = np.zeros(rows.size, np.bool_)
        for piece in pieces:
            changed[np.searchsorted(rows, piece.rows[piece.changed])] = True
        gone = rows[changed & ~kept]
        if not kept.all():
            rows = rows[kept]
            changed = changed[kept]
            values = {name: value[kept] for name, value in values.items()}
        if since:
            found = Blocks(tensor, numbers, per_block(numbers, rows), rows, values, changed, gone)
        else:
            found = Blocks.of(tensor, rows, values)
        return _rounded(found, self.tensors[tensor]) if self.tensors[tensor].quantized else found

    # ---- the whole ----

    def index(self, visit: Callable[[Blocks], None] | None = None, since: bool = False) -> Index:
        """All ranks' blocks, or those that changed since the last checkpoint, some without rows;
        `visit` is called with the blocks that this rank owns, in order.
        """
        mine = [np.empty((0, 3), np.int64)]
        shas = []
        for found in self.blocks(since):
            mine.append(
                np.stack(
                    [np.full_like(found.numbers, found.tensor), found.numbers, found.counts], axis=1
                )
            )
            shas += found.sha256()
            if visit:
                visit(found)
        counts = np.empty(self.comm.size, np.int64)
        self.comm.allgatherv(
            np.array([len(shas)], np.int64), counts, np.ones(self.comm.size, np.int64)
        )
        table = np.empty(3 * int(counts.sum()), np.int64)
        self.comm.allgatherv(np.concatenate(mine).reshape(-1), table, 3 * counts)
        sha = np.empty(32 * int(counts.sum()), np.uint8)
        self.comm.allgatherv(np.frombuffer(b"".join(shas), np.uint8), sha, 32 * counts)
        columns = table.reshape(-1, 3)
        return Index(
            columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy(), sha.reshape(-1, 32)
        )


def _rounded(blocks: Blocks, tensor: Tensor) -> Blocks:
    """Blocks as a quantised file has them."""
    code = Code.of(tensor, "weight")
    codes = code.encode(blocks.values["weight"])
    values = dict(blocks.values) | {"weight": _canonical(code.decode(codes))}
    return replace(blocks, values=values, codes={"weight": codes})


@dataclass(frozen=True)
class _Piece:
    """Part of a block: some rows; columns [left, right) of fields that have columns, the other
    fields if left = 0.
    """

    rows: Ints
    cols: tuple[int, int]
    values: Values
    changed: NDArray[np.bool_]


class _Stream:
    """What one rank sends another in a round."""

    def __init__(self) -> None:
        self.ints: list[Ints] = []
        self.floats: list[F32] = []

    def counts(self) -> tuple[int, int]:
        return sum(part.size for part in self.ints), sum(part.size for part in self.floats)


def _all_rows(pieces: Sequence[_Piece]) -> Ints:
    """Rows of which there is a piece, ascending."""
    if len(pieces) == 1:
        return pieces[0].rows
    return np.unique(np.concatenate([np.empty(0, np.int64), *(piece.rows for piece in pieces)]))


def _joined(name: str, before: F32, rows: Ints, pieces: Sequence[_Piece]) -> F32:
    """A field of `rows`: that of their pieces, else `before`."""
    if (
        len(pieces) == 1
        and name in pieces[0].values
        and pieces[0].values[name].shape == before.shape
    ):
        return pieces[0].values[name]
    joined = before.copy()
    for piece in pieces:
        part = piece.values.get(name)
        if part is not None:
            at = np.searchsorted(rows, piece.rows)
            if part.ndim == 2:
                joined[at, piece.cols[0] : piece.cols[1]] = part
            else:
                joined[at] = part
    return joined


def _canonical(values: F32) -> F32:
    """A copy in which every NaN has the bits 0x7fc00000."""
    copied = np.array(values, np.float32, order="C")
    copied.view(np.uint32)[np.isnan(copied)] = CANONICAL_NAN
    return copied


def _add_over_ranks(counts: NDArray[np.int32], comm: Comm) -> NDArray[np.int32]:
    """Element-wise sum of all ranks' counts: each rank adds one range."""
    cuts = np.arange(comm.size + 1, dtype=np.int64) * counts.size // comm.size
    sends = np.diff(cuts)
    mine = int(cuts[comm.rank + 1] - cuts[comm.rank])
    ranges = np.empty(comm.size * mine, np.int32)
    comm.alltoallv(counts, sends, ranges, np.full(comm.size, mine, np.int64))
    everything = np.empty(counts.size, np.int32)
    comm.allgatherv(ranges.reshape(comm.size, mine).sum(axis=0, dtype=np.int32), everything, sends)
    return everything


def dense_fields(world: Any) -> dict[str, dict[str, F32]]:
    """Parameter -> its fields: views of "value" and of the dense optimizer's state."""
    states = {name: world.model.layout.views(flat) for name, flat in world.dense.state.items()}
    return {
        parameter: {"value": value, **{name: views[parameter] for name, views in states.items()}}
        for parameter, value in world.model.parameters.items()
    }


def state_of(world: Any, quantize: str = "") -> State:
    """The state of a `training.world.World`, or what a quantised file has of it."""
    config, optimizer, tables = world.config, world.config.optimizer.sparse, world.plan.tables
    return State(
        world.comm,
        dense_fields(world),
        world.plan,
        world.embedding.tbe,
        lambda table: fields_of(tables[table], optimizer),
        lambda table, rows: initial_rows(tables[table], optimizer, config.training.seed, rows),
        quantize,
    )


def digest(world: Any, step: int) -> str:
    """Digest of a run after `step` steps. Collective."""
    state = state_of(world)
    return digest_of(world.config.header(), step, state.tensors, state.index())
