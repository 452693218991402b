"""Where do rows live in memory? In regions of one lazily committed mapping.

With NEOCPU_GUARD_PAGES=1 every region ends at a page that nobody may touch, so that an index beyond
a table ends the process there and then, instead of reading the rows of the next one: a check for
those who change kernels.
"""

import ctypes
import mmap
import os
import sys
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from neocpu.core.cores import ADDRESS_LIMIT
from neocpu.core.errors import TrainingError
from neocpu.core.types import Bytes, Elements

HUGE = 2 << 20  # bytes of a huge page
# Promise no memory for rows that may never be touched (the constant is new in Python 3.13).
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
LINE = 64  # bytes of a cache line: regions begin on one
GUARDED = os.environ.get("NEOCPU_GUARD_PAGES", "0") not in ("", "0")
_PAGE = mmap.PAGESIZE


class LastingMemory(Protocol):
    """Memory that others will find when this process is no more."""

    def take(self, size: int) -> Bytes:
        """So many bytes, zeros on whole pages; once."""

    def close(self) -> None:
        """The process ends: they need not be found."""


class Arena:
    """One anonymous mapping with regions cut from it; a page takes memory once it is touched.

    budget : bytes it may hold (0: no limit).
    huge : request huge pages, which spare the processor most page walks; then memory is taken two
        mebibytes at a time.
    lasting : where the bytes are taken from instead; no huge pages then.
    """

    def __init__(
        self, size: int, budget: int = 0, huge: bool = True, lasting: LastingMemory | None = None
    ) -> None:
        # refused now: without reserved memory the system would find out while the run goes on
        if budget and size > budget:
            raise TrainingError(
                f"the tables of this rank take {size} bytes, but its memory budget is {budget}; "
                "raise parallel.memory, use more ranks, or shard the largest table "
                "(parallel.plan=row_wise)"
            )
        self.size = size
        self._used = 0
        if lasting is not None:
            self._map: mmap.mmap | Bytes = lasting.take(max(size, 1) + LINE)
            return
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
            # an empty map is an error, and a rank may have no rows
            self._map = mmap.mmap(-1, max(size, 1) + LINE, flags=flags)
        except OSError as error:
            raise TrainingError(
                f"cannot map {size} bytes for tables ({error.strerror}); use more hosts, smaller "
                f"tables, or a higher limit on addresses ({ADDRESS_LIMIT})"
            ) from error
        # small arenas would only waste the rest of their last huge page
        if huge and size >= 4 * HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)

    @staticmethod
    def space(count: int, dtype: DTypeLike) -> int:
        """Bytes that a region of `count` elements takes."""
        size = -(-count * np.dtype(dtype).itemsize // LINE) * LINE
        # whole pages and one more: only pages can be forbidden
        return (-(-size // _PAGE) + 1) * _PAGE if GUARDED else size

    def take(self, count: int, dtype: DTypeLike) -> Elements:
        """The next region: `count` zeros, aligned to a cache line."""
        start = self._used
        self._used += self.space(count, dtype)
        if GUARDED:
            start = self._guard(count * np.dtype(dtype).itemsize)
        return np.frombuffer(self._map, dtype, count, start)

    def _guard(self, size: int) -> int:
        """Forbid the last page of the newest region; returns where its `size` bytes begin.

        They end right before that page, but for the rest of a cache line.
        """
        guard = self._used - _PAGE
        address = np.frombuffer(self._map, np.uint8).ctypes.data + guard
        # Python's mmap cannot take rights away from a part of a map
        if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), _PAGE, 0):
            raise OSError(ctypes.get_errno(), "a page cannot be guarded")
        return guard - -(-size // LINE) * LINE
