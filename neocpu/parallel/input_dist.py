"""How do lookups reach the shards that hold their rows? Rectangle by rectangle.

    my b samples, all keys  --bucketize-->  entries of every rank
    --alltoall lengths, alltoallv rows-->   all B samples, my entries
    --permute-->                            bag k*B + s                    (Neo)

A lookup outside its table is found before its batch is exchanged. The rank that finds it may be the
only one, so each message of lengths begins with one number, 1 if the sender refuses its samples:
every rank hears from every rank in that exchange anyway, and only then does anybody pay for
agreeing on an error.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.specs import bags
from neocpu.embedding.tbe import Lookups
from neocpu.jagged import KJT
from neocpu.kernels.blocks import copy_blocks
from neocpu.kernels.bucketize import RowRanges, bucketize, bucketize_lengths, lengths_to_offsets
from neocpu.kernels.operands import Bags
from neocpu.parallel.buffers import Buffers
from neocpu.parallel.checks import find_refusal
from neocpu.parallel.comm import Comm
from neocpu.parallel.entries import Ints, RankEntries
from neocpu.parallel.plan import Plan
from neocpu.parallel.shapes import Shape, part_of
from neocpu.parallel.started import Pause, Request, Started

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Input:
    """This rank's lookups of one batch, in place: what a lookup and its backward pass need.

    `classes`: lookups of the global batch for the four classes of travelling entries (None where a
    class is empty); `copies`: lookups of this rank's own samples in replicated tables; `kjt`: the
    batch as it came; `buffers`: what it lives in.
    """

    kjt: KJT
    shape: Shape
    classes: tuple[Lookups | None, ...]
    copies: Lookups | None
    buffers: Buffers | None = None


@dataclass(frozen=True)
class Sent:
    """Lookups by destination: lengths i32[K*b] of the bags [entry, my sample] of all ranks, lookups
    for each rank i64[W], local rows and weights (or none) one after the other; and the lookups that
    stay, of replicated tables.
    """

    lengths: NDArray[np.int32]
    counts: Ints
    rows: Ints
    weights: Floats
    copies: Lookups | None


class InputDist:
    """The input distribution of one rank.

    plan, comm : who holds which rectangle, and the queue of the ranks on which lookups travel.
    ranks : entries of all ranks (`entries.entries_of_ranks`). alone : are lookups used where they
    are?
    """

    def __init__(self, plan: Plan, comm: Comm, ranks: Sequence[RankEntries], alone: bool) -> None:
        self.plan = plan
        self.comm = comm
        self.alone = alone
        self.bags = bags(plan.tables)
        self.my_entries = ranks[comm.rank]
        self.weighted = any(table.weighted for table in plan.tables)
        looked_up = [entries.travel for entries in ranks] + [self.my_entries.copies]
        self._bucket_keys = tuple(
            np.concatenate([getattr(e, name) for e in looked_up]) for name in ("key", "lo", "hi")
        )
        self._idle: list[Buffers] = []  # of inputs that are done with

    def start(self, kjt: KJT, shape: Shape) -> Started[Input]:
        """Send the lookups of this rank's samples to the shards that hold their rows.

        Any number may be under way; `release` those that are done with.

        Raises (on every rank, from `wait`)
        ------
        IndexRangeError : a lookup outside [-1, rows), malformed lengths, other keys or another
            number of samples.
        """
        if kjt.values.dtype != np.int64:
            kjt = replace(kjt, values=kjt.values.astype(np.int64))
        buffers = self._idle.pop() if self._idle else Buffers()
        return Started(self._input(kjt, shape, buffers), self.comm.stream)

    def release(self, batch_input: Input) -> None:
        """Its memory is free for a coming input."""
        if batch_input.buffers is not None:
            self._idle.append(batch_input.buffers)

    def _input(self, kjt: KJT, shape: Shape, buffers: Buffers) -> Generator[Request, None, Input]:
        first = int(shape.cuts[self.comm.rank])
        error = find_refusal(kjt, self.plan.tables, self.bags, shape.samples, first)
        if error is not None and self.comm.size == 1:
            raise error
        if self.alone:
            lookups = Lookups(kjt.offsets, kjt.values, self._weights(kjt), shape.samples)
            return Input(kjt, shape, (lookups, None, None, None), None, buffers)
        sent = None if error is not None else self._bucketize(kjt, shape, buffers)
        lengths_out = buffers.take("lengths out", int(shape.length_sends.sum()), np.int32)
        lengths_in = buffers.take("lengths in", int(shape.length_recvs.sum()), np.int32)
        shape.pack_lengths(None if sent is None else sent.lengths, lengths_out)
        yield self.comm.start_alltoallv(
            lengths_out, shape.length_sends, lengths_in, shape.length_recvs, what="input lengths"
        )
        if lengths_in[shape.recv_heads].any():
            yield Pause()
            self.comm.agree(error)
        assert sent is not None
        offsets = buffers.take(
            "offsets in", len(self.my_entries.travel) * shape.batch + 1, np.int64
        )
        shape.unpack_lengths(lengths_in, offsets)
        rows, weights = yield from self._lookups(sent, shape, offsets, buffers)
        return Input(kjt, shape, shape.classes(offsets, rows, weights), sent.copies, buffers)

    def _lookups(
        self, sent: Sent, shape: Shape, offsets: Ints, buffers: Buffers
    ) -> Generator[Request, None, tuple[Ints, Floats]]:
        """Rows and weights of my entries' bags, which stand at `offsets`."""
        counts, jobs = shape.permute_jobs(offsets)
        total = int(offsets[-1])
        size = int(sent.counts.sum())
        rows = buffers.take("rows in", total, np.int64)
        requests = [
            self.comm.start_alltoallv(
                sent.rows[:size], sent.counts, rows, counts, what="input rows"
            )
        ]
        weights = buffers.take("weights in", total if self.weighted else 0, np.float32)
        if self.weighted:
            requests.append(
                self.comm.start_alltoallv(
                    sent.weights[:size], sent.counts, weights, counts, what="input weights"
                )
            )
        yield from requests
        if self.comm.size == 1:
            return rows, weights  # one sender: already entry by entry
        ordered = (
            buffers.take("rows", total, np.int64),
            buffers.take("weights", weights.size, np.float32),
        )
        copy_blocks(rows, ordered[0], jobs)
        if self.weighted:
            copy_blocks(weights, ordered[1], jobs)
        return ordered

    def _bucketize(self, kjt: KJT, shape: Shape, buffers: Buffers) -> Sent:
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
            copies = part_of(offsets, rows, weights, travel, ranges.key.size, samples)
        return Sent(lengths, np.diff(offsets[shape.entry_cuts * samples]), rows, weights, copies)

    def _weights(self, kjt: KJT) -> Floats:
        return kjt.weights if self.weighted and kjt.weights is not None else np.empty(0, np.float32)
