"""How do the verbs become MPI calls? Here, and only here, with buffers and never with pickles."""

import time
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from neocpu.parallel.comm import Comm, Counts, Request

NAP = 0.02  # seconds between two looks at a quiet barrier


def _message(buffer: NDArray, counts: Counts) -> list[Any]:
    counts = np.asarray(counts, np.int64)
    if buffer.dtype.kind == "V" or buffer.dtype.itemsize not in (1, 2, 4, 8):
        raise TypeError(f"no MPI type for {buffer.dtype}")
    return [buffer, (counts, np.cumsum(counts) - counts), MPI.Datatype.fromcode(buffer.dtype.char)]


class _MpiRequest:
    """A collective under way, and the buffers it uses."""

    def __init__(self, request: MPI.Request, *buffers: Any) -> None:
        self._request, self._buffers = request, buffers

    def wait(self) -> None:
        """Return once the received data are in place."""
        self._request.Wait()


class MpiComm(Comm):
    """Ranks of an MPI communicator; nodes are the real hosts until `group_nodes` says otherwise."""

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        self._comm = MPI.COMM_WORLD.Dup() if comm is None else comm
        host = self._comm.Split_type(MPI.COMM_TYPE_SHARED, self._comm.rank)
        leader = np.array([self._comm.rank], np.int64)
        host.Bcast(leader)
        self.host_ranks = host.size
        host.Free()
        leaders = np.empty(self._comm.size, np.int64)
        self._comm.Allgather(leader, leaders)
        _, nodes = np.unique(leaders, return_inverse=True)
        super().__init__(self._comm.rank, self._comm.size, nodes.tolist())

    def _start_alltoallv(self, send: NDArray, send_counts: Counts, recv: NDArray, recv_counts: Counts) -> Request:
        out, into = _message(send, send_counts), _message(recv, recv_counts)
        return _MpiRequest(self._comm.Ialltoallv(out, into), out, into)

    def _allgatherv(self, send: NDArray, recv: NDArray, recv_counts: Counts) -> None:
        send = np.ascontiguousarray(send)
        kind = MPI.Datatype.fromcode(send.dtype.char)
        self._comm.Allgatherv([send, send.size, kind], _message(recv, recv_counts))

    def barrier(self) -> None:
        """Return once every rank has called."""
        self._comm.Barrier()

    def quiet_barrier(self) -> None:
        """A barrier that sleeps while it waits."""
        request = self._comm.Ibarrier()
        while not request.Test():
            time.sleep(NAP)

    def split(self, color: int) -> Comm:
        """Ranks of equal color, in rank order, as a Comm of their own."""
        return MpiComm(self._comm.Split(color, self.rank))

    def abort(self, status: int) -> None:
        """End the job on all ranks with this exit status."""
        MPI.COMM_WORLD.Abort(status)


def library() -> str:
    """Name and version of the MPI that was found."""
    return MPI.Get_library_version().strip("\0 \n").splitlines()[0]
