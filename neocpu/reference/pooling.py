"""The plain twin of `neocpu.kernels.pooling`: every element of every pooled row is a sum of whole numbers.

How many words a bag is cut into is the kernel's business; the twin says how few could hold it.
"""

import numpy as np

from neocpu.reference.exact import exact_sum, rounded, whole


def terms_of_bag(values, index, weights, lo, hi, base, stride, width):
    """Terms of one bag, f32[m, width]: rows at base + index*stride, times their weights; index < 0 left out."""
    kept = np.flatnonzero(index[lo:hi] >= 0) + lo
    found = values[base + index[kept, None] * stride + np.arange(width)]
    return found * weights[kept, None] if weights.size else found


def words_of_terms(terms):
    """Fewest fp64 words, f64[k, width] with k >= 1, whose exact sum is the sum of the terms f32[m, width]."""
    columns = []
    for column in terms.T:
        if not np.isfinite(column).all():
            columns.append([exact_sum(column)])
            continue
        left = sum(map(whole, column))
        words: list[float] = []
        while left or not words:
            words.append(rounded(left, 53))
            left -= whole(words[-1])
        columns.append(words)
    out = np.zeros((max(map(len, columns), default=1), len(columns)))
    for c, words in enumerate(columns):
        out[: len(words), c] = words
    return out


def _bags(table, base, width, offsets, rows, weights, samples):
    """(bag, entry, sample, terms) of all bags."""
    for bag in range(base.size * samples):
        k, s = divmod(bag, samples)
        yield bag, k, s, terms_of_bag(table, rows, weights, offsets[bag], offsets[bag + 1], base[k], width[k], width[k])


def pooled_sum(table, base, width, offsets, rows, weights, out, column):
    """out[s, column[k] : + width[k]] = exact sum of bag k*S + s, rounded once; shapes as in the kernel."""
    for _, k, s, terms in _bags(table, base, width, offsets, rows, weights, len(out)):
        out[s, column[k] : column[k] + width[k]] = [exact_sum(t) for t in terms.T]


def pooled_words(table, base, width, offsets, rows, weights, out, column, used):
    """First words of all bags, and how few words could hold each; shapes as in the kernel."""
    for bag, k, s, terms in _bags(table, base, width, offsets, rows, weights, len(out)):
        words = words_of_terms(terms)
        used[bag], out[s, column[k] : column[k] + width[k]] = len(words), words[0]


def further_words(values, index, weights, lo, hi, base, stride, width, words, out):
    """All words of one bag, zeros after the last; shapes as in the kernel."""
    found = words_of_terms(terms_of_bag(values, index, weights, lo, hi, base, stride, width))
    out[:words] = 0.0
    out[: len(found)] = found
