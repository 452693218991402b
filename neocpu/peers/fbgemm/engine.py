"""How does a call in FBGEMM's shape become neocpu's? Lookups by `embedding.operators`, updates by
`TableBatchedEmbedding`.

    Request   what the caller asks: indices and offsets of features, feature-major, weights, pooling, sizes of batches
    Tables    a TableBatchedEmbedding over arrays of the caller, table after table without gaps, as FBGEMM lays them out
    Call      a request as updates take it: entries sorted by table, where each bag's gradient is, what MEAN divides by

Features with one batch size are K = F entries of S = B samples. Variable batch sizes and sequences
(no pooling) are one entry per bag, or per lookup, with S = 1: their columns may lie anywhere in a
flat gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.bounds import bag_cuts
from neocpu.embedding.lookups import EntryLayout, Floats, Ints, Lookups
from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.embedding.rows import RowStore
from neocpu.embedding.specs import TableSpec
from neocpu.embedding.tbe import TableBatchedEmbedding
from neocpu.peers import arrays as operators

NONE = np.empty(0, np.float32)


@dataclass(frozen=True)
class LookupRequest:
    """Bags of F features.

    table, dims i64[F]; index i64[n]; ends i64[bags+1]; weights f32[n] or f32[0]; pooling: sum,
    mean, none; sizes i64[F, R]: samples of each feature on each rank, where they vary.
    """

    table: Ints
    dims: Ints
    index: Ints
    ends: Ints
    weights: Floats
    pooling: str
    sizes: Ints | None

    @property
    def first(self) -> Ints:
        """First bag of each feature, and the number of bags: i64[F+1]. Raises IndexRangeError if
        they do not fit.
        """
        return bag_cuts(self.table.size, self.ends, self.sizes)


def look_up(codes: NDArray[Any], rows: Ints, dims: Ints, form: str, asked: LookupRequest) -> Floats:
    """Result f32 of a request: [B, sum of dims], [n, D], or flat. codes: all tables, rows and dims
    of them, in `form`.
    """
    return operators.lookup(
        codes,
        rows,
        dims,
        asked.table,
        asked.index,
        asked.ends,
        asked.weights if asked.weights.size else None,
        asked.pooling,
        form,
        batch_sizes=asked.sizes,
    )


def weight_gradient(
    codes: NDArray[Any],
    rows: Ints,
    dims: Ints,
    form: str,
    asked: LookupRequest,
    grad: Floats,
    wanted: NDArray[np.bool_],
) -> Floats:
    """Gradient f32[n] of the per-sample weights: exact dot products, rounded once; +0 of features
    not in wanted bool[F].
    """
    found = operators.weight_gradient(
        codes,
        rows,
        dims,
        asked.table,
        asked.index,
        asked.ends,
        grad,
        asked.pooling,
        form,
        batch_sizes=asked.sizes,
    )
    if not wanted.all():
        found[~np.repeat(wanted, np.diff(asked.ends[asked.first]))] = 0.0
    return found


def first_occurrences(asked: LookupRequest, first_feature_only: bool) -> LookupRequest:
    """The request without lookups (-1 instead) of a row that its feature looked up before: FBGEMM's
    "writeback".

    first_feature_only: samples are kept or dropped whole, by what the first feature looked up.
    """
    first = asked.first
    bag = np.repeat(np.arange(asked.ends.size - 1), np.diff(asked.ends))
    feature = np.searchsorted(first, bag, side="right") - 1
    keep = np.zeros(bag.size, bool)
    sample = bag - first[feature]
    keep[np.unique(np.stack([feature, asked.index]), axis=1, return_index=True)[1]] = True
    if first_feature_only:
        keep = np.isin(sample, sample[keep & (feature == 0)])
    return replace(asked, index=np.where(keep, asked.index, -1))


@dataclass(frozen=True)
class Whole:
    """A table that is its own only shard."""

    table: int
    rows: tuple[int, int]
    cols: tuple[int, int]


class CallerTables(TableBatchedEmbedding):
    """Tables whose rows and states are arrays of somebody else, given by `bind`."""

    def __init__(
        self, names: Sequence[str], rows: Ints, dims: Ints, optimizer: SparseOptimizer
    ) -> None:
        tables = [TableSpec(n, int(h), int(d), ()) for n, h, d in zip(names, rows, dims)]
        super().__init__(
            tables, [Whole(i, (0, t.rows), (0, t.dim)) for i, t in enumerate(tables)], optimizer, 0
        )

    def _allocate(
        self,
        kinds: Sequence[TableSpec],
        elements: Sequence[int],
        rows: int,
        budget: int,
        huge: bool,
    ) -> None:
        sizes = self.heights * self.width
        self.base[:] = np.cumsum(sizes) - sizes
        self._touched = np.ones(rows, np.uint8)
        self.bind(NONE, [], NONE)

    def bind(self, weights: Floats, elements: Sequence[Floats], rows: Floats) -> None:
        """Use weights f32[sum of H*D], element states likewise, row states f32[sum of H, n], flat."""
        self._stores = [RowStore(weights, elements)]
        self._row_state = rows.reshape(-1)

    def create(self, layout: EntryLayout, lookups: Lookups) -> None:
        """All rows exist."""


@dataclass(frozen=True)
class Call:
    """Bags sorted by table. column of the layout: where an entry's first gradient begins; dims
    i64[K]: its columns.

    length : fp32 divisor of every bag (1 if empty), f32[K, S], or None unless MEAN. flat : every
        bag is an entry.
    """

    layout: EntryLayout
    lookups: Lookups
    dims: Ints
    length: Floats | None
    flat: bool

    @property
    def table(self) -> Ints:
        """The table of each lookup: i64[n]."""
        return np.repeat(
            self.layout.shard, np.diff(self.lookups.offsets[:: max(self.lookups.samples, 1)])
        )

    def with_rows(self, rows: Ints) -> "Call":
        """The same call of other rows i64[n]."""
        old = self.lookups
        return replace(self, lookups=Lookups(old.offsets, rows, old.weights, old.samples))


def call_of(asked: LookupRequest) -> Call:
    """Sort a request's bags by table."""
    first = asked.first
    table = asked.table
    dims = asked.dims
    feature_of_bag = np.repeat(np.arange(table.size), np.diff(first))
    lengths = np.diff(asked.ends)
    feature = np.repeat(feature_of_bag, lengths)
    by_table = np.argsort(table, kind="stable")
    rank = np.empty_like(by_table)
    rank[by_table] = np.arange(table.size)
    order = np.argsort(rank[feature], kind="stable")
    bags = np.argsort(rank[feature_of_bag], kind="stable")
    feature = feature[order]
    feature_of_bag = feature_of_bag[bags]
    lengths = lengths[bags]
    ends = np.append(0, np.cumsum(lengths))
    samples = 1
    if asked.pooling == "none":
        layout = EntryLayout(table[feature], order * int(dims[0]))
        widths = dims[feature]
        ends = np.arange(order.size + 1)
    elif asked.sizes is not None:
        layout = EntryLayout(table[feature_of_bag], _rank_major(dims, asked.sizes)[bags])
        widths = dims[feature_of_bag]
    else:
        layout = EntryLayout(table[by_table], (np.cumsum(dims) - dims)[by_table])
        widths = dims[by_table]
        samples = (asked.ends.size - 1) // max(table.size, 1)
    divisor = None
    if asked.pooling == "mean":
        divisor = np.maximum(lengths, 1).astype(np.float32).reshape(layout.shard.size, -1)
    weights = asked.weights[order] if asked.weights.size else NONE
    flat = asked.pooling == "none" or asked.sizes is not None
    return Call(layout, Lookups(ends, asked.index[order], weights, samples), widths, divisor, flat)


def _rank_major(dims: Ints, sizes: Ints) -> Ints:
    """Where each bag begins in FBGEMM's output of variable batches: rank after rank, there feature
    after feature.
    """
    blocks = (sizes * dims[:, None]).T  # [R, F]
    start = ((np.cumsum(blocks) - blocks.reshape(-1)).reshape(blocks.shape)).T.reshape(-1)
    counts = sizes.reshape(-1)
    within = np.arange(int(sizes.sum()))
    within -= np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(start, counts) + within * np.repeat(dims, sizes.sum(axis=1))


def clipped(grad: NDArray[Any], limit: float) -> Floats:
    """A copy of a gradient as updates take it: fp32, each number in [-limit, limit] (0: any)."""
    given = np.array(grad, np.float32, order="C")
    if limit:
        np.clip(given, np.float32(-limit), np.float32(limit), out=given)
    return given


def divided(given: Floats, call: Call) -> Floats:
    """The gradient over the lengths of the bags, if MEAN, in place: [S, columns], as updates take
    it.
    """
    values = given.reshape(1, -1) if call.flat else given
    if call.length is None:
        return values
    with np.errstate(all="ignore"):
        if call.flat:
            starts = np.repeat(call.layout.column - (np.cumsum(call.dims) - call.dims), call.dims)
            values[0, starts + np.arange(starts.size)] /= np.repeat(
                call.length.reshape(-1), call.dims
            )
            return values
        for column, dim, length in zip(
            call.layout.column.tolist(), call.dims.tolist(), call.length
        ):
            values[:, column : column + dim] /= length[:, None]
    return values


def update(tables: CallerTables, call: Call, grad: Floats, step: int) -> None:
    """The fused update from `divided`; `step` counts from 1."""
    if call.lookups.rows.size:
        tables.backward(call.layout, call.lookups, grad, step)


def unique_gradient(
    tables: CallerTables, call: Call, grad: Floats
) -> dict[int, tuple[Ints, Floats]]:
    """For each table its looked-up rows i64[U] and their merged gradients f32[U, D], from
    `divided`.
    """
    return tables.unique_gradient(call.layout, call.lookups, grad) if call.lookups.rows.size else {}
