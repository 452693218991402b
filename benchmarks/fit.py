"""How fast does a fit reach an objective, beside scikit-learn, LIBLINEAR and Vowpal Wabbit?

Yardsticks: a libsvm file, all rows, the constant penalised, a penalty of 1: the gap to the optimum
of Newton's method in NumPy, and passes over the data, a product with the Hessian counted as one.

    python -m benchmarks.fit a1a.txt mushrooms.libsvm.gz

Rivals: logistic regression on a Criteo log, one-hot values and, with --bits, hashed pairs of them,
to a gap of 1e-6 of the objective. All minimise the same function of the same matrix; each is run
with tolerances that fall by tens until its gap is small enough, and the time is that of that run,
as a user who knew the tolerance would see it. They take turns; times are medians.

    python -m benchmarks.fit --log criteo_kaggle_40k.tsv.gz --rows 8000 --rounds 3

Perceptrons: a log's train part by each method, for hidden units and penalties; metrics of its test
part, at the end and at the step where they were best.

    python -m benchmarks.fit --log criteo_kaggle_40k.tsv.gz --hidden :16 16:128 --tolerance 1e-3
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.ingest.dataset.dataset import Dataset
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.train.before.datasets import open_splits
from neocpu.train.fit.fit import Fit, compile_kernels
from neocpu.train.fit.keys import METHODS, FitKeys
from neocpu.train.run.fitting import config_of, features_of, measured
from neocpu.train.watch.results import silent

GAP = 1e-6
TOLERANCES = tuple(10.0**-digits for digits in range(1, 11))
# Vowpal Wabbit's numbers of the namespace "f" and of the constant, before the mask of its bits.
VOWPAL_SPACE = 728008763
VOWPAL_CONSTANT = 11650396
F64 = np.ndarray
Run = Callable[[float], F64]  # tolerance -> weights


def train_data(path: Path, whole: bool) -> tuple[Dataset, list[str]]:
    """The train samples of a log, and its features."""
    comm = SingleComm()
    config = config_of([path], [], ["data.split=[]"] if whole else [], comm)
    with tempfile.TemporaryDirectory() as folder:
        splits = open_splits(config, comm, Path(folder), silent)
    return splits.datasets["train"], features_of(config)


def perceptrons(path: Path, layers: Sequence[str], tolerance: float, most: int) -> None:
    """Fits of layers, each "units,...:penalty", to the train part of a log."""
    comm = SingleComm()
    config = config_of([path], [], [], comm)
    with tempfile.TemporaryDirectory() as folder:
        splits = open_splits(config, comm, Path(folder), silent)
    train, test = splits.datasets["train"], splits.datasets["test"]
    print(f"\n{path.name}: {train.rows:,} train rows, {test.rows:,} of the test")
    for text, method in itertools.product(layers, METHODS):
        units, _, penalty = text.partition(":")
        hidden = tuple(int(each) for each in units.split(",") if each)
        keys = FitKeys(loss="logistic", method=method, l2=float(penalty), hidden=hidden)
        keys = replace(keys, tolerance=tolerance, most=most)
        compile_kernels(keys, comm)
        begun = time.perf_counter()
        fit = Fit(train, features_of(config), keys, comm)
        taken = 0.0  # by measuring
        losses = []
        for step in fit.steps():
            paused = time.perf_counter()
            losses.append((measured(fit.fitted, test, comm).logloss, step.passes))
            taken += time.perf_counter() - paused
        seconds = time.perf_counter() - begun - taken
        best, at = min(losses)
        print(
            f"  {text:10} {method:6} {fit.fitted.weights.size:9,} weights: objective "
            f"{step.objective:.6f}, gradient {step.gradient:.0e}, {step.step:4} steps, "
            f"{step.passes:6.1f} passes, {seconds:6.1f} s, test loss {losses[-1][0]:.5f}, best "
            f"{best:.5f} after {at:.0f} passes",
            flush=True,
        )


def triple(fit: Fit) -> tuple[Any, F64]:
    """The design matrix as SciPy's CSR without the constant, and labels."""
    from scipy.sparse import csr_matrix, hstack

    design = fit._fitting._design
    rows = design.rows
    values = rows.values if rows.values.size else np.ones(rows.places.size)
    sparse = csr_matrix((values, rows.places, rows.starts), (design.labels.size, design.sparse))
    return hstack([sparse, csr_matrix(design.dense[:, :-1])]).tocsr(), design.labels


def objective(matrix: Any, labels: F64, weights: F64, penalty: F64) -> float:
    """Mean loss and penalty of weights, the constant last."""
    z = matrix @ weights[:-1] + weights[-1]
    return float(np.mean(np.logaddexp(0, z) - labels * z) + 0.5 * np.sum(penalty * weights**2))


def yardstick(path: Path) -> None:
    """Gaps and passes of each method on a libsvm file."""
    data, features = train_data(path, whole=True)
    print(f"\n{path.name}: {data.rows:,} rows")
    for method in METHODS:
        for start, tolerance in ((256, 0.0), (data.rows, 0.0), (256, 1e-8)):
            keys = FitKeys(loss="logistic", intercepts=True)
            keys = replace(keys, method=method, start=start, tolerance=tolerance)
            fit = Fit(data, features, keys, SingleComm())
            steps = list(fit.steps())
            matrix, labels = triple(fit)
            penalty = np.full(matrix.shape[1] + 1, 1 / data.rows)
            best = newton(matrix.toarray(), labels, penalty)
            gap = objective(matrix, labels, fit.fitted.weights, penalty) - best
            first = sum(step.trials == 1 for step in steps) / len(steps)
            print(
                f"  {method:6} from {start:5} samples, tolerance {tolerance:7.0e}: f* {best:.7f}, "
                f"gap {gap:8.1e} after {steps[-1].passes:5.1f} passes, {len(steps):3} steps"
                + (f", first trial taken {first:.2f}" if method == "lbfgs" else "")
            )


def newton(x: F64, y: F64, penalty: F64) -> float:
    """The least objective, by Newton's method."""
    x = np.column_stack([x, np.ones(len(x))])
    w = np.zeros(x.shape[1])
    for _ in range(60):
        p = 1 / (1 + np.exp(-(x @ w)))
        gradient = x.T @ (p - y) / len(y) + penalty * w
        hessian = (x.T * (p * (1 - p))) @ x / len(y) + np.diag(penalty)
        w -= np.linalg.solve(hessian, gradient)
    z = x @ w
    return float(np.mean(np.logaddexp(0, z) - y * z) + 0.5 * np.sum(penalty * w * w))


def ours(data: Dataset, features: Sequence[str], keys: FitKeys, method: str) -> Run:
    """A fit of this package, from the data that are in memory to weights."""

    def run(tolerance: float) -> F64:
        fit = Fit(data, features, replace(keys, method=method, tolerance=tolerance), SingleComm())
        for _ in fit.steps():
            pass
        return fit.fitted.weights

    return run


def scikit(matrix: Any, labels: F64, l2: float, solver: str) -> Run:
    """scikit-learn's LogisticRegression on a CSR matrix that is there already."""
    from sklearn.linear_model import LogisticRegression

    # liblinear has no constant without a penalty; a large scale all but frees it
    scale = {"intercept_scaling": 1e3} if solver == "liblinear" else {}

    def run(tolerance: float) -> F64:
        model = LogisticRegression(
            C=1 / l2, solver=solver, tol=tolerance, max_iter=3000, **scale
        ).fit(matrix, labels)
        return np.append(model.coef_.ravel(), model.intercept_)

    return run


def vowpal(matrix: Any, labels: F64, l2: float, folder: Path) -> Run:
    """Vowpal Wabbit's L-BFGS, from its text file, which it turns into its cache, to weights (fp32).

    Whole numbers are names of features that it does not hash: no two have one weight.
    """
    from vowpalwabbit import Workspace

    path = folder / "samples.vw"
    with open(path, "w") as file:
        for row, label in enumerate(labels):
            entries = slice(matrix.indptr[row], matrix.indptr[row + 1])
            pairs = zip(matrix.indices[entries], matrix.data[entries], strict=True)
            text = " ".join(f"{column}:{value:.9g}" for column, value in pairs)
            file.write(f"{1 if label else -1} |f {text}\n")
    columns = matrix.shape[1]
    bits = int(columns).bit_length()
    while (VOWPAL_CONSTANT - VOWPAL_SPACE) % (1 << bits) < columns:
        bits += 1
    places = (VOWPAL_SPACE + np.arange(columns)) % (1 << bits)
    places = np.append(places, VOWPAL_CONSTANT % (1 << bits)).tolist()

    def run(tolerance: float) -> F64:
        model = Workspace(
            f"--data {path} --cache_file {path}.cache --kill_cache --passes 1000 --bfgs "
            f"--loss_function logistic --l2 {l2:g} --no_bias_regularization --holdout_off "
            f"--termination {tolerance:g} --bit_precision {bits} --quiet"
        )
        weights = np.array([model.get_weight(place) for place in places])
        model.finish()
        return weights

    return run


def compare(path: Path, rows: int, bits: int, l2: float, rounds: int, folder: Path) -> None:
    """Times to a gap of `GAP` on the first rows of a log."""
    data, features = train_data(path, whole=True)
    data = data.part(0, min(rows, data.rows))
    keys = FitKeys(loss="logistic", l2=l2, quadratic=bits > 0, bits=bits or 20)
    compile_kernels(keys, SingleComm())
    fit = Fit(data, features, replace(keys, tolerance=1e-9), SingleComm())
    for _ in fit.steps():
        pass
    matrix, labels = triple(fit)
    penalty = np.append(np.full(matrix.shape[1], l2), 0.0) / data.rows
    best = objective(matrix, labels, fit.fitted.weights, penalty)
    print(
        f"\n{path.name}: {data.rows:,} rows, {matrix.shape[1]:,} columns, {matrix.nnz:,} entries, "
        f"penalty {l2:g}, optimum {best:.9f}"
    )
    runs = {f"neocpu {method}": ours(data, features, keys, method) for method in METHODS}
    for solver in ("lbfgs", "newton-cg", "liblinear", "saga"):
        runs[f"scikit-learn {solver}"] = scikit(matrix, labels, l2, solver)
    runs["Vowpal Wabbit bfgs"] = vowpal(matrix, labels, l2, folder)
    chosen = {}
    for name, run in runs.items():
        for tolerance in TOLERANCES:
            begun = time.perf_counter()
            gap = objective(matrix, labels, run(tolerance), penalty) / best - 1
            if gap <= GAP:
                chosen[name] = (tolerance, gap)
                break
            if time.perf_counter() - begun > 10:
                break
        if name not in chosen:
            print(f"  {name:24} not within {GAP:g}: its last gap was {gap:.1e}")
    times: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(rounds):
        for name, (tolerance, _) in chosen.items():
            begun = time.perf_counter()
            runs[name](tolerance)
            times[name].append(time.perf_counter() - begun)
    for name, (tolerance, gap) in chosen.items():
        print(
            f"  {name:24} {statistics.median(times[name]):7.2f} s, tolerance {tolerance:.0e}, "
            f"gap {gap:.1e}"
        )


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("yardsticks", nargs="*", type=Path)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--rows", type=int, default=1 << 40)
    parser.add_argument("--bits", type=int, default=0)
    parser.add_argument("--l2", type=float, default=16.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hidden", nargs="+", default=[], metavar="UNITS,...:L2")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--most", type=int, default=1000)
    asked = parser.parse_args()
    prepare_threads(SingleComm(), asked.threads)
    for path in asked.yardsticks:
        yardstick(path)
    if asked.hidden:
        perceptrons(asked.log, asked.hidden, asked.tolerance, asked.most)
    elif asked.log:
        with tempfile.TemporaryDirectory() as folder:
            compare(asked.log, asked.rows, asked.bits, asked.l2, asked.rounds, Path(folder))


if __name__ == "__main__":
    main()
