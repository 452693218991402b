"""How is a set of embedding tables looked up and trained on many ranks? As if they stood on one, to
the bit.

    lookup, send      pooled sums of my shards -> output_dist under way (the bottom MLP may run now)
    finish(E)         replicated tables into E, arriving columns into E, MEAN divided once, at home
    start_backward    MEAN divided once, at home -> gradients to the shards
    update_shards     one exact update per row

Where wires round what travels (`wires.py`), columns that stay at home are rounded alike.

Plan, ranks, route and threads decide where the work is done and what travels; none of them can be
seen in E or in the tables afterwards (`docs/arithmetic.md` §3; Neo).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.jagged import KJT, InverseKJT
from neocpu.core.types import Floats, Ints
from neocpu.kernels.numbers.rounding import divide_columns
from neocpu.kernels.rows.update import clip
from neocpu.parallel.embeddings.protocol import Embedding, LookupUnderWay, UpdateUnderWay
from neocpu.parallel.exchange.exchange import Exchange, HomeRounding
from neocpu.parallel.exchange.input_dist import Input
from neocpu.parallel.exchange.key_set import KeySet, LaidOut
from neocpu.parallel.exchange.output_dist import Output, PooledRows, ShardGradients
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.exchange.wire_formats import refuse_cut_blocks
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.started import Finished, Started, Steps
from neocpu.tables.embedding.lookups import EntryLayout, Lookups, Merged, Words
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.specs import TableSpecs

if TYPE_CHECKING:
    from neocpu.parallel.embeddings.replicas import Replicas, RowGradients
    from neocpu.parallel.embeddings.scalars import ScalarPeers
    from neocpu.tables.embedding.lookups import RowTerms


def each_once(shards: Ints) -> EntryLayout:
    """The layout of gradients that are by shard already."""
    return EntryLayout(shards, np.zeros(shards.size, np.int64))


class ShardedEmbedding(Embedding[Input]):
    """The pooled tables of a model, spread over the ranks as the plan says.

    tbe : this rank's rows, where they are there already. everybody : all ranks that have copies of
    replicated tables (None: those of `env`).
    """

    def __init__(
        self,
        env: ShardingEnv,
        tbe: TableBatchedEmbedding | None = None,
        everybody: Comm | None = None,
    ) -> None:
        plan = env.plan
        comm = env.comm
        # before tables take memory
        refuse_cut_blocks(plan, env.wires)
        self.env = env
        self.tbe = tbe or env.rank_tables()
        self.exchange = Exchange(env, max(len(phase.of) for phase in self.tbe.rounds))
        self.keys = tuple(bag.key for bag in self.exchange.bags)
        self.columns = self.exchange.columns
        self._mean = self.exchange.mean_columns
        self._input: Input | None = None  # waits for its backward pass
        self._last: Input | None = None
        self._buffers = Buffers()
        self.all_keys = self.exchange.all_keys
        repeated = self.exchange.repeated
        self._key_sets = [self.all_keys] if repeated is None else repeated.key_sets
        copied = np.unique(self.all_keys.copies.shard)
        self._copied = each_once(copied)
        copies = [plan.local(comm.rank)[i] for i in copied.tolist()]
        tables = [plan.tables[shard.table] for shard in copies]
        self._replicas = self._replica_exchange(everybody or comm, tables) if tables else None
        self._rounding = HomeRounding(self.exchange)
        # of any rank: the exchange of row scalars is collective
        self._any_scalars = any(entries.any_scalars for entries in self.exchange.ranks)
        self._peers = self._scalar_peers() if self._any_scalars else None

    def _scalar_peers(self) -> "ScalarPeers":
        """The exchange of numbers of whole rows among column shards."""
        from neocpu.parallel.embeddings.scalars import ScalarPeers

        return ScalarPeers(self.env.plan, self.env.comm, self._shards(with_scalars=True).tolist())

    def _shards(self, with_scalars: bool) -> Ints:
        """This rank's shards, ascending, but those of replicated tables: the ones whose update
        waits for row scalars, or the ones that need none.
        """
        layouts = self.all_keys.layouts
        whole, row_split = (layouts.of(whole, with_scalars) for whole in (True, False))
        return np.union1d(whole.shard, row_split.shard)

    def _replica_exchange(self, comm: Comm, tables: TableSpecs) -> "Replicas":
        """The exchange of the gradients of replicated tables."""
        from neocpu.parallel.embeddings.replicas import Replicas

        # a rule that reads how often a row was looked up has that number behind its gradient
        widths = [table.dim + self.tbe.rule.counts for table in tables]
        heights = [table.rows for table in tables]
        # on a queue of its own, beside the gradients of other tables
        return Replicas(comm.queue("replicas"), heights, widths)

    # ---- forward ----

    def start(self, kjt: KJT | InverseKJT, batch: int) -> Started[Input]:
        return self.exchange.start_input(kjt, batch)

    def know(self, coming: Started[Input]) -> None:
        for layout, lookups in self._lookups_of(coming.wait()):
            self.tbe.know(layout, lookups)

    def prefetch(self, coming: Started[Input]) -> None:
        for _, lookups in self._lookups_of(coming.wait()):
            self.tbe.prefetch(lookups)

    def _lookups_of(self, batch_input: Input) -> list[LaidOut]:
        """The lookups of a batch in this rank's shards, with their layouts."""
        return [
            pair
            for keys, lookups in self._by_key_set(batch_input)
            for pair in keys.lookups(lookups)
        ]

    def _by_key_set(self, batch_input: Input) -> list[tuple[KeySet, Input]]:
        """The lookups of each key set."""
        return list(zip(self._key_sets, batch_input.key_sets or (batch_input,)))

    def lookup(self, coming: Started[Input]) -> "StartedLookup":
        batch_input = coming.wait()
        if self._last is not None:
            # until now its backward pass may have read its lookups
            self.exchange.release(self._last)
        self._input = self._last = batch_input
        pooled = [
            None if keys.alone else self.pool(lookups, keys)
            for keys, lookups in self._by_key_set(batch_input)
        ]
        return StartedLookup(self, batch_input, pooled)

    def pool(self, batch_input: Input, keys: KeySet) -> PooledRows:
        """Pooled rows of the entries of some keys in this rank's shards."""
        entries = keys.entries
        spans = entries.spans
        layouts = keys.layouts
        classes = batch_input.classes
        shape = batch_input.shape
        whole = keys.buffers.matrix("whole", shape.batch, entries.whole.columns, np.float32)
        words = keys.buffers.matrix("words", shape.batch, entries.row_split.columns, np.float64)
        pooled = PooledRows(whole, words, [])
        if classes.whole is not None:
            self.tbe.forward(layouts.whole, classes.whole, whole)
        if classes.whole_with_scalars is not None:
            self.tbe.forward(layouts.whole_with_scalars, classes.whole_with_scalars, whole)
        if classes.row_split_with_scalars is not None:
            extras = self.tbe.forward_words(
                layouts.row_split_with_scalars, classes.row_split_with_scalars, words
            )
            keys.output.spill(shape, extras, 0, pooled.spill)
        if classes.row_split is not None:
            extras = self.tbe.forward_words(layouts.row_split, classes.row_split, words)
            entries_before = spans.row_split.start - spans.row_split_with_scalars.start
            keys.output.spill(shape, extras, entries_before, pooled.spill)
        return pooled

    def _finish(self, batch_input: Input, outputs: Sequence[Output | None], out: Floats) -> None:
        for number, (keys, lookups) in enumerate(self._by_key_set(batch_input)):
            # keys without a group are pooled sample by sample already
            if number == 0:
                self._finish_keys(keys, lookups, outputs[number], out)
                continue
            assert self.exchange.repeated is not None
            samples = lookups.shape.samples
            # the whole width of E, so that layouts of entries are those of all keys
            pooled = keys.buffers.matrix("pooled", samples, out.shape[1], np.float32)
            self._finish_keys(keys, lookups, outputs[number], pooled)
            self.exchange.repeated.spread(number, batch_input, pooled, out)
        # before a MEAN's division, as a wire that carries the sum does (docs/arithmetic.md §13)
        self._rounding.pooled(out)
        if self._mean is not None:
            divide_columns(out, batch_input.kjt.lengths, *self._mean)

    def _finish_keys(
        self, keys: KeySet, batch_input: Input, output: Output | None, out: Floats
    ) -> None:
        """The columns of some keys into `out` f32[their samples, columns]."""
        if output is None:
            if batch_input.classes.whole is not None:
                self.tbe.forward(keys.layouts.whole, batch_input.classes.whole, out)
            return
        if batch_input.copies is not None:
            self.tbe.forward(keys.copies, batch_input.copies, out)
        output.finish(out)

    # ---- backward ----

    def start_backward(
        self, gradient: Floats, step: int, terms: Sequence["RowTerms"] = ()
    ) -> "StartedUpdate":
        if self._input is None:
            raise RuntimeError("backward without a forward")
        return self.start_update(self._input, gradient, step)

    def start_update(self, batch_input: Input, gradient: Floats, step: int) -> "StartedUpdate":
        """`start_backward` from the gradient of the bags of `batch_input`, which need not be those
        of the last `lookup`.
        """
        self._input = None
        prepared = self._prepared(batch_input, gradient)
        if self.exchange.repeated is not None:
            batch_input = self.exchange.repeated.expanded(batch_input)
        return StartedUpdate(self, batch_input, prepared, step)

    def _prepared(self, batch_input: Input, gradient: Floats) -> Floats:
        """The gradient, clipped, and divided where bags pool by their means."""
        limit = self.env.optimizer.max_gradient
        if self._mean is None and not limit:
            return gradient
        prepared = self._buffers.matrix(
            "gradient", gradient.shape[0], gradient.shape[1], np.float32
        )
        # each sample's own gradient is limited, before a MEAN divides it or rows merge it
        if limit:
            clip(gradient.reshape(-1), np.float32(limit), prepared.reshape(-1))
        else:
            prepared[...] = gradient
        if self._mean is not None:
            divide_columns(prepared, batch_input.kjt.lengths, *self._mean)
        return prepared

    def update_shards(self, batch_input: Input, gradients: ShardGradients, step: int) -> None:
        """Update the rows of this rank's shards. Collective."""
        for layout, lookups, gradient in self.terms(batch_input, gradients, with_scalars=False):
            self.tbe.backward(layout, lookups, gradient, step)
            # an update of many rows takes long, and MPI moves bytes only when it is called
            self.env.comm.poll()
        if self._any_scalars:
            merged = {}
            for terms in self.terms(batch_input, gradients, with_scalars=True):
                merge = self.tbe.merge(*terms, step)
                merged.update(dict.fromkeys(merge.first, merge))
            Started(self._rounds(merged, step), self.env.comm.stream).wait()

    def terms(
        self, batch_input: Input, gradients: ShardGradients, with_scalars: bool
    ) -> Iterator[tuple[EntryLayout, Lookups, Floats]]:
        """Lookups in this rank's shards with their gradients, class by class; with_scalars : of
        shards whose update waits for row scalars, or of those that need none.
        """
        for whole, gradient in ((True, gradients.whole), (False, gradients.row_split)):
            lookups = batch_input.classes.of(whole, with_scalars)
            if lookups is not None:
                yield self.all_keys.layouts.of(whole, with_scalars), lookups, gradient

    def _rounds(self, merged: Mapping[int, Merged], step: int) -> Steps[None]:
        """Column shards: for each phase of the rule share the column trees of its row scalars, and
        apply it. merged : gradients, by shard.
        """
        rows = {i: merge.rows[merge.first[i] : merge.last[i]] for i, merge in merged.items()}
        for number, phase in enumerate(self.tbe.rounds):
            terms = {i: self.tbe.row_terms(merge, i, phase.of) for i, merge in merged.items()}
            scalars = {
                i: np.empty((shard_rows.size, 0), np.float32) for i, shard_rows in rows.items()
            }
            if phase.of:
                assert self._peers is not None
                scalars = yield from self._peers.exchange(rows, terms, len(phase.of))
            for shard, numbers in scalars.items():
                self.tbe.apply(merged[shard], shard, number, numbers, step)

    def merge_copies(self, batch_input: Input, gradient: Floats) -> list[tuple[Ints, Words]]:
        """Merged gradients of this rank's samples, for each replicated table."""
        if self._replicas is None or batch_input.copies is None:
            return []
        return self.tbe.merge_words(self.all_keys.copies, batch_input.copies, gradient)

    def start_replicas(
        self, merged: Sequence[tuple[Ints, Words]]
    ) -> "Started[list[RowGradients]] | None":
        """Begin to add the merged gradients of all ranks; None without replicated tables."""
        if self._replicas is None:
            return None
        return Started(self._replicas.reduce(merged), self._replicas.comm.stream)

    def update_copies(self, summed: "Sequence[RowGradients]", step: int) -> None:
        """Update the rows of replicated tables."""
        self.tbe.apply_tables(self._copied, summed, step)


class StartedLookup(LookupUnderWay):
    """Pooled rows of a batch."""

    def __init__(
        self, owner: ShardedEmbedding, batch_input: Input, pooled: Sequence[PooledRows | None]
    ) -> None:
        self._owner = owner
        self._input = batch_input
        self._pooled = pooled
        self._outputs: list[Output | None] = []

    def send(self) -> None:
        by_key_set = self._owner._by_key_set(self._input)
        for (keys, lookups), pooled in zip(by_key_set, self._pooled):
            sent = None if pooled is None else keys.output.start_output(lookups.shape, pooled)
            self._outputs.append(sent)

    def wait(self) -> None:
        for output in self._outputs:
            if output is not None:
                output.wait()

    def finish(self, out: Floats) -> tuple[()]:
        shape = (self._input.shape.samples, self._owner.columns)
        if out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(f"E is {out.dtype}{out.shape}; expected C-contiguous float32{shape}")
        self._owner._finish(self._input, self._outputs, out)
        return ()


class StartedUpdate(UpdateUnderWay):
    """The backward pass of pooled tables."""

    def __init__(
        self, owner: ShardedEmbedding, batch_input: Input, gradient: Floats, step: int
    ) -> None:
        self._owner = owner
        self._input = batch_input
        self._gradient = owner._rounding.gradient(gradient)  # of columns that do not travel
        self._step = step
        self._words: list[tuple[Ints, Words]] = []
        self._summed: Started[list[RowGradients]] | None = None
        # alone, they are where the shard's columns are in E already
        self._arriving: Started[ShardGradients] = (
            Finished(ShardGradients(self._gradient, self._gradient))
            if owner.exchange.alone
            else owner.exchange.start_gradients(batch_input.shape, gradient)
        )

    def wait(self) -> None:
        self._arriving.wait()

    def merge_replicas(self) -> None:
        self._words = self._owner.merge_copies(self._input, self._gradient)

    def start_replicas(self) -> "Started[list[RowGradients]] | None":
        self._summed = self._owner.start_replicas(self._words)
        return self._summed

    def update_shards(self) -> None:
        self._owner.update_shards(self._input, self._arriving.wait(), self._step)

    def update_replicas(self, settle: bool = True) -> None:
        """Update the rows of replicated tables; settle : are all tables of the TBE done then?"""
        owner = self._owner
        if self._summed is not None:
            owner.update_copies(self._summed.wait(), self._step)
        if settle:
            owner.tbe.settle()
