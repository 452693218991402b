"""How do the verbs become MPI calls? Here, in the only file that imports mpi4py.

Everything travels as bytes from and into the caller's arrays: nothing is pickled, every dtype is
the same to MPI. MPI 4 has 64-bit counts and one collective call does it; an older MPI gets
point-to-point messages of at most `CHUNK` bytes instead, which both sides cut alike. Importing this
file starts MPI.
"""

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import mpi4py
import numpy as np
from numpy.typing import NDArray

from neocpu.cores import available
from neocpu.errors import EnvironmentProblem
from neocpu.parallel.comm import Comm, Counts, Request, Traffic, nodes_of

mpi4py.rc.thread_level = "serialized"  # loader threads never call MPI

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    raise EnvironmentProblem(
        f'no MPI library could be loaded ({error}); `pip install "neocpu[mpi]"` brings one, '
        "and on a cluster `module load` the site's MPI first"
    ) from error

CHUNK = 1 << 30
# Seconds that a rank without a core of its own sleeps between two looks at an exchange: at first,
# and at most for each rank that shares its core, because those want their turn in between.
FIRST_PAUSE = 20e-6
PAUSE_PER_RANK = 50e-6
LARGE_COUNTS = MPI.Get_version() >= (4, 0)
_TAG = 77


class _Started:
    """MPI requests under way, and the arrays that must live until they are done."""

    def __init__(
        self, requests: Sequence[MPI.Request], arrays: tuple[NDArray[Any], ...], pause: float
    ) -> None:
        self._requests = list(requests)
        self._arrays = arrays
        self._pause = pause

    def wait(self) -> None:
        if self._pause:
            _doze(self._requests, FIRST_PAUSE, self._pause)
        else:
            MPI.Request.Waitall(self._requests)
        self._requests = []


class MpiComm(Comm):
    """One rank of an MPI communicator.

    world : the communicator; None is a private copy of COMM_WORLD.
    ranks_per_node : nodes are runs of this many ranks; None: the real hosts (ranks that can share
        memory).
    chunked : send point-to-point messages even if MPI has 64-bit counts (None: only if it has not).
    pause : seconds that a waiting rank sleeps at most before it looks again; 0: it waits in MPI,
        which polls (None: 0 where every rank of this host has a core; a rank that polls would take
        the core of one that works).
    """

    def __init__(
        self,
        world: MPI.Comm | None = None,
        ranks_per_node: int | None = None,
        *,
        nodes: Counts | None = None,
        sent: Traffic | None = None,
        chunked: bool | None = None,
        chunk: int = CHUNK,
        pause: float | None = None,
    ) -> None:
        self._comm = MPI.COMM_WORLD.Dup() if world is None else world
        rank = self._comm.Get_rank()
        size = self._comm.Get_size()
        if nodes is None:
            nodes = nodes_of(size, ranks_per_node) if ranks_per_node else _hosts(self._comm)
        super().__init__(rank, size, nodes, sent)
        self._chunked = not LARGE_COUNTS if chunked is None else chunked
        self._chunk = chunk
        self.pause = _longest_pause(self._comm) if pause is None else pause

    def _exchange(
        self, send: NDArray[Any], send_counts: Counts, recv: NDArray[Any], recv_counts: Counts
    ) -> Request:
        out = _bytes(send)
        sends = send_counts * send.itemsize
        into = _bytes(recv)
        recvs = recv_counts * recv.itemsize
        if self._chunked:
            return self._start_messages(out, sends, np.cumsum(sends) - sends, into, recvs)
        request = self._comm.Ialltoallv(
            [out, (sends, np.cumsum(sends) - sends), MPI.BYTE],
            [into, (recvs, np.cumsum(recvs) - recvs), MPI.BYTE],
        )
        return _Started([request], (out, into, sends, recvs), self.pause)

    def _gather(self, send: NDArray[Any], recv: NDArray[Any], counts: Counts) -> None:
        out = _bytes(send)
        into = _bytes(recv)
        sizes = counts * recv.itemsize
        if self._chunked:
            sends = np.full(self.size, out.size, np.int64)
            self._start_messages(out, sends, np.zeros(self.size, np.int64), into, sizes).wait()
        else:
            request = self._comm.Iallgatherv(
                [out, out.size, MPI.BYTE], [into, (sizes, np.cumsum(sizes) - sizes), MPI.BYTE]
            )
            _Started([request], (out, into, sizes), self.pause).wait()

    def _start_messages(
        self,
        out: NDArray[np.uint8],
        sends: Counts,
        starts: Counts,
        into: NDArray[np.uint8],
        recvs: Counts,
    ) -> Request:
        """The exchange as point-to-point messages, matched by order of posting: all ranks exchange
        in one order.
        """
        requests = []
        at = np.cumsum(recvs) - recvs
        for turn in range(self.size):
            source = (self.rank - turn) % self.size
            for lo, hi in self._chunks(int(at[source]), int(recvs[source])):
                requests.append(self._comm.Irecv([into[lo:hi], hi - lo, MPI.BYTE], source, _TAG))
        for turn in range(self.size):
            target = (self.rank + turn) % self.size
            for lo, hi in self._chunks(int(starts[target]), int(sends[target])):
                requests.append(self._comm.Isend([out[lo:hi], hi - lo, MPI.BYTE], target, _TAG))
        return _Started(requests, (out, into), self.pause)

    def _chunks(self, start: int, size: int) -> Iterator[tuple[int, int]]:
        for lo in range(start, start + size, self._chunk):
            yield lo, min(lo + self._chunk, start + size)

    def barrier(self) -> None:
        """Return once every rank has called."""
        _Started([self._comm.Ibarrier()], (), self.pause).wait()

    def quiet_barrier(self) -> None:
        """Return once every rank has called; asks and sleeps in turn, so that waiting takes no core
        from workers.
        """
        _doze([self._comm.Ibarrier()], 0.0005, 0.05)

    def split(self, color: int, key: int = 0) -> Comm:
        """Comm of the ranks that gave the same color, ordered by (key, rank)."""
        group = self._comm.Split(color, key)
        place = np.array([self.rank], np.int64)
        members = np.empty(group.Get_size(), np.int64)
        group.Allgather([place, MPI.INT64_T], [members, MPI.INT64_T])
        return MpiComm(
            group,
            nodes=self.nodes[members],
            sent=self.sent,
            chunked=self._chunked,
            chunk=self._chunk,
            pause=self.pause,
        )

    def abort(self, status: int) -> None:
        """End all ranks of the job with this exit status."""
        MPI.COMM_WORLD.Abort(status)
        os._exit(status)


def _doze(requests: Sequence[MPI.Request], pause: float, longest: float) -> None:
    """Return when all requests are done; asks and sleeps in turn, in seconds, ever longer."""
    while not MPI.Request.Testall(requests):
        time.sleep(pause)
        pause = min(2 * pause, longest)


def _longest_pause(comm: MPI.Comm) -> float:
    """Seconds that a rank of this host may sleep while it waits; 0 where each has a core."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    ranks_per_core = host.Get_size() / len(available())
    host.Free()
    return PAUSE_PER_RANK * ranks_per_core if ranks_per_core > 1 else 0.0


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.view(np.uint8) if array.size else np.empty(0, np.uint8)


def _hosts(comm: MPI.Comm) -> Counts:
    """Node of each rank: hosts, numbered by their first rank."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    first = np.array([comm.Get_rank()], np.int64)
    host.Bcast([first, MPI.INT64_T], 0)
    host.Free()
    firsts = np.empty(comm.Get_size(), np.int64)
    comm.Allgather([first, MPI.INT64_T], [firsts, MPI.INT64_T])
    return np.unique(firsts, return_inverse=True)[1].astype(np.int64)


def world_size() -> int:
    """Ranks that MPI says it started together."""
    return MPI.COMM_WORLD.Get_size()


def library() -> str:
    """First line of MPI's own description, e.g. "MPICH Version: 5.0.2"."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))} (MPI {'.'.join(map(str, MPI.Get_version()))})"


def running() -> bool:
    """Is MPI usable now (started and not yet finalized)?"""
    return MPI.Is_initialized() and not MPI.Is_finalized()


def abort_world(status: int) -> None:
    """End all ranks of the job with this exit status, if there are others and MPI still runs."""
    if running() and world_size() > 1:
        MPI.COMM_WORLD.Abort(status)
