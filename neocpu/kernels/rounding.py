"""When is a sum of fp32 numbers rounded? Once, at the end, whatever was added before: words in, fp32 out.

A *word* is an fp64 number; some words together are the exact value of a sum (`docs/arithmetic.md` §3). One word is nearly
always enough; then rounding it is all there is to do.
"""

import numpy as np
from numba import prange
from numba.extending import register_jitable

from neocpu.kernels._jit import parallel_kernel

RUN = 64  # vectors of one task


@register_jitable
def round_words(words, n, scratch):
    """fp32 nearest to the exact sum of words[:n], ties to even; +0 for a zero sum. `scratch` f64[n].

    The words become a nonoverlapping expansion (Shewchuk 1997), whose two leading parts are rounded to odd and then once
    to fp32.
    """
    m, total = 0, 0.0
    for j in range(n):
        total += words[j]
    if not abs(total) < np.inf:
        return np.float32(total)
    for j in range(n):
        x, kept = words[j], 0
        for k in range(m):
            high = x + scratch[k]
            t = high - x
            low = (x - (high - t)) + (scratch[k] - t)
            if low != 0.0:
                scratch[kept] = low
                kept += 1
            x = high
        scratch[kept] = x
        m = kept + 1
    high, low = scratch[m - 1] if m else 0.0, 0.0
    for k in range(m - 2, -1, -1):
        x = high
        high = x + scratch[k]
        low = scratch[k] - (high - x)
        if low != 0.0:
            break
    bits = np.float64(high).view(np.int64)
    if low != 0.0 and bits & 1 == 0:
        bits += 1 if (low > 0.0) == (high > 0.0) else -1
    return np.float32(np.int64(bits).view(np.float64)) + np.float32(0.0)


@register_jitable
def add_word(total, word, last):
    """total += word for all columns, in fp64; whether anything was lost (or is not finite)."""
    lost = 0
    for c in range(last):
        high = total[c] + word[c]
        t = high - total[c]
        lost |= ((total[c] - (high - t)) + (word[c] - t)) != 0.0
        total[c] = high
    return lost != 0


@parallel_kernel
def combine_words(recv, group_start, source, stride, width, column, extra_key, extra_start, extra, out):
    """out[s, column[g] + c] = the exact sum of all words of (g, s, c), rounded once.

    Shapes: recv f64[:]; group_start i64[G+1]; source, stride i64[J]: word of sample s, column c of part j is
    recv[source[j] + s*stride[j] + c]; width, column i64[G]; extra_key i64[m] ascending, g*S + s; extra_start i64[m+1] into
    extra f64[:], width[g] words each; out f32[S, C]. Source: docs/arithmetic.md §3. Order: none, the sum is exact.
    """
    samples = out.shape[0]
    tasks = width.size * samples
    widest = 0
    for g in range(width.size):
        widest = max(widest, width[g])
    for run in prange((tasks + RUN - 1) // RUN):
        total = np.empty(widest)
        for task in range(run * RUN, min(tasks, run * RUN + RUN)):
            g, s = task // samples, task % samples
            first, last, lo, hi = group_start[g], group_start[g + 1], 0, 0
            if extra_key.size > 0:
                lo, hi = np.searchsorted(extra_key, task, "left"), np.searchsorted(extra_key, task, "right")
            line = out[s, column[g] : column[g] + width[g]]
            total[: line.size] = 0.0
            lost = hi > lo
            for j in range(first, last):
                at = source[j] + s * stride[j]
                lost |= add_word(total, recv[at : at + line.size], line.size)
            if not lost:
                for c in range(line.size):
                    line[c] = np.float32(total[c]) + np.float32(0.0)
                continue
            words, scratch = np.empty(last - first + hi - lo), np.empty(last - first + hi - lo)
            for c in range(line.size):
                for j in range(first, last):
                    words[j - first] = recv[source[j] + s * stride[j] + c]
                for k in range(lo, hi):
                    words[last - first + k - lo] = extra[extra_start[k] + c]
                line[c] = round_words(words, words.size, scratch)


@parallel_kernel
def sum_words(words, order, starts, out):
    """out[u] = exact sum of the word vectors order[starts[u]:starts[u+1]], rounded once.

    Shapes: words f64[M, D]; order i64[M]; starts i64[U+1]; out f32[U, D]. Source: docs/arithmetic.md §3. Order: none.
    """
    rows, columns = out.shape
    for run in prange((rows + RUN - 1) // RUN):
        total = np.empty(columns)
        for u in range(run * RUN, min(rows, run * RUN + RUN)):
            lo, hi = starts[u], starts[u + 1]
            total[:] = 0.0
            lost = False
            for j in range(lo, hi):
                lost |= add_word(total, words[order[j]], columns)
            if not lost:
                for c in range(columns):
                    out[u, c] = np.float32(total[c]) + np.float32(0.0)
                continue
            line, scratch = np.empty(hi - lo), np.empty(hi - lo)
            for c in range(columns):
                for j in range(lo, hi):
                    line[j - lo] = words[order[j], c]
                out[u, c] = round_words(line, hi - lo, scratch)


@parallel_kernel
def divide_columns(x, lengths, key, column, width):
    """Divide the columns of MEAN keys by the length of their bags, in place: x[s, column:+width] /= lengths[key, s].

    Shapes: x f32[S, C]; lengths i32[F, S]; key, column, width i64[M]. Bags of length 0 are left alone. Division by 1 too.
    Source: docs/arithmetic.md §3. Raises: nothing.
    """
    for s in prange(x.shape[0]):
        for m in range(key.size):
            length = lengths[key[m], s]
            if length > 1:
                divisor = np.float32(length)
                line = x[s, column[m] : column[m] + width[m]]
                for c in range(line.size):
                    line[c] = line[c] / divisor
