"""How does a model learn products of its inputs of a bounded degree? By cross layers (DCN V2,
arXiv 2008.13535, equations 1 and 2).

    x_(l+1) = x_0 * (W_l x_l + b_l) + x_l                 full:     W_l [n, n]
    x_(l+1) = x_0 * (U_l (V_l x_l) + b_l) + x_l           low rank: V_l [r, n], U_l [n, r]

n is the width of all vectors side by side, * the product number by number. The products with
matrices are those of the MLPs (`docs/arithmetic.md` §6 has the order of the rest).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Floats, FloatsByName
from neocpu.train.model.arrays import Buffer, NodeGradient, Shapes
from neocpu.train.model.interactions.base import Interaction, Widths
from neocpu.train.model.linear import Linear
from neocpu.train.model.options import CrossShape
from neocpu.train.model.precision.operands import EXACT, Precision


@dataclass(frozen=True)
class CrossLayout:
    """Cross layers over all vectors of a sample.

    widths : of the vectors, those that come and go. shape : of the layers. prefix : of their names.
    """

    widths: Widths
    shape: CrossShape
    prefix: str

    def tensors(self) -> Shapes:
        """(name, shape) of the matrices and biases, layer by layer."""
        columns = sum(self.widths)
        rank = self.shape.rank
        tensors: list[tuple[str, tuple[int, ...]]] = []
        for name in self.names():
            if rank:
                tensors.append((f"{name}.v.weight", (rank, columns)))
                tensors.append((f"{name}.u.weight", (columns, rank)))
                tensors.append((f"{name}.u.bias", (columns,)))
            else:
                tensors.append((f"{name}.weight", (columns, columns)))
                tensors.append((f"{name}.bias", (columns,)))
        return tuple(tensors)

    def names(self) -> list[str]:
        """Of the layers."""
        return [f"{self.prefix}.cross.{layer}" for layer in range(self.shape.layers)]

    def build(self, parameters: FloatsByName, precision: Precision = EXACT) -> Interaction:
        """The interaction at work."""
        return Cross(self, parameters, precision)


class Cross(Interaction):
    """All cross layers; what each of them multiplies x_0 by is kept for the way back."""

    def __init__(self, layout: CrossLayout, parameters: FloatsByName, precision: Precision) -> None:
        columns = sum(layout.widths)
        product = LowRank if layout.shape.rank else Linear
        self._products = [product(name, parameters, precision=precision) for name in layout.names()]
        self._outputs = [Buffer(columns) for _ in self._products]
        self._outer = [Buffer(columns) for _ in self._products]
        self._gradients = (Buffer(columns), Buffer(columns))
        self._first_gradient = Buffer(columns)
        self._scratch = Buffer(columns)
        self._factors: list[Floats] = []
        self._x = np.empty((0, columns), np.float32)

    def forward(self, x: Floats) -> Floats:
        """x after all layers."""
        self._x = x
        self._factors = []
        for product, buffer in zip(self._products, self._outputs):
            factor = product.forward(x)
            y = buffer.matrix(len(x))
            np.multiply(self._x, factor, out=y)
            np.add(y, x, out=y)
            # on the way back it is what x_0 was multiplied by
            self._factors.append(factor)
            x = y
        return x

    def backward(self, dy: Floats, dlogit: Floats) -> Floats:
        """dx: what came through x_l of every layer, and all that came through x_0."""
        samples = len(dy)
        first = self._first_gradient.matrix(samples)
        # x_0 takes part in every layer; its gradient is summed from the last layer to the first
        first[:] = 0
        scratch = self._scratch.matrix(samples)
        gradient = dy
        for layer in range(len(self._products) - 1, -1, -1):
            np.multiply(gradient, self._factors[layer], out=scratch)
            np.add(first, scratch, out=first)
            outer = self._outer[layer].matrix(samples)
            np.multiply(gradient, self._x, out=outer)
            inner = self._products[layer].backward(outer)
            # two in turns: the layer before reads one while it writes the other
            result = self._gradients[layer % 2].matrix(samples)
            np.add(gradient, inner, out=result)
            gradient = result
        # x_0 is also the x_l of the first layer
        np.add(gradient, first, out=first)
        return first

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Of the matrices and biases of all layers."""
        for product in self._products:
            product.weight_gradients(nodes)


class LowRank:
    """U (V x) + b of one cross layer, as `Linear`."""

    def __init__(self, name: str, parameters: FloatsByName, precision: Precision) -> None:
        self._down = Linear(f"{name}.v", parameters, precision=precision)
        self._up = Linear(f"{name}.u", parameters, precision=precision)

    def forward(self, x: Floats) -> Floats:
        """U (V x) + b, f32[b, n]."""
        return self._up.forward(self._down.forward(x))

    def backward(self, outer: Floats) -> Floats:
        """Gradient of x, f32[b, n]; outer : that of the output."""
        return self._down.backward(self._up.backward(outer))

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Of V, U and b."""
        self._down.weight_gradients(nodes)
        self._up.weight_gradients(nodes)
