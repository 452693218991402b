"""Is the baseline the logistic regression that it says it is, and what does a run say of it?"""

import numpy as np
import pytest
from click.testing import CliRunner
from test_fit import derivatives

from neocpu.cli.init import init
from neocpu.cli.report import report
from neocpu.parallel.transport.comm import SingleComm
from neocpu.train.before.datasets import open_splits
from neocpu.train.config import config as configs
from neocpu.train.fit.fit import fitted
from neocpu.train.fit.keys import CHOSEN, PENALTIES, FitKeys
from neocpu.train.run.trainer import Trainer
from neocpu.train.run.verdict import behind, of_baseline
from neocpu.train.watch.results import silent
from tests.small_run import config_of, write_log

CONFIG = """
[data]
train = "train.csv"
test = "test.csv"
format = "table"
[data.schema]
version = 3
[data.schema.label]
column = "y"
kind = "number"
[[data.schema.dense]]
columns = ["x"]
kind = "float"
transform = "none"
[[data.schema.category]]
columns = ["shop"]
kind = "int"
[[data.schema.category]]
columns = ["tags"]
kind = "int"
separator = "|"
[model]
embedding_dim = 4
bottom = [4]
top = [1]
loss = "LOSS"
[tables]
shop = { rows = 10 }
tags = { rows = 10 }
"""


def table(path, rows, seed, loss, noise_from=None):
    """A log; from a row on nothing follows from its columns."""
    random = np.random.default_rng(seed)
    shop = random.integers(0, 6, rows)
    tags = [sorted(random.choice(4, 1 + i % 2, replace=False)) for i in range(rows)]
    x = random.normal(3, 2, rows).astype(np.float32)
    z = 0.4 * (shop - 2.5) + 0.3 * (x - 3) + np.array([np.mean(each) - 1.5 for each in tags])
    y = z if loss == "mse" else (random.random(rows) < 1 / (1 + np.exp(-z))).astype(int)
    if noise_from is not None:
        y[noise_from:] = np.arange(rows - noise_from) % 2
    lines = [
        f"{label},{number},{place},{'|'.join(map(str, each))}"
        for label, number, place, each in zip(y.tolist(), x.tolist(), shop.tolist(), tags)
    ]
    path.write_text("\n".join(["y,x,shop,tags", *lines]) + "\n")
    return shop, tags, x.astype(float), np.float32(y).astype(float)


@pytest.fixture
def opened(tmp_path):
    def make(loss="bce", rows=400, noise_from=None):
        columns = table(tmp_path / "train.csv", rows, 1, loss, noise_from)
        table(tmp_path / "test.csv", 200, 2, loss)
        config = configs.loads(CONFIG.replace("LOSS", loss), folder=tmp_path)
        return config, open_splits(config, SingleComm(), tmp_path, silent).datasets, columns

    return make


def one_hot(shop, tags, x, mean, deviation):
    """The matrix that the model's text describes, written out."""
    rows = np.zeros((x.size, 12))
    rows[np.arange(x.size), shop] = 1
    for row, each in zip(rows, tags):
        row[6 + np.array(each)] = 1 / len(each)
    rows[:, 10] = (x - mean) / deviation
    rows[:, 11] = 1
    return rows


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_the_gradient_of_its_definition_is_zero_at_its_weights(loss, opened):
    _, data, (shop, tags, x, y) = opened(loss)
    keys = FitKeys(loss="squares" if loss == "mse" else "logistic", l2=CHOSEN, tolerance=1e-9)
    model = fitted(data["train"], ["shop", "tags"], keys, SingleComm())
    rows = one_hot(shop, tags, x, x.mean(), x.std())
    z = rows @ model.weights
    slope = derivatives(keys.loss, z[:, None], y)[1][:, 0]
    gradient = rows.T @ slope + model.keys.l2 * np.append(model.weights[:-1], 0)
    # of sums over 400 samples; at weights of 0 it is above 20
    assert np.abs(gradient).max() < 1e-5
    p = z if loss == "mse" else 1 / (1 + np.exp(-z))
    assert model.predict(data["train"]) == pytest.approx(p, abs=1e-6)


def test_the_penalty_is_the_best_on_the_last_rows(opened, monkeypatch):
    # nothing follows from the columns in the last tenth, so that the strongest penalty is best
    _, data, _ = opened(rows=600, noise_from=540)
    keys = FitKeys(loss="logistic", l2=CHOSEN)
    assert fitted(data["train"], ["shop", "tags"], keys, SingleComm()).keys.l2 == PENALTIES[-1]
    monkeypatch.setattr("neocpu.train.fit.keys.PENALTIES", (1e5, 2.0))
    _, data, _ = opened(rows=600)
    assert fitted(data["train"], ["shop", "tags"], keys, SingleComm()).keys.l2 == 2.0


def test_values_that_it_never_saw_count_as_none(opened, tmp_path):
    config, data, (_, _, x, _) = opened()
    model = fitted(data["train"], ["shop", "tags"], FitKeys(loss="logistic"), SingleComm())
    (tmp_path / "test.csv").write_text("y,x,shop,tags\n0,3.0,99,7\n0,3.0,98,8|9\n")
    new = open_splits(config, SingleComm(), tmp_path, silent).datasets["test"]
    z = model.weights[-1] + model.weights[-2] * (3 - x.mean()) / x.std()
    assert model.predict(new) == pytest.approx([1 / (1 + np.exp(-z))] * 2)


def test_a_baseline_is_measured_and_a_model_behind_it_is_told(opened):
    config, data, _ = opened()
    found = of_baseline(config, data["train"], data["test"], SingleComm())
    assert (found["model"], found["rows"]) == ("logistic regression", 400)
    assert found["metrics"]["samples"] == 200 and found["metrics"]["auc"] > 0.7
    loss = found["metrics"]["logloss"]
    assert not behind({"logloss": loss - 0.01}, found)
    assert not behind({"logloss": None}, found)
    (line,) = behind({"logloss": loss + 0.01}, found)
    assert line.startswith("no better than a logistic regression")


def test_init_says_what_a_model_has_to_beat(opened, tmp_path):
    opened(rows=600)
    words = [str(tmp_path / "train.csv"), "--label", "y", "--out", str(tmp_path), "--baseline"]
    shown = CliRunner().invoke(init, words)
    assert shown.exit_code == 0, shown.output
    assert "test: logistic regression on the same rows, fitted to 480 rows: logloss" in shown.output


def test_a_report_fits_a_baseline_beside_a_run_that_has_none(tmp_path):
    log = write_log(tmp_path / "log.h5")
    folder = tmp_path / "run"
    Trainer(config_of(log, "training.steps=2"), None, folder).run()
    page = tmp_path / "page.html"
    words = [str(folder), "--out", str(page), "--force"]
    assert CliRunner().invoke(report, words).exit_code == 0
    assert "Beside a linear model" not in page.read_text()
    shown = CliRunner().invoke(report, [*words, "--baseline"])
    assert shown.exit_code == 0, shown.output
    assert "Beside a linear model" in page.read_text()
    log.unlink()
    shown = CliRunner().invoke(report, [*words, "--baseline"])
    assert shown.exit_code == 0
    assert "run: no baseline: " in shown.output and "log.h5" in shown.output
