"""Which operations make a vector of a logical table of those of its physical ones?

Each is a file of this folder with its adjoint. A vector of the batch depends on its own sample
only, and so does its gradient; sums over samples (of parameters) go by leaves, as everywhere.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from neocpu.core.types import Floats, FloatsByName
from neocpu.tables.embedding.lookups import KeyLookups, RowTerms
from neocpu.train.model.arrays import NodeGradient
from neocpu.train.model.composition_layout import KeyVectors
from neocpu.train.model.operations.add import Add
from neocpu.train.model.operations.copy import Copy
from neocpu.train.model.operations.multiply import Multiply
from neocpu.train.model.operations.project import Project
from neocpu.train.model.operations.tensor_train import TensorTrain


class Operation(Protocol):
    """What one part of a model does with its vectors; it may keep what its adjoint needs.

    Of a key whose tables do not pool, samples are lookups here: f32[n, width] (`row_parts.py`).
    """

    def forward(self, sources: Sequence[Floats], out: Floats) -> None:
        """Write the vectors of a batch into out f32[b, dim]; sources f32[b, width] each."""

    def backward(self, gradient: Floats, sources: Sequence[Floats]) -> None:
        """Write the gradients of the sources f32[b, width] each, from that of `out`."""

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Write the gradients of its parameters, summed over each of the nodes."""


OPERATIONS: dict[str, Callable[[KeyVectors, FloatsByName], Operation]] = {
    "copy": Copy,
    "add": Add,
    "multiply": Multiply,
    "project": Project,
}


class RowOperation(Protocol):
    """What one part of a model does with lookups that its tables do not pool, where it needs to
    know which rows they are.
    """

    def forward(self, sources: Sequence[KeyLookups], out: Floats) -> None:
        """Write the key's row of each lookup into out f32[n, dim]."""

    def backward(self, gradient: Floats) -> Sequence[RowTerms]:
        """The gradients of the rows of each source, from that of `out`; they may name their rows.

        The set of all terms of a batch may depend on its leaves, not on the number of ranks.
        """

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """As `Operation.weight_gradients`; cuts of the nodes count lookups."""


ROW_OPERATIONS: dict[str, Callable[[KeyVectors, FloatsByName], RowOperation]] = {
    "tensor_train": TensorTrain,
}


def make_row_operation(vectors: KeyVectors, parameters: FloatsByName) -> RowOperation | None:
    """The operation of a part whose operation is one on lookups, else None."""
    make = ROW_OPERATIONS.get(vectors.operation)
    return make(vectors, parameters) if make else None


def make_operation(vectors: KeyVectors, parameters: FloatsByName) -> Operation:
    """The operation of a part; parameters : of the model, by name."""
    return OPERATIONS[vectors.operation](vectors, parameters)
