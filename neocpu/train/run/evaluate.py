"""How good is the model on a split, and what does it predict?

Forward passes only: neither weights nor optimizer state nor the number of steps change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from neocpu.core.errors import ConfigError, DataError
from neocpu.core.types import Elements, Floats, Ints
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.loader import Batch
from neocpu.parallel.transport.comm import Comm
from neocpu.train.config.settings import EvalConfig
from neocpu.train.model.heads import Head
from neocpu.train.step.world import World
from neocpu.train.watch.metrics import Metrics, compute

Progress = Callable[[int, int], None]
NOTHING = np.empty(0, np.float32)
BLOCK = 1 << 20  # samples whose codes are read at a time


class Scores(NamedTuple):
    """This rank's predictions f32[n] and labels f32[n] of a split, of one head.

    samples : i64[n], which of the data's samples these are.
    """

    scores: Floats
    labels: Floats
    samples: Ints


class Grouping(NamedTuple):
    """Which samples are ranked among one another: those whose code is equal.

    codes : gives the code of every sample of the data, [N] in their order; called on rank 0 only.
    at : the ks of ndcg@k, recall@k and hit@k.
    """

    codes: Callable[[], Elements]
    at: Sequence[int]


def predictions(
    world: World, batches: Iterable[Batch], head: str = ""
) -> Iterator[tuple[Batch, Floats]]:
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
    world.comm.sent.pulse.begin("measuring")
    names = ["", *(head.layout.name for head in world.model.heads)]
    scores: dict[str, list[Floats]] = {name: [NOTHING] for name in names}
    labels: dict[str, list[Floats]] = {name: [NOTHING] for name in names}
    samples = [np.empty(0, np.int64)]
    samples_done = 0
    for batch, prediction in predictions(world, batches):
        # predictions are valid until the next batch only
        scores[""].append(prediction.copy())
        samples.append(np.arange(batch.first, batch.first + prediction.size, dtype=np.int64))
        labels[""].append(batch.labels.copy())
        if batch.head_labels is not None:
            for head, head_labels in zip(world.model.heads, batch.head_labels):
                scores[head.layout.name].append(head.predict().copy())
                labels[head.layout.name].append(head_labels.copy())
        samples_done += batch.samples
        if progress:
            progress(samples_done, batch.step)
    order = np.concatenate(samples)
    return {
        name: Scores(np.concatenate(scores[name]), np.concatenate(labels[name]), order)
        for name in names
    }


def metrics_of(
    world: World, scores: Mapping[str, Scores], grouping: Grouping | None = None
) -> dict[str, Metrics]:
    """Metrics by head over all ranks. Collective."""
    losses = {"": world.config.model.loss}
    losses |= {head.layout.name: head.layout.loss for head in world.model.heads}
    metrics = {
        name: compute(each.scores, each.labels, losses[name], world.comm)
        for name, each in scores.items()
    }
    if grouping is None:
        return metrics
    rankings = rankings_of(world.comm, scores, grouping)
    return {name: replace(each, ranking=rankings[name]) for name, each in metrics.items()}


def rankings_of(
    comm: Comm, scores: Mapping[str, Scores], grouping: Grouping
) -> dict[str, dict[str, float | None]]:
    """Ranking metrics by head, computed by rank 0 from all samples. Collective."""
    whole = {name: _on_first_rank(each, comm) for name, each in scores.items()}

    def work() -> dict[str, dict[str, float | None]]:
        from neocpu.train.watch.ranking import ranking

        codes = grouping.codes()
        values = {}
        for name, (predictions, labels) in whole.items():
            if codes.size != predictions.size:
                raise DataError(
                    f"the group has {codes.size} rows, but there are {predictions.size} "
                    "predictions; were faulty lines skipped?"
                )
            values[name] = ranking(predictions, labels, codes, grouping.at)
        return values

    return comm.on_first_rank(work)


def _on_first_rank(scores: Scores, comm: Comm) -> tuple[Floats, Floats]:
    """Predictions and labels of all ranks in the order of the samples, on rank 0; else nothing."""
    sends = np.zeros(comm.size, np.int64)
    sends[0] = scores.samples.size
    recvs = comm.alltoall(sends)
    received = []
    for column in scores:
        values = np.empty(int(recvs.sum()), column.dtype)
        comm.alltoallv(np.ascontiguousarray(column), sends, values, recvs)
        received.append(values)
    predictions, labels, samples = received
    # each sample once: its number is its place
    order = np.argsort(samples, kind="stable")
    return predictions[order], labels[order]


def grouping_of(keys: EvalConfig, data: Dataset) -> Grouping | None:
    """The grouping of a config for a dataset; None: it names none.

    Raises DataError where the feature is not there, or holds lists.
    """
    if not keys.group:
        return None
    where = ", ".join(str(path) for path in data.paths)
    column = data.features.get(keys.group)
    if column is None:
        known = ", ".join(data.features) or "none"
        raise DataError(f"{where}: no feature {keys.group!r} to group by; its features are {known}")
    if column.hotness != 1:
        raise DataError(f"{where}: {keys.group} holds lists, which name no group")
    return Grouping(lambda: _codes(data, keys.group), keys.at)


def _codes(data: Dataset, feature: str) -> Elements:
    """The code of each sample of a dataset, [N]."""
    parts = [np.empty(0, data.features[feature].dtype)]
    for low in range(0, data.rows, BLOCK):
        samples = np.arange(low, min(low + BLOCK, data.rows), dtype=np.int64)
        parts.append(data.take(samples, [feature]).features[feature].codes.reshape(-1))
    return np.concatenate(parts)


def evaluate(
    world: World,
    batches: Iterable[Batch],
    progress: Progress | None = None,
    grouping: Grouping | None = None,
) -> Metrics:
    """Metrics of a split over all ranks; equal for any plan, number of ranks and batch size.

    They are those of the first label. Collective.

    progress : called after each batch with the samples seen so far, and the batch's step.
    """
    return metrics_of(world, score(world, batches, progress), grouping)[""]


def predict(
    world: World, batches: Iterable[Batch], write: Callable[[Floats], None], head: str = ""
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
