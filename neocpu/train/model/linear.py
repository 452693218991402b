"""What is a fully connected layer without a ReLU, as interactions and projections use it?

    forward    y = W x + b                        keeps x
    backward   dx = dy W                          keeps dy
    weights    dW, db over a node of leaves, from x and dy

The kernels are those of the MLPs, with their order of additions (`docs/arithmetic.md` §1, §2).
"""

from collections.abc import Sequence

import numpy as np

from neocpu.core.types import Floats, FloatsByName
from neocpu.kernels.compile.choice import chosen
from neocpu.train.model.arrays import NO_GATE, Buffer, NodeGradient
from neocpu.train.model.precision.operands import EXACT, Precision


class Linear:
    """A layer `name`, or `rows` of it: the same matrix for each of the vectors of a sample.

    parameters : holds `name`.weight f32[out, in] and perhaps `name`.bias f32[out]. rows : vectors
    of a sample. precision : of the operands of products.
    """

    def __init__(
        self, name: str, parameters: FloatsByName, rows: int = 1, precision: Precision = EXACT
    ) -> None:
        self._name = name
        self._rows = rows
        self._weight = parameters[f"{name}.weight"]
        outputs, inputs = self._weight.shape
        self._bias = parameters.get(f"{name}.bias", np.zeros(outputs, np.float32))
        self._rounded_weight = precision.weight(f"{name}.weight")
        self._rounded_input = precision.activation(name, rows)
        self._rounded_gradient = precision.gradient(name, rows)
        self._operand = self._weight
        self._output = Buffer(rows * outputs)
        self._inner = Buffer(rows * inputs)
        self._x = np.empty((0, inputs), np.float32)
        self._outer = np.empty((0, outputs), np.float32)

    def forward(self, x: Floats) -> Floats:
        """y f32[b, rows * out] of x f32[b, rows * in], which gradients read again."""
        output = self._output.matrix(len(x))
        outputs, inputs = self._weight.shape
        # a view: the vectors of a sample are rows of one matrix
        self._x = self._rounded_input.of(x.reshape(len(x) * self._rows, inputs))
        self._operand = self._rounded_weight.of(self._weight)
        result = output.reshape(len(x) * self._rows, outputs)
        chosen("dense.gemm", "layer")(self._x, self._operand, self._bias, False, result)
        return output

    def backward(self, outer: Floats) -> Floats:
        """dx f32[b, rows * in] from dy f32[b, rows * out], which `weight_gradients` reads again."""
        inner = self._inner.matrix(len(outer))
        outputs, inputs = self._weight.shape
        self._outer = self._rounded_gradient.of(outer.reshape(len(outer) * self._rows, outputs))
        result = inner.reshape(len(outer) * self._rows, inputs)
        chosen("dense.gemm", "input_gradient")(self._outer, self._operand, NO_GATE, result)
        return inner

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Of W and b, summed over each of the nodes."""
        for node in nodes:
            node.write(self._name, self._outer, self._x, self._rows)
