"""How do the batches of a split travel? As pieces, which trainers join to batches.

A split is a run of positions of an epoch, cut anywhere: the first and last batch that it reaches
into may have samples in the splits beside it. A reader makes of its samples, for every trainer, the
pieces that these have in them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.core.types import Elements, JsonObject
from neocpu.ingest.loader import Batch, BatchPlace, Loader


class Split(NamedTuple):
    """Positions [first, last) of an epoch, of `samples` in all; number : of the run's splits."""

    number: int
    epoch: int
    first: int
    last: int
    samples: int


def cut(loader: Loader, split: Split) -> Iterator[tuple[int, Batch]]:
    """The pieces of a split, each with the rank that it is of, in the order of steps."""
    share = loader.share
    taken = loader.take(loader.order(split.epoch).samples(split.first, split.last))
    size = share.batch_size
    for step in range(split.first // size, -(-split.last // size)):
        start = step * size
        samples = min(size, split.samples - start)
        for rank in range(share.ranks):
            low, high = rank_samples(rank, share.ranks, samples, share.leaves)
            first = max(start + low, split.first)
            last = min(start + high, split.last)
            # who has no samples of a small batch takes the step all the same
            if first < last or (low == high and split.first <= start + low < split.last):
                last = max(first, last)
                part = taken.part(first - split.first, last - split.first)
                yield rank, loader.batch_of(part, BatchPlace(split.epoch, step, samples, first))


def packed(pieces: Sequence[Batch]) -> tuple[list[JsonObject], list[Elements]]:
    """Pieces as notes and arrays of a frame."""
    notes: list[JsonObject] = []
    arrays: list[Elements] = []
    for piece in pieces:
        kjt = piece.sparse
        assert isinstance(kjt, KJT)
        named: dict[str, Elements | None] = {
            "dense": piece.dense,
            "lengths": kjt.lengths,
            "values": kjt.values,
            "labels": piece.labels,
            "lookup_weights": kjt.weights,
            "weights": piece.weights,
            "head_labels": piece.head_labels,
        }
        present: dict[str, Elements] = {
            name: array for name, array in named.items() if array is not None
        }
        arrays += present.values()
        place = BatchPlace(piece.epoch, piece.step, piece.samples, piece.first)
        notes.append({"place": place, "arrays": list(present)})
    return notes, arrays


def unpacked(
    notes: Sequence[JsonObject], arrays: Sequence[Elements], keys: tuple[str, ...]
) -> Iterator[Batch]:
    """The pieces of a frame; keys : of their KJT."""
    rest = iter(arrays)
    for note in notes:
        named = {name: next(rest) for name in note["arrays"]}
        place = BatchPlace(*note["place"])
        yield Batch(
            dense=named["dense"],
            sparse=KJT(keys, named["lengths"], named["values"], named.get("lookup_weights")),
            labels=named["labels"],
            samples=place.samples,
            epoch=place.epoch,
            step=place.step,
            first=place.first,
            weights=named.get("weights"),
            head_labels=named.get("head_labels"),
        )


def joined(pieces: Sequence[Batch]) -> Batch:
    """Neighbouring pieces of a batch as one."""
    if len(pieces) == 1:
        return pieces[0]
    kjts = [piece.sparse for piece in pieces]
    first = pieces[0]
    weights = [piece.weights for piece in pieces if piece.weights is not None]
    labels = [piece.head_labels for piece in pieces if piece.head_labels is not None]
    return Batch(
        dense=np.concatenate([piece.dense for piece in pieces]),
        sparse=_joined_bags([kjt for kjt in kjts if isinstance(kjt, KJT)]),
        labels=np.concatenate([piece.labels for piece in pieces]),
        samples=first.samples,
        epoch=first.epoch,
        step=first.step,
        first=first.first,
        weights=np.concatenate(weights) if weights else None,
        head_labels=np.concatenate(labels, axis=1) if labels else None,
    )


def _joined_bags(kjts: Sequence[KJT]) -> KJT:
    """The bags of neighbouring samples, key by key."""
    first = kjts[0]
    runs = [
        slice(*kjt.offsets[[key * kjt.samples, (key + 1) * kjt.samples]].tolist())
        for key in range(len(first.keys))
        for kjt in kjts
    ]
    in_order = [kjt for _ in first.keys for kjt in kjts]
    weights = None
    if first.weights is not None:
        runs_of_weights = [
            kjt.weights[run] for kjt, run in zip(in_order, runs) if kjt.weights is not None
        ]
        weights = np.concatenate([first.weights[:0], *runs_of_weights])
    return KJT(
        first.keys,
        np.concatenate([kjt.lengths for kjt in kjts], axis=1),
        np.concatenate([first.values[:0], *(k.values[run] for k, run in zip(in_order, runs))]),
        weights,
    )
