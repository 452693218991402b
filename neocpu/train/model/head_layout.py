"""Which labels does a model learn besides the first, and with which layers?

Nothing is compiled to answer that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neocpu.core.errors import ConfigError
from neocpu.train.model.arrays import Shapes, mlp_shapes
from neocpu.train.model.options import HeadConfig


@dataclass(frozen=True)
class HeadLayout:
    """A head: its name and label, the widths of its layers' outputs, its loss and its weight."""

    name: str
    label: str
    top: tuple[int, ...]
    loss: str
    weight: float

    @property
    def prefix(self) -> str:
        """Before the numbers of its layers, in the names of their parameters."""
        return f"heads.{self.name}"

    def tensors(self, inputs: int) -> Shapes:
        """(name, shape) of its parameters; inputs : of its first layer."""
        return mlp_shapes(self.prefix, (inputs, *self.top))


def head_layouts(heads: Mapping[str, HeadConfig], top: Sequence[int]) -> tuple[HeadLayout, ...]:
    """The heads of a model, in the order of the config.

    top : widths of the first label's MLP.

    Raises ConfigError: a head without a label, a last layer that is no logit, a name that cannot be
    part of a parameter's name.
    """
    layouts = []
    for name, head in heads.items():
        key = f"model.heads.{name}"
        # parameters are groups of an HDF5 file by their names
        if not name or "/" in name or "\0" in name or name in (".", ".."):
            raise ConfigError(
                f"model.heads: {name!r} is no head's name; it may not be empty, '.' or contain '/' "
                "or NUL"
            )
        if not head.label:
            raise ConfigError(f"{key}.label: it must name a label of the table")
        widths = tuple(head.top or top)
        if widths[-1:] != (1,):
            raise ConfigError(f"{key}.top: the last size must be 1, the logit")
        layouts.append(HeadLayout(name, head.label, widths, head.loss, head.weight))
    return tuple(layouts)
