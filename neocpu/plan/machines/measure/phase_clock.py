"""How long does each phase of a step take on the slowest rank? A clock, called phase by phase."""

import resource
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
# as many for phases that were disturbed in all of these
MOST_STEPS = 20
# seconds of a workload after which no more than the fewest steps are made
BUDGET = 0.2
# seconds after which disturbed phases count as they are
PATIENCE = 0.3
# bytes that are touched between two phases, as many as E of 1,024 samples with 2,000 columns has
ELSEWHERE = 8 << 20


def preemptions() -> int:
    """How often the system has given a core of this process to another one."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class PhaseClock:
    """Least seconds of each phase over several steps, on the slowest rank. Collective.

    elsewhere : bytes that are touched between two phases. A call in which any rank lost its core
    counts only where there is no other: on two cores an exchange then takes as long as the other
    program's turn, 4 ms and more instead of tenths of one.
    """

    def __init__(self, comm: Comm, elsewhere: int | None = None) -> None:
        self._comm = comm
        self._step: dict[str, tuple[int, int]] = {}
        # (was it disturbed? seconds)
        self._least: dict[str, tuple[bool, float]] = {}
        self.spent = 0.0
        # what a step touches between two phases, which find little of theirs in the caches
        self._elsewhere = np.zeros((ELSEWHERE if elsewhere is None else elsewhere) // 8)

    def __call__(self, phase: str, work: Callable[[], T]) -> T:
        """Do the work of a phase, or a part of it, all ranks beginning together."""
        # a hot loop is 1.5 to 2.5 times as fast as the same call within a step (docs/zionex.md)
        self._elsewhere += 1.0
        self._comm.barrier()
        before = preemptions()
        begin = time.perf_counter_ns()
        result = work()
        elapsed, lost = self._step.get(phase, (0, 0))
        elapsed += time.perf_counter_ns() - begin
        self._step[phase] = elapsed, lost + preemptions() - before
        return result

    def end_step(self, warm: bool) -> None:
        """A step is over; it counts if it was `warm`."""
        for phase, (elapsed, lost) in self._step.items():
            seconds = max(self._comm.largest(elapsed), 1) * 1e-9
            disturbed = self._comm.largest(lost) > 0
            self.spent += seconds
            if warm:
                timed = disturbed, seconds
                self._least[phase] = min(timed, self._least.get(phase, timed))
        self._step = {}

    def _enough(self, step: int) -> bool:
        """Were enough steps timed before this one? All ranks see the same times."""
        if step < COLD + FEWEST_STEPS:
            return False
        if any(disturbed for disturbed, _ in self._least.values()):
            return step >= COLD + MOST_STEPS or self.spent > PATIENCE
        return step >= COLD + STEPS or self.spent > BUDGET

    def steps(self, run: Callable[[int], None]) -> dict[str, float]:
        """Call `run(step)` for steps until enough were timed; the least seconds of each phase."""
        step = 0
        while not self._enough(step):
            run(step)
            self.end_step(step >= COLD)
            step += 1
        return {phase: seconds for phase, (_, seconds) in self._least.items()}
