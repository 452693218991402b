"""What do all modules of the dense part work with? Matrices with a row per sample.

And nodes of leaves, which take the gradients of parameters.

Nothing is compiled when this file is imported: layouts stand beside their modules.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from neocpu.core.types import Floats, FloatsByName, Ints
from neocpu.kernels.compile.choice import chosen
from neocpu.parallel.transport.buffers import in_lines
from neocpu.tables.specs.compositions import Tensors

NO_GATE = np.empty((0, 0), np.float32)  # for `input_gradient` where no ReLU made the input
NO_BIAS = np.empty(0, np.float32)  # of a layer that has weights only


class Buffer:
    """Memory for a float32 matrix with a row per sample, used again for every batch.

    Attributes: columns; taken, called before it is written with the matrix that it has.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.taken: Callable[[Floats], None] | None = None
        self._matrix = np.empty((0, columns), np.float32)

    def matrix(self, samples: int) -> Floats:
        """The matrix f32[samples, columns], contents undefined."""
        if len(self._matrix) < samples:
            # lookups write large matrices past the caches where they begin with a line
            flat = in_lines(samples * self.columns, np.float32)
            self._matrix = flat.reshape(samples, self.columns)
        matrix = self._matrix[:samples]
        if self.taken is not None:
            self.taken(matrix)
        return matrix

    def lie(self, memory: Floats, taken: Callable[[Floats], None]) -> None:
        """Lie in memory of somebody else from now on: f32[n * columns] for n samples at most."""
        self._matrix = memory.reshape(-1, self.columns)
        self.taken = taken


@dataclass(frozen=True)
class NodeGradient:
    """Where the gradients of one aligned node of leaves go.

    cuts : i64[L+1], L a power of two: first sample of each of the node's leaves within this batch,
    and the end. into : f32 arrays by parameter. unscale : a power of two that sums are multiplied
    by.
    """

    cuts: Ints
    into: FloatsByName
    unscale: np.float32 = field(default=np.float32(1), kw_only=True)

    def write(self, layer: str, outer: Floats, inputs: Floats, rows: int = 1) -> None:
        """Write the gradients of the weights and biases of a layer, summed over the node.

        outer : gradient of its outputs, f32[b * rows, out]. inputs : f32[b * rows, in]. rows : of
        these matrices for each sample. A layer without `layer`.bias has weights only.
        """
        weight = self.into[f"{layer}.weight"]
        bias = self.into.get(f"{layer}.bias", NO_BIAS)
        self._sum(outer, inputs, self.cuts * rows, weight, bias)

    def _sum(self, outer: Floats, inputs: Floats, cuts: Ints, weight: Floats, bias: Floats) -> None:
        """Sum over the leaves between the cuts, into weight f32[out, in] and bias f32[out]."""
        chosen("dense.gemm", "weight_gradient")(outer, inputs, cuts, weight, bias)
        # times 1 is no change of bits, but a pass over the parameters
        if self.unscale != 1:
            weight *= self.unscale
            bias *= self.unscale


Shapes = Tensors  # (name, shape) of each parameter, in the order of the flat array


def mlp_shapes(name: str, sizes: Sequence[int]) -> Shapes:
    """The parameters of an MLP; sizes : widths of its layers, the input's first."""
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        shapes.append((f"{name}.{layer}.weight", (outputs, inputs)))
        shapes.append((f"{name}.{layer}.bias", (outputs,)))
    return tuple(shapes)
