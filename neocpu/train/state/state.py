"""What is the state of training, whoever holds it?

Blocks of whole rows in a fixed order, and one digest of them.

Every block of `blocks.py` has one owner: it receives the parts of its rows from the
rectangles that hold them, a few megabytes at a time, and puts them together. So digest and
checkpoint do not depend on the plan (`docs/arithmetic.md` §11).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Floats, FloatsByName, Ints
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm
from neocpu.train.state.blocks import (
    BLOCK,
    NOTHING,
    Blocks,
    Index,
    Tensor,
    Values,
    by_tensor,
    canonical,
    digest_of,
    per_block,
    runs_of,
)
from neocpu.train.state.exchange import Embeddings, Piece, PieceExchange, joined, rows_of
from neocpu.train.state.initial import fields_of, initial_rows

if TYPE_CHECKING:
    from neocpu.parallel.embeddings.protocol import Embedding
    from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
    from neocpu.train.config.config import Config
    from neocpu.train.model.dlrm import Dlrm

ROUND = 4 << 20  # bytes of whole blocks that an owner receives at a time; less for very many ranks
Fields = Sequence[tuple[str, tuple[int, ...]]]


class ApartTowers(Protocol):
    """What the state needs of towers that run on their nodes."""

    def gather(self, dense: "DenseOptimizer") -> None: ...


class MovingRows(Protocol):
    """What the state needs of tables whose rows move."""

    def fields(self) -> dict[str, FloatsByName]: ...


class Trained(Protocol):
    """What the state needs of the objects of one rank (`step.world.World`)."""

    @property
    def config(self) -> "Config": ...

    @property
    def comm(self) -> Comm: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def model(self) -> "Dlrm": ...

    @property
    def dense(self) -> "DenseOptimizer": ...

    @property
    def embedding(self) -> "Embedding[Any]": ...

    @property
    def towers(self) -> ApartTowers | None: ...

    @property
    def dynamic(self) -> MovingRows | None: ...


class State:
    """The training state of a run; all methods are collective and leave it as it is.

    dense : parameter -> its fields, "value" first; each an f32 array of one shape, equal on all
        ranks.
    plan, embeddings : this rank's shards of the tables.
    fields(table) : (name, shape of a row) of all that a row has beside its weights.
    initial(table, rows) : whole rows before training, in the order of fields.
    quantize : mark float32 tables as rounded to rows of this format in files; "": none.
    """

    def __init__(
        self,
        comm: Comm,
        dense: Mapping[str, Values],
        plan: Plan,
        embeddings: Embeddings,
        fields: Callable[[int], Fields],
        initial: Callable[[int, Ints], dict[str, Floats]],
        quantize: str = "",
    ) -> None:
        self.comm = comm
        self.plan = plan
        self._dense = dense
        self._embeddings = embeddings
        self._initial = initial
        self.tensors = (
            *_dense_tensors(dense),
            *_table_tensors(plan, fields, quantize),
        )
        self._starts = np.cumsum([0, *(tensor.blocks for tensor in self.tensors)], dtype=np.int64)
        self._exchange = PieceExchange(comm, plan, embeddings, self.tensors, self._starts)

    # ---- which blocks there are, and who owns them ----

    def _rows_per_block(self, rows: Callable[[int, int], Ints]) -> tuple[Ints, Ints]:
        """Blocks with rows, i64[n] ascending, and how many rows of all ranks are in each.

        Blocks are counted over all tensors. rows(i, height) : rows of this rank's shard i.

        An upper bound: a row that several ranks hold in parts or as replicas counts for each of
        them.
        """
        comm = self.comm
        # every rank has the dense parameters; one of them reports their blocks
        parts = [np.arange(self._starts[len(self._dense)] if comm.rank == 0 else 0)]
        for i, shard in enumerate(self.plan.local(comm.rank)):
            first = self._starts[len(self._dense) + shard.table]
            parts.append((rows(i, shard.rows[1] - shard.rows[0]) + shard.rows[0]) // BLOCK + first)
        # ascending each; shards of a table may have the same blocks
        runs = [runs_of(numbers) for numbers in parts]
        local_blocks = np.concatenate([blocks for blocks, _ in runs])
        local_counts = np.concatenate([counts for _, counts in runs])
        sizes = _sizes(comm, local_blocks.size)
        total = int(self._starts[-1])
        if 4 * int(sizes.sum()) > total:
            # most blocks have rows: a count for each is less than the numbers of those that have
            counts = np.bincount(local_blocks, local_counts, minlength=total).astype(np.int32)
            counts = _add_over_ranks(counts, comm)
            blocks = np.flatnonzero(counts)
            return blocks, counts[blocks].astype(np.int64)
        all_blocks = np.empty(int(sizes.sum()), np.int64)
        all_counts = np.empty(int(sizes.sum()), np.int64)
        comm.allgatherv(local_blocks, all_blocks, sizes)
        comm.allgatherv(local_counts, all_counts, sizes)
        blocks, positions = np.unique(all_blocks, return_inverse=True)
        return blocks, np.bincount(positions, all_counts, minlength=blocks.size).astype(np.int64)

    def _schedule(self, changed: Sequence[Ints] | None) -> list[list[Ints]]:
        """schedule[r][q]: blocks that rank q owns and assembles in round r, ascending.

        Ownership is contiguous. changed : as for `PieceExchange.exchange`; where it is given, only
        blocks with such rows.
        """
        blocks, rows = self._rows_per_block(
            lambda i, height: self._embeddings.existing(i, 0, height)
        )
        if changed is not None:
            changed_blocks, _ = self._rows_per_block(lambda i, height: changed[i])
            rows = rows[np.searchsorted(blocks, changed_blocks)]
            blocks = changed_blocks
        # owners get about equal bytes, not equal numbers of blocks: tables differ in rows per block
        weight = self._block_bytes(blocks, rows)
        ranks = self.comm.size
        # by the middle of each block, so ownership ascends and needs no search
        middle = np.cumsum(weight) - weight // 2
        owner = middle * ranks // max(int(weight.sum()), 1)
        # one rank may hold the rows of all owners, and sends to all of them at once
        budget = max(min(ROUND, 16 * ROUND // ranks), 1)
        chunks = []
        for rank in range(ranks):
            owned = np.flatnonzero(owner == rank)
            _, sizes = runs_of((np.cumsum(weight[owned]) - 1) // budget)
            chunks.append(np.split(blocks[owned], np.cumsum(sizes)[:-1]) if owned.size else [])
        rounds = max(map(len, chunks))
        return [
            [parts[r] if r < len(parts) else NOTHING for parts in chunks] for r in range(rounds)
        ]

    def _block_bytes(self, blocks: Ints, rows: Ints) -> Ints:
        """About how many bytes blocks with so many rows take; dense ones have all of their rows."""
        tensor = np.searchsorted(self._starts, blocks, side="right") - 1
        heights = np.array([t.rows for t in self.tensors], np.int64)[tensor]
        height = heights - (blocks - self._starts[tensor]) * BLOCK
        rows = np.where(tensor < len(self._dense), BLOCK, rows)
        row_bytes = np.array([t.row_bytes for t in self.tensors])[tensor]
        return np.minimum(np.minimum(rows, height), BLOCK) * row_bytes

    def blocks(self, since: bool = False) -> Iterator[Blocks]:
        """The blocks that this rank owns, in order, without empty ones.

        Exhaust it: the ranks exchange rows in rounds.

        since : only blocks with rows that changed since the last checkpoint, empty ones too; all of
            dense parameters.
        """
        # a row must be in one place: moves under way end, and caches write home what changed
        self._embeddings.flush()
        shards = range(len(self.plan.local(self.comm.rank)))
        rows = self._embeddings
        changed = [rows.changes.rows(i, rows.existing) for i in shards] if since else None
        for owned in self._schedule(changed):
            pieces = self._exchange.exchange(owned, changed)
            for tensor, numbers in by_tensor(self._starts, owned[self.comm.rank]):
                blocks = (
                    self._dense_blocks(tensor, numbers)
                    if tensor < len(self._dense)
                    else self._table_blocks(tensor, numbers, pieces.get(tensor, ()), since)
                )
                if blocks.numbers.size:
                    yield blocks

    # ---- blocks of one tensor ----

    def _dense_blocks(self, tensor: int, numbers: Ints) -> Blocks:
        """Neighbouring blocks of a dense parameter, which every rank has whole."""
        fields = self._dense[self.tensors[tensor].name.removeprefix("dense/")]
        first = int(numbers[0]) * BLOCK
        end = (int(numbers[-1]) + 1) * BLOCK
        values = {name: canonical(value[first:end]) for name, value in fields.items()}
        rows = np.arange(first, first + len(values["value"]), dtype=np.int64)
        return Blocks.of(tensor, rows, values)

    def _table_blocks(
        self, tensor: int, numbers: Ints, pieces: Sequence[Piece], since: bool
    ) -> Blocks:
        """Blocks of a table, put together; only rows that differ from their initial values."""
        rows = rows_of(pieces)
        initial = self._initial(tensor - len(self._dense), rows)
        values = {
            name: canonical(joined(name, before, rows, pieces)) for name, before in initial.items()
        }
        in_state = np.zeros(rows.size, np.bool_)
        for name, value in values.items():
            # bytes, not values: -0 differs from +0, and a NaN equals itself
            different = value.view(np.uint32) != initial[name].view(np.uint32)
            in_state |= different.reshape(rows.size, -1).any(axis=1)
        changed = np.zeros(rows.size, np.bool_)
        for piece in pieces:
            # a row that column shards hold in parts changed if any part did
            changed[np.searchsorted(rows, piece.rows[piece.changed])] = True
        # an older file has them, and would give them back
        gone = rows[changed & ~in_state]
        if not in_state.all():
            rows = rows[in_state]
            changed = changed[in_state]
            values = {name: value[in_state] for name, value in values.items()}
        if since:
            return Blocks(tensor, numbers, per_block(numbers, rows), rows, values, changed, gone)
        return Blocks.of(tensor, rows, values)

    # ---- the whole ----

    def index(self, visit: Callable[[Blocks], Blocks] | None = None, since: bool = False) -> Index:
        """All ranks' blocks, or those that changed since the last checkpoint, some without rows.

        visit : called with the blocks that this rank owns, in order; it returns what is to be
            hashed in their place.
        """
        entries = [np.empty((0, 3), np.int64)]
        hashes: list[bytes] = []
        for blocks in self.blocks(since):
            if visit:
                blocks = visit(blocks)
            tensors = np.full_like(blocks.numbers, blocks.tensor)
            entries.append(np.stack([tensors, blocks.numbers, blocks.counts], axis=1))
            hashes += blocks.sha256()
        counts = _sizes(self.comm, len(hashes))
        table = np.empty(3 * int(counts.sum()), np.int64)
        self.comm.allgatherv(np.concatenate(entries).reshape(-1), table, 3 * counts)
        sha = np.empty(32 * int(counts.sum()), np.uint8)
        self.comm.allgatherv(np.frombuffer(b"".join(hashes), np.uint8), sha, 32 * counts)
        tensor, number, rows = table.reshape(-1, 3).T.copy()
        return Index(tensor, number, rows, sha.reshape(-1, 32))


def _dense_tensors(dense: Mapping[str, Values]) -> list[Tensor]:
    """The tensors of dense parameters and their optimizer state."""
    tensors = []
    for name, values in dense.items():
        fields = tuple((field, value.shape[1:]) for field, value in values.items())
        tensors.append(Tensor(f"dense/{name}", len(values["value"]), fields))
    return tensors


def _table_tensors(plan: Plan, fields: Callable[[int], Fields], quantize: str) -> list[Tensor]:
    """The tensors of tables and their optimizer state."""
    tensors = []
    for number, spec in enumerate(plan.tables):
        shapes = (("weight", (spec.dim,)), *fields(number))
        # narrow formats are rounded already
        quantized = quantize if spec.row_format.exact else ""
        tensors.append(Tensor(f"tables/{spec.name}", spec.rows, shapes, spec.format, quantized))
    return tensors


def _sizes(comm: Comm, size: int) -> Ints:
    """`size` of every rank, i64[ranks]. Collective."""
    sizes = np.empty(comm.size, np.int64)
    comm.allgatherv(np.array([size], np.int64), sizes, np.ones(comm.size, np.int64))
    return sizes


def _add_over_ranks(counts: NDArray[np.int32], comm: Comm) -> NDArray[np.int32]:
    """Element-wise sum of all ranks' counts: each rank adds one range."""
    # each rank adds one range and tells it: 2 n numbers a rank instead of n for each peer
    cuts = np.arange(comm.size + 1, dtype=np.int64) * counts.size // comm.size
    sends = np.diff(cuts)
    size = int(cuts[comm.rank + 1] - cuts[comm.rank])
    ranges = np.empty(comm.size * size, np.int32)
    comm.alltoallv(counts, sends, ranges, np.full(comm.size, size, np.int64))
    total = np.empty(counts.size, np.int32)
    comm.allgatherv(ranges.reshape(comm.size, size).sum(axis=0, dtype=np.int32), total, sends)
    return total


def dense_fields(world: Trained) -> dict[str, dict[str, Floats]]:
    """Parameter -> its fields: views of "value" and of the dense optimizer's state."""
    states = {name: world.model.layout.views(flat) for name, flat in world.dense.state.items()}
    return {
        parameter: {"value": value, **{name: views[parameter] for name, views in states.items()}}
        for parameter, value in world.model.parameters.items()
    }


def replicated_fields(world: Trained) -> dict[str, FloatsByName]:
    """What every rank has whole: the fields of dense parameters, copies of what says where the rows
    of tables are that move, the factors of the dense optimizer, and scales of operands. Collective
    where there are such tables.
    """
    moving = {} if world.dynamic is None else world.dynamic.fields()
    return dense_fields(world) | moving | world.dense.factors | world.model.precision.state


def state_of(world: Trained, quantize: str = "") -> State:
    """The state of a run; quantize : as for `State`. Collective where towers run on their nodes,
    and where ranks share the dense optimizer's work.
    """
    if world.towers is not None:
        world.towers.gather(world.dense)
    world.dense.gather()
    optimizer = world.config.optimizer.sparse
    seed = world.config.training.seed
    tables = world.plan.tables
    return State(
        world.comm,
        replicated_fields(world),
        world.plan,
        world.embedding.tbe,
        fields=lambda table: fields_of(tables[table], optimizer),
        initial=lambda table, rows: initial_rows(tables[table], optimizer, seed, rows),
        quantize=quantize,
    )


def digest(world: Trained, step: int) -> str:
    """Digest of a run after `step` steps. Collective."""
    state = state_of(world)
    return digest_of(world.config.header(), step, state.tensors, state.index())
