"""How fast is a run? The time of its steps, and how long the first one took to come.

The first step also maps pages and fills caches, so it counts for the cold start only; speed is that
of the steps after it.
"""

import time


class StepClock:
    """Measures the steps of one process.

    Attributes: seconds and samples (of all ranks) of the steps after the first; cold_start, seconds
    from the start of the process to the end of its first step (None before that).
    """

    def __init__(self, process_start: float) -> None:
        self.seconds = 0.0
        self.cold_start: float | None = None
        self._process_start = process_start  # as `time.time()` tells it
        self.samples = 0
        self._begin = 0.0

    def start(self) -> None:
        """A step begins."""
        self._begin = time.perf_counter()

    def stop(self, samples: int) -> None:
        """The step is done; it trained on so many `samples` of all ranks."""
        if self.cold_start is None:
            # wall time: the start of the process is not on this process's monotonic clock
            self.cold_start = time.time() - self._process_start
            return
        self.seconds += time.perf_counter() - self._begin
        self.samples += samples

    @property
    def samples_per_second(self) -> float:
        """Samples of all ranks a second; 0 where no step was timed."""
        return self.samples / self.seconds if self.seconds else 0.0
