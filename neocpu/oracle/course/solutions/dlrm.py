"""A DLRM in NumPy: forward, backward and SGD."""

import numpy as np


def train(
    dense: np.ndarray,
    rows: np.ndarray,
    labels: np.ndarray,
    tables: np.ndarray,
    bottom: np.ndarray,
    top: np.ndarray,
    rate: float,
) -> np.ndarray:
    """Train a small DLRM by SGD, a step for each batch of the log.

    dense : f32[steps, B, I], the numbers of each sample.
    rows : int64[steps, B, T], the row that each sample looks up in each table.
    labels : f32[steps, B], 1 for a click.
    tables : f32[T, R, D].
    bottom : f32[D, I], the bottom layer, with a ReLU and without a bias.
    top : f32[D + pairs], the top layer: of the bottom layer's output, then of the dot products.
    rate : of SGD, for all parameters.
    Returns the loss of each batch before its own step, f64[steps]: the mean of log(1 + e^z) - z*y
    over the samples, z the top layer's output.

    The vectors of a sample are the bottom layer's output (number 0) and the row of each table
    (1 to T). The pairs (i, j), j < i, are in the order (1, 0), (2, 0), (2, 1), (3, 0), and so on.
    """
    tables, bottom, top = (x.astype(np.float64) for x in (tables, bottom, top))
    pairs = [(i, j) for i in range(len(tables) + 1) for j in range(i)]
    losses = []
    for x, looked_up, y in zip(dense, rows, labels):
        h = np.maximum(x @ bottom.T, 0)
        vectors = [h] + [table[looked_up[:, t]] for t, table in enumerate(tables)]
        products = [(vectors[i] * vectors[j]).sum(axis=1) for i, j in pairs]
        features = np.column_stack([h, *products])
        z = features @ top
        losses.append(np.mean(np.logaddexp(0, z) - z * y))

        g_z = (1 / (1 + np.exp(-z)) - y) / len(y)
        g_features = np.outer(g_z, top)
        g_vectors = [np.zeros_like(vector) for vector in vectors]
        g_vectors[0] += g_features[:, : h.shape[1]]
        for k, (i, j) in enumerate(pairs):
            g = g_features[:, h.shape[1] + k, None]
            g_vectors[i] += g * vectors[j]
            g_vectors[j] += g * vectors[i]
        top -= rate * (features.T @ g_z)
        bottom -= rate * ((g_vectors[0] * (h > 0)).T @ x)
        for t, table in enumerate(tables):
            np.subtract.at(table, looked_up[:, t], rate * g_vectors[t + 1])
    return np.array(losses)
