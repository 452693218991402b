"""Which operations make a vector of a logical table of those of its physical ones?

Each is a file of this folder with its adjoint. A vector of the batch depends on its own sample
only, and so does its gradient; sums over samples (of parameters) go by leaves, as everywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from neocpu.model.arrays import F32, NodeGradient
from neocpu.model.composition_layout import KeyVectors
from neocpu.model.operations.add import Add
from neocpu.model.operations.copy import Copy
from neocpu.model.operations.multiply import Multiply


class Operation(Protocol):
    """What one part of a model does with its vectors; it may keep what its adjoint needs."""

    def forward(self, sources: Sequence[F32], out: F32) -> None:
        """Write the vectors of a batch into out f32[b, dim]; sources f32[b, width] each."""

    def backward(self, gradient: F32, sources: Sequence[F32]) -> None:
        """Write the gradients of the sources f32[b, width] each, from that of `out`."""

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Write the gradients of its parameters, summed over each of the nodes."""


OPERATIONS: dict[str, Callable[[KeyVectors, Mapping[str, F32]], Operation]] = {
    "copy": Copy,
    "add": Add,
    "multiply": Multiply,
}


def make_operation(part: KeyVectors, parameters: Mapping[str, F32]) -> Operation:
    """The operation of a part; parameters : of the model, by name."""
    return OPERATIONS[part.operation](part, parameters)
