"""Ranks are never alike, and machines fail: how stages vary, what faults cost, and what hours do.

Every stage of every rank and step takes a factor that is drawn from a log-normal law of mean 1 and
a given coefficient of variation; some ranks are slower throughout. An exchange has one factor for
all ranks. Steps are then a sample, which percentiles describe.
"""

from dataclasses import dataclass

import numpy as np

from neocpu.core.goodput import best_interval, progress
from neocpu.plan.cost.work import Floats
from neocpu.plan.simulation.engine import Work

SEED = 2


@dataclass(frozen=True)
class Jitter:
    """How stages vary.

    variation : standard deviation of a stage's seconds over their mean. slow_ranks : ranks, the
    first ones, whose own stages take slow_by times as long.
    """

    variation: float = 0.0
    slow_ranks: int = 0
    slow_by: float = 1.0

    @property
    def any(self) -> bool:
        """Does anything vary?"""
        return bool(self.variation or (self.slow_ranks and self.slow_by != 1.0))

    def drawn(self, work: Work, alone: bool, rng: np.random.Generator) -> Work:
        """The work of a stage in one step; alone : each rank for itself, else all together."""
        seconds = work.seconds
        if alone and self.slow_ranks:
            slower = np.arange(seconds.size) < self.slow_ranks
            seconds = np.where(slower, seconds * self.slow_by, seconds)
        if self.variation:
            # of the normal law below, with which factors have mean 1
            spread = np.sqrt(np.log1p(self.variation**2))
            normal = rng.normal(-(spread**2) / 2, spread, seconds.size if alone else 1)
            seconds = seconds * np.exp(normal)
        return work._replace(seconds=seconds)


def percentiles(seconds: Floats) -> dict[int, float]:
    """The 50th, 95th and 99th percentile of some steps' seconds."""
    ranks = (50, 95, 99)
    return dict(zip(ranks, np.percentile(seconds, ranks).tolist()))


@dataclass(frozen=True)
class NodeFaults:
    """How machines fail, in seconds; 0 for a fault of a node: never.

    node : from fault to fault of one node. save : that a checkpoint holds a run up. restart : from
    a fault until the run goes on. every : between checkpoints; 0: as is best.
    """

    node: float = 0.0
    save: float = 0.0
    restart: float = 0.0
    every: float = 0.0

    def interval(self, nodes: int) -> float:
        """Seconds between checkpoints of a run on so many nodes."""
        return self.every or best_interval(self.save, self.node / nodes)

    def progress(self, nodes: int) -> float:
        """The part of a run's time that is progress, on so many nodes."""
        if not self.node:
            return 1.0
        return progress(self.interval(nodes), self.save, self.restart, self.node / nodes)


@dataclass(frozen=True)
class RunningCosts:
    """What nodes cost while they run; 0: not asked.

    node_hour : price of a node and hour, in any currency. node_watts : that a node takes.
    """

    node_hour: float = 0.0
    node_watts: float = 0.0

    def of_million(self, nodes: int, samples_per_s: float) -> dict[str, float]:
        """Price and kWh of a million samples on so many nodes, of what was asked, by unit."""
        hours = nodes * 1e6 / samples_per_s / 3600
        costs = {"price": self.node_hour * hours, "kWh": self.node_watts / 1000 * hours}
        return {unit: value for unit, value in costs.items() if value}
