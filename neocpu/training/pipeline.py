"""Who runs the stages of a step, in which order? One loop over the schedule, the same for all
kinds of pipelining.

A rank computes the stages of its compute queue in their order. Before a stage it waits for the
exchanges that the stage needs, and after each it starts the exchanges whose needs are met, also
those of coming batches. Nothing here decides by what time it is, so all ranks start exchanges in
one order.

    step i     compute      lookup  bottom  top  upper'  lower' ...             batch i
               exchanges    output, gradient, replicas, sums                    batch i
               ahead        read, copy, input, index, prefetch                  batches i+1 ...
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from neocpu.errors import NeocpuError
from neocpu.simulation.schedule import EXCHANGE, NONE_AHEAD, Stage

T = TypeVar("T")
COMPUTE = "compute"


class Waitable(Protocol):
    """An exchange under way."""

    def wait(self) -> object:
        """Return when it is over."""


# What a stage does with a batch; exchanges return what is to be waited for, if anything.
Work = Callable[[T], Waitable | None]
Span = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class _Failed:
    """An exchange that could not begin: the error belongs to its batch, and waits for its turn."""

    error: Exception

    def wait(self) -> None:
        raise self.error


@dataclass
class _Progress:
    """How many batches of a stage have begun, and how many are done; exchanges between them."""

    begun: int = 0
    done: int = 0


def _no_span(_: str) -> AbstractContextManager[None]:
    return nullcontext()


class Pipeline(Generic[T]):
    """Runs the stages of one batch after the other, and of coming batches meanwhile.

    Parameters
    ----------
    stages : the schedule, as `simulation.schedule.pipelined` makes it for `ahead`.
    work : what a stage does; stages without work take no time.
    items : the batches, taken one by one by the first stage, which has no work of its own.
    ahead : batches by which stages run ahead of their step; others do not.
    span : called with the name of each stage that works; a context for its time.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        work: Mapping[str, Work[T]],
        items: Iterator[T],
        ahead: Mapping[str, int] = NONE_AHEAD,
        span: Span = _no_span,
    ) -> None:
        self._stages = {stage.name: stage for stage in stages}
        self._work = work
        self._items = items
        self._ahead = ahead
        self._span = span
        self._reader = stages[0].name
        self._progress = {stage.name: _Progress() for stage in stages}
        self._batches: dict[int, T] = {}
        self._under_way: dict[tuple[str, int], Waitable] = {}
        self._now = 0  # the batch whose step it is
        self._end: int | None = None  # number of batches, once it is known

    def step(self) -> T | None:
        """All stages of the next batch, and what of coming ones is due; None if there is none.

        Raises whatever a stage raises; an exchange that fails for a coming batch raises in that
        batch's step.
        """
        for stage in self._stages.values():
            if stage.kind != EXCHANGE and stage.queue != COMPUTE:
                for batch in range(self._progress[stage.name].done, self._due(stage) + 1):
                    self._finish(stage, batch)
        if not self._exists(self._now):
            return None
        for stage in self._stages.values():
            if stage.queue == COMPUTE:
                self._finish(stage, self._now)
        for stage in self._stages.values():  # exchanges that no stage waited for
            self._finish(stage, self._now)
        self._now += 1
        return self._batches.pop(self._now - 1)

    def close(self) -> None:
        """Wait for exchanges that are under way, of batches whose step will not come."""
        for exchange in self._under_way.values():
            with suppress(NeocpuError):  # whoever takes up that batch will meet its error
                exchange.wait()
        self._under_way.clear()

    def _due(self, stage: Stage) -> int:
        """The last batch of which this stage may run during the step."""
        return self._now + self._ahead.get(stage.name, 0)

    def _exists(self, batch: int) -> bool:
        return self._end is None or batch < self._end

    def _finish(self, stage: Stage, batch: int) -> None:
        """See that a stage is done for a batch, and all that it needs."""
        progress = self._progress[stage.name]
        if progress.done > batch or not self._exists(batch):
            return
        if progress.begun <= batch:
            for name, earlier in self._needs(stage, batch):
                self._finish(self._stages[name], earlier)
            if not self._exists(batch):  # the first stage has met the end meanwhile
                return
            self._begin(stage, batch)
        if (exchange := self._under_way.pop((stage.name, batch), None)) is not None:
            exchange.wait()
        progress.done = batch + 1
        self._start_exchanges()

    def _begin(self, stage: Stage, batch: int) -> None:
        progress = self._progress[stage.name]
        progress.begun = batch + 1
        if stage.name == self._reader:
            item = next(self._items, None)
            if item is None:
                self._end = batch
            else:
                self._batches[batch] = item
            return
        work = self._work.get(stage.name)
        if work is None:
            return
        try:
            with self._span(stage.name):
                exchange = work(self._batches[batch])
        except Exception as error:
            if stage.kind != EXCHANGE or batch == self._now:
                raise
            exchange = _Failed(error)
        if exchange is not None:
            self._under_way[stage.name, batch] = exchange

    def _needs(self, stage: Stage, batch: int) -> Iterator[tuple[str, int]]:
        """(stage, batch) pairs that must be done before."""
        for name in stage.needs:
            yield name, batch
        for name, distance in stage.earlier:
            if batch >= distance:
                yield name, batch - distance

    def _start_exchanges(self) -> None:
        """Start every exchange that is due and has what it needs."""
        for stage in self._stages.values():
            if stage.kind != EXCHANGE:
                continue
            progress = self._progress[stage.name]
            while progress.begun <= self._due(stage) and self._exists(progress.begun):
                needs = self._needs(stage, progress.begun)
                if any(self._progress[name].done <= earlier for name, earlier in needs):
                    break
                self._begin(stage, progress.begun)
