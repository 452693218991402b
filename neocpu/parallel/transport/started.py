"""How can an exchange be under way while something else runs? It is written as a generator and
driven from outside.

A generator yields every request that it wants to be waited for and returns the result. `Started`
runs it up to its first request, which is then in the hands of the comm; `wait` drives it to the
end, and `poll` as far as it goes without waiting.

Ranks poll at different moments, but on one queue of a comm they must call in one order. So a queue
has a `Stream`: an exchange on it begins when the one before is over.
"""

from collections import deque
from collections.abc import Callable, Generator
from typing import Generic, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
Result_co = TypeVar("Result_co", covariant=True)


class Waitable(Protocol):
    """An exchange under way."""

    def wait(self) -> object:
        """Return when it is over."""


class Request(Protocol):
    """A transfer under way. Its arrays belong to the comm until `wait` has returned."""

    def wait(self) -> None:
        """Return when the received array is filled and the sent one reusable; requests may be
        awaited in any order.
        """

    def test(self) -> bool:
        """Is it over? Does not wait; once it is, `wait` returns at once."""


# An exchange, which yields what it wants to be waited for, and its result.
Steps: TypeAlias = Generator[Request, None, T]


class Done:
    """A request that was over when it began."""

    def wait(self) -> None:
        """Return at once."""

    def test(self) -> bool:
        """It is over."""
        return True


class Pause:
    """Yielded before a call that holds up a rank until all ranks make it: polling goes no further,
    so that ranks make it where all of them wait.
    """

    def wait(self) -> None:
        """Return at once."""

    def test(self) -> bool:
        """Not before somebody waits."""
        return False


class Later:
    """A transfer in rounds, which is made while it is waited for."""

    def __init__(self, transfer: Callable[[], None]) -> None:
        self._transfer: Callable[[], None] | None = transfer

    def wait(self) -> None:
        """Make it."""
        if self._transfer is not None:
            self._transfer()
            self._transfer = None

    def test(self) -> bool:
        """Not before somebody waits."""
        return self._transfer is None


class Started(Generic[Result_co]):
    """An exchange under way; created on every rank in the same order.

    stream : of the queue that it runs on; None: it begins at once, and nobody polls it.
    """

    def __init__(self, steps: Steps[Result_co], stream: "Stream | None" = None) -> None:
        self._steps = steps
        self._request: Request | None = None
        self._result: Result_co
        self._error: Exception | None = None
        self._stream = stream
        self.over = False
        if stream is None:
            self._advance()
            if self._error is not None:
                raise self._error
        else:
            stream.add(self)

    def _advance(self) -> None:
        """Go on to the next request, or to the end."""
        try:
            self._request = next(self._steps)
        except StopIteration as end:
            self._result = end.value
            self.over = True
        except Exception as error:  # noqa: BLE001  (raised where the result is asked for)
            # this may be a poll amid another batch's stage, where nobody could handle the error
            self._error = error
            self.over = True

    def poll(self) -> bool:
        """Go as far as possible without waiting; is it over?"""
        while not self.over and self._request is not None and self._request.test():
            self._advance()
        return self.over

    def drive(self) -> None:
        """Go on to the end, without heeding the stream."""
        while not self.over:
            assert self._request is not None
            self._request.wait()
            self._advance()

    def wait(self) -> Result_co:
        """Drive the exchange to its end; a second call returns the same result.

        Raises what the exchange raised.
        """
        if self._stream is not None:
            # a queue has one order on all ranks: what was started before goes to its end first
            self._stream.finish(self)
            # a stream has its last exchange until the next one: they do not hold each other
            self._stream = None
        else:
            self.drive()
        if self._error is not None:
            raise self._error
        return self._result


class Finished(Started[T]):
    """An exchange that was over when it began, with its result."""

    def __init__(self, result: T) -> None:
        # there are no steps, so nothing of `Started` has to begin
        self._result = result
        self._request = None
        self._error = None
        self._stream = None
        self.over = True


class Stream:
    """The exchanges of one queue, one after the other."""

    def __init__(self) -> None:
        self._exchanges: deque[Started[object]] = deque()

    @property
    def busy(self) -> bool:
        """Is any exchange under way?"""
        return bool(self._exchanges)

    def add(self, exchange: Started[object]) -> None:
        """It is the last; it begins now if there is no other."""
        self.poll()
        self._exchanges.append(exchange)
        if len(self._exchanges) == 1:
            self._begin()

    def poll(self) -> None:
        """Let exchanges go on, without waiting."""
        while self._exchanges and self._exchanges[0].poll():
            self._exchanges.popleft()
            self._begin()

    def finish(self, exchange: Started[object]) -> None:
        """Drive exchanges to their ends, up to this one."""
        while not exchange.over:
            # the oldest first, whichever is asked for: on other ranks its calls come first as well
            self._exchanges[0].drive()
            self.poll()

    def _begin(self) -> None:
        if self._exchanges:
            self._exchanges[0]._advance()
