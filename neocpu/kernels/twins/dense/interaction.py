"""What does the dot interaction compute, to the bit? The plain twin of
`kernels/dense/interaction.py`.

All pairs of all samples take one step of their chains at a time; the lower triangle is picked out
at the end.
"""

import numpy as np

from neocpu.kernels.twins.numbers.fma import fma


def _triangle(count: int, diagonal: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns (i, j) of the pairs, row by row: j < i, with `diagonal` j <= i."""
    return np.tril_indices(count, 0 if diagonal else -1)


def dot_forward(e, dim, diagonal, out):
    """out f32[b, dim + pairs] from e f32[b, count*dim]; see
    `kernels.dense.interaction.dot_forward`.
    """
    rows = e.reshape(e.shape[0], e.shape[1] // dim, dim)
    i, j = _triangle(rows.shape[1], diagonal)
    dots = np.zeros((e.shape[0], i.size), np.float32)
    for d in range(dim):
        dots = fma(rows[:, i, d], rows[:, j, d], dots)
    out[:, :dim] = rows[:, 0]
    out[:, dim:] = dots


def dot_backward(e, g, dim, diagonal, out):
    """out f32[b, count*dim], the gradient of e, from g f32[b, dim + pairs]; see
    `kernels.dense.interaction.dot_backward`.
    """
    rows = e.reshape(e.shape[0], e.shape[1] // dim, dim)
    count = rows.shape[1]
    i, j = _triangle(count, diagonal)
    pairs = np.zeros((e.shape[0], count, count), np.float32)
    with np.errstate(all="ignore"):
        pairs[:, i, j] = pairs[:, j, i] = g[:, dim:]
        if diagonal:
            own = np.arange(count)
            pairs[:, own, own] = pairs[:, own, own] + pairs[:, own, own]
        sums = np.zeros_like(rows)
        for step in range(count):
            # one row j at a time, ascending, for all rows i at once
            moved = fma(pairs[:, :, step, None], rows[:, None, step], sums)
            if not diagonal:
                moved[:, step] = sums[:, step]
            sums = moved
        sums[:, 0] = sums[:, 0] + g[:, :dim]
    out[:] = sums.reshape(out.shape)
