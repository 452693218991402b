"""How do vectors meet in pairs? By their dot products (DLRM, arXiv 1906.00091; Neo).

    y = [x_0, x_1·x_0, x_2·x_0, x_2·x_1, x_3·x_0, ...]     with `diagonal` also x_i·x_i

One kernel does it, `kernels/dense/interaction.py`; `docs/arithmetic.md` §6 has its order.
"""

from dataclasses import dataclass

from neocpu.core.types import Floats, FloatsByName
from neocpu.kernels.compile.choice import chosen
from neocpu.train.model.arrays import Buffer, Shapes
from neocpu.train.model.interactions.base import Interaction, Widths, one_width
from neocpu.train.model.precision.operands import EXACT, Precision


@dataclass(frozen=True)
class DotLayout:
    """Dot products of all pairs.

    vectors : widths of the vectors that come. diagonal : are those of a vector with itself among
    them?
    """

    vectors: Widths
    diagonal: bool = False

    def __post_init__(self) -> None:
        one_width("dot", self.vectors)

    @property
    def widths(self) -> Widths:
        """One flat vector: the first one and the products."""
        count = len(self.vectors)
        pairs = count * (count - 1) // 2 + (count if self.diagonal else 0)
        return (self.vectors[0] + pairs,)

    def tensors(self) -> Shapes:
        """No parameters."""
        return ()

    def build(self, parameters: FloatsByName, precision: Precision = EXACT) -> Interaction:
        """The interaction at work."""
        return Dot(self, precision)


class Dot(Interaction):
    """The kernels, and memory for what they give: y and dx."""

    def __init__(self, layout: DotLayout, precision: Precision) -> None:
        self._width = layout.vectors[0]
        self._diagonal = layout.diagonal
        self.y = Buffer(layout.widths[0])
        self.dx = Buffer(sum(layout.vectors))
        self._rounded_input = precision.activation("dot")
        self._rounded_gradient = precision.gradient("dot")
        self._x = self.dx.matrix(0)

    def forward(self, x: Floats) -> Floats:
        """The first vector and the products."""
        self._x = self._rounded_input.of(x)
        y = self.y.matrix(len(x))
        chosen("dense.interaction", "dot_forward")(self._x, self._width, self._diagonal, y)
        return y

    def again(self) -> None:
        """Write y again, where it was; x must be as it was."""
        self.forward(self._x)

    def backward(self, dy: Floats, dlogit: Floats) -> Floats:
        """Each vector's gradient: multiples of all it met."""
        dx = self.dx.matrix(len(self._x))
        dy = self._rounded_gradient.of(dy)
        chosen("dense.interaction", "dot_backward")(self._x, dy, self._width, self._diagonal, dx)
        return dx
