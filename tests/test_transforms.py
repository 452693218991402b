"""Do numbers enter the model in a size in which it can learn from them?

Columns of many shapes, each with three labels: the more the higher, the middle ones, in proportion.
The judge is a small network of ReLUs that learns as the model does: AdaGrad, one pass.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from neocpu.train.advice.numbers import dense_column, transformed
from neocpu.train.advice.probe import Probe, auc_alone, losses, probe_of

F64 = NDArray[np.float64]
Draw = np.random.Generator
ROWS = 3000
LAYERS = (1, 32, 16, 1)
RATE = 0.01
BATCH = 16
NOISE = 0.01  # of the logloss, by which two runs of the judge differ

SHAPES: Mapping[str, Callable[[Draw], F64]] = {
    "years": lambda draw: draw.integers(1950, 2011, ROWS).astype(float),
    "heights": lambda draw: draw.normal(172, 9, ROWS).round(1),
    "ages": lambda draw: draw.normal(38, 13, ROWS).clip(17, 90).round(),
    "counts with many zeros": lambda draw: np.where(
        draw.random(ROWS) < 0.8, 0.0, draw.geometric(0.1, ROWS)
    ),
    "counts": lambda draw: draw.poisson(4, ROWS).astype(float),
    "a heavy tail": lambda draw: (10 * draw.pareto(1.1, ROWS)).round(2),
    "counts of a power law": lambda draw: np.minimum(draw.zipf(1.5, ROWS), 1e7).astype(float),
    "prices": lambda draw: np.exp(draw.normal(3, 1.2, ROWS)).round(2),
    "amounts": lambda draw: np.exp(draw.normal(13, 1.5, ROWS)).round(),
    "below zero": lambda draw: draw.normal(-40, 25, ROWS),
    "balances": lambda draw: (
        np.exp(draw.normal(7, 1.5, ROWS)) * np.where(draw.random(ROWS) < 0.8, 1, -1)
    ).round(),
    "flags": lambda draw: (draw.random(ROWS) < 0.5).astype(float),
    "rare flags": lambda draw: (draw.random(ROWS) < 0.03).astype(float),
    "percentages": lambda draw: (100 * draw.random(ROWS)).round(),
    "shares": lambda draw: draw.beta(2, 5, ROWS),
    "tiny": lambda draw: 1e-4 * draw.random(ROWS),
    "seconds of one year": lambda draw: 881_250_949 + draw.integers(0, 2e7, ROWS).astype(float),
    "few outliers": lambda draw: np.where(
        draw.random(ROWS) < 0.01, 1e4 * draw.random(ROWS), draw.normal(20, 3, ROWS)
    ),
    "constant but for few": lambda draw: np.where(
        draw.random(ROWS) < 0.05, 1000 * draw.random(ROWS), 7.0
    ).round(),
    "two humps": lambda draw: np.where(
        draw.random(ROWS) < 0.5, draw.normal(10, 2, ROWS), draw.normal(300, 20, ROWS)
    ),
    "-1 for missing": lambda draw: np.where(
        draw.random(ROWS) < 0.3, -1.0, draw.geometric(0.05, ROWS)
    ),
    "latitudes": lambda draw: draw.normal(47.4, 0.2, ROWS),
    "a normal deviate": lambda draw: draw.normal(size=ROWS),
    "durations": lambda draw: draw.exponential(200, ROWS).round(),
}


def labels_of(numbers: F64, draw: Draw) -> Iterator[F64]:
    """Clicks by the rank of a number, by how near the middle it is, and by its size."""
    _, inverse = np.unique(numbers, return_inverse=True)
    order = np.argsort(np.argsort(numbers, kind="stable"), kind="stable") / numbers.size
    ranks = (np.bincount(inverse, order) / np.bincount(inverse))[inverse]
    sizes = (numbers - numbers.mean()) / numbers.std()
    for odds in (4 * ranks - 2, 3 * np.cos(2 * np.pi * ranks), 2 * sizes.clip(-4, 4)):
        yield (draw.random(numbers.size) < 1 / (1 + np.exp(0.5 - odds))).astype(float)


def judge(inputs: F64, labels: F64, held: NDArray[np.bool_]) -> float:
    """The logloss of held-out rows after one pass over the others; the mean of two seeds."""
    return float(np.mean([_trained(inputs, labels, held, seed) for seed in (1, 2)]))


def _trained(inputs: F64, labels: F64, held: NDArray[np.bool_], seed: int) -> float:
    draw = np.random.default_rng(seed)
    weights = [
        draw.normal(0, (2 / (below + width)) ** 0.5, (below + 1, width))
        for below, width in itertools.pairwise(LAYERS)
    ]
    squares = [np.full_like(each, 1e-8) for each in weights]
    rows = np.flatnonzero(~held)
    for first in range(0, rows.size, BATCH):
        batch = rows[first : first + BATCH]
        layers = _forward(weights, inputs[batch])
        gradient = (1 / (1 + np.exp(-layers[-1].clip(-30, 30))) - labels[batch, None]) / batch.size
        for i in reversed(range(len(weights))):
            step = _with_ones(layers[i]).T @ gradient
            gradient = (gradient @ weights[i][:-1].T) * (layers[i] > 0)
            squares[i] += step**2
            weights[i] -= RATE * step / np.sqrt(squares[i])
    outputs = _forward(weights, inputs[held])[-1][:, 0]
    return float((np.logaddexp(0, outputs) - labels[held] * outputs).mean())


def _forward(weights: list[F64], inputs: F64) -> list[F64]:
    layers = [inputs[:, None]]
    for i, each in enumerate(weights):
        outputs = _with_ones(layers[-1]) @ each
        layers.append(outputs if i == len(weights) - 1 else np.maximum(outputs, 0))
    return layers


def _with_ones(layer: F64) -> F64:
    return np.column_stack([layer, np.ones(len(layer))])


@pytest.mark.parametrize("shape", SHAPES)
def test_no_column_is_worse_off_than_standardised(shape: str) -> None:
    draw = np.random.default_rng(7)
    numbers = SHAPES[shape](draw)
    for labels in labels_of(numbers, draw):
        probe = probe_of(pl.Series(labels), clicks=True)
        chosen = dense_column(pl.Series("x", numbers), probe, "numbers").transform
        if chosen == "standard":
            continue
        held = np.arange(ROWS) % 4 == 3
        scores = {
            name: judge(transformed(numbers, name), labels, held) for name in (chosen, "standard")
        }
        assert scores[chosen] < scores["standard"] + NOISE, scores


@pytest.mark.parametrize(
    ("shape", "transform", "why"),
    [
        ("years", "standard", "standardised: 1.98e+03 ± 17"),
        ("heights", "standard", "standardised: 172 ± 8.9"),
        ("counts with many zeros", "log1p", "% zeros"),
        ("a heavy tail", "log1p", "log1p: skewed by"),
        ("a normal deviate", "none", "as they are"),
        ("prices", "standard", "which tells more on rows held out"),
    ],
)
def test_the_transform_follows_the_spread_and_is_explained(
    shape: str, transform: str, why: str
) -> None:
    draw = np.random.default_rng(7)
    numbers = SHAPES[shape](draw)
    _, middle, _ = labels_of(numbers, draw)
    column = dense_column(pl.Series("x", numbers), probe_of(pl.Series(middle), True), "numbers")
    assert column.transform == transform
    assert why in column.why


def test_few_rows_and_labels_of_one_value_are_no_ground_for_a_choice() -> None:
    numbers = pl.Series("x", SHAPES["prices"](np.random.default_rng(7)))
    for labels in (pl.Series([0.0, 1.0] * 40), pl.Series([1.0] * ROWS), pl.Series([None] * ROWS)):
        probe = probe_of(labels.cast(pl.Float64), clicks=True)
        assert not probe.serves
        assert dense_column(numbers, probe, "numbers").transform == "log1p"


def test_the_probe_is_the_same_whenever_it_is_made_and_sees_the_whole_log() -> None:
    labels = pl.Series((np.arange(50_000) % 3 == 0).astype(float))
    one, other = probe_of(labels, True), probe_of(labels, True)
    assert one.rows.equals(other.rows)
    assert one.rows.len() <= 8192 and int(one.rows.max()) > 49_000  # type: ignore[arg-type]
    numbers = one.sample(labels).to_numpy()
    assert (losses(one, numbers) == losses(other, numbers)).all()


def test_what_a_column_tells_alone() -> None:
    draw = np.random.default_rng(3)
    clicks = draw.integers(0, 2, ROWS).astype(float)
    probe: Probe = probe_of(pl.Series(clicks), clicks=True)
    nearly = np.where(draw.random(ROWS) < 0.005, 1 - clicks, clicks)
    texts = pl.Series("paid", np.where(nearly == 1, "yes", "no"))
    assert auc_alone(probe, texts) > 0.98
    # neither noise nor a name of each row tells anything
    assert abs(auc_alone(probe, pl.Series(draw.normal(size=ROWS))) - 0.5) < 0.1
    assert abs(auc_alone(probe, pl.Series(map(str, range(ROWS)))) - 0.5) < 0.1
    # what is missing may tell, too
    holes = pl.Series([None if click else 1.5 for click in clicks])
    assert auc_alone(probe, holes) > 0.98
