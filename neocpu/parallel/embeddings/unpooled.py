"""How does every lookup get its own row, from tables that are spread over the ranks?

A lookup is a sample with a bag of one row, so everything that moves pooled vectors moves rows:

    rows i64[n] of each key  --> one column of lookups for each table, its keys one after the other
    input lookups   how many samples that makes, to every rank       -1: the lookups are refused
    input lengths, input rows, pooled output, gradients              as of `ShardedEmbedding`

Tables have different numbers of lookups; those with fewer than the most end in empty bags, so that
all travel together in one set of messages. A table's keys stand one after the other because their
gradients merge: a row is updated once in a step, whichever keys it was looked up for.

A row arrives as the exact sum of one term: as it is, with -0 as +0. The gradients of a row are
summed exactly over the terms of all ranks (`docs/arithmetic.md` §3).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import IndexRangeError
from neocpu.core.jagged import KJT
from neocpu.core.types import Floats, Ints
from neocpu.parallel.embeddings.sharded import ShardedEmbedding, StartedLookup, StartedUpdate
from neocpu.parallel.exchange.input_dist import Input
from neocpu.parallel.exchange.shapes import Shape
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.buffers import Buffers, Scalar
from neocpu.parallel.transport.started import Finished, Pause, Started, Steps
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.specs import bags

Rows = Sequence[Ints]


def keys_without_pooling(plan: Plan) -> tuple[int, ...]:
    """Positions among the keys of a batch of those that give a row for every lookup."""
    return tuple(
        position
        for position, bag in enumerate(bags(plan.tables))
        if plan.tables[bag.table].pooling == "none"
    )


def plan_of_rows(plan: Plan) -> Plan:
    """The plan as its tables without pooling see it: each has one key, others have none."""
    tables = tuple(
        # a sum of one row is that row; weights are applied at home, to the rows that arrive
        replace(table, features=(table.name,), pooling="sum", weighted=False, maps=())
        if table.pooling == "none"
        else replace(table, features=(), weighted=False, maps=())
        for table in plan.tables
    )
    return replace(plan, tables=tables)


class RowsInput(NamedTuple):
    """Lookups of one batch in place; lookups : i64[F'] of each key of this rank."""

    input: Input
    lookups: Ints


class KeyLines(NamedTuple, Generic[Scalar]):
    """Lines of a key, one for each lookup: its table among those looked up here, the first line
    among those of the table, and the lines.
    """

    table: int
    first: int
    lines: NDArray[Scalar]


class UnpooledEmbedding:
    """The tables without pooling of a plan: a row for every lookup, a term for every gradient.

    env : of all tables, of which those with pooling "none" are looked up. tbe : this rank's rows,
    of all tables of the plan.

    Attributes: `keys`, positions of the keys without pooling in a batch of the plan, in whose order
    rows and gradients are; `dims`, columns of each. All methods are collective.
    """

    def __init__(self, env: ShardingEnv, tbe: TableBatchedEmbedding) -> None:
        plan = env.plan
        self.comm = env.comm
        self.keys = keys_without_pooling(plan)
        key_tables = [bags(plan.tables)[key].table for key in self.keys]
        self.dims = tuple(plan.tables[table].dim for table in key_tables)
        self._height = [plan.tables[table].rows for table in key_tables]
        self._names = [bags(plan.tables)[key].key for key in self.keys]
        # samples are lookups here: their number differs from rank to rank, and comes with a batch
        of_rows = replace(env, plan=plan_of_rows(plan), leaves=1, first_column=0, groups=())
        self.sharded = ShardedEmbedding(of_rows, tbe)
        tables = sorted(set(key_tables))
        # position of each key's table among those looked up here
        self._column = np.array([tables.index(table) for table in key_tables], np.int64)
        widths = [plan.tables[table].dim for table in tables]
        self._first_column = np.append(0, np.cumsum(widths)).astype(np.int64)
        self._buffers = Buffers()
        self._forward: RowsInput | None = None  # waits for its backward pass
        self._backward: Input | None = None

    # ---- lookups ----

    def start(self, rows: Rows) -> Started[RowsInput]:
        """Begin to send lookups to the shards that hold their rows.

        rows : i64[n_k] for each of `keys`; -1: no row, which gives zeros and takes no gradient.
        Raises IndexRangeError on every rank, from here or from `wait`, for a row that is outside
        its table on any of them.
        """
        error = self._refusal(rows)
        if error is not None and self.comm.size == 1:
            raise error
        queue = self.sharded.all_keys.input.comm
        accepted = rows if error is None else None
        return Started(self._steps(accepted, lambda: queue.agree(error)), queue.stream)

    def _refusal(self, rows: Rows) -> IndexRangeError | None:
        """Why lookups cannot be made, or None."""
        for name, height, key_rows in zip(self._names, self._height, rows):
            outside = np.flatnonzero((key_rows < -1) | (key_rows >= height))
            if outside.size:
                lookup = int(outside[0])
                return IndexRangeError(
                    f"key {name!r}, lookup {lookup}: row {int(key_rows[lookup])} is outside "
                    f"[-1, {height})"
                )
        return None

    def _steps(self, rows: Rows | None, agree: Callable[[], None]) -> Steps[RowsInput]:
        cuts = yield from self.cuts(rows, agree)
        assert rows is not None
        return (yield from self.input(rows, cuts))

    def cuts(self, rows: Rows | None, agree: Callable[[], None]) -> Steps[Ints]:
        """The first sample of each rank and the end, i64[W+1], step by step (`Started`).

        rows : checked; None refuses them. agree : raises the error of refused lookups on every
        rank, where any has some.
        """
        ranks = self.comm.size
        samples = -1 if rows is None else int(self._table_lookups(rows).max(initial=0))
        if ranks == 1:
            if rows is None:
                agree()
            return np.array([0, samples], np.int64)
        counts = np.ones(ranks, np.int64)
        arrived = np.empty(ranks, np.int64)
        yield self.sharded.all_keys.input.comm.start_alltoallv(
            np.full(ranks, samples, np.int64),
            counts,
            arrived,
            counts,
            what="input lookups",
            table=np.ones((ranks, ranks), np.int64),
        )
        # a refusal travels with the counts, since every rank hears from every rank here
        if (arrived < 0).any():
            # all ranks have to come to this agreement, so no poll may run into it
            yield Pause()
            agree()
        return np.append(0, np.cumsum(arrived)).astype(np.int64)

    def input(self, rows: Rows, cuts: Ints) -> Steps[RowsInput]:
        """The input distribution of checked rows, step by step; cuts : of `cuts`."""
        keys = self.sharded.all_keys
        columns = self.sharded.columns
        shape = Shape(keys.ranks, self.comm.rank, cuts, columns, keys.input.heads)
        kjt = self._bags_of_one(rows, shape.samples)
        arrived = yield from keys.input.steps(kjt, shape)
        return RowsInput(arrived, np.array([key_rows.size for key_rows in rows], np.int64))

    def _table_lookups(self, rows: Rows) -> Ints:
        """Lookups of each table: i64[T']."""
        lookups = [key_rows.size for key_rows in rows]
        return np.bincount(self._column, lookups, self._first_column.size - 1).astype(np.int64)

    def _bags_of_one(self, rows: Rows, samples: int) -> KJT:
        """A KJT with a key for each table, whose sample i has the table's lookup i, if any."""
        tables = self._first_column.size - 1
        # what stays -1 is an empty bag, as a lookup of no row is one
        padded = np.full((tables, samples), -1, np.int64)
        for column, at, key_rows in self._first_lines(rows):
            padded[column, at : at + key_rows.size] = key_rows
        present = padded >= 0
        return KJT(self.sharded.keys, present.astype(np.int32), padded[present])

    def _first_lines(self, arrays: Sequence[NDArray[Scalar]]) -> Iterator[KeyLines[Scalar]]:
        """Where the lines of each key's array, one for each lookup, stand among its table's."""
        next_line = [0] * (self._first_column.size - 1)
        for table, array in zip(self._column.tolist(), arrays):
            yield KeyLines(table, next_line[table], array)
            next_line[table] += len(array)

    def know(self, coming: RowsInput) -> None:
        """`Embedding.know` of lookups that have arrived."""
        self.sharded.know(Finished(coming.input))

    def prefetch(self, coming: RowsInput) -> None:
        """`Embedding.prefetch` of lookups that have arrived."""
        self.sharded.prefetch(Finished(coming.input))

    def lookup(self, arrived: RowsInput) -> "StartedRows":
        """Look up the rows of lookups that have arrived; `send` them then."""
        self._forward = arrived
        return StartedRows(self, self.sharded.lookup(Finished(arrived.input)), arrived)

    def split(self, E: Floats, lookups: Ints) -> list[Floats]:
        """Lines of samples f32[n, columns of all tables] -> lines of lookups f32[n_k, D_k]."""
        next_line = [0] * (self._first_column.size - 1)
        pieces = []
        for column, count in zip(self._column.tolist(), lookups.tolist()):
            at = next_line[column]
            lo = self._first_column[column]
            hi = self._first_column[column + 1]
            pieces.append(np.ascontiguousarray(E[at : at + count, lo:hi]))
            next_line[column] += count
        return pieces

    # ---- gradients ----

    def start_backward(
        self, gradients: Sequence[Floats], step: int, rows: Rows | None = None
    ) -> StartedUpdate:
        """Begin to update rows from a term for each given row.

        gradients : f32[m_k, D_k] for each of `keys`. step : of the optimizer, from 1.
        rows : i64[m_k], the rows whose gradients these are, a row as often as it has terms, -1: no
        row; they must be among those of the last `lookup`. None: those that were looked up.
        """
        arrived = self._forward
        if arrived is None:
            raise RuntimeError("backward without a lookup")
        self._forward = None
        if self._backward is not None:
            self.sharded.exchange.release(self._backward)
            self._backward = None
        batch_input = arrived.input
        if rows is not None:
            # shards know the rows that were looked up, but not which of them a gradient names
            batch_input = self._backward = self.start(rows).wait().input
        samples = batch_input.shape.samples
        columns = int(self._first_column[-1])
        lines = self._buffers.matrix("gradient", samples, columns, np.float32)
        ends = [0] * (self._first_column.size - 1)
        for column, at, gradient in self._first_lines(gradients):
            lo = self._first_column[column]
            hi = self._first_column[column + 1]
            ends[column] = at + len(gradient)
            lines[at : ends[column], lo:hi] = gradient
        for column, end in enumerate(ends):
            lines[end:, self._first_column[column] : self._first_column[column + 1]] = 0
        return self.sharded.start_update(batch_input, lines, step)


class StartedRows:
    """Rows of lookups: of this rank's shards, then on their way, then at home."""

    def __init__(
        self, owner: UnpooledEmbedding, started: StartedLookup, arrived: RowsInput
    ) -> None:
        self._owner = owner
        self._started = started
        self._arrived = arrived

    def send(self) -> None:
        """Send the rows on their way. Collective."""
        self._started.send()

    def wait(self) -> None:
        """Wait until the rows are here."""
        self._started.wait()

    def finish(self) -> list[Floats]:
        """Wait for the rows: f32[n_k, D_k] for each key, valid until the next lookup's. Call it
        once.
        """
        owner = self._owner
        samples = self._arrived.input.shape.samples
        E = owner._buffers.matrix("rows", samples, owner.sharded.columns, np.float32)
        self._started.finish(E)
        return owner.split(E, self._arrived.lookups)
