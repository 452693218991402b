"""Which datasets does a run read? Those of its config: raw logs are converted once, by rank 0, then
every rank maps them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.config import Config
from neocpu.errors import ConfigError, DataError, NeocpuError
from neocpu.ingest.convert import ConvertOptions, ensure_dataset, expected_bytes, missing_copies
from neocpu.ingest.dataset import Dataset
from neocpu.ingest.loader import Loader
from neocpu.parallel.comm import Comm
from neocpu.training.identity import describe
from neocpu.training.preflight import check_conversions

SPLITS = ("train", "valid", "test")
LOOKED_AT = 4096  # rows from which mean bag lengths are estimated


class Splits:
    """The opened datasets of a run, by split name; those without a path are absent."""

    def __init__(self, config: Config, comm: Comm, datasets: dict[str, Dataset]) -> None:
        self.config = config
        self.comm = comm
        self.datasets = datasets
        self._vocabularies: dict[str, Any] | None = None
        if config.data.rows_by == "vocabulary":
            source = (
                Dataset(config.data.vocabulary) if config.data.vocabulary else datasets.get("train")
            )
            self._vocabularies = source.vocabularies if source else None

    @property
    def dense_features(self) -> int:
        """Dense columns of the data."""
        return len(next(iter(self.datasets.values())).dense_columns)

    def has(self, name: str) -> bool:
        """Whether the config gives this split."""
        return name in self.datasets

    def description(self) -> dict[str, Any]:
        """What a checkpoint notes of the data (`identity.py`)."""
        words = self._vocabularies
        if words is None:
            words = next(iter(self.datasets.values())).vocabularies
        return describe(self.datasets, self.config.data.rows_by, words)

    def loader(self, name: str, *, labelled: bool = True) -> Loader:
        """Batches of a split for this rank; only training is shuffled."""
        config = self.config
        return Loader(
            self.datasets[name],
            config.tables,
            batch_size=config.training.batch_size,
            leaves=config.training.leaves,
            rank=self.comm.rank,
            ranks=self.comm.size,
            seed=config.training.seed,
            shuffle=config.data.shuffle and name == "train",
            rows_by=config.data.rows_by,
            vocabularies=self._vocabularies,
            dense=self.dense_features,
            labelled=labelled,
            depth=config.data.read_ahead,
        )

    def touchable_rows(self, samples: int) -> dict[str, int]:
        """Rows of each table that training on so many samples can touch at most: another epoch
        looks up the same rows.
        """
        data = self.datasets["train"]
        found = {}
        for table in self.config.tables:
            lookups = [
                min(data.lookups(f), samples * (data.features[f].hotness or data.lookups(f)))
                for f in table.features
            ]
            found[table.name] = min(table.rows, sum(lookups))
        return found

    def pooling_factors(self) -> dict[str, float]:
        """Mean lookups per sample of each table, estimated from the first rows of the first split."""
        data = next(iter(self.datasets.values()))
        rows = np.arange(min(LOOKED_AT, data.rows), dtype=np.int64)
        found = data.take(
            rows, [f for table in self.config.tables for f in table.features]
        ).features
        return {
            table.name: sum(found[f].codes.size for f in table.features) / max(rows.size, 1)
            for table in self.config.tables
        }


def open_splits(config: Config, comm: Comm, out: Path, tell: Callable[[str], None]) -> Splits:
    """Open the config's train, valid and test data, converting what is raw. Collective.

    Raises (on every rank) DataError: a missing, malformed or foreign file; ConfigError: no train
    data.
    """
    data = config.data
    missing = ConfigError(
        f"{config.source}: data.train: a file to train on is missing; --set data.train=train.txt.gz"
    )
    comm.agree(None if data.train else missing)
    names = [name for name in SPLITS if getattr(data, name)]
    return open_paths(config, comm, out, tell, {name: getattr(data, name) for name in names})


def open_paths(
    config: Config,
    comm: Comm,
    out: Path,
    tell: Callable[[str], None],
    given: dict[str, tuple[str, ...]],
    *,
    labelled: bool = True,
) -> Splits:
    """`open_splits` for other paths than the config's."""
    error: NeocpuError | None = None
    told = b""
    if comm.rank == 0:
        try:
            _check_disk(config, given, out, tell, labelled)
            told = "\n".join(
                "\t".join(map(str, _ensure(config, name, paths, out, tell, labelled)))
                for name, paths in given.items()
            ).encode()
        except NeocpuError as problem:
            error = problem
    comm.agree(error)  # the others wait here for rank 0's conversion
    lines = comm.allgather_bytes(told)[0].decode().split("\n")
    try:
        datasets = {name: Dataset(line.split("\t")) for name, line in zip(given, lines)}
        _check_alike(datasets)
    except NeocpuError as problem:
        datasets = {}
        error = problem
    comm.agree(error)
    for name, data in datasets.items():
        for path, source, count in zip(data.paths, given[name], data.skipped):
            if count:
                tell(
                    f"{name}: {count:,} malformed lines of {source} were skipped; the first are "
                    f"in {path}.errors.txt"
                )
    return Splits(config, comm, datasets)


def converted(config: Config, comm: Comm) -> Splits | None:
    """The train data, if it is converted already; for those who only want to know what it looks
    like.
    """
    data = config.data
    if not data.train:
        return None
    try:
        found = ensure_dataset(data.train, data.format, _options(config, "train", True), make=False)
        return Splits(config, comm, {"train": Dataset(found)})
    except (NeocpuError, OSError):
        return None


def _options(config: Config, name: str, labelled: bool) -> ConvertOptions:
    data = config.data
    return ConvertOptions(
        dense_transform=data.dense_transform,
        on_error=data.on_error,
        labelled=labelled,
        header=data.header,
        min_count=data.min_count
        if name == "train" and data.rows_by == "vocabulary" and not data.vocabulary
        else 0,
        schema=Path(data.schema) if data.schema else None,
        frequencies=config.memory.warm and name == "train",
    )


def _check_alike(datasets: dict[str, Dataset]) -> None:
    """Dense inputs must mean the same in every split."""
    (first, one), *others = datasets.items()
    for name, other in others:
        if found := one.other_dense(other):
            raise DataError(
                f"data.{name} does not go with data.{first}: {found}; convert both alike"
            )


def _check_disk(
    config: Config,
    given: dict[str, tuple[str, ...]],
    out: Path,
    tell: Callable[[str], None],
    labelled: bool,
) -> None:
    """Will the converted copies of all splits fit?"""
    kind = config.data.format
    needs = []
    for name, paths in given.items():
        options = _options(config, name, labelled)
        for sources, target in missing_copies(paths, kind, options, out):
            needs.append((target, expected_bytes(sources, kind, options)))
    check_conversions(needs, tell)


def _ensure(
    config: Config,
    name: str,
    paths: tuple[str, ...],
    out: Path,
    tell: Callable[[str], None],
    labelled: bool,
) -> list[Path]:
    data = config.data
    options = _options(config, name, labelled)
    told: list[int] = []

    def progress(done: int, total: int, rows: int) -> None:
        if not told or done - told[-1] > total / 10:
            tell(f"{name}: converting {', '.join(paths)}, once: {100 * done / max(total, 1):.0f} %")
            told.append(done)

    found = ensure_dataset(paths, data.format, options, out, progress)
    for path, source in zip(found, paths):
        if str(path) != source:
            tell(f"{name}: {source} is read as {path}")
    return found
