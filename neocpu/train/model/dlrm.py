"""How do dense features and embeddings become a click probability? Through a DLRM, or another model
with its parts.

    dense x ──► bottom MLP ───────────► E[:, :d0] ┐
    pooled vectors ──► compositions ──► E[:, d0:] ┴► interactions ──► top MLP ──► logit ──► loss
    rows of lookups ─┘                  (towers)                 └──► heads: further labels

One rank's dense part, for its own samples; it knows nothing of ranks and tables. The training step
writes the pooled vectors into E between `forward_bottom` and `forward_top`, which gets the rows of
keys whose tables do not pool; it passes the gradient of E from `backward`, and `row_terms`, to the
tables. Where tables are composed (`composition.py`), E has the vectors of physical tables at first,
and those of logical ones then. A linear term and some interactions add to the logit.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.types import Floats, Ints
from neocpu.train.model.arrays import Buffer, NodeGradient
from neocpu.train.model.heads import Head, Objective
from neocpu.train.model.interactions.chain import Chain
from neocpu.train.model.layout import ModelLayout
from neocpu.train.model.mlp import BetweenLayers, Mlp, initialise
from neocpu.train.model.precision.operands import precision_of

if TYPE_CHECKING:
    from neocpu.tables.embedding.lookups import KeyLookups, RowTerms
    from neocpu.train.model.composition import Compositions
    from neocpu.train.model.first_order import FirstOrder
    from neocpu.train.model.towers import Towers


class Dlrm:
    """Bottom MLP, interaction, top MLP and loss.

    layout : the sizes of its parts. seed : of the initial values. apart : do the towers' modules
    run elsewhere, and E holds their vectors in place of the pooled ones? flat : f32[P], memory for
    the parameters, which get their initial values (None: its own).

    Attributes: flat f32[P], all parameters; parameters, views of it by name; columns of E f32[b,
    columns], which is the bottom's output in columns :first_column, then each (physical) key's
    pooled vector; bottom, top, the MLPs; composition, towers, first_order: modules, or None where
    the model has none; interaction; heads, of further labels;
    shared, number of parameters at work here: all but those of towers that run elsewhere; between,
    called after each layer's work (messages may be on their way); precision, in which numbers
    products are made, whose `begin` comes before a step of training.
    """

    def __init__(
        self, layout: ModelLayout, seed: int = 0, apart: bool = False, flat: Floats | None = None
    ) -> None:
        self.layout = layout
        self.columns = layout.columns
        self.first_column = layout.first_column
        self.flat: Floats = np.empty(layout.parameters, np.float32) if flat is None else flat
        self.parameters = layout.views(self.flat)
        initialise(self.parameters, seed)
        self.precision = precision_of(layout.precision, seed)
        self.precision.settle(self.parameters, 0)
        self.between = BetweenLayers()
        self.bottom = self._mlp("bottom", last_relu=True)
        self.top = self._mlp("top", last_relu=False)
        widths = (layout.first_column, layout.dims)
        self.towers = self._towers(widths) if layout.towers and not apart else None
        self.first_order = self._linear_term(widths) if layout.has_first_order else None
        self.interaction = Chain(layout.chain(), self.parameters, self.between, self.precision)
        self.shared = self.flat.size
        if layout.towers and apart:
            # they send their vectors; the pooled vectors that they take never come here
            self.columns = layout.first_column + sum(layout.vector_widths)
            # they end the flat array, and only the nodes that run them train them
            self.shared = layout.tower_slices[0].start
        self.composition = self._compositions()
        if self.composition is not None:
            # E is filled by physical tables, which may have more or fewer columns
            self.columns = self.composition.columns
        self.heads = [
            Head(head, layout.interaction_width, self.parameters, self.between, self.precision)
            for head in layout.heads
        ]
        self._objective = Objective(layout.loss, precision=self.precision)
        # a sum over heads, where there are several
        self._z_gradient = Buffer(layout.interaction_width)
        self._logits = np.empty((0, 0), np.float32)
        self._dense = self._logits
        self._bottom_gradient = self._logits

    def _towers(self, widths: tuple[int, tuple[int, ...]]) -> "Towers":
        """The modules of the towers, where they run here."""
        from neocpu.train.model.towers import Towers

        return Towers(*widths, self.layout.towers, self.parameters)

    def _linear_term(self, widths: tuple[int, tuple[int, ...]]) -> "FirstOrder":
        """The module of the linear term."""
        from neocpu.train.model.first_order import FirstOrder

        return FirstOrder(*widths, self.layout.wide, self.parameters)

    def _compositions(self) -> "Compositions | None":
        """What composes the vectors of logical tables; None where all tables are full."""
        if self.layout.composition is None:
            return None
        from neocpu.train.model.composition import Compositions

        return Compositions(self.first_column, self.layout.composition, self.parameters)

    def _mlp(self, name: str, last_relu: bool) -> Mlp:
        """The MLP "bottom" or "top"."""
        sizes = self.layout.sizes(name)
        return Mlp(name, sizes, self.parameters, last_relu, self.between, self.precision)

    def settle(self, first: int, end: int, step: int) -> None:
        """Parameters from number `first` to `end` of the flat array were updated: without master
        weights they are rounded.
        """
        starts = np.cumsum([0, *self.layout.parameter_sizes().values()]).tolist()
        updated = {
            name: values
            for start, (name, values) in zip(starts, self.parameters.items())
            if first <= start < end
        }
        self.precision.settle(updated, step)

    def forward_bottom(self, x: Floats, E: Floats) -> None:
        """Write the bottom MLP's output for x f32[b, dense_features] into E[:, :first_column]."""
        self._dense = np.ascontiguousarray(x)
        E[:, : self.first_column] = self.bottom.forward(self._dense)

    def forward_top(self, E: Floats, lookups: Sequence["KeyLookups"] = ()) -> Floats:
        """Logits f32[b] of E f32[b, columns] (C-contiguous, read again by `backward`).

        lookups : of the keys whose tables do not pool. Valid until the next call.
        """
        if self.composition is not None:
            E = self.composition.forward(E, lookups)
        vectors = E if self.towers is None else self.towers.forward(E)
        linear = None
        if self.first_order is not None:
            vectors, linear = self.first_order.forward(self._dense, vectors)
        z = self.interaction.forward(vectors)
        self.between("vectors")
        self._logits = self.top.forward(z)
        for head in self.heads:
            head.forward(z)
        self.between("heads")
        # a view: the terms are added to what the loss reads
        logits = self._logits.reshape(-1)
        for term in (self.interaction.logit, linear):
            if term is not None:
                logits += term
        return logits

    def loss_gradient(
        self, labels: Floats, global_batch: int, weights: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Predictions f32[b] and losses f32[b] of the last `forward_top`.

        The gradient is kept for `backward`; `heads` have a loss of their own.

        The loss is the mean over `global_batch` samples, of which these are a part, each times its
        weight, f32[b] (None: 1). Valid until the next call.
        """
        return self._objective.gradient(self._logits.reshape(-1), labels, global_batch, weights)

    def with_heads(self, head_labels: Floats | None) -> Sequence[tuple[Head, Floats]]:
        """The further heads with their labels f32[heads, b]."""
        return tuple(zip(self.heads, () if head_labels is None else head_labels, strict=True))

    def predict(self) -> Floats:
        """Predictions f32[b] of the last `forward_top` (bce: probabilities, mse: logits).

        Valid until the next call.
        """
        return self._objective.predict(self._logits.reshape(-1))

    def backward(self) -> Floats:
        """Gradient dE f32[b, columns] of the loss with respect to E; valid until the next call.

        Its first columns are the gradient of the bottom MLP's output times the loss scale, not yet
        that of what its last ReLU is applied to.
        """
        self.backward_upper([])
        dE = self.backward_lower()
        self.backward_bottom([])
        return dE

    def backward_upper(self, nodes: Sequence[NodeGradient]) -> None:
        """Go back through the top MLP to the output of its first layer, and write the gradients of
        `layout.upper`, the parameters of its other layers.

        nodes : sums to write, over the samples of each.
        """
        self.top.begin_backward(self._objective.logit_gradient)
        for layer in range(self.top.layers - 1, 0, -1):
            self.top.input_gradient(layer)
            self.top.weight_gradient(layer, nodes)

    def backward_lower(self) -> Floats:
        """Go on through the top MLP's first layer and the interaction: dE, as of `backward`."""
        dz = self.top.input_gradient(0)
        for head in self.heads:
            dz = np.add(dz, head.backward(), out=self._z_gradient.matrix(len(dz)))
        dlogit = self._objective.logit_gradient.reshape(-1)
        dE = self.interaction.backward(dz, dlogit)
        if self.first_order is not None:
            dE = self.first_order.backward(dE, dlogit)
        self._bottom_gradient = dE[:, : self.first_column]
        if self.precision.unscale != 1:
            # the bottom MLP goes on with the scaled one
            dE[:, self.first_column :] *= self.precision.unscale
        if self.towers is not None:
            dE = self.towers.backward(dE)
        if self.composition is not None:
            dE = self.composition.backward(dE)
        self.between("vectors inputs")
        return dE

    @property
    def row_terms(self) -> Sequence["RowTerms"]:
        """Gradients of the keys whose tables do not pool, of the last `backward_lower`."""
        return () if self.composition is None else self.composition.row_terms

    def backward_bottom(self, nodes: Sequence[NodeGradient]) -> None:
        """Go back through the bottom MLP, and write the gradients of `layout.lower`: its own, those
        of the top MLP's first layer, those of the interaction and of towers.

        nodes : as of `backward_upper`.
        """
        # left over by `backward_upper`: its bucket travels later, with the bottom's
        self.top.weight_gradient(0, nodes)
        self.bottom.begin_backward(self._bottom_gradient)
        for layer in range(self.bottom.layers - 1, -1, -1):
            if layer:
                self.bottom.input_gradient(layer)
            self.bottom.weight_gradient(layer, nodes)
        self._weight_gradients_between(nodes)

    def _weight_gradients_between(self, nodes: Sequence[NodeGradient]) -> None:
        """Of what stands between E and the top MLP, and of further heads."""
        for head in self.heads:
            head.weight_gradients(nodes)
        self.interaction.weight_gradients(nodes)
        for module in (self.first_order, self.composition, self.towers):
            if module is not None:
                module.weight_gradients(nodes)
        self.between("vectors weights")

    def weight_gradient_node(self, cuts: Ints, out: Floats) -> Floats:
        """Gradient of all parameters, summed over one aligned node of leaves, into `out` f32[P].

        cuts : i64[L+1], L a power of two: first sample of each of the node's leaves within this
        batch, and the end. out : in the order of `flat`. Call it after `backward`.
        """
        node = NodeGradient(cuts, self.layout.views(out), unscale=self.precision.unscale)
        for mlp in (self.bottom, self.top):
            for layer in range(mlp.layers):
                mlp.weight_gradient(layer, [node])
        self._weight_gradients_between([node])
        return out
