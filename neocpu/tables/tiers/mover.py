"""Who moves rows while a step computes? A thread of its own, one move at a time, in order."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from neocpu.core.cores import roam
from neocpu.kernels.compile.threads import use_threads

Work = Callable[[], None]
Job = Future[None]


class Mover:
    """Runs moves one after the other: at once, or on a thread (`ahead`).

    The order keeps rows from being lost: a row that is fetched was written home by an earlier move.
    After a move that failed no further move runs.

    Attributes: stalled, seconds that the caller ran moves or waited for them.
    """

    def __init__(self, ahead: bool = False) -> None:
        self.stalled = 0.0
        self._pool = ThreadPoolExecutor(1, "neocpu-mover", _prepare) if ahead else None
        self._failed: BaseException | None = None

    def run(self, work: Work) -> Job:
        """Run a move after all moves before it."""
        if self._pool is not None:
            return self._pool.submit(self._run, work)
        job = Job()
        begun = time.perf_counter()
        try:
            self._run(work)
            job.set_result(None)
        except BaseException as error:
            job.set_exception(error)
        self.stalled += time.perf_counter() - begun
        return job

    def _run(self, work: Work) -> None:
        # its rows may not have gone home: a later move could fetch old bytes
        if self._failed is not None:
            raise self._failed
        try:
            work()
        except BaseException as error:
            self._failed = error
            raise

    def wait(self, job: Job) -> None:
        """Wait for a move, and so for all before it; raises the error of the first that failed."""
        begun = time.perf_counter()
        try:
            job.result()
        finally:
            self.stalled += time.perf_counter() - begun

    def close(self) -> None:
        """End the thread, after the moves under way."""
        if self._pool is not None:
            self._pool.shutdown()


def _prepare() -> None:
    # threads inherit the one core of the thread that made them
    roam()
    use_threads(1)  # the cores are busy with the step
