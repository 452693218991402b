"""The fused backward: one step of row-wise AdaGrad for each row that was looked up."""

import numpy as np


def backward(
    table: np.ndarray,
    sums: np.ndarray,
    offsets: np.ndarray,
    rows: np.ndarray,
    gradient: np.ndarray,
    rate: float,
    eps: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Update the rows of a batch of sum-pooled bags by row-wise AdaGrad.

    table : f32[R, D], before the step.
    sums : f32[R], row-wise AdaGrad's sum of each row, before the step.
    offsets, rows : the lookups of each bag, as in unit 2.
    gradient : f32[bags, D], of the loss by each pooled bag.
    Returns (table, sums) after the step. The gradient g of a row is the sum over all its lookups of
    their bags' gradients. Then sum += mean of g*g over the columns, and
    row -= rate * g / (sqrt(sum) + eps). Rows without a lookup stay as they are.
    """
    table, sums = table.copy(), sums.copy()
    bag = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.argsort(rows, kind="stable")
    unique, starts = np.unique(rows[order], return_index=True)
    for row, lookups in zip(unique, np.split(order, starts[1:])):
        g = gradient[bag[lookups]].sum(axis=0, dtype=np.float64).astype(np.float32)
        sums[row] += np.mean(g * g)
        table[row] -= np.float32(rate) * g / (np.sqrt(sums[row]) + np.float32(eps))
    return table, sums
