"""What does a linear model reach on the same rows? The least that a DLRM has to beat.

A logistic regression (linear, for `model.loss = "mse"`) over every value of every feature and the
standardised dense columns, with an L2 penalty: scikit-learn's `LogisticRegression(C=1/penalty)` on
one-hot columns. The penalty is the one that predicts the last tenth of its rows best. It is convex,
so L-BFGS finds its one solution from 0, without a rate or a seed to choose. NumPy on one rank;
nothing of it reaches the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Elements, Ints
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset_layout import BagColumn
from neocpu.kernels.twins.numbers.elementary import exp, log1p
from neocpu.train.watch.metrics import binned

F64 = NDArray[np.float64]
ENTRIES = 2_000_000  # values of features that are fitted to: some seconds
PENALTIES = (1.0, 4.0, 16.0, 64.0)  # L2, per parameter, against the sum of losses
HELD_OUT = 0.1  # of the rows, the last ones, on which a penalty is chosen
ITERATIONS = 60
HISTORY = 8  # pairs of steps and gradient changes that L-BFGS keeps
TOLERANCE = 1e-4  # of the largest number of the gradient, per sample


class Rows(NamedTuple):
    """A sparse matrix of samples: entry i is `values[i]` at (`samples[i]`, `columns[i]`)."""

    height: int
    samples: Ints
    columns: Ints
    values: F64

    def times(self, weights: F64) -> F64:
        """The sum of weights of each sample, f64[height]."""
        terms = self.values * weights[self.columns]
        return binned(self.samples, terms, self.height)

    def transposed_times(self, numbers: F64, width: int) -> F64:
        """The sum of numbers f64[height] over each column, f64[width]."""
        return binned(self.columns, self.values * numbers[self.samples], width)


@dataclass(frozen=True)
class LinearModel:
    """A fitted model: `weights` by column, of which the last is the constant.

    codes : by feature, sorted; the columns of a feature follow one another. mean, deviation : of
    the dense columns, which come behind those of features. rows : samples that it was fitted to.
    penalty : on each weight but the constant.
    """

    codes: dict[str, Elements]
    mean: F64
    deviation: F64
    weights: F64
    loss: str
    rows: int
    penalty: float

    def predict(self, data: Dataset) -> NDArray[np.float32]:
        """Predictions f32[n] of all samples: probabilities, for "mse" numbers."""
        block = max(ENTRIES // max(len(self.codes) + self.mean.size, 1), 1)
        parts = [np.empty(0, np.float32)]
        for low in range(0, data.rows, block):
            samples = np.arange(low, min(low + block, data.rows), dtype=np.int64)
            z = self.scores(data, samples)
            parts.append((z if self.loss == "mse" else sigmoid(z)).astype(np.float32))
        return np.concatenate(parts)

    def scores(self, data: Dataset, samples: Ints) -> F64:
        """Log-odds of some samples, for "mse" numbers, f64[n]."""
        return self.matrix(data, samples).times(self.weights)

    def matrix(self, data: Dataset, samples: Ints) -> Rows:
        """The columns of samples; values that the model does not know have none."""
        taken = data.take(samples, list(self.codes))
        order = np.arange(samples.size, dtype=np.int64)
        parts = []
        first = 0
        for name, codes in self.codes.items():
            parts.append(_one_hot(taken.features[name], codes, first, order))
            first += codes.size
        dense = (taken.dense.astype(np.float64) - self.mean) / self.deviation
        dense = np.concatenate([dense, np.ones((samples.size, 1))], axis=1)
        columns = np.arange(first, first + dense.shape[1], dtype=np.int64)
        parts.append(
            (np.repeat(order, columns.size), np.tile(columns, samples.size), dense.ravel())
        )
        joined = [np.concatenate(each) for each in zip(*parts)]
        return Rows(samples.size, *joined)


def _one_hot(bags: BagColumn, codes: Elements, first: int, order: Ints) -> tuple[Ints, Ints, F64]:
    """Entries of a feature: 1 at the column of a value, in a bag of n values 1/n at each."""
    lengths = bags.lengths
    if lengths is None:
        lengths = np.full(order.size, bags.codes.size // max(order.size, 1), np.int32)
    entries = bags.codes.reshape(-1)
    columns = np.minimum(np.searchsorted(codes, entries), max(codes.size - 1, 0))
    known = codes[columns] == entries if codes.size else np.zeros(entries.size, bool)
    samples = np.repeat(order, lengths)
    values = np.repeat(1.0 / np.maximum(lengths, 1), lengths)
    return samples[known], first + columns[known].astype(np.int64), values[known]


def sigmoid(z: F64) -> F64:
    """1 / (1 + e^-z), the same on every machine."""
    return 1.0 / (1.0 + exp(-np.clip(z, -700.0, 700.0)))


def fit(data: Dataset, features: Sequence[str], loss: str) -> LinearModel:
    """The linear model of the data; of long ones, of the last rows.

    loss : "bce" or "mse".
    """
    rows = min(data.rows, max(ENTRIES // max(len(features) + len(data.dense_columns), 1), 1))
    samples = np.arange(data.rows - rows, data.rows, dtype=np.int64)
    learnt, held_out = np.split(samples, [rows - int(HELD_OUT * rows)])
    penalty = PENALTIES[0]
    if held_out.size:
        labels = data.take(held_out, ()).labels
        losses = {}
        for each in PENALTIES:
            scores = _fit(data, features, learnt, loss, each).scores(data, held_out)
            losses[each] = _objective(scores, labels.astype(np.float64), loss)[0]
        penalty = min(losses, key=losses.__getitem__)
    return _fit(data, features, samples, loss, penalty)


def _fit(
    data: Dataset, features: Sequence[str], samples: Ints, loss: str, penalty: float
) -> LinearModel:
    """The linear model of some samples."""
    taken = data.take(samples, features)
    dense = taken.dense.astype(np.float64)
    deviation = dense.std(axis=0)
    codes = {name: np.unique(taken.features[name].codes) for name in features}
    width = sum(each.size for each in codes.values()) + dense.shape[1] + 1
    model = LinearModel(
        codes,
        mean=dense.mean(axis=0),
        deviation=np.where(deviation > 0, deviation, 1.0),
        weights=np.zeros(width),
        loss=loss,
        rows=samples.size,
        penalty=penalty,
    )
    matrix = model.matrix(data, samples)
    labels = taken.labels.astype(np.float64)
    # the constant, the last weight, has no penalty
    shrunk = np.append(np.full(width - 1, penalty), 0.0)

    def value_and_gradient(weights: F64) -> tuple[float, F64]:
        value, residual = _objective(matrix.times(weights), labels, loss)
        value += 0.5 * float(np.sum(shrunk * weights * weights))
        return value, matrix.transposed_times(residual, width) + shrunk * weights

    model.weights[:] = _minimum(value_and_gradient, width, TOLERANCE * samples.size)
    return model


def _objective(z: F64, labels: F64, loss: str) -> tuple[float, F64]:
    """The sum of losses of scores f64[n], and its gradient f64[n]."""
    if loss == "mse":
        residual = z - labels
        return 0.5 * float(np.sum(residual * residual)), residual
    # log(1 + e^z) without overflow
    losses = np.maximum(z, 0.0) - labels * z + log1p(exp(-np.abs(z)))
    return float(np.sum(losses)), sigmoid(z) - labels


def _minimum(objective: Callable[[F64], tuple[float, F64]], width: int, tolerance: float) -> F64:
    """Weights f64[width] of the least value, by L-BFGS (Nocedal 1980) with step halving.

    objective : value and gradient. tolerance : of the largest number of the gradient.
    """
    weights = np.zeros(width)
    value, gradient = objective(weights)
    steps: list[tuple[F64, F64]] = []
    for _ in range(ITERATIONS):
        if np.abs(gradient).max() <= tolerance:
            break
        direction = -_inverse_hessian_times(gradient, steps)
        slope = float(np.sum(direction * gradient))
        size = 1.0 if steps else min(1.0, 1.0 / float(np.abs(gradient).sum()))
        for _ in range(30):
            moved = weights + size * direction
            next_value, next_gradient = objective(moved)
            if next_value <= value + 1e-4 * size * slope:
                break
            size *= 0.5
        else:
            break  # no step lowers it: as near as fp64 comes
        change = next_gradient - gradient
        if np.sum(change * (moved - weights)) > 0:
            steps = [*steps[1 - HISTORY :], (moved - weights, change)]
        weights, value, gradient = moved, next_value, next_gradient
    return weights


def _inverse_hessian_times(gradient: F64, steps: Sequence[tuple[F64, F64]]) -> F64:
    """The two loops of L-BFGS; steps : (step, change of the gradient), oldest first."""
    result = gradient.copy()
    shares = []
    for step, change in reversed(steps):
        share = float(np.sum(step * result) / np.sum(step * change))
        result -= share * change
        shares.append(share)
    if steps:
        step, change = steps[-1]
        result *= float(np.sum(step * change) / np.sum(change * change))
    for (step, change), share in zip(steps, reversed(shares)):
        result += (share - float(np.sum(change * result) / np.sum(step * change))) * step
    return result
