"""How do records get out of a file and into it without HDF5?

By kernels over a map of the whole file, or by read calls. From the page cache a kernel copies
records at the speed of memory. Pages outside it would stop its threads one by one, so when rows
are cold (a sample says so) the system is asked to read all their pages first: the device gets all
requests at once, and no thread waits until it copies. Without a map, or on request, a few threads
read with `preadv` instead; they run no kernels. Records are written through the map too; cold ones
that lie side by side are written by write calls, which need not read a page first.
"""

import contextlib
import mmap
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Bytes, Ints
from neocpu.kernels.tiers import row_records
from neocpu.tables.hdf5.disk import put_bytes, read_into
from neocpu.tables.storage.device import Device
from neocpu.tables.storage.extents import Extents
from neocpu.tables.storage.metadata_check import PAGE
from neocpu.tables.storage.row_log import runs

SAMPLE = 16  # records of which it is asked whether they are in the page cache


class Access(NamedTuple):
    """How records move between a file and memory.

    reads : "mapped", by kernels over a map of the file, or "threads", by read calls.
    mapped : whether the file may be mapped at all; if not, writes are calls too.
    threads : of the read calls.
    """

    reads: str = "mapped"
    mapped: bool = True
    threads: int = 16


MAPPED = Access()


class RawFile:
    """Reads and writes of an open file by place.

    Attributes: handle, and counters of records read and written and their bytes.
    """

    def __init__(self, handle: int, writable: bool, access: Access, device: Device) -> None:
        self.handle = handle
        self.device = device
        self._writable = writable
        self._reads = access.reads if access.mapped else "threads"
        self._mapped = access.mapped
        self._threads = access.threads
        self._pool: ThreadPoolExecutor | None = None
        self._map: mmap.mmap | None = None
        self._swap = threading.Lock()
        self._bytes: Bytes = np.zeros(0, np.uint8)
        self.reads = 0
        self.writes = 0
        self.bytes_read = 0
        self.bytes_written = 0
        with contextlib.suppress(AttributeError, OSError):
            # rows are looked up at random: read-ahead would fetch neighbours that nobody asks for
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        self.remap()

    def remap(self) -> None:
        """Map the file anew after it has grown; without a read in progress, mapped pages stay."""
        if not self._mapped:
            return
        with self._swap:
            self._bytes = np.zeros(0, np.uint8)
            try:
                if self._map is None:
                    raise BufferError
                # keeps the pages that are mapped; refused while a read still looks into them
                self._map.resize(os.fstat(self.handle).st_size)
            except (BufferError, SystemError, OSError, ValueError):
                self._map = mmap.mmap(
                    # else NumPy's array would be read-only, which is another type to Numba
                    self.handle,
                    0,
                    access=mmap.ACCESS_WRITE if self._writable else mmap.ACCESS_COPY,
                )
                with contextlib.suppress(AttributeError, OSError):
                    self._map.madvise(mmap.MADV_RANDOM)
            self._bytes = np.frombuffer(self._map, np.uint8)

    def _mapped_bytes(self) -> Bytes:
        """The current map; it stays valid as long as it is referenced."""
        with self._swap:
            return self._bytes

    def get(self, extents: Extents, start: int, count: int) -> bytes:
        """Bytes [start, start + count) of a dataset. Raises OSError if the file ends earlier."""
        content = bytearray(count)
        view = memoryview(content)
        for at, size in _pieces(extents, start, count):
            _fill(self.handle, view[:size], at)
            view = view[size:]
        return bytes(content)

    def put(self, extents: Extents, start: int, data: bytes | memoryview) -> None:
        """Write bytes into a dataset, from byte `start` of it on."""
        data = memoryview(data)
        for at, size in _pieces(extents, start, len(data)):
            self.put_at(at, data[:size])
            data = data[size:]

    def put_at(self, at: int, data: bytes | memoryview) -> None:
        """Write bytes into the file, from byte `at` on."""
        put_bytes(self.handle, data, at)

    def gather(self, extents: Extents, slots: Ints, out: Bytes) -> None:
        """Read the first `size` bytes of the records of slots i64[n] into out u8[n, size].

        `out` is contiguous; where a slot is -1, it stays as it is.
        """
        begun = self.device.begin()
        count = int(np.count_nonzero(slots >= 0))
        if count and self._reads == "threads":
            self._read(extents, slots, out)
        elif count:
            present = slots if count == slots.size else slots[slots >= 0]
            if self._cold(extents, present):
                self._prefetch(extents, present)
            row_records.gather_records(
                self._mapped_bytes(),
                slots,
                extents.origin,
                extents.per,
                extents.stride,
                out.shape[1],
                out.reshape(-1),
            )
        self.reads += count
        self.bytes_read += count * out.shape[1]
        self.device.pay(begun, count, count * out.shape[1])

    def _cold(self, extents: Extents, slots: Ints) -> bool:
        """Whether more than an eighth of a sample of these records is not in the page cache.

        False where the system cannot say.
        """
        # a few tell: to ask for all would cost what reading them costs
        sample = extents.offsets(slots[:: max(1, slots.size // SAMPLE)]).tolist()
        byte = [bytearray(1)]
        cold = 0
        try:
            for at in sample:
                try:
                    # fails with EAGAIN instead of waiting for the device
                    os.preadv(self.handle, byte, at, os.RWF_NOWAIT)
                except BlockingIOError:
                    cold += 1
        except (AttributeError, OSError):  # a system or file system that cannot say
            return False
        return 8 * cold > len(sample)

    def _prefetch(self, extents: Extents, slots: Ints) -> None:
        """Have the system read the pages of these records, all at once."""
        first = extents.offsets(slots)
        # a record may lie across two pages
        pages = np.unique(np.concatenate([first, first + extents.stride - 1]) // PAGE)
        for page, count in runs(pages).tolist():
            os.posix_fadvise(self.handle, page * PAGE, count * PAGE, os.POSIX_FADV_WILLNEED)

    def _read(self, extents: Extents, slots: Ints, out: Bytes) -> None:
        """As `gather`, by read calls of several threads, in the order of the file."""
        size = out.shape[1]
        present = np.flatnonzero(slots >= 0)
        offsets = extents.offsets(slots[present])
        order = np.argsort(offsets, kind="stable")
        at = offsets[order].tolist()
        to = (present[order] * size).tolist()
        view = out.reshape(-1).data

        def read_part(low: int, high: int) -> None:
            for start, begin in zip(at[low:high], to[low:high]):
                _fill(self.handle, view[begin : begin + size], start)

        parts = min(self._threads, len(at))
        ends = [len(at) * i // parts for i in range(parts + 1)]
        with self._swap:
            self._pool = self._pool or ThreadPoolExecutor(self._threads, "neocpu-rows")
        for job in [self._pool.submit(read_part, *ends[i : i + 2]) for i in range(parts)]:
            job.result()

    def scatter(self, extents: Extents, slots: Ints, records: Bytes) -> None:
        """Write records u8[n, size], contiguous, into distinct slots i64[n]."""
        begun = self.device.begin()
        n, size = records.shape
        if not n:
            return
        # neighbours within one extent are neighbours in the file
        starts = np.flatnonzero((np.diff(slots, prepend=-2) != 1) | (slots % extents.per == 0))
        ends = np.append(starts[1:], n)
        run_count = starts.size
        through_map = np.zeros(n, np.bool_)
        cold = not self._mapped or self._cold(extents, slots)
        if self._mapped:
            # A write call pays off for cold runs of at least a page, which it need not read first.
            run_through_map = ((ends - starts) * extents.stride < PAGE) | (not cold)
            through_map = np.repeat(run_through_map, ends - starts)
            starts = starts[~run_through_map]
            ends = ends[~run_through_map]
        self._put_runs(extents, slots, records, starts, ends)
        if through_map.any():
            if cold:
                self._prefetch(extents, slots[through_map])
            row_records.scatter_records(
                records.reshape(-1),
                np.where(through_map, slots, -1),
                extents.origin,
                extents.per,
                extents.stride,
                size,
                self._mapped_bytes(),
            )
        self.writes += n
        self.bytes_written += n * size
        self.device.pay(begun, run_count, n * size)

    def _put_runs(
        self, extents: Extents, slots: Ints, records: Bytes, starts: Ints, ends: Ints
    ) -> None:
        """Write runs of records, each to consecutive slots of one extent."""
        offsets = extents.offsets(slots[starts])
        for at, low, high in zip(offsets.tolist(), starts.tolist(), ends.tolist()):
            run = records[low:high]
            if records.shape[1] < extents.stride:
                # one write for the run, gaps between records included
                padded = np.zeros((high - low, extents.stride), np.uint8)
                padded[:, : records.shape[1]] = run
                run = padded
            self.put_at(at, run.reshape(-1).data)

    def sync(self) -> None:
        """Bring everything that was written to the disk."""
        os.fsync(self.handle)

    def drop_pages(self) -> None:
        """Write back, then let the page cache forget the file, as far as the system does it."""
        self.sync()
        with contextlib.suppress(AttributeError, OSError):
            if self._map is not None:
                self._map.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(self.handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """End the threads and close the file; maps of it that are in use stay valid."""
        if self._pool is not None:
            self._pool.shutdown()
        self._bytes = np.zeros(0, np.uint8)
        self._map = None
        os.close(self.handle)


def _pieces(extents: Extents, start: int, count: int) -> Sequence[tuple[int, int]]:
    """Bytes [start, start + count) of a dataset as (first byte in the file, bytes) by extent."""
    pieces = []
    while count:
        extent, inside = divmod(start, extents.size)
        size = min(count, extents.size - inside)
        pieces.append((int(extents.origin[extent]) + inside, size))
        start = start + size
        count = count - size
    return pieces


def _fill(handle: int, view: memoryview, at: int) -> None:
    """Read until the view is full. Raises OSError."""
    if read_into(handle, view, at) < len(view):
        raise OSError("the file ends too early")
