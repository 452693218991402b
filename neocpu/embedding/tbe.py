"""What does one rank do with its rows? Look them up and update them, all tables in one call (table-batched embedding, TBE).

    shards     rectangles of tables: rows lo:hi, columns lo:hi            one flat arena: shard h starts at base[h]
    Layout     which shard each of K entries reads, where its columns go
    Lookups    bags of LOCAL rows, bag k*S + s; -1 reads nothing

The object owns memory and order; arithmetic is in `kernels/`. It knows nothing of ranks: finished sums (`forward`), exact
words for row-split tables (`forward_words`), the fused update (`backward`), and its halves for shards that must first
hear from others.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.lookups import (
    ExtraWords,
    Floats,
    Ints,
    Layout,
    Lookups,
    Merged,
    Rectangle,
    Segments,
    tasks_of,
)
from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.embedding.specs import TableSpec
from neocpu.kernels import pooling, segments, update
from neocpu.kernels.philox import uniform_rows
from neocpu.kernels.touch import first_touch
from neocpu.reference.philox import INIT, tensor_key
from neocpu.storage.tier import Arena, Memory
from neocpu.trees import Node, aligned_nodes

__all__ = ["ExtraWords", "Layout", "Lookups", "Merged", "TableBatchedEmbedding"]

NONE = np.empty(0, np.float32)


class TableBatchedEmbedding:
    """The rows of some shards, with their optimizer state.

    Parameters
    ----------
    tables, shards : specs, and rectangles of them; shard i of every method is shards[i].
    optimizer, seed : update rule; the seed of initial values.
    budget : bytes that rows and states may take (0: no limit). Raises TrainingError where they do not fit.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        shards: Iterable[Rectangle],
        optimizer: SparseOptimizer,
        seed: int,
        budget: int = 0,
    ) -> None:
        self.tables, self.shards, self.optimizer, self.rule = tuple(tables), tuple(shards), optimizer, optimizer.rule
        self.row_scalars = self.rule.row_scalars
        heights = np.array([s.rows[1] - s.rows[0] for s in self.shards], np.int64)
        self.width = np.array([s.cols[1] - s.cols[0] for s in self.shards], np.int64)
        self.heights, self.full_width = heights, np.array([tables[s.table].dim for s in self.shards], np.int64)
        self.row_base = np.cumsum(heights) - heights
        sizes = -(-heights * self.width // 16) * 16  # every shard begins on a cache line
        self.base = np.cumsum(sizes) - sizes
        self.row0 = np.array([s.rows[0] for s in self.shards], np.int64)
        self.column0 = np.array([s.cols[0] for s in self.shards], np.int64)
        self.key = np.array([tensor_key(seed, INIT, tables[s.table].name) for s in self.shards], np.uint64)
        self.scale = np.array(
            [1.0 / np.sqrt(np.float64(tables[s.table].rows)) for s in self.shards], np.float64
        ).astype(np.float32)
        self._allocate(int(sizes.sum()), int(heights.sum()), budget)
        self._made = np.zeros(len(self.shards), np.int64)

    def _allocate(self, elements: int, rows: int, budget: int) -> None:
        per_element, per_row = len(self.rule.element_state), len(self.rule.row_state)
        size = (
            (1 + per_element) * Arena.space(elements, "f4")
            + per_row * Arena.space(rows, "f4")
            + Arena.space(rows, "u1")
        )
        self.arena = Arena(size, budget)
        self.weights: Floats = self.arena.take(elements, "f4")
        states = [self.arena.take(elements, "f4") for _ in range(per_element)]
        self._state0, self._state1 = (*states, NONE, NONE)[:2]
        self._row_state = self.arena.take(rows, "f4") if per_row else NONE
        self._touched = self.arena.take(rows, "u1")
        start = np.float32(self.optimizer.initial_accumulator_value)
        self._starts = [
            start if n == self.rule.accumulator else np.float32(0) for n in (*self.rule.element_state, "", "")
        ][:2]
        self._row_start = start if self.rule.accumulator in self.rule.row_state else np.float32(0)

    # ---- forward ----

    def forward(self, layout: Layout, lookups: Lookups, out: Floats) -> None:
        """Pool: out f32[S, C], columns column[k] on, = the exact sum of bag k*S + s, rounded once."""
        self._touch(layout, lookups)
        h = layout.shard
        pooling.pooled_sum(
            self.weights,
            self.base[h],
            self.width[h],
            lookups.offsets,
            lookups.rows,
            lookups.weights,
            out,
            layout.column,
        )

    def forward_words(self, layout: Layout, lookups: Lookups, out: NDArray[np.float64]) -> ExtraWords:
        """Pool row-split shards: first words of the exact sums into out f64[S, C], the rare further words returned."""
        self._touch(layout, lookups)
        h = layout.shard
        used = np.empty(lookups.offsets.size - 1, np.uint8)
        pooling.pooled_words(
            self.weights,
            self.base[h],
            self.width[h],
            lookups.offsets,
            lookups.rows,
            lookups.weights,
            out,
            layout.column,
            used,
        )
        bags, extras = [], []
        for bag in np.flatnonzero(used > 1).tolist():
            k, s = divmod(bag, lookups.samples)
            width = int(self.width[h[k]])
            words = np.empty((int(used[bag]), width))
            lo, hi = lookups.offsets[bag], lookups.offsets[bag + 1]
            pooling.further_words(
                self.weights,
                lookups.rows,
                lookups.weights,
                lo,
                hi,
                self.base[h[k]],
                width,
                width,
                words.shape[0],
                words,
            )
            out[s, layout.column[k] : layout.column[k] + width] = words[0]
            bags += [bag] * (len(words) - 1)
            extras += list(words[1:])
        start = np.cumsum([0] + [word.size for word in extras], dtype=np.int64)
        return ExtraWords(np.array(bags, np.int64), start, np.concatenate(extras) if extras else np.empty(0))

    def _touch(self, layout: Layout, lookups: Lookups) -> None:
        """Make the rows that do not exist yet; shards whose rows all exist are not looked at."""
        shards, first = np.unique(layout.shard, return_index=True)
        if (self._made[shards] == self.heights[shards]).all():
            return
        cuts = lookups.offsets[np.append(first, layout.shard.size) * lookups.samples]
        first_touch(
            lookups.rows,
            cuts,
            shards,
            self.row_base,
            self.base,
            self.width,
            self.row0,
            self.column0,
            self.key,
            self.scale,
            self._starts[0],
            self._starts[1],
            self._row_start,
            self._touched,
            self.weights,
            self._state0,
            self._state1,
            self._row_state,
            self._made,
        )

    # ---- backward ----

    def backward(self, layout: Layout, lookups: Lookups, grad: Floats, step: int) -> None:
        """Fused update from the gradient f32[S, C] of the pooled rows; `step` counts from 1. Shards must hold whole rows,
        unless the rule reads no row scalars."""
        found = self._sort(layout, lookups, grad.shape[1])
        self._update(
            found.tasks,
            found.unique,
            found.starts,
            found.stops,
            found.place,
            found.weights,
            grad.reshape(-1),
            NONE,
            step,
        )

    def _update(
        self,
        tasks: tuple[Ints, Ints, Ints],
        unique: Ints,
        starts: Ints,
        stops: Ints,
        place: Ints,
        weights: Floats,
        gradient: Floats,
        given: Floats,
        step: int,
    ) -> None:
        update.fused(self.rule.name, self.row_scalars)(
            self.weights,
            self._state0,
            self._state1,
            self._row_state,
            self.base,
            self.width,
            self.full_width,
            self.row_base,
            *tasks,
            unique,
            starts,
            stops,
            place,
            weights,
            gradient,
            given,
            self.optimizer.hyper(step),
        )

    def _sort(self, layout: Layout, lookups: Lookups, stride: int) -> Segments:
        """Sort lookups by shard and row; find where the gradient of each one is."""
        shards, first = np.unique(layout.shard, return_index=True)
        cuts = lookups.offsets[np.append(first, layout.shard.size) * lookups.samples]
        n = lookups.rows.size
        order, unique, starts, stops, place, sorted_place = (np.empty(n, np.int64) for _ in range(6))
        valid, count = np.empty(shards.size, np.int64), np.empty(shards.size, np.int64)
        segments.sort_lookups(lookups.rows, cuts, self.heights[shards], order, unique, starts, stops, valid, count)
        segments.gradient_places(lookups.offsets, layout.column, stride, place)
        weights = np.empty(lookups.weights.size, np.float32)
        segments.gather_sorted(order, cuts, valid, place, lookups.weights, sorted_place, weights)
        return Segments(
            shards, cuts, count, unique, starts, stops, sorted_place, weights, tasks_of(shards, cuts[:-1], count)
        )

    # ---- the halves, for shards that must first hear from others ----

    def merge(self, layout: Layout, lookups: Lookups, grad: Floats) -> Merged:
        """Unique rows with merged, regularised gradients, no update yet (column shards of a rule with row scalars)."""
        found = self._sort(layout, lookups, grad.shape[1])
        start = np.zeros(found.unique.size + 1, np.int64)
        first = dict(zip(found.shards.tolist(), found.cuts.tolist()))
        last = {i: first[i] + n for i, n in zip(found.shards.tolist(), found.count.tolist())}
        for i in first:
            start[first[i] + 1 : last[i] + 1] = self.width[i]
        start = np.cumsum(start)
        gradient = np.empty(int(start[-1]), np.float32)
        update.merge_rows(
            self.weights,
            self.base,
            self.width,
            *found.tasks,
            found.unique,
            found.starts,
            found.stops,
            found.place,
            found.weights,
            grad.reshape(-1),
            self.optimizer.hyper(1),
            start,
            gradient,
        )
        return Merged(first, last, found.unique, start, gradient)

    def row_terms(self, merged: Merged, shard: int) -> dict[Node, Floats]:
        """Aligned nodes of the column tree that this shard's columns cover: {(lo, size): f32[U, row_scalars]}."""
        lo, hi = self.shards[shard].cols
        dim = int(self.full_width[shard])
        first, last, width = merged.first[shard], merged.last[shard], int(self.width[shard])
        gradient = merged.gradient[merged.start[first] : merged.start[last]]
        nodes: dict[Node, Floats] = {}
        for node in aligned_nodes(lo, 1 << (dim - 1).bit_length() if hi == dim else hi):
            sums = np.empty(last - first, np.float32)
            update.square_nodes(gradient, width, node[0] - lo, node[1], sums)
            nodes[node] = sums.reshape(-1, 1)
        return nodes

    def apply(self, merged: Merged, shard: int, scalars: Floats, step: int) -> None:
        """Finish the update of a merged shard, given its row scalars f32[U, row_scalars]."""
        first, last = merged.first[shard], merged.last[shard]
        count = np.arange(last - first + 1, dtype=np.int64)
        tasks = tasks_of(np.array([shard]), np.array([0]), np.array([last - first]))
        self._update(
            tasks,
            merged.rows[first:last],
            count[:-1],
            count[1:],
            merged.start[first:last],
            NONE,
            merged.gradient,
            np.ascontiguousarray(scalars[:, 0]),
            step,
        )

    def merge_words(self, layout: Layout, lookups: Lookups, grad: Floats) -> list[tuple[Ints, NDArray[np.float64]]]:
        """Exact merged gradients of replicated shards: for each shard of the layout, rows i64[M] (ascending, repeated for
        further words) and words f64[M, D]."""
        found = self._sort(layout, lookups, grad.shape[1])
        out = []
        for shard, first, count in zip(found.shards.tolist(), found.cuts.tolist(), found.count.tolist()):
            part, width = slice(first, first + count), int(self.width[shard])
            words, used = np.empty((count, width)), np.empty(count, np.uint8)
            starts, stops = found.starts[part], found.stops[part]
            update.merge_words(grad.reshape(-1), found.place, found.weights, starts, stops, words, used)
            rows = np.repeat(found.unique[part], used)
            if (used > 1).any():
                words = np.concatenate(
                    [
                        self._further(grad.reshape(-1), found, int(lo), int(hi), int(n), width) if n > 1 else word[None]
                        for word, lo, hi, n in zip(words, starts, stops, used)
                    ]
                )
            out.append((rows, words))
        return out

    @staticmethod
    def _further(gradient: Floats, found: Segments, lo: int, hi: int, words: int, width: int) -> NDArray[np.float64]:
        out = np.empty((words, width))
        pooling.further_words(gradient, found.place, found.weights, lo, hi, 0, 1, width, words, out)
        return out

    def apply_rows(self, shard: int, rows: Ints, gradient: Floats, step: int) -> None:
        """Update rows i64[U] (unique, local) of a whole-width shard from merged, rounded gradients f32[U, D]."""
        count = np.arange(rows.size + 1, dtype=np.int64)
        layout = Layout(np.array([shard]), np.zeros(1, np.int64))
        self._touch(layout, Lookups(np.array([0, rows.size]), rows, NONE, 1))
        tasks = tasks_of(np.array([shard]), np.array([0]), np.array([rows.size]))
        place = count[:-1] * gradient.shape[1]
        self._update(
            tasks, rows, count[:-1], count[1:], place, NONE, np.ascontiguousarray(gradient).reshape(-1), NONE, step
        )

    # ---- state ----

    def state(self, shard: int) -> dict[str, Floats]:
        """Views of a shard: "weight" f32[rows, width], element states likewise, row states f32[rows]."""
        height, width = int(self.heights[shard]), int(self.width[shard])
        at, row = int(self.base[shard]), int(self.row_base[shard])
        found = {"weight": self.weights[at : at + height * width].reshape(height, width)}
        for name, values in zip(self.rule.element_state, (self._state0, self._state1)):
            found[name] = values[at : at + height * width].reshape(height, width)
        for name in self.rule.row_state:
            found[name] = self._row_state[row : row + height]
        return found

    def touched(self, shard: int) -> NDArray[np.uint8]:
        """Which rows of a shard exist: u8[rows]."""
        row = int(self.row_base[shard])
        return self._touched[row : row + int(self.heights[shard])]

    def initial(self, shard: int, rows: Ints) -> dict[str, Floats]:
        """Initial values of local rows i64[n]: as `state`, n rows."""
        width = int(self.width[shard])
        weight = np.empty((rows.size, width), np.float32)
        uniform_rows(self.key[shard], self.row0[shard] + rows, self.column0[shard], self.scale[shard], weight)
        found: dict[str, Floats] = {"weight": weight}
        for name, start in zip(self.rule.element_state, self._starts):
            found[name] = np.full((rows.size, width), start, np.float32)
        for name in self.rule.row_state:
            found[name] = np.full(rows.size, self._row_start, np.float32)
        return found

    def load_rows(self, shard: int, rows: Ints, values: Mapping[str, Any]) -> None:
        """Set local rows i64[n] and their states (as `state` names them); the rows exist from now on."""
        state, touched = self.state(shard), self.touched(shard)
        for name, array in values.items():
            state[name][rows] = array
        self._made[shard] += int((touched[rows] == 0).sum())
        touched[rows] = 1

    def tier(self, shard: int) -> Memory:
        """Where the weights of a shard live."""
        return Memory(self.state(shard)["weight"])
