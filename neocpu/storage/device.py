"""How is a memory made as slow as another one? Whoever moved bytes waits until a device of that
speed would have moved them.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

TICK = 0.001  # seconds of waiting below which nobody is sent to sleep: they add up


@dataclass
class Device:
    """A speed: bytes per second, and operations (records read, runs written) per second; 0: as fast
    as it is.

    Exact in the long run: a request starts when it was made or when the one before ends, whichever
    is later, and takes the larger of its two costs; time that a sleep took too long is given back
    to the next request, but idle time is not. Waiting sleeps. `clock` and `sleep` are for tests.
    """

    bandwidth: float = 0.0
    iops: float = 0.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    waited: float = 0.0
    _due: float = 0.0
    _late: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> float:
        """The time before a request is served."""
        return self.clock() if self.bandwidth or self.iops else 0.0

    def pay(self, begun: float, operations: int, count: int) -> None:
        """A request of so many operations and bytes was served since `begun`: wait until the device
        would have done it.
        """
        if not self.bandwidth and not self.iops:
            return
        cost = max(
            count / self.bandwidth if self.bandwidth else 0,
            operations / self.iops if self.iops else 0,
        )
        with self._lock:
            self._due = due = max(begun - self._late, self._due) + cost
            now = self.clock()
            self._late = min(self._late, max(self._late + now - begun - cost, 0.0))
        if due - now < TICK:
            return
        self.sleep(due - now)
        with self._lock:
            woke = self.clock()
            self.waited += woke - now
            self._late = max(woke - self._due, 0.0)
