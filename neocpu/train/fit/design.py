"""Which samples does a rank hold, and how does it multiply with those of a sample of them?

All N samples stand in a random order of their own (`order_of`). Position p belongs to leaf p mod n
of n, so that every run of positions, which is what a solver samples, is spread evenly over leaves
and ranks, and a rank holds the samples of its leaves from the beginning to the end: no sample ever
travels. Within a leaf positions ascend (docs/arithmetic.md §16).
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from neocpu.core.trees import Node, aligned_nodes, rank_leaves
from neocpu.core.types import Ints
from neocpu.ingest.dataset.columns import starts_to_indices
from neocpu.ingest.epoch_order import sorted_by_words
from neocpu.kernels.dense import design as kernels
from neocpu.kernels.records import SparseLines
from neocpu.kernels.twins.numbers.philox import FIT, tensor_key

F64: TypeAlias = NDArray[np.float64]


def order_of(samples: int, seed: int) -> Ints:
    """The sample at each position, i64[samples]: a stable sort of one Philox word each."""
    return sorted_by_words(tensor_key(seed, FIT, "samples"), 0, samples, 0)


@dataclass(frozen=True)
class Leaves:
    """The leaves of a rank: [first, last) of `count`."""

    rank: int
    ranks: int
    count: int

    @property
    def span(self) -> tuple[int, int]:
        """First leaf, and the one behind the last."""
        return rank_leaves(self.rank, self.ranks, self.count)

    def nodes(self) -> list[Node]:
        """The nodes of the tree that this rank sums."""
        return list(aligned_nodes(*self.span))

    def positions(self, samples: int) -> Ints:
        """Positions of this rank's samples, leaf by leaf."""
        runs = [np.arange(leaf, samples, self.count, dtype=np.int64) for leaf in range(*self.span)]
        return np.concatenate([np.empty(0, np.int64), *runs])

    def rows(self, samples: int, first: int, count: int) -> tuple[Ints, Ints]:
        """Rows of this rank, numbered as `positions` are, of a run of positions, which goes on at 0
        behind the last; and the row behind each leaf.
        """
        behind = first + count
        runs = [(first, behind)] if behind <= samples else [(0, behind - samples), (first, samples)]
        rows = [np.empty(0, np.int64)]
        ends = []
        base = size = 0
        for leaf in range(*self.span):
            for low, high in runs:
                rows.append(
                    np.arange(base + self._below(leaf, low), base + self._below(leaf, high))
                )
                size += rows[-1].size
            ends.append(size)
            base += self._below(leaf, samples)
        return np.concatenate(rows), np.array(ends, np.int64)

    def _below(self, leaf: int, position: int) -> int:
        """Positions of a leaf below this one."""
        return max(-((leaf - position) // self.count), 0)


@dataclass(frozen=True)
class DesignMatrix:
    """A design matrix: the rows of some samples, leaf by leaf, on this rank.

    rows : sparse columns, by sample. dense : f64[n, m], columns behind these. labels : f64[n].
    sparse : how many sparse columns there are. ends : i64[leaves], the row behind each leaf.
    samples : of all ranks. weights : f64[n], how often each loss counts; None: once. hashed : how
    many of the sparse columns, the last ones, may have several entries of a row.
    """

    rows: SparseLines
    dense: F64
    labels: F64
    sparse: int
    ends: Ints
    samples: int
    weights: F64 | None = None
    hashed: int = 0

    @property
    def width(self) -> int:
        """Columns, sparse and dense."""
        return self.sparse + self.dense.shape[1]

    @cached_property
    def columns(self) -> SparseLines:
        """The sparse columns, by column."""
        starts = np.empty(self.sparse + 1, np.int64)
        columns = SparseLines(
            starts, np.empty_like(self.rows.places), np.empty_like(self.rows.values)
        )
        kernels.transposed(self.rows, *columns)
        return columns

    @cached_property
    def leaves(self) -> NDArray[np.int32]:
        """The leaf of each row, counted from this rank's first one."""
        sizes = np.diff(self.ends, prepend=0)
        return np.repeat(np.arange(sizes.size, dtype=np.int32), sizes)

    @property
    def squared(self) -> "DesignMatrix":
        """The matrix of the squares of its numbers: of a hashed column's, the sums of entries."""
        rows = summed(self.rows, self.sparse - self.hashed)
        rows = rows._replace(values=rows.values * rows.values)
        return replace(self, rows=rows, dense=self.dense * self.dense)

    @cached_property
    def norms(self) -> F64:
        """The square of each row's length, f64[n]."""
        return self.squared.times(np.ones((self.width, 1)))[:, 0]

    def behind(self, numbers: F64, constant: float) -> "DesignMatrix":
        """A dense one of the same samples: numbers f64[n, m], and a constant."""
        dense = np.concatenate([numbers, np.full((len(numbers), 1), constant)], axis=1)
        rows = without_entries(len(numbers))
        return replace(self, rows=rows, dense=dense, sparse=0, hashed=0)

    def times(self, weights: F64) -> F64:
        """X weights f64[width, K]: f64[n, K]."""
        out = np.empty((self.labels.size, weights.shape[1]))
        kernels.products(self.rows, self.dense, weights, out)
        return out

    def transposed_times(
        self, numbers: F64, nodes: Ints, out: F64, more: F64 | None = None
    ) -> None:
        """Nodes of X^T numbers f64[n, K] into the beginning of each row of out f64[nodes, P].

        nodes : i64[p, 2], the first leaf of this rank's, and size. more : f64[leaves, m, K], added
        to the sums of dense columns over leaves.
        """
        width = numbers.shape[1]
        if self.sparse:
            kernels.transposed_products(self.columns, numbers, self.leaves, nodes, out)
        sums = self.leaf_sums(numbers)
        if more is not None:
            sums += more
        out[:, self.sparse * width : self.width * width] = folded(sums, nodes)

    def leaf_sums(self, numbers: F64) -> F64:
        """Sums over each leaf of X^T numbers f64[n, K], of dense columns: f64[leaves, m, K]."""
        sums = np.empty((self.ends.size, self.dense.shape[1], numbers.shape[1]))
        kernels.dense_transposed(self.dense, numbers, self.ends, sums)
        return sums

    def sums(self, numbers: F64, nodes: Ints) -> F64:
        """Nodes of the sums over samples of numbers f64[n, K]: f64[nodes, K]."""
        return leaf_products(np.ones((len(numbers), 1)), numbers, self.ends, nodes)

    def part(self, rows: Ints, ends: Ints, samples: int) -> "DesignMatrix":
        """Some rows of it, as those of a sample."""
        lengths = np.diff(self.rows.starts)[rows]
        entries = starts_to_indices(self.rows.starts[rows], lengths)
        values = self.rows.values[entries] if self.rows.values.size else self.rows.values
        lines = SparseLines(
            np.concatenate([[0], np.cumsum(lengths)]), self.rows.places[entries], values
        )
        return replace(
            self,
            rows=lines,
            dense=self.dense[rows],
            labels=self.labels[rows],
            ends=ends,
            samples=samples,
            weights=None if self.weights is None else self.weights[rows],
        )

    def weighed(self, numbers: F64) -> F64:
        """Numbers f64[n, ...] of its samples, times their weights."""
        if self.weights is None:
            return numbers
        return numbers * self.weights.reshape(-1, *[1] * (numbers.ndim - 1))


def without_entries(samples: int) -> SparseLines:
    """Sparse columns of samples that have none."""
    return SparseLines(np.zeros(samples + 1, np.int64), np.empty(0, np.int32), np.empty(0))


def summed(rows: SparseLines, first: int) -> SparseLines:
    """Rows whose entries of one column, of those from `first` on, are one, where the first was."""
    owner = np.repeat(np.arange(rows.starts.size - 1), np.diff(rows.starts))
    shared = np.flatnonzero(rows.places >= first)
    order = shared[np.lexsort((rows.places[shared], owner[shared]))]
    again = np.zeros(order.size, bool)
    again[1:] = (np.diff(rows.places[order]) == 0) & (np.diff(owner[order]) == 0)
    if not again.any():
        return rows
    values = rows.values.copy() if rows.values.size else np.ones(rows.places.size)
    # bincount adds one by one, in the order of the entries
    values[order[~again]] = np.bincount(np.cumsum(~again) - 1, values[order])
    kept = np.ones(rows.places.size, bool)
    kept[order[again]] = False
    lengths = np.bincount(owner[kept], minlength=rows.starts.size - 1)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return SparseLines(starts, rows.places[kept], values[kept])


def leaf_products(dense: F64, numbers: F64, ends: Ints, nodes: Ints) -> F64:
    """Nodes of the sums over samples of dense f64[n, m] times numbers f64[n, K]: f64[nodes, mK]."""
    sums = np.empty((ends.size, dense.shape[1], numbers.shape[1]))
    kernels.dense_transposed(dense, numbers, ends, sums)
    return folded(sums, nodes)


def folded(sums: F64, nodes: Ints) -> F64:
    """Nodes f64[nodes, :] of the tree over sums of leaves f64[leaves, ...]."""
    out = np.empty((len(nodes), math.prod(sums.shape[1:])))
    for row, (first, size) in zip(out, nodes.tolist()):
        level = sums[first : first + size]
        while len(level) > 1:
            level = level[0::2] + level[1::2]
        row[:] = level.reshape(-1)
    return out
