"""What does one rank do with its rows? Look them up and update them, all tables in one call
(table-batched embedding, TBE).

    ShardRows    the rows of the rank's shards, their formats and states           (shard_rows.py)
    Layout       which shard each of K entries reads, where its columns go         (lookups.py)
    Lookups      bags of LOCAL rows, bag k*S + s; -1 reads nothing

Arithmetic is in `kernels/`. Shards of one format share a store, and kernels are called once for
each run of neighbours in one store. The object knows nothing of ranks: it gives finished sums
(`forward`), exact words for row-split tables (`forward_words`), the fused update (`backward`), and
the halves of an update for shards whose row scalars or gradients are summed over ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.errors import TrainingError
from neocpu.core.rules import RULES, HyperParameters, Rule
from neocpu.core.trees import Node, aligned_nodes
from neocpu.core.types import Floats, Ints
from neocpu.kernels.records import Segments, one_by_one
from neocpu.kernels.rows import update
from neocpu.tables.embedding import words
from neocpu.tables.embedding.lookups import EntryLayout, ExtraWords, Lookups, Merged, Words
from neocpu.tables.embedding.overflow import at_risk, refuse_overflow
from neocpu.tables.embedding.rows import NONE, RowStore, StepRule, runs
from neocpu.tables.embedding.shard_rows import ShardRows
from neocpu.tables.embedding.sorting import sort
from neocpu.tables.specs.optimizers import SparseOptimizer

if TYPE_CHECKING:
    from neocpu.tables.tiers.levels import Stats

# The gradient is packed where its lines are a multiple of APART bytes apart, and a line is read
# more than OFTEN times on average.
APART = 2048
OFTEN = 4


class TableBatchedEmbedding(ShardRows):
    """Lookups and updates of the rows of some shards; parameters as of `ShardRows`."""

    # ---- forward ----

    def forward(self, layout: EntryLayout, lookups: Lookups, out: Floats) -> None:
        """Pool: out f32[S, C], columns column[k] on, = the exact sum of bag k*S + s, rounded."""
        lookups = self._ready(layout, lookups)
        for store, entries, bags in self._runs(layout, lookups):
            offsets = lookups.offsets[bags]
            store_lookups = Lookups(offsets, lookups.rows, lookups.weights, lookups.samples)
            store_layout = EntryLayout(layout.shard[entries], layout.column[entries])
            store.pool(self._places, store_layout, store_lookups, out)

    def _runs(
        self, layout: EntryLayout, lookups: Lookups
    ) -> Iterator[tuple[RowStore, slice, slice]]:
        """(store, entries, offsets of their bags) for runs of entries whose shards are in one
        store.
        """
        samples = lookups.samples
        for shelf, lo, hi in runs(self._store_of[layout.shard]):
            yield self._stores[shelf], slice(lo, hi), slice(lo * samples, hi * samples + 1)

    def forward_words(self, layout: EntryLayout, lookups: Lookups, out: Words) -> ExtraWords:
        """Pool row-split shards: first words of the exact sums into out f64[S, C], the rare further
        words returned.
        """
        lookups = self._ready(layout, lookups)
        extra_words = [
            words.pool(
                store.table, self._places, layout, entries, bags, lookups, self._scratch, out
            )
            for store, entries, bags in self._runs(layout, lookups)
        ]
        return ExtraWords.concatenated(extra_words)

    def _ready(self, layout: EntryLayout, lookups: Lookups) -> Lookups:
        """Make sure that the rows are in memory; the lookups by the slots that they are in."""
        self.create(layout, lookups)
        return lookups

    # ---- backward ----

    def backward(self, layout: EntryLayout, lookups: Lookups, grad: Floats, step: int) -> None:
        """Fused update from the gradient f32[S, C] of the pooled rows; `step` counts updates from
        1, evaluation does not.

        Shards must hold whole rows, unless no phase of the rule reads row scalars. Raises
        TrainingError for the rule `none`.
        """
        gradient = self._clipped(grad)
        stride: int | Ints = grad.shape[1]
        apart = 4 * grad.shape[1]
        reads = lookups.rows.size
        if apart % APART == 0 and reads > OFTEN * layout.shard.size * lookups.samples:
            layout, gradient, stride = self._packed(layout, gradient.reshape(grad.shape))
        self._update(self._sort(layout, lookups, stride), gradient, step)

    def _packed(self, layout: EntryLayout, grad: Floats) -> tuple[EntryLayout, Floats, Ints]:
        """The gradient with the lines of an entry side by side, and where they are: apart by a
        power of two, all would fall on the same few sets of the processor's cache, which each table
        then reads many times from memory.
        """
        width = self.width[layout.shard]
        start = grad.shape[0] * (np.cumsum(width) - width)
        out = self._scratch.take("packed", grad.shape[0] * int(width.sum()), np.float32)
        update.pack(grad, layout.column, width, start, out)
        return EntryLayout(layout.shard, start), out, width

    def give_rates(self, optimizers: Sequence[SparseOptimizer]) -> None:
        """Let shard i learn with the numbers of optimizers[i], which are of one rule."""
        # shards with equal numbers share a call of a kernel; a rank without shards keeps its own
        self._optimizers = tuple(dict.fromkeys(optimizers)) or self._optimizers
        group_of = {optimizer: group for group, optimizer in enumerate(self._optimizers)}
        self._group_of = np.array([group_of[optimizer] for optimizer in optimizers], np.int64)
        self._hyper_step = None

    def scale_rates(self, factor: float) -> None:
        """Multiply the learning rates of all shards."""
        self._optimizers = tuple(optimizer.scaled(factor) for optimizer in self._optimizers)
        self._hyper_step = None

    def _hyper(self, step: int, group: int = 0) -> HyperParameters:
        """What the rule reads at `step`, worked out once for the shards of a group."""
        if self._hyper_step != step:
            self._hypers = [optimizer.hyper(step) for optimizer in self._optimizers]
            self._hyper_step = step
        return self._hypers[group]

    def _kernel_calls(self, shards: Ints) -> Iterator[tuple[int, int, int, int]]:
        """(store, group, first, last): runs of shards that one call of a kernel updates."""
        groups = len(self._optimizers)
        for shelf, lo, hi in runs(self._store_of[shards] * groups + self._group_of[shards]):
            yield *divmod(shelf, groups), lo, hi

    def _update(self, segments: Segments, gradient: Floats, step: int) -> None:
        rule = self.rule
        if not rule.updates:
            raise TrainingError(
                f"optimizer {rule.name!r} updates nothing: take the rows and values of "
                "unique_gradient"
            )
        limited = self.optimizer.max_norm > 0
        self._note(segments)
        # changes are noted by row, so before slots take the place of rows
        located = self._located(segments)
        for shelf, group, lo, hi in self._kernel_calls(segments.shards):
            self._stores[shelf].update(
                StepRule(rule, limited, self._hyper(step, group), step),
                self._row_state,
                self._places,
                located.part(lo, hi),
                segments.part(lo, hi).unique,
                gradient,
            )
        if self.refuses_overflow and at_risk(gradient, segments.weights):
            for shard, lo, hi in segments.spans():
                self._check(shard, segments.unique[lo:hi], located.unique[lo:hi], step)

    def _check(self, shard: int, rows: Ints, slots: Ints, step: int) -> None:
        """Raise TrainingError if an update made rows of a shard, in these slots, not finite."""
        first = int(self._places.row0[shard])
        refuse_overflow(self._spec(shard), first, rows, self.state(shard), slots, step)

    def _located(self, segments: Segments) -> Segments:
        """The same, with slots in place of rows that are about to change."""
        return segments

    def _slots_of(self, shard: int, rows: Ints) -> Ints:
        """Slots of local rows that `_located` has seen in this step."""
        return rows

    def _sort(self, layout: EntryLayout, lookups: Lookups, stride: int | Ints) -> Segments:
        return sort(layout, lookups, self.heights, stride, self._scratch)

    def _clipped(self, grad: Floats) -> Floats:
        """The gradient, flat, each number within max_gradient."""
        flat = grad.reshape(-1)
        limit = self.optimizer.max_gradient
        if not limit:
            return flat
        out = self._scratch.take("clipped", flat.size, np.float32)
        update.clip(flat, np.float32(limit), out)
        return out

    # ---- the halves of an update, between which row scalars are summed over column shards ----

    def merge(self, layout: EntryLayout, lookups: Lookups, grad: Floats, step: int) -> Merged:
        """Unique rows with merged gradients, prepared by the rule (which may update element
        states), no step yet.
        """
        segments = self._sort(layout, lookups, grad.shape[1])
        return self._merge(self.rule, segments, self._clipped(grad), partial(self._hyper, step))

    def merge_tables(
        self, layout: EntryLayout, gradients: Sequence[tuple[Ints, Floats]], step: int
    ) -> Merged:
        """`merge` of rows whose gradients were summed over ranks, as of `apply_tables`."""
        segments, flat = self._summed(layout, gradients)
        return self._merge(self.rule, segments, flat, partial(self._hyper, step))

    def unique_gradient(
        self, layout: EntryLayout, lookups: Lookups, grad: Floats
    ) -> dict[int, tuple[Ints, Floats]]:
        """For each shard of the layout its looked-up rows i64[U], local, ascending, and their
        merged gradients f32[U, D].

        Clipped by max_gradient first, without weight decay; nothing is updated. FBGEMM: the
        optimizer `none`.
        """
        # numbers without weight decay: the rule reads none of the others
        plain = SparseOptimizer().hyper(1)
        segments = self._sort(layout, lookups, grad.shape[1])
        merged = self._merge(RULES["none"], segments, self._clipped(grad), lambda group: plain)
        gradients = {}
        for shard, first in merged.first.items():
            last = merged.last[shard]
            numbers = merged.gradient[merged.start[first] : merged.start[last]]
            gradients[shard] = merged.rows[first:last], numbers.reshape(-1, int(self.width[shard]))
        return gradients

    def _merge(
        self,
        rule: Rule,
        segments: Segments,
        clipped: Floats,
        hyper_of: Callable[[int], HyperParameters],
    ) -> Merged:
        """`merge` of sorted lookups with their gradients f32[:], by any rule; hyper_of : what it
        reads in the shards of a group.
        """
        # what is merged waits for other ranks, and segments lie in scratch
        rows = segments.unique.copy()
        self._note(segments)
        segments = self._located(segments)
        widths = np.repeat(self.width[segments.shards], np.diff(segments.first))
        start = np.append(0, np.cumsum(widths))
        gradient = np.empty(int(start[-1]), np.float32)
        stores = self._store_of[segments.shards]
        decode = rule.updates and any(self._stores[shelf].coded for shelf in stores)
        weights = np.empty(gradient.size if decode else 0, np.float32)
        for shelf, group, lo, hi in self._kernel_calls(segments.shards):
            store = self._stores[shelf]
            located = segments.part(lo, hi)
            offsets = start[segments.first[lo] : segments.first[hi]]
            opened = store.coded and decode
            table = NONE  # nothing reads it where codes are not decoded
            if opened or not store.coded:
                table = store.open(self._places, located, offsets, weights)
            # the rule `none` has fewer states than the store has
            states = rule.element_record(*store.element_states[: len(rule.element_state)])
            update.merged(rule, opened)(
                table, states, self._places, located, clipped, hyper_of(group), offsets, gradient
            )
        spans = segments.spans()
        return Merged(
            first={shard: lo for shard, lo, _ in spans},
            last={shard: hi for shard, _, hi in spans},
            rows=rows,
            start=start,
            gradient=gradient,
            weights=weights,
            counts=np.diff(segments.starts),
        )

    def row_terms(self, merged: Merged, shard: int, of: Sequence[str]) -> dict[Node, Floats]:
        """Sums of squares of a round (`rounds[i].of`) on the aligned nodes of the column tree that
        this shard's columns cover: {(lo, size): f32[U, len(of)]}.
        """
        lo, hi = self.shards[shard].cols
        dim = int(self._places.full_width[shard])
        first = merged.first[shard]
        last = merged.last[shard]
        width = int(self.width[shard])
        elements = slice(merged.start[first], merged.start[last])
        values = {"g": merged.gradient[elements]}
        if "w" in of and self._store(shard).coded:
            values["w"] = merged.weights[elements]
        elif "w" in of:
            slots = self._slots_of(shard, merged.rows[first:last])
            values["w"] = self.state(shard)["weight"][slots].reshape(-1)
        nodes: dict[Node, Floats] = {}
        # columns up to a power of two count as +0: the last shard of a row stands for them too
        for node in aligned_nodes(lo, 1 << (dim - 1).bit_length() if hi == dim else hi):
            sums = np.empty((len(of), last - first), np.float32)
            for i, name in enumerate(of):
                update.square_nodes(values[name], width, node[0] - lo, node[1], sums[i])
            nodes[node] = np.ascontiguousarray(sums.T)
        return nodes

    def apply(
        self, merged: Merged, shard: int, round_number: int, scalars: Floats, step: int
    ) -> None:
        """A round of the update of a merged shard, given its row scalars f32[U,
        len(rounds[round_number].of)]; the lookups of its rows are known here.
        """
        first = merged.first[shard]
        last = merged.last[shard]
        store = self._store(shard)
        offsets = merged.start[first:last]
        rows = merged.rows[first:last]
        segments = one_by_one(shard, self._slots_of(shard, rows), offsets)
        if self.rounds[round_number].counts:
            scalars = np.column_stack([scalars, merged.counts[first:last].astype(np.float32)])
        stepped = update.stepped(self.rule, self.rounds[round_number].phase, store.coded)
        stepped(
            merged.weights if store.coded else store.table,
            self.rule.element_record(*store.element_states),
            self._row_state,
            self._places,
            segments,
            offsets,
            merged.gradient,
            np.ascontiguousarray(scalars).reshape(-1),
            self._hyper(step, int(self._group_of[shard])),
        )
        # codes are rounded once, after the last phase
        if round_number < len(self.rounds) - 1:
            return
        store.close(self._places, segments, offsets, merged.weights, step, rows)
        if self.refuses_overflow and at_risk(merged.gradient, NONE):
            self._check(shard, rows, segments.unique, step)

    def merge_words(
        self, layout: EntryLayout, lookups: Lookups, grad: Floats
    ) -> list[tuple[Ints, Words]]:
        """Exact merged gradients of replicated shards: for each shard of the layout, rows i64[M]
        (ascending, repeated for further words) and words f64[M, D]; f64[M, D+1] with the lookups of
        the row behind them where the rule reads these.
        """
        segments = self._sort(layout, lookups, grad.shape[1])
        merged = words.merge(segments, grad.reshape(-1), self.width)
        return words.with_counts(segments, merged) if self.rule.counts else merged

    def apply_tables(
        self, layout: EntryLayout, gradients: Sequence[tuple[Ints, Floats]], step: int
    ) -> None:
        """Update rows from merged, rounded gradients; shards as for `backward`.

        gradients : for each entry of `layout`, rows i64[U] (unique, local) and gradient f32[U, D],
        or f32[U, D+1] where the rule reads lookups (`merge_words`).
        """
        self._update(*self._summed(layout, gradients), step)

    def _summed(
        self, layout: EntryLayout, gradients: Sequence[tuple[Ints, Floats]]
    ) -> tuple[Segments, Floats]:
        """Segments of rows with summed gradients, and these, flat; the rows are there then."""
        segments, flat = words.summed(layout.shard, gradients, self.width, self.rule.counts)
        # rows that only other ranks looked up may not exist here yet
        self._ready(layout, Lookups(segments.first, segments.unique, NONE, 1))
        return segments, flat

    # ---- levels of memory: there is one; `tiered.py` has more ----

    def know(self, layout: EntryLayout, lookups: Lookups) -> None:
        """A coming batch, after those that are known, has these lookups."""

    def prefetch(self, lookups: Lookups) -> None:
        """Begin to bring up the rows of a batch that is known."""

    def settle(self) -> None:
        """The batch is done: all its updates are made."""

    def flush(self) -> None:
        """Bring every row to where `existing` and `values` see it: all are there."""

    def seal(self, note: bytes) -> Callable[[], None] | None:
        """After `flush`: the function that makes the rows on the disk durable, with a note; any
        thread may call it. None, since no row is on the disk.
        """
        return None

    def close(self) -> None:
        """Release files and threads."""
        if self.lasting is not None:
            self.lasting.close()

    @property
    def stalled(self) -> float:
        """Seconds that steps have waited for rows to be brought into memory."""
        return 0.0

    def tiers(self) -> "dict[str, list[Stats]]":
        """Counts of the levels of shards that live in several memories, by table: there is none."""
        return {}
