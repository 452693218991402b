"""When did a rank do what? Spans of time, for `--trace`.

Times are seconds of `time.perf_counter`, which counts from no fixed moment and runs apart on other
hosts; who puts several ranks on one clock corrects them.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class StageSpan(NamedTuple):
    """A part of a step that a rank computed: its stage, when it began and ended."""

    stage: str
    start: float
    end: float


class ExchangeSpan(NamedTuple):
    """A collective: its name, when it began, from when it was waited for, and when it was over."""

    what: str
    start: float
    awaited: float
    end: float


class RunTimeline:
    """The spans of one rank, in the order in which they ended."""

    def __init__(self) -> None:
        self.spans: list[StageSpan] = []
        self.exchanges: list[ExchangeSpan] = []

    @contextmanager
    def span(self, stage: str) -> Iterator[None]:
        """Record the time of the block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spans.append(StageSpan(stage, start, time.perf_counter()))

    def exchange(self, what: str, start: float, awaited: float, end: float) -> None:
        """Record a collective."""
        self.exchanges.append(ExchangeSpan(what, start, awaited, end))
