"""Where do messages live between steps? In named arrays that only grow, so that a step touches no
fresh memory. And do the arrays and counts of a call belong together? That is checked before
anything is sent.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neocpu.core.types import Elements
from neocpu.tables.storage.arena import LINE

Scalar = TypeVar("Scalar", bound=np.generic)
Counts = NDArray[np.int64]


def in_lines(size: int, dtype: type[Scalar] | np.dtype[Scalar]) -> NDArray[Scalar]:
    """Uninitialised flat array that begins with a cache line: large outputs of lookups are then
    written past the caches.
    """
    array = np.empty(size + LINE, dtype)
    start = -array.ctypes.data % LINE // array.itemsize
    return array[start : start + size]


class Buffers:
    """Scratch arrays by name. A second `take` of a name hands out the same memory again."""

    def __init__(self) -> None:
        self._arrays: dict[str, Elements] = {}

    def take(self, name: str, size: int, dtype: type[Scalar] | np.dtype[Scalar]) -> NDArray[Scalar]:
        """Uninitialised flat array of `size` elements; valid until `name` is taken again."""
        array = self._arrays.get(name)
        if array is None or array.size < size or array.dtype != dtype:
            # sizes of messages differ a little from batch to batch: with some room they soon fit
            array = self._arrays[name] = in_lines(size + size // 8, dtype)
        return array[:size]

    def matrix(
        self, name: str, rows: int, columns: int, dtype: type[Scalar] | np.dtype[Scalar]
    ) -> NDArray[Scalar]:
        """Uninitialised C-contiguous array [rows, columns]; valid until `name` is taken again."""
        return self.take(name, rows * columns, dtype).reshape(rows, columns)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(array.nbytes for array in self._arrays.values())


def as_bytes(array: Elements) -> NDArray[np.uint8]:
    """A contiguous 1-D array as the bytes that it is."""
    return array.view(np.uint8) if array.size else np.empty(0, np.uint8)


def check_exchange(
    ranks: int,
    send: Elements,
    send_counts: ArrayLike,
    recv: Elements,
    recv_counts: ArrayLike,
) -> tuple[Counts, Counts]:
    """The counts of an alltoallv as i64[ranks] each.

    Raises ValueError where they do not describe `send` and `recv`, 1-D arrays of one dtype.
    """
    sends = np.asarray(send_counts, np.int64)
    recvs = np.asarray(recv_counts, np.int64)
    _check(ranks, send, sends, "send")
    _check(ranks, recv, recvs, "recv")
    # messages are bytes to MPI: nobody would notice numbers that are read as others
    if send.dtype != recv.dtype:
        raise ValueError(f"alltoallv sends {send.dtype} but receives {recv.dtype}")
    return sends, recvs


def check_gather(rank: int, send: Elements, recv: Elements, counts: ArrayLike) -> Counts:
    """The counts of an allgatherv as i64[ranks].

    Raises ValueError where they do not describe `recv`, or `send` is not what this rank announced.
    """
    sizes = np.asarray(counts, np.int64)
    _check(sizes.size, recv, sizes, "recv")
    if (
        send.dtype != recv.dtype
        or send.ndim != 1
        or not send.flags.c_contiguous
        or send.size != sizes[rank]
    ):
        raise ValueError(
            f"allgatherv: rank {rank} announced {sizes[rank]} {recv.dtype}, "
            f"but sends {send.dtype}{send.shape}"
        )
    return sizes


def _check(ranks: int, array: Elements, counts: Counts, what: str) -> None:
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{what} must be a contiguous 1-D array, not {array.dtype}{array.shape}")
    # a negative count would turn up as the smallest
    if counts.shape != (ranks,) or int(counts.sum()) != array.size or (ranks and counts.min() < 0):
        raise ValueError(
            f"{what}_counts {counts.tolist()} do not describe {array.size} elements for "
            f"{ranks} rank(s)"
        )
