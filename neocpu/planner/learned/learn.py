"""How are the networks of a machine made? Samples, cost networks, then the policy on their costs.

For a machine that is described (`trained_on_rates`), samples are its own rates, by `StepSeconds`;
for one that is here, `measure.py` takes them. Seconds to a minute, by a command and never in a run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from neocpu.planner.learned.cost_nets import CommNet
from neocpu.planner.learned.costs import LearnedCosts
from neocpu.planner.learned.episodes import Game, Lesson, teach
from neocpu.planner.learned.samples import (
    Ranges,
    draw_pool,
    simulated_comm,
    simulated_compute,
)
from neocpu.planner.learned.store import Networks
from neocpu.planner.learned.training import (
    CommSamples,
    ComputeSamples,
    train_comm,
    train_compute,
)
from neocpu.planner.seconds import Layout, StepSeconds
from neocpu.zionex.machine import Machine

# Samples of a step at which machines that are only described are asked.
BATCH = 65_536
# Ranks with exchange networks; for others the shared cost model's exchanges count.
COMM_RANKS = (2, 4, 8)
# Tables and ranks of the tasks that teach the policy.
TASK_TABLES = (10, 60)
TASK_RANKS = (2, 4, 8)

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """What was measured or simulated: at this batch, and exchanges by number of ranks."""

    batch: int
    compute: ComputeSamples
    comm: Mapping[int, tuple[CommSamples, CommSamples]]
    ranges: Ranges
    origin: str


@dataclass(frozen=True)
class Training:
    """How long networks are trained: epochs over the samples, and the policy's lesson."""

    epochs: int = 120
    lesson: Lesson = Lesson()


def simulated(
    machine: Machine, batch: int = BATCH, ranks: Sequence[int] = COMM_RANKS, sets: int = 20_000
) -> Measured:
    """Samples by the rates of a machine that is only described."""
    comm = {}
    for count in ranks:
        layout = Layout(count, min(count, machine.ranks_per_node))
        comm[count] = simulated_comm(machine, batch, layout, count=sets // 2)
    return Measured(
        batch=batch,
        compute=simulated_compute(machine, batch, sets=sets),
        comm=comm,
        ranges=Ranges(),
        origin=f"rates of {machine.name}, by StepSeconds; nothing was measured",
    )


def learn(
    machine: Machine,
    measured: Measured,
    training: Training = Training(),
    tell: Tell = lambda topic: None,
) -> Networks:
    """Trained networks of a machine."""
    tell(f"compute network, {measured.compute.seconds.size} sets")
    compute, quality = train_compute(measured.compute, training.epochs)
    facts: dict[str, Any] = {"origin": measured.origin, "compute": asdict(quality)}
    comm: dict[int, tuple[CommNet, CommNet]] = {}
    for ranks, (forward, backward) in measured.comm.items():
        tell(f"exchange networks of {ranks} ranks, {forward.seconds.shape[0]} exchanges")
        forward_net, forward_quality = train_comm(forward, ranks, True, training.epochs)
        backward_net, backward_quality = train_comm(backward, ranks, False, training.epochs)
        comm[ranks] = (forward_net, backward_net)
        facts[f"forward-{ranks}"] = asdict(forward_quality)
        facts[f"backward-{ranks}"] = asdict(backward_quality)
    networks = Networks(
        machine=machine.name, batch=measured.batch, compute=compute, comm=comm, facts=facts
    )
    tell(f"policy, {training.lesson.updates} tasks")
    policy, rewards = teach(_tasks(machine, networks, measured.ranges), training.lesson)
    tenth = max(len(rewards) // 10, 1)
    facts["policy"] = {
        "first_rewards": float(np.mean(rewards[:tenth])),
        "last_rewards": float(np.mean(rewards[-tenth:])),
    }
    return replace(networks, policy=policy, facts=facts)


def _tasks(
    machine: Machine, networks: Networks, ranges: Ranges
) -> Callable[[np.random.Generator], Game]:
    """A function that draws a task: tables, ranks, and a capacity that leaves half of it free."""

    def draw(rng: np.random.Generator) -> Game:
        count = int(rng.integers(TASK_TABLES[0], TASK_TABLES[1] + 1))
        ranks = int(rng.choice(TASK_RANKS))
        pool = draw_pool(count, networks.batch, rng, ranges)
        layout = Layout(ranks, min(ranks, machine.ranks_per_node))
        model = StepSeconds(machine, pool.tables, pool.work, layout)
        costs = LearnedCosts(networks, pool.tables, pool.work, layout, model)
        sizes = costs.facts[:count, 0]
        capacity = max(2.0 * float(sizes.sum()) / ranks, 1.5 * float(sizes.max()))
        return Game(costs, capacity)

    return draw
