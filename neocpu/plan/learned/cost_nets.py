"""What do a set of tables, and an exchange, cost on a machine? Two networks that learned it.

    ComputeNet    c(S) = W2 relu(W1 . sum over t in S of relu(Wb relu(Wa x_t)))
                  20 -> 128 -> 32, summed over the set, 32 -> 64 -> 1
    CommNet       ranks' dim sums and start offsets (2n), or dim sums (n) -> 128-64-32-16 -> n

(NeuroShard, MLSys 2023; its published source. AutoShard's cost network has the same form with 21
features.) A sum has no order, so the cost of a set has none. Costs are in units of the mean of
the training set; seconds come out.
"""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Floats
from neocpu.plan.learned.features import FEATURES, Scaling
from neocpu.plan.learned.nets import Array, Layers, Tape

LATENT = 32
HIDDEN = 64
TABLE_WIDTHS = (FEATURES, 128, LATENT)
HEAD_WIDTHS = (LATENT, HIDDEN, 1)
COMM_HIDDEN = (128, 64, 32, 16)


class ComputeNet:
    """Seconds of lookups and updates of a set of table pieces on one rank.

    scaling : of features. unit : seconds that an output of 1 is.
    """

    def __init__(self, rng: Generator, scaling: Scaling, unit: float) -> None:
        self.table = Layers(TABLE_WIDTHS, rng, final_relu=True)
        self.head = Layers(HEAD_WIDTHS, rng)
        self.scaling = scaling
        self.unit = unit

    @property
    def parameters(self) -> list[Array]:
        """All weights and biases, those of the table part first."""
        return self.table.parameters + self.head.parameters

    @parameters.setter
    def parameters(self, arrays: Sequence[Array]) -> None:
        count = len(self.table.parameters)
        self.table.parameters = list(arrays[:count])
        self.head.parameters = list(arrays[count:])

    def latents(self, features: Floats) -> Array:
        """f[n, LATENT] of features f64[n, FEATURES]."""
        return self.table(self.scaling(features).astype(self.parameters[0].dtype))

    def seconds_of_sums(self, sums: Array) -> Array:
        """Seconds of sets by the sums of their latents [..., LATENT]; an empty set takes none."""
        # nothing keeps a network from negative costs; an empty rank costs nothing whatever the
        # biases say
        seconds = np.maximum(self.head(sums)[..., 0], 0) * self.unit
        return np.where(np.any(sums != 0, axis=-1), seconds, 0.0)

    def seconds(self, features: Floats, sets: Ints, count: int) -> Floats:
        """Seconds of `count` sets; sets[i] is that of row i of the features."""
        sums = np.zeros((count, LATENT), self.parameters[0].dtype)
        np.add.at(sums, sets, self.latents(features))
        return self.seconds_of_sums(sums).astype(np.float64)

    def loss(self, inputs: Array, starts: Ints, targets: Array) -> tuple[float, list[Array]]:
        """(mean squared error, its gradients).

        inputs : standardised features of the sets one after the other, whose first rows are
        `starts`. targets : in units.
        """
        # sets of any size in one batch: their tables stand one after the other
        tables = self.table.run(inputs)
        heads = self.head.run(np.add.reduceat(tables[-1], starts, axis=0))
        error = heads[-1][:, 0] - targets
        slope = (2 / error.size * error)[:, None].astype(inputs.dtype)
        head_slopes, sums_slope = self.head.gradients(heads, slope)
        lengths = np.diff(np.append(starts, inputs.shape[0]))
        table_slopes, _ = self.table.gradients(tables, np.repeat(sums_slope, lengths, axis=0))
        return float(np.mean(error * error)), table_slopes + head_slopes


class CommNet:
    """Seconds of an exchange on each of n ranks.

    inputs : dim sums [n], with start offsets in s [n] behind them where `offsets`. Numbers above
    `largest`, the largest of the training set, are scaled down together and the answer up again:
    bytes over bandwidth have no other scale.
    """

    def __init__(self, ranks: int, offsets: bool, rng: Generator, unit: float) -> None:
        self.ranks = ranks
        self.offsets = offsets
        inputs = 2 * ranks if offsets else ranks
        self.layers = Layers((inputs, *COMM_HIDDEN, ranks), rng)
        self.scaling = Scaling(np.zeros(inputs), np.ones(inputs))
        self.largest = np.ones(inputs)
        self.unit = unit

    @property
    def parameters(self) -> list[Array]:
        """All weights and biases."""
        return self.layers.parameters

    @parameters.setter
    def parameters(self, arrays: Sequence[Array]) -> None:
        self.layers.parameters = list(arrays)

    def seconds(self, inputs: Floats) -> Floats:
        """Seconds f64[..., n] of the ranks."""
        beyond = np.maximum((inputs / self.largest).max(axis=-1, keepdims=True), 1.0)
        scaled = self.scaling(inputs / beyond).astype(self.parameters[0].dtype)
        return np.maximum(self.layers(scaled).astype(np.float64), 0.0) * self.unit * beyond

    def loss(self, inputs: Array, targets: Array) -> tuple[float, list[Array]]:
        """(mean squared error over samples and ranks, its gradients)."""
        tape: Tape = self.layers.run(inputs)
        error = tape[-1] - targets
        slopes, _ = self.layers.gradients(tape, (2 / error.size * error).astype(inputs.dtype))
        return float(np.mean(error * error)), slopes
