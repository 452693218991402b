"""How is a memory made as slow as another one?

Whoever moved bytes waits until a device of that speed would have moved them.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# Waits shorter than this many seconds are saved up, because a sleep is never that exact.
TICK = 0.001


@dataclass
class Device:
    """A device of a given speed; 0: as fast as this machine.

    bandwidth : bytes per second.
    iops : operations (records read, runs written) per second.
    clock, sleep : replaced in tests.
    waited : seconds slept so far.
    share : which part of that speed there is now (None: all of it).

    A request starts when it is made or when the one before ends, whichever is later, and takes the
    larger of its two costs. Time that a sleep took too long is given back to the next request, so
    the speed is exact in the long run; idle time is not.
    """

    bandwidth: float = 0.0
    iops: float = 0.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    waited: float = 0.0
    share: Callable[[], float] | None = None
    _due: float = 0.0
    _late: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> float:
        """The time before a request is served: the `begun` of `pay`."""
        return self.clock() if self.bandwidth or self.iops else 0.0

    def pay(self, begun: float, operations: int, count: int) -> None:
        """Wait until the device would have served a request of `count` bytes made at `begun`."""
        if not self.bandwidth and not self.iops:
            return
        transfer = count / self.bandwidth if self.bandwidth else 0
        setup = operations / self.iops if self.iops else 0
        cost = max(transfer, setup) / (self.share() if self.share is not None else 1.0)
        with self._lock:
            # threads share one device: a request waits for those before it
            due = max(begun - self._late, self._due) + cost
            self._due = due
            now = self.clock()
            # what was late is given back once; time without requests is not saved up
            self._late = min(self._late, max(self._late + now - begun - cost, 0.0))
        if due - now < TICK:
            return
        # outside of the lock: others may queue up meanwhile
        self.sleep(due - now)
        with self._lock:
            woke = self.clock()
            self.waited += woke - now
            self._late = max(woke - self._due, 0.0)
