"""How are losses, slopes and curvatures of a linear model added up over samples?"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from neocpu.core.types import Ints
from neocpu.train.fit.design import F64, DesignMatrix
from neocpu.train.fit.losses import Loss


class Tape(NamedTuple):
    """What a model keeps of samples: loss f64[n]; slope, curvature f64[n, K], of the loss in the
    scores.
    """

    loss: F64
    slope: F64
    curvature: F64


class FitModel(Protocol):
    """A model whose loss is minimised; parameters are one vector f64[P].

    Nodes are i64[p, 2], and what is summed to them is written to the beginning of each row of out.
    """

    @property
    def parameters(self) -> int:
        """P."""

    def start(self, seed: int) -> F64:
        """The parameters that a fit begins with, f64[P]."""

    def penalised(self, intercepts: bool) -> F64:
        """Which parameters the penalty is on, f64[P] of 0 and 1; intercepts : these too."""

    def scores(self, design: DesignMatrix, weights: F64) -> F64:
        """Scores of samples, f64[n, K]."""

    def tape(self, design: DesignMatrix, weights: F64) -> Tape:
        """Losses of samples, and what derivatives need."""

    def gradient(
        self, design: DesignMatrix, weights: F64, tape: Tape, nodes: Ints, out: F64
    ) -> None:
        """Sums of the gradients of samples."""

    def curved(
        self, design: DesignMatrix, weights: F64, tape: Tape, vector: F64, nodes: Ints, out: F64
    ) -> None:
        """Sums of the Hessians of samples times a vector f64[P]."""

    def along(self, design: DesignMatrix, weights: F64, tape: Tape, vector: F64) -> F64:
        """The gradient of each sample times a vector, f64[n]."""

    def squares(self, design: DesignMatrix, weights: F64, tape: Tape) -> F64:
        """The square of the length of each sample's gradient, f64[n]."""


@dataclass(frozen=True)
class LinearScores:
    """Scores that are linear in a sample's row: parameters are weights [width, K].

    The last column of the design is the constant, whose weights are the intercepts.
    """

    loss: Loss
    width: int
    outputs: int = 1

    @property
    def parameters(self) -> int:
        """P."""
        return self.width * self.outputs

    def start(self, seed: int) -> F64:
        """Weights of 0."""
        return np.zeros(self.parameters)

    def penalised(self, intercepts: bool) -> F64:
        """All weights, or all but those of the constant."""
        out = np.ones((self.width, self.outputs))
        out[-1] = float(intercepts)
        return out.reshape(-1)

    def scores(self, design: DesignMatrix, weights: F64) -> F64:
        """Scores of samples, f64[n, K]."""
        return design.times(weights.reshape(self.width, self.outputs))

    def tape(self, design: DesignMatrix, weights: F64) -> Tape:
        """Losses of samples, slopes and curvatures."""
        return tape_of(self.loss, self.scores(design, weights), design.labels)

    def gradient(
        self, design: DesignMatrix, weights: F64, tape: Tape, nodes: Ints, out: F64
    ) -> None:
        """Sums of the gradients of samples."""
        design.transposed_times(tape.slope, nodes, out)

    def curved(
        self, design: DesignMatrix, weights: F64, tape: Tape, vector: F64, nodes: Ints, out: F64
    ) -> None:
        """Sums of the Hessians of samples times a vector."""
        moved = design.times(vector.reshape(self.width, self.outputs))
        design.transposed_times(self.loss.curved(tape.curvature, moved), nodes, out)

    def along(self, design: DesignMatrix, weights: F64, tape: Tape, vector: F64) -> F64:
        """The gradient of each sample times a vector."""
        moved = design.times(vector.reshape(self.width, self.outputs))
        return row_sums(tape.slope * moved)

    def squares(self, design: DesignMatrix, weights: F64, tape: Tape) -> F64:
        """The square of the length of each sample's gradient."""
        return row_sums(tape.slope * tape.slope) * design.norms


def row_sums(numbers: F64) -> F64:
    """The sum of each row of f64[n, K], a chain from +0: f64[n]."""
    out = np.zeros(len(numbers))
    for column in numbers.T:
        out += column
    return out


def tape_of(loss: Loss, scores: F64, labels: F64) -> Tape:
    """The tape of scores f64[n, K]."""
    tape = Tape(np.empty(labels.size), np.empty_like(scores), np.empty_like(scores))
    loss.curve(scores, labels, *tape)
    return tape
