"""Which datasets does a run read? Those of its config.

Raw logs are converted once, by rank 0; then every rank maps the converted files.
"""

import math
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.core.errors import ConfigError, DataError, NeocpuError
from neocpu.core.types import Elements, Tell
from neocpu.ingest.dataset.copies import ensure_dataset
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.loader import BatchShare, Loader, Needs, Reading
from neocpu.parallel.transport.abort import ended_by_signals
from neocpu.parallel.transport.comm import Comm
from neocpu.plan.cost.row_curves import RowCurve
from neocpu.tables.specs.feature_groups import key_groups
from neocpu.tables.specs.optimizer_groups import scaling_text
from neocpu.train.before.conversions import (
    check_disk,
    convert_options,
    copy_folders,
    ensure,
    first_train,
    tell_of,
)
from neocpu.train.before.first_samples import FirstSamples
from neocpu.train.config.config import Config
from neocpu.train.state.identity import describe, refuse_different

SPLITS = ("train", "valid", "test")


class Splits:
    """The opened datasets of a run, by split name; those without a path are absent.

    config : the run's, with a batch size for its train data where it named none. rates : values of
    keys that `optimizer.scaling` derived for them. Class attribute: whole, whether "train" is all
    that the run trains on.
    """

    whole = True

    def __init__(self, config: Config, comm: Comm, datasets: dict[str, Dataset]) -> None:
        train = datasets.get("train")
        self.config = config.for_samples(train.rows) if train else config
        derived = self.config.chosen.items() - config.chosen.items()
        self.rates = {key: value for key, value in derived if key.startswith("optimizer.")}
        self.comm = comm
        self.datasets = datasets
        self._vocabularies: dict[str, Elements] | None = None
        self._estimates: dict[str, dict[str, Any]] = {}
        if config.data.rows_by == "vocabulary":
            self._vocabularies = _vocabularies(config, datasets)

    @property
    def vocabularies(self) -> dict[str, Elements]:
        """Codes of each feature whose rows are chosen by a vocabulary; {} where none is known."""
        if self.config.data.rows_by != "vocabulary":
            return {}
        return dict(self._vocabularies or {})

    def use_vocabularies(self, vocabularies: Mapping[str, Elements]) -> None:
        """Choose rows by these vocabularies, and not by those of the data."""
        self._vocabularies = dict(vocabularies)

    @property
    def train_rows(self) -> int:
        """Samples of the train data."""
        return self.datasets["train"].rows

    @property
    def dense_features(self) -> int:
        """Dense columns of the data."""
        return len(next(iter(self.datasets.values())).dense_columns)

    def has(self, name: str) -> bool:
        """Whether the config gives this split."""
        return name in self.datasets

    def description(self) -> dict[str, Any]:
        """What a checkpoint notes of the data (`identity.py`)."""
        vocabularies = self._vocabularies
        if vocabularies is None:
            vocabularies = next(iter(self.datasets.values())).vocabularies
        return describe(self.datasets, self.config.data.rows_by, vocabularies)

    def loader(self, name: str, *, labelled: bool = True) -> Loader:
        """Batches of a split for this rank; only training is shuffled."""
        shuffle = self.config.data.shuffle and name == "train"
        data = self.datasets[name]
        loader = self.loader_of(data, shuffle, self._vocabularies, labelled=labelled)
        if name == "train":
            loader.weigh(self.config.data.sample_weight)
        return loader

    def loader_of(
        self,
        data: Dataset,
        shuffle: bool,
        vocabularies: Mapping[str, Elements] | None,
        *,
        labelled: bool = True,
    ) -> Loader:
        """Batches of a dataset for this rank, whose rows these vocabularies choose."""
        config = self.config
        return Loader(
            data,
            config.tables,
            BatchShare(
                config.training.batch_size, config.training.leaves, self.comm.rank, self.comm.size
            ),
            Reading(
                seed=config.training.seed,
                shuffle=shuffle,
                shuffle_run=config.data.shuffle_run,
                rows_by=config.data.rows_by,
                vocabularies=vocabularies,
                groups=key_groups(config.tables, config.data.deduplicate),
                depth=config.data.read_ahead,
            ),
            Needs(self.dense_features, labelled, head_labels(config)),
        )

    def touchable_rows(self, samples: int) -> dict[str, int]:
        """Rows of each table that training on so many samples can touch, at most."""
        data = self.datasets["train"]
        touchable = {}
        for table in self.config.tables:
            lookups = 0
            for feature in table.features:
                # another epoch looks up the same rows again, so one pass over the data is the limit
                whole = data.lookups(feature)
                lookups += min(whole, samples * (data.features[feature].hotness or whole))
            # every lookup a row of its own: an upper bound
            touchable[table.name] = min(table.rows, lookups)
        return touchable

    def pooling_factors(self) -> dict[str, float]:
        """Mean lookups per sample of each table. Collective when first called."""
        return self._estimated("pooling", lambda first: first.pooling_factors())

    def distinct_rows(self) -> dict[str, float]:
        """Distinct codes that a batch looks up in each table. Collective when first called.

        Rows may be fewer, where codes share one.
        """
        return self._estimated("distinct", lambda first: first.distinct_codes())

    def row_curves(self) -> dict[str, RowCurve]:
        """How lookups are spread over the rows of each table where these are not alike. Collective
        when first called.
        """
        curves = self._estimated("curves", lambda first: first.row_curves())
        return {
            name: RowCurve(tuple(rows), tuple(shares)) for name, (rows, shares) in curves.items()
        }

    def _estimated(
        self, name: str, estimate: Callable[[FirstSamples], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """An estimate by table, from the first samples of one split, which rank 0 reads for all."""
        # planner and room ask for the same estimates; the first to ask pays for the reading
        if name not in self._estimates:
            data = next(iter(self.datasets.values()))
            first = FirstSamples(self.config, data, self._vocabularies)
            self._estimates[name] = self.comm.on_first_rank(lambda: dict(estimate(first)))
        return self._estimates[name]


def open_splits(config: Config, comm: Comm, out: Path, tell: Tell) -> Splits:
    """Open the config's train, valid and test data, converting what is raw. Collective.

    out : folder for converted copies that have no room in the cache. tell : is given lines about
    what is converted, and about rates that follow from the train data.

    Raises on every rank DataError: a missing, malformed or foreign file; ConfigError: no train
    data.
    """
    missing = ConfigError(
        f"{config.source}: data.train: a file to train on is missing; --set data.train=train.txt.gz"
    )
    comm.agree(None if config.data.train else missing)
    paths = {name: getattr(config.data, name) for name in SPLITS}
    splits = open_paths(
        config, comm, out, tell, {name: files for name, files in paths.items() if files}
    )
    if splits.rates:
        tell(scaling_text(splits.config.training.batch_size, splits.rates))
    return splits


def open_paths(
    config: Config, comm: Comm, out: Path, tell: Tell, sources: dict[str, tuple[str, ...]]
) -> Splits:
    """`open_splits` for other files than the config's.

    sources : raw or converted files of each split.
    """
    converted_files: dict[str, list[str]] = {}
    opened: dict[str, Dataset] = {}
    if config.readers.count and "train" in sources:
        from neocpu.train.before.raw_train import open_raw_train

        labels = more_labels(config)
        config, raw = open_raw_train(config, comm, sources["train"], labels, out, tell)
        if raw is not None:
            opened["train"] = raw
            sources = {name: files for name, files in sources.items() if name != "train"}
    folders = copy_folders(comm, out)
    with comm.agreeing():  # the others wait behind it for rank 0's conversion
        if comm.rank == 0:
            with ended_by_signals(signal.SIGUSR1, signal.SIGUSR2):
                check_disk(config, sources, folders, tell)
                # valid and test take the numbers that the schema fits from the train data
                fitted: Path | None = None
                for name, paths in sources.items():
                    files = ensure(config, name, paths, folders, tell, fitted)
                    converted_files[name] = [str(path) for path in files]
                    if name == first_train(sources):
                        fitted = files[0]
    readable = comm.allgather(converted_files)[0]
    if comm.size > 1:
        from neocpu.parallel.transport.host_files import on_every_host

        readable = on_every_host(comm, readable, out)
    with comm.agreeing():
        label = config.data.label
        further_labels = more_labels(config)
        datasets = opened | {
            name: Dataset(files, label, further_labels) for name, files in readable.items()
        }
        _check_alike(datasets)
        if comm.rank == 0:
            # it may read whole columns, so one rank does it for all
            _check_labels(config, datasets)
    refuse_different(comm, datasets)
    for name in sources:
        datasets[name].sources = sources[name]
        tell_of(name, datasets[name], sources[name], tell)
    return Splits(config, comm, _parts(config, datasets))


def head_labels(config: Config) -> tuple[str, ...]:
    """Labels of the model's further heads."""
    return tuple(head.label for head in config.model.heads.values())


def more_labels(config: Config) -> tuple[str, ...]:
    """Labels that are read besides the first: of heads, and the samples' weights."""
    weight = config.data.sample_weight
    return tuple(dict.fromkeys([*head_labels(config), *([weight] if weight else [])]))


def _parts(config: Config, datasets: dict[str, Dataset]) -> dict[str, Dataset]:
    """The parts of the train data that `data.split` makes of them, in the log's order."""
    whole = datasets.get("train")
    if whole is None or not config.data.split:
        return datasets
    ends = [0]
    total = 0.0
    for share in config.data.split:
        total += share
        # of running sums, so that no sample falls between two parts
        ends.append(min(round(total * whole.rows), whole.rows))
    return {
        name: whole.part(first, last)
        for name, first, last in zip(SPLITS, ends, ends[1:])
        if last > first
    }


def _vocabularies(config: Config, datasets: dict[str, Dataset]) -> dict[str, Elements] | None:
    """Vocabularies of the run: of `data.vocabulary`, else of the train data, counted or stored."""
    data = config.data
    if data.vocabulary:
        return Dataset(data.vocabulary).vocabularies
    train = datasets.get("train")
    if train is None:
        return None
    # the stored vocabulary is of the whole file, its test part included
    if data.split and data.min_count:
        from neocpu.ingest.dataset.vocabulary import fit_vocabularies

        return dict(fit_vocabularies(train, data.min_count))
    return train.vocabularies


def converted(config: Config, comm: Comm) -> Splits | None:
    """The train data, if it is converted already; None on all ranks otherwise. Collective."""
    data = config.data
    splits = None
    if data.train:
        options = convert_options(config, "train")
        with suppress(NeocpuError, OSError):
            files = ensure_dataset(data.train, data.format, options, make=False)
            train = {"train": Dataset(files, config.data.label, more_labels(config))}
            splits = Splits(config, comm, _parts(config, train))
    # all or none: a rank that lacks the files would plan from other estimates
    return None if comm.largest(int(splits is None)) else splits


def _check_alike(datasets: dict[str, Dataset]) -> None:
    """Raise DataError unless dense inputs mean the same in every split."""
    (first_name, first), *rest = datasets.items()
    for name, data in rest:
        if difference := first.other_dense(data):
            raise DataError(
                f"data.{name} does not go with data.{first_name}: {difference}; convert both alike"
            )


def _check_labels(config: Config, datasets: dict[str, Dataset]) -> None:
    """Raise DataError for labels that a loss "bce" does not take, and for negative weights."""
    for name, data in datasets.items():
        # labels of these logs are clicks by their format
        if not data.labelled or data.attributes.get("log") in ("criteo", "avazu"):
            continue
        if config.model.loss == "bce":
            _check_clicks(f"data.{name}: labels", data.label_range(), "model")
        for head, keys in config.model.heads.items():
            if keys.loss == "bce" and keys.label in data.more_labels:
                subject = f"data.{name}: labels {keys.label!r}"
                _check_clicks(subject, data.more_range(keys.label), f"model.heads.{head}")
        weight = config.data.sample_weight
        if weight in data.more_labels:
            low, high = data.more_range(weight)
            if not (low >= 0.0 and math.isfinite(high)):
                values = data.more_label(weight)
                wrong = int(np.argmin((values >= 0.0) & np.isfinite(values)))
                raise DataError(
                    f"data.{name}: sample weights {weight!r} are from {low:g} to {high:g}; they "
                    f"must be finite and at least 0, but sample {wrong + 1:,} has "
                    f"{values[wrong]:g}"
                )


def _check_clicks(subject: str, values: tuple[float, float], section: str) -> None:
    """Raise DataError for labels outside [0, 1]; section : of the config, whose loss is "bce"."""
    low, high = values
    if not (low >= 0.0 and high <= 1.0):
        raise DataError(
            f"{subject} are from {low:g} to {high:g}, but {section}.loss = "
            f'"bce" takes labels from 0 to 1; set {section}.loss = "mse", or make clicks of them: '
            "[label] threshold = NUMBER in the schema"
        )
