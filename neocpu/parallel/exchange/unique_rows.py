"""How do equal rows that one rank asks of one shard travel once? As unique rows and positions.

A rank's lookups for one shard, of all its keys, are a segment of its message of rows
(`wire_formats.py`). The number of its unique rows, -1 where it travels as it is, stands in the
head of the message of lengths, so the receiver knows how long the rows are. What the receiver looks
up is the same, lookup by lookup.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Ints
from neocpu.kernels.exchange.distinct import UniqueScratch, pack_unique_rows, unpack_unique_rows
from neocpu.parallel.exchange.wire_formats import message_words
from neocpu.parallel.sharding.entries import RankEntries, RoutedEntries
from neocpu.parallel.transport.buffers import Buffers

Heads = NDArray[np.int32]


def segment_entries(entries: RoutedEntries) -> Ints:
    """The entries of one rank, cut where the shard changes: i64[S+1]."""
    cuts = np.flatnonzero(np.diff(entries.shard, prepend=-1, append=-1))
    return cuts.astype(np.int64) if len(entries) else np.zeros(1, np.int64)


class PackedRows(NamedTuple):
    """Messages of rows, one after the other.

    words : of each rank's message, i64[W]. distinct : unique rows of each rank's segments.
    """

    message: Ints
    words: Ints
    distinct: list[Heads]


class UniqueRows:
    """Packs and unpacks one rank's messages of rows.

    ranks : entries of all ranks. me : this rank. always : False: where it makes them shorter.
    """

    def __init__(self, ranks: Sequence[RankEntries], me: int, always: bool) -> None:
        segments = [segment_entries(entries.travel) for entries in ranks]
        self._always = always
        self._segment_cuts = segments[me]
        # segments of each rank; their first entries among those of all ranks, and the end
        self.counts = np.array([cuts.size - 1 for cuts in segments], np.int64)
        sizes = [len(entries.travel) for entries in ranks]
        entry_starts = np.cumsum([0, *sizes])
        starts = [cuts[:-1] + at for cuts, at in zip(segments, entry_starts.tolist())]
        self._entries = np.concatenate([*starts, entry_starts[-1:]])
        self._of_rank = np.append(0, np.cumsum(self.counts))
        self.segments = int(self.counts[me])  # of this rank

    def pack(self, rows: Ints, offsets: Ints, samples: int, buffers: Buffers) -> PackedRows:
        """Messages of the lookups `rows` of bags [entry of all ranks, sample], which stand at
        `offsets`.
        """
        starts = offsets[self._entries * samples]
        lookups = np.diff(starts)
        distinct = np.empty(lookups.size, np.int32)
        most = int(lookups.max(initial=0))
        total = int(starts[-1])
        # at worst all rows are unique and positions have 32 bits, two to a word, rounded up
        message = buffers.take("unique rows", total + total // 2 + lookups.size, np.int64)
        # a hash table that is half empty at least, so that probes stay short
        slots = 1 << max(2 * most - 1, 1).bit_length()
        scratch = UniqueScratch(
            buffers.take("unique slots", slots, np.int32),
            buffers.take("unique positions", most, np.int32),
        )
        size = pack_unique_rows(rows, starts, self._always, scratch, message, distinct)
        ends = np.append(0, np.cumsum(message_words(lookups, distinct.astype(np.int64))))
        words = np.diff(ends[self._of_rank])
        heads = np.split(distinct, self._of_rank[1:-1])
        return PackedRows(message[:size], words, heads)

    def words(self, distinct: Heads, runs: Ints) -> Ints:
        """Words that arrive from each rank, i64[W]; distinct i32[W, S] of my segments, runs
        i64[K, W] lookups of my entries.
        """
        ends = np.zeros((runs.shape[0] + 1, runs.shape[1]), np.int64)
        np.cumsum(runs, axis=0, out=ends[1:])
        lookups = np.diff(ends[self._segment_cuts], axis=0)
        return message_words(lookups, distinct.T.astype(np.int64)).sum(axis=0)

    def unpack(self, message: Ints, distinct: Heads, starts: Ints, rows: Ints) -> None:
        """The messages of all ranks, in the order of my entries; starts i64[K, W+1] in rows."""
        unpack_unique_rows(message, distinct, self._segment_cuts, starts, rows)
