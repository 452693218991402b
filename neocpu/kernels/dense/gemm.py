"""How are matrices multiplied so that no tiling, thread count or vector width can change a bit?

Every output element is one chain of fp32 fused multiply-adds over the contracted index, ascending,
from +0; a sum over the batch is cut into leaves whose chains combine in a binary tree
(`docs/arithmetic.md` §1, §2). Blocking only decides when a chain is advanced: between blocks its
value waits in the tile, it is never restarted.

    kernel            result                                                  contracted axes
    layer             out[b, n] = relu(sum_k x[b, k] w[n, k] + bias[n])       last, last
    input_gradient    out[b, k] = sum_n g[b, n] w[n, k], 0 where gate <= 0    last, first
    weight_gradient   out[n, k] = tree over leaves of sum_b g[b, n] x[b, k]   first, first
    symmetric         out[i, j] = out[j, i] = sum_k x[i, k] w[j, k], j <= i   both last or first

One compiled kernel, `_product`, serves all four: they differ in how panels are packed and how a
tile is finished; a symmetric one makes the tiles that the diagonal meets, and those below it.

    for a block of A panels (parallel)        packed once, stays in L2:  [panel][K][MR]
      for a B panel                           packed up front:           [panel][K][NC]
        for a leaf, for KC of its steps       the B part stays in L1
          for a panel of the block            tile += A part * B part in registers
        a leaf is done: add subtrees          a stack of tiles, depth log2(leaves) + 1
"""

from typing import NamedTuple

import numpy as np
from numba import get_num_threads, prange
from numpy.typing import NDArray

from neocpu.kernels.compile.jit import kernel, parallel_kernel
from neocpu.kernels.operands import Position
from neocpu.kernels.simd import prefetch, take_next
from neocpu.kernels.simd.panels import (
    BIAS,
    BIAS_RELU,
    GATE,
    PLAIN,
    add_floats,
    cache_line_offset,
    clear_floats,
    copy_a,
    copy_b,
    copy_floats,
    finish_tile,
    mirror_block,
    transpose_block,
)
from neocpu.kernels.simd.tiles import LANES, MR, NC, slim_chains, tile_chains

_TILE = MR * NC
_KC = 256  # steps of a B panel that stay in the first-level cache: 256 * NC * 4 bytes = 32 KiB
_BLOCK = 196608  # floats of packed A panels that stay in the second-level cache: 768 KiB
# Blocks for each thread: one whose core is slower for a while, as on a shared host, takes fewer.
_SHARES = 4
_CHUNK = 4  # B panels packed at a time
_LOWER = 4  # beside the modes of `simd/panels.py`: PLAIN, and above the diagonal what is below it
_SLACK = LANES + 16  # a transposed block may spill LANES floats; 16 to start at a cache line

Matrix = NDArray[np.float32]


class Operand(NamedTuple):
    """A matrix f32[rows, steps], or f32[steps, rows] if the steps are its `first` axis."""

    values: Matrix
    first: bool


@kernel
def _pack(operand, k0, count, p0, p1, width, out, at):
    """Panels p0:p1 of an operand, `width` rows each: out[at + ((p - p0)*count + k)*width + r] = row
    p*width + r, step k0 + k.

    Rows beyond the last hold anything but subnormals.
    """
    x, first = operand
    size = count * width
    stride = x.shape[1]
    rows = x.shape[1] if first else x.shape[0]
    whole = min(p1, rows // width)
    if first:
        # a partial panel: lanes that hold leftovers could be subnormal, which makes arithmetic slow
        if whole < p1:
            clear_floats(out, at + (whole - p0) * size, size)
        # Steps are the lines of the matrix here: they are copied as they stand, and every line is
        # read once.
        for k in range(count):
            row = (k0 + k) * stride
            line = at + k * width
            for p in range(p0, whole):
                if width == NC:
                    copy_b(x, row + p * NC, out, line + (p - p0) * size)
                else:
                    copy_a(x, row + p * MR, out, line + (p - p0) * size)
            if whole < p1:
                copy_floats(
                    x, row + whole * width, out, line + (whole - p0) * size, rows - whole * width
                )
        return
    # Rows are its lines here: a step is a column, so blocks are transposed in registers.
    blocks = count // LANES * LANES
    for p in range(p0, p1):
        panel = at + (p - p0) * size
        for k in range(0, blocks, LANES):
            # the rows of the next panel, while this one is turned: hardware foresees no step from
            # line to line
            for r in range((p + 1) * width, min(rows, (p + 2) * width)):
                prefetch(x, r * stride + k0 + k)
            for r in range(p * width, (p + 1) * width, LANES):
                present = min(rows, (p + 1) * width) - r
                source = r * stride + k0 + k
                target = panel + k * width + r - p * width
                transpose_block(x, source, stride, present, out, target, width)
        for r in range(width):
            row = min(p * width + r, rows - 1)
            # the last steps, too few for a block
            for k in range(blocks, count):
                out[panel + k * width + r] = x[row, k0 + k]


@kernel
def _merge(stack, size, leaf, top):
    """A leaf was put on the stack as number `top`: add up the subtrees it completes; the new height
    of the stack.
    """
    done = leaf + 1
    while done & 1 == 0:
        add_floats(stack, top * size, stack, (top - 1) * size, size)
        top = top - 1
        done = done >> 1
    return top + 1


@kernel
def _leaves(a_block, a_at, panels, b_panels, b_at, slim, cuts, tiles):
    """tiles[:panels] = tree over leaves of chains, for a block of packed A panels against one
    packed B panel.

    `slim`: only the first LANES columns are wanted; the others stay as they are.
    """
    origin = cuts[0]
    steps = cuts[-1] - cuts[0]
    # a stack of tiles, like the binary counter that the number of the leaf is
    size = panels * _TILE
    top = np.int64(0)
    # the panels of the block together fetch one next B part, a row of NC floats for each of its
    # steps
    pace = (NC + panels - 1) // panels
    for leaf in range(cuts.size - 1):
        k = cuts[leaf] - origin
        end = cuts[leaf + 1] - origin
        fresh = 1
        # the second leaf of a pair is added to the first one straight from the registers
        odd = leaf & 1
        # `or fresh`: an empty leaf is a tile of +0
        while k < end or fresh:
            count = min(_KC, end - k)
            # only the last part of a leaf: before it the chains are not finished
            below = size if odd and k + count >= end else 0
            b_part = b_at + k * NC
            right = Position(b_part, NC)
            for i in range(panels):  # each brings its share of the next B part nearer
                left = Position(a_at + (i * steps + k) * MR, MR)
                into = Position(top * size + i * _TILE, NC)
                coming = Position(b_part + (NC + i * pace) * count, pace)
                if slim:
                    slim_chains(
                        a_block, left, b_panels, right, count, tiles, into, fresh, below, coming
                    )
                else:
                    tile_chains(
                        a_block, left, b_panels, right, count, tiles, into, fresh, below, coming
                    )
            k = k + count
            fresh = 0
        # The pair was added in registers; what is left are the subtrees above pairs.
        top = _merge(tiles, size, leaf >> 1, top - 1) if odd else top + 1


@kernel
def _column_sums(g, c0, width, cuts, stack, out):
    """out[c0 : c0 + width] = tree over leaves of chains of plain additions of g[b, c]."""
    top = np.int64(0)
    for leaf in range(cuts.size - 1):
        clear_floats(stack, top * width, width)
        for b in range(cuts[leaf], cuts[leaf + 1]):
            add_floats(g, b * g.shape[1] + c0, stack, top * width, width)
        top = _merge(stack, width, leaf, top)
    copy_floats(stack, 0, out, c0, width)


@kernel
def _mirror(out):
    """out[r, c] = out[c, r] above the diagonal of f32[n, n]."""
    size = len(out)
    whole = size // LANES * LANES
    for r in range(0, whole, LANES):
        mirror_block(out, r * size + r, size)
        for c in range(r + LANES, whole, LANES):
            transpose_block(out, c * size + r, size, LANES, out, r * size + c, size)
    for c in range(whole, size):
        for r in range(c):
            out[r, c] = out[c, r]


@parallel_kernel
def _product(a, a_first, b, b_first, cuts, mode, other, out, sums, threads):
    """out[m, n] = sum over steps of a[m, k] b[n, k] in canonical order, finished; the steps are the
    first axis of `first` operands.

    cuts i64[L+1], steps of the leaves; mode: what becomes of a finished tile (`simd/panels.py`), or
    _LOWER; other: its bias f32[1, n] or gate f32[m, n]; sums: f32[m] for the column sums of a, or
    f32[0].
    Records from Python would cost a small product a fifth of its time, so they are made here.
    """
    left = Operand(a, a_first)
    right = Operand(b, b_first)
    rows, columns = out.shape
    origin = cuts[0]
    steps = cuts[-1] - cuts[0]
    levels = 1
    # log2(leaves) + 1: one subtree of each height, and the leaf that is being computed
    while 1 << levels < 2 * (cuts.size - 1):
        levels += 1
    a_panels = (rows + MR - 1) // MR
    b_panels = (columns + NC - 1) // NC
    # B is packed once, by all threads, since every block of A reads all of it.
    packed = np.empty(b_panels * steps * NC + _SLACK, np.float32)
    counter = np.zeros(1, np.int64)
    start = cache_line_offset(packed)
    # One iteration for each thread, which takes work from the counter until there is none: Numba
    # cuts a `prange` into equal shares beforehand, and a thread on a slow core would hold up all
    # others.
    for _ in prange(threads):
        j0 = _CHUNK * take_next(counter)
        while j0 < b_panels:
            j1 = min(j0 + _CHUNK, b_panels)
            at = start + j0 * steps * NC
            _pack(right, origin, steps, j0, j1, np.int64(NC), packed, at)
            j0 = _CHUNK * take_next(counter)
    # Units of work: blocks of A panels that fit the cache, several for each thread; few blocks
    # share out the B panels.
    blocks = max(1, (a_panels * MR * steps + _BLOCK - 1) // _BLOCK, (a_panels + 15) // 16)
    if threads > 1:
        # panels: each block reads all of B, from where it is
        least = 2 if b_panels * steps * NC <= 2 * _BLOCK else 5
        blocks = max(
            blocks, min(_SHARES * threads, max(threads, a_panels // least // threads * threads))
        )
    blocks = max(1, min(blocks, a_panels))
    most = (a_panels + blocks - 1) // blocks
    # few rows: threads share a block and each takes some columns, packing the block for itself
    parts = max(1, min(b_panels, (threads + blocks - 1) // blocks))
    # without rows there is still a block, of no panels
    units = blocks * parts if rows else 0
    # a bias is one line for all rows, a gate has one for each
    down = columns if mode == GATE else 0
    counter[0] = 0
    for _ in prange(threads):
        a_block = np.empty(most * steps * MR + _SLACK, np.float32)
        tiles = np.empty(levels * most * _TILE, np.float32)
        a_start = cache_line_offset(a_block)
        unit = take_next(counter)
        while unit < units:
            part = unit // blocks
            block = unit % blocks
            i0 = block * a_panels // blocks
            i1 = (block + 1) * a_panels // blocks
            _pack(left, origin, steps, i0, i1, np.int64(MR), a_block, a_start)
            # once for each block: by the unit that has its first columns
            if part == 0 and sums.size:
                _column_sums(a, i0 * MR, min(i1 * MR, rows) - i0 * MR, cuts, tiles, sums)
            # those that the last row of the block reaches
            wanted = min(b_panels, (i1 * MR + NC - 1) // NC) if mode == _LOWER else b_panels
            for j in range(part * wanted // parts, (part + 1) * wanted // parts):
                first = max(i0, j * NC // MR) if mode == _LOWER else i0
                slim = columns - j * NC <= LANES
                # its other columns are added up too, and old numbers may be slow subnormals
                if slim:
                    clear_floats(tiles, 0, tiles.size)
                a_at = a_start + (first - i0) * steps * MR
                b_at = start + j * steps * NC
                _leaves(a_block, a_at, i1 - first, packed, b_at, slim, cuts, tiles)
                for i in range(first, i1):
                    r0 = i * MR
                    c0 = j * NC
                    finish_tile(
                        tiles,
                        (i - first) * _TILE,
                        min(MR, rows - r0),
                        min(NC, columns - c0),
                        other,
                        Position(r0 * down + c0, down),
                        PLAIN if mode == _LOWER else mode,
                        out,
                        Position(r0 * columns + c0, columns),
                    )
            unit = take_next(counter)
    if mode == _LOWER:
        _mirror(out)


_NOTHING = np.empty((0, 0), np.float32)
_NO_SUMS = np.empty(0, np.float32)


def layer(x, w, bias, relu, out):
    """One fully connected layer: out = relu(x wᵀ + bias).

    Shapes: x f32[b, k]; w f32[n, k]; bias f32[n]; relu bool; out f32[b, n]; all C-contiguous, any
    size from 0.
    Source: docs/arithmetic.md §1. Order: chain over ascending k from +0, then + bias, then v <= 0
    -> +0 (NaN stays).
    """
    mode = BIAS_RELU if relu else BIAS
    steps = np.array([0, x.shape[1]])
    threads = get_num_threads()
    _product(x, False, w, False, steps, mode, bias[None], out, _NO_SUMS, threads)


def input_gradient(g, w, gate, out):
    """Gradient of a layer's input: out = g w, and 0 where the input was a closed ReLU.

    Shapes: g f32[b, n]; w f32[n, k]; gate f32[b, k] (the layer's input) or f32[0, 0] for none; out
    f32[b, k].
    Source: docs/arithmetic.md §1. Order: chain over ascending n from +0, then +0 where gate <= 0 (a
    NaN gate is open).
    """
    mode = GATE if gate.size else PLAIN
    steps = np.array([0, w.shape[0]])
    threads = get_num_threads()
    _product(g, False, w, True, steps, mode, gate, out, _NO_SUMS, threads)


def weight_gradient(g, x, cuts, out, out_bias):
    """Gradient of a layer's weights and bias, summed over the samples of one aligned node of
    leaves.

    Shapes: g f32[b, n]; x f32[b, k]; cuts i64[L+1], sample boundaries of the node's L leaves (L a
    power of two); out f32[n, k]; out_bias f32[n], or f32[0] where it is not wanted; C-contiguous,
    any size from 0. Source: docs/arithmetic.md §2.
    Order: per leaf a chain over ascending samples from +0 (an empty leaf is +0), leaves in a binary
    tree, left + right.
    """
    threads = get_num_threads()
    _product(g, True, x, True, cuts, PLAIN, _NOTHING, out, out_bias, threads)


def symmetric(x, w, first, out):
    """A symmetric product, of half the work: out = x wᵀ, or xᵀ w if the steps are the `first` axis.

    Shapes: x, w f32[n, k], or f32[k, n] if `first`; out f32[n, n]; all C-contiguous, any size from
    0. Only what is on the diagonal and below is computed, and mirrored: of x = w that is the whole
    product to the bit, of others whose product is symmetric but for rounding one of its two halves.
    Source: docs/arithmetic.md §1. Order: chain over ascending steps from +0.
    """
    steps = np.array([0, x.shape[0 if first else 1]])
    threads = get_num_threads()
    _product(x, first, w, first, steps, _LOWER, _NOTHING, out, _NO_SUMS, threads)
