"""How do bags that many samples share travel once, and how are they pooled once? As RecD's inverse
KJTs do it.

A group of keys that change together has U distinct bags of its keys among a rank's b samples
(`tables/embedding/distinct_bags.py`). A group is exchanged as if it were a batch of its own, of the
U of each rank:

    input bags      U of each group, to every rank                      -1: the samples are refused
    input lengths   of U samples; which of them each of the b samples has, in the head
    input rows      of U samples, and weights
    pooled output   of U samples; E[s] = P[inverse[s]] at home

Gradients are not shared: those of all b samples travel, and before an update the lookups of the
distinct bags are repeated for every sample that has them (`RepeatedBags.expanded`). So each row's
gradient is the exact sum of the same terms, one for each lookup of the batch, as without groups.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import IndexRangeError
from neocpu.core.jagged import KJT, InverseKJT
from neocpu.core.types import Floats, Ints
from neocpu.kernels.exchange.distinct import expand_columns, take_bags
from neocpu.kernels.operands import Bags
from neocpu.parallel.exchange.input_dist import NO_LOOKUPS, Input, find_refusal, wide_rows
from neocpu.parallel.exchange.key_set import KeySet
from neocpu.parallel.exchange.shapes import Shape
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.sharding.entries import RankEntries, key_columns
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.started import Pause, Request, Started, Steps
from neocpu.tables.embedding.distinct_bags import deduplicate
from neocpu.tables.embedding.lookups import Lookups
from neocpu.tables.specs.specs import bags

Heads = NDArray[np.int32]
T = TypeVar("T")


class RepeatedLookups(NamedTuple):
    """Lookups of distinct bags, of the entries at some positions, and which bag each sample has.

    positions : i64[K], ascending, among the entries of all keys. bag_of : i64[samples].
    """

    positions: Ints
    lookups: Lookups
    bag_of: Ints


class RepeatedBags:
    """The key sets of a batch: its keys without a group, then the groups.

    ranks : entries of all ranks and keys. alone : are lookups used where they are?

    Attributes: key_sets; columns, of each set, runs (first, width) of columns of E.
    """

    def __init__(self, env: ShardingEnv, ranks: Sequence[RankEntries], alone: bool) -> None:
        self.plan = env.plan
        self.alone = alone
        self.comm = env.comm.queue("input")
        self.groups = env.groups
        self.keys = bags(env.plan.tables)
        self.ranks = ranks
        self.my_entries = ranks[env.comm.rank]
        edges = key_columns(env.plan.tables, env.first_column)
        self.width = int(edges[-1])
        grouped = {key for group in env.groups for key in group}
        plain = tuple(key for key in range(len(self.keys)) if key not in grouped)
        self._members = (plain, *env.groups)
        self.key_sets = [KeySet(env, self._entries_of(keys), alone) for keys in self._members]
        self.columns: list[Ints] = []
        for keys in self._members:
            spans = [(int(edges[key]), int(edges[key + 1] - edges[key])) for key in keys]
            self.columns.append(np.array(spans, np.int64).reshape(-1, 2))
        # positions of each set's entries among those of all keys
        self._travelling = [
            np.flatnonzero(np.isin(self.my_entries.travel.key, keys)) for keys in self._members
        ]
        self._copied = [
            np.flatnonzero(np.isin(self.my_entries.copies.key, keys)) for keys in self._members
        ]
        # keys without a group have all samples: these shapes depend on the batch size alone
        self._plain_shapes: dict[int, Shape] = {}
        self._weighted = any(table.weighted for table in env.plan.tables)
        self._buffers = Buffers()

    def _entries_of(self, keys: Sequence[int]) -> list[RankEntries]:
        """Entries of some keys, of all ranks, which number these keys from 0."""
        number = np.full(len(self.keys), -1, np.int64)
        number[list(keys)] = np.arange(len(keys))
        return [entries.of_keys(number) for entries in self.ranks]

    # ---- input ----

    def start(self, batch: KJT | InverseKJT, shape: Shape) -> Started[Input]:
        """`InputDist.start` of a batch whose repeated bags stand once, or are to; `shape` is that
        of all samples.
        """
        error = None
        if isinstance(batch, KJT):
            batch = wide_rows(batch)
            first_sample = int(shape.cuts[self.comm.rank])
            tables = self.plan.tables
            error = find_refusal(batch, tables, self.keys, shape.samples, first_sample)
            if error is None:
                batch = deduplicate(batch, self.groups)
        else:
            error = self._refusal(batch, shape)
        if error is not None and self.comm.size == 1:
            raise error
        if self.alone:
            assert isinstance(batch, InverseKJT)
            return Started(self._here(batch, shape), self.comm.stream)
        return Started(self._steps(batch, shape, error), self.comm.stream)

    def release(self, batch_input: Input) -> None:
        """Its memory is free for a coming input."""
        for keys, lookups in zip(self.key_sets, batch_input.key_sets):
            keys.input.release(lookups)

    def _refusal(self, batch: InverseKJT, shape: Shape) -> IndexRangeError | None:
        """Why this rank's part of a batch cannot be looked up, or None."""
        first_sample = int(shape.cuts[self.comm.rank])
        keys = tuple(key.key for key in self.keys)
        expected = tuple(tuple(keys[key] for key in group) for group in self.groups)
        present = tuple(group.kjt.keys for group in batch.groups)
        if batch.keys != keys or present != expected:
            return IndexRangeError(
                f"the batch has keys {batch.keys} with groups {present}; the tables need {keys} "
                f"with groups {expected}"
            )
        tables = self.plan.tables
        members = [[self.keys[key] for key in numbers] for numbers in self._members]
        error = find_refusal(batch.plain, tables, members[0], shape.samples, first_sample)
        for group, group_keys in zip(batch.groups, members[1:]):
            if error is None:
                size = group.first.size
                error = find_refusal(
                    group.kjt, tables, group_keys, size, first_sample + group.first.astype(np.int64)
                )
        return error

    def _here(self, batch: InverseKJT, shape: Shape) -> Steps[Input]:
        """Lookups that are used where they are."""
        kjts = [batch.plain, *(group.kjt for group in batch.groups)]
        inputs = yield from together(
            [
                keys.input.steps(kjt, self._shape(i, np.array([0, kjt.samples], np.int64), shape))
                for i, (keys, kjt) in enumerate(zip(self.key_sets, kjts))
            ]
        )
        key_sets = [
            replace(lookups, bag_of=bag_of) for lookups, bag_of in zip(inputs, self._bags_of(batch))
        ]
        return Input(batch, shape, key_sets=tuple(key_sets))

    def _steps(
        self, batch: KJT | InverseKJT, shape: Shape, error: IndexRangeError | None
    ) -> Steps[Input]:
        ranks = self.comm.size
        each = len(self.groups)
        # the first message of a batch, so a refusal travels in it
        sizes = np.full(each, -1, np.int64)
        if isinstance(batch, InverseKJT) and error is None:
            sizes = np.array([group.first.size for group in batch.groups], np.int64)
        counts = np.full(ranks, each, np.int64)
        arrived = np.empty(ranks * each, np.int64)
        table = np.full((ranks, ranks), each, np.int64)
        yield self.comm.start_alltoallv(
            np.tile(sizes, ranks), counts, arrived, counts, what="input bags", table=table
        )
        if (arrived < 0).any():
            # as in `InputDist.steps`: no poll may run into an agreement
            yield Pause()
            self.comm.agree(error)
        assert isinstance(batch, InverseKJT)
        distinct = arrived.reshape(ranks, each).T
        running = [self.key_sets[0].input.steps(batch.plain, self._shape(0, shape.cuts, shape))]
        cuts = [np.append(0, np.cumsum(counts)) for counts in distinct]
        for i, (group, group_cuts) in enumerate(zip(batch.groups, cuts), 1):
            packed = pack_inverse(group.inverse, group.first.size)
            keys = self.key_sets[i]
            # a rank that holds no shard of the group has nothing to repeat
            notes = [packed if len(e.travel) else packed[:0] for e in keys.ranks]
            group_shape = self._shape(i, group_cuts, shape)
            running.append(keys.input.steps(group.kjt, group_shape, notes=notes))
        plain, *groups = yield from together(running)
        everyone = np.arange(shape.batch, dtype=np.int64)
        key_sets = [replace(plain, bag_of=everyone)]
        for lookups, group_cuts in zip(groups, cuts):
            bag_of = bags_of_ranks(lookups.notes, group_cuts, shape)
            key_sets.append(replace(lookups, bag_of=bag_of))
        return Input(batch, shape, key_sets=tuple(key_sets))

    def _shape(self, number: int, cuts: Ints, shape: Shape) -> Shape:
        """Counts and jobs of a key set whose samples of rank q are [cuts[q], cuts[q+1]); shape : of
        the whole batch.
        """
        if number == 0 and shape.batch in self._plain_shapes:
            return self._plain_shapes[shape.batch]
        keys = self.key_sets[number]
        heads = keys.input.heads
        if number > 0 and not self.alone:
            words = inverse_words(shape.sizes, np.diff(cuts))
            travelling = np.array([len(entries.travel) > 0 for entries in keys.ranks])
            heads = heads + np.outer(words, travelling)
        made = Shape(keys.ranks, self.comm.rank, cuts, self.width, heads)
        if number == 0:
            self._plain_shapes[shape.batch] = made
        return made

    # ---- pooled rows ----

    def spread(self, number: int, batch_input: Input, pooled: Floats, out: Floats) -> None:
        """Columns of the distinct bags of group `number`, counted from 1, f32[U, columns of E], to
        the samples that have them: out f32[b, columns of E].
        """
        assert isinstance(batch_input.kjt, InverseKJT)
        inverse = batch_input.kjt.groups[number - 1].inverse
        expand_columns(pooled, inverse, self.columns[number], out)

    # ---- the backward pass ----

    def expanded(self, batch_input: Input) -> Input:
        """The same lookups with all bags of all samples; it lasts until the next call."""
        shape = batch_input.shape
        entries = self.my_entries
        assert isinstance(batch_input.kjt, InverseKJT)
        travelling = [
            RepeatedLookups(positions, keys.travel, keys.bag_of)
            for positions, keys in zip(self._travelling, batch_input.key_sets)
            if keys.travel is not None and keys.bag_of is not None
        ]
        # gradients of samples that share a bag must not be added before they are merged: the
        # exact sum has a term for each lookup of the batch (docs/arithmetic.md §3)
        lookups = self._merge("travel", len(entries.travel), travelling, shape.batch)
        if self.alone:
            whole = lookups if len(entries.travel) else None
            return Input(batch_input.kjt, shape, NO_LOOKUPS._replace(whole=whole))
        copies = None
        if len(entries.copies):
            bags_of = self._bags_of(batch_input.kjt)
            staying = [
                RepeatedLookups(positions, keys.copies, bag_of)
                for positions, keys, bag_of in zip(self._copied, batch_input.key_sets, bags_of)
                if keys.copies is not None
            ]
            copies = self._merge("copies", len(entries.copies), staying, shape.samples)
        classes = shape.classes(lookups.offsets, lookups.rows, lookups.weights)
        return Input(batch_input.kjt, shape, classes, copies)

    def _bags_of(self, batch: InverseKJT) -> list[Ints]:
        """For each key set, the bags that each of this rank's samples has."""
        everyone = np.arange(batch.samples, dtype=np.int64)
        return [everyone, *(group.inverse.astype(np.int64) for group in batch.groups)]

    def _merge(
        self, name: str, entries: int, key_sets: Sequence[RepeatedLookups], samples: int
    ) -> Lookups:
        """Lookups of so many entries and samples, from those of each key set."""
        everyone = np.arange(samples, dtype=np.int64)
        lengths = np.zeros((entries, samples), np.int64)
        sources = []
        for positions, lookups, bag_of in key_sets:
            sizes = np.diff(lookups.offsets).reshape(positions.size, lookups.samples)
            lengths[positions] = sizes[:, bag_of]
            starts = np.arange(positions.size, dtype=np.int64) * lookups.samples
            sources.append((starts[:, None] + bag_of).reshape(-1))
        offsets = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths.reshape(-1), out=offsets[1:])
        total = int(offsets[-1])
        rows = self._buffers.take(f"{name} rows", total, np.int64)
        size = total if self._weighted else 0
        weights = self._buffers.take(f"{name} weights", size, np.float32)
        for (positions, lookups, _), chosen in zip(key_sets, sources):
            starts = offsets[(positions[:, None] * samples + everyone).reshape(-1)]
            taken = Bags(lookups.offsets, lookups.rows, lookups.weights)
            take_bags(taken, chosen, starts, rows, weights)
        return Lookups(offsets, rows, weights, samples)


def together(steps: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Several exchanges at once, each a step at a time in their order; their results."""
    results: dict[int, T] = {}
    waiting: dict[int, Request] = {}
    for i, generator in enumerate(steps):
        try:
            waiting[i] = next(generator)
        except StopIteration as end:
            results[i] = end.value
    while waiting:
        for i in list(waiting):
            # always in the order of the list, so that all ranks make their calls in one order
            yield waiting[i]
            try:
                waiting[i] = next(steps[i])
            except StopIteration as end:
                del waiting[i]
                results[i] = end.value
    return [results[i] for i in range(len(steps))]


def _number_bytes(distinct: Ints) -> Ints:
    """Bytes of a number among so many: 1, 2 or 4."""
    return np.where(distinct <= 1 << 8, 1, np.where(distinct <= 1 << 16, 2, 4))


def inverse_words(samples: Ints, distinct: Ints) -> Ints:
    """Numbers of 4 bytes in which the bags of so many samples are named."""
    return -(-samples * _number_bytes(distinct) // 4)


def pack_inverse(inverse: NDArray[np.int32], distinct: int) -> Heads:
    """The bags of samples as i32 numbers, several to each."""
    size = int(_number_bytes(np.array(distinct)))
    words = int(inverse_words(np.array(inverse.size), np.array(distinct)))
    # whole numbers of 4 bytes: the head of a message of lengths consists of such
    packed = np.zeros(4 * words // size, f"<u{size}")
    packed[: inverse.size] = inverse
    return packed.view(np.int32)


def bags_of_ranks(notes: Sequence[Heads], cuts: Ints, shape: Shape) -> Ints:
    """The distinct bags, of all ranks, that each sample of the batch has: i64[B]; all 0 where the
    ranks did not say.
    """
    bag_of = np.zeros(shape.batch, np.int64)
    for rank, note in enumerate(notes):
        if note.size:
            size = int(_number_bytes(np.array(cuts[rank + 1] - cuts[rank])))
            numbers = np.ascontiguousarray(note).view(f"<u{size}")
            start = int(shape.cuts[rank])
            end = int(shape.cuts[rank + 1])
            bag_of[start:end] = cuts[rank] + numbers[: end - start]
    return bag_of
