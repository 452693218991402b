"""How does a model score samples in this process? With a run's objects, built once and kept."""

import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neocpu.core.floats import keep_subnormals
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.loader import Batch, BatchShare, Loader, Needs, Reading
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.environment import check_kernels
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.serve.scoring.importance import Importance, importances
from neocpu.serve.scoring.logs import GivenLogs
from neocpu.serve.scoring.recommend import BestItems, PairDataset, Pairs
from neocpu.serve.scoring.unseen import LearntRows, UnseenValues, unseen_in
from neocpu.serve.scoring.values import ValueMap
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config.config import Config
from neocpu.train.run.evaluate import evaluate, predict
from neocpu.train.run.scoring import restore_world, without_plan_file
from neocpu.train.watch.metrics import Metrics

if TYPE_CHECKING:
    import polars as pl

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
        self.logs = GivenLogs(values, comm)
        self._learnt = LearntRows(values)
        self._unseen = UnseenValues(values, self._learnt.features)
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
        return self.logs.scores(data, self._predict, self._unseen, stacklevel=4)

    def _predict(self, dataset: Dataset) -> NDArray[np.float32]:
        """Predictions f32[n] of samples, in order."""
        parts = [np.empty(0, np.float32)]
        if dataset.rows:
            with self._locked():
                batches = self._batches(dataset, labelled=False)
                if self._loader is not None:
                    self._unseen.add(dataset, self._learnt.seen(self._loader))
                predict(self._world, batches, lambda part: parts.append(part.copy()))
        return np.concatenate(parts)

    def evaluate(self, data: object, group: str, at: Sequence[int]) -> dict[str, Any]:
        """Metrics of all samples, `group` and `at` as for `Model.evaluate`. Raises DataError where
        they have no labels.
        """
        dataset = self.logs.labelled(data)
        grouping = self.logs.grouping(data, dataset, group, at)
        with self._locked():
            batches = self._batches(dataset, labelled=True)
            self._warn_of_unseen(dataset)
            return evaluate(self._world, batches, grouping=grouping).to_dict()

    def importances(self, data: object, repeats: int, seed: int, rows: int) -> list[Importance]:
        """The importance of each feature and dense column, as `Model.importances` has them."""
        dataset = self.logs.labelled(data)

        def measure(dealt: Dataset) -> Metrics:
            return evaluate(self._world, self._batches(dealt, labelled=True))

        columns = [*self._values.features, *dataset.dense_columns]
        with self._locked():
            self._batches(dataset, labelled=True)  # makes the loader
            self._warn_of_unseen(dataset)
            return importances(dataset, columns, measure, repeats, seed, rows)

    def _warn_of_unseen(self, dataset: Dataset) -> None:
        """Warn of features most of whose values training never saw."""
        if self._loader is None or self._comm.rank or not dataset.rows:
            return
        seen = self._learnt.seen(self._loader)
        if text := unseen_in(dataset, self._values, self._learnt.features, seen):
            warnings.warn(text, stacklevel=4)

    def best_items(self, pairs: Pairs, k: int) -> "pl.DataFrame":
        """The k best items of each user, as `BestItems.frame` gives them; on rank 0."""
        best = BestItems(pairs, k)
        dataset = PairDataset(self._values.schema, pairs)
        if dataset.rows:
            with self._locked():
                predict(self._world, self._batches(dataset, labelled=False), best.take)
        return best.frame()

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
