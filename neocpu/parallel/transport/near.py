"""Which way does a message take: through the memory of its host, or by MPI?

    to a rank of another host     by MPI
    to this rank                  copied
    to another rank of this host  through windows (`windows.py`) if it is of a size at which they
                                  are quicker, otherwise by MPI

Both ends know the size of a message and where they are, so they choose alike. Ranks that share
cores sleep while they wait, so that they take no core from those at work. Nothing here imports MPI:
`mpi.py` brings a `Post`.
"""

import time
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from neocpu.core.types import Bytes, Elements
from neocpu.parallel.transport.buffers import Counts
from neocpu.parallel.transport.windows import BY_MPI, Windows

# Bytes of messages that are quicker through windows than by MPI, where each rank has a core of its
# own: a smaller one is there at once by MPI, of a larger one MPI moves several parts at a time.
QUICKER = range(64 << 10, 4 << 20)
# The same where ranks share cores: MPI's ranks wait at work, ours asleep.
QUICKER_IN_CROWD = range(1, (1 << 20) + 1)
# Ranks of a core from which on they sleep while MPI carries their messages.
CROWD = 8
# Seconds that a rank asks without sleeping, with a core of its own and where ranks share cores.
SPIN = 2e-3
SPIN_IN_CROWD = 2e-5
# Seconds of the first sleep, and of the longest.
FIRST_SLEEP = 20e-6
LAST_SLEEP = 2e-3
# Tags of messages in turn: exchanges may be awaited in any order.
TAGS = 1000
TAG_COUNT = 30000


# a message under way, as MPI names it
Message = TypeVar("Message")


class Post(Protocol[Message]):
    """Messages by MPI."""

    def send(self, view: Bytes, rank: int, tag: int) -> list[Message]:
        """Requests of a message to a rank."""

    def receive(self, view: Bytes, rank: int, tag: int) -> list[Message]:
        """Requests of a message from a rank."""

    def done(self, requests: Sequence[Message]) -> bool:
        """Are they all over?"""

    def wait(self, requests: Sequence[Message]) -> None:
        """Return when they are all over."""

    def push(self) -> None:
        """Let MPI go on with messages that are over here, but have not left."""


class Runs(NamedTuple):
    """The bytes of one side of an exchange: to or from rank q, size[q] bytes from start[q] on."""

    data: Bytes
    start: Sequence[int]
    size: Sequence[int]

    def of(self, rank: int) -> Bytes:
        """The run of a rank."""
        return self.data[self.start[rank] : self.start[rank] + self.size[rank]]


def runs_of(data: Elements, sizes: Counts, start: Counts | None = None) -> Runs:
    """Runs in rank order without gaps, unless they start elsewhere."""
    begin = np.cumsum(sizes) - sizes if start is None else start
    return Runs(data, begin.tolist(), sizes.tolist())


class NearExchanges(Generic[Message]):
    """The exchanges of one rank of a comm on whose hosts there are windows.

    windows : of this host's ranks. ranks : of the comm, those of this host, in the windows' order.
    rank : this one. crowd : ranks that share a core. post : MPI's messages.

    Attributes: through_windows, sizes of the messages that go through windows, the same on all
    ranks.
    """

    def __init__(
        self, windows: Windows, ranks: Sequence[int], rank: int, crowd: float, post: Post[Message]
    ) -> None:
        self.windows = windows
        self.ranks = list(ranks)
        self.post = post
        self.crowded = crowd > 1.0
        self.asleep = crowd >= CROWD
        self._rank = rank
        self._host_ranks = {rank: host_rank for host_rank, rank in enumerate(ranks)}
        self.through_windows = QUICKER_IN_CROWD if self.crowded else QUICKER
        self._calls = 0

    def start(self, out: Runs, into: Runs) -> "NearRequest[Message]":
        """Send and receive; all ranks of the comm call in one order."""
        # all ranks call in one order, so this count names the exchange on all of them
        self._calls += 1
        exchange = self._calls
        tag = TAGS + exchange % TAG_COUNT
        post = self.post
        if into.size[self._rank]:
            into.of(self._rank)[:] = out.of(self._rank)
        waiting, others = self._split(into)
        # receives are posted before sends: MPI must keep a copy of what comes unexpected
        requests: list[Message] = []
        for rank in others:
            requests += post.receive(into.of(rank), rank, tag)
        near, others = self._split(out)
        for rank in others:
            requests += post.send(out.of(rank), rank, tag)
        if near:
            messages = {
                host_rank: (out.start[rank], out.size[rank]) for host_rank, rank in near.items()
            }
            # a full window; receivers find that out when they look into it, and receive from MPI
            if not self.windows.post(exchange, out.data, messages):
                for rank in near.values():
                    requests += post.send(out.of(rank), rank, tag)
        return NearRequest(self, exchange, into, waiting, requests, out)

    def _split(self, runs: Runs) -> tuple[dict[int, int], list[int]]:
        """(rank by number in the host, of messages through windows; ranks of messages by MPI)."""
        near = {}
        others = []
        for rank, size in enumerate(runs.size):
            # an empty message is not sent, and the own one was copied
            if not size or rank == self._rank:
                continue
            if size in self.through_windows and rank in self._host_ranks:
                near[self._host_ranks[rank]] = rank
            else:
                others.append(rank)
        return near, others


class NearRequest(Generic[Message]):
    """An exchange under way; `out` and `into` belong to it until it is over.

    waiting : ranks whose messages were not yet seen in windows, by their numbers in the host.
    """

    def __init__(
        self,
        owner: NearExchanges[Message],
        exchange: int,
        into: Runs,
        waiting: dict[int, int],
        requests: list[Message],
        out: Runs,
    ) -> None:
        self._owner = owner
        self._exchange = exchange
        self._into = into
        self._waiting = waiting
        self._requests = requests
        self._out = out

    def test(self) -> bool:
        """Take what has come; is the exchange over?"""
        owner = self._owner
        for host_rank, rank in list(self._waiting.items()):
            view = self._into.of(rank)
            size = owner.windows.take(self._exchange, host_rank, view)
            if size is None:
                continue
            # its window was full: the message is under way by MPI
            if size == BY_MPI:
                tag = TAGS + self._exchange % TAG_COUNT
                self._requests += owner.post.receive(view, rank, tag)
            del self._waiting[host_rank]
        if self._requests and owner.post.done(self._requests):
            self._requests = []
        return not self._waiting and not self._requests

    def wait(self) -> None:
        """Return when the exchange is over: ask, and sleep where ranks share cores or it takes
        long.
        """
        owner = self._owner
        start = time.perf_counter()
        patience = SPIN_IN_CROWD if owner.crowded else SPIN
        while not self.test():
            # only MPI's messages are left, and ranks have cores for its own way of waiting
            if not self._waiting and not owner.asleep:
                owner.post.wait(self._requests)
                self._requests = []
                return
            waited = time.perf_counter() - start
            if waited < patience:
                time.sleep(0)  # lets other threads of this process run
            else:
                # what this rank sent to another host may still be here, and who waits for it there
                # may be who the ranks here wait for: windows are no calls of MPI
                owner.post.push()
                time.sleep(min(max(waited / 4, FIRST_SLEEP), LAST_SLEEP))
