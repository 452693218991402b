"""Which functions may others call? Those that this rank registered, by their names."""

import difflib
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

from neocpu.core.errors import RpcError
from neocpu.parallel.rpc.messages import LONGEST_NAME

P = ParamSpec("P")
T = TypeVar("T")


def check_name(name: object) -> None:
    """Raise RpcError for what cannot be the name of a function of a user."""
    try:
        right = isinstance(name, str) and 0 < len(name.encode()) <= LONGEST_NAME and name[0] != "."
    except UnicodeEncodeError:
        right = False
    if not right:
        raise RpcError(
            f"a function cannot be called {str(name)[:40]!a}: a name is a text of 1 to "
            f"{LONGEST_NAME} bytes that does not begin with a dot"
        )


class RpcFunction(NamedTuple):
    """A function that others may call. quick : it is run at once by the thread that reads."""

    name: str
    function: Callable[..., object]
    quick: bool


class Functions:
    """The functions of a rank that others may call."""

    def __init__(self) -> None:
        self._functions: dict[str, RpcFunction] = {}

    def add(self, name: str, function: Callable[..., object], quick: bool = False) -> None:
        """Register a function, or a bound method.

        name : of at most 255 bytes, not yet taken; names that begin with a dot are the package's.
        quick : run it in the thread that reads messages: some 30 µs sooner, but nothing else is
            read meanwhile, and it must not wait for calls of its own.

        Raises RpcError for a name that cannot be taken.
        """
        check_name(name)
        if not callable(function):
            raise RpcError(f"{name!r} is to be a {type(function).__name__}, which is no function")
        if name in self._functions:
            raise RpcError(f"two functions are called {name!r}; register one under another name")
        self._functions[name] = RpcFunction(name, function, quick)

    def function(
        self, name: str, quick: bool = False
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """`add` as a decorator."""
        check_name(name)

        def register(function: Callable[P, T]) -> Callable[P, T]:
            self.add(name, function, quick)
            return function

        return register

    def of(self, name: str) -> RpcFunction:
        """The function of a name. Raises RpcError, which names the nearest."""
        if name in self._functions:
            return self._functions[name]
        near = difflib.get_close_matches(name, self._functions, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise RpcError(f"there is no function {name!r}{hint}")
