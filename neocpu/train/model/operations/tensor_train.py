"""Rows of a tensor train: v = G1[i1] G2[i2] G3[i3], each distinct row once (`kernels/dense/tt.py`).

    core rows, fetched once  -->  prefixes G1 G2, once each  -->  distinct rows  -->  lookups
    gradients of lookups, merged by (leaf, row)  -->  of prefixes  -->  of (leaf, core row)

A fourth source has rows that are kept as they are; lookups that it has a row for go to it alone,
and give it a term each.

docs/arithmetic.md §14 has the order of every sum.

Which products a batch needs, and which gradients go into which core row:

    lookup    (i1, i2, i3), as often as it is looked up
    row       a distinct (i1, i2, i3) of the rank's samples       forward: made once
    prefix    a distinct (i1, i2)                                 forward: multiplied once
    pair      a leaf of the batch and a distinct row of it        backward: gradients merged
    node      a leaf and a distinct prefix of it                  backward: gradients of prefixes

Everything ascends: rows by their number, pairs and nodes by leaf, then number. Gradients are made
by leaf, since a leaf is never cut between ranks: what goes into a core row does not depend on the
ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Floats, FloatsByName, Ints
from neocpu.kernels.dense import tt
from neocpu.kernels.rows import lookup
from neocpu.tables.embedding.lookups import KeyLookups, RowTerms
from neocpu.tables.embedding.row_sums import SumsOfRows, summed
from neocpu.train.model.arrays import Buffer, NodeGradient
from neocpu.train.model.composition_layout import KeyVectors


def grouped(keys: Ints) -> tuple[Ints, Ints]:
    """Places i64[n] by ascending key, equal ones in their order, and i64[G+1], where groups begin.

    keys : i64[n], 0 or more.
    """
    # NumPy sorts 16 bits by radix, in linear time
    small = keys.max(initial=0) < 1 << 16
    order = np.argsort(keys.astype(np.uint16) if small else keys, kind="stable")
    return order, starts_of(keys[order])


def starts_of(keys: Ints) -> Ints:
    """Where runs of equal keys begin, and the end: i64[G+1]."""
    changes = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    if not keys.size:
        return np.zeros(1, np.int64)
    return np.concatenate([np.zeros(1, np.int64), changes, [keys.size]])


@dataclass(frozen=True)
class RowIndex:
    """The distinct rows of a rank's lookups, and their prefixes.

    lookups : i64[n], the lookups that have a row. row : i64[n], of each of them.
    sample : i64[U], for each row one of the lookups that look it up.
    prefix, third : i64[U], of each row its prefix and its line of core 3.
    first, second : i64[m], of each prefix its lines of cores 1 and 2.
    """

    lookups: Ints
    row: Ints
    sample: Ints
    prefix: Ints
    third: Ints
    first: Ints
    second: Ints


def index_rows(
    lookups: Ints, rows: list[Ints], lines: list[Ints], factors: tuple[int, int, int]
) -> RowIndex:
    """The distinct rows of those lookups that have one.

    rows, lines : i64[all lookups] for each core, its row of each lookup and where it stands among
    the rows that were fetched. factors : p1, p2, p3.
    """
    first, second, third = (core[lookups] for core in rows)
    _, p2, p3 = factors
    distinct, row = np.unique((first * p2 + second) * p3 + third, return_inverse=True)
    sample = np.empty(distinct.size, np.int64)
    sample[row] = lookups
    # rows ascend, so rows of one prefix are neighbours
    prefix_starts = starts_of(distinct // p3)
    prefix = np.repeat(np.arange(prefix_starts.size - 1), np.diff(prefix_starts))
    # all rows of a prefix have the same lines of cores 1 and 2: any lookup will do
    leader = sample[prefix_starts[:-1]]
    return RowIndex(
        lookups=lookups,
        row=row.astype(np.int64),
        sample=sample,
        prefix=prefix,
        third=lines[2][sample],
        first=lines[0][leader],
        second=lines[1][leader],
    )


@dataclass(frozen=True)
class GradientIndex:
    """The pairs and nodes of a rank's leaves.

    pair : i64[n], of each lookup that has a row. row, leaf : i64[N], of each pair.
    nodes : i64[M+1], the pairs of each node. prefix, node_leaf : i64[M], of each node.
    """

    pair: Ints
    row: Ints
    leaf: Ints
    nodes: Ints
    prefix: Ints
    node_leaf: Ints


def index_gradients(index: RowIndex, leaf: Ints) -> GradientIndex:
    """The pairs of lookups; leaf : i64[n], of each lookup that has a row."""
    distinct_rows = index.sample.size
    pairs, pair = np.unique(leaf * distinct_rows + index.row, return_inverse=True)
    # a rank may have no lookups at all
    row = pairs % max(distinct_rows, 1)
    pair_leaf = pairs // max(distinct_rows, 1)
    prefixes = index.first.size
    nodes = starts_of(pair_leaf * prefixes + index.prefix[row])
    leaders = nodes[:-1]
    return GradientIndex(
        pair=pair.astype(np.int64),
        row=row,
        leaf=pair_leaf,
        nodes=nodes,
        prefix=index.prefix[row[leaders]],
        node_leaf=pair_leaf[leaders],
    )


CORES = 3
CHAINS = 16  # the kernels take ranks that are multiples of it


class TensorTrain:
    """One key of a table of kind "tt". vectors : its layout."""

    def __init__(self, vectors: KeyVectors, parameters: FloatsByName) -> None:
        options = dict(vectors.options)
        self._factors: tuple[int, int, int] = options["rows"]
        self._dims: tuple[int, int, int] = options["dims"]
        self._rank: int = options["rank"]
        # of the kernels
        # zeros behind the rank add +0 to chains: no bit changes
        self._wide = -(-self._rank // CHAINS) * CHAINS
        self._sources: Sequence[KeyLookups] = ()
        self._cores: list[Floats] = []
        self._index: RowIndex | None = None
        self._kept: Ints = np.empty(0, np.int64)  # lookups of rows that are kept as they are
        q1, q2, _ = self._dims
        self._prefixes = Buffer(q1 * q2 * self._wide)
        self._prefix_gradients = Buffer(q1 * q2 * self._wide)
        q = self._dims
        widths = (q[0] * self._wide, self._wide * q[1] * self._wide, q[2] * self._wide)
        self._terms = [Buffer(width) for width in widths]
        self._rows = Buffer(vectors.dim)

    # ---- forward ----

    def forward(self, sources: Sequence[KeyLookups], out: Floats) -> None:
        """out f32[n, D], the row of each lookup times its weight; a lookup of no row has zeros."""
        self._sources = sources
        cores = sources[:CORES]
        self._cores = [self._padded(core, source.values) for core, source in enumerate(cores)]
        lines = [_lines(source) for source in cores]
        made = sources[0].rows >= 0
        self._kept = np.empty(0, np.int64)
        if len(sources) > CORES:
            self._kept = np.flatnonzero(sources[CORES].rows >= 0)
            # a kept row is no product any more, and its cores get no gradient
            made[self._kept] = False
        rows_of_cores = [source.rows for source in cores]
        index = index_rows(np.flatnonzero(made), rows_of_cores, lines, self._factors)
        self._index = index
        core1, core2, core3 = self._cores
        prefixes = self._prefixes.matrix(index.first.size)
        order, starts = grouped(index.second)
        q1 = self._dims[0]
        tt.prefixes(core1, core2, index.first, index.second, order, starts, q1, prefixes)
        rows = self._rows.matrix(index.sample.size)
        tt.rows(prefixes, core3, index.prefix, index.third, self._wide, rows)
        if index.lookups.size < len(out):
            out[:] = 0
            out[index.lookups] = rows[index.row]
        else:
            # every lookup has a row, so nothing need be cleared
            np.take(rows, index.row, axis=0, out=out)
        if self._kept.size:
            cache = sources[CORES]
            out[self._kept] = cache.values[_lines(cache)[self._kept]]
        weights = sources[0].weights
        if weights is not None:
            np.multiply(out, weights[:, None], out=out)

    def _padded(self, core: int, rows: Floats) -> Floats:
        """Rows of a core with lines of the kernels' rank: +0 behind the numbers that there are."""
        if self._wide == self._rank:
            return rows
        wide = self._wide
        q = self._dims[core]
        shape = (len(rows), self._rank, q, self._rank) if core == 1 else (len(rows), q, self._rank)
        target = (len(rows), wide, q, wide) if core == 1 else (len(rows), q, wide)
        padded = np.zeros(target, np.float32)
        padded[tuple(slice(size) for size in shape)] = rows.reshape(shape)
        return padded.reshape(len(rows), int(np.prod(target[1:])))

    def _unpadded(self, core: int, rows: Floats) -> Floats:
        """Rows of a core as its table has them."""
        if self._wide == self._rank:
            return rows
        wide = self._wide
        q = self._dims[core]
        if core == 1:
            square = rows.reshape(len(rows), wide, q, wide)[:, : self._rank, :, : self._rank]
            return square.reshape(len(rows), self._rank * q * self._rank)
        lines = rows.reshape(len(rows), q, wide)[:, :, : self._rank]
        return lines.reshape(len(rows), q * self._rank)

    # ---- backward ----

    def backward(self, gradient: Floats) -> Sequence[RowTerms]:
        """Gradients of core rows, one for each leaf and row of it, from that of `out`."""
        index = self._index
        assert index is not None
        weights = self._sources[0].weights
        if weights is not None:
            gradient = gradient * weights[:, None]
        leaves = index_gradients(index, self._leaf_of_lookups()[index.lookups])
        order, starts = grouped(leaves.pair)
        merged = summed(SumsOfRows(gradient, index.lookups[order], starts), lookup)
        prefix_gradients = self._prefix_gradients.matrix(leaves.prefix.size)
        third = index.third[leaves.row]
        tt.prefix_gradients(
            merged, self._cores[2], third, leaves.nodes, self._wide, prefix_gradients
        )
        terms = (
            self._first_terms(index, leaves, prefix_gradients),
            self._second_terms(index, leaves, prefix_gradients),
            self._third_terms(index, leaves, merged),
        )
        by_core = [
            RowTerms(self._unpadded(core, rows), ids) for core, (rows, ids) in enumerate(terms)
        ]
        kept = self._kept
        by_cache = [RowTerms(gradient[kept], source.rows[kept]) for source in self._sources[CORES:]]
        return by_core + by_cache

    def _leaf_of_lookups(self) -> Ints:
        """i64[n], the leaf of each lookup, counted from this rank's first."""
        source = self._sources[0]
        cuts = source.offsets[source.leaves]
        return np.repeat(np.arange(cuts.size - 1), np.diff(cuts))

    def _first_terms(
        self, index: RowIndex, leaves: GradientIndex, gradient: Floats
    ) -> tuple[Floats, Ints]:
        """Gradients of (leaf, row of core 1), and the rows."""
        q1 = self._dims[0]
        first = index.first[leaves.prefix]
        runs = starts_of(leaves.node_leaf * len(self._cores[0]) + first)
        out = self._terms[0].matrix(runs.size - 1)
        second = index.second[leaves.prefix]
        order, starts = grouped(second)
        tt.first_gradients(self._cores[1], second, gradient, order, starts, runs, q1, out)
        # nodes of a run share their row of core 1: the first one names it
        return out, self._row_numbers(0, leaves.nodes[runs[:-1]], index, leaves)

    def _second_terms(
        self, index: RowIndex, leaves: GradientIndex, gradient: Floats
    ) -> tuple[Floats, Ints]:
        """Gradients of (leaf, row of core 2), and the rows."""
        q1 = self._dims[0]
        second = index.second[leaves.prefix]
        order, starts = grouped(leaves.node_leaf * len(self._cores[1]) + second)
        out = self._terms[1].matrix(starts.size - 1)
        first = index.first[leaves.prefix]
        tt.second_gradients(self._cores[0], first, gradient, order, starts, q1, out)
        return out, self._row_numbers(1, leaves.nodes[order[starts[:-1]]], index, leaves)

    def _third_terms(
        self, index: RowIndex, leaves: GradientIndex, merged: Floats
    ) -> tuple[Floats, Ints]:
        """Gradients of (leaf, row of core 3), and the rows."""
        order, starts = grouped(leaves.leaf * len(self._cores[2]) + index.third[leaves.row])
        out = self._terms[2].matrix(starts.size - 1)
        lines = index.prefix[leaves.row]
        prefixes = self._prefixes.matrix(index.first.size)
        tt.third_gradients(merged, prefixes, lines, order, starts, self._wide, out)
        return out, self._row_numbers(2, order[starts[:-1]], index, leaves)

    def _row_numbers(self, core: int, pairs: Ints, index: RowIndex, leaves: GradientIndex) -> Ints:
        """The row of a core that each of these pairs has."""
        return self._sources[core].rows[index.sample[leaves.row[pairs]]]

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """It has no parameters of its own: its cores are tables."""


def _lines(source: KeyLookups) -> Ints:
    return np.arange(source.rows.size) if source.lines is None else source.lines
