"""Does a sample of weight w count as w rows?"""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

import neocpu
from neocpu.cli.fit import fit as fit_command
from neocpu.core.errors import ConfigError, DataError
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.fit.design import Leaves
from neocpu.train.fit.keys import METHODS, FitKeys
from neocpu.train.fit.losses import LOSSES
from neocpu.train.fit.solving import Fitting, Goal
from neocpu.train.run.fitting import FitRun, config_of
from tests.test_fit import newton
from tests.test_layers import problem
from tests.workers import covered

ROWS = 200


def drawn(classes=2, numbers=False):
    """Rows of two numbers, a text and a list, a label y, and a weight w."""
    rng = np.random.default_rng(5)
    x = np.float32(rng.normal(size=(ROWS, 2)).round(3))
    score = x @ rng.normal(size=(2, classes)) + rng.gumbel(size=(ROWS, classes))
    columns = {"a": x[:, 0], "b": x[:, 1], "site": rng.choice(list("stuv"), ROWS)}
    words = [rng.choice(["p", "q", "r"], size).tolist() for size in rng.integers(0, 3, ROWS)]
    label = score[:, 0].round(2) if numbers else score.argmax(axis=1)
    return pl.DataFrame({"y": label, **columns, "words": words, "w": np.arange(ROWS) % 4})


def fit(frame, out, **keys):
    return neocpu.fit(frame, out=out, label="y", overrides=["data.split=[]"], **keys)


def sorted_weights(fitted):
    """Weights of each score, f64[width, K], in their order where columns may stand in any."""
    weights = fitted.weights.reshape(fitted.columns.width, -1)
    return np.concatenate([np.sort(weights[:-3], axis=0), weights[-3:-1]])


@pytest.mark.parametrize("method", covered(METHODS, always=("dance",)))
@pytest.mark.parametrize("loss", LOSSES)
def test_weighted_samples_are_fitted_to_the_weighted_optimum(loss, method, tmp_path):
    outputs = 3 if loss == "softmax" else 1
    frame = drawn(max(outputs, 2), loss == "squares")
    frame = frame.select("y", "a", "b", "site", w=0.25 + pl.col("w"))
    keys = {"loss": loss, "method": method, "tolerance": 1e-12, "start": 20, "l2": 2.0}
    model = fit(frame, tmp_path / "out", weight="w", **keys)
    x = frame["a", "b"].to_numpy().astype(float)
    y, w = frame["y"].to_numpy(), frame["w"].to_numpy()
    mean = np.average(x, axis=0, weights=w)
    deviation = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=w))
    sites = frame["site"].to_dummies().to_numpy()
    x = np.column_stack([sites, (x - mean) / deviation])
    expected, value = newton(
        loss, x, np.float32(y).astype(float) if loss == "squares" else y, 2.0, outputs, w
    )
    expected = np.concatenate([np.sort(expected[:4], axis=0), expected[4:-1]])
    assert sorted_weights(model.fitted) == pytest.approx(expected, abs=1e-7)  # inputs are fp32
    summary = json.loads((tmp_path / "out" / "fit.json").read_text())
    assert summary["last"]["objective"] == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_weight_is_how_often_a_row_counts(loss, tmp_path):
    frame = drawn(3 if loss == "softmax" else 2, loss == "squares")
    # rows that do not count, of a label and of values that no other row has
    none = pl.DataFrame({"y": [9], "a": [3.0], "b": [0.0], "site": ["z"], "words": [["z"]]})
    frame = pl.concat([frame, none.with_columns(w=0)], how="diagonal_relaxed")
    keys = {"loss": loss, "tolerance": 1e-13}
    model = fit(frame, tmp_path / "weighted", weight="w", **keys)
    rows = pl.concat([frame.filter(pl.col("w") > least) for least in range(3)])
    again = fit(rows.drop("w"), tmp_path / "repeated", **keys)
    assert model.fitted.columns.codes.keys() == {"site", "words"}
    assert model.fitted.columns.width == again.fitted.columns.width
    assert sorted_weights(model.fitted) == pytest.approx(sorted_weights(again.fitted), abs=1e-10)
    assert (model.fitted.samples, again.fitted.samples) == (150, 300)


@pytest.mark.parametrize("hidden", [(), (4, 3)])
@pytest.mark.parametrize("loss", LOSSES)
def test_derivatives_of_weighted_samples_are_those_of_repeated_ones(loss, hidden):
    alone, parameters, _ = problem(2, loss, "tanh", hidden)
    weights = np.arange(alone.design.samples) % 4
    ends = np.cumsum(weights)[alone.design.ends - 1]
    rows = np.repeat(np.arange(weights.size), weights)
    designs = (
        replace(alone.design, weights=weights.astype(float)),
        alone.design.part(rows, ends, weights.size),
    )
    vector = np.random.default_rng(3).normal(size=parameters.size)
    results = []
    for design in designs:
        leaves = Leaves(0, 1, 4)
        penalised = alone.model.penalised(False)
        fitting = Fitting(alone.model, design, penalised, Goal(0.1, 0), SingleComm(), leaves)
        objective = fitting.objective(0, design.samples)
        point = objective.at(parameters)
        curved = objective.curved(point, vector)
        results.append(np.concatenate([[point.value], point.gradient, curved, fitting.start(1)]))
    np.testing.assert_allclose(*results, rtol=1e-12, atol=1e-13)
    # a part of the samples keeps their weights
    assert designs[0].part(np.arange(3), ends, 3).weights.tolist() == [0, 1, 2]


def test_weights_of_1_change_no_bit(tmp_path):
    frame = drawn().drop("w")
    ones = fit(frame.with_columns(w=1.0), tmp_path / "ones", weight="w")
    assert ones.fitted.digest() == fit(frame, tmp_path / "none").fitted.digest()


@pytest.mark.parametrize("method", METHODS)
def test_weighted_fits_have_one_digest_on_any_ranks(method, tmp_path):
    path = tmp_path / "log.parquet"
    drawn().write_parquet(path)
    keys = FitKeys(method=method, start=20)

    def body(comm):
        config = config_of([str(path)], [], ["data.split=[]"], comm, label="y", weight="w")
        return FitRun(config, keys, comm, tmp_path / str(comm.size)).run()["digest"]

    assert len({digest for ranks in (1, 3) for digest in run_threads(ranks, body)}) == 1


def test_auto_chooses_a_penalty_by_weighted_losses(tmp_path):
    rng = np.random.default_rng(1)
    site = rng.choice(list("abcdefghijklmnop"), 400)
    frame = pl.DataFrame({"y": (site < "h") ^ (rng.random(400) < 0.1), "site": site, "w": 1})
    # every second row says the contrary where penalties are judged, and does not count
    denied = frame.with_columns(y=pl.col("y") ^ (pl.int_range(400) >= 360), w=0)
    both = pl.concat([frame, denied]).sort(pl.int_range(800) % 400, maintain_order=True)
    model = fit(both, tmp_path / "both", weight="w", l2="auto", tolerance=1e-13)
    alone = fit(frame.drop("w"), tmp_path / "alone", l2="auto", tolerance=1e-13)
    assert model.fitted.keys.l2 == alone.fitted.keys.l2 == 1.0
    assert fit(both.drop("w"), tmp_path / "all", l2="auto").fitted.keys.l2 == 64.0


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (-1.0, "weights 'w' are from -1 to 3; .* but sample 18 has -1"),
        (float("nan"), "row 18, column w: '' is empty"),
        (float("inf"), "row 18, column w: 'inf' is not a number"),
    ],
)
def test_weights_that_are_none_are_refused_by_their_row(wrong, problem, tmp_path):
    weights = drawn()["w"].cast(float).to_list()
    weights[17] = wrong
    with pytest.raises(DataError, match=problem):
        fit(drawn().with_columns(w=pl.Series(weights)), tmp_path / "out", weight="w")


def test_what_weighs_no_sample_is_refused(tmp_path):
    with pytest.raises(DataError, match="all samples weigh 0"):
        fit(drawn().with_columns(w=0), tmp_path / "none", weight="w")
    with pytest.raises(ConfigError, match="no column 'v'; the log has 'y', 'a'"):
        fit(drawn(), tmp_path / "other", weight="v")
    with pytest.raises(ConfigError, match="weight y: it is the label"):
        fit(drawn(), tmp_path / "label", weight="y")
    with pytest.raises(ConfigError, match="weight I1: "):
        neocpu.fit("tiny-criteo-test", out=tmp_path / "criteo", weight="I1")


def test_the_command_weighs_by_a_column(tmp_path):
    drawn().write_parquet(tmp_path / "log.parquet")
    words = [str(tmp_path / "log.parquet"), "--label", "y", "--set", "data.split=[]"]
    shown = CliRunner().invoke(fit_command, [*words, "--weight", "w", "--out", str(tmp_path / "a")])
    model = fit(drawn(), tmp_path / "b", weight="w")
    assert shown.output.splitlines()[-1] == f"digest {model.fitted.digest()}"
    assert "150 samples" in shown.output
