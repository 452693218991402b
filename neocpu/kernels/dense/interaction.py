"""How do the embeddings of a sample meet? By the dot products of all pairs, each one chain of fused
multiply-adds.

A sample's E is a matrix of `count` rows of `dim` columns: the bottom MLP's output first, then one
row per key. The dots are the lower triangle of E Eᵀ, row by row; E's first row goes through
unchanged (DLRM's "dot"):

    out = [E[0, :], E[1]·E[0], E[2]·E[0], E[2]·E[1], E[3]·E[0], ...]

With `diagonal` also E[i]·E[i], i from 0.

Forward: E is transposed, [dim][count], so that vector lanes run over pairs (i, j), (i, j+1), ...
and each dot product stays its own chain over ascending columns (`docs/arithmetic.md` §6). Backward:
the gradients of the dots become a symmetric matrix S, and dE = S E without its diagonal, lanes over
columns, chains over ascending rows j.
"""

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import kernel, parallel_kernel
from neocpu.kernels.operands import Position
from neocpu.kernels.simd import prefetch
from neocpu.kernels.simd.panels import (
    add_floats,
    copy_floats,
    copy_lanes,
    mirror_block,
    transpose_block,
)
from neocpu.kernels.simd.tiles import LANES, MR, gap_chains, slim_chains

_CHUNK = 32  # samples that one thread does with one scratch


@kernel
def _up(n, unit):
    """n rounded up to a multiple of unit."""
    return (n + unit - 1) // unit * unit


@kernel
def _ahead(x, start, size, part, parts):
    """Prefetch share `part` of `parts` of x[start : start + size]."""
    for c in range(start + size * part // parts // 16 * 16, start + size * (part + 1) // parts, 16):
        prefetch(x, c)


@kernel
def _copy(source, source_at, target, target_at, size):
    """Copy `size` floats and up to LANES - 1 more."""
    for c in range(0, size, LANES):
        copy_lanes(source, source_at + c, target, target_at + c)


@kernel
def _turn(e, at, count, dim, stride, out):
    """out[d*stride + i] = e[at + i*dim + d]; the rows i from count up to stride repeat the last
    one.
    """
    whole = dim // LANES * LANES
    for i in range(0, stride, LANES):
        for d in range(0, whole, LANES):
            transpose_block(e, at + i * dim + d, dim, count - i, out, d * stride + i, stride)
    # the columns that fill no block, and their repeated rows
    for i in range(stride):
        for d in range(whole, dim):
            out[d * stride + i] = e[at + min(i, count - 1) * dim + d]


@parallel_kernel
def _forward(e, samples, count, dim, own, out):
    """`dot_forward` on flat arrays; own is 1 with the diagonal, else 0."""
    size = count * dim
    stride = _up(count, LANES)
    high = _up(count, MR)
    width = dim + count * (count - 1 + 2 * own) // 2
    for chunk in prange((samples + _CHUNK - 1) // _CHUNK):
        # MR + LANES more: the last tile and the last block may reach beyond the rows
        turned = np.zeros(dim * stride + MR + LANES, np.float32)
        # zeros: what no tile writes is read by whole vectors, and leftovers may be subnormal
        dots = np.zeros(high * stride, np.float32)
        line = np.zeros(width + LANES, np.float32)
        first = np.int64(chunk) * _CHUNK
        last = min(samples, first + _CHUNK) - 1
        for s in range(first, last + 1):
            _turn(e, s * size, count, dim, stride, turned)
            for i in range(0, count, MR):
                if s < last:
                    # a share of the next sample with each panel, so that requests and products
                    # alternate
                    _ahead(e, (s + 1) * size, size, i, high)
                # tiles of the lower triangle only, and of those on the diagonal all of it
                for j in range(0, min(count, i + MR), LANES):
                    left = Position(i, stride)
                    right = Position(j, stride)
                    into = Position(i * stride + j, stride)
                    slim_chains(turned, left, turned, right, dim, dots, into, 1, 0, Position(j, 0))
            # Rows of the triangle have every length, so they are written one behind the other with
            # up to LANES - 1 floats too many, which the next row replaces.
            at = dim
            for i in range(count):
                _copy(dots, i * stride, line, at, i + own)
                at += i + own
            copy_floats(e, s * size, out, s * width, dim)
            # by way of a line of its own: a vector too long would write into the next sample, of
            # another thread
            copy_floats(line, dim, out, s * width + dim, width - dim)


@kernel
def _symmetric(line, at, count, own, stride, s):
    """s[i*stride + j] = s[j*stride + i] = gradient of dot (i, j); twice that on the diagonal."""
    for i in range(count):
        _copy(line, at, s, i * stride, i + own)
        if own:
            s[i * stride + i] = line[at + i] + line[at + i]
        at += i + own
    # S is symmetric: its upper half is the lower one, transposed block by block in registers
    for i in range(0, count, LANES):
        mirror_block(s, i * stride + i, stride)
        for j in range(0, i, LANES):
            transpose_block(s, i * stride + j, stride, LANES, s, j * stride + i, stride)


@parallel_kernel
def _backward(e, g, samples, count, dim, own, out):
    """`dot_backward` on flat arrays; own is 1 with the diagonal, else 0."""
    size = count * dim
    stride = _up(count, LANES)
    high = _up(count, MR)
    wide = _up(dim, LANES)
    width = dim + count * (count - 1 + 2 * own) // 2
    # whole tiles only: no scratch between E, the tiles and the result
    direct = wide == dim and count >= MR
    for chunk in prange((samples + _CHUNK - 1) // _CHUNK):
        pairs = np.zeros(stride * stride + MR + LANES, np.float32)
        line = np.zeros(width + LANES, np.float32)
        scratch = np.zeros(count * wide + LANES, np.float32)
        sums = np.zeros(high * wide, np.float32)
        first = np.int64(chunk) * _CHUNK
        last = min(samples, first + _CHUNK) - 1
        for s in range(first, last + 1):
            copy_floats(g, s * width, line, 0, width)
            _symmetric(line, dim, count, own, stride, pairs)
            rows = e
            rows_at = s * size
            into = out
            into_at = s * size
            if not direct:
                for i in range(count):
                    copy_floats(e, s * size + i * dim, scratch, i * wide, dim)
                rows = scratch
                rows_at = 0
                into = sums
                into_at = 0
            for panel in range(0, count, MR):
                if s < last:
                    _ahead(e, (s + 1) * size, size, panel, high)
                # the last panel overlaps the one before it where rows suffice
                i = max(0, min(panel, count - MR))
                for d in range(0, wide, LANES):
                    left = Position(i, stride)
                    right = Position(rows_at + d, wide)
                    at = Position(into_at + i * wide + d, wide)
                    gap_chains(pairs, left, rows, right, count, i, 1 - own, into, at)
            if not direct:
                for i in range(count):
                    copy_floats(sums, i * wide, out, s * size + i * dim, dim)
            # last: the gradient of E's first row, which goes through unchanged (docs/arithmetic.md
            # §6)
            add_floats(line, 0, out, s * size, dim)


def dot_forward(e, dim, diagonal, out):
    """Dot interaction of every sample.

    Shapes: e f32[b, count*dim], row 0 of a sample first; dim int; diagonal bool; out f32[b, dim +
    pairs], pairs = count(count-1)/2, with diagonal count(count+1)/2; C-contiguous. Source: Neo;
    docs/arithmetic.md §6.
    Order: each dot product is a chain over ascending columns of fma(e[i, d], e[j, d], ·) from +0.
    """
    _forward(e.reshape(-1), e.shape[0], e.shape[1] // dim, dim, int(diagonal), out.reshape(-1))


def dot_backward(e, g, dim, diagonal, out):
    """Gradient of the dot interaction with respect to E.

    Shapes: e f32[b, count*dim]; g f32[b, dim + pairs], gradient of `dot_forward`'s output; out
    f32[b, count*dim]; C-contiguous. Source: Neo; docs/arithmetic.md §6.
    Order: out[i, d] is a chain over ascending j of fma(a_ij, e[j, d], ·) from +0, j != i (with
    `diagonal` also j = i, its coefficient fl(a_ii + a_ii)); then g[d] is added to row 0.
    """
    _backward(
        e.reshape(-1),
        g.reshape(-1),
        e.shape[0],
        e.shape[1] // dim,
        dim,
        int(diagonal),
        out.reshape(-1),
    )
