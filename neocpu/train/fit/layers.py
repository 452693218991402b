"""How are losses, slopes and curvatures of layers of weights added up over samples?

    z_1 = x W_1,   z_l = [f(z_(l-1)), 1] W_l,   the scores are z_L

One layer is a linear model, more are a multilayer perceptron. Its gradient is backpropagation's; a
product of its Hessian with a vector V is the derivative of the gradient along V, forward over
reverse (R of Pearlmutter 1994):

    d_L = loss'            d_l = u_l f'(z_l),   u_l = d_(l+1) W_(l+1)^T
    gradient               [f(z_(l-1)), 1]^T d_l
    R z_1 = x V_1          R z_l = [f(z_(l-1)), 1] V_l + [f'(z_(l-1)) R z_(l-1), 0] W_l
    R d_L = loss'' R z_L   R d_l = R u_l f'(z_l) + u_l f''(z_l) R z_l,
                           R u_l = R d_(l+1) W_(l+1)^T + d_(l+1) V_(l+1)^T
    product                [f(z_(l-1)), 1]^T R d_l + [f'(z_(l-1)) R z_(l-1), 0]^T d_l
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Ints
from neocpu.kernels.dense.design import inner_product, products
from neocpu.kernels.numbers.philox import uniform_rows
from neocpu.kernels.twins.numbers.philox import FIT, tensor_key
from neocpu.train.fit.design import F64, DesignMatrix, without_entries
from neocpu.train.fit.losses import ACTIVATIONS, Loss


class Layer(NamedTuple):
    """What a layer keeps of samples.

    inputs : as a design matrix. slope : of the loss in its z, f64[n, h]. gate, bend : f'(z) and
    u f''(z), f64[n, h]; of the last layer f64[0, 0].
    """

    inputs: DesignMatrix
    slope: F64
    gate: F64
    bend: F64


class Tape(NamedTuple):
    """What a model keeps of samples: loss f64[n]; curvature f64[n, K], of the loss in the scores;
    and what each layer does.
    """

    loss: F64
    curvature: F64
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class LayeredModel:
    """A model whose loss is minimised: scores of samples by layers of weights.

    widths : columns of the design matrix, hidden units of each layer, scores of a sample.
    activation : of hidden units, one of `ACTIVATIONS`.

    Parameters are one vector f64[P]: of each layer W [inputs, outputs]. The last input is the
    constant, whose weights are intercepts. What is summed over samples is written, for each of
    nodes i64[p, 2], to the beginning of a row of out.
    """

    loss: Loss
    widths: tuple[int, ...]
    activation: str = "tanh"

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Inputs, with the constant, and outputs of each layer."""
        # the constant of a design matrix is one of its columns
        inputs = [self.widths[0], *(width + 1 for width in self.widths[1:-1])]
        return list(zip(inputs, self.widths[1:], strict=True))

    @property
    def parameters(self) -> int:
        """P."""
        return sum(rows * columns for rows, columns in self.shapes)

    def matrices(self, vector: F64) -> list[F64]:
        """Each layer's part of a vector f64[P], [inputs, outputs]."""
        ends = np.cumsum([rows * columns for rows, columns in self.shapes])
        parts = np.split(vector, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def start(self, seed: int, squares: F64) -> F64:
        """The parameters that a fit begins with, f64[P]: 0 of a linear model.

        squares : f64[width], the mean square of each column. Those of hidden units are uniform in
        +-sqrt(6 / (r + outputs)), r the mean square of a row's length, times the root of the
        column's square; and r the inputs, in layers behind the first. Intercepts are 0.
        """
        out = np.zeros(self.parameters)
        if len(self.widths) == 2:
            return out
        for number, matrix in enumerate(self.matrices(out)):
            rows, columns = matrix.shape
            size = float(rows - 1) if number else inner_product(squares, np.ones_like(squares))
            drawn = np.empty((rows - 1, columns), np.float32)
            limit = np.float32(np.sqrt(6.0 / (size + columns)))
            key = tensor_key(seed, FIT, f"layer.{number}")
            uniform_rows(key, np.arange(rows - 1), 0, limit, drawn)
            matrix[:-1] = drawn
            if not number:
                # rare values begin near 0: nothing but the penalty would move their weights
                matrix *= np.sqrt(squares)[:, None]
        return out

    def penalised(self, intercepts: bool) -> F64:
        """Which parameters the penalty is on, f64[P] of 0 and 1; intercepts : these too."""
        out = np.ones(self.parameters)
        for matrix in self.matrices(out):
            matrix[-1] = float(intercepts)
        return out

    def scores(self, design: DesignMatrix, weights: F64) -> F64:
        """Scores of samples, f64[n, K]."""
        *hidden, last = self.matrices(weights)
        for matrix in hidden:
            design = design.behind(self._units(design.times(matrix))[0], 1.0)
        return design.times(last)

    def tape(self, design: DesignMatrix, weights: F64) -> Tape:
        """Losses of samples, and what derivatives need."""
        *hidden, last = matrices = self.matrices(weights)
        inputs = [design]
        bends = []
        for matrix in hidden:
            value, gate, bend = self._units(inputs[-1].times(matrix))
            inputs.append(inputs[-1].behind(value, 1.0))
            bends.append((gate, bend))
        scores = inputs[-1].times(last)
        loss, slope, curvature = np.empty(len(scores)), np.empty_like(scores), np.empty_like(scores)
        self.loss.curve(scores, design.labels, loss, slope, curvature)
        loss, slope = design.weighed(loss), design.weighed(slope)
        none = np.empty((0, 0))
        layers = [Layer(inputs[-1], slope, none, none)]
        for source, (gate, bend), matrix in zip(inputs[-2::-1], bends[::-1], matrices[:0:-1]):
            pull = backward(layers[0].slope, matrix)
            layers.insert(0, Layer(source, pull * gate, gate, pull * bend))
        return Tape(loss, curvature, tuple(layers))

    def _units(self, z: F64) -> tuple[F64, F64, F64]:
        """Values of hidden units, and their derivatives."""
        value, slope, curvature = np.empty_like(z), np.empty_like(z), np.empty_like(z)
        ACTIVATIONS[self.activation](z, value, slope, curvature)
        return value, slope, curvature

    def gradient(self, tape: Tape, nodes: Ints, out: F64) -> None:
        """Sums of the gradients of samples."""
        for layer, part in zip(tape.layers, self._parts(out), strict=True):
            layer.inputs.transposed_times(layer.slope, nodes, part)

    def curved(self, weights: F64, tape: Tape, vector: F64, nodes: Ints, out: F64) -> None:
        """Sums of the Hessians of samples times a vector f64[P]."""
        matrices, directions = self.matrices(weights), self.matrices(vector)
        changes, moved = self._moved(tape.layers, matrices, directions)
        parts = self._parts(out)
        design = tape.layers[-1].inputs
        change = design.weighed(self.loss.curved(tape.curvature, moved[-1]))
        for number in range(len(parts) - 1, 0, -1):
            layer, below = tape.layers[number], tape.layers[number - 1]
            more = changes[number - 1].leaf_sums(layer.slope)
            layer.inputs.transposed_times(change, nodes, parts[number], more)
            pull = backward(change, matrices[number]) + backward(layer.slope, directions[number])
            change = pull * below.gate + below.bend * moved[number - 1]
        tape.layers[0].inputs.transposed_times(change, nodes, parts[0])

    def _moved(
        self, layers: Sequence[Layer], matrices: Sequence[F64], directions: Sequence[F64]
    ) -> tuple[list[DesignMatrix], list[F64]]:
        """Changes along a direction: of the inputs of layers behind the first, and of each z."""
        changes: list[DesignMatrix] = []
        moved = [layers[0].inputs.times(directions[0])]
        for (below, layer), matrix, direction in zip(
            pairwise(layers), matrices[1:], directions[1:], strict=True
        ):
            changes.append(layer.inputs.behind(below.gate * moved[-1], 0.0))
            moved.append(layer.inputs.times(direction) + changes[-1].times(matrix))
        return changes, moved

    def _parts(self, out: F64) -> list[F64]:
        """Each layer's part of out f64[nodes, P + ...], and what is behind it."""
        ends = np.cumsum([0, *(rows * columns for rows, columns in self.shapes)])
        return [out[:, first:] for first in ends[:-1]]

    def along(self, weights: F64, tape: Tape, vector: F64) -> F64:
        """The gradient of each sample times a vector f64[P]: f64[n]."""
        _, moved = self._moved(tape.layers, self.matrices(weights), self.matrices(vector))
        return row_sums(tape.layers[-1].slope * moved[-1])

    def squares(self, tape: Tape) -> F64:
        """The square of the length of each sample's gradient, f64[n]."""
        out = np.zeros(tape.loss.size)
        for layer in tape.layers:
            out += row_sums(layer.slope * layer.slope) * layer.inputs.norms
        return out


def backward(slope: F64, matrix: F64) -> F64:
    """Slopes f64[n, outputs] times W^T without its constant: f64[n, inputs - 1]."""
    turned = np.ascontiguousarray(matrix[:-1].T)
    out = np.empty((len(slope), turned.shape[1]))
    products(without_entries(len(slope)), slope, turned, out)
    return out


def row_sums(numbers: F64) -> F64:
    """The sum of each row of f64[n, K], a chain from +0: f64[n]."""
    out = np.zeros(len(numbers))
    for column in numbers.T:
        out += column
    return out
