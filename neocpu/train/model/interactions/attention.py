"""How do the vectors of a sample attend to one another? One head of self-attention (Vaswani et al.
2017, equation 1; among features as in AutoInt, arXiv 1810.11921).

    q_i = Wq x_i    k_i = Wk x_i    v_i = Wv x_i          each [D, D], the same for all vectors
    y_i = sum over j of softmax_j(q_i·k_j / sqrt(D)) v_j
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Floats, FloatsByName
from neocpu.kernels.compile.choice import chosen
from neocpu.train.model.arrays import Buffer, NodeGradient, Shapes
from neocpu.train.model.interactions.base import Interaction, Widths, one_width
from neocpu.train.model.linear import Linear
from neocpu.train.model.precision.operands import EXACT, Precision

PARTS = ("query", "key", "value")


@dataclass(frozen=True)
class SelfAttentionLayout:
    """Self-attention.

    widths : of the vectors, those that come and go. prefix : of the tensors' names.
    """

    widths: Widths
    prefix: str

    def __post_init__(self) -> None:
        one_width("attention", self.widths)

    def tensors(self) -> Shapes:
        """(name, shape) of the three matrices."""
        width = self.widths[0]
        return tuple((f"{self.prefix}.{name}.weight", (width, width)) for name in PARTS)

    def build(self, parameters: FloatsByName, precision: Precision = EXACT) -> Interaction:
        """The interaction at work."""
        return SelfAttention(self, parameters)


class SelfAttention(Interaction):
    """The three products, and the kernels between them."""

    def __init__(self, layout: SelfAttentionLayout, parameters: FloatsByName) -> None:
        self._count = len(layout.widths)
        columns = sum(layout.widths)
        # rounded once, here, so that kernel and twin multiply by one number
        self._scale = np.float32(1 / math.sqrt(layout.widths[0]))
        self._projections = [
            Linear(f"{layout.prefix}.{name}", parameters, self._count) for name in PARTS
        ]
        self._weights = Buffer(self._count**2)
        self._y = Buffer(columns)
        self._outer = [Buffer(columns) for _ in PARTS]
        self._dx = Buffer(columns)
        self._vectors: tuple[Floats, ...] = ()

    def forward(self, x: Floats) -> Floats:
        """The vectors' mixtures."""
        samples = len(x)
        self._vectors = tuple(projection.forward(x) for projection in self._projections)
        y = self._y.matrix(samples)
        weights = self._weights.matrix(samples)
        chosen("dense.self_attention", "attention_forward")(
            self._vectors, self._count, self._scale, weights, y
        )
        return y

    def backward(self, dy: Floats, dlogit: Floats) -> Floats:
        """dx: what came through queries, keys and values, added in this order."""
        samples = len(dy)
        outer = tuple(buffer.matrix(samples) for buffer in self._outer)
        chosen("dense.self_attention", "attention_backward")(
            self._vectors,
            self._weights.matrix(samples),
            dy,
            self._count,
            self._scale,
            outer,
        )
        dx = self._dx.matrix(samples)
        # from +0, as docs/arithmetic.md has it
        dx[:] = 0
        for projection, gradient in zip(self._projections, outer):
            np.add(dx, projection.backward(gradient), out=dx)
        return dx

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Of the three matrices."""
        for projection in self._projections:
            projection.weight_gradients(nodes)
