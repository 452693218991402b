"""What do the parts of an agent need of it?"""

from collections.abc import Callable
from typing import Protocol

from neocpu.parallel.rpc.functions import Functions
from neocpu.parallel.rpc.futures import Future
from neocpu.parallel.rpc.values import Value


class Caller(Protocol):
    """An agent (`RpcAgent`), as its parts know it."""

    rank: int
    size: int
    functions: Functions
    own_functions: dict[str, Callable[..., object]]

    def call(
        self, to: int, name: str, values: tuple[Value, ...], timeout: float | None = None
    ) -> Future:
        """Call a function of the package on another rank."""

    def note(self, to: int, name: str, *values: Value) -> None:
        """The same, without an answer."""

    def future(self, what: str) -> Future:
        """A future that is finished here."""

    def run(self, task: Callable[[], None]) -> None:
        """Let a worker run a task."""
