"""When is a sum of fp32 numbers rounded? Once, at the end, whatever was added before: words in,
fp32 out.

A *word* is an fp64 number; some words together are the exact value of a sum (`docs/arithmetic.md`
§3). One word is nearly always enough, then rounding it is all there is to do. Several words mostly
add without an error (TwoSum says so); only where they do not, they become a Shewchuk expansion.
"""

from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from neocpu.kernels.compile.jit import inlined, kernel, parallel_kernel
from neocpu.kernels.simd.bags import view

CANONICAL_NAN = np.float32(np.nan)  # bits 0x7fc00000
RUN = 64  # rows of one task

Ints = NDArray[np.int64]
Words = NDArray[np.float64]


@kernel
def round_words(words, n, scratch):
    """fp32 nearest to the exact sum of words[:n], ties to even; +0 for a zero sum, bits 0x7fc00000
    for a NaN.

    Shapes: words, scratch f64[n]. The words become a nonoverlapping expansion (Shewchuk 1997),
    whose two leading parts are rounded to odd and then once to fp32. Source: docs/arithmetic.md §3.
    Order: none.
    """
    m = 0
    total = 0.0
    for j in range(n):
        total += words[j]
    # NaN, or infinities of both signs, whatever the order: asked before TwoSum makes NaN of
    # infinity
    if total != total:
        return CANONICAL_NAN
    if abs(total) == np.inf:
        return np.float32(total)
    for j in range(n):
        x = words[j]
        kept = 0
        for k in range(m):
            high = x + scratch[k]
            # Knuth's TwoSum: high + low is x + scratch[k] without error, whichever is larger
            t = high - x
            low = (x - (high - t)) + (scratch[k] - t)
            if low != 0.0:
                scratch[kept] = low
                kept += 1
            x = high
        scratch[kept] = x
        m = kept + 1
    high = scratch[m - 1] if m else 0.0
    low = 0.0
    # from the largest down, until something is left over: what follows cannot change the rounding
    for k in range(m - 2, -1, -1):
        x = high
        high = x + scratch[k]
        low = scratch[k] - (high - x)
        if low != 0.0:
            break
    bits = np.float64(high).view(np.int64)
    # Round to odd: the last bit says that something follows, so the second rounding, to fp32, sees
    # no tie where there is none (Boldo & Melquiond 2008).
    if low != 0.0 and bits & 1 == 0:
        bits += 1 if (low > 0.0) == (high > 0.0) else -1
    # +0: a sum that is zero has no sign
    return np.float32(np.int64(bits).view(np.float64)) + np.float32(0.0)


@inlined
def start_line(words, total, lost):
    """Begin the sum of word vectors."""
    for c in range(words.size):
        total[c] = words[c]
        lost[c] = 0.0


@inlined
def add_line(words, total, lost):
    """total += words; lost is no longer 0 where a sum was rounded or is not finite."""
    for c in range(words.size):
        high = total[c] + words[c]
        t = high - total[c]
        # absolute values: two errors of opposite signs may not look like none
        lost[c] += abs((total[c] - (high - t)) + (words[c] - t))
        total[c] = high


@inlined
def end_line(total, lost, out):
    """out = total, rounded, where nothing was lost; returns whether anything was."""
    any_lost = 0
    for c in range(out.size):
        # +0: a sum that is zero has no sign
        y = np.float32(total[c]) + np.float32(0.0)
        out[c] = y if y == y else CANONICAL_NAN
        any_lost += lost[c] != 0.0
    return any_lost > 0


class WordParts(NamedTuple):
    """First words of columns, by group g of the columns that the same shards share.

    words         : f64[:], of part j, sample s and column c: words[source[j] + s*stride[j] + c]
    first         : i64[G+1], group g has the parts first[g] .. first[g+1]
    source,
    stride        : i64[J]
    width, column : i64[G], columns of each group, and where they begin in the output
    """

    words: Words
    first: Ints
    source: Ints
    stride: Ints
    width: Ints
    column: Ints


class FurtherWords(NamedTuple):
    """The rare further words: the m-th belong to sample key[m] % S of group key[m] // S.

    key   : i64[m], ascending
    start : i64[m+1], their columns are words[start[m]] and the ones after it
    words : f64[:]
    """

    key: Ints
    start: Ints
    words: Words


@parallel_kernel
def combine_words(parts, further, out):
    """out[s, column[g] + c] = the exact sum of all words of (g, s, c), rounded once.

    Shapes: parts `WordParts`; further `FurtherWords`; out f32[S, C].
    Source: docs/arithmetic.md §3. Order: none, the sum is exact.
    """
    recv, group_start, source, stride, width, column = parts
    extra_key, extra_start, extra = further
    groups = width.size
    samples = out.shape[0]
    flat = out.reshape(-1)
    runs = (samples + RUN - 1) // RUN
    for task in prange(groups * runs):
        g = task // runs
        begin = task % runs * RUN
        first = group_start[g]
        last = group_start[g + 1]
        w = width[g]
        # remain so if a group has no parts
        total = np.zeros(w)
        lost = np.zeros(w)
        # further words are rare: found once for a run of samples, then followed
        lo = np.searchsorted(extra_key, g * samples + begin)
        for s in range(begin, min(begin + RUN, samples)):
            line = view(flat, s * out.shape[1] + column[g], w)
            for j in range(first, last):
                part = view(recv, source[j] + s * stride[j], w)
                if j == first:
                    start_line(part, total, lost)
                else:
                    add_line(part, total, lost)
            hi = lo
            while hi < extra_key.size and extra_key[hi] == g * samples + s:
                hi += 1
            if end_line(total, lost, line) or hi > lo:
                # rare: only a sample whose words did not add exactly pays for an expansion
                n = last - first + hi - lo
                words = np.empty(n)
                scratch = np.empty(n)
                for c in range(w):
                    for j in range(first, last):
                        words[j - first] = recv[source[j] + s * stride[j] + c]
                    for k in range(lo, hi):
                        words[last - first + k - lo] = extra[extra_start[k] + c]
                    line[c] = round_words(words, n, scratch)
            lo = hi


@parallel_kernel
def sum_words(words, order, starts, out):
    """out[u] = exact sum of the word vectors order[starts[u]:starts[u+1]], rounded once.

    Shapes: words f64[M, D]; order i64[M]; starts i64[U+1]; out f32[U, D]. Source:
    docs/arithmetic.md §3. Order: none.
    """
    flat = words.reshape(-1)
    flat_out = out.reshape(-1)
    d = out.shape[1]
    for task in prange((out.shape[0] + RUN - 1) // RUN):
        total = np.zeros(d)
        lost = np.zeros(d)
        for u in range(task * RUN, min(task * RUN + RUN, out.shape[0])):
            lo = starts[u]
            hi = starts[u + 1]
            for j in range(lo, hi):
                part = view(flat, order[j] * d, d)
                if j == lo:
                    start_line(part, total, lost)
                else:
                    add_line(part, total, lost)
            if end_line(total, lost, view(flat_out, u * d, d)):
                line = np.empty(hi - lo)
                scratch = np.empty(hi - lo)
                for c in range(d):
                    for j in range(lo, hi):
                        line[j - lo] = words[order[j], c]
                    out[u, c] = round_words(line, hi - lo, scratch)


@parallel_kernel
def divide_columns(x, lengths, key, column, width):
    """Divide the columns of MEAN keys by the length of their bags, in place: x[s, column:+width] /=
    lengths[key, s].

    Shapes: x f32[S, C]; lengths i32[F, S]; key, column, width i64[M]. Bags of length 0 are left
    alone (they hold +0).
    Source: docs/arithmetic.md §3. Order: none.
    """
    flat = x.reshape(-1)
    for s in prange(x.shape[0]):
        for m in range(key.size):
            length = lengths[key[m], s]
            # a bag of one lookup divided by 1 is itself
            if length > 1:
                divisor = np.float32(length)
                line = view(flat, s * x.shape[1] + column[m], width[m])
                for c in range(line.size):
                    line[c] = line[c] / divisor
