"""Which thread looks for messages? One at a time: whoever waits for an answer, otherwise a thread
that does nothing else.

So an answer is read by the thread that wants it, without a switch of threads. A waiter that finds
nothing asks again at once for `SPIN` seconds. Not so where a worker has something to do, for which
it would hold Python's lock up, or where others want the core: who sleeps much is given it sooner
than who never does. Then it asks and sleeps in turn, as the thread always does: each sleep takes a
quarter of the time in which nothing came, so that a rank that nobody calls takes no core.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from neocpu.parallel.rpc.workers import Workers
from neocpu.parallel.transport.mail import Mail

# Seconds of asking without a sleep: with a core of its own, and in a crowd.
SPIN = 2e-3
SPIN_IN_CROWD = 2e-5
# Somebody else had the core if that long passes between two questions; the crowd is there so long.
PREEMPTED = 5e-4
CROWD_STAYS = 1.0
# Seconds of the first sleep, of which the system makes some 70 µs, and of the longest.
FIRST_SLEEP = 2e-5
LAST_SLEEP = 2e-3
# A waiter that stood in for the thread so long wakes it when it goes.
LONG_WAIT = 1e-3
# Seconds after which a waiter looks by itself whether what it waits for is done.
TURN = 0.1


class Progress:
    """Who reads.

    poll : reads what has come, and says whether something had. mail : that it reads.
    workers : one of them may be who waits.
    """

    def __init__(
        self,
        poll: Callable[[], bool],
        mail: Mail,
        workers: Workers,
        name: str,
    ) -> None:
        self._poll = poll
        self._mail = mail
        self._workers = workers
        self._reading = threading.Lock()
        self._changed = threading.Condition()
        self._sleepers: set[threading.Condition] = set()
        self._wake = threading.Event()
        self._waiters = 0
        self._closed = False
        self._crowded = 0.0  # until when it does not ask without a sleep
        self._own = threading.local()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Read from now on."""
        self._thread.start()

    @property
    def reads(self) -> bool:
        """Is this thread reading, somewhere below?"""
        return getattr(self._own, "reads", False)

    def wait_for(
        self, done: Callable[[], bool], changed: threading.Condition | None = None
    ) -> None:
        """Return when `done`; raises what reading raised, if it failed for good.

        changed : is notified then (None: by `tell`).
        """
        if not done():
            with self._workers.waiting():
                self._wait_for(done, changed or self._changed)

    def _wait_for(self, done: Callable[[], bool], changed: threading.Condition) -> None:
        while not done():
            if self._failure is not None:
                raise self._failure
            if self._reading.acquire(blocking=False):
                self._waiters += 1
                try:
                    self._read_until(done)
                finally:
                    self._waiters -= 1
                    self._reading.release()
                    self._hand_on()
            else:
                self._sleepers.add(changed)
                with changed:
                    if not done():
                        changed.wait(TURN)
                self._sleepers.discard(changed)

    def _hand_on(self) -> None:
        """This thread reads no more: one that sleeps may do so."""
        with suppress(KeyError):
            changed = self._sleepers.pop()
            with changed:
                changed.notify()

    def tell(self) -> None:
        """Something that a thread may wait for is done."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Read no more."""
        self._closed = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _read_until(self, done: Callable[[], bool]) -> None:
        start = quiet = last = time.perf_counter()
        while not done():
            came = self._read()
            now = time.perf_counter()
            if came:
                quiet = last = now
                continue
            if now - last > PREEMPTED:
                self._crowded = now + CROWD_STAYS
            idle = now - quiet
            spin = SPIN if now > self._crowded else SPIN_IN_CROWD
            if idle > spin or not self._mail.asks or self._workers.busy():
                self._mail.rest(_pause(idle))
                now = time.perf_counter()
            last = now
        if time.perf_counter() - start > LONG_WAIT:
            self._wake.set()

    def _read(self) -> bool:
        self._own.reads = True
        try:
            return self._poll()
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._own.reads = False

    def _run(self) -> None:
        quiet = time.perf_counter()
        while not self._closed:
            if self._waiters or not self._reading.acquire(blocking=False):
                self._wake.wait(_pause(time.perf_counter() - quiet))
                self._wake.clear()
                continue
            try:
                moved = self._read()
            except BaseException:  # kept, and raised by whoever waits
                self.tell()
                return
            finally:
                self._reading.release()
            if moved:
                quiet = time.perf_counter()
            else:
                self._mail.rest(_pause(time.perf_counter() - quiet))


def _pause(idle: float) -> float:
    """Seconds to sleep after so many in which nothing came."""
    return min(max(idle / 4, FIRST_SLEEP), LAST_SLEEP)
