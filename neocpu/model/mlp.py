"""What does a stack of fully connected layers keep between forward and backward? Every layer's
input and its gradient.

    forward    x0 -> x1 = relu(x0 W0ᵀ + b0) -> ... -> xk                   keeps x0 ... xk
    backward   gk -> g(k-1) = gk Wk, 0 where x(k-1) <= 0 -> ... -> g0      keeps g1 ... gk (gradients before the ReLU)
    weights    dWi = sum over samples of g(i+1)ᵀ xi, by leaves, whenever somebody asks for a node

Buffers are reused from batch to batch; they grow when a batch has more samples than any before.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels import gemm, philox
from neocpu.reference.philox import INIT, tensor_key

F32 = NDArray[np.float32]
_NO_GATE = np.empty((0, 0), np.float32)


class Buffer:
    """A float32 matrix of fixed width whose rows are reused."""

    def __init__(self, columns: int) -> None:
        self._rows = np.empty((0, columns), np.float32)

    def rows(self, count: int) -> F32:
        """The first `count` rows, contents undefined."""
        if len(self._rows) < count:
            self._rows = np.empty((count, self._rows.shape[1]), np.float32)
        return self._rows[:count]


def initialise(parameters: Mapping[str, F32], seed: int) -> None:
    """Initial weights and biases from Philox (`docs/arithmetic.md` §9).

    Weights [out, in] are uniform in ±sqrt(6 / (in + out)) (Glorot and Bengio 2010), biases in
    ±sqrt(1 / out).
    """
    for name, tensor in parameters.items():
        outputs = tensor.shape[0]
        bound = (
            math.sqrt(6.0 / (outputs + tensor.shape[1]))
            if tensor.ndim == 2
            else math.sqrt(1.0 / outputs)
        )
        matrix = tensor if tensor.ndim == 2 else tensor.reshape(1, outputs)
        rows = np.arange(matrix.shape[0], dtype=np.int64)
        philox.uniform_rows(tensor_key(seed, INIT, name), rows, 0, np.float32(bound), matrix)


class Mlp:
    """Fully connected layers `name`.0, `name`.1, ...; ReLU after each, after the last one only if
    `last_relu`.

    `sizes`: widths, the input's first. `parameters` holds `name`.i.weight f32[out, in] and
    `name`.i.bias f32[out].
    """

    def __init__(
        self, name: str, sizes: Sequence[int], parameters: Mapping[str, F32], last_relu: bool
    ) -> None:
        self.name = name
        self.last_relu = last_relu
        self.layers = len(sizes) - 1
        self._weights = [parameters[f"{name}.{layer}.weight"] for layer in range(self.layers)]
        self._biases = [parameters[f"{name}.{layer}.bias"] for layer in range(self.layers)]
        self._values = [Buffer(size) for size in sizes[1:]]
        self._gradients = [Buffer(size) for size in sizes]
        self._inputs: list[F32] = []  # x0 ... xk of the batch in flight
        self._outer: list[F32] = []  # g1 ... gk
        assert all(w.shape == (o, i) for w, (i, o) in zip(self._weights, pairwise(sizes)))

    def forward(self, x: F32) -> F32:
        """Output f32[b, sizes[-1]] for x f32[b, sizes[0]] (C-contiguous); x is read again by the
        weight gradients.
        """
        self._inputs = [x]
        self._outer = []
        for layer, (w, bias) in enumerate(zip(self._weights, self._biases)):
            out = self._values[layer].rows(len(x))
            gemm.layer(self._inputs[-1], w, bias, self.last_relu or layer < self.layers - 1, out)
            self._inputs.append(out)
        return self._inputs[-1]

    def backward(self, gradient: F32, need_input: bool) -> F32 | None:
        """Gradient of the input f32[b, sizes[0]] if `need_input`; `gradient` f32[b, sizes[-1]] is
        that of the output.

        `gradient` is read again by the weight gradients; a ReLU of the last layer gates a copy of
        it.
        """
        if self.last_relu:
            gated = self._gradients[-1].rows(len(gradient))
            np.copyto(gated, gradient)
            gated[self._inputs[-1] <= 0] = 0
            gradient = gated
        self._outer = [gradient]
        for layer in range(self.layers - 1, 0, -1):
            out = self._gradients[layer].rows(len(gradient))
            gemm.input_gradient(self._outer[0], self._weights[layer], self._inputs[layer], out)
            self._outer.insert(0, out)
        if not need_input:
            return None
        out = self._gradients[0].rows(len(gradient))
        gemm.input_gradient(self._outer[0], self._weights[0], _NO_GATE, out)
        return out

    def weight_gradients(self, cuts: NDArray[np.int64], into: Mapping[str, F32]) -> None:
        """Write the gradients of one aligned node of leaves, cut at samples `cuts` i64[L+1], into
        `into`.
        """
        for layer, (g, x) in enumerate(zip(self._outer, self._inputs)):
            weight = into[f"{self.name}.{layer}.weight"]
            bias = into[f"{self.name}.{layer}.bias"]
            gemm.weight_gradient(g, x, cuts, weight, bias)
