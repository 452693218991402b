"""How do the operands of products become numbers of a small float? Each is rounded once, where it
enters the product, and stays a float32 number.

    operand = number of code(x * scale) / scale        scale: a power of two

A product of two such numbers is exact in fp32, so the products of `gemm.py` and `interaction.py`
serve as they are: what an accelerator does with bf16 operands and fp32 sums is their chain.

Rounding is that of the formats of rows (`codecs/small_floats.py`), but that NaN stays NaN whatever
the mode, and that formats of 8 bits do not overflow (`docs/arithmetic.md` §17). Both functions
return the largest magnitude that came in, from which the next scale is taken; with neither scale
nor limit nobody asks for it.
"""

import numpy as np
from numba import prange

from neocpu.kernels.codecs.small_floats import (
    HALF_UP,
    TRUNCATE,
    draw_words,
    largest_of,
    words_of,
)
from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.simd.bags import view
from neocpu.kernels.simd.grids import (
    as_float,
    half_up_number,
    nearest_number,
    random_number,
    truncated_number,
)
from neocpu.kernels.simd.panels import copy_floats
from neocpu.kernels.simd.small_floats import magnitude

RUN = 1 << 12  # numbers of a task: they stay in the first-level cache between its passes
_BIAS = 127  # of fp32's exponents
_INFINITY = 0x7F800000
_NAN = 0x7FC00000


@inlined
def _grid_of(layout):
    """Words int32 of the numbers of a layout i64[5], as `simd/grids.py` takes them."""
    words = words_of(layout)
    m = layout[1]
    bias = layout[2]
    own = np.int32(bias != _BIAS)
    return (
        words[0],
        own * words[2],
        largest_of(words),
        np.int32(_INFINITY if layout[3] == 1 else _NAN),
        words[3],
        own * np.int32((128 - bias - m) << 23),
        own * np.int32((126 + bias + m) << 23),
    )


@inlined
def _enter(line, scale, most):
    """Bring numbers to where they are rounded: times the scale, moved into [-most, most]; a NaN
    stays. Returns int32 bits of the largest magnitude that came.
    """
    largest = np.int32(0)
    if _moves(scale, most):
        for i in range(line.size):
            largest = max(largest, magnitude(line[i]))
            y = line[i] * scale
            y = most if y > most else y
            line[i] = -most if y < -most else y
    return largest


@inlined
def _moves(scale, most):
    """Are numbers scaled or limited? Only then somebody asks for their largest one."""
    return scale != 1 or most < np.inf


@inlined
def _leave(line, scale):
    """Take the scale off numbers that were rounded."""
    if scale != 1:
        inverse = np.float32(1) / scale
        for i in range(line.size):
            line[i] *= inverse


@parallel_kernel
def round_operand(x, form, rounding, out, inside):
    """out = numbers of a small float: nearest even (rounding 0), towards zero (2), or half up, bf16
    only (3); returns the largest magnitude of x if it is scaled or limited, else 0.

    Shapes: x f32[R, D]; form: `OperandFormat`; out f32[R, D], x itself where `inside`. Half up is
    FBGEMM's rounding, but a NaN stays one.
    Source: docs/arithmetic.md §17; arXiv 1905.12322. Order: none.
    """
    layout, scale, most = form
    flat = x.reshape(-1)
    to = out.reshape(-1)
    tasks = (flat.size + RUN - 1) // RUN
    peaks = np.zeros(tasks, np.int32)
    for task in prange(tasks):
        grid = _grid_of(layout)
        n = min(RUN, flat.size - task * RUN)
        if not inside:
            copy_floats(flat, task * RUN, to, task * RUN, n)
        line = view(to, task * RUN, n)
        peaks[task] = _enter(line, scale, most)
        # asked once for a task, so that LLVM makes vectors of each loop
        if rounding == HALF_UP:
            for i in range(line.size):
                line[i] = half_up_number(line[i], grid)
        elif rounding == TRUNCATE:
            for i in range(line.size):
                line[i] = truncated_number(line[i], grid)
        else:
            for i in range(line.size):
                line[i] = nearest_number(line[i], grid)
        _leave(line, scale)
    return as_float(_most(peaks))


@inlined
def _most(peaks):
    """int32, the largest of all tasks."""
    largest = np.int32(0)
    for task in range(peaks.size):
        largest = max(largest, peaks[task])
    return largest


@parallel_kernel
def round_operand_randomly(x, form, key, row0, step, out, inside):
    """out = numbers of a small float, each one of its two neighbours at random; returns what
    `round_operand` does.

    Shapes: as of `round_operand`; key uint64; row0 i64, number of the first row; step i64. Rounding
    is that of `encode_rows_randomly`, of row row0 + r and column c.
    Source: docs/arithmetic.md §9, §17. Order: none.
    """
    layout, scale, most = form
    flat = x.reshape(-1)
    to = out.reshape(-1)
    d = x.shape[1]
    share = max(1, RUN // max(1, d))
    tasks = (x.shape[0] + share - 1) // share
    peaks = np.zeros(tasks, np.int32)
    for task in prange(tasks):
        grid = _grid_of(layout)
        # said where it is used, so that LLVM leaves out what bf16 does not need
        none = np.int32(0)
        bits = (grid[0], none, grid[2], grid[3], none, none, none)
        # whole vectors of blocks of four: a few words more are drawn sooner than single ones
        word = np.empty((d + 31) // 32 * 32, np.uint32)
        peak = np.int32(0)
        for r in range(task * share, min(task * share + share, x.shape[0])):
            draw_words(np.uint64(key), np.uint64(row0 + r), 0, np.uint64(step), word)
            if not inside:
                copy_floats(flat, r * d, to, r * d, d)
            line = view(to, r * d, d)
            peak = max(peak, _enter(line, scale, most))
            if grid[1] == 0:
                for c in range(d):
                    line[c] = random_number(line[c], word[c], bits)
            else:
                for c in range(d):
                    line[c] = random_number(line[c], word[c], grid)
            _leave(line, scale)
        peaks[task] = peak
    return as_float(_most(peaks))
