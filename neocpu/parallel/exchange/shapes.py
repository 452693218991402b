"""How many bytes go where for a batch of this size? Everything that entries and batch size decide,
worked out once.

A training run has one batch size and perhaps a shorter last batch; a step then only looks counts
and jobs up. Blocks are C-contiguous; `counts[q]` speaks of rank q, in elements; samples of rank q
are [cuts[q], cuts[q+1]).
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Floats, Ints
from neocpu.kernels.exchange.bucketize import lengths_to_offsets
from neocpu.parallel.exchange.wires import (
    BlockJob,
    WholeJobs,
    Wire,
    job_array,
    reversed_jobs,
    run_jobs,
)
from neocpu.parallel.sharding.entries import ByClass, RankEntries, RoutedEntries
from neocpu.tables.embedding.lookups import Lookups


class WordSources(NamedTuple):
    """Where words of groups stand, as of `kernels.numbers.rounding.WordParts`: first i64[G+1],
    source and stride i64[J].
    """

    first: Ints
    source: Ints
    stride: Ints


class Shape:
    """Counts, offsets and copy jobs of one rank's exchanges for one batch size.

    heads : i64[W, W] [sender, receiver], numbers at the head of messages of lengths; None: one, the
    status.
    """

    def __init__(
        self,
        ranks: Sequence[RankEntries],
        me: int,
        cuts: Ints,
        columns: int,
        heads: Ints | None = None,
    ) -> None:
        self.ranks = ranks
        self.me = me
        self.cuts = cuts
        self.columns = columns
        self.entries = ranks[me]
        self.batch = int(cuts[-1])
        self.sizes = np.diff(cuts)
        self.samples = int(self.sizes[me])
        keys = np.array([len(r.travel) for r in ranks], np.int64)
        # lengths: one status number, other numbers of the head, then [K_q, b]
        if heads is None:
            heads = np.ones((len(ranks), len(ranks)), np.int64)
        self.head_sends = heads[me]
        self.head_recvs = heads[:, me]
        self.length_sends = self.head_sends + keys * self.samples
        self.length_recvs = self.head_recvs + keys[me] * self.sizes
        self.send_heads = np.cumsum(self.length_sends) - self.length_sends
        self.recv_heads = np.cumsum(self.length_recvs) - self.length_recvs
        # entries and batch size tell the counts of all ranks: two-level exchanges need not ask
        self.length_table = heads + np.outer(self.sizes, keys)  # [sender, receiver]
        self.entry_cuts = np.concatenate([np.zeros(1, np.int64), np.cumsum(keys)])
        # of `combine_sources`, once a route has brought the first
        self.sources: WordSources | None = None
        self.wired: dict[Wire, WholeJobs] = {}
        # [K, W+1]: first bag of (entry, rank)
        self._bounds = np.arange(keys[me])[:, None] * self.batch + cuts

    # ---- lookups ----

    def pack_lengths(
        self,
        lengths: NDArray[np.int32] | None,
        send: NDArray[np.int32],
        notes: Sequence[NDArray[np.int32]] | None = None,
    ) -> None:
        """Lengths of bags [entry, my sample] for all ranks -> messages; None refuses the batch.

        notes : for each rank, the numbers of its head after the status.
        """
        if lengths is None:
            # messages are as long as receivers expect; of this one they read the status only
            send[:] = 1
            return
        send[self.send_heads] = 0
        starts = self.send_heads + self.head_sends
        for q, start in enumerate(starts.tolist()):
            lo = self.entry_cuts[q] * self.samples
            hi = self.entry_cuts[q + 1] * self.samples
            send[start : start + hi - lo] = lengths[lo:hi]
            if notes is not None:
                send[self.send_heads[q] + 1 : start] = notes[q]

    def notes(self, recv: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        """Numbers of the heads after the status, by rank."""
        ends = self.recv_heads + self.head_recvs
        return [recv[head + 1 : end] for head, end in zip(self.recv_heads.tolist(), ends.tolist())]

    def unpack_lengths(self, recv: NDArray[np.int32], offsets: Ints) -> None:
        """Messages of lengths -> offsets i64[K*B + 1] of the bags [entry, sample of the batch]."""
        lengths = np.empty((len(self.entries.travel), self.batch), np.int32)
        for q, head in enumerate(self.recv_heads.tolist()):
            block = recv[head + self.head_recvs[q] : head + self.length_recvs[q]]
            lengths[:, self.cuts[q] : self.cuts[q + 1]] = block.reshape(len(lengths), self.sizes[q])
        lengths_to_offsets(lengths.reshape(-1), offsets)

    def run_starts(self, offsets: Ints) -> Ints:
        """First lookup of each (entry, rank), and the end: i64[K, W+1]."""
        return offsets[self._bounds]

    def permute_jobs(self, offsets: Ints) -> tuple[Ints, Ints]:
        """(lookups from each rank i64[W], jobs that copy [rank, entry] runs of lookups to [entry,
        rank]).
        """
        starts = self.run_starts(offsets)
        runs = np.diff(starts, axis=1)
        # runs arrive rank by rank
        sent = np.cumsum(runs.T.reshape(-1)).reshape(runs.T.shape).T - runs
        jobs = run_jobs(sent.reshape(-1), starts[:, :-1].reshape(-1), runs.reshape(-1))
        return runs.sum(axis=0), jobs

    def classes(self, offsets: Ints, rows: Ints, weights: Floats) -> ByClass[Lookups | None]:
        """Lookups of each class of my entries."""
        lookups: list[Lookups | None] = []
        for span in self.entries.spans:
            lo, hi = span.start, span.stop
            empty = lo == hi
            lookups.append(
                None if empty else lookups_between(offsets, rows, weights, lo, hi, self.batch)
            )
        return ByClass(*lookups)

    # ---- pooled rows and their gradients ----

    @cached_property
    def whole_counts(self) -> tuple[Ints, Ints]:
        """Elements of finished rows: (sent to, received from) each rank."""
        widths = np.array([r.whole.columns for r in self.ranks], np.int64)
        return self.sizes * widths[self.me], self.samples * widths

    @cached_property
    def whole_table(self) -> Ints:
        """Elements of finished rows by sender and receiver: i64[W, W]."""
        return np.outer([r.whole.columns for r in self.ranks], self.sizes)

    @cached_property
    def scatter_jobs(self) -> Ints:
        """Received finished rows [b, C_q], rank after rank -> columns of E[b, columns]."""
        return self._jobs([r.whole for r in self.ranks])

    @cached_property
    def gather_jobs(self) -> Ints:
        """Columns of dE[b, columns] -> their gradients [b, C_q], rank after rank."""
        return reversed_jobs(self.scatter_jobs)

    def _jobs(self, blocks: Sequence[RoutedEntries]) -> Ints:
        jobs: list[BlockJob] = []
        base = 0
        for entries in blocks:
            for home, column, width in zip(
                entries.home.tolist(), entries.column.tolist(), entries.width.tolist()
            ):
                last = jobs[-1] if jobs else None
                # neighbours here and there: one job
                if last and column > 0 and last.target + last.width == home:
                    jobs[-1] = last._replace(width=last.width + width)
                else:
                    source = base + column
                    jobs.append(
                        BlockJob(source, entries.columns, home, self.columns, self.samples, width)
                    )
            base += self.samples * entries.columns
        return job_array(jobs)

    def combine_sources(
        self, arrived: Sequence[Sequence[int]], widths: Sequence[int]
    ) -> WordSources:
        """Where the words of each group stand in blocks [b, groups], one after the other."""
        blocks: list[list[tuple[int, int]]] = [[] for _ in widths]
        base = 0
        for groups in arrived:
            stride = sum(widths[g] for g in groups)
            at = 0
            for g in groups:
                blocks[g].append((base + at, stride))
                at += widths[g]
            base += self.samples * stride
        starts = np.concatenate(
            [np.zeros(1, np.int64), np.cumsum([len(f) for f in blocks], dtype=np.int64)]
        )
        flat = np.array([pair for f in blocks for pair in f], np.int64).reshape(-1, 2)
        source, strides = np.ascontiguousarray(flat.T)
        return WordSources(starts, source, strides)


def lookups_between(
    offsets: Ints, rows: Ints, weights: Floats, lo: int, hi: int, samples: int
) -> Lookups:
    """Lookups of entries [lo, hi) among those of all entries, as views where possible."""
    cuts = offsets[lo * samples : hi * samples + 1]
    start = int(cuts[0])
    end = int(cuts[-1])
    return Lookups(
        cuts - start if start else cuts,
        rows[start:end],
        weights[start:end] if weights.size else weights,
        samples,
    )
