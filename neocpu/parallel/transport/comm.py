"""How do ranks talk? Through a few verbs on contiguous NumPy buffers, behind which MPI, threads or
nothing can stand.

    start_alltoallv / alltoallv    element counts per rank; every exchange of a step
    start_allgatherv / allgatherv  everything to everybody
    alltoall                       equal blocks
    largest, allgather             small things; allgather_bytes
    barrier, quiet_barrier         the quiet one sleeps, for waits of seconds
    split                          the same verbs among some of the ranks
    queue                          the same ranks, with an order of calls of its own
    mail                           letters from one rank to another, in no common order
    agree, agreeing                an error of one rank becomes the same error on all
    on_first_rank                  so do what rank 0 returns, and its error

Collectives move bytes and never add: MPI's own sums have no defined order (`docs/arithmetic.md`
§3). All ranks call the same verbs in the same order. Bytes and messages are counted by verb and
link class (same rank, same node, other node).
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from neocpu.core import errors
from neocpu.core.cores import host_key
from neocpu.core.types import Elements
from neocpu.parallel.transport.buffers import Counts, check_exchange, check_gather
from neocpu.parallel.transport.mail import LoopMail, Mail
from neocpu.parallel.transport.sent import (
    CallName,
    CallUnderWay,
    TimedRequest,
    Traffic,
    sum_traffic,
)
from neocpu.parallel.transport.started import Done, Request, Stream

T = TypeVar("T")

# Queues of a step: calls on queues of other names count as those of the queue that they stem from.
QUEUES = ("input", "exchange", "dense")


class Comm(ABC):
    """A group of ranks. Subclasses bring `_exchange`, `_start_gather`, `barrier`,
    `quiet_barrier`, `split`, `mail` and `abort`.

    Attributes:
    rank, size : this rank and the number of ranks.
    nodes : i64[size], the node of each rank.
    world_ranks : i64[size], the number of each rank in the comm that all others were split from.
    sent : this rank's `Traffic` (shared with the comms split from this one).
    queue_name : under which its calls are counted.
    stream : exchanges under way here that go on when `poll` is called.

    Verbs count, time and slow down (`throttle.py`) what `_exchange` and `_start_gather` send. A
    comm made of others' verbs overrides the verbs themselves, so that each message is counted once.
    """

    queue_name = "exchange"
    processes = False  # is each rank a process of its own, beside others?

    def __init__(self, rank: int, size: int, nodes: ArrayLike, sent: Traffic | None = None) -> None:
        self.rank = rank
        self.size = size
        self.nodes = np.asarray(nodes, np.int64)
        self.sent = Traffic() if sent is None else sent
        self.world_ranks = np.arange(size, dtype=np.int64)
        self._links = np.where(self.nodes == self.nodes[rank], 1, 2)
        # what stays in this rank's memory crosses no link
        self._links[rank] = 0
        self._queues: dict[str, Comm] = {}
        self._kept: dict[str, Comm] = {}
        self.stream = Stream()
        self._streams = [self.stream]  # its own and those of its queues

    # ---- what an implementation brings ----

    @abstractmethod
    def _exchange(
        self, send: Elements, send_counts: Counts, recv: Elements, recv_counts: Counts
    ) -> Request: ...

    @abstractmethod
    def _start_gather(self, send: Elements, recv: Elements, counts: Counts) -> Request: ...

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
    def mail(self) -> Mail:
        """New letter boxes of these ranks, which no other call meets. Collective."""

    @abstractmethod
    def abort(self, status: int) -> None:
        """End the whole job, all ranks, with this exit status; does not return under MPI."""

    # ---- verbs ----

    def start_alltoallv(
        self,
        send: Elements,
        send_counts: ArrayLike,
        recv: Elements,
        recv_counts: ArrayLike,
        what: str = "",
        table: ArrayLike | None = None,
    ) -> Request:
        """Begin sending run q of `send` to rank q, and receiving run q of `recv` from rank q.

        send, recv : contiguous 1-D arrays of one dtype, runs in rank order without gaps; either may
            be empty.
        send_counts, recv_counts : i64[size], elements per rank; they must add up to the arrays'
            sizes.
        what : name of the collective, as in `plan.cost.traffic`.
        table : i64[size, size], counts [sender, receiver] of all ranks, where all ranks know them:
            a two-level comm then need not ask.
        """
        sends, recvs = check_exchange(self.size, send, send_counts, recv, recv_counts)
        size = send.itemsize
        call = self._begin("alltoallv", what, sends * size, recvs * size)
        request = self._exchange(send, sends, recv, recvs)
        call.begun()
        return TimedRequest(request, call, self.rest)

    def alltoallv(
        self,
        send: Elements,
        send_counts: ArrayLike,
        recv: Elements,
        recv_counts: ArrayLike,
        what: str = "",
        table: ArrayLike | None = None,
    ) -> None:
        """`start_alltoallv` and `wait` in one."""
        self.start_alltoallv(send, send_counts, recv, recv_counts, what, table).wait()

    def alltoall(self, send: Elements) -> Elements:
        """Block q of `send` [size, ...] goes to rank q; returns the same shape, block q from rank
        q.
        """
        if send.shape[:1] != (self.size,):
            raise ValueError(
                f"alltoall among {self.size} ranks needs {self.size} blocks; got shape {send.shape}"
            )
        send, recv = np.ascontiguousarray(send), np.empty(send.shape, send.dtype)
        counts = np.full(self.size, send.size // self.size, np.int64)
        sizes = counts * send.itemsize
        call = self._begin("alltoall", "", sizes, sizes)
        request = self._exchange(send.reshape(-1), counts, recv.reshape(-1), counts)
        call.begun()
        TimedRequest(request, call, self.rest).wait()
        return recv

    def start_allgatherv(
        self, send: Elements, recv: Elements, counts: ArrayLike, what: str = ""
    ) -> Request:
        """Begin to bring every rank's `send` in rank order into `recv` of every rank (1-D).

        counts : i64[size], elements of each. what : as of `start_alltoallv`.
        """
        sizes = check_gather(self.rank, send, recv, counts)
        sends = np.full(self.size, send.nbytes, np.int64)
        call = self._begin("allgatherv", what, sends, sizes * recv.itemsize)
        request = self._start_gather(send, recv, sizes)
        call.begun()
        return TimedRequest(request, call, self.rest)

    def allgatherv(self, send: Elements, recv: Elements, counts: ArrayLike, what: str = "") -> None:
        """`start_allgatherv` and `wait` in one."""
        self.start_allgatherv(send, recv, counts, what).wait()

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, in rank order. For small things beside the training path."""
        one = np.ones(self.size, np.int64)
        sizes = np.empty(self.size, np.int64)
        self.allgatherv(np.array([len(data)], np.int64), sizes, one)
        # a second gather: receivers must know all sizes before they can take bytes in
        gathered = np.empty(int(sizes.sum()), np.uint8)
        self.allgatherv(np.frombuffer(data, np.uint8), gathered, sizes)
        return [part.tobytes() for part in np.split(gathered, np.cumsum(sizes)[:-1])]

    def allgather(self, value: object) -> list[Any]:
        """Every rank's value, as JSON has it, in rank order; as `allgather_bytes`."""
        return [json.loads(data) for data in self.allgather_bytes(json.dumps(value).encode())]

    def largest(self, value: int, what: str = "") -> int:
        """The largest of all ranks' integers, on every rank. what : as of `start_alltoallv`."""
        values = np.empty(self.size, np.int64)
        self.allgatherv(np.array([value], np.int64), values, np.ones(self.size, np.int64), what)
        return int(values.max())

    def agree(self, error: BaseException | None) -> None:
        """Return if no rank brings an error; otherwise raise the error of the lowest such rank, on
        every rank.

        That rank raises its own object; the others an error of the same class (RuntimeError unless
        it is a NeocpuError) with the same message and exit status. `spoken_by` on it is the rank,
        which alone needs to print it. One with the status of a signal is raised as Stopped.
        """
        # the lowest rank brings the largest number, so one exchange finds the speaker
        largest = self.largest(0 if error is None else self.size - self.rank)
        if largest == 0:
            return
        speaker = self.size - largest
        from_here = error is not None and speaker == self.rank
        # a gather needs all ranks; those that have nothing to say bring nothing
        status = getattr(error, "exit_status", None)
        facts = [type(error).__name__, str(error), status] if from_here else None
        name, message, status = self.allgather(facts)[speaker]
        raised: BaseException
        if status is not None and status > 128:
            raised = errors.Stopped(status - 128, message)
        elif error is not None and from_here:
            raised = error
        elif status is not None:
            # one of a class of its own has the status, and is told, as the base of all
            raised = getattr(errors, name, errors.NeocpuError)(message)
            raised.exit_status = status
        else:
            raised = RuntimeError(f"rank {speaker}: {name}: {message}")
        raised.spoken_by = speaker  # type: ignore[attr-defined]
        raise raised

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """A block in which a rank may raise a NeocpuError; behind it, all ranks do. Collective."""
        error: errors.NeocpuError | None = None
        try:
            yield
        # other errors are bugs, and the guard of this rank ends the job for all
        except errors.NeocpuError as problem:
            error = problem
        self.agree(error)

    def on_first_rank(self, work: Callable[[], T]) -> T:
        """Do something on rank 0: what it returns, as JSON has it, or a NeocpuError that it raises
        is that of all ranks. Collective.
        """
        result: T | None = None
        with self.agreeing():
            if self.rank == 0:
                result = work()
        return self.allgather(result)[0]

    # ---- where ranks are, and what was sent ----

    def queue(self, name: str) -> "Comm":
        """The same ranks with an order of calls of its own, which no call on this comm or on
        another queue can hold up; a name's second call returns the same comm.

        Collective when a name is first asked for. Traffic is counted together.
        """
        if name not in self._queues:
            # MPI matches the collectives of a communicator by their order alone, so an order of its
            # own takes a communicator of its own
            queue = self.split(0, self.rank)
            queue.count_as(name if name in QUEUES else self.queue_name)
            self._queues[name] = queue
            self.poll_with(queue)
        return self._queues[name]

    def poll_with(self, other: "Comm") -> None:
        """Let `poll` of any of both move the exchanges of both and of their queues."""
        if other._streams is not self._streams:
            self._streams += other._streams
            other._streams = self._streams

    def kept(self, name: str, make: Callable[[], "Comm"]) -> "Comm":
        """A comm made from this one; a name's second call returns the first one, so that a process
        that trains many times makes no more of them. MPICH has room for some 2,000.
        """
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def count_as(self, queue: str) -> None:
        """Count its calls from now on, and those of its queues, under the name of a queue."""
        self.queue_name = queue
        for comm in self._queues.values():
            comm.count_as(queue)

    def rest(self, seconds: float) -> None:
        """Sleep: the time belongs to others."""
        time.sleep(seconds)

    def span(self, stage: str) -> AbstractContextManager[None]:
        """The block is a stage of the step; its time is recorded, if the run is traced."""
        self.sent.pulse.doing = stage
        timeline = self.sent.timeline
        return nullcontext() if timeline is None else timeline.span(stage)

    def poll(self) -> None:
        """Let the exchanges under way on this comm and on its queues go on, without waiting: MPI
        moves most bytes only while it is called.
        """
        for stream in self._streams:
            if stream.busy:
                stream.poll()

    def hosts(self) -> list[int]:
        """Number of each rank's host, which is that of its first rank, whatever a config calls
        nodes (`parallel.ranks_per_node`). Collective.
        """
        keys = self.allgather(host_key())
        return [keys.index(key) for key in keys]

    @property
    def ranks_per_node(self) -> int:
        """Ranks of each node, if nodes are equally long runs of ranks (the last may be shorter);
        otherwise `size`.

        A plan's hierarchical schemes count in this; ranks dealt out to hosts in another way are one
        node to it.
        """
        step = int((self.nodes == self.nodes[0]).sum())
        return step if np.array_equal(self.nodes, np.arange(self.size) // step) else self.size

    def count_letter(self, to: int, size: int) -> None:
        """Count a letter of so many bytes to a rank, under the verb "letter"; any thread."""
        one = slice(to, to + 1)
        self.sent.add("letter", self._links[one], self.world_ranks[one], np.array([size]))

    def traffic(self) -> dict[str, Any]:
        """What all ranks sent so far: {verb: {calls, same_rank: {messages, bytes}, same_node: …,
        other_node: …}}.

        Collective; the report does not count itself. Bytes are payload by destination, whatever way
        MPI sends them.
        """
        return sum_traffic([state["sent"] for state in self.traffic_of_ranks()])

    def traffic_of_ranks(self) -> list[dict[str, Any]]:
        """As `traffic`, of each rank: {"sent": `Traffic.state`, "received": bytes by receiver,
        "waited": {verb: seconds}}.
        """
        sent = self.sent
        # taken before the gather, which would count itself
        state = {"sent": sent.state(), "received": sent.received(), "waited": sent.waited}
        return self.allgather(state)

    def _begin(self, verb: str, what: str, sends: Counts, recvs: Counts) -> CallUnderWay:
        """A call begins; sends, recvs : i64[size], bytes."""
        name = CallName(self.queue_name, verb, what)
        return self.sent.begin(name, self._links, self.world_ranks, sends, recvs)


def nodes_of(ranks: int, ranks_per_node: int | None) -> Counts:
    """i64[ranks]: node of each rank; nodes are runs of `ranks_per_node` ranks (None: one node)."""
    return np.arange(ranks, dtype=np.int64) // (ranks_per_node or ranks)


class SingleComm(Comm):
    """One rank alone: no MPI is loaded, what it sends itself is copied."""

    def __init__(self, sent: Traffic | None = None) -> None:
        super().__init__(0, 1, [0], sent)

    def _exchange(
        self, send: Elements, send_counts: Counts, recv: Elements, recv_counts: Counts
    ) -> Request:
        recv[:] = send
        return Done()

    def _start_gather(self, send: Elements, recv: Elements, counts: Counts) -> Request:
        recv[:] = send
        return Done()

    def barrier(self) -> None:
        """Nobody to wait for."""

    def quiet_barrier(self) -> None:
        """Nobody to wait for."""

    def split(self, color: int, key: int = 0) -> Comm:
        """Itself again, counting into the same traffic."""
        return SingleComm(self.sent)

    def mail(self) -> Mail:
        """A letter box for letters to itself."""
        return LoopMail(0, 1)

    def abort(self, status: int) -> None:
        """Raise SystemExit."""
        raise SystemExit(status)
