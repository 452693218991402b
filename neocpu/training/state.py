"""What is the state of training, whoever holds it? Blocks of whole rows in a fixed order, and one digest of them.

A tensor is a dense parameter or a table, with its optimizer state as further fields. Its rows are cut into blocks of
4,096 row numbers. Of a table, a row belongs to the state if a byte of it differs from its initial value; of a dense
parameter, all rows do. Every block has one owner: it receives the parts of its rows from the rectangles that hold them,
a few megabytes at a time, and puts them together. So digest and checkpoint do not depend on the plan
(`docs/arithmetic.md` §11).
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.specs import EXACT
from neocpu.parallel.comm import Comm
from neocpu.parallel.plan import Plan
from neocpu.training.initial import initial_rows, state_shapes

BLOCK = 4096
ROUND = 4 << 20  # bytes of whole blocks that an owner receives at a time; less for very many ranks
STATE_VERSION = 1
CANONICAL_NAN = np.uint32(0x7FC00000)
F32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Values = Mapping[str, F32]


@dataclass(frozen=True)
class Tensor:
    """`rows` rows; `fields` are (name, shape of one row): first the values, then the optimizer state.

    format : the values are numbers of it (`embedding.specs`). Here all fields are fp32 numbers, whatever keeps them.
    """

    name: str
    rows: int
    fields: tuple[tuple[str, tuple[int, ...]], ...]
    format: str = "fp32"

    @property
    def coded(self) -> bool:
        """Whether files hold its values as codes."""
        return self.format not in EXACT

    def of(self, field: str) -> str:
        """Format in which files hold a field."""
        return self.format if self.coded and field == "weight" else "fp32"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row with its number."""
        return 8 + 4 * sum(int(np.prod(shape)) for _, shape in self.fields)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.rows // BLOCK)


@dataclass(frozen=True)
class Block:
    """Rows of block `number` of tensor `tensor` that belong to the state: i64[n] ascending, and f32[n, ...] fields."""

    tensor: int
    number: int
    rows: Ints
    values: Values

    def sha256(self) -> bytes:
        """Of the row numbers (int64) and then every field in order (float32), all little-endian."""
        found = hashlib.sha256(np.ascontiguousarray(self.rows, "<i8").data)
        for value in self.values.values():
            found.update(np.ascontiguousarray(value, "<f4").data)
        return found.digest()


class Embeddings(Protocol):
    """What is asked of the tables of one rank (`embedding.tbe`); shard i is `plan.local(rank)[i]`."""

    def flush(self) -> None: ...

    def existing(self, shard: int, lo: int, hi: int) -> Ints: ...

    def values(self, shard: int, rows: Ints) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Index:
    """All blocks of the state in order: tensor i64[m], number i64[m], rows i64[m], sha256 u8[m, 32]."""

    tensor: Ints
    number: Ints
    rows: Ints
    sha256: NDArray[np.uint8]

    def of(self, tensor: int) -> slice:
        """Where the blocks of one tensor stand."""
        lo, hi = np.searchsorted(self.tensor, [tensor, tensor + 1])
        return slice(int(lo), int(hi))


class State:
    """The training state of a run; all methods are collective and leave it as it is.

    dense : parameter -> its fields, "value" first; each an f32 array of one shape, equal on all ranks.
    embeddings, plan : this rank's tables. initial(table, rows) : whole rows before training, in the order of fields.
    """

    def __init__(
        self,
        comm: Comm,
        dense: Mapping[str, Values],
        plan: Plan,
        embeddings: Embeddings,
        fields: Callable[[int], Sequence[tuple[str, tuple[int, ...]]]],
        initial: Callable[[int, Ints], dict[str, F32]],
    ) -> None:
        self.comm, self.plan, self._dense, self._embeddings, self._initial = comm, plan, dense, embeddings, initial
        tensors = [
            Tensor(f"dense/{name}", len(values["value"]), tuple((k, v.shape[1:]) for k, v in values.items()))
            for name, values in dense.items()
        ]
        for number, spec in enumerate(plan.tables):
            shape = (("weight", (spec.dim,)), *fields(number))
            tensors.append(Tensor(f"tables/{spec.name}", spec.rows, shape, spec.format))
        self.tensors = tuple(tensors)
        self._starts = np.cumsum([0, *(tensor.blocks for tensor in tensors)], dtype=np.int64)
        self._shards: dict[int, list[int]] = {}
        for i, shard in enumerate(plan.local(comm.rank)):
            self._shards.setdefault(shard.table, []).append(i)

    # ---- which blocks there are, and who owns them ----

    def _touched_rows(self) -> NDArray[np.int32]:
        """Touched rows of every block, counted over all tensors and added over all ranks; the same on all ranks.

        An upper bound: a row that several ranks hold in parts or as replicas counts for each of them.
        """
        counts = np.zeros(int(self._starts[-1]), np.int32)
        counts[: self._starts[len(self._dense)]] = 1
        for i, shard in enumerate(self.plan.local(self.comm.rank)):
            touched = (self._embeddings.existing(i, 0, shard.rows[1] - shard.rows[0]) + shard.rows[0]) // BLOCK
            tensor = len(self._dense) + shard.table
            here = counts[self._starts[tensor] : self._starts[tensor + 1]]
            here += np.bincount(touched, minlength=here.size).astype(np.int32)
        return _add_over_ranks(counts, self.comm)

    def _schedule(self) -> list[list[Ints]]:
        """schedule[r][q]: blocks that rank q owns and assembles in round r, ascending; ownership is contiguous."""
        self._embeddings.flush()
        counts = self._touched_rows()
        blocks = np.flatnonzero(counts).astype(np.int64)
        tensor = np.searchsorted(self._starts, blocks, side="right") - 1
        size = np.array([t.rows for t in self.tensors], np.int64)[tensor] - (blocks - self._starts[tensor]) * BLOCK
        rows = np.where(tensor < len(self._dense), BLOCK, counts[blocks])
        weight = np.minimum(np.minimum(rows, size), BLOCK) * np.array([t.row_bytes for t in self.tensors])[tensor]
        middle = np.cumsum(weight) - weight // 2
        owner = middle * self.comm.size // max(int(weight.sum()), 1)
        budget = max(min(ROUND, 16 * ROUND // self.comm.size), 1)
        chunks = []
        for q in range(self.comm.size):
            mine = np.flatnonzero(owner == q)
            part = (np.cumsum(weight[mine]) - 1) // budget
            chunks.append([blocks[mine[part == p]] for p in np.unique(part)])
        nothing = np.empty(0, np.int64)
        rounds = max(map(len, chunks))
        return [[parts[r] if r < len(parts) else nothing for parts in chunks] for r in range(rounds)]

    def blocks(self) -> Iterator[Block]:
        """The blocks that this rank owns, in order, without empty ones. Exhaust it: the ranks go in rounds."""
        for owned in self._schedule():
            pieces = self._exchange(owned)
            for tensor, group in groupby(owned[self.comm.rank].tolist(), lambda number: self._locate(number)[0]):
                for block in self._assemble(tensor, list(group), pieces):
                    if block.rows.size:
                        yield block

    # ---- one round ----

    def _exchange(self, owned: Sequence[Ints]) -> dict[int, list["_Piece"]]:
        """Send the parts of table rows to their owners; the parts of my blocks, by block."""
        outgoing = [_Stream() for _ in owned]
        for rank, (stream, blocks) in enumerate(zip(outgoing, owned)):
            self._pack(stream, blocks.tolist(), rank == self.comm.rank)
        counts = self.comm.alltoall(np.array([stream.counts() for stream in outgoing], np.int64))
        ints = self._swap(
            [part for s in outgoing for part in s.ints], [s.counts()[0] for s in outgoing], counts[:, 0], "i8"
        )
        floats = self._swap(
            [part for s in outgoing for part in s.floats], [s.counts()[1] for s in outgoing], counts[:, 1], "f4"
        )
        return self._unpack(ints, floats)

    def _swap(self, parts: list[NDArray[Any]], sends: list[int], recvs: Ints, dtype: str) -> NDArray[Any]:
        into = np.empty(int(recvs.sum()), dtype)
        self.comm.alltoallv(np.concatenate([np.empty(0, dtype), *parts]), sends, into, recvs)
        return into

    def _pack(self, stream: "_Stream", numbers: Sequence[int], mine: bool) -> None:
        """Append what my rectangles hold of some blocks, which are all that have rows between the first and the last of them.

        Of a replicated table the owner has a copy itself."""
        for tensor, group in groupby(numbers, lambda number: self._locate(number)[0]):
            table, blocks = tensor - len(self._dense), list(group)
            if table < 0 or (self.plan.replicated(table) and not mine):
                continue
            first, end = self._locate(blocks[0])[1], self._locate(blocks[-1])[1] + BLOCK
            for i in self._shards.get(table, ()):
                shard = self.plan.local(self.comm.rank)[i]
                lo, hi = max(first, shard.rows[0]), min(end, shard.rows[1])
                if lo < hi:
                    rows = self._embeddings.existing(i, lo - shard.rows[0], hi - shard.rows[0])
                    values = self._embeddings.values(i, rows)
                    self._append(stream, tensor, shard.cols, rows + shard.rows[0], values)

    def _append(self, stream: "_Stream", tensor: int, cols: tuple[int, int], rows: Ints, values: Values) -> None:
        """Append rows of a tensor, block by block."""
        number = rows // BLOCK
        cuts = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), rows.size] if rows.size else []
        fields = [values[name] for name, shape in self.tensors[tensor].fields if shape or cols[0] == 0]
        for lo, hi in pairwise(cuts):
            stream.ints += [np.array([self._starts[tensor] + number[lo], hi - lo, *cols], np.int64), rows[lo:hi]]
            stream.floats += [field[lo:hi].reshape(-1) for field in fields]

    def _unpack(self, ints: Ints, floats: F32) -> dict[int, list["_Piece"]]:
        found: dict[int, list[_Piece]] = {}
        at = place = 0
        while at < ints.size:
            number, count, left, right = ints[at : at + 4].tolist()
            rows = ints[at + 4 : at + 4 + count]
            at += 4 + count
            values = {}
            for name, shape in self.tensors[self._locate(number)[0]].fields:
                if shape or left == 0:
                    width = (right - left,) if shape else ()
                    size = count * (right - left if shape else 1)
                    values[name] = floats[place : place + size].reshape(count, *width)
                    place += size
            found.setdefault(number, []).append(_Piece(rows, (left, right), values))
        return found

    def _locate(self, number: int) -> tuple[int, int]:
        """(tensor, first row) of a block counted over all tensors."""
        tensor = int(np.searchsorted(self._starts, number, side="right")) - 1
        return tensor, (number - int(self._starts[tensor])) * BLOCK

    def _assemble(
        self, tensor: int, numbers: Sequence[int], pieces: Mapping[int, Sequence["_Piece"]]
    ) -> Iterator[Block]:
        """Blocks of one tensor, put together; initial values of all in one go."""
        firsts = [self._locate(number)[1] for number in numbers]
        if tensor < len(self._dense):
            fields = self._dense[self.tensors[tensor].name.removeprefix("dense/")]
            for first in firsts:
                values = {name: _canonical(value[first : first + BLOCK]) for name, value in fields.items()}
                rows = np.arange(first, first + len(values["value"]), dtype=np.int64)
                yield Block(tensor, first // BLOCK, rows, values)
            return
        held = [_all_rows(pieces.get(number, ())) for number in numbers]
        before = self._initial(tensor - len(self._dense), np.concatenate(held))
        at = 0
        for number, first, rows in zip(numbers, firsts, held):
            start = {name: before[name][at : at + rows.size] for name, _ in self.tensors[tensor].fields}
            at += rows.size
            yield _changed_rows(tensor, first // BLOCK, rows, start, pieces.get(number, ()))

    # ---- the whole ----

    def index(self, hashes: bool = True, visit: Callable[[Block], None] | None = None) -> Index:
        """All ranks' blocks (sha256 zero unless `hashes`); `visit` is called with each block that this rank owns."""
        mine, shas = [], []
        for block in self.blocks():
            mine.append((block.tensor, block.number, block.rows.size))
            shas.append(block.sha256() if hashes else bytes(32))
            if visit:
                visit(block)
        counts = np.empty(self.comm.size, np.int64)
        self.comm.allgatherv(np.array([len(mine)], np.int64), counts, np.ones(self.comm.size, np.int64))
        table = np.empty(3 * int(counts.sum()), np.int64)
        self.comm.allgatherv(np.array(mine, np.int64).reshape(-1), table, 3 * counts)
        sha = np.empty(32 * int(counts.sum()), np.uint8)
        self.comm.allgatherv(np.frombuffer(b"".join(shas), np.uint8), sha, 32 * counts)
        columns = table.reshape(-1, 3)
        return Index(columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy(), sha.reshape(-1, 32))


@dataclass(frozen=True)
class _Piece:
    """Part of a block: some rows; columns [left, right) of fields that have columns, the other fields if left = 0."""

    rows: Ints
    cols: tuple[int, int]
    values: Values


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


def _changed_rows(tensor: int, number: int, rows: Ints, before: Values, pieces: Sequence[_Piece]) -> Block:
    """The rows of a block that differ from `before`, from their pieces."""
    values = {name: value.copy() for name, value in before.items()}
    for piece in pieces:
        at = np.searchsorted(rows, piece.rows)
        for name, part in piece.values.items():
            if part.ndim == 2:
                values[name][at, piece.cols[0] : piece.cols[1]] = part
            else:
                values[name][at] = part
    kept = np.zeros(rows.size, np.bool_)
    for name, value in values.items():
        values[name] = _canonical(value)
        kept |= (values[name].view(np.uint32) != before[name].view(np.uint32)).reshape(rows.size, -1).any(axis=1)
    return Block(tensor, number, rows[kept], {name: value[kept] for name, value in values.items()})


def _canonical(values: F32) -> F32:
    """A copy in which every NaN has the bits 0x7fc00000."""
    copied = np.array(values, np.float32, order="C")
    copied.view(np.uint32)[np.isnan(copied)] = CANONICAL_NAN
    return copied


def _add_over_ranks(counts: NDArray[np.int32], comm: Comm) -> NDArray[np.int32]:
    """Element-wise sum of all ranks' counts: each rank adds one range."""
    cuts = np.arange(comm.size + 1, dtype=np.int64) * counts.size // comm.size
    sends, mine = np.diff(cuts), int(cuts[comm.rank + 1] - cuts[comm.rank])
    ranges = np.empty(comm.size * mine, np.int32)
    comm.alltoallv(counts, sends, ranges, np.full(comm.size, mine, np.int64))
    everything = np.empty(counts.size, np.int32)
    comm.allgatherv(ranges.reshape(comm.size, mine).sum(axis=0, dtype=np.int32), everything, sends)
    return everything


def canonical_json(data: Any) -> bytes:
    """JSON with sorted keys, without spaces, in ASCII."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest_of(header: Mapping[str, Any], step: int, tensors: Sequence[Tensor], index: Index) -> str:
    """SHA-256, in hexadecimal, of a state: the config's header, the step, and the blocks of all tensors."""
    top = {"version": STATE_VERSION, "config": header, "seed": header["training"]["seed"], "step": step}
    found = hashlib.sha256(canonical_json(top) + b"\n")
    for number, tensor in enumerate(tensors):
        here = index.of(number)
        fields = [[name, "float32", list(shape)] for name, shape in tensor.fields]
        count = here.stop - here.start
        line = {"name": tensor.name, "rows": tensor.rows, "fields": fields, "blocks": count}
        found.update(canonical_json(line) + b"\n")
        for block, sha in zip(index.number[here], index.sha256[here]):
            found.update(np.array([block], "<i8").tobytes() + sha.tobytes())
    return found.hexdigest()


def dense_fields(world: Any) -> dict[str, dict[str, F32]]:
    """Parameter -> its fields: views of "value" and of the dense optimizer's state."""
    states = {name: world.model.layout.views(flat) for name, flat in world.dense.state.items()}
    return {
        parameter: {"value": value, **{name: views[parameter] for name, views in states.items()}}
        for parameter, value in world.model.parameters.items()
    }


def state_of(world: Any) -> State:
    """The state of a `training.world.World`."""
    config, optimizer, tables = world.config, world.config.optimizer.sparse, world.plan.tables
    return State(
        world.comm,
        dense_fields(world),
        world.plan,
        world.embedding.tbe,
        lambda table: state_shapes(optimizer, tables[table].dim),
        lambda table, rows: initial_rows(tables[table], optimizer, config.training.seed, rows),
    )


def digest(world: Any, step: int) -> str:
    """Digest of a run after `step` steps. Collective."""
    state = state_of(world)
    return digest_of(world.config.header(), step, state.tensors, state.index())
