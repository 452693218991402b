"""What do lookups in rows of any format give? The plain twin of `kernels/rows/lookup.py`: decode,
then whole numbers.

Rows are decoded by the codecs' twins; a dot product is summed in units of 2^-298, of which every
product of two fp32 numbers is a multiple.
"""

import math
from itertools import pairwise

import numpy as np

from neocpu.core.codecs import LAYOUTS
from neocpu.core.formats import FORMATS, INFERENCE
from neocpu.kernels.twins.codecs.small_floats import decode_rows
from neocpu.kernels.twins.numbers.exact import exact_sums
from neocpu.kernels.twins.numbers.fma import fma

NAN = np.float32(np.nan)
ROWS = FORMATS | INFERENCE


def _half(words):
    """f32 of fp16 codes u16[...]."""
    out = np.empty(words.shape, np.float32)
    decode_rows(words, LAYOUTS["fp16"], out)
    return out


def _scaled(rows, form, width):
    """f32[m, width] of rows u8[m, bytes] of row-scaled integers."""
    size = form.header_bytes
    header, codes = (
        (rows[:, :size], rows[:, size:])
        if form.header_first
        else (rows[:, -size:], rows[:, :-size])
    )
    word = form.header[0][1]
    # contiguous, to be seen as words: a header stands behind any number of bytes
    words = np.ascontiguousarray(header).view(word.replace("f2", "u2"))
    scale, bias = (
        _half(words[:, i : i + 1]) if word == "<f2" else words[:, i : i + 1] for i in (0, 1)
    )
    bits = form.bits
    column = np.arange(width)
    q = codes[:, column * bits // 8] >> (column * bits % 8).astype(np.uint8) & np.uint8(
        (1 << bits) - 1
    )
    return fma(q.astype(np.float32), scale, bias)


def rows_as_numbers(table, base, stride, width, rows):
    """f32[m, width]: rows of a flat table of any format, decoded; rows i64[m], none negative."""
    name = table.dtype.names[0] if table.dtype.names else "fp32"
    form = ROWS[name]
    scaled = form.row_scaled
    elements = table[base + rows[:, None] * stride + np.arange(stride if scaled else width)]
    if name == "fp32":
        return elements
    codes = np.ascontiguousarray(elements[name])
    if scaled:
        return _scaled(codes, form, width)
    out = np.empty(codes.shape, np.float32)
    decode_rows(codes, LAYOUTS[name], out)
    return out


def _one_nan(x):
    return np.where(np.isnan(x), NAN, x)


def _bags(entries, offsets, lines, out):
    """(entry, first lookup, last, line of `out`) of every bag."""
    for k, (begin, end) in enumerate(pairwise(entries.first.tolist())):
        for b in range(begin, end):
            start = lines.place[k] + (b - begin) * lines.pitch[k]
            yield k, offsets[b], offsets[b + 1], out[start : start + entries.width[k]]


def _rows_of(table, entries, k, rows):
    """f32[m, width]: rows i64[m] of entry k."""
    return rows_as_numbers(table, entries.base[k], entries.stride[k], entries.width[k], rows)


def pooled_rows(table, entries, bags, mean, lines, out):
    """Exact sums of the decoded rows of all bags, over their lengths if `mean`; shapes as in the
    kernel.
    """
    rows = bags.rows
    weights = bags.weights
    for k, lo, hi, line in _bags(entries, bags.offsets, lines, out):
        kept = np.flatnonzero(rows[lo:hi] >= 0) + lo
        line[:] = 0.0
        if not kept.size:
            continue
        terms = _rows_of(table, entries, k, rows[kept])
        terms = terms * weights[kept, None] if weights.size else terms
        # rounded to fp32 before the division: MEAN is fl(SUM / fl(L)) (docs/arithmetic.md §3)
        line[:] = exact_sums(terms)
        line[:] = _one_nan(line / np.float32(max(hi - lo, 1))) if mean else _one_nan(line)


def gathered_rows(table, entries, rows, weights, lines, out):
    """Decoded rows of all lookups, times their weights; zeros for pruned ones; shapes as in the
    kernel.
    """
    lookups = np.arange(rows.size + 1)  # every lookup is a bag of its own
    for k, j, _, line in _bags(entries, lookups, lines, out):
        line[:] = 0.0
        if rows[j] >= 0:
            row = _rows_of(table, entries, k, rows[j : j + 1])[0]
            line[:] = _one_nan(row * weights[j] if weights.size else row)


def exact_dot(x, y, words, scratch):
    """fp32 nearest to the sum of x[c] * y[c]; shapes as in the kernel."""
    # infinity times 0: its NaN is the answer
    with np.errstate(invalid="ignore"):
        products = x.astype(np.float64) * y
    special = products[~np.isfinite(products)]
    if special.size:
        return special[0].astype(np.float32) if np.unique(special).size == 1 else NAN
    total = sum(
        int(math.ldexp(a, 149)) * int(math.ldexp(b, 149)) for a, b in zip(x.tolist(), y.tolist())
    )
    # in units of 2^-298; down to those of fp32 numbers, 2^-149: round to odd there, so that
    # `exact_sum` sees what is lost
    size = abs(total)
    keep = max(0, size.bit_length() - 60)
    odd = (size >> keep) | int(size & ((1 << keep) - 1) != 0)
    return _nearest(odd, keep - 298, total < 0)


def _nearest(count, exponent, negative):
    """fp32 nearest to count * 2^exponent, ties to even; +0 for 0."""
    # 24 bits, or as many as a subnormal number has
    shift = max(0, count.bit_length() - 24, -149 - exponent)
    kept = count >> shift
    rest = count & ((1 << shift) - 1)
    half = 1 << shift >> 1
    kept += bool(shift) and (rest > half or (rest == half and kept & 1))
    value = (
        math.inf
        if kept and kept.bit_length() + shift + exponent > 128
        else math.ldexp(kept, shift + exponent)
    )
    return np.float32(-value if negative and kept else value)


def weight_gradients(table, entries, bags, grad, mean, lines, out):
    """Dot products of rows and gradients of their bags, rounded once; shapes as in the kernel."""
    rows = bags.rows
    for k, lo, hi, line in _bags(entries, bags.offsets, lines, grad):
        gradient = line / np.float32(hi - lo if mean and hi > lo else 1)
        for j in range(lo, hi):
            out[j] = 0.0
            if rows[j] >= 0:
                row = _rows_of(table, entries, k, rows[j : j + 1])[0]
                out[j] = exact_dot(row, gradient, None, None)


def first_malformed(offsets, lookups):
    """First bag with wrong offsets, or the number of bags, or -1; shapes as in the kernel."""
    lo = offsets[:-1]
    hi = offsets[1:]
    wrong = np.flatnonzero((lo < 0) | (lo > hi) | (hi > lookups))
    if wrong.size:
        return int(wrong[0])
    return -1 if offsets[0] == 0 and offsets[-1] == lookups else lo.size


def mend_offsets(offsets, lookups):
    """Offsets clamped, and as high as all before them; returns how many were wrong; shapes as in
    the kernel.
    """
    wrong = int(offsets[0] > 0) + int(offsets[-1] != lookups)
    offsets[-1] = lookups
    bags = offsets.size - 1
    lowest = offsets.tolist()
    for b in range(bags):
        pair = lowest[b : b + 2]
        if sorted([0, *pair, lookups]) != [0, *pair, lookups]:
            wrong += 1
            start = min(max(pair[0], 0), lookups)
            lowest[b : b + 2] = [start, max(start, min(pair[1], lookups))]
    offsets[:] = lowest
    return wrong


def _outside(first, rows, limit):
    """(lookups of all entries, whether each is outside, its entry)."""
    entry = np.repeat(np.arange(limit.size), np.diff(first))
    lookups = np.arange(first[0], first[0] + entry.size) if entry.size else np.empty(0, np.int64)
    return lookups, (rows[lookups] < -1) | (rows[lookups] >= limit[entry]), entry


def count_outside(first, rows, limit, outside, pruned):
    """Lookups outside their table, and pruned ones, by entry; the first outside or -1; shapes as in
    the kernel.
    """
    lookups, wrong, entry = _outside(first, rows, limit)
    outside[:] = np.bincount(entry[wrong], minlength=limit.size)
    pruned[:] = np.bincount(entry[rows[lookups] == -1], minlength=limit.size)
    return int(lookups[wrong][0]) if wrong.any() else -1


def mend_rows(first, rows, limit, instead):
    """Rows outside their table become `instead`; shapes as in the kernel."""
    lookups, wrong, _ = _outside(first, rows, limit)
    rows[lookups[wrong]] = instead
