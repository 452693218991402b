"""How is a rate measured? Calls that all ranks make together; the least of several tries counts."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neocpu.parallel.transport.comm import Comm
from neocpu.plan.machines.curves import true_seconds

BATCHES = 4  # that take turns, so that rows are not all in the processor's cache
MOST_TRIES = 20  # of one call, however fast it is


@dataclass(frozen=True)
class Effort:
    """How much is measured, and how often.

    sides : of products. samples : of a batch. bag : lookups of a bag. heights, row_bytes : of
        tables. copies, messages : bytes. records : their bytes. record_count : moved at a time.
    home_bytes : of the memory, or file, that records are moved from. tries : least number, of which
    the fastest counts. least : seconds that a try takes, if calls can be repeated. budget : seconds
    for which further tries are made. phases : whether those of our own step are measured.
    """

    sides: tuple[int, ...]
    samples: int
    bag: int
    heights: tuple[int, ...]
    row_bytes: tuple[int, ...]
    copies: tuple[int, ...]
    messages: tuple[int, ...]
    records: tuple[int, ...]
    record_count: int
    home_bytes: int
    tries: int
    least: float
    budget: float
    phases: bool


EFFORTS = {
    "full": Effort(
        sides=(1, 4, 16, 64, 256, 1024),
        samples=1024,
        bag=16,
        heights=(1_000, 30_000, 200_000),
        row_bytes=(32, 128, 512, 2048),
        copies=(64, 4 << 10, 64 << 10, 1 << 20, 64 << 20),
        messages=(64, 1 << 10, 16 << 10, 256 << 10, 4 << 20),
        records=(64, 512, 4096),
        record_count=4096,
        home_bytes=32 << 20,
        tries=3,
        least=1e-3,
        budget=0.03,
        phases=True,
    ),
    "quick": Effort(
        sides=(4, 64, 256),
        samples=256,
        bag=8,
        heights=(1_000, 100_000),
        row_bytes=(64, 512),
        copies=(64, 64 << 10, 32 << 20),
        messages=(64, 16 << 10, 1 << 20),
        records=(512,),
        record_count=1024,
        home_bytes=8 << 20,
        tries=2,
        least=3e-4,
        budget=0.005,
        phases=False,
    ),
}


class Stopwatch:
    """Times calls that all ranks make together."""

    def __init__(self, comm: Comm, effort: Effort) -> None:
        self._comm = comm
        self._effort = effort

    def least(
        self, call: Callable[[], object], prepare: Callable[[], object] | None = None
    ) -> float:
        """Seconds of a call on the slowest rank, the least of several tries. Collective.

        prepare : called before each try, outside of the time; the call is then not repeated.
        """
        # The first call compiles, and touches memory for the first time.
        self._try(call, prepare, 1)
        best = self._try(call, prepare, 1)
        # short calls are repeated until the clock's resolution does not matter
        repeats = 1 if prepare else max(1, min(1000, int(self._effort.least / best)))
        # Preparations are not in the budget, and may take long.
        budget = 0.0 if prepare else self._effort.budget
        tries = 0
        spent = 0.0
        # All ranks see the same times, so they make the same number of tries.
        while tries < self._effort.tries or (spent < budget and tries < MOST_TRIES):
            seconds = self._try(call, prepare, repeats)
            best = min(best, seconds)
            spent += seconds * repeats
            tries += 1
        return best

    def _try(
        self, call: Callable[[], object], prepare: Callable[[], object] | None, repeats: int
    ) -> float:
        if prepare:
            prepare()
        # the time of an exchange begins when its last rank is there
        self._comm.barrier()
        begin = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        elapsed = self._comm.largest(time.perf_counter_ns() - begin)
        return max(elapsed, 1) / repeats * 1e-9


def rates(work: Sequence[float], seconds: Sequence[float]) -> tuple[float, ...]:
    """Work / seconds, for ascending work."""
    return tuple(amount / each for amount, each in zip(work, true_seconds(seconds)))
