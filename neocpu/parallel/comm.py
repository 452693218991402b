"""What may ranks say to each other? A small set of verbs on contiguous NumPy buffers, the same alone, on threads and over MPI.

    alltoallv     counts[q] elements to rank q, in rank order; also started and awaited
    allgatherv    counts[q] elements of rank q on every rank
    allgather     equal shapes: out[q] is rank q's array
    broadcast     bytes of rank 0; gather_bytes: bytes of any length from all to all (control messages, never batches)
    barrier, quiet_barrier (sleeps instead of spinning), agree (an error of one becomes the error of all), split

Collectives move bytes and *we* add: MPI's own sums promise no order (`docs/arithmetic.md` §13). Every collective counts its
calls and the bytes it sends by link class: same rank, same node, other node.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neocpu.errors import NeocpuError

LINKS = ("same_rank", "same_node", "other_node")
Counts = NDArray[np.int64]


class Request(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Return once the received data are in place."""


class Done:
    """A request that was finished when it was made."""

    def wait(self) -> None:
        """Nothing is left to wait for."""


class Comm(ABC):
    """Ranks that talk. `nodes[q]` is the node number of rank q. Every method is collective over all ranks."""

    rank: int
    size: int

    def __init__(self, rank: int, size: int, nodes: Sequence[int]) -> None:
        self.rank, self.size = rank, size
        self._set_nodes(nodes)
        self._sent: dict[str, NDArray[np.int64]] = {}  # collective -> [calls, bytes by link]

    def _set_nodes(self, nodes: Sequence[int]) -> None:
        self.nodes = np.array(nodes, np.int64)
        self._link = np.where(self.nodes == self.nodes[self.rank], 1, 2)
        self._link[self.rank] = 0

    def group_nodes(self, ranks_per_node: int) -> None:
        """Call `ranks_per_node` consecutive ranks a node, whatever host they run on."""
        self._set_nodes([rank // ranks_per_node for rank in range(self.size)])

    # ---- verbs ----

    def start_alltoallv(self, send: NDArray, send_counts: Counts, recv: NDArray, recv_counts: Counts) -> Request:
        """Send `send_counts[q]` elements to each rank q and receive `recv_counts[q]`; both arrays are 1-D and contiguous
        and belong to the request until `wait` returns."""
        self._count("alltoallv", np.asarray(send_counts) * send.itemsize)
        return self._start_alltoallv(send, send_counts, recv, recv_counts)

    def alltoallv(self, send: NDArray, send_counts: Counts, recv: NDArray, recv_counts: Counts) -> None:
        """`start_alltoallv`, awaited."""
        self.start_alltoallv(send, send_counts, recv, recv_counts).wait()

    def allgatherv(self, send: NDArray, recv: NDArray, recv_counts: Counts) -> None:
        """Every rank's `send` (recv_counts[rank] elements) one after the other in every rank's `recv`."""
        self._count("allgatherv", np.full(self.size, send.nbytes))
        self._allgatherv(send, recv, recv_counts)

    def allgather(self, send: NDArray) -> NDArray:
        """Stack of all ranks' arrays, which have one shape and dtype: [W, *send.shape]."""
        send = np.ascontiguousarray(send)
        recv = np.empty(self.size * send.size, send.dtype)
        self.allgatherv(send.reshape(-1), recv, np.full(self.size, send.size, np.int64))
        return recv.reshape(self.size, *send.shape)

    def gather_bytes(self, message: bytes) -> list[bytes]:
        """Every rank's message, on every rank."""
        sizes = self.allgather(np.array([len(message)], np.int64))[:, 0]
        recv = np.empty(int(sizes.sum()), np.uint8)
        self.allgatherv(np.frombuffer(message, np.uint8), recv, sizes)
        ends = np.cumsum(sizes)
        return [recv[end - size : end].tobytes() for end, size in zip(ends.tolist(), sizes.tolist())]

    def broadcast(self, message: bytes) -> bytes:
        """Rank 0's message, on every rank."""
        return self.gather_bytes(message if self.rank == 0 else b"")[0]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return bool(self.allgather(np.array([flag], np.uint8)).any())

    def agree(self, error: BaseException | None) -> None:
        """Raise the error of the lowest rank that has one, on every rank; return if nobody has.

        A NeocpuError keeps its class and message. Anything else becomes a NeocpuError that names its rank.
        """
        words = b"" if error is None else f"{type(error).__name__}\0{error}".encode()
        for rank, message in enumerate(self.gather_bytes(words)):
            if not message:
                continue
            if error is not None and rank == self.rank:
                raise error
            name, _, text = message.decode().partition("\0")
            raise _error_class(name)(text) if _error_class(name) else NeocpuError(f"rank {rank}: {name}: {text}")

    @abstractmethod
    def barrier(self) -> None:
        """Return once every rank has called."""

    def quiet_barrier(self) -> None:
        """A barrier that sleeps while it waits, so that a compiling rank has the cores for itself."""
        self.barrier()

    @abstractmethod
    def split(self, color: int) -> "Comm":
        """Ranks of equal color, in rank order, as a Comm of their own."""

    # ---- what an implementation provides ----

    @abstractmethod
    def _start_alltoallv(self, send: NDArray, send_counts: Counts, recv: NDArray, recv_counts: Counts) -> Request: ...

    @abstractmethod
    def _allgatherv(self, send: NDArray, recv: NDArray, recv_counts: Counts) -> None: ...

    def abort(self, status: int) -> None:
        """End the job on all ranks with this exit status."""
        raise SystemExit(status)

    # ---- traffic ----

    def _count(self, collective: str, size: NDArray[Any]) -> None:
        row = self._sent.setdefault(collective, np.zeros(1 + len(LINKS), np.int64))
        row[0] += 1
        row[1:] += np.bincount(self._link, size, len(LINKS)).astype(np.int64)

    def sent(self) -> dict[str, dict[str, int]]:
        """This rank's counters: collective -> calls, and bytes by link class."""
        return {
            name: dict(zip(("calls", *LINKS), row.tolist())) for name, row in sorted(self._sent.items())
        }

    def traffic(self) -> dict[str, dict[str, int]]:
        """Counters summed over ranks (calls: of rank 0); collective."""
        names = sorted(set().union(*(m.decode().split() for m in self.gather_bytes(" ".join(self._sent).encode()))))
        rows = np.stack([self._sent.get(name, np.zeros(1 + len(LINKS), np.int64)).copy() for name in names])
        every = self.allgather(rows)
        total = every.sum(axis=0)
        total[:, 0] = every[0, :, 0]
        return {name: dict(zip(("calls", *LINKS), row)) for name, row in zip(names, total.tolist())}


def _error_class(name: str) -> type[NeocpuError] | None:
    """The NeocpuError of this name."""
    pending: list[type[NeocpuError]] = [NeocpuError]
    while pending:
        found = pending.pop()
        if found.__name__ == name:
            return found
        pending.extend(found.__subclasses__())
    return None


class SingleComm(Comm):
    """A world of one rank: copies, and no MPI."""

    def __init__(self) -> None:
        super().__init__(0, 1, [0])

    def _start_alltoallv(self, send: NDArray, send_counts: Counts, recv: NDArray, recv_counts: Counts) -> Request:
        recv[: int(recv_counts[0])] = send[: int(send_counts[0])]
        return Done()

    def _allgatherv(self, send: NDArray, recv: NDArray, recv_counts: Counts) -> None:
        recv[: int(recv_counts[0])] = send

    def barrier(self) -> None:
        """Nobody to wait for."""

    def split(self, color: int) -> Comm:
        """A world of one splits into itself."""
        return SingleComm()
