"""Is the baseline the logistic regression that it says it is, and what does a run say of it?"""

import numpy as np
import polars as pl
import pytest

from neocpu.ingest.formats.frames import parse_frame
from neocpu.ingest.formats.table import table_schema
from neocpu.parallel.transport.comm import SingleComm
from neocpu.serve.scoring.samples import ParsedDataset
from neocpu.train.run.verdict import behind
from neocpu.train.watch.baseline import ENTRIES, PENALTIES, fit
from neocpu.train.watch.metrics import compute

SCHEMA = {
    "label": {"column": "y", "kind": "number"},
    "dense": [{"columns": ["x"], "kind": "float"}],
    "category": [
        {"columns": ["shop"], "kind": "int"},
        {"columns": ["tags"], "kind": "int", "separator": "|"},
    ],
}
FEATURES = ["shop", "tags"]


def data(rows, seed, loss="bce"):
    random = np.random.default_rng(seed)
    shop = random.integers(0, 6, rows)
    tags = [sorted(random.choice(4, 1 + i % 2, replace=False)) for i in range(rows)]
    x = random.normal(3, 2, rows)
    z = 0.4 * (shop - 2.5) + 0.3 * (x - 3) + np.array([np.mean(each) - 1.5 for each in tags])
    y = z if loss == "mse" else (random.random(rows) < 1 / (1 + np.exp(-z))).astype(float)
    frame = pl.DataFrame(
        {"y": y, "x": x, "shop": shop, "tags": ["|".join(map(str, each)) for each in tags]}
    )
    schema = table_schema(SCHEMA, "none", "test")
    return ParsedDataset(parse_frame(frame, schema), schema), shop, tags, x, y


def one_hot(shop, tags, x, mean, deviation):
    """The matrix that the model's text describes, written out."""
    rows = np.zeros((x.size, 12))
    rows[np.arange(x.size), shop] = 1
    for row, each in zip(rows, tags):
        row[6 + np.array(each)] = 1 / len(each)
    rows[:, 10] = (np.float32(x) - mean) / deviation
    rows[:, 11] = 1
    return rows


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_the_gradient_of_its_definition_is_zero_at_its_weights(loss, monkeypatch):
    monkeypatch.setattr("neocpu.train.watch.baseline.ITERATIONS", 20)  # L-BFGS takes 17 at most
    dataset, shop, tags, x, y = data(400, 1, loss)
    model = fit(dataset, FEATURES, loss)
    x32 = np.float32(x).astype(float)
    rows = one_hot(shop, tags, x32, x32.mean(), x32.std())
    z = rows @ model.weights
    p = z if loss == "mse" else 1 / (1 + np.exp(-z))
    free = model.penalty * np.append(model.weights[:-1], 0)
    gradient = rows.T @ (p - np.float32(y)) + free
    # of sums over 400 samples; at weights of 0 it is above 20
    assert np.abs(gradient).max() < 0.05
    assert np.abs(rows.T @ (0.5 - y)).max() > 20
    assert model.predict(dataset) == pytest.approx(p, abs=1e-5)


def test_the_penalty_is_the_best_on_the_last_rows(monkeypatch):
    # nothing follows from the columns in the last tenth, so that the strongest penalty is best
    dataset = data(600, 3)[0]
    dataset._parsed.labels[540:] = np.float32(np.arange(60) % 2)
    assert fit(dataset, FEATURES, "bce").penalty == PENALTIES[-1]
    monkeypatch.setattr("neocpu.train.watch.baseline.PENALTIES", (1e5, 2.0))
    assert fit(data(600, 3)[0], FEATURES, "bce").penalty == 2.0


def test_values_that_it_never_saw_count_as_none():
    train = data(300, 1)[0]
    model = fit(train, FEATURES, "bce")
    frame = pl.DataFrame({"y": [0.0, 0.0], "x": [3.0, 3.0], "shop": [99, None], "tags": ["7", "8"]})
    schema = table_schema(SCHEMA, "none", "test")
    new = ParsedDataset(parse_frame(frame, schema), schema)
    expected = 1 / (
        1
        + np.exp(-model.weights[-1] - model.weights[-2] * (3 - model.mean[0]) / model.deviation[0])
    )
    assert model.predict(new) == pytest.approx([expected, expected])


def test_it_generalises_from_the_last_rows_of_a_long_log(monkeypatch):
    monkeypatch.setattr("neocpu.train.watch.baseline.ENTRIES", 900)
    train = data(2_000, 1)[0]
    test, *_, y = data(1_000, 2)
    model = fit(train, FEATURES, "bce")
    assert model.rows == 300 < ENTRIES
    # blocks of 300 rows
    measured = compute(model.predict(test), np.float32(y), "bce", SingleComm())
    assert measured.auc > 0.75


def test_a_model_behind_it_is_told():
    baseline = {"model": "logistic regression", "metrics": {"logloss": 0.5}}
    assert not behind({"logloss": 0.49}, baseline)
    assert not behind({"logloss": None}, baseline)
    (line,) = behind({"logloss": 0.51}, baseline)
    assert line.startswith("no better than a logistic regression")
