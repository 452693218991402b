"""How does a model score samples in this process? With a run's objects, built once and kept."""

import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import DataError
from neocpu.core.floats import keep_subnormals
from neocpu.core.presets import log_path
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.formats.frames import as_frame, parse_frame
from neocpu.ingest.formats.schema import Schema
from neocpu.ingest.loader import Batch, BatchShare, Loader, Needs, Reading
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.environment import check_kernels
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.serve.scoring.frames import is_paths
from neocpu.serve.scoring.groups import column_grouping
from neocpu.serve.scoring.importance import Importance, importances
from neocpu.serve.scoring.keys import key_columns, raw_frame
from neocpu.serve.scoring.recommend import BestItems, PairDataset, Pairs
from neocpu.serve.scoring.rows import FaultCount, ScoredBlock, file_rows, parsed_rows
from neocpu.serve.scoring.unseen import UnseenValues
from neocpu.serve.scoring.values import ValueMap
from neocpu.train.before.datasets import open_paths
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config.config import Config
from neocpu.train.run.evaluate import evaluate, predict
from neocpu.train.run.scoring import restore_world, without_plan_file
from neocpu.train.watch.metrics import Metrics
from neocpu.train.watch.results import silent

if TYPE_CHECKING:
    import polars as pl

SPLIT = "test"
BATCH = 4096  # samples scored at a time; of no influence on their scores


class LocalScorer:
    """A model of a checkpoint in memory; safe to call from several threads.

    path, config : of the checkpoint; config maybe with overrides.
    values : how it maps raw values. comm : the ranks that hold its tables, whose calls are
    collective then; None: this process alone.
    """

    def __init__(
        self, path: Path, config: Config, values: ValueMap, comm: Comm | None = None
    ) -> None:
        comm = self._comm = comm or SingleComm()
        # Numba reads its number of threads once, when it is imported
        if "numba" not in sys.modules:
            prepare_threads(comm, config.training.threads or None)
        # libraries built with -ffast-math make threads flush them, which changes bits
        keep_subnormals()
        check_kernels()
        self._path = path
        self._values = values
        self._unseen = UnseenValues(values)
        # a plan file was for the ranks of the training
        self.config = without_plan_file(config)
        with CheckpointFile(path) as file:
            self._dense_features = file.dense_features
        self._world = restore_world(
            path, comm, self.config, self._dense_features, pooling={}, warn=warnings.warn
        )
        self._loader: Loader | None = None
        self._lock = threading.Lock()

    def predict(self, data: object) -> NDArray[np.float32]:
        """Predictions f32[n] of all samples, in order; `data` as for `Model.predict`."""
        faults = FaultCount()
        # np.concatenate takes no empty list, and there may be no rows
        scores = [np.empty(0, np.float32)]
        for block in self._rows(data):
            faults.add(block.faults)
            scores.append(block.scores(self._predict(block.dataset)))
        for text in (str(faults), self._unseen.message()):
            if text:
                warnings.warn(text, stacklevel=3)
        return np.concatenate(scores)

    def _rows(self, data: object) -> Iterator[ScoredBlock]:
        """All rows of a table in memory, or of files."""
        if is_paths(data):
            return file_rows(_files(data), self._values)
        schema = self._values.schema.without_labels()
        return iter((parsed_rows(parse_frame(as_frame(data), schema), schema, self._values),))

    def _predict(self, dataset: Dataset) -> NDArray[np.float32]:
        """Predictions f32[n] of samples, in order."""
        parts = [np.empty(0, np.float32)]
        if dataset.rows:
            with self._locked():
                batches = self._batches(dataset, labelled=False)
                if self._loader is not None:
                    self._unseen.add(self._loader, dataset)
                predict(self._world, batches, lambda part: parts.append(part.copy()))
        return np.concatenate(parts)

    def evaluate(self, data: object, group: str, at: Sequence[int]) -> dict[str, Any]:
        """Metrics of all samples, `group` and `at` as for `Model.evaluate`. Raises DataError where
        they have no labels.
        """
        dataset = self._labelled(data)
        raw = partial(self._column, data, group)
        grouping = column_grouping(self.config.eval, group, at, dataset, raw)
        with self._locked():
            batches = self._batches(dataset, labelled=True)
            return evaluate(self._world, batches, grouping=grouping).to_dict()

    def importances(self, data: object, repeats: int, seed: int, rows: int) -> list[Importance]:
        """The importance of each feature and dense column, as `Model.importances` has them."""
        dataset = self._labelled(data)

        def measure(dealt: Dataset) -> Metrics:
            return evaluate(self._world, self._batches(dealt, labelled=True))

        columns = [*self._values.features, *dataset.dense_columns]
        with self._locked():
            return importances(dataset, columns, measure, repeats, seed, rows)

    def recommend(self, pairs: Pairs, k: int) -> "pl.DataFrame":
        """The k best items of each user, as `BestItems.frame` gives them; on rank 0."""
        best = BestItems(pairs, k)
        dataset = PairDataset(self._values.schema, pairs)
        if dataset.rows:
            with self._locked():
                predict(self._world, self._batches(dataset, labelled=False), best.take)
        return best.frame()

    def frame(self, data: object, keys: Sequence[str] = (), header: bool = False) -> "pl.DataFrame":
        """A table in memory or raw files as a frame: columns that the model reads, and keys.

        header : do text files begin with a line of names, whatever the log does?
        """
        if not is_paths(data):
            return as_frame(data)
        paths = _files(data)
        schema = self._values.schema
        if header:
            schema = replace(schema, header=True, columns=())
        elif self._values.lacks_label(paths):
            schema = schema.without_labels()
        return raw_frame(paths, schema, [key for key in keys if key])

    def _column(self, data: object, name: str) -> "pl.DataFrame":
        """A column of data as they came. Raises DataError where they lack it."""
        if is_paths(data):
            return key_columns(_files(data), [name], self._values)
        frame = as_frame(data)
        if name not in frame.columns:
            raise DataError(f"the table has no column {name!r}; it has {', '.join(frame.columns)}")
        return frame.select(name)

    def _labelled(self, data: object) -> Dataset:
        """The samples of a table in memory, or of files; faulty rows are left out.

        Raw files are converted, into the cache of copies.
        """
        if is_paths(data):
            sources = {SPLIT: _files(data)}
            splits = open_paths(self.config, self._comm, self._path.parent, silent, sources)
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

    def _measured_schema(self) -> Schema:
        """The schema with the label that is measured, and no other."""
        schema = self._values.schema
        name = self.config.data.label
        label = next((label for label in schema.labels if label.name == name), schema.label)
        return replace(schema, label=label, more_labels=())

    def close(self) -> None:
        """Free the tables."""
        self._world.embedding.tbe.close()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One thread at a time, which computes with subnormal numbers."""
        # a world has one set of buffers, so threads take turns
        with self._lock:
            # the flag is a thread's own, and this may be a new one
            keep_subnormals()
            yield

    def _batches(self, dataset: Dataset, labelled: bool) -> Iterator[Batch]:
        """Batches of a dataset; the maps of vocabularies are made once."""
        needs = Needs(self._dense_features, labelled)
        if self._loader is None:
            self._loader = self._new_loader(dataset, needs)
        else:
            self._loader = self._loader.over(dataset, needs)
        return self._loader.batches()

    def _new_loader(self, dataset: Dataset, needs: Needs) -> Loader:
        config = self.config
        reading = Reading(
            seed=config.training.seed,
            rows_by=config.data.rows_by,
            vocabularies=self._values.vocabularies_for(dataset),
            depth=0,
        )
        batch_size = max(config.training.batch_size, BATCH)
        comm = self._comm
        share = BatchShare(batch_size, config.training.leaves, comm.rank, comm.size)
        return Loader(dataset, config.tables, share, reading, needs)


def _files(data: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    """Paths of files, those of small logs by their names."""
    paths = [data] if isinstance(data, str | Path) else data
    return tuple(log_path(str(path)) for path in paths)
