"""Which tensors does a model have, in which order, and do its sizes fit together?

Nothing is compiled to answer that.

    bottom  dense features -> bottom[0] -> ... -> bottom[-1]        ReLU after every layer
    E       [bottom output | vector of key 0 | key 1 | ...]         `columns` wide
    top     interaction width -> top[0] -> ... -> 1                 ReLU after all layers but the
                                                                    last

With towers (`tower_layout.py`) the keys' vectors of E do not interact themselves; their towers'
vectors do. Tables of kinds and histories have their keys' vectors composed first
(`composition_layout.py`).

Parameters lie in one flat float32 array in this order:

    bottom.0.weight [out, in], bottom.0.bias [out], bottom.1.weight, ..., top.0.weight, ...
    kinds.TABLE.TENSOR, attention.KEY.LAYER...      composed tables, then histories
    interaction.NUMBER...                           each interaction that has any
    first_order.weight, first_order.bias            the linear term
    heads.NAME.LAYER...                             top MLPs of further labels
    towers.NAME...                                  last, so that a rank may leave them out
"""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neocpu.core.errors import ConfigError
from neocpu.core.types import Floats
from neocpu.train.model.arrays import Shapes, mlp_shapes
from neocpu.train.model.interactions.chain import (
    WITH_FIRST_ORDER,
    chain_layouts,
    chain_tensors,
)
from neocpu.train.model.interactions.dot import DotLayout
from neocpu.train.model.options import LOSSES, CrossShape, DhenShape, InteractionOptions
from neocpu.train.model.precision.keys import PrecisionKeys

if TYPE_CHECKING:
    from neocpu.train.model.composition_layout import CompositionLayout
    from neocpu.train.model.head_layout import HeadLayout
    from neocpu.train.model.interactions.base import InteractionLayout
    from neocpu.train.model.tower_layout import TowerLayout


@dataclass(frozen=True)
class ModelLayout:
    """Sizes of a model.

    dense_features : inputs of the bottom MLP. dims : columns of each key's vector. bottom, top :
    widths of the layers' outputs. interaction : one of INTERACTIONS, or several behind one another.
    diagonal : do dot products include those of a vector with itself? loss : one of LOSSES. towers :
    of the keys, or none. composition : how the keys' vectors are made of those of physical tables
    (None: as they are). cross, dhen : shapes of these layers, where the interaction has any. wide :
    positions of the keys that are weights of a linear term (`first_order.py`) and do not interact.
    heads : top MLPs and losses of further labels. appended : parameters behind all others, of no
    layer. precision : of the operands of products.

    Raises ConfigError: sizes that do not fit together, an unknown interaction or loss.
    """

    dense_features: int
    dims: tuple[int, ...]
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    interaction: str | tuple[str, ...] = "dot"
    diagonal: bool = False
    loss: str = "bce"
    towers: "tuple[TowerLayout, ...]" = ()
    composition: "CompositionLayout | None" = None
    cross: CrossShape = field(default_factory=CrossShape)
    dhen: DhenShape = field(default_factory=DhenShape)
    wide: tuple[int, ...] = ()
    heads: "tuple[HeadLayout, ...]" = ()
    appended: Shapes = ()
    precision: PrecisionKeys = field(default_factory=PrecisionKeys)

    def __post_init__(self) -> None:
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
        if self.wide and self.towers:
            raise ConfigError("model.wide: keys of towers are vectors; use one of the two")
        # messages that say what to change; behind another interaction widths are its own
        if self.interaction_names[:1] == ("dot",):
            self._check_dot()
        # raises for interactions that do not fit, before anything starts
        self.chain()

    def _check_dot(self) -> None:
        """Raise ConfigError unless all vectors have one width."""
        dims = sorted(set(self.vector_widths))
        if self.towers:
            if dims != [self.bottom[-1]]:
                raise ConfigError(
                    f"model.tower.width: {dims[0]}, but dot products need the width of the bottom "
                    f"MLP's output, {self.bottom[-1]}; set model.tower.width = 0, which takes it"
                )
            return
        if len(dims) > 1:
            raise ConfigError(
                "model.interaction: dot products need tables of one dim, but the tables have dims "
                f"{dims}; give all tables one dim or use model.interaction = 'cat'"
            )
        if dims and dims[0] != self.bottom[-1]:
            raise ConfigError(
                f"model.bottom: the last size is {self.bottom[-1]}, but dot products need the "
                f"embedding dim {dims[0]}; end model.bottom with {dims[0]} or set "
                f"model.embedding_dim = {self.bottom[-1]}"
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
    def vector_widths(self) -> tuple[int, ...]:
        """Columns of each vector that interacts with the bottom MLP's output."""
        if not self.towers:
            return tuple(dim for key, dim in enumerate(self.dims) if key not in self.wide)
        return tuple(t.module.width for t in self.towers for _ in range(t.vectors))

    @property
    def interaction_names(self) -> tuple[str, ...]:
        """Interactions behind one another, the first gets the vectors."""
        names = self.interaction
        return (names,) if isinstance(names, str) else tuple(names)

    def chain(self) -> "tuple[InteractionLayout, ...]":
        """Layouts of the interactions behind one another."""
        widths = (self.first_column, *self.vector_widths)
        options = InteractionOptions(self.diagonal, self.cross, self.dhen)
        return chain_layouts(self.interaction_names, widths, options)

    @property
    def dot_vectors(self) -> int:
        """Vectors that the dot products pair (0: there are none)."""
        dots = [len(layout.vectors) for layout in self.chain() if isinstance(layout, DotLayout)]
        return dots[0] if dots else 0

    @property
    def has_first_order(self) -> bool:
        """Does a linear term add to the logit?"""
        return bool(self.wide) or any(name in WITH_FIRST_ORDER for name in self.interaction_names)

    @property
    def interaction_width(self) -> int:
        """Inputs of the top MLP."""
        return sum(self.chain()[-1].widths)

    def sizes(self, name: str) -> tuple[int, ...]:
        """Widths of the MLP "bottom" or "top", its inputs first."""
        if name == "bottom":
            return (self.dense_features, *self.bottom)
        return (self.interaction_width, *self.top)

    def tensors(self) -> Shapes:
        """(name, shape) of every parameter, in the order of the flat array."""
        tensors = [
            *mlp_shapes("bottom", self.sizes("bottom")),
            *mlp_shapes("top", self.sizes("top")),
        ]
        if self.composition is not None:
            tensors += self.composition.tensors()
        tensors += self.further_tensors()
        for tower in self.towers:
            tensors += tower.tensors()
        return (*tensors, *self.appended)

    def further_tensors(self) -> Shapes:
        """(name, shape) of the parameters of interactions, linear term and further heads."""
        tensors = chain_tensors(self.chain())
        if self.has_first_order:
            from neocpu.train.model.first_order import NAME as FIRST_ORDER

            shape = (1, self.dense_features)
            tensors += ((f"{FIRST_ORDER}.weight", shape), (f"{FIRST_ORDER}.bias", (1,)))
        for head in self.heads:
            tensors += head.tensors(self.interaction_width)
        return tensors

    def parameter_sizes(self) -> dict[str, int]:
        """Numbers of every parameter, in the order of the flat array."""
        return {name: math.prod(shape) for name, shape in self.tensors()}

    @property
    def parameters(self) -> int:
        """Number of dense parameters."""
        return sum(math.prod(shape) for _, shape in self.tensors())

    @property
    def tower_slices(self) -> tuple[slice, ...]:
        """Where each tower's parameters stand in the flat array, which they end."""
        sizes = [sum(math.prod(shape) for _, shape in t.tensors()) for t in self.towers]
        # towers end the flat array, so that all other parameters are one slice
        ends = [self.parameters - sum(sizes[tower + 1 :]) for tower in range(len(sizes))]
        return tuple(slice(end - size, end) for end, size in zip(ends, sizes))

    def views(self, flat: Floats) -> dict[str, Floats]:
        """name -> view of its part of a flat array f32[parameters], in its shape."""
        views = {}
        first = 0
        for name, shape in self.tensors():
            end = first + math.prod(shape)
            views[name] = flat[first:end].reshape(shape)
            first = end
        return views

    @property
    def lower(self) -> slice:
        """The bottom MLP's and the top MLP's first layer, in the flat array: those parameters whose
        gradients a backward pass knows last.
        """
        first_top = [shape for name, shape in self.tensors() if name.startswith("top.0.")]
        bottom = [shape for name, shape in self.tensors() if name.startswith("bottom.")]
        return slice(0, sum(math.prod(shape) for shape in (*bottom, *first_top)))

    @property
    def upper(self) -> slice:
        """The other layers of the top MLP; empty where it has one."""
        return slice(self.lower.stop, self.parameters)

    @property
    def in_two_buckets(self) -> bool:
        """Do the gradients of `upper` come before all others? Not where parameters stand between
        the vectors and the top MLP: they follow it in the flat array.
        """
        composed = self.composition is not None and self.composition.tensors()
        return not (self.towers or composed or self.further_tensors())
