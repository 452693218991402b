"""Which thread runs a function that another rank called? One of a few workers, in the order in
which the calls came.

At most `threads` functions run at a time. One that waits for a call of its own does not count
meanwhile, or ranks that call each other would wait for ever; it goes on before another begins.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from neocpu.core.errors import RpcError

MOST = 512  # threads, of functions that run and that wait; others begin later


class Workers:
    """Threads that run tasks, made when they are needed. threads : tasks that run at a time."""

    def __init__(self, threads: int, name: str) -> None:
        if threads < 1:
            raise RpcError(f"an agent has {threads} threads; it needs 1 or more")
        self._limit = threads
        self._name = name
        lock = threading.Lock()
        self._beginning = threading.Condition(lock)  # of idle threads
        self._going_on = threading.Condition(lock)  # of functions whose wait is over
        self._lock = lock
        self._tasks: deque[Callable[[], None]] = deque()
        self._running = 0
        self._resuming = 0
        self._idle = 0
        self._threads = 0
        self._closed = False
        self._own = threading.local()

    def put(self, task: Callable[[], None]) -> None:
        """Run a task, which raises nothing, after those that were put before."""
        with self._lock:
            self._tasks.append(task)
            self._wake()

    def busy(self) -> bool:
        """Does any task run, or wait?"""
        with self._lock:
            return bool(self._tasks) or self._threads > self._idle

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The block waits for another rank; another task may run instead."""
        if not getattr(self._own, "works", False):
            yield
            return
        with self._lock:
            self._running -= 1
            self._wake()
        try:
            yield
        finally:
            with self._lock:
                self._resuming += 1
                self._going_on.wait_for(lambda: self._running < self._limit)
                self._resuming -= 1
                self._running += 1

    def close(self) -> None:
        """Begin no task any more."""
        with self._lock:
            self._closed = True
            self._beginning.notify_all()

    def _wake(self) -> None:
        """Whoever may go on or begin does; with the lock held."""
        self._going_on.notify()
        self._beginning.notify()
        claimed = self._running + self._resuming + self._idle
        more = len(self._tasks) > self._idle and claimed < self._limit
        if more and self._threads < MOST:
            self._threads += 1
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _may_begin(self) -> bool:
        return self._closed or (bool(self._tasks) and self._running + self._resuming < self._limit)

    def _work(self) -> None:
        self._own.works = True
        while True:
            with self._lock:
                self._idle += 1
                self._beginning.wait_for(self._may_begin)
                self._idle -= 1
                if self._closed:
                    self._threads -= 1
                    return
                task = self._tasks.popleft()
                self._running += 1
            task()
            # what it took and made is freed before the next call comes
            del task
            with self._lock:
                self._running -= 1
                self._wake()
