"""The plain twin of `kernels/numbers/rounding.py`: words are summed as whole numbers, one
element after the other.
"""

import numpy as np

from neocpu.kernels.twins.numbers.exact import exact_sum


def round_words(words, n, scratch):
    """fp32 nearest to the exact sum of words[:n]; shapes as in the kernel."""
    return np.float32(exact_sum(words[:n]))


def combine_words(parts, further, out):
    """out[s, column[g] + c] = all words of (g, s, c), first and further ones, rounded once; shapes
    as in the kernel.
    """
    samples = out.shape[0]
    for g, (width, column) in enumerate(zip(parts.width, parts.column)):
        for s in range(samples):
            starts = [
                parts.source[j] + s * parts.stride[j]
                for j in range(parts.first[g], parts.first[g + 1])
            ]
            blocks = [parts.words[start:][:width] for start in starts]
            blocks += [
                further.words[further.start[k] :][:width]
                for k in np.flatnonzero(further.key == g * samples + s)
            ]
            for c in range(width):
                out[s, column + c] = exact_sum(block[c] for block in blocks)


def sum_words(words, order, starts, out):
    """out[u] = words of order[starts[u]:starts[u+1]], rounded once; shapes as in the kernel."""
    for u, members in enumerate(np.split(order, starts[1:-1]) if len(out) else []):
        out[u] = [exact_sum(column) for column in words[members].T]


def divide_columns(x, lengths, key, column, width):
    """Columns of MEAN keys divided by the lengths of their bags, where there are any; shapes as in
    the kernel.
    """
    for k, first, size in zip(key, column, width):
        divisor = np.maximum(lengths[k], 1).astype(np.float32)[:, None]
        x[:, first : first + size] /= divisor
