"""How do X and y become a log? One Parquet file with the columns of X and a label."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from neocpu.core.errors import DataError, listed, told_as
from neocpu.core.types import Elements
from neocpu.ingest.formats.frames import as_frame
from neocpu.train.advice.roles import is_code
from neocpu.train.advice.write import Wishes, write_config

CONFIG = "config.toml"
LABEL = "label"
WEIGHT = "sample_weight"
MISSING = ("None", "nan", "NaT", "<NA>")  # how values are printed that are none


@dataclass(frozen=True)
class LabelledFrame:
    """Rows and their labels: numbers f32 or f64 [n], clicks as 0 and 1.

    weights : of the rows in the loss f64[n]; None: all 1.
    """

    features: pl.DataFrame
    labels: Elements
    weights: Elements | None = None

    def write(self, path: Path, label: str, weight: str = "") -> None:
        """As Parquet; weight : the column of the weights ("": none).

        Raises DataError for labels or weights of other rows, and on a full disk.
        """
        columns = [(label, "labels", self.labels)]
        if weight:
            ones = np.ones(self.features.height)
            columns.append((weight, "weights", ones if self.weights is None else self.weights))
        for _, what, values in columns:
            if values.shape != (self.features.height,):
                raise DataError(
                    f"{self.features.height} rows, but {what} of shape {values.shape}; each row "
                    "needs one"
                )
        series = [pl.Series(name, values) for name, _, values in columns]
        with told_as(DataError, path):
            self.features.with_columns(series).write_parquet(path)


def feature_frame(data: object) -> pl.DataFrame:
    """X as a frame: a table, or an array [n, columns], whose columns are then x0, x1, …"""
    if isinstance(data, np.ndarray):
        if data.ndim != 2:
            raise DataError(f"X is an array of shape {data.shape}; it must have rows and columns")
        data = {f"x{number}": column for number, column in enumerate(data.T)}
    return as_frame(data)


def values_of(data: object, what: str) -> Elements:
    """One value for each row [n], as of y: an array, a series, or a table of one column.

    what : they are, for messages. Raises DataError where some are missing, or are not finite.
    """
    values: Elements = np.asarray(data)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dtype.kind == "f":
        lacking = ~np.isfinite(values)
    elif values.dtype.kind == "O":
        # NaN, NaT and NA of pandas
        lacking = np.array([str(x) in MISSING and not isinstance(x, str) for x in values], bool)
    else:
        return values
    if lacking.any():
        rows = listed([*map(str, np.flatnonzero(lacking))], 8)
        raise DataError(f"{what} is missing or not finite in rows {rows}; leave these rows out")
    return values


def pairs_of(eval_set: object) -> list[tuple[object, object]]:
    """The (X, y) of an eval_set: one, or a list of them. Raises DataError for anything else."""
    if eval_set is None:
        return []
    several = isinstance(eval_set, list) or (
        isinstance(eval_set, tuple) and all(isinstance(each, tuple) for each in eval_set)
    )
    pairs: list[object] = list(eval_set) if several else [eval_set]  # type: ignore[call-overload]
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise DataError("eval_set is a tuple (X, y), or a list of such: [(X, y), (X2, y2)]")
    return pairs  # type: ignore[return-value]


def kinds_of(
    frame: pl.DataFrame, numbers: Collection[str], categories: Collection[str]
) -> tuple[list[str], list[str]]:
    """(columns that are numbers, columns that are categories), but lists, which say it themselves.

    numbers, categories : those that the user named. Others: floats are numbers, unless they are
    whole and `neocpu.train.advice` takes them for codes (pandas makes floats of whole numbers where
    one is missing); texts, whole numbers, truths and categoricals are categories; dates and times
    are looked at by `neocpu.train.advice`.
    """
    dense = []
    sparse = []
    for name, kind in frame.schema.items():
        if name in categories or (name not in numbers and _is_category(kind)):
            sparse.append(name)
        elif name in numbers or (kind.is_float() and not _are_codes(frame[name])):
            dense.append(name)
        elif kind.is_float():
            sparse.append(name)
    return dense, sparse


def _are_codes(values: pl.Series) -> bool:
    """Whether floats are whole numbers that stand for something."""
    present = values.fill_nan(None).drop_nulls()
    return present.len() > 0 and is_code(values.name, present, present.n_unique())


def _is_category(kind: pl.DataType) -> bool:
    text = isinstance(kind, pl.String | pl.Categorical | pl.Enum)
    return text or kind.is_integer() or kind == pl.Boolean


def write_run(
    folder: Path,
    train: LabelledFrame,
    valid: Sequence[LabelledFrame],
    numbers: Collection[str],
    categories: Collection[str],
) -> tuple[Path, str]:
    """Write data and config of a run.

    Returns the config, and the column of the rows' weights ("": there are none).

    Raises DataError for a file that is there already, and as `neocpu init` does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "train.parquet", *(folder / f"valid-{i}.parquet" for i in range(len(valid)))]
    config = folder / CONFIG
    # all before the first is written: a refusal leaves the folder as it was
    for path in (config, *paths):
        if path.exists():
            raise DataError(f"{path} exists; choose another out=, or remove it")
    label = _new_name(LABEL, train.features)
    weight = "" if train.weights is None else _new_name(WEIGHT, train.features)
    for path, rows in zip(paths, (train, *valid)):
        rows.write(path, label, weight)
    dense, sparse = kinds_of(train.features, numbers, categories)
    wishes = Wishes(
        label=label,
        dense=dense,
        categories=sparse,
        left_out=[weight] if weight else [],
        valid=paths[1:],
    )
    write_config(paths[:1], config, wishes)
    return config, weight


def _new_name(name: str, frame: pl.DataFrame) -> str:
    """A name that no column has."""
    while name in frame.columns:
        name += "_"
    return name
