"""What does the simplest interaction do? Nothing: the vectors go to the top MLP side by side."""

from dataclasses import dataclass

from neocpu.core.types import Floats, FloatsByName
from neocpu.train.model.arrays import Shapes
from neocpu.train.model.interactions.base import Interaction, Widths
from neocpu.train.model.precision.operands import EXACT, Precision


@dataclass(frozen=True)
class CatLayout:
    """y = x.

    widths : of the vectors, those that come and go.
    """

    widths: Widths

    def tensors(self) -> Shapes:
        """No parameters."""
        return ()

    def build(self, parameters: FloatsByName, precision: Precision = EXACT) -> Interaction:
        """The interaction at work."""
        return Cat()


class Cat(Interaction):
    """x as it is."""

    def forward(self, x: Floats) -> Floats:
        """x itself."""
        return x

    def backward(self, dy: Floats, dlogit: Floats) -> Floats:
        """dy itself."""
        return dy
