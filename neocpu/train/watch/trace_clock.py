"""How do spans of several ranks come onto one clock? By messages to and fro, as NTP does it.

Rank 0 sends a message, rank r answers at once:

    rank 0    t0 --------------> t3       offset = t1 - (t0 + t3) / 2
    rank r           t1                   round trip = t3 - t0

Of several round trips the shortest counts: its offset is wrong by half of it at most. Clocks are
compared when a run starts and when it ends, and their offset is taken to change evenly in between.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.parallel.transport.comm import Comm
from neocpu.train.watch.exchange_times import uncounted

Clock = Callable[[], float]
# Round trips with each rank, and in all.
TRIPS = 16
MOST_TRIPS = 512


class ClockSample(NamedTuple):
    """A comparison with rank 0's clock.

    local : when, on this rank's clock. offset : seconds by which this clock is ahead of rank 0's.
    error : half of the shortest round trip.
    """

    local: float
    offset: float
    error: float


def compare_clocks(comm: Comm, clock: Clock = time.perf_counter) -> ClockSample:
    """This rank's clock against rank 0's. Collective; its messages are neither counted nor slowed
    down.
    """
    with uncounted(comm):
        # ranks are asked one after the other, so many ranks get fewer trips
        trips = max(4, min(TRIPS, MOST_TRIPS // comm.size))
        sample = ClockSample(clock(), 0.0, 0.0)
        for rank in range(1, comm.size):
            best = min((_round_trip(comm, rank, clock) for _ in range(trips)), key=_error)
            if comm.rank == rank:
                sample = best
        return sample


def _error(sample: ClockSample) -> float:
    return sample.error


def _round_trip(comm: Comm, rank: int, clock: Clock) -> ClockSample:
    """One message to `rank` and back; the sample is of use on that rank only."""
    sent = clock()
    _send(comm, 0, rank, np.zeros(1))
    arrived = clock()
    _send(comm, rank, 0, np.zeros(1))
    # rank 0 knows t3 only now, so the times take a message of their own
    times = _send(comm, 0, rank, np.array([sent, clock()]))
    trip = float(times[1] - times[0])
    return ClockSample(arrived, arrived - float(times.mean()), max(trip, 0.0) / 2)


def _send(
    comm: Comm, source: int, target: int, numbers: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The numbers of rank `source` on rank `target`; zeros on the others."""
    sends = np.zeros(comm.size, np.int64)
    recvs = np.zeros(comm.size, np.int64)
    arrived = np.zeros(numbers.size)
    out = into = np.empty(0)
    if comm.rank == source:
        sends[target] = numbers.size
        out = numbers
    if comm.rank == target:
        recvs[source] = numbers.size
        into = arrived
    comm.alltoallv(out, sends, into, recvs, what="clocks")
    return arrived


def on_clock_of_rank_0(moment: float, first: ClockSample, last: ClockSample) -> float:
    """A moment of this rank's clock on rank 0's; the offset changes evenly between two samples."""
    span = last.local - first.local
    # a run without steps has one sample
    share = (moment - first.local) / span if span > 0 else 0.0
    return moment - (first.offset + share * (last.offset - first.offset))
