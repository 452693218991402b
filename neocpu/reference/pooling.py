"""What is an exactly pooled bag? The plain twin of `kernels/pooling.py`: every element is a sum of
whole numbers.

How many words a bag is cut into is the kernel's business; the twin says how few could hold it.
"""

import numpy as np

from neocpu.reference.exact import exact_sum, rounded, whole


def terms_of_bag(values, index, weights, lo, hi, base, stride, width):
    """Terms of one bag, f32[m, width]: rows at base + index*stride, times their weights; index < 0
    left out.
    """
    kept = np.flatnonzero(index[lo:hi] >= 0) + lo
    found = values[base + index[kept, None] * stride + np.arange(width)]
    return found * weights[kept, None] if weights.size else found


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
            words.append(rounded(left, 53))
            left -= whole(words[-1])
        columns.append(words)
    out = np.zeros((max(map(len, columns), default=1), len(columns)))
    for c, words in enumerate(columns):
        out[: len(words), c] = words
    return out


def round_bag(values, index, weights, lo, hi, base, stride, width, out, acc):
    """out[:width] = exact sum of one bag, rounded once; shapes as in the kernel."""
    out[:width] = [
        exact_sum(t) for t in terms_of_bag(values, index, weights, lo, hi, base, stride, width).T
    ]


def sum_bag(values, index, weights, lo, hi, base, stride, width, out, acc):
    """out[:width] = first words of one bag; returns how few words could hold it; shapes as in the
    kernel.
    """
    words = words_of_terms(terms_of_bag(values, index, weights, lo, hi, base, stride, width))
    out[:width] = words[0]
    return len(words)


def _bags(base, width, offsets, column, out):
    """(bag, line of out, first lookup, last, base, width) of all bags."""
    for bag in range(base.size * len(out)):
        k, s = divmod(bag, len(out))
        yield (
            bag,
            out[s, column[k] : column[k] + width[k]],
            offsets[bag],
            offsets[bag + 1],
            base[k],
            width[k],
        )


def pooled_sum(table, base, width, offsets, rows, weights, out, column):
    """out[s, column[k] : + width[k]] = exact sum of bag k*S + s, rounded once; shapes as in the
    kernel.
    """
    for _, line, lo, hi, first, size in _bags(base, width, offsets, column, out):
        round_bag(table, rows, weights, lo, hi, first, size, size, line, None)


def pooled_words(table, base, width, offsets, rows, weights, out, column, used):
    """First words of all bags, and how few words could hold each; shapes as in the kernel."""
    for bag, line, lo, hi, first, size in _bags(base, width, offsets, column, out):
        used[bag] = sum_bag(table, rows, weights, lo, hi, first, size, size, line, None)


def bag_words(values, index, weights, lo, hi, base, stride, width, used, place, start, out, extra):
    """All words of some bags, zeros after the last; shapes as in the kernel."""
    for i in range(lo.size):
        found = words_of_terms(
            terms_of_bag(values, index, weights, lo[i], hi[i], base[i], stride[i], width[i])
        )
        words = np.zeros((used[i], width[i]))
        words[: len(found)] = found
        out[place[i] : place[i] + width[i]] = words[0]
        extra[start[i] : start[i] + words[1:].size] = words[1:].reshape(-1)
