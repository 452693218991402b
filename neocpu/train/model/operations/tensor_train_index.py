"""Which products does a batch need of a tensor train, and which gradients go into which core row?

    lookup    (i1, i2, i3), as often as it is looked up
    row       a distinct (i1, i2, i3) of the rank's samples       forward: made once
    prefix    a distinct (i1, i2)                                 forward: multiplied once
    pair      a leaf of the batch and a distinct row of it        backward: gradients merged
    node      a leaf and a distinct prefix of it                  backward: gradients of prefixes

Everything ascends: rows by their number, pairs and nodes by leaf, then number. Gradients are made
by leaf, since a leaf is never cut between ranks: what goes into a core row does not depend on the
ranks.
"""

from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints


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
