"""What do the rungs of `benchmarks/ladder.py` work on? One call of a kernel, made of shared arrays.

Each method gives the work of one kernel on the first n-th of the batch, for the n in its argument
`share`; 1 is all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import gemm, ours
from benchmarks.limits import Limit, library
from benchmarks.shapes import Lookup

# Vectors of a sample that the interaction pairs: 26 features and the bottom MLP's output.
VECTORS = 27
# Share of the rows that are in no line.
MISSING = 0.01


@dataclass(frozen=True)
class Work:
    """The work of one call.

    run: calls the kernel of a family's module. results: the arrays that it writes. flops, bytes: of
    the formula, and of what must move between memory and a core. limit: the same work in C.
    """

    run: Callable[[Any], Any]
    results: tuple[NDArray[Any], ...]
    flops: float
    bytes: float
    limit: Callable[[], Any] | None = None


class Tables:
    """Tables f32[E, D], row states f32[E], and one batch: what lookups and updates work on."""

    def __init__(self, shape: Lookup) -> None:
        rng = np.random.default_rng(5)
        self._shape = shape
        height = shape.tables * shape.rows
        self._table = rng.standard_normal(height * shape.dim, np.float32)
        self._row_state = np.zeros(height, np.float32)
        self._rows = shape.batches(1)[0].reshape(shape.tables, shape.samples, shape.length)
        self._gradient = rng.standard_normal((shape.samples, shape.tables * shape.dim), np.float32)

    def _part(self, share: int) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """Samples, rows i64[n] and offsets of their bags for a share of the batch."""
        samples = self._shape.samples // share
        rows = np.ascontiguousarray(self._rows[:, :samples]).reshape(-1)
        return samples, rows, np.arange(0, rows.size + 1, self._shape.length, dtype=np.int64)

    def _limit(self, samples: int) -> Limit | None:
        if library(self._shape.dim) is None:
            return None
        tables = self._table.reshape(self._shape.tables, self._shape.rows, self._shape.dim)
        return Limit(list(tables), samples, self._shape.length)

    def lookup(self, share: int) -> Work:
        """Pooled rows of all bags."""
        from neocpu.kernels.operands import Bags, Entries, Lines

        T = self._shape.tables
        D = self._shape.dim
        samples, rows, offsets = self._part(share)
        width = np.full(T, D)
        table_numbers = np.arange(T)
        entries = Entries(
            base=table_numbers * self._shape.rows * D,
            width=width,
            stride=width,
            first=np.arange(T + 1) * samples,
        )
        bags = Bags(offsets, rows, np.empty(0, np.float32))
        lines = Lines(place=table_numbers * D, pitch=np.full(T, T * D))
        out = np.zeros((samples, T * D), np.float32)
        limit = self._limit(samples)
        return Work(
            run=lambda module: module.pooled_rows(
                self._table, entries, bags, False, lines, out.reshape(-1)
            ),
            results=(out,),
            flops=rows.size * D,
            bytes=4 * rows.size * D + 4 * out.size + 8 * rows.size,
            limit=None if limit is None else lambda: limit.gather(rows, out),
        )

    def update(self, share: int) -> Work:
        """Merge the gradients of each unique row and update it; the lookups are sorted already."""
        from neocpu.core.rules import RULES
        from neocpu.kernels.records import ShardPlaces
        from neocpu.tables.embedding.lookups import EntryLayout, Lookups
        from neocpu.tables.embedding.sorting import Scratch, sort

        T = self._shape.tables
        D = self._shape.dim
        samples, rows, offsets = self._part(share)
        table_numbers = np.arange(T)
        heights = np.full(T, self._shape.rows)
        layout = EntryLayout(table_numbers, table_numbers * D)
        lookups = Lookups(offsets, rows, np.empty(0, np.float32), samples)
        segments = sort(layout, lookups, heights, T * D, Scratch())
        places = ShardPlaces(
            base=table_numbers * self._shape.rows * D,
            width=np.full(T, D),
            full_width=np.full(T, D),
            row_base=table_numbers * self._shape.rows,
            row0=np.zeros(T, np.int64),
            column0=np.zeros(T, np.int64),
            key=np.zeros(T, np.uint64),
        )
        optimizer = ours.rowwise_adagrad()
        rule = RULES[optimizer.name]
        hyper = optimizer.hyper(1)
        gradient = np.ascontiguousarray(self._gradient[:samples]).reshape(-1)
        limit = self._limit(samples)
        moments = list(self._row_state.reshape(T, -1))
        unique = segments.unique.size
        return Work(
            run=lambda module: module.fused(rule, False)(
                self._table,
                rule.element_record(),
                self._row_state,
                places,
                segments,
                gradient,
                hyper,
            ),
            results=(self._table, self._row_state),
            # A merge adds, an update squares, sums, scales and subtracts.
            flops=rows.size * D + 4 * unique * D,
            # Rows and their states are read and written.
            bytes=8 * unique * (D + 1) + 4 * gradient.size + 8 * rows.size + 16 * unique,
            limit=None
            if limit is None
            else lambda: limit.update(moments, segments, gradient, ours.RATE),
        )


class Product:
    """One layer of an MLP."""

    def __init__(self, samples: int, inputs: int, outputs: int) -> None:
        self._layer = gemm.Layer(samples, inputs, outputs)

    def forward(self, share: int) -> Work:
        """The product with bias and ReLU."""
        layer = self._layer
        samples = layer.x.shape[0] // share
        x = layer.x[:samples]
        y = layer.y[:samples]
        return Work(
            run=lambda module: module.layer(x, layer.w, layer.bias, True, y),
            results=(y,),
            flops=layer.flops / share,
            bytes=4 * (x.size + layer.w.size + y.size),
        )


class Pairs:
    """The dot products of all pairs of a sample's vectors."""

    def __init__(self, samples: int, dim: int) -> None:
        self._dim = dim
        self._vectors = np.random.default_rng(6).standard_normal(
            (samples, VECTORS * dim), np.float32
        )

    def forward(self, share: int) -> Work:
        """The interaction without its diagonal."""
        vectors = self._vectors[: self._vectors.shape[0] // share]
        pairs = VECTORS * (VECTORS - 1) // 2
        out = np.zeros((vectors.shape[0], self._dim + pairs), np.float32)
        return Work(
            run=lambda module: module.dot_forward(vectors, self._dim, False, out),
            results=(out,),
            flops=2 * vectors.shape[0] * pairs * self._dim,
            bytes=4 * (vectors.size + out.size),
        )


class FullCache:
    """A software cache with a row in nearly every line, and rows that are looked for in it."""

    def __init__(self, lines: int, count: int) -> None:
        from neocpu.kernels.twins.tiers.cache import WAYS, mix
        from neocpu.tables.tiers.cache import LINE

        rng = np.random.default_rng(8)
        offered = rng.permutation(4 * lines)[: 2 * lines]
        hashes = mix(offered)
        sets = (hashes % np.uint64(lines // WAYS)).astype(np.int64)
        order = np.argsort(sets, kind="stable")
        way = np.arange(offered.size) - np.searchsorted(sets[order], sets[order])
        cached = order[way < WAYS]
        line = sets[cached] * WAYS + way[way < WAYS]
        self._prints = np.zeros(lines, np.uint8)
        self._prints[line] = np.maximum(hashes[cached] >> np.uint64(56), 1)
        self._tags = np.zeros(lines, LINE)["tag"]
        self._tags[line] = offered[cached]
        self._ids = rng.choice(offered[cached], count)
        missing = rng.random(count) < MISSING
        self._ids[missing] += 4 * lines
        self._hits = count - np.count_nonzero(missing)

    def probe(self, share: int) -> Work:
        """The line of every row."""
        ids = self._ids[: self._ids.size // share]
        out = np.zeros_like(ids)
        return Work(
            run=lambda module: module.locate(ids, self._prints, self._tags, out),
            results=(out,),
            flops=0,
            # A row's line lies in a cache line of 64 bytes; prints may stay in the core's cache.
            bytes=16 * ids.size + 64 * self._hits / share,
        )
