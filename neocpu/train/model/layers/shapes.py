"""Which parameters does a part of a model have, and of which shapes? Nothing is compiled to tell.

Parameters are told by their names; layer i of an MLP has NAME.i.weight f32[outputs, inputs] and
NAME.i.bias f32[outputs].
"""

from collections.abc import Sequence
from itertools import pairwise

from neocpu.tables.specs.compositions import Tensors

Shapes = Tensors  # (name, shape) of each parameter, in the order of the flat array


def mlp_shapes(name: str, sizes: Sequence[int]) -> Shapes:
    """The parameters of an MLP; sizes : widths of its layers, the input's first."""
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        shapes.append((f"{name}.{layer}.weight", (outputs, inputs)))
        shapes.append((f"{name}.{layer}.bias", (outputs,)))
    return tuple(shapes)
