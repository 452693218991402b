"""Who compiles the kernels? One rank per kind of CPU, by training a miniature of the run; the
others sleep.

The miniature has one tiny table for each way a table of the real plan is cut, on a few ranks that
are threads taking turns, so exactly the kernels that the run will use are compiled and land in the
cache; those that move rows between memories come from a second one. Kernels take their sizes at run
time, so those of the miniature are those of the run. A second process compiles the dense half
meanwhile (`companion.py`). Then one rank per node loads them (or compiles, where the cache folder
is not shared), and a marker in the cache folder spares later runs the walk.
"""

import hashlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.config import Config
from neocpu.embedding.specs import TableSpec, bags
from neocpu.ingest.loader import warm_up_reading
from neocpu.jagged import KJT
from neocpu.kernels._jit import cache_folder, cpu_kind
from neocpu.parallel.comm import Comm, SingleComm
from neocpu.parallel.plan import Plan, place
from neocpu.parallel.threads import run_threads
from neocpu.storage.placement import PLACEMENTS
from neocpu.training.companion import companion
from neocpu.training.plans import memory_plan
from neocpu.training.state import digest
from neocpu.training.world import build
from neocpu.trees import rank_samples

# more rows of each shard than lines in a set: some stay outside
ROWS = 160
DIM = 8
BATCH = 12
BAG = 14
RANKS = 4


@dataclass(frozen=True)
class MiniBatch:
    """A batch of made-up numbers."""

    dense: NDArray[np.float32]
    sparse: KJT
    labels: NDArray[np.float32]
    samples: int


def signature(config: Config, plan: Plan) -> str:
    """What decides which kernels a run compiles that has all tables in memory, and for which CPU."""
    model = config.model
    optimizer = config.optimizer
    facts = [
        _ways(plan),
        plan.ranks > 1,
        config.parallel.route,
        model.interaction,
        model.diagonal,
        model.loss,
        optimizer.sparse.name,
        optimizer.sparse.max_norm > 0,
        optimizer.sparse.max_gradient > 0,
        optimizer.dense.name,
    ]
    return _hash(facts)


def memory_signature(config: Config, plan: Plan, placements: Collection[str]) -> str:
    """What decides which kernels move rows between memories, whatever the plan; "" where none do."""
    if not any(PLACEMENTS[name].caches for name in placements):
        return ""
    return _hash(
        [_deepest(placements), config.memory.policy, _formats(plan), config.optimizer.sparse.name]
    )


def _hash(facts: list[Any]) -> str:
    return hashlib.sha256(json.dumps([*facts, *cpu_kind()]).encode()).hexdigest()[:16]


def _ways(plan: Plan) -> list[tuple[str, str]]:
    """(scheme, format that kernels see) of which the plan has a table; rounding is decided at run
    time.
    """
    return sorted(
        {(scheme, table.cached.format) for scheme, table in zip(plan.schemes, plan.tables)}
    )


def _formats(plan: Plan) -> list[tuple[str, str]]:
    """(format, format in caches) of which the plan has a table."""
    return sorted({(table.format, table.cache_format) for table in plan.tables})


def _deepest(placements: Collection[str]) -> str:
    """The placement whose kernels are those of all placements of the run: the one with most below
    it.
    """
    return max(
        sorted(placements), key=lambda name: (PLACEMENTS[name].ssd, len(PLACEMENTS[name].caches))
    )


def warm_up(
    config: Config,
    plan: Plan,
    comm: Comm,
    tell: Callable[[str], None] | None = None,
    placements: Collection[str] = ("hbm",),
) -> float:
    """Bring all kernels of the run into the cache; returns the seconds it took. `placements`: of
    its tables. Collective.
    """
    started = time.perf_counter()
    signatures = signature(config, plan), memory_signature(config, plan, placements)
    markers = [cache_folder() / f"warm-{name}" for name in signatures if name]
    kinds = comm.allgather_bytes("|".join(cpu_kind()).encode())
    leader = kinds.index(kinds[comm.rank]) == comm.rank
    node_leader = int(np.flatnonzero(comm.nodes == comm.nodes[comm.rank])[0]) == comm.rank
    for mine in (leader, node_leader and not leader):
        missing = [marker for marker in markers if mine and not marker.exists()]
        if comm.largest(len(missing)):
            if missing and tell:
                tell("compiling kernels (once; later runs load them from the cache)")
            for marker in missing:
                if marker is markers[0]:
                    with companion(config) as helper:
                        _train_miniature(config, plan, helper)
                else:
                    _move_rows(config, plan, _deepest(placements))
                marker.parent.mkdir(parents=True, exist_ok=True)
                marker.touch()
            comm.quiet_barrier()
    return time.perf_counter() - started


def _train_miniature(config: Config, plan: Plan, helper: "subprocess.Popen[bytes] | None") -> None:
    """Two steps and a digest in memory; lookup and update come first, of no rows, while `helper`
    compiles the rest.
    """
    ways = _ways(plan)
    specs = [
        TableSpec(f"mini-{scheme}-{form}", ROWS, DIM, (form + scheme,), "mean", format=form)
        for scheme, form in ways
    ]
    if any(table.weighted for table in plan.tables):
        specs[0] = replace(specs[0], weighted=True)
    mini = _mini_config(config, specs, "hbm")
    schemes = [scheme for scheme, _ in ways]

    def body(comm: Comm) -> None:
        world = build(mini, comm, place(mini.tables, schemes, comm.size, min(2, comm.size)), 3)
        nothing, batch = (_mini_batch(mini, comm, length) for length in (0, 2))
        E = np.zeros((batch.labels.size, world.model.columns), np.float32)
        world.embedding.forward(nothing.sparse, BATCH).finish(E)
        world.embedding.backward(E, 1)
        warm_up_reading()  # the last that the helper would compile
        if helper is not None:
            helper.wait()
        for step in (1, 2):
            world.step(batch, step)
        digest(world, 2)

    if plan.ranks == 1:
        body(SingleComm())
    else:
        run_threads(RANKS, body, ranks_per_node=2, in_turn=True)


def _move_rows(config: Config, plan: Plan, placement: str) -> None:
    """Two steps and a digest over tables beyond their memory, on one rank."""
    specs = [
        TableSpec(f"mini-{i}", ROWS, DIM, (f"{i}",), "mean", format=form, cache_format=wider)
        for i, (form, wider) in enumerate(_formats(plan))
    ]
    mini = _mini_config(config, specs, placement)
    comm = SingleComm()
    with tempfile.TemporaryDirectory() as folder:
        whole = place(mini.tables, ["table_wise"] * len(specs), 1, 1)
        world = build(mini, comm, whole, 3, memory=memory_plan(mini, whole, {}, Path(folder)))
        batch = _mini_batch(mini, comm, BAG)
        for step in (1, 2):
            coming = world.embedding.start(batch.sparse, batch.samples)
            world.embedding.know(coming)
            world.step(batch, step, coming)
        digest(world, 2)
        world.embedding.tbe.close()


def _mini_config(config: Config, tables: Sequence[TableSpec], placement: str) -> Config:
    model = replace(config.model, embedding_dim=DIM, bottom=(DIM,), top=(4, 1))
    memory = replace(config.memory, placement=placement, hbm=0, ddr=0, folder="", prefetch=0)
    return replace(config, model=model, tables=tuple(tables), memory=memory)


def _mini_batch(config: Config, comm: Comm, length: int) -> MiniBatch:
    """Made-up samples whose bags have so many rows each."""
    lo, hi = rank_samples(comm.rank, comm.size, BATCH, config.training.leaves)
    keys = tuple(bag.key for bag in bags(config.tables))
    b = hi - lo
    lengths = np.full((len(keys), b), length, np.int32)
    values = np.arange(lengths.sum(), dtype=np.int64) % ROWS
    weights = np.ones(values.size, np.float32) if any(t.weighted for t in config.tables) else None
    dense = np.linspace(0, 1, 3 * b, dtype=np.float32).reshape(b, 3)
    return MiniBatch(
        dense, KJT(keys, lengths, values, weights), (np.arange(b) % 2).astype(np.float32), BATCH
    )
