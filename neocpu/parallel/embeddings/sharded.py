"""How is a set of embedding tables looked up and trained on many ranks? As if they stood on one, to
the bit.

    forward(kjt, B)   input_dist -> pooled sums of my shards -> output_dist under way
                      (the bottom MLP may run now)
    finish(E)         replicated tables into E, arriving columns into E, MEAN divided once, at home
    backward(dE, t)   MEAN divided once, at home -> gradients to the shards -> one exact update
                      per row

Where wires round what travels (`wires.py`), columns that stay at home are rounded alike.

Plan, ranks, route and threads decide where the work is done and what travels; none of them can be
seen in E or in the tables afterwards (`docs/arithmetic.md` §3; Neo).
"""

from collections.abc import Callable, Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from neocpu.core.jagged import KJT, InverseKJT
from neocpu.kernels.numbers.rounding import divide_columns
from neocpu.kernels.rows.update import clip
from neocpu.parallel.embeddings.replicas import Replicas, RowGradients, RowWords
from neocpu.parallel.embeddings.scalars import ScalarPeers
from neocpu.parallel.exchange.exchange import Exchange
from neocpu.parallel.exchange.home_rounding import HomeRounding
from neocpu.parallel.exchange.input_dist import Input
from neocpu.parallel.exchange.key_part import KeyPart
from neocpu.parallel.exchange.output_dist import Output
from neocpu.parallel.exchange.shipment import Spill
from neocpu.parallel.exchange.wire_formats import FP32, WireSpecs, refuse_cut_blocks
from neocpu.parallel.exchange.wires import WireSet
from neocpu.parallel.sharding.entries import Ints
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.rank_tables import tables_of_rank
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.started import Request, Started
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.tables.embedding.tbe import EntryLayout, Lookups, TableBatchedEmbedding
from neocpu.tables.specs.feature_groups import Groups
from neocpu.tables.specs.optimizers import SparseOptimizer

Floats = NDArray[np.float32]
# finished rows, words and further words of some entries, for `OutputDist.start_output`
Pooled = tuple[Floats, NDArray[np.float64], Spill]


class ShardedEmbedding:
    """The embedding tables of a model, spread over the ranks of `comm` as `plan` says.

    Parameters
    ----------
    plan, comm : a checked plan for `comm.size` ranks.
    optimizer, seed : update rule of all tables; rows start at their Philox values
        (`docs/arithmetic.md` §9).
    leaves : leaves of the batch tree; rank r's samples are `trees.rank_samples(r, W, B, leaves)`.
    first_column : columns of E in front of the first pooled vector (the bottom MLP's output).
    huge : tables on huge pages. memory : where tables live (None: all in memory).
    route : wires of row-split tables' words, a name in `routes.ROUTES`.
    unique_rows : whether equal rows asked of one shard travel once, a name in
        `message_sizes.UNIQUE_ROWS`.
    wires : formats in which pooled vectors and their gradients travel.
    cuts : as for `Exchange`. tbe : this rank's rows, where they are there already.
    groups : keys whose repeated bags travel and are pooled once, of `feature_groups.key_groups`.

    Attributes: `plan`, `keys` (of a batch), `columns` (of E), `tbe` (my rows; shard i is
    `plan.local(rank)[i]`). All methods are collective: every rank calls them in the same order.
    """

    def __init__(
        self,
        plan: Plan,
        comm: Comm,
        optimizer: SparseOptimizer,
        seed: int,
        leaves: int,
        first_column: int = 0,
        route: str = "direct",
        huge: bool = True,
        memory: MemoryPlan | None = None,
        unique_rows: str = "off",
        wires: WireSpecs = FP32,
        cuts: Callable[[int], Ints] | None = None,
        tbe: TableBatchedEmbedding | None = None,
        groups: Groups = (),
    ) -> None:
        refuse_cut_blocks(plan, wires)
        self.plan = plan
        self.comm = comm
        self.memory = memory
        self._limit = optimizer.max_gradient  # of E's gradient, at home: before MEANs are divided
        self.tbe = tbe or tables_of_rank(plan, comm.rank, optimizer, seed, huge, memory)
        scalars = max(len(phase.of) for phase in self.tbe.rounds)
        self._wires = WireSet.of(wires)
        self.exchange = Exchange(
            plan, comm, leaves, first_column, scalars, route, unique_rows, self._wires, cuts, groups
        )
        self.keys = tuple(bag.key for bag in self.exchange.bags)
        self.columns = self.exchange.columns
        self._mean = self.exchange.mean_columns
        self._input: Input | None = None  # waits for its backward pass
        self._last: Input | None = None
        self._buffers = Buffers()
        self._all = KeyPart(
            self.exchange.ranks,
            comm.rank,
            self.exchange.input,
            self.exchange.output,
            self.exchange.alone,
        )
        repeated = self.exchange.repeated
        self._parts = [self._all] if repeated is None else repeated.parts
        self._classes = self._all.classes
        self._home = self._all.home
        self._copies = self._all.copies
        copied = np.unique(self._copies.shard)
        self._copied = EntryLayout(copied, np.zeros(copied.size, np.int64))  # each shard once
        copies = [plan.local(comm.rank)[i] for i in copied.tolist()]
        tables = [plan.tables[shard.table] for shard in copies]
        widths = [table.dim + self.tbe.rule.counts for table in tables]
        heights = [table.rows for table in tables]
        self._replicas = Replicas(comm.queue("replicas"), heights, widths) if tables else None
        waiting = sorted({int(i) for layout in self._classes[1:3] for i in layout.shard})
        self._rounding = HomeRounding(self.exchange, self._wires, first_column)
        self._any_scalars = any(r.cuts[3] > r.cuts[1] for r in self.exchange.ranks)
        self._peers = ScalarPeers(plan, comm, waiting)

    # ---- forward ----

    def start(self, kjt: KJT | InverseKJT, batch: int) -> Started[Input]:
        """Begin the input distribution of a coming batch: `forward` takes the result in place of
        the KJT.

        `kjt`: this rank's samples of a global batch of `batch`. Any number of batches may be on
        their way. Raises IndexRangeError on every rank, from here or from `wait`.
        """
        return self.exchange.start_input(kjt, batch)

    def know(self, coming: Started[Input]) -> None:
        """Wait for the lookups of a batch whose input was started; batches become known in the
        order of their turns.

        Raises IndexRangeError on every rank.
        """
        for layout, lookups in self._lookups_of(coming.wait()):
            self.tbe.know(layout, lookups)

    def prefetch(self, coming: Started[Input]) -> None:
        """Begin to bring up the rows of a batch that is known, while others are at work."""
        for _, lookups in self._lookups_of(coming.wait()):
            self.tbe.prefetch(lookups)

    def _lookups_of(self, batch_input: Input) -> list[tuple[EntryLayout, Lookups]]:
        """The lookups of a batch in this rank's shards, with their layouts."""
        return [
            pair
            for part, lookups in zip(self._parts, batch_input.parts or (batch_input,))
            for pair in part.lookups(lookups)
        ]

    def forward(self, kjt: KJT | InverseKJT | Started[Input], batch: int) -> "StartedLookup":
        """Look up and pool; the rows are on their way home when this returns.

        Raises IndexRangeError (on every rank): a row outside [-1, rows), or malformed offsets;
        nothing was exchanged.
        """
        started = kjt if isinstance(kjt, Started) else self.start(kjt, batch)
        pooled = self.lookup(started)
        pooled.send()
        return pooled

    def lookup(self, coming: Started[Input]) -> "StartedLookup":
        """Look up and pool the rows of a batch whose input was started; `send` them then.

        Raises as `forward`.
        """
        batch_input = coming.wait()
        if self._last is not None:
            self.exchange.release(self._last)
        self._input = self._last = batch_input
        pooled = [
            None if part.alone else self._lookup(lookups, part)
            for part, lookups in zip(self._parts, batch_input.parts or (batch_input,))
        ]
        return StartedLookup(self, batch_input, pooled)

    def _lookup(self, batch_input: Input, part: KeyPart) -> Pooled:
        """Pooled rows and words of a part's entries, for `start_output`."""
        entries = part.entries
        shape = batch_input.shape
        whole = part.buffers.matrix("whole", shape.batch, entries.whole.columns, np.float32)
        words = part.buffers.matrix("parts", shape.batch, entries.parts.columns, np.float64)
        spill: Spill = []
        for i in (0, 1):
            if (lookups := batch_input.classes[i]) is not None:
                self.tbe.forward(part.classes[i], lookups, whole)
        for i, first in ((2, 0), (3, entries.cuts[3] - entries.cuts[2])):
            if (lookups := batch_input.classes[i]) is not None:
                extras = self.tbe.forward_words(part.classes[i], lookups, words)
                part.output.spill(shape, extras, first, spill)
        return whole, words, spill

    def _finish(self, batch_input: Input, outputs: Sequence[Output | None], out: Floats) -> None:
        parts = batch_input.parts or (batch_input,)
        for number, (part, lookups, output) in enumerate(zip(self._parts, parts, outputs)):
            if number == 0:
                self._finish_part(part, lookups, output, out)
                continue
            assert self.exchange.repeated is not None
            samples = lookups.shape.samples
            pooled = part.buffers.matrix("pooled", samples, out.shape[1], np.float32)
            self._finish_part(part, lookups, output, pooled)
            self.exchange.repeated.spread(number, batch_input, pooled, out)
        self._rounding.pooled(out)
        if self._mean is not None:
            divide_columns(out, batch_input.kjt.lengths, *self._mean)

    def _finish_part(
        self, part: KeyPart, batch_input: Input, output: Output | None, out: Floats
    ) -> None:
        """The columns of a part's keys into `out` f32[its samples, columns]."""
        if output is None:
            if batch_input.classes[0] is not None:
                self.tbe.forward(part.home, batch_input.classes[0], out)
            return
        if batch_input.copies is not None:
            self.tbe.forward(part.copies, batch_input.copies, out)
        output.finish(out)

    # ---- backward ----

    def backward(self, gradient: Floats, step: int) -> None:
        """Update the rows that the last `forward` looked up from dE f32[b, columns]; step >= 1."""
        update = self.start_backward(gradient, step)
        update.merge_replicas()
        update.start_replicas()
        update.update_shards()
        update.update_replicas()

    def start_backward(
        self, gradient: Floats, step: int, lookups: Input | None = None
    ) -> "StartedUpdate":
        """Begin `backward`: the gradient, of the bags of `lookups` (None: of those of the last
        `forward`), is on its way to the shards when this returns.
        """
        batch_input = lookups or self._input
        if batch_input is None:
            raise RuntimeError("backward without a forward")
        self._input = None
        prepared = self._prepared(batch_input, gradient)
        if self.exchange.repeated is not None:
            batch_input = self.exchange.repeated.whole(batch_input)
        return StartedUpdate(self, batch_input, prepared, step)

    def _prepared(self, batch_input: Input, gradient: Floats) -> Floats:
        """The gradient, clipped, and divided where bags pool by their means."""
        if self._mean is None and not self._limit:
            return gradient
        prepared = self._buffers.matrix(
            "gradient", gradient.shape[0], gradient.shape[1], np.float32
        )
        if self._limit:
            clip(gradient.reshape(-1), np.float32(self._limit), prepared.reshape(-1))
        else:
            prepared[...] = gradient
        if self._mean is not None:
            divide_columns(prepared, batch_input.kjt.lengths, *self._mean)
        return prepared

    def _share(
        self, batch_input: Input, whole: Floats, parts: Floats, step: int
    ) -> Generator[Request, None, None]:
        """Column shards: merge; then for each phase of the rule share the column trees of its row
        scalars, and apply it.
        """
        merged = {}
        rows = {}
        for i, block in ((1, whole), (2, parts)):
            if (lookups := batch_input.classes[i]) is not None:
                together = self.tbe.merge(self._classes[i], lookups, block, step)
                for shard in sorted(set(self._classes[i].shard.tolist())):
                    merged[shard] = together
                    rows[shard] = together.rows[together.first[shard] : together.last[shard]]
        for number, phase in enumerate(self.tbe.rounds):
            terms = {i: self.tbe.row_terms(merge, i, phase.of) for i, merge in merged.items()}
            scalars = {
                i: np.empty((shard_rows.size, 0), np.float32) for i, shard_rows in rows.items()
            }
            if phase.of:
                scalars = yield from self._peers.exchange(rows, terms, len(phase.of))
            for shard, numbers in scalars.items():
                self.tbe.apply(merged[shard], shard, number, numbers, step)


class StartedLookup:
    """Pooled rows of a batch: of this rank's shards, then on their way, then at home."""

    def __init__(
        self,
        owner: ShardedEmbedding,
        batch_input: Input,
        pooled: Sequence[Pooled | None],
    ) -> None:
        self._owner = owner
        self._input = batch_input
        self._pooled = pooled
        self._outputs: list[Output | None] = []

    def send(self) -> None:
        """Send the pooled rows on their way. Collective."""
        parts = self._input.parts or (self._input,)
        for part, lookups, pooled in zip(self._owner._parts, parts, self._pooled):
            sent = None if pooled is None else part.output.start_output(lookups.shape, *pooled)
            self._outputs.append(sent)

    def wait(self) -> None:
        """Wait until the rows are here."""
        for output in self._outputs:
            if output is not None:
                output.wait()

    def finish(self, out: Floats) -> tuple[()]:
        """Wait for the pooled rows and write them into the columns of E f32[b, columns] from
        `first_column` on. Call it once, before the next `forward`.
        """
        shape = (self._input.shape.samples, self._owner.columns)
        if out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(f"E is {out.dtype}{out.shape}; expected C-contiguous float32{shape}")
        self._owner._finish(self._input, self._outputs, out)
        return ()


class StartedUpdate:
    """The backward pass of a batch's tables: gradients on their way to the shards, and what is done
    with them.

    Call `merge_replicas`, `start_replicas`, `update_shards` and `update_replicas` once each, in
    this order.
    """

    def __init__(
        self, owner: ShardedEmbedding, batch_input: Input, gradient: Floats, step: int
    ) -> None:
        self._owner = owner
        self._input = batch_input
        self._gradient = owner._rounding.gradient(gradient)  # of columns that do not travel
        self._step = step
        self._words: list[RowWords] = []
        self._merged: Started[list[RowGradients]] | None = None
        self._arriving: Started[tuple[Floats, Floats]] | None = None
        if not owner.exchange.alone:
            self._arriving = owner.exchange.start_gradients(batch_input.shape, gradient)

    def wait(self) -> None:
        """Wait until the gradients of this rank's shards are here."""
        if self._arriving is not None:
            self._arriving.wait()

    def merge_replicas(self) -> None:
        """Merge the gradients of this rank's samples, for each replicated table."""
        owner = self._owner
        if owner._replicas is not None and self._input.copies is not None:
            merged = owner.tbe.merge_words(owner._copies, self._input.copies, self._gradient)
            self._words = [RowWords(*pair) for pair in merged]

    def start_replicas(self) -> "Started[list[RowGradients]] | None":
        """Begin to add the merged gradients of all ranks; None without replicated tables."""
        if self._owner._replicas is not None:
            steps = self._owner._replicas.reduce(self._words)
            self._merged = Started(steps, self._owner._replicas.comm.stream)
        return self._merged

    def update_shards(self) -> None:
        """Update the rows of this rank's shards."""
        owner = self._owner
        tbe = owner.tbe
        if self._arriving is None:
            if (lookups := self._input.classes[0]) is not None:
                tbe.backward(owner._home, lookups, self._gradient, self._step)
            return
        whole, parts = self._arriving.wait()
        for i, block in ((0, whole), (3, parts)):
            if (lookups := self._input.classes[i]) is not None:
                tbe.backward(owner._classes[i], lookups, block, self._step)
            owner.comm.poll()
        if owner._any_scalars:
            steps = owner._share(self._input, whole, parts, self._step)
            Started(steps, owner.comm.stream).wait()

    def update_replicas(self, settle: bool = True) -> None:
        """Update the rows of replicated tables; settle : are all tables of the TBE done then?"""
        owner = self._owner
        if self._merged is not None:
            owner.tbe.apply_tables(owner._copied, self._merged.wait(), self._step)
        if settle:
            owner.tbe.settle()
