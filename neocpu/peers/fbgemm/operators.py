"""Which of FBGEMM's operators are here? `OPERATORS`: name, schema, function, as `install` gives
them to torch.

Functions take and give torch tensors on the CPU, with FBGEMM's argument names and defaults, and
keep dtypes. Whatever only moves elements goes through our kernels (`moves.py`), and gradients flow
back through floating-point values.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from neocpu.errors import NeocpuError


class Refused(NeocpuError, RuntimeError):
    """An operator was given what it cannot take; also the RuntimeError that FBGEMM raises."""


@dataclass(frozen=True)
class TorchOperator:
    """An operator of `torch.ops.fbgemm`: its schema without the name, and what computes it on the
    CPU.
    """

    schema: str
    function: Callable[..., Any]


class _Registry(dict[str, TorchOperator]):
    """Filled when the files of operators are imported, which the first look does."""

    def __missing__(self, name: str) -> TorchOperator:
        raise KeyError(f"no operator {name!r} here; there are {', '.join(sorted(self))}")


OPERATORS: dict[str, TorchOperator] = _Registry()


def operator(schema: str, name: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the operator of its name (or `name`), with errors that FBGEMM's
    callers understand.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except NeocpuError as error:
                if isinstance(error, RuntimeError):
                    raise
                raise Refused(str(error)) from error

        OPERATORS[name or function.__name__] = TorchOperator(schema, guarded)
        return guarded

    return register


def load() -> dict[str, TorchOperator]:
    """All operators, by name."""
    for home in ("sparse", "bucketize", "reorder", "jagged", "quantize", "bounds"):
        import_module(f"neocpu.peers.fbgemm.{home}")
    return OPERATORS
