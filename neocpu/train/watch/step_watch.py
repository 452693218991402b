"""How are the steps of a run watched? Their exchanges are timed, and traced if that is asked for.

Links get the speed that the config sets (`parallel/transport/throttle.py`) as long as steps are
watched.
"""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from neocpu.parallel.settings import ParallelConfig
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.sent import Times
from neocpu.parallel.transport.throttle import Throttle, link_speeds
from neocpu.train.watch.exchange_times import exchange_report
from neocpu.train.watch.results import Tell, silent

if TYPE_CHECKING:
    from neocpu.train.watch.trace import RunTrace


class StepWatch:
    """The exchanges of the steps of one rank.

    Those of the first step are not counted, as its time is not (`StepClock`).
    """

    def __init__(self, comm: Comm, config: ParallelConfig, trace: "RunTrace | None") -> None:
        self._comm = comm
        self._speeds = link_speeds(config.link_bandwidth, config.link_latency)
        self._trace = trace
        self._times: Times = {}
        self._steps = -1

    def prepare(self) -> None:
        """Raise ConfigError, on every rank, if there is a trace that cannot be written."""
        if self._trace is not None:
            self._trace.check_writable()

    def start(self) -> None:
        """Steps follow. Collective."""
        if self._trace is not None:
            self._trace.start()
        if self._speeds:
            # from here on: converting data and compiling are no part of what is tried out
            self._comm.sent.throttle = Throttle(self._speeds)

    def counting(self) -> AbstractContextManager[None]:
        """Exchanges that end in the block are those of a step."""
        # the first step also maps pages and fills caches
        return self._comm.sent.counting(self._times if self._steps >= 0 else {})

    def begin_step(self, step: int) -> None:
        """The step of this number begins."""
        if self._trace is not None:
            self._trace.begin_step(step)

    def end_step(self) -> None:
        """It is over."""
        self._steps += 1

    def stop(self, tell: Tell = silent) -> None:
        """No step follows; the trace is written. Collective."""
        if self._trace is not None:
            self._trace.finish(tell)

    def release(self) -> None:
        """Leave the comm as it was."""
        self._comm.sent.throttle = None
        self._comm.sent.timeline = None

    def report(self) -> dict[str, object]:
        """What exchanges took in a mean step (`exchange_times.py`). Collective."""
        return exchange_report(self._comm, self._times, max(self._steps, 1))
