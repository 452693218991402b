"""How much does each row of a history count for a candidate, and what is their weighted sum?

A sample has history rows h_0 ... h_{L-1} and a candidate's vector a. An MLP between the two halves
here (`train/model/operations/attention.py`) scores each row:

    [h, a, h - a, h * a]  --MLP-->  score  --(softmax)-->  w        out = sum of w_l h_l

Source: Zhou et al. 2018 (DIN), arXiv 1706.06978; orders of sums in docs/arithmetic.md §6.
"""

from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from neocpu.kernels.compile.jit import parallel_kernel
from neocpu.kernels.numbers.elementary import exp
from neocpu.kernels.simd import fma


class Histories(NamedTuple):
    """Histories and their candidates.

    rows    : f32[n, D]
    offsets : i64[b+1], of the rows of each sample
    target  : f32[b, D]
    """

    rows: NDArray[np.float32]
    offsets: NDArray[np.int64]
    target: NDArray[np.float32]


@parallel_kernel
def attention_inputs(histories, out):
    """What the scores are made of: out = [h, a, h - a, h * a] of every lookup.

    Shapes: histories `Histories`; out f32[n, 4*D].
    Order: one rounding per element.
    """
    rows = histories.rows
    offsets = histories.offsets
    target = histories.target
    dim = rows.shape[1]
    for s in prange(target.shape[0]):
        for lookup in range(offsets[s], offsets[s + 1]):
            for c in range(dim):
                h = rows[lookup, c]
                a = target[s, c]
                out[lookup, c] = h
                out[lookup, dim + c] = a
                out[lookup, 2 * dim + c] = h - a
                out[lookup, 3 * dim + c] = h * a


@parallel_kernel
def softmax_bags(scores, offsets, out):
    """Softmax of the scores of each sample's lookups.

    Shapes: scores, out f32[n]; offsets i64[b+1].
    Order: m the greatest score, NaN if one is; e_l = exp(s_l - m) in fp64 (docs/arithmetic.md §8);
    their fp64 sum in ascending order; out = e_l / sum, rounded to fp32.
    """
    for s in prange(offsets.size - 1):
        first = offsets[s]
        last = offsets[s + 1]
        most = -np.inf
        for lookup in range(first, last):
            score = np.float64(scores[lookup])
            # A NaN replaces every score, and no comparison with it is true afterwards: it stays.
            if score > most or score != score:
                most = score
        total = 0.0
        for lookup in range(first, last):
            total += exp(np.float64(scores[lookup]) - most)
        for lookup in range(first, last):
            out[lookup] = np.float32(exp(np.float64(scores[lookup]) - most) / total)


@parallel_kernel
def weighted_rows(rows, weights, offsets, out):
    """Weighted sums of rows: out[s] = sum of weights[l] * rows[l] over the sample's lookups.

    Shapes: rows f32[n, D]; weights f32[n]; offsets i64[b+1]; out f32[b, D].
    Order: per element a chain of fma over ascending lookups, from +0.
    """
    dim = rows.shape[1]
    for s in prange(out.shape[0]):
        for c in range(dim):
            out[s, c] = np.float32(0.0)
        for lookup in range(offsets[s], offsets[s + 1]):
            for c in range(dim):
                out[s, c] = fma(weights[lookup], rows[lookup, c], out[s, c])


@parallel_kernel
def weights_gradient(gradient, rows, offsets, out):
    """Gradient of the weights of `weighted_rows`: out[l] = gradient of the sample . row.

    Shapes: gradient f32[b, D]; rows f32[n, D]; offsets i64[b+1]; out f32[n].
    Order: a chain of fma over ascending columns, from +0.
    """
    dim = rows.shape[1]
    for s in prange(gradient.shape[0]):
        for lookup in range(offsets[s], offsets[s + 1]):
            total = np.float32(0.0)
            for c in range(dim):
                total = fma(gradient[s, c], rows[lookup, c], total)
            out[lookup] = total


@parallel_kernel
def softmax_gradient(weights, gradient, offsets, out):
    """Gradient of the scores from that of the weights that `softmax_bags` made of them.

    Shapes: weights, gradient, out f32[n]; offsets i64[b+1].
    Order: t = the fp64 sum of w_l * g_l, ascending; out = w_l * (g_l - t) in fp64, each operation
    rounded, then to fp32.
    """
    for s in prange(offsets.size - 1):
        total = 0.0
        for lookup in range(offsets[s], offsets[s + 1]):
            total += np.float64(weights[lookup]) * np.float64(gradient[lookup])
        for lookup in range(offsets[s], offsets[s + 1]):
            rest = np.float64(gradient[lookup]) - total
            out[lookup] = np.float32(np.float64(weights[lookup]) * rest)


@parallel_kernel
def attention_gradients(histories, inner, weights, gradient, out, target_out):
    """Gradients of rows and candidates, from those of the MLP's inputs and of the weighted sum.

    Shapes: histories `Histories`; inner f32[n, 4*D], gradient of `attention_inputs`' output;
    weights f32[n]; gradient f32[b, D], of `weighted_rows`' output; out f32[n, D]; target_out
    f32[b, D].
    Order, with i0 ... i3 the four parts of inner: row: fma(w, g, fma(i3, a, fl(i0 + i2)));
    candidate: t = fma(i3, h, fl(i1 - i2)) of each lookup, added in ascending order from +0.
    """
    rows = histories.rows
    offsets = histories.offsets
    target = histories.target
    dim = rows.shape[1]
    for s in prange(target.shape[0]):
        for c in range(dim):
            target_out[s, c] = np.float32(0.0)
        for lookup in range(offsets[s], offsets[s + 1]):
            for c in range(dim):
                difference = inner[lookup, 2 * dim + c]
                product = inner[lookup, 3 * dim + c]
                by_row = fma(product, target[s, c], inner[lookup, c] + difference)
                out[lookup, c] = fma(weights[lookup], gradient[s, c], by_row)
                by_target = fma(product, rows[lookup, c], inner[lookup, dim + c] - difference)
                # a sample belongs to one thread, so its candidate's gradient needs no lock and has
                # one order
                target_out[s, c] = target_out[s, c] + by_target
