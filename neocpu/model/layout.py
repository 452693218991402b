"""Which tensors does a model have, in which order, and do its sizes fit together? Answered without
compiling anything.

    bottom  dense features -> bottom[0] -> ... -> bottom[-1]        ReLU after every layer
    E       [bottom output | pooled vector of key 0 | key 1 | ...]  `columns` wide
    top     interaction width -> top[0] -> ... -> 1                 ReLU after every layer but the last

Parameters lie in one flat float32 array in this order: bottom.0.weight [out, in], bottom.0.bias
[out], bottom.1.weight, ..., top.0.weight, ..., top.k.bias.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from neocpu.errors import ConfigError

INTERACTIONS = ("dot", "cat")
LOSSES = ("bce", "mse")


@dataclass(frozen=True)
class ModelLayout:
    """Sizes of a DLRM: inputs of the bottom MLP, dims of the pooled keys, layer sizes, interaction,
    loss.

    Raises
    ------
    ConfigError : sizes that do not fit together, an unknown interaction or loss.
    """

    dense_features: int
    dims: tuple[int, ...]
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    interaction: str = "dot"
    diagonal: bool = False
    loss: str = "bce"

    def __post_init__(self) -> None:
        if self.interaction not in INTERACTIONS:
            raise ConfigError(
                f"model.interaction: {self.interaction!r} is unknown; choose from "
                f"{', '.join(INTERACTIONS)}"
            )
        if self.loss not in LOSSES:
            raise ConfigError(
                f"model.loss: {self.loss!r} is unknown; choose from {', '.join(LOSSES)}"
            )
        for key, sizes in (("model.bottom", self.bottom), ("model.top", self.top)):
            if not sizes or min(sizes) < 1:
                raise ConfigError(
                    f"{key}: {list(sizes)} must be a list of layer sizes, each at least 1"
                )
        if self.top[-1] != 1:
            raise ConfigError(
                f"model.top: the last size is {self.top[-1]}; it must be 1, the logit"
            )
        if self.interaction == "dot":
            self._check_dot()

    def _check_dot(self) -> None:
        unequal = sorted(set(self.dims))
        if len(unequal) > 1:
            raise ConfigError(
                "model.interaction: dot products need tables of one dim, but the tables have "
                f"dims {unequal}; "
                "give all tables one dim or use model.interaction = 'cat'"
            )
        if unequal and unequal[0] != self.bottom[-1]:
            raise ConfigError(
                f"model.bottom: the last size is {self.bottom[-1]}, but dot products need the "
                "embedding dim "
                f"{unequal[0]}; end model.bottom with {unequal[0]} or set model.embedding_dim = "
                f"{self.bottom[-1]}"
            )

    @property
    def first_column(self) -> int:
        """Columns of E that the bottom MLP writes."""
        return self.bottom[-1]

    @property
    def columns(self) -> int:
        """Columns of E."""
        return self.first_column + sum(self.dims)

    @property
    def interaction_width(self) -> int:
        """Inputs of the top MLP."""
        if self.interaction == "cat":
            return self.columns
        rows = len(self.dims) + 1
        return self.first_column + rows * (rows - 1) // 2 + (rows if self.diagonal else 0)

    def sizes(self, name: str) -> tuple[int, ...]:
        """Widths of the MLP "bottom" or "top", its inputs first."""
        return (
            (self.dense_features, *self.bottom)
            if name == "bottom"
            else (self.interaction_width, *self.top)
        )

    def tensors(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(name, shape) of every parameter, in the order of the flat array."""
        found: list[tuple[str, tuple[int, ...]]] = []
        for name in ("bottom", "top"):
            for layer, (inputs, outputs) in enumerate(pairwise(self.sizes(name))):
                found.append((f"{name}.{layer}.weight", (outputs, inputs)))
                found.append((f"{name}.{layer}.bias", (outputs,)))
        return tuple(found)

    @property
    def parameters(self) -> int:
        """Number of dense parameters."""
        return sum(math.prod(shape) for _, shape in self.tensors())

    def views(self, flat: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """name -> view of a flat array f32[parameters], shaped."""
        found = {}
        at = 0
        for name, shape in self.tensors():
            found[name] = flat[at : at + math.prod(shape)].reshape(shape)
            at += math.prod(shape)
        return found
