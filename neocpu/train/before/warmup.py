"""Who compiles the kernels? One rank per kind of CPU, by training a miniature of the run; the
others sleep.

The miniature has one tiny table for each way a table of the real plan is cut, on a few ranks that
are threads taking turns, so exactly the kernels that the run will use are compiled and land in the
cache; those that move rows between memories come from a second one. Kernels take their sizes at run
time, so those of the miniature are those of the run. A second process compiles the dense half
meanwhile (`companion.py`). Then one rank per node loads them (or compiles, where the cache folder
is not shared).

A marker in the cache folder spares later runs the walk (`kernel_markers.py`).

Where the cache cannot be written, ranks skip the walk: each would have to compile for itself
anyway, and does so in its first step.
"""

import contextlib
import gc
import json
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.core.types import Floats, Tell
from neocpu.core.units import duration_text
from neocpu.ingest.loader import warm_up_reading
from neocpu.kernels.compile.cache import (
    ADVICE,
    activity,
    cannot_write,
    remove_leftovers,
    write,
)
from neocpu.kernels.compile.key import cpu_kind
from neocpu.parallel.sharding.plan import Plan, place
from neocpu.parallel.sharding.schemes import COLUMN_STEP
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.tables.specs.specs import TableSpec, TableSpecs, bags
from neocpu.train.before.kernel_markers import (
    Kernels,
    counted,
    cpu_seconds,
    deepest,
    expected_seconds,
    is_warm,
    markers_of,
    remember,
    rows_move,
    table_formats,
    table_ways,
)
from neocpu.train.before.plans import memory_plan
from neocpu.train.config.config import Config
from neocpu.train.config.settings import SearchConfig
from neocpu.train.state.state import digest
from neocpu.train.step.pipeline import ahead
from neocpu.train.step.world import build
from neocpu.train.watch.results import Compiled, Watch, unwatched

if TYPE_CHECKING:
    from neocpu.train.before.companion import Companion

# more rows of each shard than lines in a set: some stay outside
ROWS = 160
DIM = 8
BATCH = 12
BAG = 14
RANKS = 4
RATE = 1e-3


@dataclass(frozen=True)
class MiniBatch:
    """A batch of made-up numbers."""

    dense: Floats
    sparse: KJT
    labels: Floats
    samples: int
    head_labels: Floats | None = None


def warm_up(
    config: Config,
    plan: Plan,
    comm: Comm,
    tell: Tell | None = None,
    placements: Collection[str] = ("hbm",),
    watch: Watch = unwatched,
) -> float:
    """Bring all kernels of the run into the cache; returns the seconds it took. Collective.

    tell : shows one line, where something must be compiled. placements : of the run's tables.
    watch : shows how many kernels have been compiled.
    """
    started = time.perf_counter()
    training, *moving = markers_of(config, plan, placements)
    # compiled code is of a kind of CPU: one rank of each compiles, whatever host it is on
    kinds = comm.allgather_bytes("|".join(cpu_kind()).encode())
    leader = kinds.index(kinds[comm.rank]) == comm.rank
    host_leader = comm.hosts()[comm.rank] == comm.rank
    obstacle = ""
    # leaders of kinds first: where hosts share a folder, the second turn finds all there
    for responsible in (leader, host_leader and not leader):
        train = responsible and not is_warm(training[0])
        move = responsible and bool(moving) and not is_warm(moving[0][0])
        if comm.size > 1 and (train or move):
            # alone a rank compiles for itself even then; together all would, so nobody walks
            obstacle = cannot_write()
            train = train and not obstacle
            move = move and not obstacle
        if comm.largest(int(train or move)):
            walks = [training] * train + moving * move
            with _compiling(tell, watch, [counted(*walk) for walk in walks]) as helpers:
                if train:
                    from neocpu.train.before.companion import companion

                    with companion(config) as helper:
                        helpers.append(helper)
                        _train_miniature(config, plan, helper)
                    _mark(training[0])
                if move:
                    _move_rows(config, plan, deepest(placements))
                    _mark(moving[0][0])
            # a wait of seconds: asleep, so that the compiler has the cores
            comm.quiet_barrier()
    for rank, text in enumerate(comm.allgather(obstacle)):
        # rank 0 speaks for itself when it compiles something that it cannot keep
        if rank and text and tell:
            tell(f"rank {rank} cannot write its kernel cache, {text}; {ADVICE}")
    return time.perf_counter() - started


@contextmanager
def _compiling(
    tell: Tell | None, watch: Watch, walks: Sequence[Kernels]
) -> "Iterator[list[Companion]]":
    """Say how long compiling takes when the first kernel is to be compiled, and show how many of
    those of `walks` have been until the block ends; those that the companions in the list compile
    are counted too.

    Garbage is not collected meanwhile: the collector would walk the compiler's many objects again
    and again, a tenth of the time to compile.
    """
    helpers: list[Companion] = []
    loaded = activity.loaded
    collecting = gc.isenabled()
    before = activity.compiled
    needed, missing = (sum(counts) for counts in zip(Kernels(0, 0), *walks))
    cpu_before = cpu_seconds()
    pace = 0.0
    shown = ExitStack()

    def count() -> Compiled:
        by_helpers = sum(helper.compiled() for helper in helpers)
        done = activity.compiled - before + by_helpers
        ready = max(activity.loaded - loaded - by_helpers, 0)  # in the cache from earlier runs
        return Compiled(done, max(min(missing, needed - ready), done + 1), pace)

    def begin() -> None:
        nonlocal pace
        activity.on_compile = None
        gc.disable()
        about = count().about
        pace = expected_seconds(about) / about
        if tell:
            tell(compiling_line(about, about * pace, bool(cannot_write())))
        shown.enter_context(watch(count))

    activity.on_compile = begin
    if missing < needed:
        begin()  # a marker names them, and a companion may be the one that compiles them
    try:
        with shown:
            yield helpers
        remember(count().done, cpu_seconds() - cpu_before)
    finally:
        activity.on_compile = None
        if collecting:
            gc.enable()


def compiling_line(kernels: int, seconds: float, in_memory: bool) -> str:
    """What is said before the first of so many kernels is compiled."""
    kept = (
        "in every run again, as the cache cannot be written"
        if in_memory
        else "once; later runs load them from the cache"
    )
    which = f"about {kernels} kernels" if kernels > 1 else "a kernel"
    return f"compiling {which}, about {duration_text(seconds)} ({kept})"


def _mark(marker: Path) -> None:
    """Remember that the kernels that this process has used are in the cache, if they are."""
    if not activity.trouble:
        remove_leftovers()
        with contextlib.suppress(OSError):
            write(marker, json.dumps(sorted(activity.files)).encode())


def _train_miniature(config: Config, plan: Plan, helper: "Companion") -> None:
    """Two steps and a digest in memory; lookup and update come first, of no rows, while `helper`
    compiles the rest.
    """
    ways = table_ways(plan)
    specs = [
        TableSpec(f"mini-{scheme}-{form}", ROWS, DIM, (form + scheme,), "mean", format=form)
        for scheme, form in ways
    ]
    if any(table.weighted for table in plan.tables):
        specs[0] = replace(specs[0], weighted=True)
    mini = _mini_config(config, specs, "hbm")
    schemes = [scheme for scheme, _ in ways]

    groups = min(plan.replica_groups, 2)

    def body(comm: Comm) -> None:
        ranks = comm.size // groups
        of_group = place(mini.tables, schemes, ranks, min(2, ranks))
        world = build(mini, comm, of_group.in_groups(groups, min(2, comm.size)), 3)
        nothing = _mini_batch(mini, comm, 0)
        batch = _mini_batch(mini, comm, 2)
        E = np.zeros((batch.labels.size, world.model.columns), np.float32)
        # of no rows: sort and new rows are what the helper compiles meanwhile
        world.embedding.forward(nothing.sparse, BATCH).finish(E)
        world.embedding.backward(E, 1)
        if rows_move(config):
            from neocpu.tables.embedding.hot_sketch import warm_up_sketch

            warm_up_sketch()
        warm_up_reading()  # the last that the helper would compile
        helper.wait()
        for step in (1, 2):
            world.step(batch, step)
        digest(world, 2)

    if plan.ranks == 1:
        body(SingleComm())
    else:
        from neocpu.parallel.transport.threads import run_threads

        # in turn, which any threading layer allows; a rank may compile for many minutes
        run_threads(RANKS, body, ranks_per_node=2, in_turn=True, timeout=None)
    # the miniature's tables are full
    if composition := config.layout(3).composition:
        from neocpu.train.model import composition as compositions

        compositions.warm_up(composition)


def _move_rows(config: Config, plan: Plan, placement: str) -> None:
    """Two steps and a digest over tables beyond their memory, on one rank."""
    specs = [
        TableSpec(f"mini-{i}", ROWS, DIM, (f"{i}",), "mean", format=form, cache_format=wider)
        for i, (form, wider) in enumerate(table_formats(plan))
    ]
    mini = _mini_config(config, specs, placement)
    comm = SingleComm()
    with tempfile.TemporaryDirectory() as folder:
        whole = place(mini.tables, ["table_wise"] * len(specs), 1, 1)
        world = build(mini, comm, whole, 3, memory=memory_plan(mini, whole, {}, Path(folder)))
        batch = _mini_batch(mini, comm, BAG)
        steps = world.step.over(iter([batch, batch]), 1, ahead(prefetch=0, known=1))
        for _ in range(2):
            steps.next()
        digest(world, 2)
        world.embedding.tbe.close()


def _mini_config(config: Config, tables: TableSpecs, placement: str) -> Config:
    # towers need no kernels of their own
    model = replace(
        config.model,
        embedding_dim=DIM,
        bottom=(DIM,),
        top=(4, 1),
        towers={},
        wide=(),
        attention={},
    )
    memory = replace(config.memory, placement=placement, hbm=0, ddr=0, folder="", prefetch=0)
    wires = replace(config.wires, block=COLUMN_STEP)  # at which columns may be cut
    parallel = replace(config.parallel, towers=False)
    groups = (("*",),) if config.data.deduplicate else ()
    # rates are arguments of kernels: the run's could drive two steps on made-up samples to infinity
    rules = config.optimizer
    optimizer = replace(
        rules,
        groups={},
        sparse=replace(rules.sparse, learning_rate=RATE),
        dense=replace(rules.dense, learning_rate=RATE),
    )
    return replace(
        config,
        data=replace(config.data, deduplicate=groups),
        model=model,
        tables=tuple(tables),
        logical=(),
        compositions=(),
        optimizer=optimizer,
        memory=memory,
        wires=wires,
        parallel=parallel,
        search=SearchConfig(),
    )


def _mini_batch(config: Config, comm: Comm, length: int) -> MiniBatch:
    """Made-up samples whose bags have so many rows each."""
    lo, hi = rank_samples(comm.rank, comm.size, BATCH, config.training.leaves)
    keys = tuple(bag.key for bag in bags(config.tables))
    b = hi - lo
    lengths = np.full((len(keys), b), length, np.int32)
    values = np.arange(lengths.sum(), dtype=np.int64) % ROWS
    weights = np.ones(values.size, np.float32) if any(t.weighted for t in config.tables) else None
    dense = np.linspace(0, 1, 3 * b, dtype=np.float32).reshape(b, 3)
    labels = (np.arange(b) % 2).astype(np.float32)
    head_labels = np.tile(labels, (len(config.model.heads), 1))
    return MiniBatch(dense, KJT(keys, lengths, values, weights), labels, BATCH, head_labels)
