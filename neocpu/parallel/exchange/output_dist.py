"""How do pooled vectors come home, and their gradients go back to the shards?

output_dist    whole: f32[B, C]  --alltoallv-->        columns of E[b]
               row-split: fp64 words, by a route, rounded at home
gradients      columns of dE[b] --alltoallv--> f32[B, C] of my entries

Finished rows and gradients may travel encoded (`wires.py`): packing encodes and unpacking decodes.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Elements, Floats, Ints
from neocpu.kernels.exchange.blocks import copy_blocks
from neocpu.kernels.numbers.rounding import FurtherWords, WordParts, combine_words
from neocpu.parallel.exchange.routes import ROUTES, WordBlocks
from neocpu.parallel.exchange.shapes import Shape
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.exchange.shipment import (
    GroupLayout,
    Groups,
    Shipment,
    Spill,
    SpilledWords,
    ship_further,
)
from neocpu.parallel.exchange.wires import WholeJobs, Wire, reversed_jobs
from neocpu.parallel.sharding.entries import RankEntries, RoutedEntries
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.started import Request, Started
from neocpu.tables.embedding.tbe import ExtraWords


class PooledRows(NamedTuple):
    """Pooled rows of my entries, for all samples of the batch.

    whole : f32[B, C], finished, of `RankEntries.whole` side by side.
    words : f64[B, C'], first words of the sums of `RankEntries.row_split` side by side.
    spill : the rare further words.
    """

    whole: Floats
    words: NDArray[np.float64]
    spill: Spill


class ShardGradients(NamedTuple):
    """Gradients of my entries side by side, for all samples of the batch: f32[B, C] of
    `RankEntries.whole`, f32[B, C'] of `RankEntries.row_split`.
    """

    whole: Floats
    row_split: Floats


class GroupColumns(NamedTuple):
    """Columns of groups, which are rounded at home: their widths and the first of them in E, i64[G]
    each.
    """

    width: Ints
    home: Ints


@dataclass
class Arrival:
    """What came home: finished rows, maybe encoded; blocks of words; further words."""

    rows: Elements
    blocks: WordBlocks | None = None
    further: FurtherWords | None = None


class OutputDist:
    """The output distribution of one rank, and its transpose.

    ranks : entries of all ranks (`entries.entries_of_ranks`).
    """

    def __init__(self, env: ShardingEnv, ranks: Sequence[RankEntries]) -> None:
        comm = env.comm
        self.plan = env.plan
        self.comm = comm
        self.route = ROUTES[env.route]
        self.wires = env.wire_set
        self.ranks = ranks
        self.my_entries = ranks[comm.rank]
        # of any rank: all of them take part in an exchange, or none
        self._routed = any(len(entries.row_split) for entries in ranks)
        self._pooled = any(len(entries.whole) for entries in ranks)
        self.group_columns, groups = _groups([entries.row_split for entries in ranks])
        self._my_groups = groups[comm.rank]
        self._held = tuple(tuple(g for entry in rank for g in entry) for rank in groups)
        self.widths = tuple(self.group_columns.width.tolist())
        self._buffers = Buffers()

    def start_output(self, shape: Shape, pooled: PooledRows) -> "Output":
        """Send pooled rows home; they belong to the exchange until `Output.finish`."""
        return Output(self, shape, Started(self._output(shape, pooled), self.comm.stream))

    def _output(self, shape: Shape, pooled: PooledRows) -> Generator[Request, None, Arrival]:
        sends, recvs = shape.whole_counts
        table = shape.whole_table
        # the samples of a rank are a run of rows: nothing has to be packed
        message: Elements = pooled.whole.reshape(-1)
        wire = self.wires.forward
        if wire:
            jobs = self._whole_jobs(shape, wire)
            table = jobs.table
            sends = jobs.sends
            recvs = jobs.recvs
            message = self._buffers.take("whole out", int(sends.sum()), np.uint8)
            wire.encode(pooled.whole, message, jobs.rows)
        rows = self._buffers.take("whole in", int(recvs.sum()), message.dtype)
        request = (
            self.comm.start_alltoallv(
                message, sends, rows, recvs, what="pooled output", table=table
            )
            if self._pooled
            else None
        )
        # under way while words are added on their route
        arrival = Arrival(rows)
        if self._routed:
            job = Shipment(self._layout(shape), pooled.words, pooled.spill, self._buffers)
            arrival.blocks = yield from self.route.words(job)
            arrival.further = yield from ship_further(job)
        if request is not None:
            yield request
        return arrival

    def spill(self, shape: Shape, extras: ExtraWords, first_entry: int, spill: Spill) -> None:
        """Address the further words of bags (entry, sample of the batch) of some of my row-split
        entries, the first of which is `first_entry` among all of them.
        """
        if extras.bag.size == 0:
            return
        entry, sample = np.divmod(extras.bag, shape.batch)
        rank = np.searchsorted(shape.cuts, sample, side="right") - 1
        # bags with further words are too rare for a kernel
        for m, (k, d, s) in enumerate(
            zip(entry.tolist(), np.asarray(rank).tolist(), sample.tolist())
        ):
            at = int(extras.start[m])
            for group in self._my_groups[first_entry + k]:
                words = extras.words[at : at + self.widths[group]]
                spill.append(SpilledWords(d, group, s - int(shape.cuts[d]), words))
                at += self.widths[group]

    def start_gradients(self, shape: Shape, gradient: Floats) -> Started[ShardGradients]:
        """Send the columns of dE f32[b, columns of E] to the shards of my entries' tables."""
        return Started(self._gradients(shape, gradient), self.comm.stream)

    def _gradients(
        self, shape: Shape, gradient: Floats
    ) -> Generator[Request, None, ShardGradients]:
        entries = self.my_entries.whole
        whole = self._buffers.matrix("gradients in", shape.batch, entries.columns, np.float32)
        wire = self.wires.backward
        if self._pooled:
            recvs, sends = shape.whole_counts  # the way back
            table = shape.whole_table
            arriving: Elements = whole.reshape(-1)
            if wire:
                jobs = self._whole_jobs(shape, wire)
                table = jobs.table
                recvs = jobs.sends
                sends = jobs.recvs
                arriving = self._buffers.take("codes in", int(recvs.sum()), np.uint8)
            message = self._buffers.take("gradients out", int(sends.sum()), arriving.dtype)
            if wire:
                wire.encode(gradient, message, jobs.columns)
            else:
                copy_blocks(gradient.reshape(-1), message, shape.gather_jobs)
            request = self.comm.start_alltoallv(
                message, sends, arriving, recvs, what="pooled gradients", table=table.T
            )
        row_split = np.empty((shape.batch, 0), np.float32)
        if self._routed:
            row_split = yield from self._row_split_gradients(shape, gradient)
        # waited for last: the row-split ones have taken their route meanwhile
        if self._pooled:
            yield request
            if wire:
                wire.decode(arriving, whole, reversed_jobs(jobs.rows))
        return ShardGradients(whole, row_split)

    def _row_split_gradients(
        self, shape: Shape, gradient: Floats
    ) -> Generator[Request, None, Floats]:
        """Gradients f32[B, C'] of my row-split entries, which routes move and do not change."""
        layout = self._layout(shape)
        wire = self.wires.backward
        if wire is None:
            return (yield from self.route.gradients(layout, gradient, self._buffers))
        codes = yield from self.route.gradients(layout.on(wire), gradient, self._buffers)
        groups = layout.held[self.comm.rank]
        block_shape = (shape.batch, layout.columns(groups))
        numbers: Floats = self._buffers.matrix("part numbers", *block_shape, np.float32)
        layout.on(wire).decode(codes, numbers, groups)
        return numbers

    def _whole_jobs(self, shape: Shape, wire: Wire) -> WholeJobs:
        """Those of a batch size, computed once."""
        if wire not in shape.wired:
            shape.wired[wire] = WholeJobs(wire, self.ranks, shape.me, shape.cuts, shape.columns)
        return shape.wired[wire]

    def _layout(self, shape: Shape) -> GroupLayout:
        cuts = tuple(shape.cuts.tolist())
        homes = tuple(self.group_columns.home.tolist())
        return GroupLayout(
            self.comm, self.plan.ranks_per_node, self._held, self.widths, homes, cuts
        )


class Output:
    """Pooled rows on their way home."""

    def __init__(self, owner: OutputDist, shape: Shape, started: Started[Arrival]) -> None:
        self._owner = owner
        self._shape = shape
        self._started = started

    def wait(self) -> None:
        """Wait until the rows are here."""
        self._started.wait()

    def finish(self, out: Floats) -> None:
        """Wait, and write the columns of all travelling entries into `out` f32[b, columns], MEAN
        not yet divided.
        """
        arrival = self._started.wait()
        shape = self._shape
        owner = self._owner
        wire = owner.wires.forward
        if wire:
            wire.decode(arrival.rows, out, reversed_jobs(owner._whole_jobs(shape, wire).columns))
        else:
            copy_blocks(arrival.rows, out.reshape(-1), shape.scatter_jobs)
        if arrival.blocks is None:
            return
        assert arrival.further is not None
        words, blocks = arrival.blocks
        if shape.sources is None:  # a route brings the same groups in the same order every time
            shape.sources = shape.combine_sources(blocks, owner.widths)
        groups = owner.group_columns
        word_parts = WordParts(words, *shape.sources, groups.width, groups.home)
        combine_words(word_parts, arrival.further, out)


def _groups(row_split: list[RoutedEntries]) -> tuple[GroupColumns, list[list[Groups]]]:
    """Columns that the same row shards share, and the groups of all ranks' entries.

    Bands of rows may be cut at other columns than their neighbours, so columns are divided at every
    edge: an entry holds one group or several side by side.
    """
    ranges = {
        span
        for entries in row_split
        for span in zip(entries.home.tolist(), (entries.home + entries.width).tolist())
    }
    edges = sorted({edge for span in ranges for edge in span})
    spans = [(lo, hi) for lo, hi in pairwise(edges) if any(a <= lo and hi <= b for a, b in ranges)]
    homes, ends = np.array(spans, np.int64).reshape(-1, 2).T
    numbers = np.searchsorted(homes, np.array(edges, np.int64))
    number = dict(zip(edges, numbers.tolist()))
    of_range = {(lo, hi): tuple(range(number[lo], number[hi])) for lo, hi in ranges}
    of_ranks = [
        [
            of_range[lo, lo + width]
            for lo, width in zip(entries.home.tolist(), entries.width.tolist())
        ]
        for entries in row_split
    ]
    columns = GroupColumns(np.ascontiguousarray(ends - homes), np.ascontiguousarray(homes))
    return columns, of_ranks
