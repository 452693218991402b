"""How is a column of a dataset file read, and known to be as it was written? Block by block.

A column without compression is mapped; a compressed one is decompressed by blocks of 4,096 entries,
of which the latest are kept. The CRC-32 of a block is verified when it is first touched.
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Elements
from neocpu.ingest.dataset_layout import BLOCK, CRC, crc32_of
from neocpu.tables.hdf5.door import Array, File

KEPT_BLOCKS = 40  # decompressed blocks kept per column: two windows of 16, and some to spare


class Column:
    """An array of a dataset file, read by entries of its first axis.

    Attributes: `dtype`, `shape`; `checked`, whether it has checksums.

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
        if self.checked:
            # One word in 4,096 entries: read at once, compared only when a block is touched.
            self._checksums = file.array(name, "uint32", (blocks,)).read()
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
        if crc32_of(entries) != self._checksums[block]:
            raise self._file.damaged(
                f"block {block:,} of /{self.name}, entries {block * BLOCK:,} to "
                f"{min((block + 1) * BLOCK, self.shape[0]) - 1:,}, has other bytes than were "
                "written"
            )
        self._verified[block] = True

    def read(self, first: int, end: int) -> Elements:
        """Entries [first, end); their blocks must have been verified."""
        raise NotImplementedError

    def gather(self, indices: NDArray[np.int64]) -> Elements:
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

    def gather(self, indices: NDArray[np.int64]) -> Elements:
        """A copy of the entries at indices i64[n]."""
        # Indexing by an array copies, so nothing that is handed on is a view of the mapped file.
        entries: Elements = self._entries[indices]
        return entries


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

    def gather(self, indices: NDArray[np.int64]) -> Elements:
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
