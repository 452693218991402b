"""What is an exactly pooled bag? The plain twin of `kernels/rows/pooling.py`: every element is a
sum of whole numbers.

How many words a bag is cut into is the kernel's business; the twin says how few could hold it.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from neocpu.kernels.twins.numbers.exact import exact_sum, exact_sums, rounded, whole


class Terms(NamedTuple):
    """Terms of sums, for twins that ask for some; shapes as of the kernels' record."""

    values: Any
    index: Any
    weights: Any


class Bag(NamedTuple):
    """One bag, for twins that ask for one; as the kernels' record."""

    lo: int
    hi: int
    base: int
    stride: int
    width: int


def terms_of_bag(terms, lo, hi, base, stride, width):
    """Terms of the lookups [lo, hi), f32[m, width]: rows at base + index*stride, times their
    weights; index < 0 left out.
    """
    kept = np.flatnonzero(terms.index[lo:hi] >= 0) + lo
    rows = terms.values[base + terms.index[kept, None] * stride + np.arange(width)]
    return rows * terms.weights[kept, None] if terms.weights.size else rows


def words_of_terms(terms):
    """Fewest fp64 words, f64[k, width] with k >= 1, whose exact sum is the sum of the terms f32[m,
    width].
    """
    columns = []
    for column in terms.T:
        if not np.isfinite(column).all():
            columns.append([exact_sum(column)])
            continue
        left = sum(map(whole, column))
        words = list[float]()
        while left or not words:
            # the nearest fp64 number, then that of the rest: no fewer words can hold the sum
            words.append(rounded(left, 53))
            left -= whole(words[-1])
        columns.append(words)
    out = np.zeros((max(map(len, columns), default=1), len(columns)))
    for c, words in enumerate(columns):
        out[: len(words), c] = words
    return out


def round_bag(terms, bag, out, acc):
    """out[:width] = exact sum of one bag, rounded once; shapes as in the kernel."""
    rows = terms_of_bag(terms, *bag)
    if len(rows) == 1:  # its own sum, but for -0
        out[: bag.width] = rows[0] + np.float32(0)
    else:
        out[: bag.width] = exact_sums(rows)


def sum_bag(terms, bag, out, acc):
    """out[:width] = first words of one bag; returns how few words could hold it; shapes as in the
    kernel.
    """
    words = words_of_terms(terms_of_bag(terms, *bag))
    out[: bag.width] = words[0]
    return len(words)


def pooled_words(table, entries, bags, lines, out, used):
    """First words of all bags, and how few words could hold each; shapes as in the kernel."""
    terms = Terms(table, bags.rows, bags.weights)
    for k, (begin, end) in enumerate(pairwise(entries.first)):
        width = entries.width[k]
        for b in range(begin, end):
            start = lines.place[k] + (b - begin) * lines.pitch[k]
            lo = bags.offsets[b]
            hi = bags.offsets[b + 1]
            words = words_of_terms(
                terms_of_bag(terms, lo, hi, entries.base[k], entries.stride[k], width)
            )
            out[start : start + width] = words[0]
            used[b] = len(words)


def bag_words(terms, bags, out, extra):
    """All words of some bags, zeros after the last; shapes as in the kernel."""
    for lo, hi, base, stride, width, used, place, start in zip(*bags):
        fewest = words_of_terms(terms_of_bag(terms, lo, hi, base, stride, width))
        words = np.zeros((used, width))
        words[: len(fewest)] = fewest
        out[place : place + width] = words[0]
        extra[start : start + words[1:].size] = words[1:].reshape(-1)
