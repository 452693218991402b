"""How far may a thread run ahead of the others? As far as the run's staleness says.

Stale synchronous parallel (Ho et al. 2013): each worker asks before each step, and is answered when
the slowest is near enough. All workers end after the same step, also where a signal ends the run.
"""

from collections.abc import Callable
from typing import NamedTuple

from neocpu.parallel.rpc.futures import Future
from neocpu.train.config.asynchronous import ANY


class _Waiting(NamedTuple):
    worker: int
    step: int
    future: Future


class StalenessClock:
    """The steps of all workers, on one rank.

    workers : how many. staleness : steps that one may be ahead of the slowest (-1: any). last : the
    step after which the run ends. done : steps that all have taken before.
    future : makes the answer of a call that waits.

    Attributes: begun, the last step that a worker has begun; lead, the most steps that one was
    ahead when it began one.
    """

    def __init__(
        self,
        workers: int,
        staleness: int,
        last: int,
        done: int,
        future: Callable[[], Future],
    ) -> None:
        self.lead = 0
        self._staleness = staleness
        self._last = last
        self.begun = done
        self._done = [done] * workers
        self._waiting: list[_Waiting] = []
        self._future = future

    def begin(self, worker: int, step: int, stop: bool) -> Future:
        """A worker has taken all steps before `step`: may it take this one? The value is whether.

        stop : no step is to begin that no worker has begun.
        """
        self._done[worker] = step - 1
        if stop:
            self._last = min(self._last, self.begun)
        future = self._future()
        self._waiting.append(_Waiting(worker, step, future))
        waiting = self._waiting
        self._waiting = []
        for call in waiting:
            self._answer(call)
        return future

    def _answer(self, call: _Waiting) -> None:
        if call.step > self._last:
            call.future.finish(False)
            return
        lead = call.step - 1 - min(self._done)
        if self._staleness != ANY and lead > self._staleness:
            self._waiting.append(call)
            return
        self.begun = max(self.begun, call.step)
        self.lead = max(self.lead, lead)
        call.future.finish(True)
