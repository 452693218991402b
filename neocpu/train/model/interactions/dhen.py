"""How do interactions of several kinds form a hierarchy? In layers, each an ensemble (DHEN, arXiv
2203.11014, equation 1).

    X_(n+1) = Norm( ensemble_i( W_i Int_i(X_n) + b_i ) + S(X_n) )

X_n are vectors of one width D. Int_i is one of MODULES; W_i makes `tokens` vectors of what it
gives. The ensemble adds them, or sets those of each module side by side. S is the identity where
the number of vectors stays, else a matrix. Norm is layer normalisation of each vector, without gain
and bias. The equation is the paper's; sizes inside the modules are ours, since no code of the
authors is public.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.types import Floats, FloatsByName
from neocpu.kernels.compile.choice import chosen
from neocpu.train.model.arrays import Buffer, NodeGradient, Shapes
from neocpu.train.model.interactions.attention import SelfAttentionLayout
from neocpu.train.model.interactions.base import Interaction, InteractionLayout, Widths, one_width
from neocpu.train.model.interactions.cat import CatLayout
from neocpu.train.model.interactions.cross import CrossLayout
from neocpu.train.model.interactions.dot import DotLayout
from neocpu.train.model.linear import Linear
from neocpu.train.model.options import ENSEMBLES, MODULES, CrossShape, DhenShape
from neocpu.train.model.precision.operands import EXACT, Precision

EPS = 1e-5  # of the layer normalisation, as in torch


@dataclass(frozen=True)
class DhenLayerLayout:
    """One layer.

    vectors : widths of the vectors that come. shape : of all layers. name : before its tensors'.
    """

    vectors: Widths
    shape: DhenShape
    name: str

    def __post_init__(self) -> None:
        # the residual adds, and the norm is of, vectors of one width
        one_width("dhen", self.vectors)
        unknown = [module for module in self.shape.modules if module not in MODULES]
        if unknown or not self.shape.modules:
            raise ConfigError(
                f"model.dhen.modules: {list(self.shape.modules)} must be some of "
                f"{', '.join(MODULES)}"
            )
        # tensors are named by their module
        if len(set(self.shape.modules)) < len(self.shape.modules):
            raise ConfigError(
                f"model.dhen.modules: {list(self.shape.modules)} names one module twice"
            )
        if self.shape.ensemble not in ENSEMBLES:
            raise ConfigError(
                f"model.dhen.ensemble: {self.shape.ensemble!r} must be one of "
                f"{', '.join(ENSEMBLES)}"
            )

    @property
    def tokens(self) -> int:
        """Vectors that each module gives."""
        return self.shape.tokens or len(self.vectors)

    @property
    def widths(self) -> Widths:
        """Of the vectors that it gives."""
        times = len(self.shape.modules) if self.shape.ensemble == "concat" else 1
        return (self.vectors[0],) * (self.tokens * times)

    @property
    def projects_residual(self) -> bool:
        """Does the layer's input need a matrix to be added to its output?"""
        return self.shape.residual and len(self.widths) != len(self.vectors)

    def modules(self) -> dict[str, InteractionLayout]:
        """name -> layout of each module, before its projection."""
        cross = CrossShape(1, self.shape.rank)
        layouts: dict[str, InteractionLayout] = {
            "dot": DotLayout(self.vectors),
            "cross": CrossLayout(self.vectors, cross, f"{self.name}.cross"),
            "attention": SelfAttentionLayout(self.vectors, f"{self.name}.attention"),
            "linear": CatLayout(self.vectors),
        }
        return {name: layouts[name] for name in self.shape.modules}

    def tensors(self) -> Shapes:
        """(name, shape) of the modules' parameters, each with its projection."""
        tensors: list[tuple[str, tuple[int, ...]]] = []
        # modules give what they like; the projection makes vectors of the layer's width of it
        columns = self.tokens * self.vectors[0]
        for name, layout in self.modules().items():
            tensors += layout.tensors()
            tensors.append((f"{self.name}.{name}.out.weight", (columns, sum(layout.widths))))
            tensors.append((f"{self.name}.{name}.out.bias", (columns,)))
        if self.projects_residual:
            shape = (sum(self.widths), sum(self.vectors))
            tensors.append((f"{self.name}.residual.weight", shape))
            tensors.append((f"{self.name}.residual.bias", shape[:1]))
        return tuple(tensors)


@dataclass(frozen=True)
class DhenLayout:
    """All layers. vectors, shape : as of `DhenLayerLayout`. prefix : of the tensors' names."""

    vectors: Widths
    shape: DhenShape
    prefix: str

    def __post_init__(self) -> None:
        self.layers()

    def layers(self) -> list[DhenLayerLayout]:
        """Layout of each layer."""
        layouts = []
        widths = self.vectors
        for number in range(self.shape.layers):
            layout = DhenLayerLayout(widths, self.shape, f"{self.prefix}.dhen.{number}")
            widths = layout.widths
            layouts.append(layout)
        return layouts

    @property
    def widths(self) -> Widths:
        """Of the vectors that the last layer gives."""
        return self.layers()[-1].widths

    def tensors(self) -> Shapes:
        """(name, shape) of the parameters of all layers."""
        return tuple(tensor for layer in self.layers() for tensor in layer.tensors())

    def build(self, parameters: FloatsByName, precision: Precision = EXACT) -> Interaction:
        """The interaction at work."""
        return Dhen([DhenLayer(layer, parameters) for layer in self.layers()])


class Dhen(Interaction):
    """Layers behind one another."""

    def __init__(self, layers: Sequence["DhenLayer"]) -> None:
        self._layers = layers

    def forward(self, x: Floats) -> Floats:
        """Vectors of the last layer."""
        for layer in self._layers:
            x = layer.forward(x)
        return x

    def backward(self, dy: Floats, dlogit: Floats) -> Floats:
        """dx of the first layer."""
        for layer in reversed(self._layers):
            dy = layer.backward(dy, dlogit)
        return dy

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Of all layers."""
        for layer in self._layers:
            layer.weight_gradients(nodes)


class DhenLayer(Interaction):
    """One layer: modules with their projections, residual, normalisation."""

    def __init__(self, layout: DhenLayerLayout, parameters: FloatsByName) -> None:
        self.layout = layout
        columns = sum(layout.widths)
        width = layout.tokens * layout.vectors[0]
        names = layout.shape.modules
        self._modules = [module.build(parameters) for module in layout.modules().values()]
        self._projections = [Linear(f"{layout.name}.{name}.out", parameters) for name in names]
        starts = range(0, width * len(names), width)
        concat = layout.shape.ensemble == "concat"
        self._slices = [
            slice(start, start + width) if concat else slice(0, width) for start in starts
        ]
        self._residual = (
            Linear(f"{layout.name}.residual", parameters) if layout.projects_residual else None
        )
        self._sum = Buffer(columns)
        self._y = Buffer(columns)
        self._outer = Buffer(columns)
        self._gradients = [Buffer(width) for _ in names]
        self._dx = Buffer(sum(layout.vectors))
        self._inverse = np.empty(0)
        self._normal = np.empty((0, columns), np.float32)

    def forward(self, x: Floats) -> Floats:
        """Vectors f32[b, columns] of x f32[b, columns that come]."""
        total = self._sum.matrix(len(x))
        # sums from +0 in the order of the modules, as docs/arithmetic.md has them
        total[:] = 0
        for module, projection, columns in zip(self._modules, self._projections, self._slices):
            total[:, columns] += projection.forward(module.forward(x))
        if self.layout.shape.residual:
            total += x if self._residual is None else self._residual.forward(x)
        return self._normalised(total) if self.layout.shape.norm else total

    def backward(self, dy: Floats, dlogit: Floats) -> Floats:
        """dx: what came through the modules in their order, then through the residual."""
        outer = self._unnormalised(dy) if self.layout.shape.norm else dy
        dx = self._dx.matrix(len(dy))
        dx[:] = 0
        modules = zip(self._modules, self._projections, self._slices, self._gradients)
        for module, projection, columns, buffer in modules:
            gradient = buffer.matrix(len(dy))
            # under "concat" a slice of columns, and products want rows without gaps
            gradient[:] = outer[:, columns]
            dx += module.backward(projection.backward(gradient), dlogit)
        if self.layout.shape.residual:
            dx += outer if self._residual is None else self._residual.backward(outer)
        return dx

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Of modules, projections and residual."""
        for module, projection in zip(self._modules, self._projections):
            module.weight_gradients(nodes)
            projection.weight_gradients(nodes)
        if self._residual is not None:
            self._residual.weight_gradients(nodes)

    def _vectors(self, matrix: Floats) -> Floats:
        """A matrix f32[b, columns] as f32[b * vectors, D]."""
        return matrix.reshape(-1, self.layout.vectors[0])

    def _normalised(self, total: Floats) -> Floats:
        y = self._y.matrix(len(total))
        rows = self._vectors(total)
        if len(self._inverse) < len(rows):
            # fp64, as the kernel keeps it; a vector each, not a sample
            self._inverse = np.empty(len(rows))
        # the adjoint is written in what came out, so the input need not be kept
        self._normal = y
        inverse = self._inverse[: len(rows)]
        chosen("dense.layer_norm", "norm_forward")(rows, EPS, self._vectors(y), inverse)
        return y

    def _unnormalised(self, dy: Floats) -> Floats:
        outer = self._outer.matrix(len(dy))
        y = self._vectors(self._normal)
        inverse = self._inverse[: len(y)]
        chosen("dense.layer_norm", "norm_backward")(
            y, inverse, self._vectors(dy), self._vectors(outer)
        )
        return outer
