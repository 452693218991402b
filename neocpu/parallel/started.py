"""How can an exchange be under way while something else runs? It is written as a generator and
driven from outside.

A generator yields every request that it wants to be waited for and returns the result. `Started`
runs it up to its first request, which is then in the hands of the comm, and `wait` drives it to the
end.
"""

from collections.abc import Generator
from typing import Generic, TypeVar

from neocpu.parallel.comm import Request

T = TypeVar("T")


class Started(Generic[T]):
    """An exchange under way; created on every rank in the same order."""

    def __init__(self, steps: Generator[Request, None, T]) -> None:
        self._steps = steps
        self._request: Request | None = None
        self._result: T
        self._advance()

    def _advance(self) -> None:
        try:
            self._request = next(self._steps)
        except StopIteration as end:
            self._request = None
            self._result = end.value

    def wait(self) -> T:
        """Drive the exchange to its end; a second call returns the same result."""
        while self._request is not None:
            self._request.wait()
            self._advance()
        return self._result
