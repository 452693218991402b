"""Does a fit reach the optimum that Newton's method finds, with the same bits on any ranks?"""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

import neocpu
from neocpu.cli.evaluate import evaluate
from neocpu.cli.fit import fit as fit_command
from neocpu.cli.fit import print_fit
from neocpu.cli.predict import predict
from neocpu.core.errors import CheckpointError, ConfigError, DataError, Stopped, TrainingError
from neocpu.kernels.compile.threads import use_threads
from neocpu.kernels.records import SparseLines
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.serve.scoring.fits import FitScorer, open_fit
from neocpu.train.checkpoint.folder import best_or_last
from neocpu.train.fit.design import DesignMatrix, Leaves
from neocpu.train.fit.fitted import load
from neocpu.train.fit.keys import METHODS, FitKeys
from neocpu.train.fit.layers import LayeredModel
from neocpu.train.fit.losses import LOSSES
from neocpu.train.fit.solving import Fitting, Goal
from neocpu.train.run.fitting import FitRun, config_of

SAMPLES, WIDTH = 300, 24


def drawn(seed, classes=2):
    """A sparse problem: items of each sample, and its label."""
    rng = np.random.default_rng(seed)
    items = [sorted(rng.choice(WIDTH, 6, replace=False) + 1) for _ in range(SAMPLES)]
    values = [np.round(rng.uniform(0.25, 2, 6) * 64) / 64 for _ in items]
    x = np.zeros((SAMPLES, WIDTH))
    for row, places, each in zip(x, items, values):
        row[np.array(places) - 1] = each
    scores = x @ rng.normal(0, 1, (WIDTH, classes)) + rng.gumbel(size=(SAMPLES, classes))
    return items, values, x, scores.argmax(axis=1)


def libsvm(path, items, values, labels):
    lines = []
    for places, each, label in zip(items, values, labels):
        words = " ".join(f"{place}:{value}" for place, value in zip(places, each))
        lines.append(f"{label} {words}\n")
    path.write_text("".join(lines))
    return path


def run(path, keys, comm=None, split="", **options):
    comm = comm or SingleComm()
    config = config_of([str(path)], [], [f"data.split=[{split}]"], comm)
    return FitRun(config, keys, comm, path.parent / "out", **options).run()


def copied(path, folder):
    """A log in a folder of its own, beside which its fit will be."""
    folder.mkdir(exist_ok=True)
    copy = folder / path.name
    copy.write_bytes(path.read_bytes())
    return copy


def digests_on_ranks(path, keys, folder):
    """Those of fits of a log on 1 to 4 ranks, of one thread and two in turn."""
    digests = set()
    for ranks in (1, 2, 3, 4):
        log = copied(path, folder / str(ranks))
        use_threads(1 + ranks % 2)

        def body(comm, log=log):
            return run(log, keys, comm)["digest"]

        digests |= set(run_threads(ranks, body))
    use_threads(1 << 10)
    return digests


def stopped_after_step_3(path, keys, **options):
    """A fit of a log that SIGTERM ends."""
    note = FitRun._note

    def noted(self, facts):
        note(self, facts)
        if facts.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped, match="after step 3"):
        patch.setattr(FitRun, "_note", noted)
        run(path, keys, **options)


def derivatives(loss, z, y):
    """Losses [n] of scores [n, K], slopes and curvatures [n, K, K], as textbooks write them."""
    if loss == "squares":
        t = z[:, 0] - y
        return t * t / 2, t[:, None], np.ones((y.size, 1, 1))
    if loss == "squared_hinge":
        s = 2 * y - 1
        t = np.maximum(1 - s * z[:, 0], 0)
        return t * t, (-2 * s * t)[:, None], 2.0 * (t > 0)[:, None, None]
    if loss == "logistic":
        p = 1 / (1 + np.exp(-z[:, 0]))
        value = np.logaddexp(0, z[:, 0]) - y * z[:, 0]
        return value, (p - y)[:, None], (p * (1 - p))[:, None, None]
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    chosen = np.eye(z.shape[1])[y]
    curvature = np.einsum("nk,kl->nkl", p, np.eye(z.shape[1])) - p[:, :, None] * p[:, None, :]
    return -np.log((p * chosen).sum(axis=1)), p - chosen, curvature


def newton(loss, x, y, l2, outputs=1, counts=1.0):
    """The optimum: weights [d + 1, K], as far as fp64 goes, and its value. counts : of samples."""
    x = np.column_stack([x, np.ones(len(x))])
    n, d = x.shape
    counts = np.broadcast_to(counts, n) / n
    penalty = np.tile(np.append(np.full(d - 1, l2), 0.0)[:, None] / n, outputs)
    w = np.zeros((d, outputs))
    for _ in range(100):
        losses, slope, curvature = derivatives(loss, x @ w, y)
        gradient = x.T @ (counts[:, None] * slope) + penalty * w
        if np.abs(gradient).max() < 1e-14:
            break
        hessian = np.einsum("n,ni,nkl,nj->ikjl", counts, x, curvature, x, optimize=True)
        hessian = hessian.reshape(w.size, w.size) + np.diag(penalty.ravel())
        # softmax does not change where all intercepts move alike
        w = w - np.linalg.lstsq(hessian, gradient.ravel(), rcond=1e-12)[0].reshape(w.shape)
    assert np.abs(gradient).max() < 1e-13
    return w, counts @ losses + 0.5 * np.sum(penalty * w * w)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    path = tmp_path_factory.mktemp("fit") / "sparse.libsvm"
    items, values, x, y = drawn(1)
    # labels of -1 and 1, a comment, a query: as strangers write them
    libsvm(path, items, values, 2 * y - 1)
    return path, x, y


@pytest.mark.parametrize(
    ("loss", "method"),
    [(loss, method) for loss in LOSSES for method in METHODS],
)
def test_a_fit_reaches_the_optimum(loss, method, tmp_path):
    outputs = 3 if loss == "softmax" else 1
    items, values, x, y = drawn(1, max(outputs, 2))
    labels = y - 0.25 * x[:, 3] if loss == "squares" else y + 1
    path = libsvm(tmp_path / "log.libsvm", items, values, labels)
    keys = FitKeys(loss=loss, method=method, tolerance=1e-10, start=20, l2=2.0)
    summary = run(path, keys)
    known = np.float32(labels).astype(float) if loss == "squares" else y
    expected, value = newton(loss, x, known, 2.0, outputs)
    assert summary["last"]["objective"] == pytest.approx(value, abs=1e-13)
    weights = load(tmp_path / "out").fitted.weights.reshape(WIDTH + 1, outputs)
    assert weights[:-1] == pytest.approx(expected[:-1], abs=1e-8)
    # intercepts of softmax may all move alike
    assert np.ptp(weights[-1] - expected[-1]) == pytest.approx(0, abs=1e-8)
    steps = [json.loads(line) for line in (tmp_path / "out" / "fit.jsonl").read_text().splitlines()]
    sizes = [step["samples"] for step in steps]
    assert sizes == sorted(sizes)
    assert (min(sizes), max(sizes)) == (20, SAMPLES)


@pytest.mark.parametrize("method", METHODS)
def test_any_ranks_and_threads_give_the_same_bits(method, problem, tmp_path):
    path, *_ = problem
    assert len(digests_on_ranks(path, FitKeys(start=20, method=method), tmp_path)) == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_fit_that_was_stopped_goes_on_to_the_same_bits(method, problem, tmp_path):
    path, *_ = problem
    link = copied(path, tmp_path)
    keys = FitKeys(start=20, method=method)
    whole = run(link, keys)["digest"]
    out = tmp_path / "out"
    with pytest.raises(TrainingError, match="already has results"):
        run(link, keys)
    (out / "fit.h5").unlink()
    stopped_after_step_3(link, keys)
    assert not load(out).done
    with pytest.raises(TrainingError, match="another l2"):
        run(link, replace(keys, l2=3.0), resume=True)
    summary = run(link, keys, resume=True)
    assert summary["digest"] == whole
    assert summary["steps"] > 3
    # what is finished is not fitted again
    again = run(link, keys, resume=True)
    assert (again["digest"], again["steps"]) == (whole, summary["steps"])


def test_the_first_sample_is_all_where_columns_are_more():
    assert [FitKeys().first(1000, columns) for columns in (1000, 1001)] == [256, 1000]
    assert FitKeys(start=20).first(1000, 1001) == 20


def test_a_fit_scores_new_files_as_its_formula_says(tmp_path):
    items, values, x, y = drawn(1)
    path = libsvm(tmp_path / "train.libsvm", items, values, 2 * y - 1)
    keys = FitKeys()
    run(path, keys)
    fit = tmp_path / "out"
    # an index that training had not, rows in another order, and one without any entry
    log = libsvm(tmp_path / "new.libsvm", items[::-1], values[::-1], np.ones(SAMPLES, int))
    log.write_text(log.read_text() + "0 99:5\n0\n")
    rows = np.column_stack([np.vstack([x[::-1], np.zeros((2, WIDTH))]), np.ones(SAMPLES + 2)])
    expected = 1 / (1 + np.exp(-(rows @ load(fit).fitted.weights)))
    invoke = CliRunner().invoke
    shown = invoke(predict, [str(fit), str(log), "--out", str(tmp_path / "p.npy")])
    assert "302 predictions" in shown.output
    predictions = np.load(tmp_path / "p.npy")
    np.testing.assert_allclose(predictions, expected, rtol=1e-6)
    frame = pl.DataFrame({"features": ["3:0.5 99:2", "99", ""]})
    few = FitScorer(fit).predict(frame)
    assert few[1] == few[2] == predictions[-1] != few[0]
    block = next(FitScorer(fit).logs.rows(log)).dataset
    for each in run_threads(3, lambda comm: FitScorer(fit, (), comm).predictions(block)):
        assert each.tobytes() == predictions.tobytes()
    log.write_text("".join(f"{place % 2} {place % 50 + 60}:1\n" for place in range(200)))
    with pytest.warns(UserWarning, match="most values of features \\(100%\\) are unknown"):
        FitScorer(fit).predict(log)
    with pytest.raises(CheckpointError, match="no checkpoint in it"):
        open_fit(tmp_path, (), SingleComm()) or best_or_last(tmp_path)
    # the metrics of new data are those that a fit measures
    measured = json.loads(invoke(evaluate, [str(fit), str(path), "--json"]).stdout)
    loss = -np.mean(np.log(np.where(y, expected[-3::-1], 1 - expected[-3::-1])))
    assert measured["logloss"] == pytest.approx(loss, rel=1e-6)
    assert measured["samples"] == SAMPLES
    for words, problem in (
        (
            [predict, str(fit), str(path), "--out", str(tmp_path / "q.npy"), "--head", "x"],
            "one label",
        ),
        ([evaluate, str(fit), str(path), "--baseline"], "is a linear model itself"),
    ):
        assert problem in invoke(words[0], words[1:]).output


def test_python_fits_as_the_command_does(tmp_path):
    items, values, _, y = drawn(1, 3)
    path = libsvm(tmp_path / "log.libsvm", items, values, y)
    model = neocpu.fit(path, out=tmp_path / "a", overrides=["data.split=[]"], loss="softmax")
    words = [str(path), "--set", "data.split=[]", "--out", str(tmp_path / "b")]
    shown = CliRunner().invoke(fit_command, [*words, "--loss", "softmax"])
    assert shown.output.splitlines()[-1] == f"digest {model.fitted.digest()}"
    assert model.evaluate(path)["accuracy"] > 0.6
    shown = CliRunner().invoke(fit_command, [*words[:-1], str(tmp_path / "c"), "--most", "1"])
    assert "note: the labels 0, 1, 2 are fitted as numbers; --loss softmax" in shown.output
    with pytest.raises(ConfigError, match="fit has no key 'losses'; its keys are method, loss"):
        neocpu.fit(path, losses="softmax")
    with pytest.raises(ConfigError, match="a config stands alone"):
        neocpu.fit(tmp_path / "a.toml", label="y")


@pytest.mark.parametrize("valued", [False, True])
def test_entries_of_one_hashed_column_are_one_number(valued):
    rng = np.random.default_rng(4)
    lengths = rng.integers(0, 6, 20)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    places = rng.integers(3, 7, starts[-1]).astype(np.int32)  # of 3 columns, and 4 hashed ones
    values = rng.normal(size=places.size) if valued else np.ones(0)
    dense = rng.normal(size=(20, 2))
    labels = (np.arange(20) % 2).astype(float)
    design = DesignMatrix(
        SparseLines(starts, places, values), dense, labels, 7, np.array([20]), 20, hashed=4
    )
    x = np.zeros((20, 9))
    x[:, 7:] = dense
    numbers = values if valued else np.ones(places.size)
    np.add.at(x, (np.repeat(np.arange(20), lengths), places), numbers)
    assert design.norms == pytest.approx((x * x).sum(axis=1), rel=1e-14)
    # the length of each sample's gradient
    model = LayeredModel(LOSSES["logistic"], (9, 1))
    weights = rng.normal(size=9)
    _, slope, _ = derivatives("logistic", x @ weights[:, None], labels)
    lengths = ((slope * x) ** 2).sum(axis=1)
    assert model.squares(model.tape(design, weights)) == pytest.approx(lengths, rel=1e-12)
    part = design.part(np.arange(5, 12), np.array([7]), 7)
    assert part.norms == pytest.approx((x * x).sum(axis=1)[5:12], rel=1e-14)
    # where none is there twice, nothing moves
    once = replace(design, rows=SparseLines(np.arange(21), places[:20], values[:20]))
    assert once.squared.rows.places is once.rows.places


@pytest.mark.parametrize("method", METHODS)
def test_an_item_that_a_list_has_twice_is_fitted_as_one_of_weight_2(method, tmp_path):
    rng = np.random.default_rng(0)
    true = rng.normal(size=12)
    logs = {"twice": [], "weighted": []}
    for _ in range(400):
        items = rng.choice(12, rng.integers(1, 7))
        label = 1 if rng.logistic() < true[items].sum() else -1
        counts = dict.fromkeys(items.tolist(), 0)  # in the order of the items
        for item in items.tolist():
            counts[item] += 1
        logs["twice"].append(" ".join(f"w{item}" for item in items))
        logs["weighted"].append(" ".join(f"w{item}:{count}" for item, count in counts.items()))
        for lines in logs.values():
            lines[-1] = f"{label} |f {lines[-1]}"
    found = []
    for name, lines in logs.items():
        path = tmp_path / f"{name}.vw"
        path.write_text("\n".join(lines) + "\n")
        run(copied(path, tmp_path / name), FitKeys(method=method, l2=1.0, tolerance=1e-9))
        found.append(load(tmp_path / name / "out" / "fit.h5").fitted)
    assert found[0].columns.width == found[1].columns.width == 13
    # L-BFGS, which reads squares, takes other samples on its way
    accuracy = 1e-7 if method == "lbfgs" else 1e-13
    assert found[0].weights == pytest.approx(found[1].weights, abs=accuracy)


def test_a_product_with_the_hessian_is_one_exchange():
    def body(comm):
        leaves = Leaves(comm.rank, comm.size, 4)
        _, ends = leaves.rows(8, 0, 8)
        size = int(ends[-1])
        places = np.zeros(size, np.int32)
        rows = SparseLines(np.arange(size + 1), places, np.ones(0))
        labels = np.arange(size) % 2.0
        model = LayeredModel(LOSSES["logistic"], (2, 1))
        design = DesignMatrix(rows, np.ones((size, 1)), labels, 1, ends, 8)
        fitting = Fitting(model, design, np.ones(2), Goal(0.1, 0.0), comm, leaves)
        objective = fitting.objective(0, 8)
        point = objective.at(np.zeros(2))
        before = calls(comm)
        objective.curved(point, np.ones(2))
        return {verb: count - before[verb] for verb, count in calls(comm).items()}

    def calls(comm):
        return {verb: count for verb, (count, _) in comm.sent.state().items()}

    # a sum of all ranks, in the two halves of an AllReduce
    for counted in run_threads(3, body):
        assert {verb: n for verb, n in counted.items() if n} == {"alltoallv": 1, "allgatherv": 1}


@pytest.mark.parametrize(
    ("line", "labels", "keys", "message"),
    [
        ("1 3:1 3:2", (0, 1), {}, "has index 3 twice"),
        ("", (1, 1), {"loss": "logistic"}, "all labels are the same"),
        ("", (2, 2), {"loss": "squares"}, "all labels are the same; there is nothing to fit"),
        ("", (1, 2, 3), {"loss": "logistic"}, "takes two; fit softmax"),
        ("", (0, 1), {"cross": (("features", "C9"),)}, "no feature 'C9'"),
        ("", (0, 1), {"cross": (("features",) * 2,)}, "only features of one value"),
    ],
)
def test_what_cannot_be_fitted_is_told(line, labels, keys, message, tmp_path):
    items, values, *_ = drawn(2)
    path = libsvm(tmp_path / "log", items, values, np.resize(labels, SAMPLES))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises((DataError, ConfigError), match=message) as raised:
        run(path, FitKeys(**keys))
    # the log that was named, and not its copy
    assert "converted" not in str(raised.value)
    assert str(path) in str(raised.value) or "feature" in str(raised.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--l2", "0"], "l2 0.0: it must be above 0"),
        (["--l2", "much"], "--l2 much: a number above 0, or auto"),
        (["--cross", "C1"], "--cross C1: two features, as C1,C2"),
        (["--cross", "C1,"], "--cross C1,: two features, as C1,C2"),
        (["--tolerance", "2"], "tolerance 2.0"),
    ],
)
def test_options_that_make_no_fit_are_refused(words, message):
    result = CliRunner().invoke(fit_command, ["log.csv", *words])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_what_a_fit_says_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    last = {"objective": 0.25, "gradient": 0.00123, "passes": 2.5}
    summary = {
        "metrics": {"train": {"samples": 1200, "logloss": 0.5, "auc": None}},
        "last": last,
        "steps": 3,
        "seconds": 1.25,
        "digest": "abc",
    }
    print_fit(summary, Path("out"))
    assert capsys.readouterr().out.splitlines() == [
        "train samples 1,200  logloss 0.50000",
        "objective 0.250000000, gradient 1.23e-03 after 3 steps and 2.5 passes, 1.2 s",
        "results in out",
        "digest abc",
    ]
