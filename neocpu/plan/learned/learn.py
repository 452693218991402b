"""How are the networks of a machine made? Samples, cost networks, then the policy on their costs.

For a machine that is described (`trained_on_rates`), samples are its own rates, by `StepSeconds`;
for one that is here, `measure.py` takes them. Seconds to a minute, by a command and never in a run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.random import Generator

from neocpu.core.types import Tell
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import StepSeconds
from neocpu.plan.learned.cost_nets import CommNet
from neocpu.plan.learned.costs import LearnedCosts
from neocpu.plan.learned.episodes import Game, Lesson, teach
from neocpu.plan.learned.measure import SAMPLINGS
from neocpu.plan.learned.policy import PlacementPolicy
from neocpu.plan.learned.samples import (
    Ranges,
    draw_pool,
    simulated_comm,
    simulated_compute,
)
from neocpu.plan.learned.store import Networks
from neocpu.plan.learned.training import (
    CommSamples,
    ComputeSamples,
    train_comm,
    train_compute,
)
from neocpu.plan.machines import calibration
from neocpu.plan.machines.machine import Machine

# Samples of a step at which machines that are only described are asked.
BATCH = 65_536
# Ranks with exchange networks; for others the shared cost model's exchanges count.
COMM_RANKS = (2, 4, 8)
# Tables and ranks of the tasks that teach the policy.
TASK_TABLES = (10, 60)
TASK_RANKS = (2, 4, 8)

# Tasks on which the policy is examined, and random placements of each.
EXAM_SEED = 99
EXAM_TASKS = 50
EXAM_RANDOM = 10

MEASURE = "neocpu.plan.learned.measure"


@dataclass(frozen=True)
class CostSamples:
    """What was measured or simulated: at this batch, and exchanges by number of ranks."""

    batch: int
    compute: ComputeSamples
    comm: Mapping[int, tuple[CommSamples, CommSamples]]
    ranges: Ranges
    origin: str


@dataclass(frozen=True)
class Training:
    """How long networks are trained: steps of Adam, and the policy's lesson."""

    steps: int = 4000
    lesson: Lesson = field(default_factory=Lesson)


TRAININGS = {"full": Training(), "quick": Training(steps=100, lesson=Lesson(updates=10))}
# Sets that are drawn for machines that are only described.
SETS = {"full": 20_000, "quick": 1000}


def simulated(
    machine: Machine, batch: int = BATCH, ranks: Sequence[int] = COMM_RANKS, sets: int = 20_000
) -> CostSamples:
    """Samples by the rates of a machine that is only described."""
    comm = {}
    for count in ranks:
        layout = Layout(count, min(count, machine.ranks_per_node))
        comm[count] = simulated_comm(machine, batch, layout, count=sets // 2)
    return CostSamples(
        batch=batch,
        compute=simulated_compute(machine, batch, sets=sets),
        comm=comm,
        ranges=Ranges(),
        origin=f"rates of {machine.name}, by StepSeconds; nothing was measured",
    )


def measured_here(
    effort: str, ranks: Sequence[int], folder: Path, tell: Callable[[int, str], None]
) -> CostSamples:
    """Samples of this machine, by jobs of 2 and of `ranks` ranks; arguments and errors as of
    `calibration.calibrate`.
    """
    jobs = calibration.run_jobs(effort, (2, *ranks), folder, tell, MEASURE)
    sampling = SAMPLINGS[effort]
    sets = next(job.curves["sets"] for job in jobs if "sets" in job.curves)
    comm = {}
    for job in jobs:
        exchanges = job.curves["exchanges"]
        if exchanges:
            sums = np.array(exchanges["sums"])
            offsets = np.array(exchanges["offsets"])
            comm[job.ranks] = (
                CommSamples(np.hstack([sums, offsets]), np.array(exchanges["forward"])),
                CommSamples(sums, np.array(exchanges["backward"])),
            )
    return CostSamples(
        batch=sampling.batch,
        compute=ComputeSamples(
            features=np.array(sets["features"]),
            starts=np.array(sets["starts"], np.int64),
            seconds=np.array(sets["seconds"]),
        ),
        comm=comm,
        ranges=sampling.ranges,
        origin=f"measured on {calibration.cpu_name()}, the least of {sampling.tries} tries",
    )


def learn(
    machine: Machine,
    measured: CostSamples,
    training: Training = Training(),
    tell: Tell = lambda topic: None,
) -> Networks:
    """Trained networks of a machine."""
    tell(f"compute network, {measured.compute.seconds.size} sets")
    compute, quality = train_compute(measured.compute, training.steps)
    facts: dict[str, object] = {"origin": measured.origin, "compute": asdict(quality)}
    comm: dict[int, tuple[CommNet, CommNet]] = {}
    for ranks, (forward, backward) in measured.comm.items():
        tell(f"exchange networks of {ranks} ranks, {forward.seconds.shape[0]} exchanges")
        forward_net, forward_quality = train_comm(forward, ranks, True, training.steps)
        backward_net, backward_quality = train_comm(backward, ranks, False, training.steps)
        comm[ranks] = (forward_net, backward_net)
        facts[f"forward-{ranks}"] = asdict(forward_quality)
        facts[f"backward-{ranks}"] = asdict(backward_quality)
    networks = Networks(
        machine=machine.name, batch=measured.batch, compute=compute, comm=comm, facts=facts
    )
    tell(f"policy, {training.lesson.updates} tasks")
    draw = _tasks(machine, networks, measured.ranges)
    policy, _ = teach(draw, training.lesson)
    facts["policy"] = _against_random(policy, draw)
    return replace(networks, policy=policy, facts=facts)


def _against_random(policy: PlacementPolicy, draw: Callable[[Generator], Game]) -> dict[str, float]:
    """Mean cost of the policy's placements by that of random ones, on tasks it has not seen."""
    rng = np.random.default_rng(EXAM_SEED)
    ratios = []
    for _ in range(EXAM_TASKS):
        game = draw(rng)
        count = game.order.size
        ranks = rng.integers(0, game.costs.layout.ranks, (EXAM_RANDOM, count))
        random = [float(game.costs.seconds(game.costs.loads(game.order, r))) for r in ranks]
        ratios.append(float(game.play(policy, 1, None).seconds[0]) / float(np.mean(random)))
    # tasks on which the policy found no room say nothing of its costs
    finite = [ratio for ratio in ratios if np.isfinite(ratio)]
    return {"tasks": len(finite), "cost_by_random": float(np.mean(finite))}


def _tasks(machine: Machine, networks: Networks, ranges: Ranges) -> Callable[[Generator], Game]:
    """A function that draws a task: tables, ranks, and a capacity that leaves half of it free."""

    def draw(rng: Generator) -> Game:
        count = int(rng.integers(TASK_TABLES[0], TASK_TABLES[1] + 1))
        ranks = int(rng.choice(TASK_RANKS))
        pool = draw_pool(count, networks.batch, rng, ranges)
        layout = Layout(ranks, min(ranks, machine.ranks_per_node))
        model = StepSeconds(machine, pool.tables, pool.work, layout)
        costs = LearnedCosts(networks, pool.tables, pool.work, layout, model)
        sizes = costs.facts[:count, 0]
        # half of the memory stays free, and the largest table fits any rank
        capacity = max(2.0 * float(sizes.sum()) / ranks, 1.5 * float(sizes.max()))
        return Game(costs, capacity)

    return draw
