"""Unit 1: does a student's DLRM lose what ours loses, step by step?"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Ints
from neocpu.kernels.twins.dense import gemm, interaction, loss
from neocpu.oracle.course.unit import CourseUnit, Exercise, Problem, Returned, Slip

F32 = np.float32
Floats = NDArray[np.float32]


def our_losses(
    dense: Floats,
    rows: Ints,
    labels: Floats,
    tables: Floats,
    bottom: Floats,
    top: Floats,
    rate: float,
) -> NDArray[np.float64]:
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


UNIT = CourseUnit(
    name="dlrm",
    title="a DLRM in 40 lines of NumPy",
    reads="NumPy's indexing, the chain rule, what a matrix product is",
    exercises=(
        Exercise(
            function="train",
            returned=(
                Returned("losses", "float", "one loss for each batch", ("step",), tolerance=1e-6),
            ),
            problems=problems,
            expected=our_losses,
            slips=(
                Slip(
                    "of the samples that look up one row only the last one trains it",
                    "table[rows] -= g assigns each row once; np.subtract.at(table, rows, g) "
                    "subtracts every time",
                    (
                        (
                            "np.subtract.at(table, looked_up[:, t], rate * g_vectors[t + 1])",
                            "table[looked_up[:, t]] -= rate * g_vectors[t + 1]",
                        ),
                    ),
                ),
                Slip(
                    "the gradient is that of the sum of the samples' losses, not of their mean",
                    "divide the gradient of z by the samples of the batch",
                    (("- y) / len(y)", "- y)"),),
                ),
                Slip(
                    "a loss is the sum over the samples, not their mean",
                    "divide the loss of a batch by its samples",
                    (("np.mean(np.logaddexp", "np.sum(np.logaddexp"),),
                ),
                Slip(
                    "the ReLU is missing in the forward pass",
                    "the bottom layer's output is max(0, x @ bottom.T)",
                    (("np.maximum(x @ bottom.T, 0)", "x @ bottom.T"),),
                ),
                Slip(
                    "the ReLU is missing in the backward pass",
                    "where the ReLU gave 0, the bottom layer gets no gradient",
                    (("(g_vectors[0] * (h > 0)).T", "g_vectors[0].T"),),
                ),
                Slip(
                    "a dot product gives its gradient to one of its two vectors only",
                    "the gradient of a*b by a is b, and by b it is a",
                    (("            g_vectors[j] += g * vectors[i]\n", ""),),
                ),
                Slip(
                    "the bottom layer gets no gradient from the top layer's first columns",
                    "the bottom layer's output is a feature of its own, beside the dot products",
                    (("        g_vectors[0] += g_features[:, : h.shape[1]]\n", ""),),
                ),
                Slip(
                    "the tables are not trained",
                    "subtract rate * gradient from the rows that were looked up",
                    (("rate * g_vectors[t + 1])", "0 * g_vectors[t + 1])"),),
                ),
                Slip(
                    "the bottom layer is not trained",
                    "its gradient is that of its output, through the ReLU, times x",
                    (("bottom -= rate *", "bottom -= 0 *"),),
                ),
                Slip(
                    "the step goes uphill",
                    "subtract rate * gradient",
                    (("/ len(y)\n", "/ -len(y)\n"),),
                ),
                Slip(
                    "the top layer moves before its old weights have passed the gradient on",
                    "compute all gradients first, then update",
                    (
                        ("        top -= rate * (features.T @ g_z)\n", ""),
                        (
                            "        g_features = np.outer(g_z, top)",
                            (
                                "        top -= rate * (features.T @ g_z)\n"
                                "        g_features = np.outer(g_z, top)"
                            ),
                        ),
                    ),
                ),
                Slip(
                    "the pairs are in another order, column by column",
                    "the pairs go (1, 0), (2, 0), (2, 1), (3, 0): i outside, j < i inside",
                    (
                        (
                            "for i in range(len(tables) + 1) for j in range(i)]",
                            (
                                "for j in range(len(tables) + 1) "
                                "for i in range(j + 1, len(tables) + 1)]"
                            ),
                        ),
                    ),
                ),
            ),
        ),
    ),
    hints="""\
Write the forward pass first: the first problem has one batch, so it asks for nothing else. Keep
every array that the backward pass will need.

The gradient of the loss by z is (sigmoid(z) - y) / B. From there, every line of the forward
pass has one line of the backward pass, in the opposite order.

A dot product of vectors a and b with the gradient g gives g*b to a and g*a to b. The bottom
layer's output gets gradients from all its pairs, and from the top layer itself.
""",
)
