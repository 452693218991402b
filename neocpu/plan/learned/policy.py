"""AutoShard and DreamShard: a network that says where the next table goes.

Tables come in the order of their own cost, dearest first. For each, every rank d is scored:

    z_t      latent of the table: 21 features -> 128 -> 32
    s_d      sum of the latents on the rank (DreamShard's state; AutoShard has an LSTM there)
    k_d      relu of a layer of 4 predicted costs: of the rank, of the rank with the table, their
             part of the dearest rank's, and the part of its memory
    logit_d  = 96 -> 64 -> 1 of [z_t * s_d ; s_d ; k_d]

Ranks without room are masked (DreamShard). Sums and costs are parts of what a rank has on average,
so that one policy serves any number of tables and ranks. This file is the network and its
derivative; `episodes.py` plays and teaches.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Floats
from neocpu.plan.learned.features import FEATURES
from neocpu.plan.learned.nets import Array, Layers, Tape

LATENT = 32
COSTS = 4
TABLE_WIDTHS = (FEATURES + 1, 128, LATENT)
SCORE_WIDTHS = (3 * LATENT, 64, 1)


class Trace(NamedTuple):
    """What scoring leaves for the derivative: tapes of the nets, and the factors of products."""

    table: Tape
    cost: Tape
    score: Tape
    latents: Array
    sums: Array


class PlacementPolicy:
    """Scores of ranks; see the file's text."""

    def __init__(self, rng: Generator) -> None:
        self.table = Layers(TABLE_WIDTHS, rng, final_relu=True)
        self.cost = Layers((COSTS, LATENT), rng, final_relu=True)
        self.score = Layers(SCORE_WIDTHS, rng)

    @property
    def _nets(self) -> tuple[Layers, Layers, Layers]:
        return self.table, self.cost, self.score

    @property
    def parameters(self) -> list[Array]:
        """All weights and biases."""
        return [parameter for net in self._nets for parameter in net.parameters]

    @parameters.setter
    def parameters(self, arrays: Sequence[Array]) -> None:
        start = 0
        for net in self._nets:
            count = len(net.parameters)
            net.parameters = list(arrays[start : start + count])
            start += count

    def latents(self, tables: Floats) -> Array:
        """f[T, LATENT] of standardised features f64[T, FEATURES + 1]."""
        return self.table(tables.astype(self.parameters[0].dtype))

    def logits(self, latent: Array, sums: Array, costs: Array) -> Array:
        """Scores [..., ranks] for one table.

        latent : [LATENT] or [..., LATENT]. sums : [..., ranks, LATENT], of the ranks, in parts of
        the mean number of tables. costs : [..., ranks, COSTS].
        """
        dtype = self.parameters[0].dtype
        sums = sums.astype(dtype)
        paid = self.cost(costs.astype(dtype))
        inputs = np.concatenate([sums * latent[..., None, :], sums, paid], axis=-1)
        return self.score(inputs)[..., 0]

    def run(self, tables: Floats, placed: Ints, share: float, costs: Floats) -> tuple[Array, Trace]:
        """(logits [E, T, ranks], trace) of E whole episodes over the same tables.

        tables : standardised features f64[T, FEATURES + 1] in their order. placed : i64[E, T].
        share : 1 over the mean number of tables of a rank. costs : f64[E, T, ranks, COSTS].
        """
        dtype = self.parameters[0].dtype
        table_tape = self.table.run(tables.astype(dtype))
        latents = table_tape[-1]
        onto = placed[:, :, None] == np.arange(costs.shape[2])
        added = onto[..., None] * latents[None, :, None, :] * share
        # What lies on the ranks before each table.
        sums = (np.cumsum(added, axis=1) - added).astype(dtype)
        cost_tape = self.cost.run(costs.reshape(-1, COSTS).astype(dtype))
        product = sums * latents[None, :, None, :]
        paid = cost_tape[-1].reshape(sums.shape)
        inputs = np.concatenate([product, sums, paid], axis=-1).reshape(-1, 3 * LATENT)
        score_tape = self.score.run(inputs)
        logits = score_tape[-1].reshape(costs.shape[:3])
        return logits, Trace(table_tape, cost_tape, score_tape, latents, sums)

    def gradients(self, trace: Trace, placed: Ints, share: float, slope: Array) -> list[Array]:
        """Gradients of the parameters from those of the logits [E, T, ranks]."""
        score_slopes, inputs_slope = self.score.gradients(trace.score, slope.reshape(-1, 1))
        shape = trace.sums.shape
        product, direct, paid = (part.reshape(shape) for part in np.split(inputs_slope, 3, axis=1))
        cost_slopes, _ = self.cost.gradients(trace.cost, paid.reshape(-1, LATENT))
        sums_slope = direct + product * trace.latents[None, :, None, :]
        latents_slope = (product * trace.sums).sum(axis=(0, 2))
        # A table's latent is in the sums of its rank for all tables behind it.
        after = np.cumsum(sums_slope[:, ::-1], axis=1)[:, ::-1] - sums_slope
        episodes = np.arange(shape[0])[:, None]
        steps = np.arange(shape[1])[None, :]
        latents_slope += share * after[episodes, steps, placed].sum(axis=0)
        table_slopes, _ = self.table.gradients(trace.table, latents_slope)
        return table_slopes + cost_slopes + score_slopes
