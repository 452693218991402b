"""How do records get out of a file and into it without HDF5? By kernels over a map of the whole file, or by read calls.

In the page cache a kernel copies records at the speed of memory. Pages that are not there would stop its threads one by one, so
rows that are cold (a sample says so) are asked for by a few threads with `preadv`, many at a time; they run no kernels.
New records mostly lie together and are written in runs; scattered ones go through the map.
"""

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels import row_records
from neocpu.storage.hdf5 import Extents

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
SAMPLE = 16  # records that are looked at
RUN = 8  # records: shorter runs go through the map
PART = 256  # least records for a thread


@dataclass
class Device:
    """How fast may the file be? Bytes per second and operations (records, runs) per second; 0: as fast as it is."""

    bandwidth: float = 0.0
    iops: float = 0.0
    _due: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pay(self, operations: int, count: int) -> None:
        """Wait until a device of that speed would have done it."""
        if not self.bandwidth and not self.iops:
            return
        cost = max(count / self.bandwidth if self.bandwidth else 0, operations / self.iops if self.iops else 0)
        with self._lock:
            now = time.monotonic()
            self._due = max(now, self._due) + cost
            wait = self._due - now
        time.sleep(wait)


class RawFile:
    """Reads and writes of an open file by place.

    `reads`: "auto", "mapped" or "threads"; `mapped`: may it be mapped at all. Attributes: handle, and counters of records
    read and written and their bytes.
    """

    def __init__(self, handle: int, writable: bool, reads: str, mapped: bool, threads: int, device: Device) -> None:
        self.handle, self.device = handle, device
        self._writable, self._reads, self._mapped = writable, reads if mapped else "threads", mapped
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._map: mmap.mmap | None = None
        self._bytes: Bytes = np.zeros(0, np.uint8)
        self.reads = self.writes = self.bytes_read = self.bytes_written = 0
        with contextlib.suppress(AttributeError, OSError):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        self.remap()

    def remap(self) -> None:
        """The file has grown."""
        if not self._mapped:
            return
        access = mmap.ACCESS_WRITE if self._writable else mmap.ACCESS_COPY
        self._map = mmap.mmap(self.handle, 0, access=access)
        with contextlib.suppress(AttributeError, OSError):
            self._map.madvise(mmap.MADV_RANDOM)
        self._bytes = np.frombuffer(self._map, np.uint8)

    def get(self, extents: Extents, start: int, count: int) -> bytes:
        """Bytes [start, start + count) of a dataset. Raises OSError if the file ends before."""
        parts = []
        for at, size in _pieces(extents, start, count):
            while size:
                part = os.pread(self.handle, size, at)
                if not part:
                    raise OSError("the file ends too early")
                parts.append(part)
                at, size = at + len(part), size - len(part)
        return b"".join(parts)

    def put(self, extents: Extents, start: int, data: bytes | memoryview) -> None:
        """Write bytes from `start` on of a dataset."""
        data = memoryview(data)
        for at, size in _pieces(extents, start, len(data)):
            self.put_at(at, data[:size])
            data = data[size:]

    def put_at(self, at: int, data: bytes | memoryview) -> None:
        """Write bytes at a place of the file."""
        data = memoryview(data)
        while data:
            written = os.pwrite(self.handle, data, at)
            data, at = data[written:], at + written

    def gather(self, extents: Extents, slots: Ints, out: Bytes) -> None:
        """The first bytes of the records of slots, -1: left as they are; out u8[n, size], contiguous."""
        count = int(np.count_nonzero(slots >= 0))
        if count:
            if self._reads == "mapped" or (self._reads == "auto" and not self._cold(extents, slots)):
                flat = out.reshape(-1)
                row_records.gather_records(
                    self._bytes, slots, extents.origin, extents.per, extents.stride, out.shape[1], flat
                )
            else:
                self._read(extents, slots, out)
        self.reads += count
        self.bytes_read += count * out.shape[1]
        self.device.pay(count, count * out.shape[1])

    def _cold(self, extents: Extents, slots: Ints) -> bool:
        """Are more than an eighth of these records not in the page cache?"""
        if not hasattr(os, "RWF_NOWAIT"):
            return False
        sample = slots[slots >= 0][:: max(1, slots.size // SAMPLE)]
        byte, cold = [bytearray(1)], 0
        for at in _offsets(extents, sample).tolist():
            try:
                os.preadv(self.handle, byte, at, os.RWF_NOWAIT)
            except BlockingIOError:
                cold += 1
            except OSError:  # a file system that cannot say
                return False
        return 8 * cold > sample.size

    def _read(self, extents: Extents, slots: Ints, out: Bytes) -> None:
        """As `gather`, by read calls of several threads, in the order of the file."""
        size = out.shape[1]
        present = np.flatnonzero(slots >= 0)
        offsets = _offsets(extents, slots[present])
        order = np.argsort(offsets, kind="stable")
        at, to = offsets[order].tolist(), (present[order] * size).tolist()
        view = out.reshape(-1).data

        def part(low: int, high: int) -> None:
            for i in range(low, high):
                _fill(self.handle, view[to[i] : to[i] + size], at[i])

        parts = max(1, min(self._threads, len(at) // PART if self.device.iops else len(at)))
        ends = [len(at) * i // parts for i in range(parts + 1)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "neocpu-rows")
        for done in [self._pool.submit(part, *ends[i : i + 2]) for i in range(parts)]:
            done.result()

    def scatter(self, extents: Extents, slots: Ints, records: Bytes) -> None:
        """Put records u8[n, size], contiguous, into their slots, distinct."""
        n, size = records.shape
        if not n:
            return
        breaks = np.flatnonzero((np.diff(slots) != 1) | (slots[1:] % extents.per == 0)) + 1
        if self._mapped and n < RUN * (breaks.size + 1):
            flat = records.reshape(-1)
            row_records.scatter_records(flat, slots, extents.origin, extents.per, extents.stride, size, self._bytes)
        else:
            if size < extents.stride:
                padded = np.zeros((n, extents.stride), np.uint8)
                padded[:, :size] = records
                records = padded
            starts = np.concatenate([[0], breaks])
            bounds = [*starts.tolist(), n]
            for i, at in enumerate(_offsets(extents, slots[starts]).tolist()):
                self.put_at(at, records[bounds[i] : bounds[i + 1]].reshape(-1).data)
        self.writes += n
        self.bytes_written += n * size
        self.device.pay(breaks.size + 1, n * size)

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
        self._bytes, self._map = np.zeros(0, np.uint8), None
        os.close(self.handle)


def _offsets(extents: Extents, slots: Ints) -> Ints:
    return extents.origin[slots // extents.per] + slots % extents.per * extents.stride


def _pieces(extents: Extents, start: int, count: int) -> Sequence[tuple[int, int]]:
    """(place in the file, bytes) of the bytes [start, start + count) of a dataset, split where extents end."""
    pieces = []
    while count:
        extent, inside = divmod(start, extents.size)
        size = min(count, extents.size - inside)
        pieces.append((int(extents.origin[extent]) + inside, size))
        start, count = start + size, count - size
    return pieces


def _fill(handle: int, view: memoryview, at: int) -> None:
    """Read until the view is full."""
    while view:
        count = os.preadv(handle, [view], at)
        if not count:
            raise OSError("the file ends too early")
        view, at = view[count:], at + count
