"""What does the dense half of a step do, and how long does each operation take? A few samples of
zeros show it, before the first step.

Every operation tells that it is done (`BetweenLayers`), every array that it is written
(`Buffer.taken`); what follows per sample grows with the batch.
"""

import time
from functools import partial

import numpy as np

from neocpu.core.types import Floats
from neocpu.plan.activations.graph import Activation, StepGraph, StepOperation
from neocpu.train.activations.lifetimes import Lifetimes
from neocpu.train.model.arrays import NodeGradient
from neocpu.train.model.mlp import END, LOSS
from neocpu.train.step.step import TrainStep

SAMPLES = 256  # of a rehearsal: enough for threads, few for memory


class _Rehearsal:
    """What is heard of a step: seconds of operations, and which one writes an array first."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.writers: dict[str, int] = {}
        self._begun = time.perf_counter()

    def begin(self) -> None:
        """A step begins, like the one before."""
        self.seconds.clear()
        self.writers.clear()
        self._begun = time.perf_counter()

    def after(self, work: str) -> None:
        """An operation is done; "" and layers of further heads are parts of others."""
        if not work or work.startswith("heads."):
            return
        now = time.perf_counter()
        self.seconds[work] = now - self._begun
        self._begun = now

    def taken(self, name: str, _: Floats) -> None:
        """An array is written."""
        self.writers.setdefault(name, len(self.seconds))


def rehearse(step: TrainStep, lifetimes: Lifetimes, samples: int) -> StepGraph:
    """The graph of a step of so many samples on this rank, which has some."""
    few = min(samples, SAMPLES)
    heard = _Rehearsal()
    for name, buffer in lifetimes.buffers.items():
        buffer.taken = partial(heard.taken, name)
    between = step.model.between
    before = between.after
    between.after = heard.after
    try:
        # the first time everything is new to the caches
        for _ in range(2):
            heard.begin()
            _play(step, few)
    finally:
        between.after = before
        for buffer in lifetimes.buffers.values():
            buffer.taken = None
    return _graph(heard, lifetimes, samples, samples / few)


def _play(step: TrainStep, samples: int) -> None:
    """Forward and backward over zeros; no parameter changes."""
    model = step.model
    x = np.zeros((samples, model.layout.dense_features), np.float32)
    labels = np.zeros(samples, np.float32)
    E = step.vectors.matrix(samples)
    E[:] = 0
    model.forward_bottom(x, E)
    model.forward_top(E)
    model.loss_gradient(labels, samples)
    for head in model.heads:
        head.loss_gradient(labels, samples)
    model.between(LOSS)
    flat = np.empty(model.flat.size, np.float32)
    nodes = [NodeGradient(np.array([0, samples], np.int64), model.layout.views(flat))]
    model.backward_upper(nodes)
    model.backward_lower()
    model.backward_bottom(nodes)
    model.between(END)


def _graph(heard: _Rehearsal, lifetimes: Lifetimes, samples: int, scale: float) -> StepGraph:
    """What was heard, of so many samples; scale : of seconds."""
    names = {name: number for number, name in enumerate(heard.seconds)}
    operations = tuple(
        StepOperation(name, seconds * scale) for name, seconds in heard.seconds.items()
    )
    activations = []
    for name, first in sorted(heard.writers.items(), key=lambda item: item[1]):
        forward = first <= names[LOSS]
        readers = lifetimes.readers(name, forward)
        uses = sorted(names[reader] for reader in readers if names[reader] >= first)
        remake = lifetimes.remakes.get(name)
        activations.append(
            Activation(
                name=name,
                bytes=4 * samples * lifetimes.buffers[name].columns,
                first=first,
                uses=tuple(uses),
                moves=forward,
                remake=operations[names[remake.operation]].seconds if remake else None,
                sources=tuple(x for x in remake.sources if x in heard.writers) if remake else (),
            )
        )
    return StepGraph(operations, tuple(activations))
