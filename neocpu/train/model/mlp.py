"""What does a stack of fully connected layers keep from forward to backward? Every layer's input.

In backward it keeps every layer's gradient too.

    forward    x0 -> x1 = relu(x0 W0ᵀ + b0) -> ... -> xk               keeps x0 ... xk
    backward   gk -> g(k-1) = gk Wk, 0 where x(k-1) <= 0 -> ... -> g0  keeps g1 ... gk, the
                                                                       gradients before the ReLU
    weights    dWi = sum over samples of g(i+1)ᵀ xi, for one node of leaves at a time

Inputs, weights and gradients are rounded where they enter a product, if the model says so
(`precision/`). Buffers are reused from batch to batch; they grow when a batch has more samples than
any before.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from neocpu.core.types import Floats, FloatsByName, Tell
from neocpu.kernels.compile.choice import chosen
from neocpu.kernels.numbers import philox
from neocpu.kernels.twins.numbers.philox import INIT, tensor_key
from neocpu.train.model.arrays import NO_GATE, Buffer, NodeGradient
from neocpu.train.model.precision.operands import EXACT, Precision

LOSS = "loss"  # the last work of a forward pass, as `BetweenLayers` tells it
END = "update"  # the last of a step: tables and parameters have taken their gradients


def initialise(parameters: FloatsByName, seed: int) -> None:
    """Initial weights and biases from Philox (`docs/arithmetic.md` §9).

    Weights [out, in] are uniform in ±sqrt(6 / (in + out)) (Glorot and Bengio 2010), biases in
    ±sqrt(1 / out).
    """
    for name, tensor in parameters.items():
        outputs = tensor.shape[0]
        if tensor.ndim == 2:
            bound = math.sqrt(6.0 / (outputs + tensor.shape[1]))
            matrix = tensor
        else:
            bound = math.sqrt(1.0 / outputs)
            # a bias draws as one row of the generator's matrix
            matrix = tensor.reshape(1, outputs)
        rows = np.arange(matrix.shape[0], dtype=np.int64)
        philox.uniform_rows(tensor_key(seed, INIT, name), rows, 0, np.float32(bound), matrix)


def nothing() -> None:
    """Nothing to do between layers."""


class BetweenLayers:
    """What is done after each layer's work: nothing, until somebody sets `act`, and `after`, which
    is called with the name of the work.

    Layers hold this and not the model that they are of: it would be freed much later.
    """

    act: Callable[[], None] = staticmethod(nothing)
    after: Tell | None = None

    def __call__(self, work: str = "") -> None:
        self.act()
        if self.after is not None:
            self.after(work)


class Mlp:
    """Fully connected layers `name`.0, `name`.1, ... with a ReLU after each.

    sizes : widths, the input's first. parameters : holds `name`.i.weight f32[out, in] and
    `name`.i.bias f32[out]. last_relu : is there a ReLU after the last layer too? between : called
    after each layer's work. precision : of the operands of products.

    Attributes: values, gradients, memory of x1 ... xk and of g0 ... gk.
    """

    def __init__(
        self,
        name: str,
        sizes: Sequence[int],
        parameters: FloatsByName,
        last_relu: bool,
        between: BetweenLayers | None = None,
        precision: Precision = EXACT,
    ) -> None:
        self.name = name
        self.last_relu = last_relu
        self.layers = len(sizes) - 1
        self._between = between or BetweenLayers()
        self._weights = [parameters[f"{name}.{layer}.weight"] for layer in range(self.layers)]
        self._biases = [parameters[f"{name}.{layer}.bias"] for layer in range(self.layers)]
        names = [f"{name}.{layer}" for layer in range(self.layers)]
        self._rounded_weights = [precision.weight(f"{layer}.weight") for layer in names]
        self._rounded_inputs = [precision.activation(layer) for layer in names]
        self._rounded_gradients = [precision.gradient(layer) for layer in names]
        self._operands: list[Floats] = []  # W0 ... as products read them
        self.values = [Buffer(size) for size in sizes[1:]]
        self.gradients = [Buffer(size) for size in sizes]
        self._inputs: list[Floats] = []  # x0 ... xk of the batch
        self._outer: list[Floats] = []  # g1 ... gk, those that are known
        for weight, (inputs, outputs) in zip(self._weights, pairwise(sizes)):
            assert weight.shape == (outputs, inputs)

    def forward(self, x: Floats) -> Floats:
        """Output f32[b, sizes[-1]] for x f32[b, sizes[0]] (C-contiguous).

        `weight_gradient` reads x again.
        """
        # the caller's, so it is not rounded in place as the outputs of layers are
        self._inputs = [self._rounded_inputs[0].of(x)]
        self._operands = []
        self._outer = []
        for layer in range(self.layers):
            weight = self._rounded_weights[layer].of(self._weights[layer])
            self._operands.append(weight)
            output = self._output(layer, self._inputs[-1])
            if layer < self.layers - 1:
                output = self._rounded_inputs[layer + 1].inside(output)
            self._inputs.append(output)
            self._between(f"{self.name} {layer}")
        return self._inputs[-1]

    def _output(self, layer: int, x: Floats) -> Floats:
        """Output f32[b, sizes[layer + 1]] of a layer for x f32[b, sizes[layer]]."""
        output = self.values[layer].matrix(len(x))
        relu = self.last_relu or layer < self.layers - 1
        chosen("dense.gemm", "layer")(x, self._operands[layer], self._biases[layer], relu, output)
        return output

    def backward(self, gradient: Floats, need_input: bool) -> Floats | None:
        """Gradient of the input f32[b, sizes[0]], if it is needed.

        gradient : of the output, f32[b, sizes[-1]]; left as it is. `weight_gradient` reads it
        again.
        """
        self.begin_backward(gradient)
        for layer in range(self.layers - 1, 0, -1):
            self.input_gradient(layer)
        return self.input_gradient(0) if need_input else None

    def begin_backward(self, gradient: Floats) -> None:
        """Take the gradient of the output, as `backward`; then call `input_gradient` and
        `weight_gradient` of the layers, the last first.
        """
        if self.last_relu:
            gated = self.gradients[-1].matrix(len(gradient))
            np.copyto(gated, gradient)
            # the output tells: ReLU passed where it is above 0
            gated[self._inputs[-1] <= 0] = 0
            gradient = gated
        self._outer = [self._rounded_gradients[-1].of(gradient)]

    def input_gradient(self, layer: int) -> Floats:
        """Gradient f32[b, sizes[layer]] of a layer's input, before the ReLU that made it; rounded
        where it goes on to the layer before.
        """
        gate = self._inputs[layer] if layer else NO_GATE
        inner = self.gradients[layer].matrix(len(self._outer[0]))
        chosen("dense.gemm", "input_gradient")(self._outer[0], self._operands[layer], gate, inner)
        if layer:
            inner = self._rounded_gradients[layer - 1].inside(inner)
            # weight gradients may come later, when their bucket is due
            self._outer.insert(0, inner)
        self._between(f"{self.name} {layer} inputs")
        return inner

    def weight_gradient(self, layer: int, nodes: Sequence[NodeGradient]) -> None:
        """Write the gradients of a layer's weights and biases, summed over each of the nodes."""
        outer = self._outer[layer - self.layers]
        for node in nodes:
            node.write(f"{self.name}.{layer}", outer, self._inputs[layer])
        self._between(f"{self.name} {layer} weights")

    def again(self, layer: int) -> None:
        """Write the output of a layer again, where it was; its input must be as it was."""
        self._output(layer, self._inputs[layer])
