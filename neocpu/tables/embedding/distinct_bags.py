"""Which samples of a batch have the same bags? Groups of features that change together (RecD).

    deduplicate(kjt, groups)   KJT -> InverseKJT: the bags of a group stand once
    expand(batch)              the way back

A group is a set of keys. It should be all keys of its tables: a table is looked up with the bags of
one group, or with those of no group.
"""

import numpy as np

from neocpu.core.jagged import KJT, DistinctBags, InverseKJT
from neocpu.core.types import Ints
from neocpu.kernels.exchange.distinct import distinct_bags, take_bags
from neocpu.kernels.operands import Bags
from neocpu.tables.specs.feature_groups import Groups


def deduplicate(kjt: KJT, groups: Groups) -> InverseKJT:
    """The batch with the bags of each group once; groups : numbers of keys, ascending."""
    grouped = {key for group in groups for key in group}
    plain = tuple(key for key in range(len(kjt.keys)) if key not in grouped)
    everyone = np.arange(kjt.samples, dtype=np.int64)
    return InverseKJT(
        kjt.keys,
        _samples_of(kjt, plain, everyone),
        tuple(_distinct(kjt, group) for group in groups),
    )


def _distinct(kjt: KJT, keys: tuple[int, ...]) -> DistinctBags:
    samples = kjt.samples
    # half of the hash table stays empty, so that searches end soon
    buckets = np.empty(1 << max(2 * samples - 1, 1).bit_length(), np.int32)
    inverse = np.empty(samples, np.int32)
    first = np.empty(samples, np.int32)
    count = distinct_bags(_bags_of(kjt), np.array(keys, np.int64), samples, buckets, inverse, first)
    first = first[:count].copy()
    return DistinctBags(_samples_of(kjt, keys, first.astype(np.int64)), inverse, first)


def _bags_of(kjt: KJT) -> Bags:
    weights = np.empty(0, np.float32) if kjt.weights is None else kjt.weights
    return Bags(kjt.offsets, kjt.values, weights)


def _samples_of(kjt: KJT, keys: tuple[int, ...], samples: Ints) -> KJT:
    """Some keys of some samples."""
    lengths = np.ascontiguousarray(kjt.lengths[list(keys)][:, samples])
    chosen = (np.array(keys, np.int64)[:, None] * kjt.samples + samples).reshape(-1)
    starts = np.cumsum(lengths.reshape(-1), dtype=np.int64) - lengths.reshape(-1)
    values = np.empty(int(lengths.sum()), np.int64)
    weights = np.empty(0 if kjt.weights is None else values.size, np.float32)
    take_bags(_bags_of(kjt), chosen, starts, values, weights)
    names = tuple(kjt.keys[key] for key in keys)
    return KJT(names, lengths, values, None if kjt.weights is None else weights)


def expand(batch: InverseKJT) -> KJT:
    """The batch with all bags of all samples."""
    index_of = {key: i for i, key in enumerate(batch.keys)}
    lengths = batch.lengths.reshape(-1)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    values = np.empty(int(lengths.sum()), np.int64)
    weighted = batch.plain.weights is not None
    weights = np.empty(values.size if weighted else 0, np.float32)
    everyone = np.arange(batch.samples, dtype=np.int64)
    parts = [(batch.plain, everyone)]
    parts += [(group.kjt, group.inverse.astype(np.int64)) for group in batch.groups]
    for kjt, samples in parts:
        keys = np.array([index_of[key] for key in kjt.keys], np.int64)[:, None]
        chosen = np.arange(keys.size)[:, None] * kjt.samples + samples
        to = starts[(keys * batch.samples + everyone).reshape(-1)]
        take_bags(_bags_of(kjt), chosen.reshape(-1), to, values, weights)
    return KJT(batch.keys, batch.lengths, values, weights if weighted else None)
