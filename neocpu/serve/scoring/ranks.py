"""How do several ranks score rows? Each reads all of them, and computes the scores of its share."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import DataError, NeocpuError
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.loader import Loader
from neocpu.ingest.read_ahead import read_ahead
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.environment import check_kernels
from neocpu.serve.scoring.rows import ScoredBlock
from neocpu.serve.scoring.unseen import LearntRows, UnseenValues
from neocpu.serve.scoring.values import ValueMap
from neocpu.train.run.evaluate import predict
from neocpu.train.run.scoring import restore
from neocpu.train.step.world import World
from neocpu.train.watch.results import silent

AHEAD = 2  # blocks that are parsed while others are scored
AT_END = -1  # what a rank says in place of a number of rows
FAILED = -2
ScoredRows = tuple[NDArray[np.float32], Mapping[int, str]]  # scores f32[n], faults by row


class BlockScorer(Protocol):
    """A model on one or several ranks. unseen : what it never saw of the samples that it scored."""

    unseen: UnseenValues

    def predictions(self, dataset: Dataset) -> NDArray[np.float32]:
        """Predictions f32[n] of samples, in order, on rank 0 at least. Collective."""


class RunScorer:
    """The model of a checkpoint, planned for the first samples that it is given.

    overrides, tell : as of `restore`. head : as of `evaluate.predictions`.
    """

    def __init__(
        self,
        values: ValueMap,
        comm: Comm,
        *,
        overrides: Sequence[str] = (),
        head: str = "",
        tell: Callable[[str], None] = silent,
    ) -> None:
        check_kernels()
        self._learnt = LearntRows(values)
        self.unseen = UnseenValues(values, self._learnt.features)
        self._head = head
        self._comm = comm
        self._restored: tuple[World, Loader] | None = None
        self._restore = partial(
            restore, values.path, comm, overrides=overrides, need_labels=False, tell=tell
        )

    def predictions(self, dataset: Dataset) -> NDArray[np.float32]:
        """Predictions f32[n] of samples, in order, on rank 0. Collective."""
        if self._restored is None:
            self._restored = self._restore(data=dataset)
        world, loader = self._restored
        if self._comm.rank == 0:
            self.unseen.add(dataset, self._learnt.seen(loader))
        parts = [np.empty(0, np.float32)]
        batches = loader.over(dataset, loader.needs).batches()
        predict(world, batches, lambda part: parts.append(part.copy()), self._head)
        return np.concatenate(parts)


def score_rows(
    scorer: BlockScorer,
    comm: Comm,
    blocks: Iterator[ScoredBlock],
    tell: Callable[[str], None] = silent,
) -> Iterator[ScoredRows]:
    """Scores f32[n] of blocks of rows, and their faults, on rank 0; nothing on others. Collective.

    blocks : the same on every rank; they are parsed on a thread. tell : hears of values that
    training never saw.
    """
    for block in _agreed(read_ahead(blocks, AHEAD), comm):
        predictions = np.empty(0, np.float32)
        # the model is planned for rows that are there, and rows of a block may all be faulty
        if block.dataset.rows:
            predictions = scorer.predictions(block.dataset)
        if comm.rank == 0:
            yield block.scores(predictions), block.faults
    if text := scorer.unseen.message():
        tell(text)


def _agreed(blocks: Iterator[ScoredBlock], comm: Comm) -> Iterator[ScoredBlock]:
    """Blocks that all ranks have. Raises the error of a rank on every rank; DataError where ranks
    read other rows.
    """
    rows = np.empty(comm.size, np.int64)
    ones = np.ones(comm.size, np.int64)
    while True:
        block = error = None
        try:
            block = next(blocks, None)
        except NeocpuError as problem:
            error = problem
        count = FAILED if error else AT_END if block is None else block.rows
        comm.allgatherv(np.array([count], np.int64), rows, ones)
        if (rows == FAILED).any():
            comm.agree(error)
        if (rows != rows[0]).any():
            raise DataError(
                f"ranks read other rows of the data ({rows.tolist()}); did they change?"
            )
        if block is None:
            return
        yield block
