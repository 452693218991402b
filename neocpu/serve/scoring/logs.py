"""How does a model in memory read what it is given, tables in memory, raw logs, converted files?"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import DataError
from neocpu.core.forks import KERNELS, check_fork
from neocpu.core.presets import log_path
from neocpu.core.types import Tell
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.formats.frames import as_frame, is_paths, parse_frame
from neocpu.ingest.formats.schema import Schema, as_called
from neocpu.parallel.transport.comm import Comm
from neocpu.serve.scoring.groups import column_grouping
from neocpu.serve.scoring.keys import key_columns, raw_frame
from neocpu.serve.scoring.rows import FaultCount, ScoredBlock, file_rows, parsed_rows
from neocpu.serve.scoring.unseen import UnseenValues
from neocpu.serve.scoring.values import ValueMap
from neocpu.train.before.datasets import open_paths
from neocpu.train.run.evaluate import Grouping
from neocpu.train.watch.results import silent

if TYPE_CHECKING:
    import polars as pl

SPLIT = "test"


class GivenLogs:
    """Reads data for a model, whose value map and config say how. Data are as of `Model.predict`.

    comm : of the model's ranks. tell : is given lines of conversions.
    """

    def __init__(self, values: ValueMap, comm: Comm, tell: Tell = silent) -> None:
        self._values = values
        self._config = values.config
        self._comm = comm
        self._tell = tell

    def rows(self, data: object) -> Iterator[ScoredBlock]:
        """All rows of a table in memory, or of files."""
        check_fork(KERNELS)
        if is_paths(data):
            return file_rows(_files(data), self._values)
        schema = self._values.schema.without_labels()
        return iter((parsed_rows(parse_frame(as_frame(data), schema), schema, self._values),))

    def scores(
        self,
        data: object,
        predictions: Callable[[Dataset], NDArray[np.float32]],
        unseen: UnseenValues,
        stacklevel: int,
    ) -> NDArray[np.float32]:
        """Scores f32[n] of all rows, in order.

        predictions : f32[n] of a block's samples, which `unseen` then knows. stacklevel : of the
        warnings, of rows that cannot be read and of values that the model never saw.
        """
        faults = FaultCount()
        # np.concatenate takes no empty list, and there may be no rows
        scores = [np.empty(0, np.float32)]
        for block in self.rows(data):
            faults.add(block.faults)
            scores.append(block.scores(predictions(block.dataset)))
        for text in (str(faults), unseen.message()):
            if text:
                warnings.warn(text, stacklevel=stacklevel)
        return np.concatenate(scores)

    def frame(self, data: object, keys: Sequence[str] = (), header: bool = False) -> "pl.DataFrame":
        """A table in memory or raw files as a frame: columns that the model reads, and keys.

        header : do text files begin with a line of names, whatever the log does?
        """
        check_fork(KERNELS)
        if not is_paths(data):
            return as_frame(data)
        paths = _files(data)
        schema = self._values.schema
        if header:
            schema = replace(schema, header=True, columns=())
        elif self._values.lacks_label(paths):
            schema = schema.without_labels()
        return raw_frame(paths, schema, [key for key in keys if key])

    def labelled(self, data: object) -> Dataset:
        """The samples of a table in memory, or of files; faulty rows are left out.

        Raw files are converted, into the cache of copies.
        """
        check_fork(KERNELS)
        if is_paths(data):
            sources = {SPLIT: _files(data)}
            folder = self._values.path.parent
            splits = open_paths(self._config, self._comm, folder, self._tell, sources)
            dataset = splits.datasets[SPLIT]
            skipped = sum(dataset.skipped)
        else:
            schema = self._measured_schema()
            block = parsed_rows(parse_frame(as_frame(data), schema), schema, self._values)
            dataset = block.dataset
            skipped = len(block.faults)
        if skipped:
            warnings.warn(f"{skipped:,} faulty rows are left out", stacklevel=4)
        return dataset

    def grouping(
        self, data: object, dataset: Dataset, group: str, at: Sequence[int]
    ) -> Grouping | None:
        """The grouping of samples that `labelled` gave; `group` and `at` as of `Model.evaluate`."""
        raw = partial(self._column, data, group)
        return column_grouping(self._config.eval, group, at, dataset, raw)

    def _measured_schema(self) -> Schema:
        """The schema with the label that is measured, and no other."""
        schema = self._values.schema
        name = self._config.data.label
        label = next((label for label in schema.labels if label.name == name), schema.label)
        return replace(schema, label=label, more_labels=())

    def _column(self, data: object, name: str) -> "pl.DataFrame":
        """A column of data as they came. Raises DataError where they lack it."""
        if is_paths(data):
            return key_columns(_files(data), [name], self._values)
        frame = as_frame(data)
        names = as_called(frame.columns, [name])
        if name not in names:
            raise DataError(f"the table has no column {name!r}; it has {', '.join(frame.columns)}")
        found = frame.columns[names.index(name)]
        return frame.select(found).rename({found: name})


def _files(data: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    """Paths of files, those of small logs by their names."""
    paths = [data] if isinstance(data, str | Path) else data
    return tuple(log_path(str(path)) for path in paths)
