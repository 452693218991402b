"""Unit 1: does a student's DLRM lose what ours loses, step by step?"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.types import Doubles, Floats, Ints
from neocpu.kernels.twins.dense import gemm, interaction, loss
from neocpu.oracle.course.unit import Exercise, Problem, Returned, unit_of

F32 = np.float32


def our_losses(
    dense: Floats,
    rows: Ints,
    labels: Floats,
    tables: Floats,
    bottom: Floats,
    top: Floats,
    rate: float,
) -> Doubles:
    """The losses f64[steps] by the twins of the kernels that train; arguments as in the solution.

    Layers, interaction, loss and their gradients are the twins'; SGD adds nothing to them.
    """
    tables, bottom, top = tables.copy(), bottom.copy(), top[None].copy()
    count, _, dim = tables.shape
    losses = []
    for x, looked_up, y in zip(dense, rows, labels):
        batch = len(x)
        hidden = np.empty((batch, dim), F32)
        gemm.layer(x, bottom, np.zeros(dim, F32), True, hidden)
        vectors = np.stack([hidden, *(tables[t][looked_up[:, t]] for t in range(count))], axis=1)
        e = np.ascontiguousarray(vectors.reshape(batch, -1))
        features = np.empty((batch, top.shape[1]), F32)
        interaction.dot_forward(e, dim, False, features)
        z = np.empty((batch, 1), F32)
        gemm.layer(features, top, np.zeros(1, F32), False, z)
        prediction, gradient, sample_losses = np.empty((3, batch), F32)
        loss.bce(z[:, 0], y, batch, prediction, gradient, sample_losses)
        losses.append(sample_losses.mean(dtype=np.float64))

        none = np.empty((0, 0), F32)
        g_top, g_bottom = np.empty_like(top), np.empty_like(bottom)
        g_features, g_e = np.empty_like(features), np.empty_like(e)
        one_leaf = np.array([0, batch])
        gemm.weight_gradient(gradient[:, None], features, one_leaf, g_top, np.empty(1, F32))
        gemm.input_gradient(gradient[:, None], top, none, g_features)
        interaction.dot_backward(e, g_features, dim, False, g_e)
        g_hidden = np.where(hidden > 0, g_e[:, :dim], F32(0))
        gemm.weight_gradient(g_hidden, x, one_leaf, g_bottom, np.empty(dim, F32))
        for t in range(count):
            g_rows = g_e[:, dim * (t + 1) : dim * (t + 2)]
            np.subtract.at(tables[t], looked_up[:, t], F32(rate) * g_rows)
        top -= F32(rate) * g_top
        bottom -= F32(rate) * g_bottom
    return np.array(losses)


def problem(
    seed: int, about: str, steps: int, batch: int, count: int, rows: int, rate: float
) -> Problem:
    """A log drawn at random, with a model to train on it. count : of tables."""
    rng = np.random.default_rng(seed)
    inputs, dim = 3, 4
    pairs = count * (count + 1) // 2
    return Problem(
        about,
        {
            "dense": rng.standard_normal((steps, batch, inputs)).astype(F32),
            "rows": rng.integers(0, rows, (steps, batch, count)),
            "labels": (rng.random((steps, batch)) < 0.4).astype(F32),
            "tables": (rng.standard_normal((count, rows, dim)) / 2).astype(F32),
            "bottom": (rng.standard_normal((dim, inputs)) / 2).astype(F32),
            "top": (rng.standard_normal(dim + pairs) / 2).astype(F32),
            "rate": rate,
        },
    )


def problems() -> Iterator[Problem]:
    """From one batch, which shows the forward pass alone, to a log with many duplicates."""
    yield problem(1, "one batch of four samples: the loss before any step", 1, 4, 1, 5, 0.5)
    yield problem(2, "one sample, three steps, two tables", 3, 1, 2, 5, 0.5)
    yield problem(3, "eight steps, rows that no batch repeats much", 8, 6, 3, 200, 0.2)
    yield problem(
        4, "tables of two rows: every row is looked up many times in a batch", 6, 16, 2, 2, 0.2
    )
    yield problem(5, "no table: the dense features alone", 3, 5, 0, 1, 0.2)


UNIT = unit_of(
    __file__,
    Exercise(
        function="train",
        returned=(
            Returned("losses", "float", "one loss for each batch", ("step",), tolerance=1e-6),
        ),
        problems=problems,
        expected=our_losses,
    ),
)
