"""What does a route carry? The words of row-split tables, by group, and the gradients that come
back to their shards.

A group is one key's column range, which several row shards share. A block is a matrix with some
groups side by side. Routes (`routes.py`) decide where blocks go; what a block is, how one is added
to another without losing a bit, and how the lost bits get home is the same for all of them and
stands here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Elements, Ints
from neocpu.kernels.exchange.blocks import add_blocks, copy_blocks
from neocpu.kernels.numbers.rounding import FurtherWords
from neocpu.parallel.exchange.wires import BlockJob, Wire, job_array, merged_jobs, reversed_jobs
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.started import Steps

Words = NDArray[np.float64]
Groups = tuple[int, ...]


class SpilledWords(NamedTuple):
    """Further words f64[width] of a bag: of a group, and a sample counted from the first of its
    home, a rank.
    """

    home: int
    group: int
    sample: int
    words: Words


Spill = list[SpilledWords]


@dataclass(frozen=True)
class GroupLayout:
    """Who holds what and who owns which samples, for one batch size.

    held : groups of each rank's entries, in column order (a rank with two row shards of a table
        holds a group twice).
    widths, homes : of each group, its columns, and the first of them in E.
    cuts : rank d's samples are [cuts[d], cuts[d+1]).
    wire : blocks are codes; `widths` are bytes then, and `numbers` columns.
    """

    comm: Comm
    ranks_per_node: int
    held: tuple[Groups, ...]
    widths: tuple[int, ...]
    homes: tuple[int, ...]
    cuts: tuple[int, ...]
    wire: Wire | None = None
    numbers: tuple[int, ...] = ()

    @property
    def dtype(self) -> type[np.generic]:
        """Of blocks of gradients."""
        return np.uint8 if self.wire else np.float32

    def on(self, wire: Wire) -> "GroupLayout":
        """The map of blocks of codes."""
        # routes move bytes as they move numbers: only the widths of their blocks are others
        sizes = tuple(wire.bytes(width) for width in self.widths)
        return replace(self, wire=wire, widths=sizes, numbers=self.widths)

    def samples(self, rank: int) -> int:
        """Samples that a rank owns."""
        return self.cuts[rank + 1] - self.cuts[rank]

    def columns(self, groups: Groups) -> int:
        """Width of a block of these groups."""
        return sum(self.widths[g] for g in groups)

    def node(self, rank: int) -> range:
        """Ranks of the node of `rank`; the last node may be smaller."""
        first_rank = rank - rank % self.ranks_per_node
        return range(first_rank, min(first_rank + self.ranks_per_node, self.comm.size))

    def union(self, ranks: Sequence[int]) -> Groups:
        """Groups that any of these ranks holds, each once, ascending."""
        return tuple(sorted({g for rank in ranks for g in self.held[rank]}))

    def select(self, block: Elements, have: Groups, target: Elements, want: Groups) -> None:
        """Copy the groups `want` out of block [n, have] into target [n, want]."""
        if block.size and target.size:
            columns = tuple(np.cumsum([0] + [self.widths[g] for g in have]).tolist())
            jobs = _jobs(want, have, columns, self.widths, block.shape[0], block.shape[1])
            copy_blocks(block.reshape(-1), target.reshape(-1), jobs)

    def gather(self, gradient: Elements, target: Elements, want: Groups) -> None:
        """Copy or encode the groups `want` out of dE [b, columns of E] into target [b, want]."""
        if target.size and self.wire:
            homes = tuple(self.homes[g] for g in want)
            jobs = self._code_jobs(want, homes, gradient.shape[1], len(gradient))
            self.wire.encode(gradient, target, jobs)
        elif target.size:
            groups = tuple(range(len(self.widths)))
            jobs = _jobs(want, groups, self.homes, self.widths, *gradient.shape)
            copy_blocks(gradient.reshape(-1), target.reshape(-1), jobs)

    def decode(self, codes: Elements, target: Elements, groups: Groups) -> None:
        """Codes [n, groups] into numbers f32[n, columns of the groups]."""
        assert self.wire is not None
        if target.size:
            widths = [self.numbers[g] for g in groups]
            columns = tuple((np.cumsum(widths) - widths).tolist())
            jobs = self._code_jobs(groups, columns, target.shape[1], len(target))
            self.wire.decode(codes, target, reversed_jobs(jobs))

    def _code_jobs(self, groups: Groups, columns: Sequence[int], stride: int, rows: int) -> Ints:
        """Jobs from groups at `columns` of a matrix into a block of their codes."""
        assert self.wire is not None
        sizes = [self.widths[g] for g in groups]
        starts = np.cumsum([0, *sizes]).tolist()
        return merged_jobs(
            self.wire,
            [
                BlockJob(column, stride, start, starts[-1], rows, self.numbers[g])
                for column, start, g in zip(columns, starts, groups)
            ],
        )


@dataclass
class Shipment:
    """The words of one rank on their way home: `words` f64[B, columns of held[rank]], overwritten
    on the way.

    Routes append to `spill` what their additions lose.
    """

    layout: GroupLayout
    words: Words
    spill: Spill
    buffers: Buffers

    def add(
        self, block: Words, have: Groups, total: Words, want: Groups, ranks: Sequence[int]
    ) -> None:
        """total[n, want] += block[n, have] exactly; block is overwritten. Rows: the samples of
        `ranks`, in order.
        """
        if not block.size:
            return
        columns = tuple(np.cumsum([0] + [self.layout.widths[g] for g in want]).tolist())
        jobs = _jobs(have, want, columns, self.layout.widths, *total.shape)
        if not add_blocks(block.reshape(-1), total.reshape(-1), reversed_jobs(jobs)):
            return
        ends = np.cumsum([self.layout.samples(rank) for rank in ranks])
        # the kernel has left in the block what each addition lost (TwoSum)
        lost = block.reshape(total.shape[0], -1)
        at = 0
        for group in have:
            errors = lost[:, at : at + self.layout.widths[group]]
            at += self.layout.widths[group]
            for row in np.flatnonzero(errors.any(axis=1)).tolist():
                number = int(np.searchsorted(ends, row, side="right"))
                home = ranks[number]
                sample = row - int(ends[number]) + self.layout.samples(home)
                self.spill.append(SpilledWords(home, group, sample, errors[row].copy()))


# the same groups and batch sizes come in every step
@lru_cache(maxsize=1024)
def _jobs(
    wanted: Groups,
    groups: Groups,
    columns: tuple[int, ...],
    widths: tuple[int, ...],
    rows: int,
    stride: int,
) -> Ints:
    """Jobs that copy a block of groups `wanted` out of a matrix [rows, stride] with `groups` (each
    once) at `columns`.
    """
    column_of = dict(zip(groups, columns))
    width = sum(widths[g] for g in wanted)
    jobs = []
    at = 0
    for g in wanted:
        jobs.append(BlockJob(column_of[g], stride, at, width, rows, widths[g]))
        at += widths[g]
    return job_array(jobs)


def ship_further(job: Shipment) -> Steps[FurtherWords]:
    """Send spilled words to their bags' homes. Nearly always there are none, and one small exchange
    says so.
    """
    comm = job.layout.comm
    widths = job.layout.widths
    messages: list[list[float]] = [[] for _ in range(comm.size)]
    for spilled in job.spill:
        # whole numbers below 2^53 are exact in fp64
        numbers = (spilled.group, spilled.sample, *spilled.words.tolist())
        messages[spilled.home].extend(numbers)
    counts = np.array([len(message) for message in messages], np.int64)
    send = np.stack([counts, np.full(comm.size, counts.sum())], axis=1).reshape(-1)
    recv = np.empty((comm.size, 2), np.int64)
    two = np.full(comm.size, 2, np.int64)
    table = np.broadcast_to(two, (comm.size, comm.size))
    yield comm.start_alltoallv(send, two, recv.reshape(-1), two, what="further counts", table=table)
    sizes, totals = np.ascontiguousarray(recv.T)
    # every rank sees every total, so either all ranks take part in the next exchange or none
    if not totals.any():
        return FurtherWords(np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0))
    arrived = np.empty(int(sizes.sum()))
    flat = np.array([x for message in messages for x in message], np.float64)
    yield comm.start_alltoallv(flat, counts, arrived, sizes, what="further words")
    records = []
    at = 0
    samples = job.layout.samples(comm.rank)
    while at < arrived.size:
        group = int(arrived[at])
        sample = int(arrived[at + 1])
        records.append((group * samples + sample, arrived[at + 2 : at + 2 + widths[group]]))
        at += 2 + widths[group]
    # bags are looked up by ascending key; words of one bag may stand in any order, as they
    # are added exactly
    records.sort(key=lambda record: record[0])
    start = np.cumsum([0] + [words.size for _, words in records])
    joined = np.concatenate([words for _, words in records]) if records else np.empty(0)
    keys = np.array([key for key, _ in records], np.int64)
    return FurtherWords(keys, start.astype(np.int64), joined)
