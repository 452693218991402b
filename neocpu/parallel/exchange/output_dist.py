"""How do pooled vectors come home, and their gradients go back to the shards?

output_dist    whole: f32[B, C]  --alltoallv-->        columns of E[b]
               row-split: fp64 words, by a route, rounded at home    (routed_words.py)
gradients      columns of dE[b] --alltoallv--> f32[B, C] of my entries

Finished rows and gradients may travel encoded (`wires.py`): packing encodes and unpacking decodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from neocpu.core.types import Doubles, Elements, Floats
from neocpu.kernels.exchange.blocks import copy_blocks
from neocpu.parallel.exchange.shapes import Shape
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.exchange.wires import WholeJobs, Wire, reversed_jobs
from neocpu.parallel.sharding.entries import RankEntries
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.started import Started, Steps
from neocpu.tables.embedding.lookups import ExtraWords

if TYPE_CHECKING:
    from neocpu.parallel.exchange.routed_words import ArrivedWords, RoutedWords
    from neocpu.parallel.exchange.shipment import Spill


class PooledRows(NamedTuple):
    """Pooled rows of my entries, for all samples of the batch.

    whole : f32[B, C], finished, of `RankEntries.whole` side by side.
    words : f64[B, C'], first words of the sums of `RankEntries.row_split` side by side.
    spill : the rare further words.
    """

    whole: Floats
    words: Doubles
    spill: "Spill"


class ShardGradients(NamedTuple):
    """Gradients of my entries side by side, for all samples of the batch: f32[B, C] of
    `RankEntries.whole`, f32[B, C'] of `RankEntries.row_split`.
    """

    whole: Floats
    row_split: Floats


@dataclass
class Arrival:
    """What came home: finished rows, maybe encoded; words of row-split tables."""

    rows: Elements
    words: "ArrivedWords | None" = None


class OutputDist:
    """The output distribution of one rank, and its transpose.

    ranks : entries of all ranks (`entries.entries_of_ranks`).
    """

    def __init__(self, env: ShardingEnv, ranks: Sequence[RankEntries]) -> None:
        comm = env.comm
        self.comm = comm
        self.wires = env.wire_set
        self.ranks = ranks
        self.my_entries = ranks[comm.rank]
        self._buffers = Buffers()
        # of any rank: all of them take part in an exchange, or none
        self._pooled = any(len(entries.whole) for entries in ranks)
        self.routed: RoutedWords | None = None
        if any(len(entries.row_split) for entries in ranks):
            self.routed = self._routed_words(env)

    def _routed_words(self, env: ShardingEnv) -> "RoutedWords":
        """The half of row-split tables."""
        from neocpu.parallel.exchange.routed_words import RoutedWords

        return RoutedWords(env, self.ranks, self._buffers)

    def start_output(self, shape: Shape, pooled: PooledRows) -> "Output":
        """Send pooled rows home; they belong to the exchange until `Output.finish`."""
        return Output(self, shape, Started(self._output(shape, pooled), self.comm.stream))

    def _output(self, shape: Shape, pooled: PooledRows) -> Steps[Arrival]:
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
        if self.routed is not None:
            arrival.words = yield from self.routed.ship(shape, pooled.words, pooled.spill)
        if request is not None:
            yield request
        return arrival

    def spill(self, shape: Shape, extras: ExtraWords, first_entry: int, spill: "Spill") -> None:
        """Address further words of row-split entries, as `RoutedWords.spill`."""
        if self.routed is not None:
            self.routed.spill(shape, extras, first_entry, spill)

    def start_gradients(self, shape: Shape, gradient: Floats) -> Started[ShardGradients]:
        """Send the columns of dE f32[b, columns of E] to the shards of my entries' tables."""
        return Started(self._gradients(shape, gradient), self.comm.stream)

    def _gradients(self, shape: Shape, gradient: Floats) -> Steps[ShardGradients]:
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
        if self.routed is not None:
            row_split = yield from self.routed.gradients(shape, gradient)
        # waited for last: the row-split ones have taken their route meanwhile
        if self._pooled:
            yield request
            if wire:
                wire.decode(arriving, whole, reversed_jobs(jobs.rows))
        return ShardGradients(whole, row_split)

    def _whole_jobs(self, shape: Shape, wire: Wire) -> WholeJobs:
        """Those of a batch size, computed once."""
        if wire not in shape.wired:
            shape.wired[wire] = WholeJobs(wire, self.ranks, shape.me, shape.cuts, shape.columns)
        return shape.wired[wire]


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
        if owner.routed is not None and arrival.words is not None:
            owner.routed.combine(shape, arrival.words, out)
