"""How are matrices multiplied so that no tiling, thread count or vector width can change a bit?

Every output element is one chain of fp32 fused multiply-adds over the contracted index, ascending, from +0; a sum over
the batch is cut into leaves whose chains combine in a binary tree (`docs/arithmetic.md` §1, §2). Blocking only decides
when a chain is advanced: between blocks its value waits in the tile, it is never restarted.

    layer             out[b, n] = relu(sum_k x[b, k] w[n, k] + bias[n])         both contracted on the last axis
    input_gradient    out[b, k] = sum_n g[b, n] w[n, k], 0 where gate <= 0      last axis, first axis
    weight_gradient   out[n, k] = tree over leaves of sum_b g[b, n] x[b, k]     both on the first axis

One compiled kernel, `_product`, serves all three: they differ in how panels are packed and how a tile is finished.

    for a block of A panels (parallel)        packed once, stays in L2:  [panel][K][MR]
      for a B panel                           packed up front:           [panel][K][NC]
        for a leaf, for KC of its steps       the B part stays in L1
          for a panel of the block            tile += A part * B part in registers
        a leaf is done: add subtrees          a stack of tiles, depth log2(leaves) + 1
"""

import numpy as np
from numba import get_num_threads, prange
from numba.extending import register_jitable

from neocpu.kernels._jit import parallel_kernel
from neocpu.kernels.simd_tiles import (
    BIAS,
    BIAS_RELU,
    GATE,
    LANES,
    MR,
    NC,
    PLAIN,
    copy_a,
    copy_b,
    finish_tile,
    tile_chains,
    transpose_block,
)

_TILE = MR * NC
_KC = 256  # steps of a B panel that stay in the first-level cache: 256 * NC * 4 bytes = 32 KiB
_BLOCK = 196608  # floats of packed A panels that stay in the second-level cache: 768 KiB
_ZERO = np.float32(0)


@register_jitable
def _pack(x, first, k0, count, p0, p1, width, out, at):
    """Panels p0:p1 of x, `width` rows each: out[at + ((p - p0)*count + k)*width + r] = row p*width + r, step k0 + k.

    Steps run along axis 0 of x if `first`, else along axis 1. Rows beyond the last are +0. May spill LANES floats.
    """
    rows, size, stride = x.shape[1] if first else x.shape[0], count * width, x.shape[1]
    whole, p = min(p1, rows // width), p0
    if first:
        for k in range(count):
            row = (k0 + k) * stride
            for p in range(p0, whole):
                if width == NC:
                    copy_b(x, row + p * NC, out, at + (p - p0) * size + k * NC)
                else:
                    copy_a(x, row + p * MR, out, at + (p - p0) * size + k * MR)
        p0, at = max(p0, whole), at + (max(p0, whole) - p0) * size
    for p in range(p0, p1):
        r0, here = p * width, at + (p - p0) * size
        done = 0 if first else count // LANES * LANES
        for k in range(0, done, LANES):
            for r in range(0, width, LANES):
                transpose_block(x, (r0 + r) * stride + k0 + k, stride, rows - r0 - r, out, here + k * width + r, width)
        for k in range(done, count):
            for r in range(width):
                v = _ZERO
                if r0 + r < rows:
                    v = x[k0 + k, r0 + r] if first else x[r0 + r, k0 + k]
                out[here + k * width + r] = v


@register_jitable
def _finish(tiles, at, rows, columns, other, other_at, other_stride, mode, out, r0, c0):
    """Write a tile that sticks out of the matrix: what `finish_tile` does, element by element."""
    for r in range(rows):
        for c in range(columns):
            v = tiles[at + r * NC + c]
            if mode == GATE:
                v = _ZERO if other[other_at + r * other_stride + c] <= _ZERO else v
            elif mode != PLAIN:
                v += other[other_at + c]
                v = _ZERO if mode == BIAS_RELU and v <= _ZERO else v
            out[r0 + r, c0 + c] = v


@register_jitable
def _leaves(a_block, panels, b_panels, b_at, cuts, tiles):
    """tiles[:panels] = tree over leaves of chains, for a block of packed A panels against one packed B panel."""
    origin, steps, size, top = cuts[0], cuts[-1] - cuts[0], panels * _TILE, 0
    for leaf in range(cuts.size - 1):
        k, end, fresh = cuts[leaf] - origin, cuts[leaf + 1] - origin, 1
        while k < end or fresh:
            count = min(_KC, end - k)
            for i in range(panels):
                left, into = (i * steps + k) * MR, top * size + i * _TILE
                tile_chains(a_block, left, MR, b_panels, b_at + k * NC, NC, count, tiles, into, NC, fresh)
            k, fresh = k + count, 0
        done = leaf + 1
        while done & 1 == 0:
            lower, upper = tiles[(top - 1) * size : top * size], tiles[top * size : (top + 1) * size]
            for q in range(size):
                lower[q] += upper[q]
            top, done = top - 1, done >> 1
        top += 1


@register_jitable
def _aligned(size):
    """Scratch of `size` floats that starts at a cache line."""
    raw = np.empty(size + LANES + 16, np.float32)
    at = (-(raw.ctypes.data // 4)) % 16
    return raw[at : at + size + LANES]


@parallel_kernel
def _product(a, a_first, b, b_first, cuts, other, mode, out, threads):
    """out[m, n] = sum over steps of a[m, k] b[n, k] in canonical order, finished; `first` operands are stored [k, ·].

    other f32[1, n] bias or f32[m, n] gate, according to mode.
    """
    rows, columns = out.shape
    origin, steps, levels = cuts[0], cuts[-1] - cuts[0], 1
    while 1 << levels < 2 * (cuts.size - 1):
        levels += 1
    a_panels, b_panels = (rows + MR - 1) // MR, (columns + NC - 1) // NC
    packed = _aligned(b_panels * steps * NC)
    for group in prange((b_panels + 3) // 4):
        j0, j1 = 4 * group, min(4 * group + 4, b_panels)
        _pack(b, b_first, origin, steps, j0, j1, NC, packed, j0 * steps * NC)
    # Blocks of A panels: as many as fit the cache, a multiple of the threads; too few blocks share out the B panels.
    most = max(1, min(16, _BLOCK // (MR * max(1, steps))))
    blocks = max(1, (a_panels + most - 1) // most)
    blocks = min(a_panels, (blocks + threads - 1) // threads * threads)
    parts = min(b_panels, (threads + blocks - 1) // max(1, blocks))
    down = columns if mode == GATE else 0
    for unit in prange(blocks * parts):
        part, block = unit // blocks, unit % blocks
        i0, i1 = block * a_panels // blocks, (block + 1) * a_panels // blocks
        a_block, tiles = _aligned((i1 - i0) * steps * MR), _aligned(levels * (i1 - i0) * _TILE)
        _pack(a, a_first, origin, steps, i0, i1, MR, a_block, 0)
        for j in range(part * b_panels // parts, (part + 1) * b_panels // parts):
            _leaves(a_block, i1 - i0, packed, j * steps * NC, cuts, tiles)
            for i in range(i0, i1):
                r0, c0, at = i * MR, j * NC, (i - i0) * _TILE
                if r0 + MR <= rows and c0 + NC <= columns:
                    finish_tile(tiles, at, other, r0 * down + c0, mode, out, r0 * columns + c0, columns)
                else:
                    height, width = min(MR, rows - r0), min(NC, columns - c0)
                    _finish(tiles, at, height, width, other.ravel(), r0 * down + c0, down, mode, out, r0, c0)


@parallel_kernel
def _column_sums(g, cuts, out):
    """out[n] = tree over leaves of chains of plain additions of g[b, n]."""
    columns = out.size
    for part in prange((columns + 63) // 64):
        c0, width = part * 64, min(64, columns - part * 64)
        stack, top = np.zeros((34, 64), np.float32), 0
        for leaf in range(cuts.size - 1):
            acc = stack[top]
            acc[:] = _ZERO
            for b in range(cuts[leaf], cuts[leaf + 1]):
                line = g[b, c0 : c0 + width]
                for c in range(width):
                    acc[c] += line[c]
            done = leaf + 1
            while done & 1 == 0:
                for c in range(64):
                    stack[top - 1, c] += stack[top, c]
                top, done = top - 1, done >> 1
            top += 1
        for c in range(width):
            out[c0 + c] = stack[0, c]


_NOTHING = np.empty((0, 0), np.float32)


def layer(x, w, bias, relu, out):
    """One fully connected layer: out = relu(x wᵀ + bias).

    Shapes: x f32[b, k]; w f32[n, k]; bias f32[n]; relu bool; out f32[b, n]; all C-contiguous, any size from 0.
    Source: docs/arithmetic.md §1. Order: chain over ascending k from +0, then + bias, then v <= 0 -> +0 (NaN stays).
    """
    mode = BIAS_RELU if relu else BIAS
    _product(x, False, w, False, np.array([0, x.shape[1]]), bias[None], mode, out, get_num_threads())


def input_gradient(g, w, gate, out):
    """Gradient of a layer's input: out = g w, and 0 where the input was a closed ReLU.

    Shapes: g f32[b, n]; w f32[n, k]; gate f32[b, k] (the layer's input) or f32[0, 0] for none; out f32[b, k].
    Source: docs/arithmetic.md §1. Order: chain over ascending n from +0, then +0 where gate <= 0 (a NaN gate is open).
    """
    mode = GATE if gate.size else PLAIN
    _product(g, False, w, True, np.array([0, w.shape[0]]), gate, mode, out, get_num_threads())


def weight_gradient(g, x, cuts, out, out_bias):
    """Gradient of a layer's weights and bias, summed over the samples of one aligned node of leaves.

    Shapes: g f32[b, n]; x f32[b, k]; cuts i64[L+1], sample boundaries of the node's L leaves (L a power of two);
    out f32[n, k]; out_bias f32[n]; C-contiguous, any size from 0. Source: docs/arithmetic.md §2.
    Order: per leaf a chain over ascending samples from +0 (an empty leaf is +0), leaves in a binary tree, left + right.
    """
    _product(g, True, x, True, cuts, _NOTHING, PLAIN, out, get_num_threads())
    _column_sums(g, cuts, out_bias)
