"""Who compiles the kernels? One rank per kind of CPU, by training a miniature of the run; the others sleep.

The miniature has one tiny table for each way a table of the real plan is cut, on a few ranks that are threads taking turns,
so exactly the kernels that the run will use are compiled and land in the cache. Kernels take their sizes at run time, so
those of the miniature are those of the run. A second process compiles the dense half meanwhile (`companion.py`). Then one
rank per node loads them (or compiles, where the cache folder is not shared), and a marker in the cache folder spares later
runs the walk.
"""

import hashlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

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
from neocpu.training.state import digest
from neocpu.training.world import build, memory_plan
from neocpu.trees import rank_samples

ROWS, DIM, BATCH, BAG, RANKS = 160, 8, 12, 14, 4  # more rows of each shard than lines in a set: some stay outside


@dataclass(frozen=True)
class MiniBatch:
    """A batch of made-up numbers."""

    dense: NDArray[np.float32]
    sparse: KJT
    labels: NDArray[np.float32]
    samples: int


def signature(config: Config, plan: Plan, placements: Collection[str] = ("hbm",)) -> str:
    """What decides which kernels a run compiles, and for which CPU."""
    model, optimizer = config.model, config.optimizer
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
        sorted(set(placements)),
        config.memory.policy,
        *cpu_kind(),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _ways(plan: Plan) -> list[tuple[str, str, str]]:
    """(scheme, format, format in caches) of which the plan has a table; rounding is decided at run time."""
    return sorted({(scheme, table.format, table.cache_format) for scheme, table in zip(plan.schemes, plan.tables)})


def _deepest(placements: Collection[str]) -> str:
    """The placement whose kernels are those of all placements of the run: the one with most below it."""
    return max(sorted(placements), key=lambda name: (PLACEMENTS[name].ssd, len(PLACEMENTS[name].caches)))


def warm_up(
    config: Config,
    plan: Plan,
    comm: Comm,
    tell: Callable[[str], None] | None = None,
    placements: Collection[str] = ("hbm",),
) -> float:
    """Bring all kernels of the run into the cache; returns the seconds it took. `placements`: of its tables. Collective."""
    started = time.perf_counter()
    marker = cache_folder() / f"warm-{signature(config, plan, placements)}"
    kinds = comm.allgather_bytes("|".join(cpu_kind()).encode())
    leader = kinds.index(kinds[comm.rank]) == comm.rank
    node_leader = int(np.flatnonzero(comm.nodes == comm.nodes[comm.rank])[0]) == comm.rank
    for mine in (leader, node_leader and not leader):
        if comm.largest(int(mine and not marker.exists())):
            if mine and not marker.exists():
                if tell:
                    tell("compiling kernels (once; later runs load them from the cache)")
                with companion(config) as helper:
                    _train_miniature(config, plan, helper, _deepest(placements))
                marker.parent.mkdir(parents=True, exist_ok=True)
                marker.touch()
            comm.quiet_barrier()
    return time.perf_counter() - started


def _train_miniature(
    config: Config, plan: Plan, helper: "subprocess.Popen[bytes] | None", placement: str = "hbm"
) -> None:
    """Two steps and a digest; lookup and update come first, of no rows, while `helper` compiles the rest."""
    ways = _ways(plan)
    names = ["-".join(("mini", *way)) for way in ways]
    specs = [
        TableSpec(name, ROWS, DIM, (name,), "mean", format=form, cache_format=wider)
        for name, (_, form, wider) in zip(names, ways)
    ]
    if any(table.weighted for table in plan.tables):
        specs[0] = replace(specs[0], weighted=True)
    tables = tuple(specs)
    model = replace(config.model, embedding_dim=DIM, bottom=(DIM,), top=(4, 1))
    memory = replace(config.memory, placement=placement, hbm=0, ddr=0, folder="", prefetch=0)
    mini = replace(config, model=model, tables=tables, memory=memory)
    schemes = [scheme for scheme, _, _ in ways]

    def body(comm: Comm) -> None:
        plan = place(tables, schemes, comm.size, min(2, comm.size))
        world = build(mini, comm, plan, 3, memory=memory_plan(mini, plan, {}, Path(folder)))
        nothing, batch = (_mini_batch(tables, comm, config.training.leaves, length) for length in (0, BAG))
        E = np.zeros((batch.labels.size, world.model.columns), np.float32)
        world.embedding.forward(nothing.sparse, BATCH).finish(E)
        world.embedding.backward(E, 1)
        if helper is not None:
            helper.wait()
        warm_up_reading()
        for step in (1, 2):
            coming = world.embedding.start(batch.sparse, batch.samples)
            world.embedding.know(coming)
            world.step(batch, step, coming)
        digest(world, 2)
        world.embedding.tbe.close()

    with tempfile.TemporaryDirectory() as folder:
        if plan.ranks == 1:
            body(SingleComm())
        else:
            run_threads(RANKS, body, ranks_per_node=2, in_turn=True)


def _mini_batch(tables: tuple[TableSpec, ...], comm: Comm, leaves: int, length: int) -> MiniBatch:
    """Made-up samples whose bags have so many rows each."""
    lo, hi = rank_samples(comm.rank, comm.size, BATCH, leaves)
    keys = tuple(bag.key for bag in bags(tables))
    b = hi - lo
    lengths = np.full((len(keys), b), length, np.int32)
    values = np.arange(lengths.sum(), dtype=np.int64) % ROWS
    weights = np.ones(values.size, np.float32) if any(t.weighted for t in tables) else None
    dense = np.linspace(0, 1, 3 * b, dtype=np.float32).reshape(b, 3)
    return MiniBatch(dense, KJT(keys, lengths, values, weights), (np.arange(b) % 2).astype(np.float32), BATCH)
