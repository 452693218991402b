"""Which model holds all models of a search? The largest, with masks behind its layers and tables.

    E [bottom | C1 | C3.1000 | C3 | ...]   as the tables give it
      mix the tables of one feature, mask columns           `TableChoices`
    E [bottom | C1 | C3 | ...]             as the model sees it
      bottom and top MLP, units masked                      `MaskedMlp`

A choice that is taken alone (m one-hot) leaves of a masked unit or column nothing but zeros, which
the chains of `docs/arithmetic.md` §1 add without a trace: the logits are those of the small model,
to the bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from neocpu.core.types import Doubles, Floats, FloatsByName
from neocpu.tables.embedding.lookups import KeyLookups
from neocpu.train.model.arrays import Buffer, NodeGradient
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.layout import ModelLayout
from neocpu.train.model.mlp import BetweenLayers, Mlp
from neocpu.train.search.masks import Mask, Mixture
from neocpu.train.search.space import Space, TableChoice


class KeyChoices:
    """The vector of one key, a feature of a table.

    name : of its sums. table : with its decisions. column : where the vector stands in E of the
    model. parts : where it stands in E of the tables, once for each number of rows.
    """

    def __init__(self, name: str, table: TableChoice, column: int, parts: Sequence[int]) -> None:
        dim = table.dim.largest
        self.columns = slice(column, column + dim)
        self.parts = [slice(start, start + dim) for start in parts]
        self.mask = Mask(f"{name}.dim", table.dim) if table.dim.open else None
        self.mixture = Mixture(f"{name}.rows", table.rows, dim) if table.rows.open else None
        self._mixed = Buffer(dim)
        self._vectors: Floats = self._mixed.matrix(0)

    def forward(self, E: Floats, out: Floats) -> None:
        """Write the vectors into E of the model, f32[b, columns], from that of the tables."""
        vectors = E[:, self.parts[0]]
        if self.mixture:
            vectors = self._mixed.matrix(len(E))
            self.mixture.forward([E[:, columns] for columns in self.parts], vectors)
        # what the mask multiplied, for its gradient
        self._vectors = vectors
        if self.mask:
            self.mask.forward(vectors, out[:, self.columns])
        else:
            out[:, self.columns] = vectors

    def backward(self, gradient: Floats, E: Floats, dE: Floats, learn: bool) -> None:
        """Write the gradient of E of the tables into dE; gradient : of E of the model, which is
        used up. learn : as of `Mask.backward`.
        """
        of_vectors = gradient[:, self.columns]
        if self.mask:
            self.mask.backward(of_vectors, self._vectors, learn)
        if self.mixture:
            parts = [E[:, columns] for columns in self.parts]
            self.mixture.backward(
                of_vectors, parts, [dE[:, columns] for columns in self.parts], learn
            )
        else:
            dE[:, self.parts[0]] = of_vectors


class TableChoices:
    """E of the tables f32[b, columns] to E of the model, and back.

    tables : with their decisions. first_column : columns of the bottom MLP, the first of both.

    Attribute: learn, keep what the gradients of mixtures are made of in backward passes.
    """

    def __init__(self, tables: Sequence[TableChoice], first_column: int) -> None:
        self.learn = False
        self._first = first_column
        self._keys: list[KeyChoices] = []
        column = first_column
        self.columns = first_column
        for table in tables:
            dim = table.dim.largest
            features = table.spec.features
            for position, feature in enumerate(features):
                parts = [
                    self.columns + (choice * len(features) + position) * dim
                    # E of the tables has table after table, in each the features side by side
                    for choice in range(len(table.rows.choices))
                ]
                self._keys.append(KeyChoices(f"{feature}@{table.spec.name}", table, column, parts))
                column += dim
            # one table for each number of rows, all of the widest rows
            self.columns += len(table.rows.choices) * len(features) * dim
        self._E = np.empty((0, self.columns), np.float32)
        self._out = Buffer(column)
        self._dE = Buffer(self.columns)

    @property
    def choices(self) -> list[Mask | Mixture]:
        """The masks and mixtures of all keys."""
        return [choice for key in self._keys for choice in (key.mask, key.mixture) if choice]

    def forward(self, E: Floats) -> Floats:
        """E of the model, from that of the tables, which `backward` reads again."""
        if not self.choices:
            return E
        self._E = E
        out = self._out.matrix(len(E))
        out[:, : self._first] = E[:, : self._first]
        for key in self._keys:
            key.forward(E, out)
        return out

    def backward(self, gradient: Floats) -> Floats:
        """Gradient of E of the tables from that of E of the model, which is used up but for the
        columns of the bottom MLP.
        """
        if not self.choices:
            return gradient
        dE = self._dE.matrix(len(gradient))
        dE[:, : self._first] = gradient[:, : self._first]
        for key in self._keys:
            key.backward(gradient, self._E, dE, self.learn)
        return dE


PREFIX = "search."


class MaskedMlp(Mlp):
    """An MLP some of whose layers' outputs are masked.

    masks : by layer. name, sizes, parameters, last_relu, between : as of `Mlp`.

    Attribute: learn, keep the products of backward passes.
    """

    def __init__(
        self,
        masks: Mapping[int, Mask],
        name: str,
        sizes: Sequence[int],
        parameters: FloatsByName,
        last_relu: bool,
        between: BetweenLayers,
    ) -> None:
        super().__init__(name, sizes, parameters, last_relu, between)
        self.learn = False
        self.masks = masks
        self._masked = {layer: Buffer(sizes[layer + 1]) for layer in masks}
        self._unmasked: dict[int, Floats] = {}

    def _output(self, layer: int, x: Floats) -> Floats:
        """As of `Mlp`, masked behind its ReLU."""
        output = super()._output(layer, x)
        if layer not in self.masks:
            return output
        self._unmasked[layer] = output
        masked = self._masked[layer].matrix(len(x))
        self.masks[layer].forward(output, masked)
        return masked

    def begin_backward(self, gradient: Floats) -> None:
        """As `Mlp.begin_backward`, through the mask of the last layer."""
        last = self.layers - 1
        if last in self.masks:
            gradient = gradient.copy()
            self.masks[last].backward(gradient, self._unmasked[last], self.learn)
        super().begin_backward(gradient)

    def input_gradient(self, layer: int) -> Floats:
        """As `Mlp.input_gradient`, through the mask of the layer before it."""
        inner = super().input_gradient(layer)
        if layer and layer - 1 in self.masks:
            # the gate lets no unit through whose output is 0, and its product is 0
            self.masks[layer - 1].backward(inner, self._unmasked[layer - 1], self.learn)
        return inner


class Supernet(Dlrm):
    """The largest model of a space, masked.

    space : its decisions. layout : of the largest model. seed : of the initial values.

    Attributes: theta, the logits f32[choices] of each decision, views of `flat` that begin at 0;
    sums, numbers that `write_sums` writes; columns of E are those of all tables.
    """

    def __init__(self, space: Space, layout: ModelLayout, seed: int) -> None:
        self.space = space
        self._masks: dict[str, Mask | Mixture] = {}  # by the names of their sums
        thetas = tuple((f"{PREFIX}{name}", (len(choices),)) for name, choices in space.decisions)
        super().__init__(replace(layout, appended=thetas), seed)
        self.theta = {
            decision.name: self.parameters[f"{PREFIX}{decision.name}"]
            for decision in space.decisions
        }
        for theta in self.theta.values():
            # no choice is preferred at first; Glorot's bounds are for weights
            theta[:] = 0
        # theta learns by steps of its own (`decide.py`), not with the weights
        self.shared = self.flat.size - sum(theta.size for theta in self.theta.values())
        self._tables = TableChoices(space.tables, self.first_column)
        # behind those of the layers, in the order of the sums' flat array
        self._masks |= {choice.sums.name: choice for choice in self._tables.choices}
        self.columns = self._tables.columns
        self.sums = sum(choice.sums.size for choice in self._masks.values())

    def _mlp(self, name: str, last_relu: bool) -> Mlp:
        masks = {
            layer: Mask(decision.name, decision)
            for layer, decision in enumerate(getattr(self.space, name))
            if decision.open
        }
        self._masks |= {mask.sums.name: mask for mask in masks.values()}
        sizes = self.layout.sizes(name)
        return MaskedMlp(masks, name, sizes, self.parameters, last_relu, self.between)

    def choose(self, mixtures: Mapping[str, Doubles], learn: bool = False) -> None:
        """Mix the choices of each decision as m f64[choices] says; learn : keep what the gradients
        of m are made of in backward passes.
        """
        for choice in self._masks.values():
            choice.choose(mixtures[choice.decision.name])
        self._tables.learn = learn
        for mlp in (self.bottom, self.top):
            assert isinstance(mlp, MaskedMlp)
            mlp.learn = learn

    def forward_top(self, E: Floats, lookups: Sequence[KeyLookups] = ()) -> Floats:
        """Logits f32[b] of E f32[b, columns] as the tables give it; see `Dlrm.forward_top`."""
        return super().forward_top(self._tables.forward(E), lookups)

    def backward_lower(self) -> Floats:
        """Gradient dE f32[b, columns] of E as the tables gave it; see `Dlrm.backward_lower`."""
        return self._tables.backward(super().backward_lower())

    def write_sums(self, node: NodeGradient) -> None:
        """Write what the gradients of m are made of, summed over a node of leaves, after a backward
        pass that learns; node.into : arrays of `sums_layout`.
        """
        for choice in self._masks.values():
            choice.sums.write(node)

    def sums_layout(self, flat: Floats) -> dict[str, Floats]:
        """Name -> view of its part of a flat array f32[sums]; biases of these layers, the numbers
        of samples, go nowhere.
        """
        views: dict[str, Floats] = {}
        first = 0
        for name, choice in self._masks.items():
            end = first + choice.sums.size
            views[f"{name}.weight"] = flat[first:end].reshape(1, -1)
            views[f"{name}.bias"] = np.empty(1, np.float32)
            first = end
        return views

    def gradients(self, flat: Floats) -> dict[str, Doubles]:
        """Gradient f64[choices] of each decision's m from the sums f32[sums] over the batch."""
        views = self.sums_layout(flat)
        gradients = {name: np.zeros(theta.size) for name, theta in self.theta.items()}
        for name, choice in self._masks.items():
            gradients[choice.decision.name] += choice.gradient(views[f"{name}.weight"].reshape(-1))
        return gradients
