"""How are columns of a dataset file read, and known to be as they were written? Block by block.

A column without compression is mapped; a compressed one is decompressed by blocks of 4,096 entries,
of which the latest are kept. The CRC-32 of a block is verified when it is first touched.

Lengths of the bags of a feature are verified by blocks of 4,096 samples against `block_offsets`,
before anything is made of a length that they say.
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Elements, Ints
from neocpu.ingest.dataset_layout import BLOCK, CRC, BagColumn, crc32_of
from neocpu.tables.hdf5.door import Array, File

KEPT_BLOCKS = 40  # decompressed blocks kept per column: two windows of 16, and some to spare


class Column:
    """An array of a dataset file, read by entries of its first axis.

    Attributes: `dtype`, `shape`; `checked`, whether it has checksums; `checksums`, uint32 of each
    block.

    Raises DataError if the checksums are not of its shape.
    """

    def __init__(self, file: File, array: Array) -> None:
        self._file = file
        self._array = array
        self.name = array.name
        self.dtype = array.dtype
        self.shape = array.shape
        blocks = -(-array.shape[0] // BLOCK)
        name = array.name + CRC
        self.checked = name in file
        # A sealed file was written with checksums: one without them lost them.
        if file.sealed and array.size and not self.checked:
            raise file.damaged(f"/{array.name} lacks its checksums")
        self.checksums = np.empty(0, np.uint32)
        if self.checked:
            # One word in 4,096 entries: read at once, compared only when a block is touched.
            self.checksums = file.array(name, "uint32", (blocks,)).read()
            self._verified = np.zeros(blocks, bool)

    def verify(self, first: int, end: int) -> None:
        """Compare the blocks of entries [first, end) with their checksums, each once.

        Raises DataError for a block with other bytes than were written.
        """
        if not self.checked or first >= end:
            return
        blocks = slice(first // BLOCK, -(-end // BLOCK))
        for block in np.flatnonzero(~self._verified[blocks]).tolist():
            self._check(blocks.start + block)

    def _check(self, block: int) -> None:
        self._compare(block, self.read(block * BLOCK, (block + 1) * BLOCK))

    def _compare(self, block: int, entries: Elements) -> None:
        if crc32_of(entries) != self.checksums[block]:
            raise self._file.damaged(
                f"block {block:,} of /{self.name}, entries {block * BLOCK:,} to "
                f"{min((block + 1) * BLOCK, self.shape[0]) - 1:,}, has other bytes than were "
                "written"
            )
        self._verified[block] = True

    def read(self, first: int, end: int) -> Elements:
        """Entries [first, end); their blocks must have been verified."""
        raise NotImplementedError

    def gather(self, indices: Ints) -> Elements:
        """A copy of the entries at indices i64[n]; their blocks must have been verified."""
        raise NotImplementedError


class MappedColumn(Column):
    """A column without compression."""

    def __init__(self, file: File, array: Array) -> None:
        super().__init__(file, array)
        self._entries = array.map()

    def read(self, first: int, end: int) -> Elements:
        """A view of entries [first, end)."""
        return self._entries[first:end]

    def gather(self, indices: Ints) -> Elements:
        """A copy of the entries at indices i64[n]."""
        # Indexing by an array copies, so nothing that is handed on is a view of the mapped file.
        return self._entries[indices]


class CompressedColumn(Column):
    """A column that HDF5 decompresses; a block is verified as it is decompressed."""

    def __init__(self, file: File, array: Array) -> None:
        super().__init__(file, array)
        self._kept: OrderedDict[int, Elements] = OrderedDict()

    def verify(self, first: int, end: int) -> None:
        """Nothing yet: `gather` and `read` verify what they decompress."""

    def read(self, first: int, end: int) -> Elements:
        """Entries [first, end), verified."""
        start = first // BLOCK * BLOCK
        if first < end <= start + BLOCK:
            return self._block(first // BLOCK)[first - start : end - start]
        # Several blocks are read once, in order (counting, ranges): keeping them would push out
        # those in use.
        return self._whole_blocks(start, end)[first - start : end - start]

    def _whole_blocks(self, start: int, end: int) -> Elements:
        """The blocks with entries [start, end), decompressed and verified."""
        entries = self._array.rows(start, -(-end // BLOCK) * BLOCK)
        if self.checked:
            for number, block in enumerate(range(start // BLOCK, -(-end // BLOCK))):
                if not self._verified[block]:
                    self._compare(block, entries[number * BLOCK : (number + 1) * BLOCK])
        return entries

    def gather(self, indices: Ints) -> Elements:
        """A copy of the entries at indices i64[n]."""
        entries = np.empty((indices.size, *self.shape[1:]), self.dtype)
        blocks = indices // BLOCK
        for index in np.unique(blocks).tolist():
            # Block by block, so that each is decompressed once, in whatever order the samples come.
            positions = np.flatnonzero(blocks == index)
            entries[positions] = self._block(index)[indices[positions] - index * BLOCK]
        return entries

    def _block(self, index: int) -> Elements:
        if index in self._kept:
            self._kept.move_to_end(index)
        else:
            first = index * BLOCK
            self._kept[index] = self._whole_blocks(first, first + BLOCK)
            if len(self._kept) > KEPT_BLOCKS:
                # The least recently used: windows of shuffled samples go through the file in order.
                self._kept.popitem(last=False)
        return self._kept[index]


def open_column(file: File, array: Array) -> Column:
    """The column of an array: mapped where it can be."""
    return MappedColumn(file, array) if array.mappable else CompressedColumn(file, array)


class FeatureReader:
    """The columns of one feature in one file.

    block_offsets : int64[ceil(samples / 4096) + 1], checked, of a ragged feature.
    """

    def __init__(
        self, file: File, hotness: int, columns: dict[str, Column], block_offsets: Ints | None
    ) -> None:
        self.hotness = hotness
        self.codes = columns["codes"]
        self._file = file
        self._weights = columns.get("weights")
        self._lengths = columns.get("lengths")
        self._offsets = block_offsets
        self._starts: OrderedDict[int, Ints] = OrderedDict()

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

    def _starts_of(self, samples: Ints, blocks: Ints) -> Ints:
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

    def take(self, samples: Ints, blocks: Ints) -> BagColumn:
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


def starts_to_indices(starts: Ints, lengths: NDArray[np.int32]) -> Ints:
    """Positions of all codes of bags that begin at `starts`, one bag after the other."""
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if ends.size else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)
