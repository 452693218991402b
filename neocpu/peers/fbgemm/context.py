"""What do autograd formulas get from torch? Types of it that torch leaves open."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from torch import Tensor

Tensors: TypeAlias = Sequence[Tensor]
# Arguments of an operator: tensors, lists of them, numbers.
Inputs: TypeAlias = "tuple[Any, ...]"
# Gradients of an operator's arguments, in order; None: the argument has none.
Gradients: TypeAlias = "tuple[Tensor | Sequence[Tensor | None] | None, ...]"


class Context(Protocol):
    """What a formula keeps from its forward for its backward pass: attributes of any name."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: Sequence[bool]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors, so that torch notices when they are changed in between."""

    # torch's own class takes any attribute, but does not say so.
    def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: object) -> None: ...
