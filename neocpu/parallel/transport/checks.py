"""Do the arrays and counts of a call belong together? Checked before anything is sent."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neocpu.core.types import Elements

Counts = NDArray[np.int64]


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
