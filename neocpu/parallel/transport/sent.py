"""What did a rank send, and how long was it on its way? Counters of one rank, always on.

Bytes and messages are counted by verb and link class. Seconds are counted by collective and by
queue:

    exposed     the rank started the call or waited for its end, and did nothing else
    under way   from the start of the call to its end, as far as the rank knows it: an end that it
                did not wait for is seen only when it asks
    alone       what the call takes on links of a set speed (`throttle.py`), without them 0
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.parallel.transport.started import Request
from neocpu.parallel.transport.throttle import LINKS, LinkTime, Throttle
from neocpu.parallel.transport.timeline import ExchangeSpan, Pulse, RunTimeline

Sizes = NDArray[np.int64]
# Seconds of a wait for what was there already.
PROMPT = 1e-4
TOGETHER = 256  # calls whose traffic is added up at a time


class CallName(NamedTuple):
    """A collective: the queue that it is called on, its verb, and its name."""

    queue: str
    verb: str
    what: str


class SentCall(NamedTuple):
    """A call that sends sizes[q] bytes to rank q, whose link class is links[q] and whose number in
    the whole run is ranks[q].
    """

    links: Sizes
    ranks: Sizes
    sizes: Sizes


@dataclass
class ExchangeTimes:
    """Calls of one collective: their number, bytes sent to other ranks, and seconds as above."""

    calls: int = 0
    bytes: int = 0
    exposed: float = 0.0
    under_way: float = 0.0
    alone: float = 0.0

    def add(self, span: ExchangeSpan) -> None:
        """Count one call."""
        self.calls += 1
        self.bytes += span.bytes
        self.exposed += span.started - span.start + span.end - span.awaited
        self.under_way += span.over - span.start
        self.alone += span.alone


# (queue, name) -> times
Times = dict[tuple[str, str], ExchangeTimes]


class CallUnderWay:
    """A call of a verb that has begun, and is counted when it is over."""

    def __init__(
        self, traffic: "Traffic", name: CallName, links: Sizes, sends: Sizes, link: LinkTime | None
    ) -> None:
        self.traffic = traffic
        self.name = name
        self.links = links
        self.sends = sends
        self.link = link
        self.start = time.perf_counter()
        self.started = self.start

    def begun(self) -> None:
        """The rank may do something else from now on."""
        self.started = time.perf_counter()

    def seconds_left(self) -> float:
        """Until the links are done with it; 0 where they have no set speed."""
        throttle = self.traffic.throttle
        if self.link is None or throttle is None:
            return 0.0
        return self.link.done - throttle.clock()

    def over(self, awaited: float) -> None:
        """It is over. awaited : since when the rank waited for that."""
        end = time.perf_counter()
        waited = self.started - self.start + end - awaited
        self.traffic.wait(self.name.verb, waited)
        # a span costs a microsecond or two: none is made that nobody reads
        if not self.traffic.spans_wanted:
            return
        over = end
        alone = 0.0
        if self.link is not None:
            alone = self.link.alone
            if self.link.done <= awaited and end - awaited < PROMPT:  # before the rank asked
                over = max(self.link.done, self.started)
        span = ExchangeSpan(
            what=self.name.what,
            queue=self.name.queue,
            start=self.start,
            started=self.started,
            awaited=awaited,
            end=end,
            over=over,
            bytes=int(self.sends[self.links > 0].sum()),
            alone=alone,
        )
        self.traffic.finished(span)


class TimedRequest:
    """A request that is counted, and over no earlier than its link is done with it."""

    def __init__(self, request: Request, call: CallUnderWay, rest: Callable[[float], None]) -> None:
        self._request = request
        self._call: CallUnderWay | None = call
        self._rest = rest

    def wait(self) -> None:
        """Return when it is over and its link is done with it."""
        if self._call is None:
            return
        awaited = time.perf_counter()
        pulse = self._call.traffic.pulse
        pulse.wait = (self._call.name, awaited)
        self._request.wait()
        # a link of a set speed may take longer than the real transfer did
        while (seconds := self._call.seconds_left()) > 0:
            self._rest(seconds)
        # counted once, however often it is waited for
        self._call.over(awaited)
        pulse.wait = None
        self._call = None

    def test(self) -> bool:
        """Is it over? Does not wait."""
        if self._call is None:
            return True
        if not self._request.test() or self._call.seconds_left() > 0:
            return False
        self._call.over(time.perf_counter())
        self._call = None
        return True


class Traffic:
    """What one rank sent: calls by verb; messages (non-empty) and bytes by verb and link class;
    bytes by receiver.

    waited : seconds by verb in which the rank started calls and waited for them to end.
    times : the same by collective, of calls that end while it is set; None: nobody counts them.
    timeline : where calls are recorded as spans of time, if they are.
    throttle : links that are slower than the real ones, if they shall be.
    pulse : what the rank does now.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # letters are sent by threads
        self.pulse = Pulse()
        self.calls: dict[str, int] = {}
        self.waited: dict[str, float] = {}
        self.times: Times | None = None
        self.timeline: RunTimeline | None = None
        self.throttle: Throttle | None = None
        self._sent: dict[str, Sizes] = {}  # [link class, (messages, bytes)]
        # calls that are not yet in `_sent`: adding them up together is cheaper
        self._latest: dict[str, list[SentCall]] = {}
        self._received: Sizes = np.zeros(0, np.int64)  # by rank of the whole run

    def add(self, verb: str, links: Sizes, ranks: Sizes, sizes: Sizes) -> None:
        """Count one call that sends `sizes`[q] bytes to rank q, whose link class is `links`[q] and
        whose number in the whole run is `ranks`[q].

        The arrays must not change afterwards.
        """
        with self._lock:
            self.calls[verb] = self.calls.get(verb, 0) + 1
            latest = self._latest.setdefault(verb, [])
            latest.append(SentCall(links, ranks, sizes))
            if len(latest) >= TOGETHER:
                self._sum(verb)

    def _sum(self, verb: str) -> Sizes:
        """Messages and bytes of all calls of a verb: i64[link class, (messages, bytes)]."""
        sent = self._sent.setdefault(verb, np.zeros((len(LINKS), 2), np.int64))
        latest = self._latest.pop(verb, [])
        if latest:
            links, ranks, sizes = (np.concatenate(column) for column in zip(*latest))
            # a comm that was split off names ranks of the whole run, of which more may turn up
            most = int(ranks.max(initial=-1)) + 1
            if most > self._received.size:
                self._received = np.pad(self._received, (0, most - self._received.size))
            # not `+=`, which counts a rank once, however often it is among these calls
            np.add.at(self._received, ranks, sizes)
            np.add.at(sent[:, 1], links, sizes)
            np.add.at(sent[:, 0], links, sizes > 0)
        return sent

    def begin(
        self, name: CallName, links: Sizes, ranks: Sizes, sends: Sizes, recvs: Sizes
    ) -> CallUnderWay:
        """One call begins, is counted, and takes its turn on the links; `recvs`[q] bytes come from
        rank q.
        """
        self.add(name.verb, links, ranks, sends)
        link = self.throttle.start(links, sends, recvs) if self.throttle is not None else None
        return CallUnderWay(self, name, links, sends, link)

    def wait(self, verb: str, seconds: float) -> None:
        """Count seconds of waiting."""
        self.waited[verb] = self.waited.get(verb, 0.0) + seconds

    @property
    def spans_wanted(self) -> bool:
        """Does anybody count or record calls one by one?"""
        return self.times is not None or self.timeline is not None

    def finished(self, span: ExchangeSpan) -> None:
        """Count a call that is over by its collective, and record it."""
        if self.times is not None:
            self.times.setdefault((span.queue, span.what), ExchangeTimes()).add(span)
        if self.timeline is not None:
            self.timeline.exchange(span)

    @contextmanager
    def counting(self, times: Times) -> Iterator[None]:
        """Count the seconds of calls that end during the block into `times`."""
        before = self.times
        self.times = times
        try:
            yield
        finally:
            self.times = before

    def received(self) -> list[int]:
        """Bytes sent to each rank of the whole run, as far as any was sent any."""
        with self._lock:
            for verb in list(self._latest):
                self._sum(verb)
        return [int(size) for size in self._received]

    def state(self) -> dict[str, Any]:
        """JSON-able copy, without times."""
        with self._lock:
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
