"""How do the probabilities of choices learn? One step: a sample, a pass forward and back, theta.

    m = sample(theta)        forward and backward with m; no weight is changed
    g = dCE/dm + weight * d E_m[cost] / dm
    theta: the rule of optimizer.dense on the gradient of theta by g

What dCE/dm is made of is summed over the batch as gradients of dense parameters are, by nodes of
leaves, so theta has the same bits on any number of ranks.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from neocpu.core.trees import leaf_cuts, rank_samples
from neocpu.parallel.exchange.dense_reduction import dense_reduction
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.tables.specs.optimizers import Schedule
from neocpu.train.model.arrays import NodeGradient
from neocpu.train.search.cost import Mixtures, ModelCost
from neocpu.train.search.draws import gumbel, sample, softmax, theta_gradient
from neocpu.train.search.supernet import Supernet
from neocpu.train.step.turn import BatchLike, Outcome
from neocpu.train.step.world import World

LEAST_TEMPERATURE = 1e-6  # theta / temperature stays finite


class Temper(NamedTuple):
    """How sharp samples are after so many steps: start * decay^(step // every)."""

    start: float
    decay: float
    every: int

    def at(self, step: int) -> float:
        """The temperature; powers by multiplication, one after the other, until it is so low that
        a sample is one choice.
        """
        temperature = self.start
        # ** calls libm, whose last bit differs between machines
        for _ in range(step // self.every):
            temperature *= self.decay
        return max(temperature, LEAST_TEMPERATURE)


class Deciding:
    """The steps on theta of a search.

    world : with a supernet. cost : of models. scale : of the cost beside the loss.

    Attribute: model, the supernet.
    """

    def __init__(self, world: World, cost: ModelCost, scale: float) -> None:
        assert isinstance(world.model, Supernet)
        self.model = world.model
        self._world = world
        self._cost = cost
        self._scale = scale
        self._optimizer = _theta_optimizer(world, self.model)
        comm = world.comm
        leaves = world.config.training.leaves
        self._reduction = dense_reduction(comm.queue("dense"), self.model.sums, leaves)
        self._sums = {
            node: np.empty(self.model.sums, np.float32) for node in self._reduction.nodes[comm.rank]
        }
        self._views = {node: self.model.sums_layout(flat) for node, flat in self._sums.items()}

    def sampled(self, draw: int, temperature: float) -> dict[str, np.ndarray]:
        """m f64[choices] of each decision."""
        seed = self._world.config.training.seed
        return {
            name: sample(theta, gumbel(seed, name, theta.size, draw), temperature)
            for name, theta in self.model.theta.items()
        }

    def probabilities(self) -> dict[str, np.ndarray]:
        """softmax(theta) f64[choices] of each decision."""
        thetas = self.model.theta.items()
        return {name: softmax(theta.astype(np.float64)) for name, theta in thetas}

    def step(self, batch: BatchLike, step: int, draw: int, temperature: float) -> Outcome:
        """One step on theta, `step` counted from 1. Collective."""
        m = self.sampled(draw, temperature)
        outcome = self._pass(batch, m)
        gradients = self.gradients(batch.samples, m)
        flat = np.concatenate(
            [theta_gradient(m[name], gradients[name], temperature) for name in self.model.theta]
        )
        self._optimizer.step(flat.astype(np.float32), step)
        return outcome

    def _pass(self, batch: BatchLike, m: Mixtures) -> Outcome:
        """Forward and back, keeping what the gradient of m is made of."""
        model = self.model
        model.choose(m, learn=True)
        # neither update nor exchange of gradients: weights stay
        self._world.step.forward(batch)
        weights = getattr(batch, "weights", None)
        prediction, loss = model.loss_gradient(batch.labels, batch.samples, weights)
        # the supernet's buffers belong to the next batch
        outcome = Outcome(prediction.copy(), batch.labels, loss.copy())
        # no nodes: nobody asks for gradients of weights
        model.backward_upper([])
        model.backward_lower()
        model.backward_bottom([])
        return outcome

    def gradients(self, samples: int, m: Mixtures) -> dict[str, np.ndarray]:
        """Gradient f64[choices] of loss and cost by each decision's m, after a pass with m over
        a global batch of so many samples. Collective.
        """
        comm = self._world.comm
        leaves = self._world.config.training.leaves
        cuts = leaf_cuts(samples, leaves)
        first, _ = rank_samples(comm.rank, comm.size, samples, leaves)
        for (low, size), views in self._views.items():
            node_cuts = np.array(cuts[low : low + size + 1], np.int64) - first
            self.model.write_sums(NodeGradient(node_cuts, views))
        sums = self._reduction.reduce(self._sums)
        of_cost = self._cost.gradients(m)
        return {
            name: gradient + self._scale * of_cost[name]
            for name, gradient in self.model.gradients(sums).items()
        }


def _theta_optimizer(world: World, model: Supernet) -> DenseOptimizer:
    """The rule of optimizer.dense on theta, at a constant rate; its state is in that of the model's
    parameters, behind which theta stands.
    """
    config = world.config
    rule = replace(
        config.optimizer.dense,
        learning_rate=config.search.learning_rate,
        schedule=Schedule(),
        # theta is no weight: decay would draw all choices to equal ones
        weight_decay=0.0,
        weight_decay_mode="none",
    )
    span = slice(model.shared, model.flat.size)
    optimizer = DenseOptimizer(rule, model.flat[span])
    # views: checkpoints and digest have theta's state with that of the parameters
    optimizer.state = {name: world.dense.state[name][span] for name in optimizer.state}
    return optimizer
