"""How do the embeddings of a sample meet? By the dot products of all pairs, each one chain of fused multiply-adds.

A sample's E is a matrix of `count` rows of `dim` columns: the bottom MLP's output first, then one row per key. The
dots are the lower triangle of E Eᵀ, row by row; E's first row goes through unchanged (Neo §2, Figure 2; DLRM's "dot"):

    out = [E[0, :], E[1]·E[0], E[2]·E[0], E[2]·E[1], E[3]·E[0], ...]        with `diagonal` also E[i]·E[i], i from 0

Forward: E is transposed, [dim][count], so that vector lanes run over pairs (i, j), (i, j+1), ... and each dot product
stays its own chain over ascending columns (`docs/arithmetic.md` §7). Backward: the gradients of the dots become a
symmetric matrix S, and dE = S E without its diagonal, lanes over columns, chains over ascending rows j.
"""

import numpy as np
from numba import prange
from numba.extending import register_jitable

from neocpu.kernels._jit import parallel_kernel
from neocpu.kernels.simd import prefetch
from neocpu.kernels.simd_tiles import (
    LANES,
    MR,
    NC,
    copy_lanes,
    mirror_block,
    slim_chains,
    slim_gap_chains,
    tile_chains,
    tile_gap_chains,
    transpose_block,
)

_CHUNK = 32  # samples that one thread does with one scratch
_ZERO = np.float32(0)


@register_jitable
def _up(n, unit):
    """n rounded up to a multiple of unit."""
    return (n + unit - 1) // unit * unit


@register_jitable
def _turn(e, at, count, dim, stride, out):
    """out[d*stride + i] = e[at + i*dim + d], +0 for the rows i from count up to stride."""
    whole = dim // LANES * LANES
    for i in range(0, stride, LANES):
        for d in range(0, whole, LANES):
            transpose_block(e, at + i * dim + d, dim, count - i, out, d * stride + i, stride)
    for d in range(whole, dim):
        for i in range(stride):
            out[d * stride + i] = e[at + i * dim + d] if i < count else _ZERO


@register_jitable
def _copy(source, source_at, target, target_at, size):
    """Copy `size` floats and up to LANES - 1 more."""
    for c in range(0, size, LANES):
        copy_lanes(source, source_at + c, target, target_at + c)


@register_jitable
def _panels(count):
    """Panels of MR rows that cover `count` rows; the last one overlaps the one before it where rows suffice."""
    return (count + MR - 1) // MR


@register_jitable
def _panel(p, count):
    """First row of panel p."""
    return max(0, min(p * MR, count - MR))


@register_jitable
def _ahead(x, start, size, part, parts):
    """Prefetch share `part` of `parts` of x[start : start + size]."""
    for c in range(start + size * part // parts // 16 * 16, start + size * (part + 1) // parts, 16):
        prefetch(x, c)


@parallel_kernel
def dot_forward(e, dim, diagonal, out):
    """Dot interaction of every sample.

    Shapes: e f32[b, count*dim], row 0 of a sample first; dim i64; diagonal bool; out f32[b, dim + pairs], pairs =
    count(count-1)/2, with diagonal count(count+1)/2. Source: Neo §2; docs/arithmetic.md §7.
    Order: each dot product is a chain over ascending columns of fma(e[i, d], e[j, d], ·) from +0.
    """
    samples, width, size, own = e.shape[0], out.shape[1], e.shape[1], 1 if diagonal else 0
    count, flat = size // dim, e.reshape(-1)
    stride, high = _up(count, NC), _up(count, MR)
    for chunk in prange((samples + _CHUNK - 1) // _CHUNK):
        turned = np.zeros(dim * stride + MR + LANES, np.float32)
        dots, line = np.zeros(high * stride, np.float32), np.zeros(width + LANES, np.float32)
        last = min(samples, (chunk + 1) * _CHUNK) - 1
        for s in range(chunk * _CHUNK, last + 1):
            _turn(flat, s * size, count, dim, stride, turned)
            for p in range(_panels(count)):
                if s < last:
                    _ahead(flat, (s + 1) * size, size, p, _panels(count))
                i = _panel(p, count)
                reach = min(count, i + MR)
                for j in range(0, reach, NC):
                    if reach - j > LANES:
                        tile_chains(turned, i, stride, turned, j, stride, dim, dots, i * stride + j, stride, 1)
                    else:
                        slim_chains(turned, i, stride, turned, j, stride, dim, dots, i * stride + j, stride, 1)
            at = dim
            for i in range(count):
                _copy(dots, i * stride, line, at, i + own)
                at += i + own
            row, first = out[s], e[s]
            for d in range(dim):
                row[d] = first[d]
            for c in range(dim, width):
                row[c] = line[c]


@register_jitable
def _symmetric(line, at, count, own, stride, s):
    """s[i*stride + j] = s[j*stride + i] = gradient of dot (i, j); its diagonal 2a if there is one."""
    for i in range(count):
        _copy(line, at, s, i * stride, i + own)
        if own:
            s[i * stride + i] = line[at + i] + line[at + i]
        at += i + own
    for i in range(0, count, LANES):
        mirror_block(s, i * stride + i, stride)
        for j in range(0, i, LANES):
            transpose_block(s, i * stride + j, stride, LANES, s, j * stride + i, stride)


@register_jitable
def _rows(source, source_at, source_step, target, target_at, target_step, count, dim):
    """Copy `count` rows of `dim` floats from one stride to another."""
    for i in range(count):
        here = source[source_at + i * source_step : source_at + i * source_step + dim]
        there = target[target_at + i * target_step : target_at + i * target_step + dim]
        for d in range(dim):
            there[d] = here[d]


@parallel_kernel
def dot_backward(e, g, dim, diagonal, out):
    """Gradient of the dot interaction with respect to E.

    Shapes: e f32[b, count*dim]; g f32[b, dim + pairs], gradient of `dot_forward`'s output; out f32[b, count*dim].
    Source: Neo §2; docs/arithmetic.md §7.
    Order: out[i, d] is a chain over ascending j of fma(a_ij, e[j, d], ·) from +0, j != i (with `diagonal` also j = i,
    its coefficient fl(a_ii + a_ii)); then g[d] is added to row 0.
    """
    samples, size, width, own = e.shape[0], e.shape[1], g.shape[1], 1 if diagonal else 0
    count, flat, target = size // dim, e.reshape(-1), out.reshape(-1)
    stride, high, wide = _up(count, LANES), _up(count, MR), _up(dim, LANES)
    direct = wide == dim and count >= MR  # whole tiles only: no scratch between E, the tiles and the result
    for chunk in prange((samples + _CHUNK - 1) // _CHUNK):
        pairs, line = np.zeros(stride * stride + MR + LANES, np.float32), np.zeros(width + LANES, np.float32)
        scratch, sums = np.zeros(count * wide + LANES, np.float32), np.zeros(high * wide, np.float32)
        last = min(samples, (chunk + 1) * _CHUNK) - 1
        for s in range(chunk * _CHUNK, last + 1):
            gradient, top = g[s], out[s]
            for c in range(width):
                line[c] = gradient[c]
            _symmetric(line, dim, count, own, stride, pairs)
            rows, rows_at, into, into_at = flat, s * size, target, s * size
            if not direct:
                _rows(flat, s * size, dim, scratch, 0, wide, count, dim)
                rows, rows_at, into, into_at = scratch, 0, sums, 0
            for p in range(_panels(count)):
                if s < last:
                    _ahead(flat, (s + 1) * size, size, p, _panels(count))
                i = _panel(p, count)
                for d in range(0, wide, NC):
                    at = into_at + i * wide + d
                    if wide - d > LANES:
                        tile_gap_chains(pairs, i, stride, rows, rows_at + d, wide, count, i, 1 - own, into, at, wide)
                    else:
                        slim_gap_chains(pairs, i, stride, rows, rows_at + d, wide, count, i, 1 - own, into, at, wide)
            if not direct:
                _rows(sums, 0, wide, target, s * size, dim, count, dim)
            for d in range(dim):
                top[d] += line[d]
