"""How are pooled vectors compressed before they interact? By one linear module for each tower.

    E [bottom | key 0 | key 1 | ...]      gather the tower's keys      x [b, sum of D]
    x -> joint layer, feature layer       scatter                      V [bottom | tower 0 | ...]

The layers are those of the MLPs: the same kernels, with the same order of additions
(`docs/arithmetic.md` §6). The feature layer sees a matrix with a row for each (sample, key).
`tower_layout.py` says which parameters there are.
"""

from collections.abc import Sequence

import numpy as np

from neocpu.core.types import Floats, FloatsByName
from neocpu.kernels.compile.choice import chosen
from neocpu.train.model.arrays import NO_GATE, Buffer, NodeGradient
from neocpu.train.model.tower_layout import TowerLayout


class Tower:
    """One tower module: its forward and backward pass for a batch of samples.

    layout : its shape. parameters : holds its weights and biases by name. columns : first column
    in E of each of its keys.
    """

    def __init__(
        self, layout: TowerLayout, parameters: FloatsByName, columns: Sequence[int]
    ) -> None:
        self.layout = layout
        self._columns = columns
        self._layers = [name[: -len(".weight")] for name, _ in layout.tensors()[::2]]
        self._weights = [parameters[f"{layer}.weight"] for layer in self._layers]
        self._biases = [parameters[f"{layer}.bias"] for layer in self._layers]
        # samples -> rows of a layer's matrix: the feature layer has one for each key
        self._rows = [
            len(layout.keys) if layer.endswith(".feature") else 1 for layer in self._layers
        ]
        self._x = Buffer(layout.inputs)
        self._dx = Buffer(layout.inputs)
        self._sum = Buffer(layout.inputs)
        self._outputs = [Buffer(rows * len(w)) for rows, w in zip(self._rows, self._weights)]
        self._gradients = [Buffer(rows * len(w)) for rows, w in zip(self._rows, self._weights)]
        self._samples = 0

    def forward(self, E: Floats, out: Floats) -> None:
        """Write the tower's vectors of E f32[b, columns of E] into out f32[b, columns]."""
        samples = len(E)
        self._samples = samples
        x = self._x.matrix(samples)
        # keys of a tower need not be neighbours in E
        self._gather(E, x)
        start = 0
        for weight, bias, rows, buffer in zip(
            self._weights, self._biases, self._rows, self._outputs
        ):
            outputs = buffer.matrix(samples)
            chosen("dense.gemm", "layer")(
                _with_rows(x, rows), weight, bias, False, _with_rows(outputs, rows)
            )
            out[:, start : start + outputs.shape[1]] = outputs
            start += outputs.shape[1]

    def backward(self, gradient: Floats, dE: Floats) -> None:
        """Write the gradient of its keys' vectors into their columns of dE f32[b, columns of E].

        gradient : of its vectors, f32[b, columns].
        """
        start = 0
        total: Floats | None = None
        for weight, rows, buffer in zip(self._weights, self._rows, self._gradients):
            outer = buffer.matrix(self._samples)
            # kept without gaps: the weight gradients read it after this call
            outer[:] = gradient[:, start : start + outer.shape[1]]
            start += outer.shape[1]
            # the joint layer's first, then fl(joint + feature), as docs/arithmetic.md has it
            inner = (self._sum if total is None else self._dx).matrix(self._samples)
            chosen("dense.gemm", "input_gradient")(
                _with_rows(outer, rows), weight, NO_GATE, _with_rows(inner, rows)
            )
            if total is None:
                total = inner
            else:
                np.add(total, inner, out=total)
        assert total is not None
        start = 0
        for column, dim in zip(self._columns, self.layout.dims):
            dE[:, column : column + dim] = total[:, start : start + dim]
            start += dim

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Write the gradients of weights and biases, summed over each of the nodes."""
        x = self._x.matrix(self._samples)
        for layer, rows, buffer in zip(self._layers, self._rows, self._gradients):
            outer = _with_rows(buffer.matrix(self._samples), rows)
            for node in nodes:
                node.write(layer, outer, _with_rows(x, rows), rows)

    def _gather(self, E: Floats, x: Floats) -> None:
        start = 0
        for column, dim in zip(self._columns, self.layout.dims):
            x[:, start : start + dim] = E[:, column : column + dim]
            start += dim


class Towers:
    """All tower modules of a model: E to the vectors V that interact, and back.

    first_column : columns of the bottom MLP's output, the first of E and of V. dims : columns of
    each key's vector in E. layouts : the towers. parameters : as for `Tower`.
    """

    def __init__(
        self,
        first_column: int,
        dims: Sequence[int],
        layouts: Sequence[TowerLayout],
        parameters: FloatsByName,
    ) -> None:
        starts = np.cumsum([first_column, *dims]).tolist()
        self.first_column = first_column
        self.towers = [
            Tower(layout, parameters, [starts[key] for key in layout.keys]) for layout in layouts
        ]
        self._starts = np.cumsum([first_column, *(t.columns for t in layouts)]).tolist()
        self._vectors = Buffer(self._starts[-1])
        self._dE = Buffer(starts[-1])

    def forward(self, E: Floats) -> Floats:
        """Vectors V f32[b, first_column + columns of all towers] of E f32[b, columns of E].

        Valid until the next call.
        """
        vectors = self._vectors.matrix(len(E))
        vectors[:, : self.first_column] = E[:, : self.first_column]
        for tower, lo, hi in zip(self.towers, self._starts, self._starts[1:]):
            tower.forward(E, vectors[:, lo:hi])
        return vectors

    def backward(self, gradient: Floats) -> Floats:
        """Gradient dE f32[b, columns of E] from that of V; valid until the next call."""
        dE = self._dE.matrix(len(gradient))
        dE[:, : self.first_column] = gradient[:, : self.first_column]
        for tower, lo, hi in zip(self.towers, self._starts, self._starts[1:]):
            tower.backward(gradient[:, lo:hi], dE)
        return dE

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """As `Tower.weight_gradients`, for all towers."""
        for tower in self.towers:
            tower.weight_gradients(nodes)


def _with_rows(matrix: Floats, rows: int) -> Floats:
    """A matrix f32[b, rows * n] as f32[b * rows, n]."""
    samples, columns = matrix.shape
    return matrix.reshape(samples * rows, columns // rows)
