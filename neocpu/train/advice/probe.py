"""How well does one column tell the label, on rows that are held out?

A few thousand rows of the log, evenly spread; a model of one column learns from three quarters of
them and is measured on the others. Nothing is drawn by chance: the same log has the same answers.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from neocpu.core.types import Bools, Doubles

ROWS = 8192  # that are looked at
EVERY = 4  # which row is held out
LEAST = 200  # rows; of fewer, chance would decide
# Bends of the model, in units of the transformed column: where a layer of ReLUs, whose weights
# begin at about 1, can bend too. So a column of another size is fitted as badly as by that layer.
BENDS = (-1.5, -0.75, 0.0, 0.75, 1.5)
RIDGE = 1.0  # how hard weights far from 0 are to reach, in rows of one deviation
NEWTON_STEPS = 6
BINS = 64  # of numbers, for what each of them says alone
LEAST_CHANCE = 1e-4  # of what happens all the same
PRIOR = 2.0  # rows at the mean label that every value begins with


@dataclass(frozen=True)
class Probe:
    """The label of the rows that are looked at.

    rows : their numbers in the log. labels : f64[n], clicks as 0 and 1, others with mean 0 and
    deviation 1. clicks : whether they are clicks. held : bool[n], the rows that are held out.
    """

    rows: pl.Series
    labels: Doubles
    clicks: bool
    held: Bools

    @property
    def serves(self) -> bool:
        """Whether rows and labels are enough to learn from."""
        if self.rows.len() < LEAST:
            return False
        return bool(np.ptp(self.labels[self.held]) and np.ptp(self.labels[~self.held]))

    def sample(self, values: pl.Series) -> pl.Series:
        """The values of a column of the log in these rows."""
        return values.gather(self.rows)


def probe_of(labels: pl.Series, clicks: bool) -> Probe:
    """A probe of the labels of a log's rows, f64[rows]; rows without a label are left out."""
    known = pl.select(pl.arg_where(labels.is_finite().fill_null(False))).to_series()
    # ceiling: rows up to the last are looked at, so that a log in the order of time is seen whole
    rows = known.gather_every(max(-(-known.len() // ROWS), 1))
    values = labels.gather(rows).cast(pl.Float64).to_numpy()
    if not clicks and values.size:
        values = (values - values.mean()) / (values.std() or 1.0)
    return Probe(rows, values, clicks, np.arange(values.size) % EVERY == EVERY - 1)


def losses(probe: Probe, numbers: Doubles) -> Doubles:
    """The loss of each held-out row by a model of one dense column, f64[n] as it enters the MLP.

    The model is linear in the column and its bends: logistic for clicks, else least squares.
    """
    bends = np.maximum(numbers[:, None] - np.array(BENDS), 0.0)
    inputs = np.column_stack([np.ones(numbers.size), numbers, bends])
    learnt = ~probe.held
    weights = _fit(inputs[learnt], probe.labels[learnt], probe.clicks)
    outputs = inputs[probe.held] @ weights
    labels = probe.labels[probe.held]
    if not probe.clicks:
        return np.square(outputs - labels)
    return np.logaddexp(0.0, outputs) - labels * outputs


def _fit(inputs: Doubles, labels: Doubles, clicks: bool) -> Doubles:
    """Weights f64[k] of inputs f64[n, k], by Newton's method."""
    weights = np.zeros(inputs.shape[1])
    ridge = RIDGE * np.eye(weights.size)
    ridge[0, 0] = 1e-6  # a bias learns fast
    for _ in range(NEWTON_STEPS if clicks else 1):
        outputs = inputs @ weights
        predicted = 0.5 + 0.5 * np.tanh(0.5 * outputs) if clicks else outputs
        # far out the curvature is 0 to the last bit, and a step would have no length
        curvature = np.maximum(predicted * (1.0 - predicted), 1e-4) if clicks else 1.0
        gradient = inputs.T @ (labels - predicted) - ridge @ weights
        weights = weights + np.linalg.solve(inputs.T * curvature @ inputs + ridge, gradient)
    return weights


def better(losses: Doubles, others: Doubles) -> bool:
    """Are the losses of rows lower than others of the same rows, by more than chance?"""
    gain = others - losses
    return bool(gain.mean() > 2.0 * gain.std() / np.sqrt(gain.size))


def auc_alone(probe: Probe, values: pl.Series) -> float:
    """The AUC on held-out rows of the mean click of each value of a column; 0.5: it says nothing.

    values : of all rows of the log.
    """
    return _auc(pl.Series(_means(probe, values)), pl.Series(probe.labels[probe.held]))


def losses_alone(probe: Probe, values: pl.Series) -> Doubles:
    """The loss of each held-out row by the mean label of its value, as a table would learn it."""
    means = _means(probe, values)
    labels = probe.labels[probe.held]
    if not probe.clicks:
        return np.square(means - labels)
    likely = np.where(labels == 1, means, 1.0 - means)
    return -np.log(np.maximum(likely, LEAST_CHANCE))


def _means(probe: Probe, values: pl.Series) -> Doubles:
    """The mean label of the value of each held-out row, in the other rows.

    Numbers of many values are put into bins; what is missing is a value, too.
    """
    sample = probe.sample(values)
    if sample.dtype.is_numeric() and sample.n_unique() > BINS:
        edges = sample.drop_nulls().cast(pl.Float64).to_numpy()
        cuts = np.unique(np.quantile(edges, np.arange(1, BINS) / BINS))
        sample = pl.Series(
            np.searchsorted(cuts, sample.cast(pl.Float64).fill_null(np.nan), "right")
        )
    frame = pl.DataFrame({"value": sample.cast(pl.String), "label": probe.labels})
    mean = float(probe.labels[~probe.held].mean())
    by_value = frame.filter(~probe.held).group_by("value")
    rates = by_value.agg(
        ((pl.col("label").sum() + PRIOR * mean) / (pl.len() + PRIOR)).alias("rate")
    )
    held = frame.filter(probe.held).join(
        rates, "value", "left", nulls_equal=True, maintain_order="left"
    )
    return held["rate"].fill_null(mean).to_numpy()


def _auc(scores: pl.Series, labels: pl.Series) -> float:
    """The share of pairs of a click and a no-click in which the click has the higher score."""
    clicks = float(labels.sum())
    others = labels.len() - clicks
    ranks = float((scores.rank("average") * labels).sum())
    return (ranks - clicks * (clicks + 1) / 2) / (clicks * others)
