"""How are rows of a tensor-train table made of its cores, and gradients taken back to them?

Row i = (i1, i2, i3) of D = q1 q2 q3 numbers, with the rows of three cores as matrices (R: rank):

    P[i1, i2] = G1[i1] G2[i2]          (q1 x R) (R x q2 R)  -> (q1 q2) x R     once for each prefix
    E[i]      = P[i1, i2] G3[i3]       (q1 q2 x R) (R x q3) -> q1 q2 x q3      once for each row

    core 1 row: [q1][R]      core 2 row: [R][q2][R]      core 3 row: [q3][R], transposed

The adjoint begins with gradients of rows, one for each *pair* of a leaf of the batch and a distinct
row, in this order; a *node* is a leaf and a distinct prefix, a run of pairs:

    dP[node] = sum of its pairs' dE G3^T                     prefix_gradients
    dG3[leaf, i3] = sum over pairs of P^T dE                 third_gradients
    dG2[leaf, i2] = sum over nodes of G1^T dP                second_gradients
    dG1[leaf, i1] = sum over nodes of dP G2^T                first_gradients

R is a multiple of 16 here; of another rank, numbers +0 fill the lines up. Rows that share a factor
are done one after the other, so that it stays in the first-level cache; nothing is packed but the
few rows that make one gradient of core 2.

Source: docs/arithmetic.md §14. Oseledets 2011; Yin et al. 2021 (TT-Rec), arXiv 2101.11714; Wang et
al. 2022 (EL-Rec).
"""

from typing import NamedTuple

import numpy as np
from numba import get_num_threads, prange
from numpy.typing import NDArray

from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.simd import take_next
from neocpu.kernels.simd.panels import add_floats, clear_floats, copy_floats
from neocpu.kernels.simd.strips import (
    ROWS,
    WIDE,
    pair_chains,
    slim_strip,
    strip_dots,
    wide_chains,
)
from neocpu.kernels.simd.tiles import LANES

_CHUNK = 32  # rows or groups that a thread takes at a time


class TrainSizes(NamedTuple):
    """Sizes of the matrices; those that a kernel does not need are 0.

    pairs : q1 q2
    rank  : R
    width : q2 R
    """

    q1: int
    pairs: int
    q3: int
    rank: int
    width: int


class Members(NamedTuple):
    """Groups: group g has members order[starts[g]], ..., order[starts[g+1] - 1]."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]


class StripRows(NamedTuple):
    """Four rows of a matrix: number k of row i is values[at[i] + k*step]."""

    values: NDArray[np.float32]
    at: NDArray[np.int64]
    step: int


class StripLines(NamedTuple):
    """Lines that multiply a strip's rows: line k of `lines` begins at values[at + k*step]."""

    values: NDArray[np.float32]
    at: int
    step: int
    lines: int


@inlined
def _chains(rows, lines, out, into, columns, fresh):
    """Chains of a strip over all columns, a multiple of 16, into out[into[i] + column]."""
    j = np.int64(0)
    while columns - j >= WIDE * LANES:
        wide_chains(rows, lines, out, into, j, fresh)
        j += WIDE * LANES
    while columns - j >= 2 * LANES:
        pair_chains(rows, lines, out, into, j, fresh)
        j += 2 * LANES
    while j < columns:
        slim_strip(rows, lines, out, into, j, fresh)
        j += LANES


@inlined
def _lines(start, step, first, count, places):
    """places[i] = where line first + i of `count` begins; the last one again behind it."""
    for i in range(ROWS):
        places[i] = start + min(first + i, count - 1) * step


@inlined
def _next_rows(order, member, end, row, q1, numbers, inner):
    """The next four rows of the members of a group, of q1 rows each, the last one again behind the
    group's end: member numbers[i], its row inner[i]. Returns the member and row that come then.
    """
    # strips are always full: the last row again, which is written twice with the same bits
    for i in range(ROWS):
        numbers[i] = order[min(member, end - 1)]
        inner[i] = row if member < end else q1 - 1
        row += 1
        if row == q1:
            row = np.int64(0)
            member += 1
    return member, row


@parallel_kernel
def _prefixes(core1, core2, first, second, groups, sizes, threads, out):
    """`prefixes` on flat arrays."""
    q1, _, _, rank, width = sizes
    order, starts = groups
    counter = np.zeros(1, np.int64)
    for _ in prange(threads):
        numbers = np.empty(ROWS, np.int64)
        inner = np.empty(ROWS, np.int64)
        at = np.empty(ROWS, np.int64)
        into = np.empty(ROWS, np.int64)
        # Groups differ in size, by how often their row of core 2 is used: threads take them as they
        # come.
        group = take_next(counter)
        while group < starts.size - 1:
            member = starts[group]
            end = starts[group + 1]
            line = second[order[member]] * rank * width
            row = np.int64(0)
            while member < end:
                member, row = _next_rows(order, member, end, row, q1, numbers, inner)
                for i in range(ROWS):
                    at[i] = (first[numbers[i]] * q1 + inner[i]) * rank
                    into[i] = (numbers[i] * q1 + inner[i]) * width
                left = StripRows(core1, at, 1)
                _chains(left, StripLines(core2, line, width, rank), out, into, width, 1)
            group = take_next(counter)


@parallel_kernel
def _rows(prefix, core3, lines, third, sizes, out):
    """`rows` on flat arrays."""
    _, pairs, q3, rank, _ = sizes
    for chunk in prange((lines.size + _CHUNK - 1) // _CHUNK):
        at = np.empty(ROWS, np.int64)
        right = np.empty(ROWS, np.int64)
        into = np.empty(ROWS, np.int64)
        block = np.empty(ROWS * ROWS, np.float32)
        first = np.int64(chunk) * _CHUNK
        for u in range(first, min(first + _CHUNK, lines.size)):
            for i in range(0, pairs, ROWS):
                _lines(lines[u] * pairs * rank, rank, i, pairs, at)
                for j in range(0, q3, ROWS):
                    _lines(third[u] * q3 * rank, rank, j, q3, right)
                    cell = (u * pairs + i) * q3 + j
                    # A strip's four columns lie side by side: where fewer are left, the rest is
                    # copied from a block.
                    if i + ROWS <= pairs and j + ROWS <= q3:
                        _lines(cell, q3, 0, ROWS, into)
                        strip_dots(prefix, at, core3, right, rank, out, into)
                        continue
                    _lines(0, ROWS, 0, ROWS, into)
                    strip_dots(prefix, at, core3, right, rank, block, into)
                    for k in range(min(ROWS, pairs - i)):
                        for m in range(min(ROWS, q3 - j)):
                            out[cell + k * q3 + m] = block[k * ROWS + m]


@parallel_kernel
def _prefix_gradients(gradient, core3, third, starts, sizes, out):
    """`prefix_gradients` on flat arrays."""
    _, pairs, q3, rank, _ = sizes
    nodes = starts.size - 1
    for chunk in prange((nodes + _CHUNK - 1) // _CHUNK):
        at = np.empty(ROWS, np.int64)
        into = np.empty(ROWS, np.int64)
        first = np.int64(chunk) * _CHUNK
        for node in range(first, min(first + _CHUNK, nodes)):
            for i in range(0, pairs, ROWS):
                _lines(node * pairs * rank, rank, i, pairs, into)
                # one chain over all pairs of the node: the first begins at +0, the others go on
                # from memory
                fresh = 1
                for pair in range(starts[node], starts[node + 1]):
                    _lines(pair * pairs * q3, q3, i, pairs, at)
                    line = third[pair] * q3 * rank
                    left = StripRows(gradient, at, 1)
                    _chains(left, StripLines(core3, line, rank, q3), out, into, rank, fresh)
                    fresh = 0


@parallel_kernel
def _third_gradients(gradient, prefix, lines, members, sizes, out):
    """`third_gradients` on flat arrays."""
    _, pairs, q3, rank, _ = sizes
    order, starts = members
    groups = starts.size - 1
    for chunk in prange((groups + _CHUNK - 1) // _CHUNK):
        at = np.empty(ROWS, np.int64)
        into = np.empty(ROWS, np.int64)
        first = np.int64(chunk) * _CHUNK
        for group in range(first, min(first + _CHUNK, groups)):
            for i in range(0, q3, ROWS):
                _lines(group * q3 * rank, rank, i, q3, into)
                fresh = 1
                for member in range(starts[group], starts[group + 1]):
                    pair = order[member]
                    _lines(pair * pairs * q3, 1, i, q3, at)
                    line = lines[pair] * pairs * rank
                    left = StripRows(gradient, at, q3)
                    _chains(left, StripLines(prefix, line, rank, pairs), out, into, rank, fresh)
                    fresh = 0


@parallel_kernel
def _second_gradients(core1, first, gradient, members, sizes, most, out):
    """`second_gradients` on flat arrays; most : members of the largest group."""
    q1, _, _, rank, width = sizes
    order, starts = members
    groups = starts.size - 1
    for chunk in prange((groups + _CHUNK - 1) // _CHUNK):
        at = np.empty(ROWS, np.int64)
        into = np.empty(ROWS, np.int64)
        left = np.empty(most * q1 * rank, np.float32)
        right = np.empty(most * q1 * width, np.float32)
        begin = np.int64(chunk) * _CHUNK
        for group in range(begin, min(begin + _CHUNK, groups)):
            count = starts[group + 1] - starts[group]
            for member in range(count):
                node = order[starts[group] + member]
                size = q1 * rank
                # Packed, for the steps of a chain go across nodes, and those of a group are
                # anywhere.
                copy_floats(core1, first[node] * size, left, member * size, size)
                size = q1 * width
                copy_floats(gradient, node * size, right, member * size, size)
            for i in range(0, rank, ROWS):
                _lines(i, 1, 0, ROWS, at)
                _lines((group * rank + i) * width, width, 0, ROWS, into)
                lines = StripLines(right, 0, width, count * q1)
                _chains(StripRows(left, at, rank), lines, out, into, width, 1)


@parallel_kernel
def _first_gradients(core2, second, gradient, members, runs, sizes, parts, out):
    """`first_gradients` on flat arrays; parts : f32[nodes * q1 * R], of each node."""
    q1, _, _, rank, width = sizes
    order, starts = members
    groups = starts.size - 1
    for chunk in prange((groups + _CHUNK - 1) // _CHUNK):
        numbers = np.empty(ROWS, np.int64)
        inner = np.empty(ROWS, np.int64)
        at = np.empty(ROWS, np.int64)
        right = np.empty(ROWS, np.int64)
        into = np.empty(ROWS, np.int64)
        begin = np.int64(chunk) * _CHUNK
        for group in range(begin, min(begin + _CHUNK, groups)):
            member = starts[group]
            end = starts[group + 1]
            line = second[order[member]] * rank * width
            row = np.int64(0)
            while member < end:
                member, row = _next_rows(order, member, end, row, q1, numbers, inner)
                for i in range(ROWS):
                    at[i] = (numbers[i] * q1 + inner[i]) * width
                    into[i] = (numbers[i] * q1 + inner[i]) * rank
                for i in range(0, rank, ROWS):
                    _lines(line + i * width, width, 0, ROWS, right)
                    strip_dots(gradient, at, core2, right, width, parts, into)
                    for j in range(ROWS):
                        into[j] += ROWS
    size = q1 * rank
    for chunk in prange((runs.size - 1 + _CHUNK - 1) // _CHUNK):
        begin = np.int64(chunk) * _CHUNK
        for run in range(begin, min(begin + _CHUNK, runs.size - 1)):
            clear_floats(out, run * size, size)
            for node in range(runs[run], runs[run + 1]):
                add_floats(parts, node * size, out, run * size, size)


def prefixes(core1, core2, first, second, order, starts, q1, out):
    """Products of rows of cores 1 and 2: out[j] = G1[first[j]] G2[second[j]].

    Shapes: core1 f32[n1, q1*R]; core2 f32[n2, R*q2*R]; first, second i64[m], lines of the cores;
    order i64[m], the prefixes by groups of one `second`; starts i64[g+1], of the groups in order;
    q1 int; out f32[m, q1*q2*R]; R a multiple of 16, C-contiguous. Source: docs/arithmetic.md §14.
    Order: out[j][a, b, s] is a chain over ascending r of fma(G1[a, r], G2[r, b, s], .) from +0.
    """
    rank = core1.shape[1] // q1
    width = core2.shape[1] // rank
    sizes = TrainSizes(q1, 0, 0, rank, width)
    flat = (core1.reshape(-1), core2.reshape(-1), first, second, Members(order, starts), sizes)
    _prefixes(*flat, get_num_threads(), out.reshape(-1))


def rows(prefix, core3, lines, third, rank, out):
    """Rows of the table: out[u] = P[lines[u]] G3[third[u]].

    Shapes: prefix f32[m, q1*q2*R]; core3 f32[n3, q3*R]; lines, third i64[u]; rank int, R, a
    multiple of 16; out f32[u, q1*q2*q3]; C-contiguous. Source: docs/arithmetic.md §14.
    Order: out[u][i, c] is the sum over s of P[i, s] G3[c, s]: a chain of fused multiply-adds from
    +0 for each s mod 16, then a binary tree over the 16, neighbours first.
    """
    sizes = TrainSizes(0, prefix.shape[1] // rank, core3.shape[1] // rank, rank, 0)
    _rows(prefix.reshape(-1), core3.reshape(-1), lines, third, sizes, out.reshape(-1))


def prefix_gradients(gradient, core3, third, starts, rank, out):
    """Gradients of prefix products: out[n] = sum over the pairs of a node of dE[pair] G3^T.

    Shapes: gradient f32[N, q1*q2*q3], of pairs; core3 f32[n3, q3*R]; third i64[N], lines of core3;
    starts i64[M+1], node n has pairs [starts[n], starts[n+1]), one at least; rank int, R, a
    multiple of 16; out f32[M, q1*q2*R]; C-contiguous. Source: docs/arithmetic.md §14.
    Order: out[n][i, s] is one chain over ascending (pair, c) of fma(dE[i, c], G3[c, s], .) from +0.
    """
    sizes = TrainSizes(0, out.shape[1] // rank, core3.shape[1] // rank, rank, 0)
    flat = (gradient.reshape(-1), core3.reshape(-1), third, starts)
    _prefix_gradients(*flat, sizes, out.reshape(-1))


def third_gradients(gradient, prefix, lines, order, starts, rank, out):
    """Gradients of rows of core 3: out[g] = sum over a group's pairs of dE[pair]^T P.

    Shapes: gradient f32[N, q1*q2*q3], of pairs; prefix f32[m, q1*q2*R]; lines i64[N], of prefix;
    order i64[N], the pairs by groups; starts i64[G+1], of the groups in order, one pair at least
    each; rank int, R, a multiple of 16; out f32[G, q3*R]; C-contiguous. Source: docs/arithmetic.md
    §14. Order: out[g][c, s] is one chain over (pair in order, ascending i) of
    fma(dE[i, c], P[i, s], .) from +0.
    """
    sizes = TrainSizes(0, prefix.shape[1] // rank, out.shape[1] // rank, rank, 0)
    flat = (gradient.reshape(-1), prefix.reshape(-1), lines, Members(order, starts))
    _third_gradients(*flat, sizes, out.reshape(-1))


def second_gradients(core1, first, gradient, order, starts, q1, out):
    """Gradients of rows of core 2: out[g] = sum over a group's nodes of G1^T dP[node].

    Shapes: core1 f32[n1, q1*R]; first i64[M], its line for each node; gradient f32[M, q1*q2*R], of
    prefix products; order i64[M], the nodes by groups; starts i64[G+1], of the groups in order, one
    node at least each; q1 int; out f32[G, R*q2*R]; R a multiple of 16, C-contiguous. Source:
    docs/arithmetic.md §14.
    Order: out[g][r, b, s] is one chain over (node in order, ascending a) of
    fma(G1[a, r], dP[a, b, s], .) from +0.
    """
    rank = core1.shape[1] // q1
    width = gradient.shape[1] // q1
    sizes = TrainSizes(q1, 0, 0, rank, width)
    most = int(np.diff(starts).max(initial=0))
    flat = (core1.reshape(-1), first, gradient.reshape(-1), Members(order, starts))
    _second_gradients(*flat, sizes, most, out.reshape(-1))


def first_gradients(core2, second, gradient, order, starts, runs, q1, out):
    """Gradients of rows of core 1: out[g] = sum over a run of nodes of dP[node] G2^T.

    Shapes: core2 f32[n2, R*q2*R]; second i64[M], its line for each node; gradient f32[M, q1*q2*R],
    of prefix products; order i64[M], the nodes by groups of one `second`; starts i64[g+1], of the
    groups in order; runs i64[G+1], run g has nodes [runs[g], runs[g+1]); q1 int; out f32[G, q1*R];
    R a multiple of 16, C-contiguous. Source: docs/arithmetic.md §14.
    Order: of a node, the sum over k = (b, s) of dP[a, k] G2[r, k] is a chain of fused multiply-adds
    from +0 for each k mod 16, then a binary tree over the 16, neighbours first; nodes are added up
    from +0, ascending.
    """
    rank = out.shape[1] // q1
    width = gradient.shape[1] // q1
    # A node's part waits in memory: groups share a row of core 2, but sums go by rows of core 1.
    parts = np.empty(gradient.shape[0] * q1 * rank, np.float32)
    sizes = TrainSizes(q1, 0, 0, rank, width)
    flat = (core2.reshape(-1), second, gradient.reshape(-1), Members(order, starts), runs)
    _first_gradients(*flat, sizes, parts, out.reshape(-1))
