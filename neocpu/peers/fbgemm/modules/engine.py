"""How does a call in FBGEMM's layout become a call of neocpu's embedding?

    FeatureBatch     the arguments of a lookup: indices and offsets by feature, weights, pooling
    TableBatch       the same bags sorted by table, as `TableBatchedEmbedding.backward` takes them
    ExternalTables   a TableBatchedEmbedding over arrays that belong to the module

Lookups go through `peers/arrays.py`, updates through `TableBatchedEmbedding`. FBGEMM stores all
tables in one array without gaps, and ExternalTables reads and writes it in place.

Features with one batch size are K = F entries of S = B samples. Variable batch sizes and sequences
(no pooling) are one entry per bag, or per lookup, with S = 1: their columns may lie anywhere in a
flat gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neocpu.core.types import Bools, Elements, Floats, Ints
from neocpu.peers import arrays as operators
from neocpu.tables.embedding.bounds import bag_cuts
from neocpu.tables.embedding.changes import PAGE, pages_of
from neocpu.tables.embedding.lookups import EntryLayout, Lookups
from neocpu.tables.embedding.rows import RowStore
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec, TableSpecs

# Stands for "no per-sample weights" and "no states".
NONE = np.empty(0, np.float32)


@dataclass(frozen=True)
class FeatureBatch:
    """Bags of F features, feature after feature.

    table, dims : i64[F], the table of each feature and its columns. indices : i64[n].
    offsets : i64[bags+1]. weights : f32[n] or f32[0]. pooling : sum, mean, none.
    batch_sizes : i64[F, R], samples of each feature on each rank, or None where all have one size.
    """

    table: Ints
    dims: Ints
    indices: Ints
    offsets: Ints
    weights: Floats
    pooling: str
    batch_sizes: Ints | None

    @property
    def first_bag(self) -> Ints:
        """First bag of each feature, and the number of bags: i64[F+1].

        Raises IndexRangeError if the offsets do not make whole batches.
        """
        return bag_cuts(self.table.size, self.offsets, self.batch_sizes)


def look_up(
    codes: Elements, rows: Ints, dims: Ints, row_format: str, batch: FeatureBatch
) -> Floats:
    """Pooled output f32[B, sum of dims]; [n, D] without pooling; flat for variable batches.

    codes : the rows of all tables in `row_format`. rows, dims : i64[T], the shape of each table.
    """
    return operators.lookup(
        codes,
        rows,
        dims,
        batch.table,
        batch.indices,
        batch.offsets,
        batch.weights if batch.weights.size else None,
        batch.pooling,
        row_format,
        batch_sizes=batch.batch_sizes,
    )


def weight_gradient(
    codes: Elements,
    rows: Ints,
    dims: Ints,
    row_format: str,
    batch: FeatureBatch,
    grad: Floats,
    features: Bools,
) -> Floats:
    """Gradient f32[n] of the per-sample weights: exact dot products, rounded once.

    features : bool[F], lookups of the other features get +0. codes, rows, dims : as in `look_up`.
    """
    gradient = operators.weight_gradient(
        codes,
        rows,
        dims,
        batch.table,
        batch.indices,
        batch.offsets,
        grad,
        batch.pooling,
        row_format,
        batch_sizes=batch.batch_sizes,
    )
    if not features.all():
        lookups_per_feature = np.diff(batch.offsets[batch.first_bag])
        gradient[~np.repeat(features, lookups_per_feature)] = 0.0
    return gradient


def first_occurrences(batch: FeatureBatch, first_feature_only: bool) -> FeatureBatch:
    """The batch with -1 for every lookup of a row that its feature has looked up before.

    FBGEMM calls this "writeback".
    first_feature_only : samples are kept or dropped whole, by the lookups of the first feature.
    """
    first_bag = batch.first_bag
    bag = np.repeat(np.arange(batch.offsets.size - 1), np.diff(batch.offsets))
    feature = np.searchsorted(first_bag, bag, side="right") - 1
    sample = bag - first_bag[feature]
    keep = np.zeros(bag.size, bool)
    # `return_index` is that of the first occurrence.
    keep[np.unique(np.stack([feature, batch.indices]), axis=1, return_index=True)[1]] = True
    if first_feature_only:
        keep = np.isin(sample, sample[keep & (feature == 0)])
    return replace(batch, indices=np.where(keep, batch.indices, -1))


@dataclass(frozen=True)
class WholeTable:
    """A table that is its own only shard."""

    table: int
    rows: tuple[int, int]
    cols: tuple[int, int]


class ExternalTables(TableBatchedEmbedding):
    """Tables whose rows and optimizer states are arrays of the caller, set by `bind`."""

    def __init__(
        self, names: Sequence[str], rows: Ints, dims: Ints, optimizer: SparseOptimizer
    ) -> None:
        specs = [TableSpec(n, int(h), int(d), ()) for n, h, d in zip(names, rows, dims)]
        shards = [WholeTable(i, (0, spec.rows), (0, spec.dim)) for i, spec in enumerate(specs)]
        super().__init__(specs, shards, optimizer, 0)

    def _allocate(
        self,
        kinds: TableSpecs,
        elements: Sequence[int],
        rows: int,
        budget: int,
        huge: bool,
    ) -> None:
        # FBGEMM's tables have no gaps; our own are padded to whole cache lines.
        sizes = self.heights * self.width
        self.base[:] = np.cumsum(sizes) - sizes
        # All rows exist from the beginning: none is drawn when it is first read.
        self._touched = np.ones(pages_of(rows) * PAGE, np.uint8)
        self._pages = np.ones(pages_of(rows), np.uint8)
        self.bind(NONE, [], NONE)

    def bind(self, weights: Floats, element_states: Sequence[Floats], row_states: Floats) -> None:
        """Use these arrays from now on.

        weights : f32[sum of H*D], and every element state likewise. row_states : f32[sum of H, n],
            flat.
        """
        self._stores = [RowStore(weights, element_states)]
        self._row_state = row_states.reshape(-1)

    def create(self, layout: EntryLayout, lookups: Lookups) -> None:
        """Do nothing: all rows exist already."""


@dataclass(frozen=True)
class TableBatch:
    """The bags of a FeatureBatch, sorted by table.

    layout : the table of each entry, and the column where its first gradient begins.
    dims : columns of each entry, i64[K].
    divisor : length of every bag as fp32 (1 if empty), f32[K, S]; None unless MEAN.
    flat : every bag is an entry of its own, and gradients are flat.
    """

    layout: EntryLayout
    lookups: Lookups
    dims: Ints
    divisor: Floats | None
    flat: bool

    @property
    def table(self) -> Ints:
        """The table of each lookup: i64[n]."""
        first_bags = self.lookups.offsets[:: max(self.lookups.samples, 1)]
        return np.repeat(self.layout.shard, np.diff(first_bags))

    def with_rows(self, rows: Ints) -> "TableBatch":
        """The same bags with other row numbers i64[n]."""
        lookups = self.lookups
        return replace(
            self, lookups=Lookups(lookups.offsets, rows, lookups.weights, lookups.samples)
        )


def sort_by_table(batch: FeatureBatch) -> TableBatch:
    """Sort the bags by table; features of one table keep their order."""
    first_bag = batch.first_bag
    table = batch.table
    dims = batch.dims
    feature_of_bag = np.repeat(np.arange(table.size), np.diff(first_bag))
    lengths = np.diff(batch.offsets)
    feature = np.repeat(feature_of_bag, lengths)
    feature_order = np.argsort(table, kind="stable")
    rank = np.empty_like(feature_order)
    rank[feature_order] = np.arange(table.size)
    lookup_order = np.argsort(rank[feature], kind="stable")
    bag_order = np.argsort(rank[feature_of_bag], kind="stable")
    feature = feature[lookup_order]
    feature_of_bag = feature_of_bag[bag_order]
    lengths = lengths[bag_order]
    offsets = np.append(0, np.cumsum(lengths))
    samples = 1
    if batch.pooling == "none":
        # Without pooling a lookup's gradient is the line of its number in the batch.
        layout = EntryLayout(table[feature], lookup_order * int(dims[0]))
        entry_dims = dims[feature]
        offsets = np.arange(lookup_order.size + 1)
    elif batch.batch_sizes is not None:
        # Batches of several sizes have no common matrix: each bag has a place of its own.
        column = _rank_major(dims, batch.batch_sizes)[bag_order]
        layout = EntryLayout(table[feature_of_bag], column)
        entry_dims = dims[feature_of_bag]
    else:
        layout = EntryLayout(table[feature_order], (np.cumsum(dims) - dims)[feature_order])
        entry_dims = dims[feature_order]
        samples = (batch.offsets.size - 1) // max(table.size, 1)
    divisor = None
    if batch.pooling == "mean":
        # Empty bags divide nothing, but a length of 0 would make NaN of their gradients.
        divisor = np.maximum(lengths, 1).astype(np.float32).reshape(layout.shard.size, -1)
    weights = batch.weights[lookup_order] if batch.weights.size else NONE
    return TableBatch(
        layout=layout,
        lookups=Lookups(offsets, batch.indices[lookup_order], weights, samples),
        dims=entry_dims,
        divisor=divisor,
        flat=batch.pooling == "none" or batch.batch_sizes is not None,
    )


def _rank_major(dims: Ints, batch_sizes: Ints) -> Ints:
    """Where each bag begins in FBGEMM's output of variable batches: rank, feature, sample."""
    blocks = (batch_sizes * dims[:, None]).T  # [R, F]
    start = ((np.cumsum(blocks) - blocks.reshape(-1)).reshape(blocks.shape)).T.reshape(-1)
    counts = batch_sizes.reshape(-1)
    within = np.arange(int(batch_sizes.sum()))
    within -= np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(start, counts) + within * np.repeat(dims, batch_sizes.sum(axis=1))


def clipped(grad: Elements, limit: float) -> Floats:
    """An fp32 copy of a gradient, each number in [-limit, limit]; limit 0 clips nothing."""
    # A copy: clipping and dividing are done in place, and the gradient belongs to torch.
    gradient = np.array(grad, np.float32, order="C")
    if limit:
        np.clip(gradient, np.float32(-limit), np.float32(limit), out=gradient)
    return gradient


def divided(gradient: Floats, batch: TableBatch) -> Floats:
    """The gradient divided in place by the lengths of the bags if MEAN: [S, columns]."""
    values = gradient.reshape(1, -1) if batch.flat else gradient
    if batch.divisor is None:
        return values
    with np.errstate(all="ignore"):
        if batch.flat:
            packed = np.cumsum(batch.dims) - batch.dims
            starts = np.repeat(batch.layout.column - packed, batch.dims)
            columns = starts + np.arange(starts.size)
            values[0, columns] /= np.repeat(batch.divisor.reshape(-1), batch.dims)
            return values
        for column, dim, length in zip(
            batch.layout.column.tolist(), batch.dims.tolist(), batch.divisor
        ):
            values[:, column : column + dim] /= length[:, None]
    return values


def update(tables: ExternalTables, batch: TableBatch, gradient: Floats, step: int) -> None:
    """The fused update with a gradient from `divided`; `step` counts from 1."""
    if batch.lookups.rows.size:
        tables.backward(batch.layout, batch.lookups, gradient, step)


def unique_gradient(
    tables: ExternalTables, batch: TableBatch, gradient: Floats
) -> dict[int, tuple[Ints, Floats]]:
    """Unique rows i64[U] of each table and their merged gradients f32[U, D], from `divided`."""
    if not batch.lookups.rows.size:
        return {}
    return tables.unique_gradient(batch.layout, batch.lookups, gradient)
