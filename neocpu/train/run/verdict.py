"""Does a model that was trained serve? Against its average, its clicks, and a linear model.

It looks at numbers that were measured and changes nothing of the run.
"""

import json
from collections.abc import Callable, Mapping

import numpy as np

from neocpu.core.types import JsonObject
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.train.before.datasets import Splits
from neocpu.train.config.config import Config
from neocpu.train.watch.metrics import Metrics, compute
from neocpu.train.watch.reliability import doubts

MEASURED = ("test", "valid")  # the first that was measured is what a baseline is compared on
NAMES = {"bce": "logistic regression", "mse": "linear regression"}


def verdict(
    config: Config,
    splits: Splits,
    metrics: Mapping[str, Metrics],
    comm: Comm,
    tell: Callable[[str], None],
) -> JsonObject:
    """Doubts by split, and what a linear model reaches, as run.json has them. Collective.

    metrics : of the run, by split. tell : is given a line for each doubt.
    """
    doubted = {split: list(doubts(metrics[split])) for split in MEASURED if split in metrics}
    split = next(iter(doubted), "")
    baseline: JsonObject | None = None
    if config.eval.baseline and split and _is_small(config, splits, split):
        data = splits.datasets
        measured = of_baseline(config, data["train"], data[split], comm)
        baseline = {"split": split, **measured}
        doubted[split] += behind(metrics[split].to_dict(), baseline)
    for name, lines in doubted.items():
        for line in lines:
            tell(f"note: {name}: {line}")
    return {"doubts": doubted} | ({"baseline": baseline} if baseline else {})


def _is_small(config: Config, splits: Splits, split: str) -> bool:
    """Is a linear model fitted to all train data, and measured, within seconds?"""
    from neocpu.train.watch.baseline import ENTRIES

    width = len(_features(config)) + splits.dense_features
    sizes = [splits.datasets[name].rows for name in ("train", split) if splits.has(name)]
    return splits.whole and len(sizes) == 2 and max(sizes) * width <= ENTRIES


def of_baseline(config: Config, train: Dataset, data: Dataset, comm: Comm) -> JsonObject:
    """What a linear model of the train data reaches on others. Collective; rank 0 computes.

    {"model": its name, "rows": samples that it was fitted to, "metrics": by name}
    """
    from neocpu.train.watch.baseline import fit

    loss = config.model.loss

    def work() -> bytes:
        model = fit(train, _features(config), loss)
        labels = data.take(np.arange(data.rows, dtype=np.int64), ()).labels
        measured = compute(model.predict(data), labels, loss, SingleComm())
        facts = {"model": NAMES[loss], "rows": model.rows, "metrics": measured.to_dict()}
        return json.dumps(facts).encode()

    facts: JsonObject = json.loads(comm.on_first_rank(work))
    return facts


def _features(config: Config) -> list[str]:
    """Features that the model looks up, each once."""
    return list(dict.fromkeys(name for table in config.tables for name in table.features))


def behind(metrics: Mapping[str, float | None], baseline: JsonObject) -> list[str]:
    """A line where a model's loss is not below that of the baseline."""
    name = "mse" if "mse" in metrics else "logloss"
    loss = metrics[name]
    least = baseline["metrics"][name]
    if loss is None or least is None or loss < least:
        return []
    line = (
        f"no better than a {baseline['model']} on the same rows: {name} {loss:.5f} against "
        f"{least:.5f}; more rows, other features or `neocpu sweep` may help"
    )
    return [line]


def baseline_line(baseline: JsonObject) -> str:
    """What the linear model reached, in one line."""
    values = baseline["metrics"]
    names = [name for name in ("logloss", "mse", "ne", "auc", "calibration") if values.get(name)]
    numbers = ", ".join(f"{name} {values[name]:.5f}" for name in names)
    return f"{baseline['model']} on the same rows, fitted to {baseline['rows']:,} rows: {numbers}"
