"""How good is the model on a split, and what does it predict?

Forward passes only: neither weights nor optimizer state nor the number of steps change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import ConfigError
from neocpu.ingest.loader import Batch
from neocpu.train.model.heads import Head
from neocpu.train.step.world import World
from neocpu.train.watch.metrics import Metrics, compute

Progress = Callable[[int, int], None]
NOTHING = np.empty(0, np.float32)


class Scores(NamedTuple):
    """This rank's predictions f32[n] and labels f32[n] of a split, of one head."""

    scores: NDArray[np.float32]
    labels: NDArray[np.float32]


def predictions(
    world: World, batches: Iterable[Batch], head: str = ""
) -> Iterator[tuple[Batch, NDArray[np.float32]]]:
    """This rank's predictions f32[b] for each batch; collective.

    They are those of the parameters' moving average where the config wants it. head : whose they
    are ("": those of the first label).
    """
    predict_head = head_of(world, head).predict if head else world.model.predict
    with world.looked_at():
        for batch in batches:
            world.step.forward(batch)
            yield batch, predict_head()


def head_of(world: World, name: str) -> Head:
    """A further head of the model. Raises ConfigError where it has none of this name."""
    heads = {head.layout.name: head for head in world.model.heads}
    if name not in heads:
        raise ConfigError(
            f"model.heads: no head {name!r}; the model has {', '.join(heads) or 'none'}"
        )
    return heads[name]


def score(
    world: World, batches: Iterable[Batch], progress: Progress | None = None
) -> dict[str, Scores]:
    """Predictions and labels of a split, by head ("": of the first label). Collective.

    progress : as of `evaluate`.
    """
    names = ["", *(head.layout.name for head in world.model.heads)]
    scores: dict[str, list[NDArray[np.float32]]] = {name: [NOTHING] for name in names}
    labels: dict[str, list[NDArray[np.float32]]] = {name: [NOTHING] for name in names}
    samples_done = 0
    for batch, prediction in predictions(world, batches):
        # predictions are valid until the next batch only
        scores[""].append(prediction.copy())
        labels[""].append(batch.labels.copy())
        if batch.head_labels is not None:
            for head, head_labels in zip(world.model.heads, batch.head_labels):
                scores[head.layout.name].append(head.predict().copy())
                labels[head.layout.name].append(head_labels.copy())
        samples_done += batch.samples
        if progress:
            progress(samples_done, batch.step)
    return {
        name: Scores(np.concatenate(scores[name]), np.concatenate(labels[name])) for name in names
    }


def metrics_of(world: World, scores: Mapping[str, Scores]) -> dict[str, Metrics]:
    """Metrics by head over all ranks. Collective."""
    losses = {"": world.config.model.loss}
    losses |= {head.layout.name: head.layout.loss for head in world.model.heads}
    return {name: compute(*each, losses[name], world.comm) for name, each in scores.items()}


def evaluate(world: World, batches: Iterable[Batch], progress: Progress | None = None) -> Metrics:
    """Metrics of a split over all ranks; equal for any plan, number of ranks and batch size.

    They are those of the first label. Collective.

    progress : called after each batch with the samples seen so far, and the batch's step.
    """
    return metrics_of(world, score(world, batches, progress))[""]


def predict(
    world: World,
    batches: Iterable[Batch],
    write: Callable[[NDArray[np.float32]], None],
    head: str = "",
) -> int:
    """Hand the predictions of all samples to `write` on rank 0, in input order, batch by batch.

    Returns their number. Collective. head : as of `predictions`.
    """
    comm = world.comm
    total = 0
    for _, prediction in predictions(world, batches, head):
        counts = np.empty(comm.size, np.int64)
        # ranks own leaves, not equal numbers of samples; in rank order they are in input order
        comm.allgatherv(np.array([prediction.size], np.int64), counts, np.ones(comm.size, np.int64))
        global_prediction = np.empty(int(counts.sum()), np.float32)
        comm.allgatherv(np.ascontiguousarray(prediction), global_prediction, counts)
        total += global_prediction.size
        if comm.rank == 0:
            write(global_prediction)
    return total
