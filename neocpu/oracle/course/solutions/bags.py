"""Embedding bags: weighted sums of rows, by offsets."""

import numpy as np


def pool(
    table: np.ndarray, offsets: np.ndarray, rows: np.ndarray, weights: np.ndarray, mean: bool
) -> np.ndarray:
    """Add up the rows of every bag.

    table : f32[R, D].
    offsets : int64[bags + 1]; bag b has the lookups offsets[b] up to offsets[b + 1], without it.
    rows : int64[n], the row of each lookup.
    weights : f32[n], a factor of each lookup.
    mean : divide by the number of lookups of the bag; an empty bag is zero all the same.
    Returns f32[bags, D].
    """
    out = np.zeros((len(offsets) - 1, table.shape[1]), np.float32)
    for bag in range(len(out)):
        begin, end = offsets[bag], offsets[bag + 1]
        for lookup in range(begin, end):
            out[bag] += weights[lookup] * table[rows[lookup]]
        if mean and end > begin:
            out[bag] /= end - begin
    return out
