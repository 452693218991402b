"""What are products with a design matrix and its transpose? The plain twin of
`kernels/dense/design.py`.
"""

import numpy as np


def _whole(lines):
    """(line, place, value) of every entry."""
    line = np.repeat(np.arange(lines.starts.size - 1), np.diff(lines.starts))
    values = lines.values if lines.values.size else np.ones(lines.places.size)
    return line, lines.places, values


def products(rows, dense, weights, out):
    """out = X weights; see `kernels.dense.design.products`."""
    line, place, value = _whole(rows)
    out[:] = 0.0
    # add.at adds entry by entry
    np.add.at(out, line, value[:, None] * weights[place])
    for column, weight in zip(dense.T, weights[len(weights) - dense.shape[1] :]):
        out += column[:, None] * weight


def _tree(sums: np.ndarray) -> np.ndarray:
    while len(sums) > 1:
        sums = sums[0::2] + sums[1::2]
    return sums[0]


def transposed_products(columns, numbers, leaves, nodes, out):
    """Nodes of X^T numbers; see `kernels.dense.design.transposed_products`."""
    line, place, value = _whole(columns)
    count = columns.starts.size - 1
    sums = np.zeros((nodes[:, 1].sum(), count, numbers.shape[1]))
    np.add.at(sums, (leaves[place], line), value[:, None] * numbers[place])
    for node, (first, size) in enumerate(nodes):
        out[node, : count * numbers.shape[1]] = _tree(sums[first : first + size]).ravel()


def dense_transposed(dense, numbers, ends, out):
    """Sums over leaves of X^T numbers; see `kernels.dense.design.dense_transposed`."""
    out[:] = 0.0
    leaf = np.searchsorted(ends, np.arange(len(dense)), side="right")
    np.add.at(out, leaf, dense[:, :, None] * numbers[:, None, :])


def transposed(rows, starts, places, values):
    """A sparse matrix by its columns; see `kernels.dense.design.transposed`."""
    line, place, value = _whole(rows)
    order = np.argsort(place, kind="stable")
    starts[:] = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=starts.size - 1))])
    places[:] = line[order]
    if values.size:
        values[:] = value[order]


def moved(x, share, y, out):
    """out = x + share * y; see `kernels.dense.design.moved`."""
    out[:] = x + share * y


def mean_and_pull(total, samples, penalty, weights, out):
    """out = total / samples + penalty * weights; see `kernels.dense.design.mean_and_pull`."""
    out[:] = total / samples + penalty * weights


def block_products(x, y, out):
    """Inner products of blocks; see `kernels.dense.design.block_products`."""
    padded = np.zeros((out.size, 512, 8))
    padded.reshape(-1)[: x.size] = x * y
    sums = np.zeros((out.size, 8))
    for eight in padded.transpose(1, 0, 2):
        sums += eight
    out[:] = _tree(sums.T)
