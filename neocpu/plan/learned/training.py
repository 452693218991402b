"""How do the cost networks learn? Adam on minibatches; the weights that validate best are kept.

80 % of the samples train, 10 % validate, 10 % test (NeuroShard). Order and weights come from
fixed seeds: the same samples give the same networks on the same processor.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Floats
from neocpu.plan.learned.cost_nets import CommNet, ComputeNet
from neocpu.plan.learned.features import Scaling
from neocpu.plan.learned.nets import Adam, Array

SEED = 20
BATCH = 512
RATE = 1e-3


@dataclass(frozen=True)
class ComputeSamples:
    """Sets of table pieces and what they cost.

    features : f64[pieces, FEATURES], set after set. starts : the first piece of each set.
    seconds : f64[sets].
    """

    features: Floats
    starts: Ints
    seconds: Floats


@dataclass(frozen=True)
class CommSamples:
    """Exchanges: inputs f64[n, ranks or 2 ranks] as of `CommNet`, seconds f64[n, ranks]."""

    inputs: Floats
    seconds: Floats


@dataclass(frozen=True)
class Quality:
    """Of a network on sets that it has not seen: R^2, and mean absolute error in parts of 1."""

    samples: int
    r2: float
    mape: float


def quality(predicted: Floats, seconds: Floats) -> Quality:
    """Quality of predictions."""
    # samples that do not vary have no R^2; 1 avoids a division by 0
    spread = float(((seconds - seconds.mean()) ** 2).sum()) or 1.0
    error = float(((predicted - seconds) ** 2).sum())
    mape = float(np.mean(np.abs(predicted - seconds) / np.maximum(seconds, 1e-12)))
    return Quality(seconds.shape[0], 1 - error / spread, mape)


def split(count: int) -> tuple[Ints, Ints, Ints]:
    """Samples that train, validate and test."""
    order = np.random.default_rng(SEED).permutation(count)
    # so that few samples, too, are validated and tested
    held = max(count // 10, 1)
    return order[2 * held :], order[:held], order[held : 2 * held]


def train_compute(samples: ComputeSamples, steps: int = 4000) -> tuple[ComputeNet, Quality]:
    """The network of lookups and updates, and its quality on the test samples."""
    train, valid, test = split(samples.seconds.size)
    ends = np.append(samples.starts[1:], samples.features.shape[0])
    lengths = ends - samples.starts
    unit = float(samples.seconds[train].mean())
    net = ComputeNet(np.random.default_rng(SEED), Scaling.of(samples.features), unit)
    net.parameters = [parameter.astype(np.float32) for parameter in net.parameters]
    inputs = net.scaling(samples.features).astype(np.float32)
    targets = (samples.seconds / unit).astype(np.float32)

    def loss(chosen: Ints) -> tuple[float, list[Array]]:
        # sets of the batch side by side, whatever their lengths
        firsts = np.cumsum(lengths[chosen]) - lengths[chosen]
        shift = np.repeat(samples.starts[chosen] - firsts, lengths[chosen])
        return net.loss(inputs[shift + np.arange(shift.size)], firsts, targets[chosen])

    net.parameters = _fit(net.parameters, loss, train, valid, steps)
    sets = np.repeat(np.arange(lengths.size), lengths)
    predicted = net.seconds(samples.features, sets, lengths.size)
    return net, quality(predicted[test], samples.seconds[test])


def train_comm(
    samples: CommSamples, ranks: int, offsets: bool, steps: int = 4000
) -> tuple[CommNet, Quality]:
    """A network of exchanges, and its quality on the test samples."""
    train, valid, test = split(samples.seconds.shape[0])
    unit = float(samples.seconds[train].mean())
    net = CommNet(ranks, offsets, np.random.default_rng(SEED + 1), unit)
    net.parameters = [parameter.astype(np.float32) for parameter in net.parameters]
    net.scaling = Scaling.of(samples.inputs[train])
    net.largest = np.maximum(samples.inputs[train].max(axis=0), 1e-12)
    inputs = net.scaling(samples.inputs).astype(np.float32)
    targets = (samples.seconds / unit).astype(np.float32)

    def loss(chosen: Ints) -> tuple[float, list[Array]]:
        return net.loss(inputs[chosen], targets[chosen])

    net.parameters = _fit(net.parameters, loss, train, valid, steps)
    return net, quality(net.seconds(samples.inputs)[test], samples.seconds[test])


def _fit(
    parameters: list[Array],
    loss: Callable[[Ints], tuple[float, list[Array]]],
    train: Ints,
    valid: Ints,
    steps: int,
) -> list[Array]:
    """The weights of the epoch that validates best; `loss` sees `parameters` as they change."""
    rng = np.random.default_rng(SEED + 2)
    adam = Adam(parameters, RATE)
    # Few samples make small batches, so that an epoch has steps.
    batch = max(1, min(BATCH, train.size // 8))
    best = np.inf
    kept = [parameter.copy() for parameter in parameters]
    step = 0
    while step < steps:
        order = rng.permutation(train)
        for start in range(0, order.size, batch):
            _, slopes = loss(order[start : start + batch])
            # a falling rate settles the weights; a twentieth of it remains to the end
            adam.step(slopes, RATE * max(1 - 0.95 * step / steps, 0.05))
            step += 1
        error, _ = loss(valid)
        if error < best:
            best = error
            kept = [parameter.copy() for parameter in parameters]
    return kept
