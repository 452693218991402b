"""How do several ranks score rows? Each reads all of them, and computes the scores of its share."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import DataError, NeocpuError
from neocpu.ingest.loader import Loader
from neocpu.ingest.read_ahead import read_ahead
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.environment import check_kernels
from neocpu.serve.scoring.rows import ScoredBlock
from neocpu.serve.scoring.unseen import UnseenValues
from neocpu.serve.scoring.values import ValueMap
from neocpu.train.run.evaluate import predict
from neocpu.train.run.scoring import restore
from neocpu.train.step.world import World

AHEAD = 2  # blocks that are parsed while others are scored
AT_END = -1  # what a rank says in place of a number of rows
FAILED = -2
ScoredRows = tuple[NDArray[np.float32], Mapping[int, str]]  # scores f32[n], faults by row


def score_rows(
    values: ValueMap,
    comm: Comm,
    blocks: Iterator[ScoredBlock],
    *,
    overrides: Sequence[str] = (),
    head: str = "",
    tell: Callable[[str], None],
) -> Iterator[ScoredRows]:
    """Scores f32[n] of blocks of rows, and their faults, on rank 0; nothing on others. Collective.

    values : of the model. blocks : the same on every rank; they are parsed on a thread. overrides,
    tell : as of `restore`; tell also hears of values that training never saw. head : as of
    `predictions`.
    """
    check_kernels()
    unseen = UnseenValues(values)
    world = loader = None
    for block in _agreed(read_ahead(blocks, AHEAD), comm):
        predictions = np.empty(0, np.float32)
        # the model is planned for rows that are there, and rows of a block may all be faulty
        if block.dataset.rows:
            if world is None or loader is None:
                data = block.dataset
                world, loader = restore(
                    values.path, comm, data, overrides=overrides, need_labels=False, tell=tell
                )
            if comm.rank == 0:
                unseen.add(loader, block.dataset)
            predictions = _predictions(world, loader.over(block.dataset, loader.needs), head)
        if comm.rank == 0:
            yield block.scores(predictions), block.faults
    if text := unseen.message():
        tell(text)


def _predictions(world: World, loader: Loader, head: str) -> NDArray[np.float32]:
    """Predictions f32[n] of all samples on rank 0. Collective."""
    parts = [np.empty(0, np.float32)]
    predict(world, loader.batches(), lambda part: parts.append(part.copy()), head)
    return np.concatenate(parts)


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
