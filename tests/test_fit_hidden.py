"""Is a fit of hidden layers, too, the same bits on any ranks, resumed, scored and refused by a
sentence?
"""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from test_fit import SAMPLES, copied, digests_on_ranks, drawn, libsvm, run, stopped_after_step_3

import neocpu
from neocpu.cli.evaluate import evaluate
from neocpu.cli.fit import fit as fit_command
from neocpu.core.errors import ConfigError, DataError, TrainingError
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.before import fit_room
from neocpu.train.fit.dance import newton_step
from neocpu.train.fit.fitted import load
from neocpu.train.fit.keys import ACTIVATION_NAMES, LOSS_NAMES, METHODS, FitKeys

KEYS = FitKeys(hidden=(3, 2), l2=4.0, tolerance=1e-3, start=100)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    items, values, _, y = drawn(1)
    return libsvm(tmp_path_factory.mktemp("hidden") / "log.libsvm", items, values, y)


@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
@pytest.mark.parametrize("method", METHODS)
def test_any_ranks_and_threads_give_the_same_bits(method, activation, log, tmp_path):
    keys = replace(KEYS, method=method, activation=activation, most=25)
    assert len(digests_on_ranks(log, keys, tmp_path)) == 1


PATIENT = FitKeys(hidden=(8,), l2=0.01, tolerance=1e-6, patience=3, start=100)
SPLIT = "0.6, 0.2, 0.2"


@pytest.mark.parametrize("method", METHODS)
def test_a_patient_fit_keeps_what_was_best_on_the_valid_part(method, log, tmp_path):
    keys = replace(PATIENT, method=method)
    log = copied(log, tmp_path)
    whole = run(log, keys, split=SPLIT)
    steps = [json.loads(line) for line in (tmp_path / "out" / "fit.jsonl").read_text().splitlines()]
    losses = [step["valid"] for step in steps]
    full = [step["samples"] == 180 for step in steps]
    best = losses.index(min(losses))
    # the first three steps on all samples behind the best one
    assert whole["finished"]
    assert sum(full[best + 1 :]) == 3
    assert full[-1]
    assert whole["metrics"]["valid"]["logloss"] == pytest.approx(min(losses), rel=1e-6)
    # the best one is as if the fit had ended there
    short = copied(log, tmp_path / "short")
    run(short, replace(keys, most=best + 1), split=SPLIT)
    kept, ended = (load(folder / "out").fitted for folder in (tmp_path, short.parent))
    assert kept.weights.tobytes() == ended.weights.tobytes()
    # what is finished is not fitted again
    again = run(log, keys, split=SPLIT, resume=True)
    assert (again["digest"], again["steps"]) == (whole["digest"], whole["steps"])
    for name, ranks in (("two", 2), ("three", 3)):
        other = copied(log, tmp_path / name)

        def body(comm, other=other):
            return run(other, keys, comm, split=SPLIT)["digest"]

        assert {*run_threads(ranks, body)} == {whole["digest"]}
    stopped = copied(log, tmp_path / "stopped")
    stopped_after_step_3(stopped, keys, split=SPLIT)
    assert not load(stopped.parent / "out").done
    assert run(stopped, keys, split=SPLIT, resume=True)["digest"] == whole["digest"]


def test_patience_needs_a_valid_part_and_is_part_of_a_fit(log, tmp_path):
    log = copied(log, tmp_path)
    with pytest.raises(ConfigError, match="patience is for the loss of a valid part; name one"):
        run(log, PATIENT)
    with pytest.raises(ConfigError, match="patience -1: steps, a whole number from 0 on"):
        FitKeys(patience=-1)
    assert "patience" not in FitKeys().header()
    assert PATIENT.header()["patience"] == 3
    # one that reaches its tolerance keeps its best weights, too, and is not fitted again
    keys = replace(PATIENT, hidden=(), patience=50, l2=0.01)
    run(log, keys, split=SPLIT)
    saved = load(tmp_path / "out")
    assert saved.done
    assert saved.state.weights.tobytes() != saved.fitted.weights.tobytes()
    again = run(log, keys, split=SPLIT, resume=True)
    assert (again["digest"], again["steps"]) == (saved.fitted.digest(), saved.state.iterations)


@pytest.mark.parametrize("method", METHODS)
def test_a_fit_that_was_stopped_goes_on_to_the_same_bits(method, log, tmp_path):
    link = copied(log, tmp_path / "a")
    keys = replace(KEYS, method=method, most=20)
    whole = run(link, keys)
    (tmp_path / "a" / "out" / "fit.h5").unlink()
    stopped_after_step_3(link, keys)
    with pytest.raises(TrainingError, match="another hidden, activation"):
        run(link, replace(keys, hidden=()), resume=True)
    summary = run(link, keys, resume=True)
    assert (summary["digest"], summary["steps"]) == (whole["digest"], whole["steps"])


@pytest.mark.parametrize(
    ("loss", "method"), [*((loss, "dance") for loss in LOSS_NAMES), ("logistic", "lbfgs")]
)
def test_a_perceptron_learns_what_no_linear_model_can(loss, method, tmp_path):
    rng = np.random.default_rng(1)
    a, b = np.round(rng.uniform(-1, 1, (2, 1000)), 3)
    label = (a * b > 0).astype(int)
    frame = pl.DataFrame({"label": label, "a": a, "b": b})
    path = tmp_path / "xor.csv"
    frame.write_csv(path)
    model = neocpu.fit(
        path, out=tmp_path / "fit", loss=loss, method=method, hidden=[8], l2=0.1, tolerance=1e-3
    )
    assert model.fitted.keys.hidden == (8,)
    fresh = pl.DataFrame({"a": rng.uniform(-1, 1, 400), "b": rng.uniform(-1, 1, 400)})
    scores = model.predict(fresh)
    middle = 0.0 if loss == "squared_hinge" else 0.5
    assert np.mean((scores > middle) == (fresh["a"] * fresh["b"] > 0).to_numpy()) > 0.95


def test_a_penalty_that_leaves_nothing_is_not_where_the_next_begins(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    a, b = np.round(rng.uniform(-1, 1, (2, 600)), 3)
    frame = {"label": (a * b > 0).astype(int), "a": a, "b": b}
    # four times these, from the last to the first
    monkeypatch.setattr("neocpu.train.fit.keys.PENALTIES", (1e3, 0.025, 1e6))
    keys = {"hidden": (8,), "l2": "auto", "tolerance": 1e-3, "most": 60}
    model = neocpu.fit(frame, out=tmp_path / "fit", label="label", **keys)
    assert model.fitted.keys.l2 == 0.1
    assert model.evaluate(frame)["accuracy"] > 0.95


def test_the_folder_of_a_perceptron_is_scored(log, tmp_path):
    words = [str(log), "--hidden", "3,2", "--l2", "auto", "--most", "8", "--set", "data.split=[]"]
    shown = CliRunner().invoke(fit_command, [*words, "--out", str(tmp_path / "fit")])
    assert shown.exit_code == 0, shown.output
    assert "6 hidden" not in shown.output
    summary = json.loads((tmp_path / "fit" / "fit.json").read_text())
    assert summary["model"] == "perceptron 3-2, logistic"
    assert summary["keys"]["l2"] in (4.0, 16.0, 64.0, 256.0)
    fitted = load(tmp_path / "fit").fitted
    assert fitted.digest() == summary["digest"]
    first, second, last = fitted.model.matrices(fitted.weights)
    x = np.column_stack([drawn(1)[2], np.ones(SAMPLES)])
    units = np.column_stack([np.tanh(x @ first), np.ones(SAMPLES)])
    units = np.column_stack([np.tanh(units @ second), np.ones(SAMPLES)])
    model = neocpu.load(tmp_path / "fit")
    expected = 1 / (1 + np.exp(-(units @ last)[:, 0]))
    np.testing.assert_allclose(model.predict(log), expected, rtol=1e-6)
    text = CliRunner().invoke(evaluate, [str(tmp_path / "fit"), str(log), "--baseline"]).output
    assert "fit its log without --hidden" in text


def test_hashed_values_that_training_had_not_have_no_weight(log, tmp_path):
    link = copied(log, tmp_path / "a")
    run(link, replace(KEYS, hashed=True, bits=9, most=3))
    fitted = load(tmp_path / "a" / "out").fitted
    seen = fitted.is_seen("features", np.arange(1, 25, dtype=np.uint64))
    unseen = fitted.is_seen("features", np.arange(100, 200, dtype=np.uint64))
    assert seen.all()
    assert unseen.mean() < 0.2  # those that share a column


def test_conjugate_gradients_end_at_negative_curvature():
    class Saddle:
        def __init__(self, diagonal):
            self.diagonal = np.array(diagonal)

        def curved(self, _, vector):
            return self.diagonal * vector

    class Here:
        gradient = np.array([1.0, 1.0, 1e-3])
        steepness = float(np.sqrt(2.0 + 1e-6))

    # at once: the gradient itself
    step = newton_step(Saddle([-1.0, -1.0, -1.0]), Here)
    assert (step.products, step.size) == (1, 0.0)
    assert step.direction.tolist() == Here.gradient.tolist()
    # later: the direction so far, which descends
    step = newton_step(Saddle([4.0, 1.0, -900.0]), Here)
    assert step.products > 1
    assert step.direction @ Here.gradient > 0
    assert np.isfinite(step.direction).all()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden": (0,)}, r"hidden \(0,\): the units of each hidden layer"),
        ({"hidden": (8, -1)}, "whole numbers above 0"),
        ({"hidden": (8.5,)}, "whole numbers above 0"),
        ({"hidden": 8}, "hidden 8: the units of each hidden layer"),
        ({"hidden": "8"}, "hidden '8': the units"),
        ({"hidden": (True,)}, "whole numbers above 0"),
        ({"hidden": (8,), "activation": "gelu"}, "activation 'gelu': choose one of tanh, relu"),
    ],
)
def test_layers_that_are_none_are_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        FitKeys(**keys)


def test_what_a_perceptron_cannot_be_fitted_to_is_told(log, tmp_path):
    invoke = CliRunner().invoke
    result = invoke(fit_command, [str(log), "--hidden", "3,x"])
    assert "--hidden 3,x: units of each layer, as 32,16" in str(result.exception)
    link = copied(log, tmp_path / "a")
    least = r"with 3,2 hidden units\), for which 1 rank"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(TrainingError, match=least):
        patch.setattr(fit_room, "available_memory", lambda: 1000)
        run(link, KEYS)
    with pytest.raises(TrainingError, match="--hidden of fewer units"):
        run(link, replace(KEYS, hidden=(10**30,)))
    link.write_text("".join(f"{n % 2} {n % 5}:3e38 {n % 7 + 5}:3e38\n" for n in range(50)))
    assert np.isfinite(run(link, replace(KEYS, activation="relu", most=3))["last"]["objective"])
    (tmp_path / "a" / "out" / "fit.h5").unlink()
    with pytest.raises(ConfigError, match="1 empty fields"):
        link.write_text("nan 1:1 5:1\n" + link.read_text())
        run(link, KEYS)
    link.write_text("".join(f"1 {n % 5}:1 {n % 7 + 5}:1\n" for n in range(50)))
    with pytest.raises(DataError, match="all labels are the same"):
        run(link, replace(KEYS, loss="softmax"))
