"""Does a model that was trained serve? Against its average, its clicks, and a linear model.

It looks at numbers that were measured and changes nothing of the run.
"""

from collections.abc import Mapping
from pathlib import Path

from neocpu.core.errors import ConfigError, DataError
from neocpu.core.types import JsonObject, Tell
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.parallel.transport.comm import Comm
from neocpu.train.before.datasets import Splits
from neocpu.train.config.config import Config
from neocpu.train.watch.metrics import Metrics
from neocpu.train.watch.reliability import doubts

MEASURED = ("test", "valid")  # the first that was measured is what a baseline is compared on
ENTRIES = 2_000_000  # values of a log that a run goes through unasked: some seconds
TOLERANCE = 1e-4  # of the gradient; metrics are settled long before


def verdict(
    config: Config, splits: Splits, metrics: Mapping[str, Metrics], comm: Comm, tell: Tell
) -> JsonObject:
    """Doubts by split, and what a linear model reaches, as run.json has them. Collective.

    metrics : of the run, by split. tell : is given a line for each doubt.
    """
    doubted = {split: list(doubts(metrics[split])) for split in MEASURED if split in metrics}
    split = next(iter(doubted), "")
    baseline: JsonObject | None = None
    if config.eval.baseline and split and _is_small(config, splits, split):
        data = splits.datasets
        try:
            measured = of_baseline(config, data["train"], data[split], comm)
            baseline = {"split": split, **measured}
            doubted[split] += behind(metrics[split].to_dict(), baseline)
        except DataError as error:  # labels that are all the same are no reason to end a run
            tell(f"note: no linear model to compare with: {error}")
    for name, lines in doubted.items():
        for line in lines:
            tell(f"note: {name}: {line}")
    return {"doubts": doubted} | ({"baseline": baseline} if baseline else {})


def _is_small(config: Config, splits: Splits, split: str) -> bool:
    """Is a linear model fitted to all train data, and measured, within seconds?"""
    from neocpu.train.run.fitting import features_of

    width = len(features_of(config)) + splits.dense_features
    sizes = [splits.datasets[name].rows for name in ("train", split) if splits.has(name)]
    return splits.whole and len(sizes) == 2 and max(sizes) * width <= ENTRIES


def of_baseline(config: Config, train: Dataset, data: Dataset, comm: Comm) -> JsonObject:
    """What a linear model of the train data reaches on others: `neocpu fit --l2 auto`. Collective.

    {"model": its name, "rows": samples that it was fitted to, "metrics": by name}

    Raises DataError for labels that are all the same.
    """
    from neocpu.train.fit.fit import compile_kernels, fitted
    from neocpu.train.fit.keys import CHOSEN, FitKeys
    from neocpu.train.run.fitting import features_of, measured, named

    keys = named(FitKeys(l2=CHOSEN, tolerance=TOLERANCE, seed=config.training.seed), config)
    compile_kernels(keys, comm)
    model = fitted(train, features_of(config), keys, comm, config.data.sample_weight)
    metrics = measured(model, data, comm).to_dict()
    return {"model": model.name, "rows": model.samples, "metrics": metrics}


def baseline_of(config: Config, comm: Comm, out: Path, tell: Tell) -> JsonObject:
    """The linear model beside a config's own, as `verdict` has it: {"split": name, ...}.

    Collective. out : for converted copies that have no room in the cache. Raises ConfigError where
    the config measures on nothing.
    """
    from neocpu.train.before.datasets import open_splits

    splits = open_splits(config, comm, out, tell)
    split = next((name for name in MEASURED if splits.has(name)), "")
    if not split:
        raise ConfigError(
            f"{config.source}: there is no test or valid split to measure a baseline on; set "
            "data.test or data.split"
        )
    data = splits.datasets
    return {"split": split, **of_baseline(config, data["train"], data[split], comm)}


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
