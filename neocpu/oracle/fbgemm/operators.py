"""Which of FBGEMM's operators are here? `OPERATORS`: name, schema, function, as `install` gives them to torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Operator:
    """An operator of `torch.ops.fbgemm`: its schema without the name, and what computes it on the CPU."""

    schema: str
    function: Callable[..., Any]
    differentiable: bool = False


OPERATORS: dict[str, Operator] = {}
