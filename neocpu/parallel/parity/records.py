"""What are the rows of a rank to a parity? Records: all bytes of a row with its states, in words.

Formats and optimizers do not matter: a record is XORed as it is. A row that no step has changed is
all zeros here, though memory has its initial values: those follow from the seed, and nobody needs
to be told of them.
"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.types import Bytes, Ints
from neocpu.parallel.parity.groups import WORD, RankChunks
from neocpu.tables.embedding.shard_rows import ShardRows
from neocpu.tables.storage.lasting import Words

PIECE = 1 << 16  # records that are read at a time


class RowRecords:
    """The records of all shards of a rank; its rows are in lasting memory."""

    def __init__(self, rows: ShardRows) -> None:
        self._raw = [rows.raw(shard) for shard in range(len(rows.shards))]
        self.words = [-(-sum(part.shape[1] for part in raw) // WORD) for raw in self._raw]

    def updated(self, shard: int) -> Bytes:
        """Which rows of a shard have changed since they were made: u8[rows]."""
        return self._raw[shard][-1][:, 0]

    def read(self, shard: int, rows: Ints) -> Words:
        """Records u64[n, words] of rows i64[n]."""
        out = np.zeros((rows.size, self.words[shard] * WORD), np.uint8)
        at = 0
        # `take` has less to do than an index
        for part in self._raw[shard]:
            out[:, at : at + part.shape[1]] = np.take(part, rows, axis=0)
            at += part.shape[1]
        out[self.updated(shard)[rows] == 0] = 0
        return out.view(np.uint64)

    def write(self, shard: int, rows: Ints, records: Words) -> None:
        """Set rows i64[n] to what `read` gave. Raises IndexError for rows that are not there."""
        data = records.view(np.uint8)
        at = 0
        for part in self._raw[shard]:
            part[rows] = data[:, at : at + part.shape[1]]
            at += part.shape[1]

    def pieces(self) -> Iterator[tuple[int, Ints, Words]]:
        """(shard, rows, records) of all rows that have changed."""
        for shard in range(len(self._raw)):
            rows = np.flatnonzero(self.updated(shard))
            for first in range(0, rows.size, PIECE):
                piece = rows[first : first + PIECE]
                yield shard, piece, self.read(shard, piece)

    def chunk(self, chunks: RankChunks, number: int) -> Words:
        """A chunk of all shards, u64[chunks.starts[-1]]."""
        starts = chunks.starts
        out = np.zeros(int(starts[-1]), np.uint64)
        for shard, height in enumerate(chunks.heights.tolist()):
            part = out[starts[shard] : starts[shard + 1]].reshape(-1, self.words[shard])
            rows = np.arange(number, height, chunks.count)
            for first in range(0, rows.size, PIECE):
                piece = rows[first : first + PIECE]
                part[first : first + piece.size] = self.read(shard, piece)
        return out

    def put_chunk(self, chunks: RankChunks, number: int, words: Words) -> None:
        """Set the rows of a chunk that have changed to what `chunk` gave."""
        starts = chunks.starts
        changed_byte = [sum(part.shape[1] for part in raw) - 1 for raw in self._raw]
        for shard in range(len(self._raw)):
            part = words[starts[shard] : starts[shard + 1]].reshape(-1, self.words[shard])
            places = np.flatnonzero(part.view(np.uint8)[:, changed_byte[shard]])
            self.write(shard, places * chunks.count + number, part[places])


def checksum(shard: int, rows: Ints, records: Words) -> int:
    """A number of records that a step can carry on: modulo 2^64, of all rows the sum of their words
    times odd numbers, so that no one word can differ without it. It is linear in the words.
    """
    of_words = np.arange(1, 2 * records.shape[1], 2, dtype=np.uint64)
    of_rows = (2 * rows + 1).astype(np.uint64)
    total = ((records * of_words).sum(axis=1, dtype=np.uint64) * of_rows).sum(dtype=np.uint64)
    return int(total) * (2 * shard + 1) % 2**64
