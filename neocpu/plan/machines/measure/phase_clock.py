"""How long does each phase of a step take on the slowest rank? A clock, called phase by phase."""

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from neocpu.parallel.transport.comm import Comm

T = TypeVar("T")
# steps that do not count, and steps of which the fastest counts, phase by phase
COLD = 2
STEPS = 10
FEWEST_STEPS = 4
# seconds of a workload after which no more than the fewest steps are made
BUDGET = 0.2
# bytes that are touched between two phases, as many as E of 1,024 samples with 2,000 columns has
ELSEWHERE = 8 << 20


class PhaseClock:
    """Least seconds of each phase over several steps, on the slowest rank. Collective."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._step: dict[str, int] = {}
        self.least: dict[str, float] = {}
        self.spent = 0.0
        # what a step touches between two phases, which find little of theirs in the caches
        self._elsewhere = np.zeros(ELSEWHERE // 8)

    def __call__(self, phase: str, work: Callable[[], T]) -> T:
        """Do the work of a phase, all ranks beginning together."""
        # a hot loop is 1.5 to 2.5 times as fast as the same call within a step (docs/zionex.md)
        self._elsewhere += 1.0
        self._comm.barrier()
        begin = time.perf_counter_ns()
        result = work()
        self._step[phase] = time.perf_counter_ns() - begin
        return result

    def end_step(self, warm: bool) -> None:
        """A step is over; it counts if it was `warm`."""
        for phase, elapsed in self._step.items():
            seconds = max(self._comm.largest(elapsed), 1) * 1e-9
            self.spent += seconds
            if warm:
                self.least[phase] = min(seconds, self.least.get(phase, seconds))

    def steps(self, run: Callable[[int], None]) -> dict[str, float]:
        """Call `run(step)` for steps until enough were timed; the least seconds of each phase."""
        for step in range(COLD + STEPS):
            # all ranks see the same times, so they stop together
            if step >= COLD + FEWEST_STEPS and self.spent > BUDGET:
                break
            run(step)
            self.end_step(step >= COLD)
        return self.least
