"""How do several models train on one rank? They take turns: one of them works at a time, in an
order that all ranks have.

    the first works until it begins a step, then the second, ...   all between their steps
    then their operations, in the order of a round                 steps
    whoever is through goes on to the beginning of its next step, the others after it

Each model has a thread, of which one runs. Who comes next never depends on time, so exchanges begin
in one order on all ranks.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from neocpu.core.errors import Stopped
from neocpu.parallel.transport.abort import StopSignal

T = TypeVar("T")
POLL = 0.2  # seconds between looks for a signal


class _OtherFailed(BaseException):
    """Another model failed: this one ends where it is."""


def _nothing() -> None:
    """Nothing is due once all have met."""


class TrainingRounds(Generic[T]):
    """Turns of so many models, each of which returns a T.

    Attribute: order, the model of each operation of a round.
    """

    def __init__(self, models: int) -> None:
        self.order: Sequence[int] = ()
        self._models = range(models)
        self._working = set(self._models)
        self._met: set[int] = set()  # those that wait for the others between their steps
        self._turn = 0
        self._changed = threading.Condition()
        self._results: dict[int, T] = {}
        self._errors: dict[int, BaseException] = {}

    def run(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """Do the work of all models; their results.

        Raises the error of the first that failed: the others then end where they are. One that
        was asked to stop lets the others come to their own stops.
        """
        threads = [
            threading.Thread(target=self._work, args=(model, work), name=f"model {model}")
            for model, work in enumerate(works)
        ]
        for thread in threads:
            # an error ends the process, whatever the others wait for
            thread.daemon = True
            thread.start()
        before = StopSignal.held
        with StopSignal() as stop, self._changed:
            while self._working and not self._failed():
                self._changed.wait(POLL)
                # threads have no signals of their own
                StopSignal.held = StopSignal.held or stop.number
        StopSignal.held = before
        for thread in threads:
            thread.join(POLL if self._failed() else None)
        if self._errors:
            raise next(iter(self._errors.values()))
        return [self._results[model] for model in self._models]

    def _failed(self) -> bool:
        return any(not isinstance(error, Stopped) for error in self._errors.values())

    def _work(self, model: int, work: Callable[[], T]) -> None:
        """The thread of a model."""
        try:
            self._wait(model)
            self._results[model] = work()
        except _OtherFailed:
            return
        except BaseException as error:  # noqa: BLE001 - told in `run`, whatever it is
            self._errors[model] = error
        with self._changed:
            self._working.discard(model)
            self._met.discard(model)
            if self._working:
                self._pass_on()
            self._changed.notify_all()

    def meet(self, model: int, last: Callable[[], None] = _nothing) -> None:
        """Wait until all models are between their steps, and it is this one's turn.

        last : done by the one that comes last.
        """
        with self._changed:
            self._met.add(model)
            everybody = self._met == self._working
        if everybody:
            last()
        with self._changed:
            self._pass_on()
        self._wait(model)

    def after(self, model: int, operation: int) -> None:
        """An operation of the round is done: wait until the next one of this model comes."""
        for owner in self.order[operation + 1 :]:
            if owner == model:
                return
            if owner in self._working:
                with self._changed:
                    self._turn = owner
                    self._changed.notify_all()
                self._wait(model)
                return

    def _pass_on(self) -> None:
        """Give the turn to one that is not yet between its steps, or begin a round."""
        late = self._working - self._met
        if late:
            self._turn = min(late)
        else:
            self._met.clear()
            self._turn = next((x for x in self.order if x in self._working), min(self._working))
        self._changed.notify_all()

    def _wait(self, model: int) -> None:
        """Until it is a model's turn."""
        with self._changed:
            while self._turn != model:
                if self._failed():
                    raise _OtherFailed
                self._changed.wait()
            if self._failed():
                raise _OtherFailed
