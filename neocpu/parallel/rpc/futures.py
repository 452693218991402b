"""What does a caller hold whose call is not over? A future."""

import math
import threading
import time
from collections.abc import Callable

from neocpu.core.errors import RpcError
from neocpu.parallel.rpc.failures import CallTimeout
from neocpu.parallel.rpc.progress import Progress

_UNSET = object()


class Future:
    """The outcome of a call: a value or an error, once there is one.

    progress : of the agent, which is moved on by whoever waits. what : is awaited, for messages.
    """

    def __init__(self, progress: Progress, what: str) -> None:
        self.what = what
        self._progress = progress
        self._value: object = _UNSET
        self._error: BaseException | None = None
        self._over = False
        self._changed = threading.Condition()
        self._callbacks: list[Callable[[Future], None]] = []

    def done(self) -> bool:
        """Is there an outcome? Does not wait."""
        return self._over

    def wait(self, timeout: float = math.inf) -> object:
        """The value, once it is there. Raises the call's error, and CallTimeout after so many
        seconds, in which case the call goes on.
        """
        if not self._over:
            if self._progress.reads:
                raise RpcError(
                    f"a function that was registered as quick waits for {self.what}; register it "
                    "without quick=True"
                )
            end = time.monotonic() + timeout
            self._progress.wait_for(lambda: self._over or time.monotonic() > end, self._changed)
            if not self._over:
                raise CallTimeout(f"{self.what} was not there within {timeout:g} s")
        if self._error is not None:
            raise self._error
        return self._value

    def error(self) -> BaseException | None:
        """The error of a call that is over, if it failed."""
        return self._error

    def then(self, callback: Callable[["Future"], None]) -> None:
        """Call back with this future when it is over, in the thread that reads; at once if it is.
        The callback must not wait.
        """
        with self._changed:
            if not self._over:
                self._callbacks.append(callback)
                return
        callback(self)

    def finish(self, value: object) -> bool:
        """This is the value; False where the future was over already."""
        return self._end(value, None)

    def fail(self, error: BaseException) -> bool:
        """This is the error; False where the future was over already."""
        return self._end(None, error)

    def _end(self, value: object, error: BaseException | None) -> bool:
        with self._changed:
            if self._over:
                return False
            self._value = value
            self._error = error
            self._over = True
            callbacks = self._callbacks
            self._callbacks = []
            self._changed.notify_all()
        self._progress.tell()
        for callback in callbacks:
            callback(self)
        return True


class CallUnderway(Future):
    """A call that was sent. to : its rank. name : of the function. deadline : by `monotonic`."""

    def __init__(self, progress: Progress, to: int, name: str, seconds: float) -> None:
        super().__init__(progress, f"{name!r} of rank {to}")
        self.to = to
        self.name = name
        self.seconds = seconds
        self.began = time.monotonic()
        self.deadline = self.began + seconds
