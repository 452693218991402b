"""What is an interaction? A module between the vectors of a sample and the top MLP, that keeps to a
small interface.

    x f32[b, sum of widths]   vectors of a sample side by side, the bottom MLP's output first
    forward(x) -> y           vectors again, or one flat vector
    backward(dy, dlogit) -> dx
    weight_gradients(nodes)   of its parameters

Its layout says the widths of what it gives and its tensors, without compiling anything; an
interaction that does not fit its input's widths raises ConfigError when the layout is made.
`chain.py` puts several behind one another.
"""

from collections.abc import Sequence
from typing import Protocol

from neocpu.core.errors import ConfigError
from neocpu.core.types import Floats, FloatsByName
from neocpu.train.model.arrays import NodeGradient, Shapes
from neocpu.train.model.precision.operands import EXACT, Precision

Widths = tuple[int, ...]


class Interaction:
    """An interaction at work, for a batch of samples; what `forward` got and gave it reads again.

    Attributes: logit f32[b], what the last `forward` adds to the logit beside the top MLP, or None.
    """

    logit: Floats | None = None

    def forward(self, x: Floats) -> Floats:
        """y f32[b, sum of its widths] of x f32[b, columns] (C-contiguous); valid until the next."""
        raise NotImplementedError

    def backward(self, dy: Floats, dlogit: Floats) -> Floats:
        """dx f32[b, columns] from dy, which stays as it is; valid until the next call.

        dlogit : f32[b], gradient of the logit.
        """
        raise NotImplementedError

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Write the gradients of its parameters, summed over each of the nodes."""


class InteractionLayout(Protocol):
    """Sizes of an interaction."""

    @property
    def widths(self) -> Widths:
        """Columns of each vector that it gives."""

    def tensors(self) -> Shapes:
        """(name, shape) of its parameters."""

    def build(self, parameters: FloatsByName, precision: Precision = EXACT) -> Interaction:
        """The interaction at work; parameters : by name, its own among them. precision : of the
        operands of its products.
        """


def one_width(name: str, widths: Widths) -> int:
    """The width that all vectors have. Raises ConfigError where they differ."""
    if len(set(widths)) > 1:
        raise ConfigError(
            f"model.interaction: {name} needs vectors of one width, but those of the bottom MLP's "
            f"output and of the tables have {sorted(set(widths))}; give all tables the dim that "
            "model.bottom ends with"
        )
    return widths[0]
