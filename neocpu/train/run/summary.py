"""What does a run report at its end?

Its digest, metrics, speed, memory, traffic and plan, as `run.json` has them.
"""

import resource
import sys
from collections.abc import Sequence

import numpy as np

from neocpu.core.types import JsonObject
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.train.config.keys import config_record
from neocpu.train.run.recovery import Recovery
from neocpu.train.state.state import digest
from neocpu.train.step.world import World
from neocpu.train.watch.metrics import Metrics
from neocpu.train.watch.results import versions
from neocpu.train.watch.step_watch import StepClock

MOST_RANKS = 128  # of a matrix of traffic by rank; of more ranks it is by node


def peak_memory() -> int:
    """Most bytes of memory that this process had at a time."""
    # Linux counts KiB, macOS bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def summarise(
    world: World,
    steps: int,
    samples: int,
    clock: StepClock,
    metrics: dict[str, Metrics],
    traffic: dict[str, object],
    recovery: Recovery,
) -> dict[str, object]:
    """The summary of a run after `steps` steps over `samples` samples, all checkpoints written.

    Collective.

    metrics : by split. traffic : of training and evaluation (`Comm.traffic`).
    """
    comm = world.comm
    config = world.config
    tables = world.embedding.tbe
    memory = comm.allgather(peak_memory())
    return {
        # a run that had nothing to train wrote no checkpoint, so its digest is not known yet
        "digest": recovery.digest or digest(world, steps),
        "steps": steps,
        "samples": samples,
        "seconds": clock.seconds,
        "samples_per_second": clock.samples_per_second,
        "cold_start_seconds": clock.cold_start,
        "metrics": {split: measured.to_dict() for split, measured in metrics.items()},
        "memory_per_rank": max(memory),
        "memory_of_ranks": memory,
        "ranks": comm.size,
        "ranks_per_node": comm.ranks_per_node,
        "threads": config.training.threads,
        "plan": world.plan.to_dict(),
        "traffic": traffic,
        "checkpoints": recovery.written(),
        "placements": _placed(world.plan, world.embedding.env.memory),
        "tiers": tier_counts(comm, tables.tiers()),
        "stall_seconds": comm.largest(int(1e6 * tables.stalled)) / 1e6,
        **_activations(world),
        "crash_cost": recovery.crash_cost(),
        "versions": versions(),
        **config_record(config),
    }


def _activations(world: World) -> dict[str, object]:
    """What activations took under `memory.activations`: bytes of the fullest rank, bytes that left
    and arrays computed again in all steps of all ranks, seconds that the slowest waited.

    Collective.
    """
    if not world.config.memory.activations:
        return {}
    names = ("peak", "block", "moved", "remade", "stall_seconds")
    local = dict.fromkeys(names, 0.0)
    if world.step.activations is not None:
        local = world.step.activations.counts()
    ranks = world.comm.allgather(local)
    sums = {"moved", "remade"}
    return {
        "activations": {
            "budget": world.config.memory.activations,
            **{key: (sum if key in sums else max)(rank[key] for rank in ranks) for key in names},
        }
    }


def _placed(plan: Plan, memory: MemoryPlan | None) -> list[dict[str, object]]:
    """Placement of each table, as `run.json` has it, and its demand per byte if any was chosen."""
    if memory is None:
        return []
    entries: list[dict[str, object]] = [
        {"table": table.name, "placement": name}
        for table, name in zip(plan.tables, memory.placements)
    ]
    for entry, demand in zip(entries, memory.demands):
        entry["demand"] = demand
    return entries


def sent_matrix(states: Sequence[JsonObject], ranks_per_node: int) -> dict[str, object]:
    """Bytes by sender and receiver: {"unit": "rank" or "node", "bytes": rows by sender}.

    states : of each rank, what `Comm.traffic_of_ranks` says.
    """
    ranks = len(states)
    matrix = np.zeros((ranks, ranks), np.int64)
    for sender, state in enumerate(states):
        received = state["received"]
        matrix[sender, : len(received)] = received
    if ranks <= MOST_RANKS:
        return {"unit": "rank", "bytes": matrix.tolist()}
    # n^2 numbers: a matrix of thousands of ranks is no summary
    first = np.arange(0, ranks, ranks_per_node)
    by_sender = np.add.reduceat(matrix, first, axis=0)
    return {"unit": "node", "bytes": np.add.reduceat(by_sender, first, axis=1).tolist()}


def tier_counts(comm: Comm, local: JsonObject) -> list[JsonObject]:
    """Counts of the tiers of cached tables, summed over ranks. Collective.

    local : table -> its tiers on this rank, nearest first, each with its name as "tier" and counts.
    Tables come in the order in which ranks name them, a table's tiers nearest first.
    """
    totals: dict[tuple[str, str], dict[str, object]] = {}
    for of_rank in comm.allgather(local):
        for table, tiers in of_rank.items():
            for counts in tiers:
                name = counts.pop("tier")
                total = totals.setdefault((table, name), {"table": table, "tier": name})
                for key, count in counts.items():
                    total[key] = total.get(key, 0) + count
    return list(totals.values())
