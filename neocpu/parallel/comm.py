"""How do ranks talk? Through a few verbs on contiguous NumPy buffers, behind which MPI, threads or
nothing can stand.

    start_alltoallv / alltoallv    element counts per rank; every exchange of a step
    alltoall, allgatherv           equal blocks; everything to everybody
    largest, allgather_bytes       small things
    barrier, quiet_barrier         the quiet one sleeps, for waits of seconds
    split                          the same verbs among some of the ranks
    queue                          the same ranks, with an order of calls of its own
    agree                          an error of one rank becomes the same error on all

Collectives move bytes and never add: MPI's own sums have no defined order (`docs/arithmetic.md`
§3). All ranks call the same verbs in the same order. Bytes and messages are counted by verb and
link class (same rank, same node, other node).
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neocpu import errors
from neocpu.parallel.comm_checks import Counts, check_exchange, check_gather
from neocpu.parallel.timeline import RunTimeline

LINKS = ("same_rank", "same_node", "other_node")
TOGETHER = 256  # calls whose traffic is added up at a time


class Request(Protocol):
    """An exchange under way. Its arrays belong to the comm until `wait` returns."""

    def wait(self) -> None:
        """Return when the received array is filled and the sent one reusable; requests may be
        awaited in any order.
        """


class Done:
    """A request that was over when it began."""

    def wait(self) -> None:
        """Return at once."""


class Traffic:
    """What one rank sent: calls by verb; messages (non-empty) and bytes by verb and link class.

    waited : seconds by verb in which the rank started calls and waited for them to end.
    timeline : where calls are recorded as spans of time, if they are.
    """

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.waited: dict[str, float] = {}
        self.timeline: RunTimeline | None = None
        self._sent: dict[str, NDArray[np.int64]] = {}  # [link class, (messages, bytes)]
        # calls that are not yet in `_sent`: adding them up together is cheaper
        self._latest: dict[str, list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = {}

    def add(self, verb: str, links: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Count one call that sends `sizes`[q] bytes to rank q, whose link class is `links`[q].

        The arrays must not change afterwards.
        """
        self.calls[verb] = self.calls.get(verb, 0) + 1
        latest = self._latest.setdefault(verb, [])
        latest.append((links, sizes))
        if len(latest) >= TOGETHER:
            self._sum(verb)

    def _sum(self, verb: str) -> NDArray[np.int64]:
        """Messages and bytes of all calls of a verb: i64[link class, (messages, bytes)]."""
        sent = self._sent.setdefault(verb, np.zeros((len(LINKS), 2), np.int64))
        latest = self._latest.pop(verb, [])
        if latest:
            links = np.concatenate([call_links for call_links, _ in latest])
            sizes = np.concatenate([call_sizes for _, call_sizes in latest])
            np.add.at(sent[:, 1], links, sizes)
            np.add.at(sent[:, 0], links, sizes > 0)
        return sent

    def wait(self, verb: str, start: float) -> float:
        """Count the time since `start`, of `time.perf_counter`; the time now."""
        end = time.perf_counter()
        self.waited[verb] = self.waited.get(verb, 0.0) + end - start
        return end

    def state(self) -> dict[str, Any]:
        """JSON-able copy, without times."""
        return {verb: [calls, self._sum(verb).tolist()] for verb, calls in self.calls.items()}


def sum_traffic(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Reports of several ranks in one: messages and bytes add; `calls` is that of the rank which
    called most often.
    """
    report: dict[str, Any] = {}
    for verb in sorted({verb for state in states for verb in state}):
        counters = [state[verb] for state in states if verb in state]
        total = np.sum([sent for _, sent in counters], axis=0)
        entry: dict[str, Any] = {"calls": max(calls for calls, _ in counters)}
        for link, (messages, size) in zip(LINKS, total.tolist()):
            entry[link] = {"messages": messages, "bytes": size}
        report[verb] = entry
    return report


class _Timed:
    """A request whose waiting time is counted.

    what : the collective's name. started : when it began, of `time.perf_counter`.
    """

    def __init__(
        self, request: Request, traffic: Traffic, verb: str, what: str, started: float
    ) -> None:
        self._request = request
        self._traffic = traffic
        self._verb = verb
        self._what = what
        self._started = started

    def wait(self) -> None:
        awaited = time.perf_counter()
        self._request.wait()
        end = self._traffic.wait(self._verb, awaited)
        timeline = self._traffic.timeline
        if timeline is not None:
            timeline.exchange(self._what, self._started, awaited, end)


class Comm(ABC):
    """A group of ranks. Subclasses bring `_exchange`, `_gather`, `barrier`, `quiet_barrier`,
    `split` and `abort`.

    Attributes
    ----------
    rank, size : this rank and the number of ranks.
    nodes : i64[size], the node of each rank.
    sent : this rank's `Traffic` (shared with the comms split from this one).
    """

    def __init__(self, rank: int, size: int, nodes: ArrayLike, sent: Traffic | None = None) -> None:
        self.rank = rank
        self.size = size
        self.nodes = np.asarray(nodes, np.int64)
        self.sent = Traffic() if sent is None else sent
        self._links = np.where(self.nodes == self.nodes[rank], 1, 2)
        self._links[rank] = 0
        self._queues: dict[str, Comm] = {}

    # ---- what an implementation brings ----

    @abstractmethod
    def _exchange(
        self, send: NDArray[Any], send_counts: Counts, recv: NDArray[Any], recv_counts: Counts
    ) -> Request: ...

    @abstractmethod
    def _gather(self, send: NDArray[Any], recv: NDArray[Any], counts: Counts) -> None: ...

    @abstractmethod
    def barrier(self) -> None:
        """Return once every rank has called."""

    @abstractmethod
    def quiet_barrier(self) -> None:
        """Like `barrier`, but asleep: for waits of seconds, such as while one rank compiles."""

    @abstractmethod
    def split(self, color: int, key: int = 0) -> "Comm":
        """Comm of the ranks that gave the same color, ordered by (key, rank)."""

    @abstractmethod
    def abort(self, status: int) -> None:
        """End the whole job, all ranks, with this exit status; does not return under MPI."""

    # ---- verbs ----

    def start_alltoallv(
        self,
        send: NDArray[Any],
        send_counts: ArrayLike,
        recv: NDArray[Any],
        recv_counts: ArrayLike,
        what: str = "",
        table: ArrayLike | None = None,
    ) -> Request:
        """Begin sending run q of `send` to rank q, and receiving run q of `recv` from rank q.

        send, recv : contiguous 1-D arrays of one dtype, runs in rank order without gaps; either may
            be empty.
        send_counts, recv_counts : i64[size], elements per rank; they must add up to the arrays'
            sizes.
        what : name of the collective, as in `planner.traffic`.
        table : i64[size, size], counts [sender, receiver] of all ranks, where all ranks know them:
            a two-level comm then need not ask.
        """
        sends, recvs = check_exchange(self.size, send, send_counts, recv, recv_counts)
        self.sent.add("alltoallv", self._links, sends * send.itemsize)
        started = time.perf_counter()
        request = self._exchange(send, sends, recv, recvs)
        self.sent.wait("alltoallv", started)
        return _Timed(request, self.sent, "alltoallv", what, started)

    def alltoallv(
        self,
        send: NDArray[Any],
        send_counts: ArrayLike,
        recv: NDArray[Any],
        recv_counts: ArrayLike,
        what: str = "",
        table: ArrayLike | None = None,
    ) -> None:
        """`start_alltoallv` and `wait` in one."""
        self.start_alltoallv(send, send_counts, recv, recv_counts, what, table).wait()

    def alltoall(self, send: NDArray[Any]) -> NDArray[Any]:
        """Block q of `send` [size, ...] goes to rank q; returns the same shape, block q from rank
        q.
        """
        if send.shape[:1] != (self.size,):
            raise ValueError(
                f"alltoall among {self.size} ranks needs {self.size} blocks; got shape {send.shape}"
            )
        send, recv = np.ascontiguousarray(send), np.empty(send.shape, send.dtype)
        counts = np.full(self.size, send.size // self.size, np.int64)
        self.sent.add("alltoall", self._links, counts * send.itemsize)
        started = time.perf_counter()
        self._exchange(send.reshape(-1), counts, recv.reshape(-1), counts).wait()
        self.sent.wait("alltoall", started)
        return recv

    def allgatherv(
        self, send: NDArray[Any], recv: NDArray[Any], counts: ArrayLike, what: str = ""
    ) -> None:
        """Every rank's `send` in rank order into `recv` of every rank (1-D); `counts` i64[size]:
        elements of each; `what`: as of `start_alltoallv`.
        """
        sizes = check_gather(self.rank, send, recv, counts)
        self.sent.add("allgatherv", self._links, np.full(self.size, send.nbytes, np.int64))
        started = time.perf_counter()
        self._gather(send, recv, sizes)
        end = self.sent.wait("allgatherv", started)
        if self.sent.timeline is not None:
            self.sent.timeline.exchange(what, started, started, end)

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, in rank order. For small things beside the training path."""
        one = np.ones(self.size, np.int64)
        sizes = np.empty(self.size, np.int64)
        self.allgatherv(np.array([len(data)], np.int64), sizes, one)
        everything = np.empty(int(sizes.sum()), np.uint8)
        self.allgatherv(np.frombuffer(data, np.uint8), everything, sizes)
        ends = np.cumsum(sizes)
        return [
            everything[end - size : end].tobytes()
            for end, size in zip(ends.tolist(), sizes.tolist())
        ]

    def largest(self, value: int) -> int:
        """The largest of all ranks' integers, on every rank."""
        values = np.empty(self.size, np.int64)
        self.allgatherv(np.array([value], np.int64), values, np.ones(self.size, np.int64))
        return int(values.max())

    def agree(self, error: BaseException | None) -> None:
        """Return if no rank brings an error; otherwise raise the error of the lowest such rank, on
        every rank.

        That rank raises its own object; the others an error of the same class (RuntimeError unless
        it is a NeocpuError) with the same message. `spoken_by` on it is the rank, which alone needs
        to print it.
        """
        first = self.largest(0 if error is None else self.size - self.rank)
        if first == 0:
            return
        speaker = self.size - first
        from_here = error is not None and speaker == self.rank
        description = json.dumps([type(error).__name__, str(error)]).encode() if from_here else b""
        name, message = json.loads(self.allgather_bytes(description)[speaker])
        if from_here:
            assert error is not None
            raised = error
        else:
            kind = getattr(errors, name, None)
            if isinstance(kind, type) and issubclass(kind, errors.NeocpuError):
                raised = kind(message)
            else:
                raised = RuntimeError(f"rank {speaker}: {name}: {message}")
        raised.spoken_by = speaker  # type: ignore[attr-defined]
        raise raised

    # ---- where ranks are, and what was sent ----

    def queue(self, name: str) -> "Comm":
        """The same ranks with an order of calls of its own, which no call on this comm or on
        another queue can hold up; a name's second call returns the same comm.

        Collective when a name is first asked for. Traffic is counted together.
        """
        if name not in self._queues:
            self._queues[name] = self.split(0, self.rank)
        return self._queues[name]

    def node_of(self, rank: int) -> int:
        """Number of the node that holds `rank`, from 0."""
        return int(self.nodes[rank])

    @property
    def ranks_per_node(self) -> int:
        """Ranks of each node, if nodes are equally long runs of ranks (the last may be shorter);
        otherwise `size`.

        A plan's hierarchical schemes count in this; ranks dealt out to hosts in another way are one
        node to it.
        """
        step = int((self.nodes == self.nodes[0]).sum())
        return step if np.array_equal(self.nodes, np.arange(self.size) // step) else self.size

    def traffic(self) -> dict[str, Any]:
        """What all ranks sent so far: {verb: {calls, same_rank: {messages, bytes}, same_node: …,
        other_node: …}}.

        Collective; the report does not count itself. Bytes are payload by destination, whatever way
        MPI sends them.
        """
        return sum_traffic([state["sent"] for state in self.traffic_of_ranks()])

    def traffic_of_ranks(self) -> list[dict[str, Any]]:
        """What each rank did so far: {"sent": `Traffic.state`, "waited": {verb: seconds}}.

        Collective; the report does not count itself.
        """
        state = json.dumps({"sent": self.sent.state(), "waited": self.sent.waited}).encode()
        return [json.loads(data) for data in self.allgather_bytes(state)]


def nodes_of(ranks: int, ranks_per_node: int | None) -> Counts:
    """i64[ranks]: node of each rank; nodes are runs of `ranks_per_node` ranks (None: one node)."""
    return np.arange(ranks, dtype=np.int64) // (ranks_per_node or ranks)


class SingleComm(Comm):
    """One rank alone: no MPI is loaded, what it sends itself is copied."""

    def __init__(self, sent: Traffic | None = None) -> None:
        super().__init__(0, 1, [0], sent)

    def _exchange(
        self, send: NDArray[Any], send_counts: Counts, recv: NDArray[Any], recv_counts: Counts
    ) -> Request:
        recv[:] = send
        return Done()

    def _gather(self, send: NDArray[Any], recv: NDArray[Any], counts: Counts) -> None:
        recv[:] = send

    def barrier(self) -> None:
        """Nobody to wait for."""

    def quiet_barrier(self) -> None:
        """Nobody to wait for."""

    def split(self, color: int, key: int = 0) -> Comm:
        """Itself again, counting into the same traffic."""
        return SingleComm(self.sent)

    def abort(self, status: int) -> None:
        """Raise SystemExit."""
        raise SystemExit(status)
