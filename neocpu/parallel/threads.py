"""Can the ranks be threads of one process? Yes: every collective is deposit, barrier, read, barrier.

For tests, debugging, lessons, and for compiling the kernels of a run before it starts. One body runs on all ranks; the first
error ends them all. With `in_turn` only one rank computes at a time, the others wait at a collective: then no two Numba
kernels run at once, which also suits threading layers that are not thread-safe.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from neocpu.parallel.comm import Comm, Counts, Done, Request

R = TypeVar("R")
TIMEOUT = 300.0  # seconds a rank waits for the others


class _World:
    """What the threads of one communicator share."""

    def __init__(self, size: int, turn: "threading.Lock | None") -> None:
        self.size, self.turn = size, turn
        self.gate = threading.Barrier(size, timeout=TIMEOUT)
        self.deposit: list[Any] = [None] * size
        self.parts: dict[int, _World] = {}

    def wait(self) -> None:
        if self.turn is None:
            self.gate.wait()
            return
        self.turn.release()
        try:
            self.gate.wait()
        finally:
            self.turn.acquire()

    def abort(self) -> None:
        self.gate.abort()
        for part in list(self.parts.values()):
            part.abort()


class ThreadComm(Comm):
    """One rank of a world of threads; made by `run_threads`."""

    def __init__(self, world: _World, rank: int, nodes: list[int]) -> None:
        super().__init__(rank, world.size, nodes)
        self._world = world

    def _share(self, mine: Any) -> list[Any]:
        """Everybody's deposits; valid until the next `_world.wait`."""
        self._world.deposit[self.rank] = mine
        self._world.wait()
        return self._world.deposit

    def _start_alltoallv(self, send: NDArray, send_counts: Counts, recv: NDArray, recv_counts: Counts) -> Request:
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(send_counts, dtype=np.int64)])
        at = 0
        for q, (theirs, cuts) in enumerate(self._share((send, starts))):
            lo, hi = int(cuts[self.rank]), int(cuts[self.rank + 1])
            if hi - lo != int(recv_counts[q]):
                raise ValueError(f"rank {q} sends {hi - lo} elements to rank {self.rank}, which expects {recv_counts[q]}")
            recv[at : at + hi - lo] = theirs[lo:hi]
            at += hi - lo
        self._world.wait()
        return Done()

    def _allgatherv(self, send: NDArray, recv: NDArray, recv_counts: Counts) -> None:
        at = 0
        for q, theirs in enumerate(self._share(send)):
            if theirs.size != int(recv_counts[q]):
                raise ValueError(f"rank {q} sends {theirs.size} elements; rank {self.rank} expects {recv_counts[q]}")
            recv[at : at + theirs.size] = theirs
            at += theirs.size
        self._world.wait()

    def barrier(self) -> None:
        """Return once every rank has called."""
        self._world.wait()

    def split(self, color: int) -> Comm:
        """Ranks of equal color, in rank order, as a Comm of their own."""
        colors = list(self._share(color))
        members = [rank for rank, c in enumerate(colors) if c == color]
        self._world.wait()
        if members[0] == self.rank:
            self._world.parts[color] = _World(len(members), self._world.turn)
        self._world.wait()
        part = self._world.parts[color]
        self._world.wait()
        return ThreadComm(part, members.index(self.rank), [int(self.nodes[rank]) for rank in members])


def run_threads(
    ranks: int, body: Callable[[Comm], R], *, ranks_per_node: int | None = None, in_turn: bool = False
) -> list[R]:
    """Run `body(comm)` on `ranks` threads; their results in rank order. The first error ends all ranks and is raised here."""
    turn = threading.Lock() if in_turn else None
    world = _World(ranks, turn)
    results: list[Any] = [None] * ranks
    errors: list[BaseException] = []

    def rank_main(rank: int) -> None:
        nodes = [q // (ranks_per_node or ranks) for q in range(ranks)]
        if turn:
            turn.acquire()
        try:
            results[rank] = body(ThreadComm(world, rank, nodes))
        except threading.BrokenBarrierError as broken:
            errors.append(broken)
        except BaseException as error:
            errors.insert(0, error)
            world.abort()
        finally:
            if turn:
                turn.release()

    threads = [threading.Thread(target=rank_main, args=(rank,), name=f"rank {rank}") for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        first = errors[0]
        raise TimeoutError("ranks wait for each other in different collectives") if isinstance(
            first, threading.BrokenBarrierError
        ) else first
    return results
