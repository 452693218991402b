"""How good is the model on a split, and what does it predict?

Forward passes only: neither weights nor optimizer state nor the number of steps change.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from neocpu.ingest.loader import Batch
from neocpu.training.metrics import Metrics, compute
from neocpu.training.world import World

Progress = Callable[[int, int], None]


def predictions(
    world: World, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, NDArray[np.float32]]]:
    """This rank's predictions f32[b] for each batch; collective.

    They are those of the parameters' moving average where the config wants it.
    """
    with world.looked_at():
        for batch in batches:
            world.step.forward(batch)
            yield batch, world.model.predict()


def score(
    world: World, batches: Iterable[Batch], progress: Progress | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """This rank's predictions f32[n] and labels f32[n] of a split. Collective.

    progress : as of `evaluate`.
    """
    scores: list[NDArray[np.float32]] = [np.empty(0, np.float32)]
    labels: list[NDArray[np.float32]] = [np.empty(0, np.float32)]
    samples_done = 0
    for batch, prediction in predictions(world, batches):
        scores.append(prediction.copy())
        labels.append(batch.labels.copy())
        samples_done += batch.samples
        if progress:
            progress(samples_done, batch.step)
    return np.concatenate(scores), np.concatenate(labels)


def evaluate(world: World, batches: Iterable[Batch], progress: Progress | None = None) -> Metrics:
    """Metrics of a split over all ranks; equal for any plan, number of ranks and batch size.

    Collective.

    progress : called after each batch with the samples seen so far, and the batch's step.
    """
    scores, labels = score(world, batches, progress)
    return compute(scores, labels, world.config.model.loss, world.comm)


def predict(
    world: World, batches: Iterable[Batch], write: Callable[[NDArray[np.float32]], None]
) -> int:
    """Hand the predictions of all samples to `write` on rank 0, in input order, batch by batch.

    Returns their number. Collective.
    """
    comm = world.comm
    total = 0
    for _, prediction in predictions(world, batches):
        counts = np.empty(comm.size, np.int64)
        comm.allgatherv(np.array([prediction.size], np.int64), counts, np.ones(comm.size, np.int64))
        global_prediction = np.empty(int(counts.sum()), np.float32)
        comm.allgatherv(np.ascontiguousarray(prediction), global_prediction, counts)
        total += global_prediction.size
        if comm.rank == 0:
            write(global_prediction)
    return total
