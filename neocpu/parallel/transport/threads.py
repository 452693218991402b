"""How can ranks be tested, debugged and taught without MPI? As threads of one process, behind the
same verbs.

One primitive carries every verb: all ranks deposit what they bring under the number of the call;
whoever comes last moves the bytes of all; the others then go on. As in MPI, an exchange that all
have started needs nobody's further help.

`run_threads(ranks, body)` runs `body(comm)` once per rank. A rank that fails ends the others at
their next verb.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from neocpu.core.errors import EnvironmentProblem
from neocpu.core.types import Elements
from neocpu.kernels.compile.threads import threading_layer, use_threads
from neocpu.parallel.transport.buffers import Counts
from neocpu.parallel.transport.comm import Comm, nodes_of
from neocpu.parallel.transport.mail import Mail, OfficeMail, PostOffice
from neocpu.parallel.transport.sent import Traffic
from neocpu.parallel.transport.started import Request

T = TypeVar("T")
Gift = TypeVar("Gift")


class PeerFailed(RuntimeError):
    """Another rank failed, so this one cannot go on."""


@dataclass
class Meeting(Generic[Gift, T]):
    """One call of a verb by all ranks: what each brought, and the outcome after the last call."""

    verb: str
    brought: dict[int, Gift] = field(default_factory=dict)
    over: bool = False
    result: T | None = None
    left: int = 0


class MeetingRoom:
    """Where the ranks of one group meet. All rooms of a world share one lock, one failure flag and
    one timeout.
    """

    def __init__(self, size: int, world: "ThreadWorld") -> None:
        self.size = size
        self.world = world
        self._meetings: dict[int, Meeting[Any, Any]] = {}

    def bring(
        self, number: int, rank: int, verb: str, gift: Gift, move: Callable[[list[Gift]], T]
    ) -> Meeting[Gift, T]:
        """Deposit `gift` in call `number`; the last rank to come calls `move` on all gifts in rank
        order.
        """
        with self.world.changed:
            self.world.check()
            meeting: Meeting[Gift, T] = self._meetings.setdefault(number, Meeting(verb))
            if meeting.verb != verb:
                self.world.fail(
                    RuntimeError(
                        f"rank {rank} calls {verb} where another rank calls {meeting.verb}"
                    )
                )
                self.world.check()
            meeting.brought[rank] = gift
            if len(meeting.brought) < self.size:
                return meeting
        try:
            # without the lock: all groups of ranks share it, and others may meet meanwhile
            meeting.result = move([meeting.brought[r] for r in range(self.size)])
        except BaseException as error:
            with self.world.changed:
                self.world.fail(error)
            raise
        with self.world.changed:
            meeting.over = True
            self.world.changed.notify_all()
        return meeting

    def wait(self, number: int, meeting: Meeting[Gift, T]) -> T | None:
        """The result of a call, once every rank has come. Each rank waits once for each call."""
        world = self.world
        with world.resting(), world.changed:
            if not world.changed.wait_for(
                lambda: meeting.over or world.failure is not None, world.timeout
            ):
                missing = sorted(set(range(self.size)) - set(meeting.brought))
                world.fail(
                    TimeoutError(
                        f"ranks {missing} did not call {meeting.verb} within {world.timeout:g} s"
                    )
                )
            # a call that is over has its result, even if a rank has failed since
            if not meeting.over:
                world.check()
            # the last to leave clears the table: a slow rank still has to read the result
            meeting.left += 1
            if meeting.left == self.size:
                self._meetings.pop(number, None)
            return meeting.result


class ThreadWorld:
    """What all threads of one run share."""

    def __init__(self, timeout: float | None, in_turn: bool) -> None:
        self.changed = threading.Condition()
        self._turn = threading.Lock() if in_turn else None
        self.timeout = timeout
        self.failure: BaseException | None = None

    @property
    def takes_turns(self) -> bool:
        """Does only one rank work at a time?"""
        return self._turn is not None

    def fail(self, error: BaseException) -> None:
        """Remember the first failure and wake everybody; call with `changed` held."""
        if self.failure is None:
            self.failure = error
        self.changed.notify_all()

    @contextmanager
    def working(self) -> Iterator[None]:
        """A rank's work; alone, if ranks take turns."""
        with self._turn or nullcontext():
            yield

    @contextmanager
    def resting(self) -> Iterator[None]:
        """A rank's wait for others, who may meanwhile take their turn."""
        if self._turn is None:
            yield
            return
        # else the rank that others wait for could never take its turn
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()

    def check(self) -> None:
        """Raise PeerFailed if any rank has failed."""
        if self.failure is not None:
            raise PeerFailed(f"another rank failed: {self.failure!r}")


@dataclass
class _Started:
    room: MeetingRoom
    number: int
    meeting: Meeting[Any, Any]
    done: bool = False

    def wait(self) -> None:
        if not self.done:
            self.room.wait(self.number, self.meeting)
            self.done = True

    def test(self) -> bool:
        # after a failure the wait raises; to answer "not yet" would keep a rank asking for ever
        if not self.done and (self.meeting.over or self.room.world.failure is not None):
            self.wait()
        return self.done


class ExchangeGift(NamedTuple):
    """What a rank brings to an alltoallv."""

    send: Elements
    send_counts: Counts
    recv: Elements
    recv_counts: Counts


class SplitGift(NamedTuple):
    """What a rank brings to a split; gifts are sorted as ranks of the new groups are."""

    color: int
    key: int
    rank: int


class GatherGift(NamedTuple):
    """What a rank brings to an allgatherv."""

    send: Elements
    recv: Elements
    counts: Counts


class ThreadComm(Comm):
    """One rank among threads."""

    def __init__(
        self, room: MeetingRoom, rank: int, nodes: Counts, sent: Traffic | None = None
    ) -> None:
        super().__init__(rank, room.size, nodes, sent)
        self._room = room
        self._calls = 0

    def _start(self, verb: str, gift: Gift, move: Callable[[list[Gift]], object]) -> _Started:
        self._calls += 1
        return _Started(
            self._room, self._calls, self._room.bring(self._calls, self.rank, verb, gift, move)
        )

    def _meet(self, verb: str, gift: Gift, move: Callable[[list[Gift]], T]) -> T | None:
        self._calls += 1
        meeting = self._room.bring(self._calls, self.rank, verb, gift, move)
        return self._room.wait(self._calls, meeting)

    def _exchange(
        self, send: Elements, send_counts: Counts, recv: Elements, recv_counts: Counts
    ) -> Request:
        gift = ExchangeGift(send, send_counts, recv, recv_counts)
        return self._start("alltoallv", gift, _move_all)

    def _start_gather(self, send: Elements, recv: Elements, counts: Counts) -> Request:
        return self._start("allgatherv", GatherGift(send, recv, counts), _move_to_all)

    def barrier(self) -> None:
        """Return once every rank has called."""
        self._meet("barrier", None, lambda gifts: None)

    def quiet_barrier(self) -> None:
        """Threads sleep in every barrier."""
        self.barrier()

    def rest(self, seconds: float) -> None:
        """Sleep while others work."""
        with self._room.world.resting():
            time.sleep(seconds)

    def split(self, color: int, key: int = 0) -> Comm:
        """Comm of the threads that gave the same color, ordered by (key, rank)."""
        groups = self._meet(
            "split",
            SplitGift(color, key, self.rank),
            lambda gifts: _groups(gifts, self._room.world),
        )
        assert groups is not None
        room, members = groups[color]
        comm = ThreadComm(room, members.index(self.rank), self.nodes[members], self.sent)
        comm.world_ranks = self.world_ranks[members]
        return comm

    def mail(self) -> Mail:
        """A letter box in a post office that all threads of this comm share.

        Raises EnvironmentProblem where ranks work in turn: whoever serves letters works too.
        """
        world = self._room.world
        if world.takes_turns:
            raise EnvironmentProblem(
                "ranks that work in turn cannot send each other letters; leave out `in_turn`"
            )
        office = self._meet("mail", None, lambda gifts: PostOffice(self.size, world.check))
        assert office is not None
        return OfficeMail(office, self.rank)

    def abort(self, status: int) -> None:
        """End the other ranks at their next verb, and this one by SystemExit."""
        error = SystemExit(status)
        with self._room.world.changed:
            self._room.world.fail(error)
        raise error


def _move_all(gifts: Sequence[ExchangeGift]) -> None:
    send_starts = [np.cumsum(gift.send_counts) - gift.send_counts for gift in gifts]
    recv_starts = [np.cumsum(gift.recv_counts) - gift.recv_counts for gift in gifts]
    for source, sender in enumerate(gifts):
        for target, receiver in enumerate(gifts):
            send = sender.send
            recv = receiver.recv
            count = int(sender.send_counts[target])
            expected = receiver.recv_counts[source]
            if count != expected or send.dtype != recv.dtype:
                raise RuntimeError(
                    f"rank {source} sends {count} {send.dtype} to rank {target}, "
                    f"which expects {expected} {recv.dtype}"
                )
            at = int(send_starts[source][target])
            to = int(recv_starts[target][source])
            recv[to : to + count] = send[at : at + count]


def _move_to_all(gifts: Sequence[GatherGift]) -> None:
    sent = [gift.send for gift in gifts]
    sizes = [send.size for send in sent]
    for rank, (_, recv, counts) in enumerate(gifts):
        if sizes != counts.tolist() or any(send.dtype != recv.dtype for send in sent):
            raise RuntimeError(f"rank {rank} expects {counts.tolist()} {recv.dtype}, not {sizes}")
        recv[:] = np.concatenate(sent)


def _groups(
    gifts: Sequence[SplitGift], world: ThreadWorld
) -> dict[int, tuple[MeetingRoom, list[int]]]:
    members: dict[int, list[int]] = {}
    for color, _, rank in sorted(gifts):
        members.setdefault(color, []).append(rank)
    return {color: (MeetingRoom(len(ranks), world), ranks) for color, ranks in members.items()}


def run_threads(
    ranks: int,
    body: Callable[[Comm], T],
    *,
    ranks_per_node: int | None = None,
    timeout: float | None = 300.0,
    in_turn: bool = False,
) -> list[T]:
    """Results of `body(comm)` of every rank, in rank order; parallel kernels of each use one
    thread.

    ranks_per_node : for the comms' `nodes`; None puts all ranks on one node.
    timeout : seconds that a rank waits for the others in one verb (None: for ever).
    in_turn : only one rank works at a time, and the next when it waits, which any threading layer
        allows.

    Raises EnvironmentProblem where Numba's threading layer is not safe for several threads,
    TimeoutError when a rank never came, and whatever the first failing rank raised.
    """
    if ranks > 1 and not in_turn and threading_layer() == "workqueue":
        raise EnvironmentProblem(
            "ranks as threads need Numba's omp or tbb threading layer, but this process has "
            "workqueue, which aborts; "
            "install a libgomp (Linux) or libomp (macOS), or `pip install tbb`, or unset "
            "NUMBA_THREADING_LAYER"
        )
    world = ThreadWorld(timeout, in_turn)
    room = MeetingRoom(ranks, world)
    nodes = nodes_of(ranks, ranks_per_node)
    results: dict[int, T] = {}

    def run(rank: int) -> None:
        try:
            with world.working():
                use_threads(1)
                results[rank] = body(ThreadComm(room, rank, nodes))
        except BaseException as error:  # handed to the caller, who raises it
            with world.changed:
                world.fail(error)

    _join(
        [
            threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(ranks)
        ]
    )
    if world.failure is not None:
        raise world.failure
    return [results[rank] for rank in range(ranks)]


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
