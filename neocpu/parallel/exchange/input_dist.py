"""How do lookups reach the shards that hold their rows? Rectangle by rectangle.

    my b samples, all keys  --bucketize-->  entries of every rank
    --alltoall lengths, alltoallv rows-->   all B samples, my entries
    --permute-->                            bag k*B + s                    (Neo)

A lookup outside its table is found, and named, before its batch is exchanged (`find_refusal`). The
rank that finds it may be the only one, so each message of lengths begins with one number, 1 if the
sender refuses its samples: every rank hears from every rank in that exchange anyway, and only then
does anybody pay for agreeing on an error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import IndexRangeError
from neocpu.core.jagged import KJT, InverseKJT
from neocpu.core.types import Floats, Ints
from neocpu.kernels.exchange.blocks import copy_blocks
from neocpu.kernels.exchange.bucketize import (
    RowRanges,
    bucketize,
    bucketize_lengths,
    first_outside,
    lengths_to_offsets,
)
from neocpu.kernels.operands import Bags
from neocpu.parallel.exchange.shapes import Shape, lookups_between
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.sharding.entries import ByClass, RankEntries
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.started import Pause, Started, Steps
from neocpu.tables.embedding.lookups import Lookups
from neocpu.tables.specs.specs import BatchKey, TableSpecs, bags

if TYPE_CHECKING:
    from neocpu.parallel.exchange.unique_rows import Heads, UniqueRows

NO_LOOKUPS: ByClass[Lookups | None] = ByClass(None, None, None, None)


@dataclass(frozen=True)
class Input:
    """This rank's lookups of one batch, in place: what a lookup and its backward pass need.

    kjt : the batch as it came. shape : counts of its exchanges. buffers : what it lives in.
    classes : lookups of the global batch for each class of travelling entries (None where a class
        is empty). travel : those of all classes together.
    copies : lookups of this rank's own samples in replicated tables.
    notes : by rank, what it put in the head of its lengths.
    key_sets : where repeated bags of some keys stand once, the lookups of each set of keys
        (`repeated_bags.py`); there are none here then.
    bag_of : i64, in such a set, for each sample the bags that it has.
    """

    kjt: KJT | InverseKJT
    shape: Shape
    classes: ByClass[Lookups | None] = NO_LOOKUPS
    copies: Lookups | None = None
    buffers: Buffers | None = None
    travel: Lookups | None = None
    key_sets: tuple["Input", ...] = ()
    bag_of: Ints | None = None
    notes: "tuple[Heads, ...]" = ()


@dataclass(frozen=True)
class BucketizedLookups:
    """Lookups by destination: lengths i32[K*b] of the bags [entry, my sample] of all ranks, lookups
    for each rank i64[W], local rows and weights (or none) one after the other; and the lookups that
    stay, of replicated tables.

    message, words : what travels in place of the rows, and its words for each rank i64[W]. notes :
    numbers for the heads of the messages of lengths, or None.
    """

    lengths: NDArray[np.int32]
    counts: Ints
    weights: Floats
    copies: Lookups | None
    message: Ints
    words: Ints
    notes: "list[Heads] | None"


class InputDist:
    """The input distribution of one rank.

    ranks : entries of all ranks (`entries.entries_of_ranks`). alone : are lookups used where they
    are?
    """

    def __init__(self, env: ShardingEnv, ranks: Sequence[RankEntries], alone: bool) -> None:
        plan = env.plan
        comm = env.comm.queue("input")
        self.plan = plan
        self.comm = comm
        self.alone = alone
        self.my_entries = ranks[comm.rank]
        # of any table, so that all ranks agree on whether weights are exchanged
        self.weighted = any(table.weighted for table in plan.tables)
        # copies last: lookups that travel are one run, and no message has to be cut out
        looked_up = [entries.travel for entries in ranks] + [self.my_entries.copies]
        self._bucket_keys = tuple(
            np.concatenate([getattr(e, name) for e in looked_up]) for name in ("key", "lo", "hi")
        )
        self.unique = _unique_rows(env, ranks) if env.unique_rows != "off" else None
        self._idle: list[Buffers] = []  # of inputs that are done with

    @property
    def own_notes(self) -> int:
        """Numbers of unique rows in the heads of messages to this rank."""
        return 0 if self.unique is None else self.unique.segments

    @property
    def heads(self) -> Ints:
        """Numbers at the head of the messages of lengths, of `shapes.Shape`."""
        ranks = self.comm.size
        heads = np.ones((ranks, ranks), np.int64)
        return heads if self.unique is None else heads + self.unique.counts

    def start(self, kjt: KJT, shape: Shape) -> Started[Input]:
        """Send the lookups of this rank's samples to the shards that hold their rows.

        Any number may be under way; `release` those that are done with.

        Raises (on every rank, from here or from `wait`)
        ------
        IndexRangeError : a lookup outside [-1, rows), malformed lengths, other keys or another
            number of samples.
        """
        kjt = wide_rows(kjt)
        first_sample = int(shape.cuts[self.comm.rank])
        keys = bags(self.plan.tables)
        error = find_refusal(kjt, self.plan.tables, keys, shape.samples, first_sample)
        if error is not None and self.comm.size == 1:
            raise error
        accepted = kjt if error is None else None
        return Started(
            self.steps(accepted, shape, partial(self.comm.agree, error)), self.comm.stream
        )

    def release(self, batch_input: Input) -> None:
        """Its memory is free for a coming input."""
        if batch_input.buffers is not None:
            self._idle.append(batch_input.buffers)

    def steps(
        self,
        kjt: KJT | None,
        shape: Shape,
        agree: Callable[[], None] | None = None,
        notes: "Sequence[Heads]" = (),
    ) -> Steps[Input]:
        """The distribution, step by step (`Started`).

        kjt : checked, with rows in i64; None refuses the batch. agree : raises the error of a
        refused batch on every rank that must know of it (None: no rank refuses it). notes : more
        numbers for the heads of the messages to each rank, of which `shape` knows.
        """
        agree = agree or partial(self.comm.agree, None)
        # nobody else has to hear of it
        if kjt is None and self.comm.size == 1:
            agree()
        # batches under way at once need buffers each; a step reuses those of one that is done
        buffers = self._idle.pop() if self._idle else Buffers()
        if kjt is not None and self.alone:
            lookups = Lookups(kjt.offsets, kjt.values, self._weights(kjt), shape.samples)
            whole = lookups if len(self.my_entries.travel) else None
            classes = NO_LOOKUPS._replace(whole=whole)
            return Input(kjt, shape, classes, buffers=buffers, travel=lookups)
        sent = None if kjt is None else self._bucketize(kjt, shape, buffers)
        lengths_out = buffers.take("lengths out", int(shape.length_sends.sum()), np.int32)
        lengths_in = buffers.take("lengths in", int(shape.length_recvs.sum()), np.int32)
        if sent is None:
            shape.pack_lengths(None, lengths_out)
        else:
            shape.pack_lengths(sent.lengths, lengths_out, _joined(sent.notes, notes))
        yield self.comm.start_alltoallv(
            lengths_out,
            shape.length_sends,
            lengths_in,
            shape.length_recvs,
            what="input lengths",
            table=shape.length_table,
        )
        if lengths_in[shape.recv_heads].any():
            # agreeing holds a rank up until all agree, so no poll may run into it
            yield Pause()
            agree()
        assert kjt is not None and sent is not None
        offsets = buffers.take(
            "offsets in", len(self.my_entries.travel) * shape.batch + 1, np.int64
        )
        shape.unpack_lengths(lengths_in, offsets)
        arrived = shape.notes(lengths_in)
        rows, weights = yield from self._lookups(sent, shape, offsets, arrived, buffers)
        return Input(
            kjt=kjt,
            shape=shape,
            classes=shape.classes(offsets, rows, weights),
            copies=sent.copies,
            buffers=buffers,
            travel=Lookups(offsets, rows, weights, shape.batch),
            notes=tuple(note[self.own_notes :] for note in arrived),
        )

    def _lookups(
        self,
        sent: BucketizedLookups,
        shape: Shape,
        offsets: Ints,
        notes: "list[Heads]",
        buffers: Buffers,
    ) -> Steps[tuple[Ints, Floats]]:
        """Rows and weights of my entries' bags, which stand at `offsets`.

        notes : of the heads of the messages of lengths.
        """
        counts, jobs = shape.permute_jobs(offsets)
        starts = shape.run_starts(offsets)
        total = int(offsets[-1])
        words = counts
        distinct = np.empty((self.comm.size, 0), np.int32)
        if self.unique is not None:
            # in a head they come first; behind them stands what the caller adds
            distinct = np.stack([note[: self.own_notes] for note in notes])
            words = self.unique.words(distinct, np.diff(starts, axis=1))
        rows = buffers.take("rows in", int(words.sum()), np.int64)
        requests = [
            self.comm.start_alltoallv(sent.message, sent.words, rows, words, what="input rows")
        ]
        weights = buffers.take("weights in", total if self.weighted else 0, np.float32)
        if self.weighted:
            size = int(sent.counts.sum())
            requests.append(
                self.comm.start_alltoallv(
                    sent.weights[:size], sent.counts, weights, counts, what="input weights"
                )
            )
        # rows and weights are both under way before either is waited for
        yield from requests
        alone = self.comm.size == 1  # one sender: already entry by entry
        if alone and self.unique is None:
            return rows, weights
        ordered_rows = buffers.take("rows", total, np.int64)
        if self.unique is None:
            copy_blocks(rows, ordered_rows, jobs)
        else:
            self.unique.unpack(rows, distinct, starts, ordered_rows)
        if alone or not self.weighted:
            return ordered_rows, weights
        ordered_weights = buffers.take("weights", weights.size, np.float32)
        copy_blocks(weights, ordered_weights, jobs)
        return ordered_rows, ordered_weights

    def _bucketize(self, kjt: KJT, shape: Shape, buffers: Buffers) -> BucketizedLookups:
        """My lookups for the entries of every rank, rank after rank, then for the replicated
        tables.
        """
        samples = shape.samples
        ranges = RowRanges(*self._bucket_keys)
        lengths = buffers.take("lengths", ranges.key.size * samples, np.int32)
        bucketize_lengths(kjt.offsets, kjt.values, ranges, samples, lengths)
        offsets = buffers.take("offsets out", lengths.size + 1, np.int64)
        lengths_to_offsets(lengths, offsets)
        rows = buffers.take("rows out", int(offsets[-1]) + 1, np.int64)
        weights = buffers.take("weights out", rows.size if self.weighted else 0, np.float32)
        lookups = Bags(kjt.offsets, kjt.values, self._weights(kjt))
        bucketize(lookups, ranges, samples, rows, weights)
        travel = int(shape.entry_cuts[-1])
        copies = None
        if len(self.my_entries.copies):
            copies = lookups_between(offsets, rows, weights, travel, ranges.key.size, samples)
        counts = np.diff(offsets[shape.entry_cuts * samples])
        message = rows[: int(counts.sum())]
        words = counts
        notes = None
        if self.unique is not None:
            message, words, notes = self.unique.pack(rows, offsets, samples, buffers)
        return BucketizedLookups(
            lengths=lengths,
            counts=counts,
            weights=weights,
            copies=copies,
            message=message,
            words=words,
            notes=notes,
        )

    def _weights(self, kjt: KJT) -> Floats:
        return kjt.weights if self.weighted and kjt.weights is not None else np.empty(0, np.float32)


def _unique_rows(env: ShardingEnv, ranks: Sequence[RankEntries]) -> "UniqueRows":
    """What packs the rows of a message so that equal ones travel once."""
    from neocpu.parallel.exchange.unique_rows import UniqueRows

    return UniqueRows(ranks, env.comm.rank, always=env.unique_rows == "on")


def _joined(unique: "Sequence[Heads] | None", notes: "Sequence[Heads]") -> "Sequence[Heads] | None":
    """The numbers of two lists, rank by rank."""
    if not unique or not notes:
        return unique or notes or None
    return [np.concatenate(pair) for pair in zip(unique, notes)]


def wide_rows(kjt: KJT) -> KJT:
    """The batch with its row numbers in i64, as they travel."""
    if kjt.values.dtype == np.int64:
        return kjt
    return replace(kjt, values=kjt.values.astype(np.int64))


def find_refusal(
    kjt: KJT, tables: TableSpecs, bags: Sequence[BatchKey], samples: int, first_sample: int | Ints
) -> IndexRangeError | None:
    """Why this rank's part of a batch cannot be looked up, or None.

    samples : how many the rank owns. first_sample : position of the first one in the global batch,
    or i64[samples], that of each (messages name samples of the global batch). Rows may be -1
    (pruned) to rows - 1.
    """
    try:
        kjt.check()
    except IndexRangeError as error:
        return error
    if kjt.keys != tuple(bag.key for bag in bags):
        return IndexRangeError(
            f"the batch has keys {kjt.keys}; the tables need {tuple(bag.key for bag in bags)}"
        )
    if kjt.samples != samples:
        return IndexRangeError(
            f"the batch has {kjt.samples} samples where this rank owns {samples}"
        )
    if kjt.weights is None and any(table.weighted for table in tables):
        names = [table.name for table in tables if table.weighted]
        return IndexRangeError(
            f"tables {names} are weighted, but the batch has no per-sample weights"
        )
    limits = np.array([tables[bag.table].rows for bag in bags], np.int64)
    bad = first_outside(kjt.offsets, kjt.values, limits, samples)
    if bad < 0:
        return None
    # empty bags begin at the same lookup: the last that does is the one that has it
    bag = int(np.searchsorted(kjt.offsets, bad, side="right")) - 1
    key = bags[bag // samples]
    sample = bag % samples
    table = tables[key.table]
    position = first_sample + sample if isinstance(first_sample, int) else int(first_sample[sample])
    return IndexRangeError(
        f"feature {key.feature!r}, table {table.name!r}, sample {position} of the batch: "
        f"row {int(kjt.values[bad])} is outside [-1, {table.rows})"
    )
