"""How do lookups reach the shards and pooled rows come back? Through one engine that knows only
rectangles.

    input_dist     my b samples, all keys  --bucketize-->  entries of every rank
                   --alltoall lengths, alltoallv rows-->   all B samples, my entries
                   --permute-->                            bag k*B + s                    (Neo)
    output_dist    whole: f32[B, C]  --alltoallv-->        columns of E[b]
                   parts: fp64 words, by a route, rounded at home
    gradients      columns of dE[b] --alltoallv--> f32[B, C] of my entries

Every plan is the same to it: `entries.py` lists which key meets which shard. Samples are spread as
the leaves of the batch are (`trees.rank_samples`), so the blocks of all ranks, one below the other,
are the global batch.

A lookup outside its table is found before its batch is exchanged. The rank that finds it may be the
only one, so each message of lengths begins with one number, 1 if the sender refuses its samples:
every rank hears from every rank in that exchange anyway, and only then does anybody pay for
agreeing on an error.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.specs import bags
from neocpu.embedding.tbe import ExtraWords, Lookups
from neocpu.jagged import KJT
from neocpu.kernels.blocks import copy_blocks
from neocpu.kernels.bucketize import RowRanges, bucketize, bucketize_lengths, lengths_to_offsets
from neocpu.kernels.operands import Bags
from neocpu.kernels.rounding import FurtherWords, WordParts, combine_words
from neocpu.parallel.buffers import Buffers
from neocpu.parallel.checks import find_refusal
from neocpu.parallel.comm import Comm, Request
from neocpu.parallel.entries import Ints, RoutedEntries, entries_of_ranks, key_columns
from neocpu.parallel.plan import Plan
from neocpu.parallel.routes import ROUTES
from neocpu.parallel.shapes import Shape, part_of
from neocpu.parallel.shipment import Further, Groups, Map, Shipment, Spill, ship_further
from neocpu.parallel.started import Started
from neocpu.trees import rank_samples

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


@dataclass
class Arrival:
    """What came home: finished rows; blocks of words with their groups; further words (key, start,
    words).
    """

    rows: Floats
    words: NDArray[np.float64] | None = None
    groups: list[Groups] | None = None
    further: Further | None = None


class Exchange:
    """The exchanges of one rank for one plan, any batch size; all ranks call its methods in the
    same order.

    Parameters
    ----------
    plan, comm, leaves : who holds which rectangle, the ranks, and how samples are spread over them.
    first_column : columns of E before the first pooled vector.
    row_scalars : numbers per row that the sparse optimizer needs of the whole row (`entries.py`).
    route : a name in `routes.ROUTES`, for the words of row-split tables.
    """

    def __init__(
        self,
        plan: Plan,
        comm: Comm,
        leaves: int,
        first_column: int,
        row_scalars: int,
        route: str = "direct",
    ) -> None:
        self.plan = plan
        self.comm = comm
        self.leaves = leaves
        self.route = ROUTES[route]
        self.bags = bags(plan.tables)
        self.columns = int(key_columns(plan.tables, first_column)[-1])
        self.ranks = entries_of_ranks(plan, first_column, row_scalars)
        self.my_entries = self.ranks[comm.rank]
        self.weighted = any(table.weighted for table in plan.tables)
        # one rank that holds every table whole: lookups are used where they are, rows land where
        # they belong
        self.mean_columns = self._find_mean_columns(first_column)
        self.alone = (
            comm.size == 1
            and len(self.my_entries.travel) == len(self.bags) == self.my_entries.cuts[1]
        )
        self._routed = any(len(entries.parts) for entries in self.ranks)
        self._pooled = any(len(entries.whole) for entries in self.ranks)
        widths, homes, groups = _groups([entries.parts for entries in self.ranks])
        self._my_groups = groups[comm.rank]
        self._held = tuple(tuple(g for entry in rank for g in entry) for rank in groups)
        self.group_columns = (widths, homes)
        self.widths = tuple(widths.tolist())
        looked_up = [entries.travel for entries in self.ranks] + [self.my_entries.copies]
        self._bucket_keys = tuple(
            np.concatenate([getattr(e, name) for e in looked_up]) for name in ("key", "lo", "hi")
        )
        self._shapes: dict[int, Shape] = {}
        self._idle: list[Buffers] = []  # of inputs that are done with
        self._buffers = Buffers()

    def shape(self, batch: int) -> Shape:
        """Counts and jobs for a global batch of this many samples, computed once."""
        if batch not in self._shapes:
            # a data set ends in one odd batch; only tests use many sizes
            if len(self._shapes) > 64:
                self._shapes.clear()
            bounds = [
                rank_samples(rank, self.comm.size, batch, self.leaves)[0]
                for rank in range(self.comm.size)
            ]
            self._shapes[batch] = Shape(
                self.ranks, self.comm.rank, np.array([*bounds, batch], np.int64), self.columns
            )
        return self._shapes[batch]

    def _find_mean_columns(self, first_column: int) -> tuple[Ints, Ints, Ints] | None:
        """(key, first column in E, width) of the keys that pool by MEAN; None if there are none."""
        columns = key_columns(self.plan.tables, first_column)
        keys = [
            key
            for key, bag in enumerate(self.bags)
            if self.plan.tables[bag.table].pooling == "mean"
        ]
        if not keys:
            return None
        return np.array(keys, np.int64), columns[keys], np.diff(columns)[keys]

    # ---- input_dist ----

    def start_input(self, kjt: KJT, batch: int) -> Started[Input]:
        """Send the lookups of this rank's samples to the shards that hold their rows.

        Any number may be under way; `release` those that are done with.

        Raises (on every rank, from here or from `wait`)
        ------
        IndexRangeError : a lookup outside [-1, rows), malformed lengths, other keys or another
            number of samples.
        """
        if kjt.values.dtype != np.int64:
            kjt = replace(kjt, values=kjt.values.astype(np.int64))
        return Started(
            self._input(kjt, self.shape(batch), self._idle.pop() if self._idle else Buffers())
        )

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
            lengths_out, shape.length_sends, lengths_in, shape.length_recvs
        )
        if lengths_in[shape.recv_heads].any():
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
        requests = [self.comm.start_alltoallv(sent.rows[:size], sent.counts, rows, counts)]
        weights = buffers.take("weights in", total if self.weighted else 0, np.float32)
        if self.weighted:
            requests.append(
                self.comm.start_alltoallv(sent.weights[:size], sent.counts, weights, counts)
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

    # ---- output_dist ----

    def start_output(
        self, shape: Shape, whole: Floats, words: NDArray[np.float64], spill: Spill
    ) -> "Output":
        """Send pooled rows home: `whole` f32[B, C] finished, `words` f64[B, C'] with `spill` the
        rare further words.

        `whole` and `words` hold my entries side by side (`RankEntries.whole`, `.parts`) for all
        samples of the batch; they belong to the exchange until `Output.finish`.
        """
        return Output(self, shape, Started(self._output(shape, whole, words, spill)))

    def _output(
        self, shape: Shape, whole: Floats, words: NDArray[np.float64], spill: Spill
    ) -> Generator[Request, None, Arrival]:
        sends, recvs = shape.whole_counts
        rows = self._buffers.take("whole in", int(recvs.sum()), np.float32)
        request = (
            self.comm.start_alltoallv(whole.reshape(-1), sends, rows, recvs)
            if self._pooled
            else None
        )
        arrival = Arrival(rows)
        if self._routed:
            job = Shipment(self._map(shape), words, spill, self._buffers)
            arrival.words, arrival.groups = yield from self.route.words(job)
            arrival.further = yield from ship_further(job)
        if request is not None:
            yield request
        return arrival

    def spill(self, shape: Shape, extras: ExtraWords, first: int, spill: Spill) -> None:
        """Address the further words of bags (entry, sample of the batch) of my parts, entries
        counted from `first`.
        """
        if extras.bag.size == 0:
            return
        entry, sample = np.divmod(extras.bag, shape.batch)
        rank = np.searchsorted(shape.cuts, sample, side="right") - 1
        for m, (k, d, s) in enumerate(
            zip(entry.tolist(), np.asarray(rank).tolist(), sample.tolist())
        ):
            at = int(extras.start[m])
            for group in self._my_groups[first + k]:
                spill.append(
                    (d, group, s - int(shape.cuts[d]), extras.words[at : at + self.widths[group]])
                )
                at += self.widths[group]

    # ---- gradients ----

    def start_gradients(self, shape: Shape, gradient: Floats) -> Started[tuple[Floats, Floats]]:
        """Send the columns of dE f32[b, columns of E] to the shards of my entries' tables.

        `wait` gives the gradients of my entries, side by side, for all samples of the batch:
        (f32[B, C] of `RankEntries.whole`, f32[B, C'] of `RankEntries.parts`).
        """
        return Started(self._gradients(shape, gradient))

    def _gradients(
        self, shape: Shape, gradient: Floats
    ) -> Generator[Request, None, tuple[Floats, Floats]]:
        recvs, sends = shape.whole_counts  # the way back
        whole = self._buffers.take("gradients in", int(recvs.sum()), np.float32)
        if self._pooled:
            out = self._buffers.take("gradients out", int(sends.sum()), np.float32)
            copy_blocks(gradient.reshape(-1), out, shape.gather_jobs)
            request = self.comm.start_alltoallv(out, sends, whole, recvs)
        parts = np.empty((shape.batch, 0), np.float32)
        if self._routed:
            parts = yield from self.route.gradients(self._map(shape), gradient, self._buffers)
        if self._pooled:
            yield request
        return whole.reshape(shape.batch, self.my_entries.whole.columns), parts

    def _map(self, shape: Shape) -> Map:
        cuts = tuple(shape.cuts.tolist())
        homes = tuple(self.group_columns[1].tolist())
        return Map(self.comm, self.plan.ranks_per_node, self._held, self.widths, homes, cuts)


class Output:
    """Pooled rows on their way home."""

    def __init__(self, exchange: Exchange, shape: Shape, started: Started[Arrival]) -> None:
        self._exchange = exchange
        self._shape = shape
        self._started = started

    def finish(self, out: Floats) -> None:
        """Wait, and write the columns of all travelling entries into `out` f32[b, columns], MEAN
        not yet divided.
        """
        arrival = self._started.wait()
        shape = self._shape
        exchange = self._exchange
        copy_blocks(arrival.rows, out.reshape(-1), shape.scatter_jobs)
        if arrival.words is None:
            return
        assert arrival.groups is not None and arrival.further is not None
        if shape.sources is None:  # a route brings the same groups in the same order every time
            shape.sources = shape.combine_sources(arrival.groups, exchange.widths)
        further = arrival.further
        widths, homes = exchange.group_columns
        parts = WordParts(arrival.words, *shape.sources, widths, homes)
        combine_words(parts, FurtherWords(further.key, further.start, further.words), out)


def _groups(parts: list[RoutedEntries]) -> tuple[Ints, Ints, list[list[Groups]]]:
    """Columns that the same row shards share: (widths i64[G], first columns in E i64[G], groups of
    all ranks' entries).

    Bands of rows may be cut at other columns than their neighbours, so columns are divided at every
    edge: an entry holds one group or several side by side.
    """
    ranges = {
        span
        for entries in parts
        for span in zip(entries.home.tolist(), (entries.home + entries.width).tolist())
    }
    edges = sorted({edge for span in ranges for edge in span})
    spans = [(lo, hi) for lo, hi in pairwise(edges) if any(a <= lo and hi <= b for a, b in ranges)]
    homes, ends = np.array(spans, np.int64).reshape(-1, 2).T
    first = np.searchsorted(homes, np.array(edges, np.int64))
    number = dict(zip(edges, first.tolist()))
    of_range = {(lo, hi): tuple(range(number[lo], number[hi])) for lo, hi in ranges}
    of_ranks = [
        [
            of_range[lo, lo + width]
            for lo, width in zip(entries.home.tolist(), entries.width.tolist())
        ]
        for entries in parts
    ]
    return np.ascontiguousarray(ends - homes), np.ascontiguousarray(homes), of_ranks
