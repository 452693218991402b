"""When is nothing under way on any rank? When two rounds in a row say so.

In a round each rank waits until it has no calls, functions and deletions under way, and tells all
others how many letters it sent and read so far. If all ranks together read as many as they sent,
and the round before gave the same sums, no letter was on its way between the two (Mattern's four
counters): a letter that one rank had not counted as read would be missing from the second sums, and
one that woke a rank up again would have raised them.
"""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable

from neocpu.parallel.rpc.caller import Caller
from neocpu.parallel.rpc.failures import BadMessage, CallTimeout
from neocpu.parallel.rpc.peers import Liveness
from neocpu.parallel.rpc.progress import Progress

ROUND = ".round"


class LastRounds:
    """Counts the letters of one rank, and ends with the others. is_idle : is nothing under way?"""

    def __init__(
        self, agent: Caller, peers: Liveness, progress: Progress, is_idle: Callable[[], bool]
    ) -> None:
        self._agent = agent
        self._peers = peers
        self._progress = progress
        self._is_idle = is_idle
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._sent = 0
        self._read = 0
        self._rounds: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        agent.own_functions[ROUND] = self._take

    def count_sent(self) -> None:
        """A letter is sent; many threads do."""
        with self._lock:
            self._sent += 1

    def count_read(self) -> None:
        """A letter was read; one thread at a time does."""
        self._read += 1

    def wait(self, seconds: float) -> None:
        """Return when nothing is under way on any rank.

        Raises CallTimeout with the ranks that did not come within so many seconds, and PeerLost.
        """
        deadline = time.monotonic() + seconds
        before = (-1, -1)
        while True:
            number = next(self._numbers)
            self._progress.wait_for(lambda: self._is_idle() or time.monotonic() > deadline)
            # what was read first: a letter sent in between makes the sums differ
            read = self._read
            counts = (self._sent, read)
            self._rounds[number][self._agent.rank] = counts
            for rank in self._others():
                self._agent.note(rank, ROUND, number, *counts)
            self._wait_for_others(number, deadline, seconds)
            told = self._rounds.pop(number).values()
            sums = (sum(sent for sent, _ in told), sum(read for _, read in told))
            if sums[0] == sums[1] and sums == before:
                return
            before = sums

    def _others(self) -> list[int]:
        return [rank for rank in range(self._agent.size) if rank != self._agent.rank]

    def _wait_for_others(self, number: int, deadline: float, seconds: float) -> None:
        come = self._rounds[number]

        def missing() -> list[int]:
            return [rank for rank in self._others() if rank not in come]

        self._progress.wait_for(
            lambda: (
                not missing()
                or any(self._peers.lost(rank) for rank in missing())
                or time.monotonic() > deadline
            )
        )
        for rank in missing():
            if self._peers.lost(rank):
                raise self._peers.error(rank, "the end of the job")
        if missing():
            raise CallTimeout(
                f"ranks {', '.join(map(str, missing()))} did not come to shutdown within "
                f"{seconds:g} s; all ranks have to call it"
            )

    def _take(self, source: int, number: int, sent: int, read: int) -> None:
        if not all(isinstance(value, int) for value in (number, sent, read)):
            raise BadMessage("a round whose numbers are none")
        self._rounds[number][source] = (sent, read)
