"""How do X and y become a log? One Parquet file with the columns of X and a label."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from neocpu.core.errors import DataError
from neocpu.core.types import Elements
from neocpu.ingest.formats.frames import as_frame
from neocpu.train.advice.write import Wishes, write_config

CONFIG = "config.toml"
LABEL = "label"


@dataclass(frozen=True)
class LabelledFrame:
    """Rows and their labels: numbers f32 or f64 [n], clicks as 0 and 1."""

    features: pl.DataFrame
    labels: Elements

    def write(self, path: Path, label: str) -> None:
        """As Parquet. Raises DataError for labels of other rows, and on a full disk."""
        if self.labels.shape != (self.features.height,):
            raise DataError(
                f"{self.features.height} rows, but labels of shape {self.labels.shape}; each row "
                "needs one label"
            )
        try:
            self.features.with_columns(pl.Series(label, self.labels)).write_parquet(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


def feature_frame(data: object) -> pl.DataFrame:
    """X as a frame: a table, or an array [n, columns], whose columns are then x0, x1, …"""
    if isinstance(data, np.ndarray):
        if data.ndim != 2:
            raise DataError(f"X is an array of shape {data.shape}; it must have rows and columns")
        data = {f"x{number}": column for number, column in enumerate(data.T)}
    return as_frame(data)


def kinds_of(
    frame: pl.DataFrame, numbers: Collection[str], categories: Collection[str]
) -> tuple[list[str], list[str]]:
    """(columns that are numbers, columns that are categories), but lists, which say it themselves.

    numbers, categories : those that the user named. Others: floats are numbers, texts, whole
    numbers, truths and categoricals are categories; dates and times are looked at by
    `neocpu.train.advice`.
    """
    dense = []
    sparse = []
    for name, kind in frame.schema.items():
        if name in numbers or (kind.is_float() and name not in categories):
            dense.append(name)
        elif name in categories or _is_category(kind):
            sparse.append(name)
    return dense, sparse


def _is_category(kind: pl.DataType) -> bool:
    text = isinstance(kind, pl.String | pl.Categorical | pl.Enum)
    return text or kind.is_integer() or kind == pl.Boolean


def write_run(
    folder: Path,
    train: LabelledFrame,
    valid: Sequence[LabelledFrame],
    numbers: Collection[str],
    categories: Collection[str],
) -> Path:
    """Write data and config of a run; returns the config.

    Raises DataError for a file that is there already, and as `neocpu init` does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "train.parquet", *(folder / f"valid-{i}.parquet" for i in range(len(valid)))]
    config = folder / CONFIG
    # all before the first is written: a refusal leaves the folder as it was
    for path in (config, *paths):
        if path.exists():
            raise DataError(f"{path} exists; choose another out=, or remove it")
    label = LABEL
    # A column of X may have any name.
    while label in train.features.columns:
        label += "_"
    for path, rows in zip(paths, (train, *valid)):
        rows.write(path, label)
    dense, sparse = kinds_of(train.features, numbers, categories)
    wishes = Wishes(label=label, dense=dense, categories=sparse, valid=paths[1:])
    write_config(paths[:1], config, wishes)
    return config
