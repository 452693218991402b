"""What does one rank do with its rows? Look them up and update them, all tables in one call
(table-batched embedding, TBE).

    shards     rectangles of tables: rows lo:hi, columns lo:hi            one flat arena: shard h starts at base[h]
    Layout     which shard each of K entries reads, where its columns go                       (lookups.py)
    Lookups    bags of LOCAL rows, bag k*S + s; -1 reads nothing

The object owns memory and order; arithmetic is in `kernels/`, and formats of rows are in `rows.py`:
shards of one format share a store, and kernels are called once for each run of neighbours in one
store. It knows nothing of ranks: finished sums (`forward`), exact words for row-split tables
(`forward_words`), the fused update (`backward`), and its halves for shards that must first hear
from others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding import words
from neocpu.embedding.changes import Changes
from neocpu.embedding.lookups import (
    EntryLayout,
    ExtraWords,
    Floats,
    Ints,
    Lookups,
    Merged,
    Rectangle,
    Words,
)
from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.embedding.rows import NONE, Places, RowStore, one_by_one, part, runs
from neocpu.embedding.shelves import allocate, shelve
from neocpu.embedding.sorting import Scratch, Segments, cut, sort
from neocpu.embedding.specs import TableSpec
from neocpu.errors import TrainingError
from neocpu.kernels import touch, update
from neocpu.kernels.philox import uniform_rows
from neocpu.reference.philox import INIT, STOCHASTIC_ROUNDING, tensor_key
from neocpu.trees import Node, aligned_nodes

__all__ = ["EntryLayout", "ExtraWords", "Lookups", "Merged", "TableBatchedEmbedding"]
# a shard of at least LARGE rows is made whole once a MANYth of them exist
MANY = 4
LARGE = 4096
# the gradient is packed where its lines are multiples of so many bytes apart, and read so often
APART = 2048
OFTEN = 4
PIECE = 1 << 16  # rows whose initial values are made at a time, where they must be rounded


class TableBatchedEmbedding:
    """The rows of some shards, with their optimizer state.

    Parameters
    ----------
    tables, shards : specs, and rectangles of them; shard i of every method is shards[i].
    optimizer, seed : update rule; the seed of initial values.
    budget : bytes that rows and states may take (0: no limit). Raises TrainingError where they do
        not fit.
    huge : ask for huge pages: faster, but then a touched row may cost two mebibytes.
    slots : rows of every shard that there is room for, i64[H]; None: all. Who gives fewer says
        which are there (`tiered.py`).
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        shards: Iterable[Rectangle],
        optimizer: SparseOptimizer,
        seed: int,
        budget: int = 0,
        huge: bool = True,
        slots: Ints | None = None,
    ) -> None:
        self.tables = tuple(tables)
        self.shards = tuple(shards)
        self.optimizer = optimizer
        self.rule = optimizer.rule
        self.rounds = optimizer.rounds
        heights = np.array([s.rows[1] - s.rows[0] for s in self.shards], np.int64)
        self.width = np.array([s.cols[1] - s.cols[0] for s in self.shards], np.int64)
        self.heights = heights
        self.full_width = np.array([tables[s.table].dim for s in self.shards], np.int64)
        self.slots = heights if slots is None else slots
        self.row_base = np.cumsum(self.slots) - self.slots
        specs = [tables[s.table] for s in self.shards]
        self._store, self.base, kinds, elements = shelve(specs, self.slots * self.width)
        self.row0 = np.array([s.rows[0] for s in self.shards], np.int64)
        self.column0 = np.array([s.cols[0] for s in self.shards], np.int64)
        self.key, random = (
            np.array([tensor_key(seed, purpose, t.name) for t in specs], np.uint64)
            for purpose in (INIT, STOCHASTIC_ROUNDING)
        )
        self.scale = np.array(
            [1.0 / np.sqrt(np.float64(t.rows)) for t in specs], np.float64
        ).astype(np.float32)
        self._places = Places(
            self.base, self.width, self.full_width, self.row_base, self.row0, self.column0, random
        )
        self._allocate(kinds, elements, int(self.slots.sum()), budget, huge)
        self._made = np.zeros(len(self.shards), np.int64)
        self._scratch = Scratch()
        self._plain = SparseOptimizer().hyper(1)
        self.changes = Changes([*map(self.touched, range(len(self.shards)))])

    def _allocate(
        self,
        kinds: Sequence[TableSpec],
        elements: Sequence[int],
        rows: int,
        budget: int,
        huge: bool,
    ) -> None:
        per_element = len(self.rule.element_state)
        per_row = len(self.rule.row_state)
        # row states of a row side by side; which rows exist
        other = [(rows * per_row, "f4"), (rows, "u1")]
        self._stores, (self._row_state, self._touched) = allocate(
            kinds, elements, per_element, other, budget, huge
        )
        start = np.float32(self.optimizer.initial_accumulator_value)
        zero = np.float32(0)
        first, second = [
            start if n == self.rule.accumulator else zero
            for n in (*self.rule.element_state, "", "")
        ][:2]
        self._starts = (first, second)
        self._row_start = np.array(
            [start if n == self.rule.accumulator else 0 for n in self.rule.row_state], np.float32
        )

    # ---- forward ----

    def forward(self, layout: EntryLayout, lookups: Lookups, out: Floats) -> None:
        """Pool: out f32[S, C], columns column[k] on, = the exact sum of bag k*S + s, rounded once."""
        lookups = self._ready(layout, lookups)
        for store, entries, bags in self._runs(layout, lookups):
            mine = Lookups(lookups.offsets[bags], lookups.rows, lookups.weights, lookups.samples)
            store.pool(
                self._places, EntryLayout(layout.shard[entries], layout.column[entries]), mine, out
            )

    def _runs(
        self, layout: EntryLayout, lookups: Lookups
    ) -> Iterator[tuple[RowStore, slice, slice]]:
        """(store, entries, offsets of their bags) for runs of entries whose shards are in one
        store.
        """
        for store, lo, hi in runs(self._store[layout.shard]):
            yield (
                self._stores[store],
                slice(lo, hi),
                slice(lo * lookups.samples, hi * lookups.samples + 1),
            )

    def forward_words(self, layout: EntryLayout, lookups: Lookups, out: Words) -> ExtraWords:
        """Pool row-split shards: first words of the exact sums into out f64[S, C], the rare further
        words returned.
        """
        lookups = self._ready(layout, lookups)
        found = [
            words.pool(
                store.table, self._places, layout, entries, bags, lookups, self._scratch, out
            )
            for store, entries, bags in self._runs(layout, lookups)
        ]
        return ExtraWords.together(found)

    def _ready(self, layout: EntryLayout, lookups: Lookups) -> Lookups:
        """See to it that the rows are there; the lookups by the slots that they are in."""
        self.create(layout, lookups)
        return lookups

    def create(self, layout: EntryLayout, lookups: Lookups) -> None:
        """Make the rows that do not exist yet; nothing is looked at in shards all of whose rows
        exist.
        """
        if (self._made[layout.shard] == self.slots[layout.shard]).all():
            return
        chunks = cut(layout, lookups)
        owner = chunks.shards[chunks.owner]
        origin = np.where(self._made[owner] < self.slots[owner], self.row_base[owner], -1)
        fresh = self._scratch.take("fresh", lookups.rows.size)
        count = np.zeros(owner.size, np.int64)
        touch.find_untouched(lookups.rows, chunks.start, origin, self._touched, fresh, count)
        if count.any():
            self._make(fresh[: touch.claim_rows(chunks.start, count, self._touched, fresh)])
            self._complete()

    def _complete(self) -> None:
        """Make all rows of large shards of which many exist: their pages are in use already, and
        nobody looks again.
        """
        many = (self._made >= self.slots / MANY) & (self._made < self.slots) & (self.slots >= LARGE)
        for shard in np.flatnonzero(many).tolist():
            touched = self.touched(shard)
            rows = np.flatnonzero(touched == 0)
            touched[rows] = 1
            self._make(rows + self.row_base[shard])

    def _make(self, fresh: Ints) -> None:
        fresh = np.sort(fresh, kind="stable")
        first = np.searchsorted(fresh, np.append(self.row_base, self._touched.size)).tolist()
        places = self.row_base, self.base, self.width, self.row0, self.column0, self.key, self.scale
        for number, lo, hi in runs(self._store):
            store = self._stores[number]
            rows = fresh[first[lo] : first[hi]]
            if rows.size and not store.coded:
                memory = store.table, store.state0, store.state1, self._row_state
                touch.make_rows(rows, *places, *self._starts, self._row_start, *memory)
            for shard in range(lo, hi if rows.size and store.coded else lo):
                local = fresh[first[shard] : first[shard + 1]] - self.row_base[shard]
                for at in range(0, local.size, PIECE):
                    self._set(
                        shard, local[at : at + PIECE], self._start(shard, local[at : at + PIECE])
                    )
        self._made += np.diff(first)

    # ---- backward ----

    def backward(self, layout: EntryLayout, lookups: Lookups, grad: Floats, step: int) -> None:
        """Fused update from the gradient f32[S, C] of the pooled rows; `step` counts updates from
        1, evaluation does not.

        Shards must hold whole rows, unless no phase of the rule reads row scalars. Raises
        TrainingError for the rule `none`.
        """
        gradient = self._clipped(grad)
        stride = grad.shape[1]
        if (
            4 * stride % APART == 0
            and lookups.rows.size > OFTEN * layout.shard.size * lookups.samples
        ):
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

    def _update(self, found: Segments, gradient: Floats, step: int) -> None:
        rule = self.rule
        limited = self.optimizer.max_norm > 0
        if not rule.updates:
            raise TrainingError(
                f"optimizer {rule.name!r} updates nothing: take the rows and values of "
                "unique_gradient"
            )
        hyper = self.optimizer.hyper(step)
        rows = found.unique
        found = self._located(self.changes.note(found))
        for store, lo, hi in runs(self._store[found.shards]):
            mine = part(found, lo, hi)
            those = rows[found.first[lo] : found.first[hi]]
            self._stores[store].update(
                rule, limited, self._row_state, self._places, mine, gradient, hyper, step, those
            )

    def _located(self, found: Segments) -> Segments:
        """The same, with slots in place of rows that are about to change."""
        return found

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

    # ---- the halves, for shards that must first hear from others, or whose gradient is all that is wanted ----

    def merge(self, layout: EntryLayout, lookups: Lookups, grad: Floats, step: int) -> Merged:
        """Unique rows with merged gradients, prepared by the rule (which may update element
        states), no step yet.
        """
        return self._merge(self.rule.name, layout, lookups, grad, self.optimizer.hyper(step))

    def unique_gradient(
        self, layout: EntryLayout, lookups: Lookups, grad: Floats
    ) -> dict[int, tuple[Ints, Floats]]:
        """For each shard of the layout its looked-up rows i64[U], local, ascending, and their
        merged gradients f32[U, D].

        Clipped by max_gradient first, without weight decay; nothing is updated. FBGEMM: the
        optimizer `none`.
        """
        found = self._merge("none", layout, lookups, grad, self._plain)
        return {
            shard: (
                found.rows[first : found.last[shard]],
                found.gradient[found.start[first] : found.start[found.last[shard]]].reshape(
                    -1, int(self.width[shard])
                ),
            )
            for shard, first in found.first.items()
        }

    def _merge(
        self, name: str, layout: EntryLayout, lookups: Lookups, grad: Floats, hyper: Floats
    ) -> Merged:
        found = self._sort(layout, lookups, grad.shape[1])
        rows = found.unique.copy()
        found = self._located(self.changes.note(found))
        start = np.append(0, np.cumsum(np.repeat(self.width[found.shards], np.diff(found.first))))
        gradient = np.empty(int(start[-1]), np.float32)
        clipped = self._clipped(grad)
        of = self._store[found.shards]
        keep = name != "none" and any(self._stores[store].coded for store in of)
        weights = np.empty(gradient.size if keep else 0, np.float32)
        for number, lo, hi in runs(of):
            store = self._stores[number]
            mine = part(found, lo, hi)
            to = start[found.first[lo] : found.first[hi]]
            opened = store.coded and keep
            table = (
                store.open(self._places, mine, to, weights) if opened or not store.coded else NONE
            )
            update.merged(name, opened)(
                table,
                store.state0,
                store.state1,
                self.base,
                self.width,
                *mine,
                clipped,
                hyper,
                to,
                gradient,
            )
        first, last = ({span[0]: span[end] for span in found.spans()} for end in (1, 2))
        return Merged(first, last, rows, start, gradient, weights)

    def row_terms(self, merged: Merged, shard: int, of: Sequence[str]) -> dict[Node, Floats]:
        """Sums of squares of a round (`rounds[i].of`) on the aligned nodes of the column tree that
        this shard's columns cover: {(lo, size): f32[U, len(of)]}.
        """
        lo, hi = self.shards[shard].cols
        dim = int(self.full_width[shard])
        first = merged.first[shard]
        last = merged.last[shard]
        width = int(self.width[shard])
        values = {"g": merged.gradient[merged.start[first] : merged.start[last]]}
        if "w" in of and self._stores[self._store[shard]].coded:
            values["w"] = merged.weights[merged.start[first] : merged.start[last]]
        elif "w" in of:
            slots = self._slots_of(shard, merged.rows[first:last])
            values["w"] = self.state(shard)["weight"][slots].reshape(-1)
        nodes: dict[Node, Floats] = {}
        for node in aligned_nodes(lo, 1 << (dim - 1).bit_length() if hi == dim else hi):
            sums = np.empty((len(of), last - first), np.float32)
            for i, name in enumerate(of):
                update.square_nodes(values[name], width, node[0] - lo, node[1], sums[i])
            nodes[node] = np.ascontiguousarray(sums.T)
        return nodes

    def apply(self, merged: Merged, shard: int, number: int, scalars: Floats, step: int) -> None:
        """Round `number` of the update of a merged shard, given its row scalars f32[U,
        len(rounds[number].of)].
        """
        first = merged.first[shard]
        last = merged.last[shard]
        store = self._stores[self._store[shard]]
        to = merged.start[first:last]
        rows = one_by_one(shard, self._slots_of(shard, merged.rows[first:last]), to)
        memory = (
            merged.weights if store.coded else store.table,
            store.state0,
            store.state1,
            self._row_state,
        )
        which = (
            rows.shards,
            rows.first,
            rows.unique,
            to,
            merged.gradient,
            np.ascontiguousarray(scalars).reshape(-1),
        )
        stepped = update.stepped(self.rounds[number].phase, len(self.rule.row_state), store.coded)
        stepped(*memory, *self._places.where, *which, self.optimizer.hyper(step))
        if number == len(self.rounds) - 1:
            store.close(self._places, rows, to, merged.weights, step, merged.rows[first:last])

    def merge_words(
        self, layout: EntryLayout, lookups: Lookups, grad: Floats
    ) -> list[tuple[Ints, Words]]:
        """Exact merged gradients of replicated shards: for each shard of the layout, rows i64[M]
        (ascending, repeated for further words) and words f64[M, D].
        """
        found = self._sort(layout, lookups, grad.shape[1])
        return words.merge(found, grad.reshape(-1), self.width)

    def apply_rows(self, shard: int, rows: Ints, gradient: Floats, step: int) -> None:
        """Update rows i64[U] (unique, local) of a whole-width shard from merged, rounded gradients
        f32[U, D].
        """
        layout = EntryLayout(np.array([shard]), np.zeros(1, np.int64))
        self._ready(layout, Lookups(np.array([0, rows.size]), rows, NONE, 1))
        place = np.arange(rows.size, dtype=np.int64) * gradient.shape[1]
        self._update(
            one_by_one(shard, rows, place), np.ascontiguousarray(gradient).reshape(-1), step
        )

    # ---- state ----

    def state(self, shard: int) -> dict[str, Floats]:
        """Views of a shard's slots: "weight" f32[slots, width], element states likewise, row states
        f32[slots], strided.

        The weights of a shard of codes are decoded where they are asked for, `weight[rows]`; they
        are no view.
        """
        height = int(self.slots[shard])
        row = int(self.row_base[shard])
        store = self._stores[self._store[shard]]
        found = {"weight": store.numbers(self._places, shard, height)}
        found |= zip(self.rule.element_state, store.states(self._places, shard, height))
        for i, name in enumerate(self.rule.row_state):
            found[name] = self._row_state.reshape(-1, len(self.rule.row_state))[
                row : row + height, i
            ]
        return found

    def touched(self, shard: int) -> NDArray[np.uint8]:
        """Which slots of a shard have a row: u8[slots]."""
        row = int(self.row_base[shard])
        return self._touched[row : row + int(self.slots[shard])]

    def know(self, layout: EntryLayout, lookups: Lookups) -> None:
        """A coming batch, after those known, will ask for these lookups."""

    def prefetch(self, lookups: Lookups) -> None:
        """Begin to bring up the rows of a batch that is known."""

    def settle(self) -> None:
        """The batch is done: all its updates are made."""

    def flush(self) -> None:
        """Every row to where `existing` and `values` see it: all are."""

    def seal(self, note: bytes) -> Callable[[], None] | None:
        """After `flush`: what makes the rows that are on the disk now, and a note, last; any thread
        may call it. None are.
        """
        return None

    def close(self) -> None:
        """Give back what a run needs no more: nothing."""

    @property
    def stalled(self) -> float:
        """Seconds that steps waited for rows to come up."""
        return 0.0

    def tiers(self) -> dict[str, list[dict[str, Any]]]:
        """Counts of the levels of shards that live in several memories, by table: there is none."""
        return {}

    def existing(self, shard: int, lo: int, hi: int) -> Ints:
        """Local rows lo <= i64[n] < hi of a shard that exist, ascending."""
        return np.flatnonzero(self.touched(shard)[lo:hi]) + lo

    def values(self, shard: int, rows: Ints) -> dict[str, Floats]:
        """Values of rows i64[n] that exist, as `state` names them."""
        return {name: values[rows] for name, values in self.state(shard).items()}

    def initial(self, shard: int, rows: Ints) -> dict[str, Floats]:
        """Initial values of local rows i64[n]: as `state`, n rows."""
        found = self._start(shard, rows)
        return found | {"weight": self._stores[self._store[shard]].rounded(found["weight"])}

    def _start(self, shard: int, rows: Ints) -> dict[str, Floats]:
        """Initial values before they are rounded to the format of the shard."""
        width = int(self.width[shard])
        weight = np.empty((rows.size, width), np.float32)
        uniform_rows(
            self.key[shard], self.row0[shard] + rows, self.column0[shard], self.scale[shard], weight
        )
        found: dict[str, Floats] = {"weight": weight}
        for name, start in zip(self.rule.element_state, self._starts):
            found[name] = np.full((rows.size, width), start, np.float32)
        for name, start in zip(self.rule.row_state, self._row_start):
            found[name] = np.full(rows.size, start, np.float32)
        return found

    def load_rows(self, shard: int, rows: Ints, values: Mapping[str, Any]) -> None:
        """Set local rows i64[n] and their states (as `state` names them); the rows exist from now
        on.

        Raises TrainingError for a weight that the format of the table does not have.
        """
        touched = self.touched(shard)
        self._set(shard, rows, values)
        self._made[shard] += int((touched[rows] == 0).sum())
        touched[rows] = 1
        if self._stores[self._store[shard]].coded and "weight" in values:
            self._check_loaded(shard, rows, values["weight"], rows)

    def _set(self, shard: int, rows: Ints, values: Mapping[str, Any]) -> None:
        state = self.state(shard)
        for name, array in values.items():
            if name == "weight":
                height = int(self.slots[shard])
                self._stores[self._store[shard]].write(self._places, shard, height, rows, array)
            else:
                state[name][rows] = array

    def _check_loaded(self, shard: int, slots: Ints, given: Floats, rows: Ints) -> None:
        kept = self.state(shard)["weight"][slots]
        given = np.ascontiguousarray(given, np.float32)
        moved = np.argwhere(
            (kept.view(np.uint32) != given.view(np.uint32)) & ~(np.isnan(kept) & np.isnan(given))
        )
        if moved.size:
            i, c = moved[0]
            table = self.tables[self.shards[shard].table]
            row = int(self.row0[shard] + rows[i])
            column = int(self.column0[shard] + c)
            raise TrainingError(
                f"table {table.name}, row {row}, column {column}: {given[i, c]!s} is no "
                f"{table.format} number"
            )
