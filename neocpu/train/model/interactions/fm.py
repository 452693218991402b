"""What do all pairs of vectors say together? One number, the factorisation machine's term (Rendle,
ICDM 2010, equation 1 and lemma 3.1).

    fm(x) = sum over i < j of x_i·x_j = 1/2 sum over columns of ((sum_i x_i)^2 - sum_i x_i^2)
    y = [x_0, fm(x)]

The number costs a pass over the vectors, whatever their number.
"""

from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Floats, FloatsByName
from neocpu.kernels.compile.choice import chosen
from neocpu.train.model.arrays import Buffer, Shapes
from neocpu.train.model.interactions.base import Interaction, Widths, one_width
from neocpu.train.model.precision.operands import EXACT, Precision


@dataclass(frozen=True)
class FmLayout:
    """The factorisation machine's term beside the first vector.

    vectors : widths of the vectors that come.
    """

    vectors: Widths

    def __post_init__(self) -> None:
        one_width("fm", self.vectors)

    @property
    def widths(self) -> Widths:
        """One flat vector: the first one and the term."""
        return (self.vectors[0] + 1,)

    def tensors(self) -> Shapes:
        """No parameters."""
        return ()

    def build(self, parameters: FloatsByName, precision: Precision = EXACT) -> Interaction:
        """The interaction at work."""
        return Fm(self)


class Fm(Interaction):
    """The term as a number of the top MLP's input."""

    def __init__(self, layout: FmLayout) -> None:
        self._width = layout.vectors[0]
        self._term = PairSum(layout.vectors)
        self._y = Buffer(self._width + 1)
        self._dx = Buffer(sum(layout.vectors))

    def forward(self, x: Floats) -> Floats:
        """The first vector and the term."""
        y = self._y.matrix(len(x))
        y[:, : self._width] = x[:, : self._width]
        y[:, self._width] = self._term.forward(x)
        return y

    def backward(self, dy: Floats, dlogit: Floats) -> Floats:
        """The term's gradient, and that of the first vector."""
        dx = self._dx.matrix(len(dy))
        self._term.backward(dy[:, self._width], dx)
        # it goes on as it is, and takes part in the term too
        dx[:, : self._width] += dy[:, : self._width]
        return dx


class PairSum:
    """The sum of the dot products of all pairs of the vectors of a sample.

    vectors : their widths, all the same.
    """

    def __init__(self, vectors: Widths) -> None:
        width = vectors[0]
        self._shape = (len(vectors), width)
        self._halves = np.full((1, width), 0.5, np.float32)
        self._no_bias = np.zeros(1, np.float32)
        self._sum = Buffer(width)
        self._squares = Buffer(width)
        self._square = Buffer(width)
        self._out = Buffer(1)
        self._x = np.empty((0, sum(vectors)), np.float32)

    def forward(self, x: Floats) -> Floats:
        """f32[b] of x f32[b, sum of widths], which `backward` reads again."""
        self._x = x
        samples = len(x)
        vectors = x.reshape(samples, *self._shape)
        total = self._sum.matrix(samples)
        squares = self._squares.matrix(samples)
        square = self._square.matrix(samples)
        total[:] = vectors[:, 0]
        np.multiply(total, total, out=squares)
        for number in range(1, self._shape[0]):
            np.add(total, vectors[:, number], out=total)
            np.multiply(vectors[:, number], vectors[:, number], out=square)
            np.add(squares, square, out=squares)
        np.multiply(total, total, out=square)
        np.subtract(square, squares, out=square)
        out = self._out.matrix(samples)
        # the sum over columns as a layer of one output: one chain, whose order is defined
        chosen("dense.gemm", "layer")(square, self._halves, self._no_bias, False, out)
        return out.reshape(-1)

    def backward(self, gradient: Floats, dx: Floats) -> None:
        """Write the gradient of x into dx f32[b, sum of widths]; gradient : of the sum, f32[b]."""
        samples = len(self._x)
        vectors = self._x.reshape(samples, *self._shape)
        total = self._sum.matrix(samples)
        result = dx.reshape(samples, *self._shape)
        # d(sum of pairs) / dx_i is the sum of all others
        np.subtract(total[:, None], vectors, out=result)
        np.multiply(result, gradient[:, None, None], out=result)
