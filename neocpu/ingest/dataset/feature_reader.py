"""Where are the bags of one feature in one file, and are they what was written?

Their lengths are verified by blocks of 4,096 samples against `block_offsets`, before anything is
made of a length that they say.
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from neocpu.ingest.dataset.columns import KEPT_BLOCKS, Column
from neocpu.ingest.dataset_layout import BLOCK, BagColumn
from neocpu.tables.hdf5.door import File


class FeatureReader:
    """The columns of one feature in one file.

    block_offsets : int64[ceil(samples / 4096) + 1], checked, of a ragged feature.
    """

    def __init__(
        self,
        file: File,
        hotness: int,
        columns: dict[str, Column],
        block_offsets: NDArray[np.int64] | None,
    ) -> None:
        self.hotness = hotness
        self.codes = columns["codes"]
        self._file = file
        self._weights = columns.get("weights")
        self._lengths = columns.get("lengths")
        self._offsets = block_offsets
        self._starts: OrderedDict[int, NDArray[np.int64]] = OrderedDict()

    @property
    def checked(self) -> bool:
        """Whether there is anything to verify."""
        return self.hotness == 0 or self.codes.checked

    def verify(self, block: int, samples: int) -> None:
        """Verify the bags of a block of the file's `samples`. Raises DataError."""
        first = block * BLOCK
        end = min(first + BLOCK, samples)
        if self._offsets is not None:
            self._lengths_of(block)
            first, end = self._offsets[block : block + 2].tolist()
        self.codes.verify(first, end)
        if self._weights is not None:
            self._weights.verify(first, end)

    def _lengths_of(self, block: int) -> NDArray[np.int32]:
        """Lengths of a block, verified: they lead from its first code to that of the next one."""
        assert self._lengths is not None and self._offsets is not None
        first = block * BLOCK
        self._lengths.verify(first, min(first + BLOCK, self._lengths.shape[0]))
        lengths = self._lengths.read(first, min(first + BLOCK, self._lengths.shape[0]))
        total = int(lengths.sum(dtype=np.int64))
        expected = int(self._offsets[block + 1] - self._offsets[block])
        least = int(lengths.min()) if lengths.size else 0
        # Before anything is allocated for the bags: a damaged length could ask for any amount of
        # memory.
        if least < 0 or total != expected:
            raise self._file.damaged(
                f"block {block:,} of /{self._lengths.name} has {total:,} codes, the shortest bag "
                f"{least:,}; block_offsets says {expected:,} codes"
            )
        return lengths

    def _starts_of(
        self, samples: NDArray[np.int64], blocks: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """First code of each sample: its block's offset plus the lengths before it in the block."""
        assert self._offsets is not None
        starts = np.empty(samples.size, np.int64)
        block_of = samples // BLOCK
        for block in blocks.tolist():
            if block not in self._starts:
                lengths = self._lengths_of(block)
                self._starts[block] = (
                    self._offsets[block] + np.cumsum(lengths, dtype=np.int64) - lengths
                )
                # As for decompressed blocks: those of two windows of shuffled samples, and some to
                # spare.
                if len(self._starts) > KEPT_BLOCKS:
                    self._starts.popitem(last=False)
            positions = np.flatnonzero(block_of == block)
            starts[positions] = self._starts[block][samples[positions] - block * BLOCK]
        return starts

    def lengths(self, first: int, end: int) -> NDArray[np.int32]:
        """Bag lengths of samples [first, end), verified."""
        if self.hotness:
            return np.full(end - first, self.hotness, np.int32)
        blocks = range(first // BLOCK, -(-end // BLOCK))
        lengths = np.concatenate([self._lengths_of(block) for block in blocks])
        return lengths[first - blocks.start * BLOCK :][: end - first]

    def take(self, samples: NDArray[np.int64], blocks: NDArray[np.int64]) -> BagColumn:
        """Bags of samples i64[n], in that order, which are in these blocks, verified."""
        indices = samples
        lengths = None
        if self._lengths is not None:
            starts = self._starts_of(samples, blocks)
            lengths = self._lengths.gather(samples)
            indices = starts_to_indices(starts, lengths)
        codes = self.codes.gather(indices).reshape(-1)
        weights = None if self._weights is None else self._weights.gather(indices).reshape(-1)
        return BagColumn(codes, lengths, weights)


def starts_to_indices(starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """Positions of all codes of bags that begin at `starts`, one bag after the other."""
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if ends.size else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)
