"""Which of FBGEMM's operators does neocpu have? `OPERATORS`, by name; `install` registers them.

Functions take and return torch tensors on the CPU, with FBGEMM's argument names and defaults, and
keep dtypes. Those that only move elements go through our kernels (`moves.py`), and gradients flow
back through floating-point values.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from neocpu.core.errors import NeocpuError

P = ParamSpec("P")
R = TypeVar("R")


class Refused(NeocpuError, RuntimeError):
    """An operator's argument is not accepted; also the RuntimeError that FBGEMM raises."""


@dataclass(frozen=True)
class RegisteredOperator:
    """An operator of `torch.ops.fbgemm`: its schema without the name, and its CPU function."""

    schema: str
    function: Callable[..., Any]


class _Registry(dict[str, RegisteredOperator]):
    """Operators by name; a missing name raises KeyError, which lists the others."""

    def __missing__(self, name: str) -> RegisteredOperator:
        raise KeyError(f"no operator {name!r} here; there are {', '.join(sorted(self))}")


OPERATORS: dict[str, RegisteredOperator] = _Registry()
# Files of this folder that define operators.
FILES = (
    "sparse",
    "bucketize",
    "reorder",
    "jagged",
    "quantize",
    "bounds",
    "pooled",
    "selects",
    "jagged_math",
)


def operator(schema: str, name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a function as the operator `name` (default: the function's own name).

    Our errors become Refused, a RuntimeError, which FBGEMM's callers expect.
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except NeocpuError as error:
                # Some of our errors are RuntimeErrors already: OutOfBounds, and Refused itself.
                if isinstance(error, RuntimeError):
                    raise
                raise Refused(str(error)) from error

        OPERATORS[name or function.__name__] = RegisteredOperator(schema, guarded)
        return guarded

    return register


def load() -> dict[str, RegisteredOperator]:
    """All operators, by name; imports the files that define them."""
    # Imported late, as these files load torch.
    for file in FILES:
        import_module(f"neocpu.peers.fbgemm.operators.{file}")
    return OPERATORS
