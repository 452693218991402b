"""What does a rank do now? It notes that, and a watch in another thread reads it
(`parallel/watch/watchdog.py`).

A note is one store of an attribute, some 50 ns, and other threads see the old value or the new one.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

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
