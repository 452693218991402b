"""What in a config does not serve its data? One plain line each.

A run tells them once, before its first step, and goes on: nothing here is an error.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.errors import listed
from neocpu.core.types import JsonObject, Tell
from neocpu.ingest.dataset_layout import FeatureColumn
from neocpu.tables.specs.directions import EIGH
from neocpu.train.config.asynchronous import OFF
from neocpu.train.config.config import Config
from neocpu.train.config.defaults import batch_of

if TYPE_CHECKING:  # runs of runs read no HDF5 file
    from neocpu.ingest.dataset.dataset import Dataset

FEW_STEPS = 300  # fewer leave a model near its start, if smaller batches would make more
LOOKED_AT = 1 << 16  # samples whose values are counted
SHARED = 0.4  # share of values that share a row from which a table is too small
NAMED = 5  # tables or features in one line
WORSE = 1.01  # times its best, from which the valid loss has turned
IN_A_ROW = 3  # measurements in a row that are worse; one may be noise


@dataclass(frozen=True)
class TrainData:
    """What complaints need to know of the train data.

    rows : its samples. features : of the data. values : feature -> distinct values, at least;
    needed where rows are by hash.
    """

    rows: int
    features: Mapping[str, FeatureColumn]
    values: Mapping[str, int]


def advise(config: Config, data: "Dataset", steps: int, tell: Tell) -> None:
    """Tell what in a run's config does not serve its train data."""
    # only rows by hash collide
    values = _distinct_values(config, data) if config.data.rows_by == "hash" else {}
    for line in complaints(config, TrainData(data.rows, data.features, values), steps):
        tell(f"note: {line}")


def warn_of_leaves(config: Config, ranks: int, tell: Tell) -> None:
    """Say so where some ranks have no samples of a batch, or threads of trainers."""
    leaves = config.training.leaves
    keys = config.training.asynchronous
    parts = ranks
    what = "ranks"
    idle = "get no samples and only hold rows of tables"
    if config.training.sync == OFF:
        parts = (ranks - keys.servers) * keys.threads
        what = "threads train"
        idle = "get no samples"
    if parts > leaves:
        enough = 1 << (parts - 1).bit_length()
        tell(
            f"warning: {parts} {what} but training.leaves = {leaves}: {parts - leaves} of them "
            f"{idle}. Take fewer, or set training.leaves = {enough}, which changes the digest"
        )


def _distinct_values(config: Config, data: "Dataset") -> dict[str, int]:
    """Feature -> distinct values in the first samples; one at a time, for the sake of memory."""
    samples = np.arange(min(LOOKED_AT, data.rows), dtype=np.int64)
    features = {feature for table in config.tables for feature in table.features}
    return {
        name: int(np.unique(data.take(samples, [name]).features[name].codes).size)
        for name in sorted(features)
    }


def complaints(config: Config, data: TrainData, steps: int) -> Iterator[str]:
    """Lines about a config that is to train on these data for so many steps."""
    used = {feature for table in config.tables for feature in table.features}
    yield from _steps(config, data.rows, steps)
    yield from _rates(config)
    yield from _promise(config)
    unused = [name for name in data.features if name not in used]
    if unused:
        yield f"features without a table, which the model does not see: {listed(unused, NAMED)}"
    weighted = [
        feature
        for table in config.model_tables
        for feature in table.features
        if data.features[feature].weighted and not table.weighted
    ]
    if weighted:
        ignored = list(dict.fromkeys(weighted))
        yield (
            f"the data have weights of {listed(ignored, NAMED)}, which are ignored; "
            f"tables.{ignored[0]}.weighted = true uses them"
        )
    if config.data.rows_by == "hash":
        yield from _collisions(config, data.values)


def _steps(config: Config, rows: int, steps: int) -> Iterator[str]:
    size = config.training.batch_size
    better = batch_of(rows)
    if steps < FEW_STEPS and size > 2 * better:
        yield (
            f"only {steps:,} steps in all, of {size:,} samples each: too few to learn much; "
            f"training.batch_size = {better} suits {rows:,} samples"
        )


def _rates(config: Config) -> Iterator[str]:
    sections = (("sparse", "tables"), ("dense", "dense parameters"))
    for section, what in sections:
        if getattr(config.optimizer, section).learning_rate == 0:
            yield f"optimizer.{section}.learning_rate is 0: {what} stay as they begin"


def _promise(config: Config) -> Iterator[str]:
    shampoo = config.optimizer.shampoo
    if shampoo.every and shampoo.roots == EIGH:
        yield (
            'optimizer.shampoo.roots = "eigh": roots have the bits of this machine\'s LAPACK, so '
            "the digest may be another one on other machines, with another NumPy or other threads "
            'of its BLAS; "newton" has one everywhere'
        )


def colliding(values: int, rows: int) -> float:
    """Share of so many values that share their row with another one, if hashed into `rows`."""
    return 1.0 - (1.0 - 1.0 / rows) ** max(values - 1, 0)


def _collisions(config: Config, values: Mapping[str, int]) -> Iterator[str]:
    """Tables so small that many values share a row, worst first; kinds share rows by design."""
    small = []
    for table in config.model_tables:
        distinct = sum(values.get(feature, 0) for feature in table.features)
        share = colliding(distinct, table.rows)
        if share > SHARED and distinct > 2:
            small.append((share, table.name, table.rows, distinct))
    small.sort(reverse=True)
    if small:
        shown = [
            f"{name} {distinct:,} in {rows:,} ({100 * share:.0f} %)"
            for share, name, rows, distinct in small
        ]
        yield (
            "values that share their row with another one, as tables have few rows: "
            f"{listed(shown, NAMED)}; give them several rows for each value (tables.NAME.rows), "
            'or set data.rows_by = "vocabulary"'
        )


class ValidWatch:
    """Says once that the valid loss has turned worse; a listener of a run's measurements.

    One worse measurement may be noise; it takes IN_A_ROW of them. tell : shows one line.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._best: dict[str, tuple[float, int]] = {}
        self._worse = 0
        self._told = False

    def __call__(self, line: JsonObject) -> None:
        """Hear a line of metrics.jsonl."""
        name = "logloss" if line.get("logloss") is not None else "mse"
        loss = line.get(name)
        if line.get("split") != "valid" or loss is None or self._told:
            return
        best, step = self._best.get(name, (loss, line["step"]))
        if loss < best or name not in self._best:
            self._best[name] = loss, line["step"]
        self._worse = self._worse + 1 if loss > WORSE * best else 0
        if self._worse == IN_A_ROW:
            self._told = True
            self._tell(
                f"valid {name} {loss:.4f} is worse than {best:.4f} at step {step}: more training "
                "overfits; training.patience = 3 would end the run and keep its best checkpoint"
            )
