"""What does a rank do now, and when did it do what?

It notes what it does, and a watch in another thread reads it (`parallel/watch/watchdog.py`): a note
is one store of an attribute, some 50 ns, and other threads see the old value or the new one. For
`--trace` it keeps spans of time.

Times are seconds of `time.perf_counter`, which counts from no fixed moment and runs apart on other
hosts; who puts several ranks on one clock corrects them (`train/watch/trace.py`). Spans of
the first steps and of the last ones are kept, so that a long run does not fill the memory.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

# Steps at either end of a run whose spans are kept.
KEPT_STEPS = 50
# (queue, verb, name) of a collective, and since when the rank waits for it, by `perf_counter`
Wait = tuple[tuple[str, str, str], float]


class Pulse:
    """What one rank does.

    step : that it takes; 0 before the first. doing : stage of the step, or what else it does.
    lengthy : may that take long, as reading data, compiling and writing? wait : the collective that
    it waits for. checkpoint : path of the newest one that is complete.
    """

    def __init__(self) -> None:
        self.step = 0
        self.doing = "preparing the first step"
        self.lengthy = True
        self.wait: Wait | None = None
        self.checkpoint = ""

    def begin_step(self, step: int, lengthy: bool) -> None:
        """The step of this number begins. lengthy : it may have to compile."""
        self.step = step
        self.doing = "reading the batch"
        self.lengthy = lengthy

    def begin(self, work: str) -> None:
        """Work between steps begins, which may take long."""
        self.doing = work
        self.lengthy = True

    @contextmanager
    def waiting(self, verb: str) -> Iterator[None]:
        """All ranks have to come to the end of the block."""
        self.wait = (("", verb, ""), time.perf_counter())
        try:
            yield
        finally:
            self.wait = None


class StageSpan(NamedTuple):
    """A part of a step that a rank computed: its stage, when it began and ended."""

    stage: str
    start: float
    end: float


class ExchangeSpan(NamedTuple):
    """A collective.

    what, queue : its name, and the queue on which it was called.
    start, started : when the call began, and when the rank could go on.
    awaited, end : from when the rank waited for it, and until when.
    over : when it was done, as far as the rank knows; `end` where the rank did not learn it before.
    bytes : sent to other ranks. alone : seconds that it takes links of a set speed, otherwise 0.
    """

    what: str
    queue: str
    start: float
    started: float
    awaited: float
    end: float
    over: float
    bytes: int
    alone: float


class TracedStep:
    """The spans that ended in one step, or between it and the next.

    step : its number, from 1; 0 is what came before the first. start : when it began.
    """

    def __init__(self, step: int, start: float) -> None:
        self.step = step
        self.start = start
        self.spans: list[StageSpan] = []
        self.exchanges: list[ExchangeSpan] = []


class RunTimeline:
    """The spans of one rank: those of the first `kept` steps and of the last `kept` steps."""

    def __init__(self, kept: int = KEPT_STEPS) -> None:
        self.kept = kept
        self.dropped = 0  # steps
        self._first: list[TracedStep] = []
        self._last: deque[TracedStep] = deque()
        self.begin_step(0)

    @property
    def steps(self) -> list[TracedStep]:
        """What is kept, in order."""
        return [*self._first, *self._last]

    def begin_step(self, step: int) -> None:
        """Spans that end from now on are of this step."""
        self._current = TracedStep(step, time.perf_counter())
        # step 0 takes no place of the first steps
        if len(self._first) <= self.kept:
            self._first.append(self._current)
            return
        self._last.append(self._current)
        # the beginning and the end of a long run: what lies between would fill the memory
        if len(self._last) > self.kept:
            self._last.popleft()
            self.dropped += 1

    @contextmanager
    def span(self, stage: str) -> Iterator[None]:
        """Record the time of the block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._current.spans.append(StageSpan(stage, start, time.perf_counter()))

    def exchange(self, span: ExchangeSpan) -> None:
        """Record a collective that is over."""
        self._current.exchanges.append(span)
