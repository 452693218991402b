"""How do the operands of products become numbers of a small float? Each is rounded once, where it
enters the product, and stays a float32 number.

    operand = number of code(x * scale) / scale        scale: a power of two

A product of two such numbers is exact in fp32, so the products of `gemm.py` and `interaction.py`
serve as they are: what an accelerator does with bf16 operands and fp32 sums is their chain.

Rounding is that of the formats of rows (`codecs/small_floats.py`), but that NaN stays NaN whatever
the mode, and that formats of 8 bits do not overflow (`docs/arithmetic.md` §17). Both functions
return the largest magnitude that came in, from which the next scale is taken.
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
from neocpu.kernels.simd.bfloats import (
    as_float,
    half_up_bfloat,
    nearest_bfloat,
    truncated_bfloat,
)
from neocpu.kernels.simd.panels import copy_floats
from neocpu.kernels.simd.small_floats import (
    magnitude,
    nearest_code,
    number_of_code,
    random_code,
    truncated_code,
)

RUN = 1 << 12  # numbers of a task: they stay in the first-level cache between its passes
BFLOAT = (16, 7)  # bits of all and of the mantissa: its codes are halves of fp32 numbers


@inlined
def _inside(x, scale, most):
    """x * scale, moved into [-most, most]; a NaN stays."""
    y = x * scale
    y = most if y > most else y
    return -most if y < -most else y


@inlined
def _take(flat, task, to, inside):
    """The numbers of a task, brought to where they are rounded, as a view."""
    n = min(RUN, flat.size - task * RUN)
    if not inside:
        copy_floats(flat, task * RUN, to, task * RUN, n)
    return view(to, task * RUN, n)


@inlined
def _peak(line, before):
    """int32 bits of the largest magnitude of the numbers and of one before."""
    largest = before
    for i in range(line.size):
        largest = max(largest, magnitude(line[i]))
    return largest


@parallel_kernel
def round_operand(x, form, rounding, out, inside):
    """out = numbers of a small float: nearest even (rounding 0), towards zero (2), or half up, bf16
    only (3); returns the largest magnitude of x.

    Shapes: x f32[R, D]; form: `OperandFormat` (bf16 has neither scale nor limit); out f32[R, D], x
    itself where `inside`. Half up is FBGEMM's rounding, but a NaN stays one.
    Source: docs/arithmetic.md §17; arXiv 1905.12322. Order: none.
    """
    layout, scale, most = form
    words = words_of(layout)
    flat = x.reshape(-1)
    to = out.reshape(-1)
    top = largest_of(words)
    inverse = np.float32(1) / scale
    tasks = (flat.size + RUN - 1) // RUN
    peaks = np.zeros(tasks, np.int32)
    halves = layout[0] == BFLOAT[0] and layout[1] == BFLOAT[1]
    for task in prange(tasks):
        line = _take(flat, task, to, inside)
        peaks[task] = _peak(line, np.int32(0))
        # asked once for a task, so that LLVM makes vectors of each loop
        if halves and rounding == HALF_UP:
            for i in range(line.size):
                line[i] = half_up_bfloat(line[i])
        elif halves and rounding == TRUNCATE:
            for i in range(line.size):
                line[i] = truncated_bfloat(line[i])
        elif halves:
            for i in range(line.size):
                line[i] = nearest_bfloat(line[i])
        elif rounding == TRUNCATE:
            for i in range(line.size):
                code = truncated_code(_inside(line[i], scale, most), top, words)
                line[i] = number_of_code(np.uint32(code), words) * inverse
        else:
            for i in range(line.size):
                code = nearest_code(_inside(line[i], scale, most), words)
                line[i] = number_of_code(np.uint32(code), words) * inverse
    return as_float(_most(peaks))


@inlined
def _most(peaks):
    """int32, the largest of all tasks."""
    largest = np.int32(0)
    for task in range(peaks.size):
        largest = max(largest, peaks[task])
    return largest


@parallel_kernel
def round_operand_randomly(x, form, key, row0, step, out):
    """out = numbers of a small float, each one of its two neighbours at random; returns the largest
    magnitude of x.

    Shapes: as of `round_operand`; key uint64; row0 i64, number of the first row; step i64. `out`
    may be x itself. Rounding is that of `encode_rows_randomly`, of row row0 + r and column c.
    Source: docs/arithmetic.md §9, §17. Order: none.
    """
    layout, scale, most = form
    words = words_of(layout)
    flat = x.reshape(-1)
    to = out.reshape(-1)
    top = largest_of(words)
    inverse = np.float32(1) / scale
    d = x.shape[1]
    share = max(1, RUN // max(1, d))
    tasks = (x.shape[0] + share - 1) // share
    peaks = np.zeros(tasks, np.int32)
    for task in prange(tasks):
        word = np.empty((d + 3) // 4 * 4, np.uint32)
        peak = np.int32(0)
        for r in range(task * share, min(task * share + share, x.shape[0])):
            draw_words(np.uint64(key), np.uint64(row0 + r), 0, np.uint64(step), word)
            line = view(flat, r * d, d)
            into = view(to, r * d, d)
            peak = _peak(line, peak)
            for c in range(d):
                code = random_code(_inside(line[c], scale, most), word[c], top, words)
                into[c] = number_of_code(np.uint32(code), words) * inverse
        peaks[task] = peak
    return as_float(_most(peaks))
