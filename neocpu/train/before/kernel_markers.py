"""Which kernels does a run need, are they all in the cache, and how long will they take to compile?

A marker in the cache folder spares later runs the walk that compiles (`warmup.py`). It is named by
the facts of the run that choose kernels and by the sources of this package, it stands in the folder
of this compiler and CPU (`kernels/compile/cache.py`), and it lists the files of the kernels that
were used: a run is warm if all of them exist. What was edited without effect on kernels costs one
walk that compiles nothing.

How long compiling takes is known from what a kernel took on this machine before. CPU seconds are
remembered, which other programs on the machine do not change; how long they take on a clock follows
from the cores that are free now.
"""

import functools
import hashlib
import json
import os
import resource
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from neocpu.core.cores import available, core_quota
from neocpu.core.policies import POLICIES
from neocpu.kernels.compile.cache import (
    cache_folder,
    cannot_write,
    is_sound,
    refusal,
    write,
)
from neocpu.kernels.compile.choice import family
from neocpu.kernels.compile.key import PACKAGE, source_digest
from neocpu.parallel.sharding.plan import Plan
from neocpu.tables.tiers.placement import PLACEMENTS
from neocpu.train.config.config import Config

TRAINING = 44  # kernels that a run with its tables in memory compiles, about
MOVING = 28  # more of them where rows move between memories
# CPU seconds of a kernel where none was compiled yet: the mean of those of data/models/tiny.toml,
# on a Xeon of 2.1 GHz
USUAL = 1.0
FEWEST = 8  # kernels whose mean is remembered: they differ by a factor of ten


class Kernels(NamedTuple):
    """Kernels of a run: all that it needs, and those that are not in the cache."""

    needed: int
    missing: int


def signature(config: Config, plan: Plan) -> str:
    """What decides which kernels a run needs that has all tables in memory."""
    model = config.model
    optimizer = config.optimizer
    distinct = ["unique rows"] if config.parallel.unique_rows != "off" else []
    distinct += ["repeated bags"] if config.data.deduplicate else []
    distinct += ["hot rows"] if rows_move(config) else []
    distinct += ["replica groups"] if plan.replica_groups > 1 else []
    return _hash(
        [
            *distinct,
            *_operations(config),
            family(),
            table_ways(plan),
            plan.ranks > 1,
            config.parallel.route,
            model.interaction,
            model.dhen.modules if "dhen" in model.interactions else (),
            model.diagonal,
            model.loss,
            model.precision.format != "fp32",
            model.precision.rounding == "stochastic",
            sorted({head.loss for head in model.heads.values()}),
            optimizer.sparse.name,
            optimizer.sparse.max_norm > 0,
            optimizer.sparse.max_gradient > 0,
            optimizer.dense.name,
            sorted(config.wires.header()),
        ]
    )


def memory_signature(config: Config, plan: Plan, placements: Collection[str]) -> str:
    """What decides which kernels move rows between memories; "" where none do."""
    if not any(PLACEMENTS[name].caches for name in placements):
        return ""
    return _hash(
        [
            family(),
            deepest(placements),
            POLICIES[config.memory.policy].functions,
            table_formats(plan),
            config.optimizer.sparse.name,
        ]
    )


def _operations(config: Config) -> list[object]:
    """Operations that compose tables of kinds, with what they are told; full tables have none."""
    operations = {
        (composition.operation, repr(composition.options)) for composition in config.compositions
    }
    unpooled = ["rows"] * any(table.pooling == "none" for table in config.tables)
    unpooled += sorted({keys.normalise for keys in config.model.attention.values()})
    return [sorted(operations), *unpooled] if operations else []


@functools.cache
def sources() -> str:
    """Digest of all source files of neocpu here."""
    return source_digest(PACKAGE.parent)


def _hash(facts: list[object]) -> str:
    text = json.dumps([*facts, sources()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def table_ways(plan: Plan) -> list[tuple[str, str]]:
    """(scheme, format that kernels see) of which the plan has a table; rounding is decided at run
    time.
    """
    return sorted(
        {(scheme, table.cached.format) for scheme, table in zip(plan.schemes, plan.tables)}
    )


def rows_move(config: Config) -> bool:
    """Are there tables whose rows move in training?"""
    return any(composition.dynamic is not None for composition in config.compositions)


def table_formats(plan: Plan) -> list[tuple[str, str]]:
    """(format, format in caches) of which the plan has a table."""
    return sorted({(table.format, table.cache_format) for table in plan.tables})


def deepest(placements: Collection[str]) -> str:
    """The placement whose kernels are those of all placements of the run: the one with most below
    it.
    """
    return max(
        sorted(placements), key=lambda name: (PLACEMENTS[name].ssd, len(PLACEMENTS[name].caches))
    )


def is_warm(marker: Path) -> bool:
    """Are the kernels that a marker lists all in its folder, whole and trusted?"""
    return counted(marker, 1).missing == 0


def counted(marker: Path, usual: int) -> Kernels:
    """The kernels that a marker lists; where there is none, or a damaged one, the usual number, of
    which any may be missing.
    """
    try:
        names = json.loads(marker.read_bytes()) if marker.is_file() and not refusal() else []
    except (OSError, ValueError, RecursionError):
        names = []  # damaged: the walk writes it again
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        names = []
    if not names:
        return Kernels(usual, usual)
    sound = [is_sound(marker.parent / Path(name).name) for name in names]
    return Kernels(len(names), sound.count(False))


def markers_of(
    config: Config, plan: Plan, placements: Collection[str]
) -> tuple[tuple[Path, int], ...]:
    """(marker, kernels that it usually lists) of training, and of moving rows if any are moved."""
    moving = memory_signature(config, plan, placements)
    names = ((signature(config, plan), TRAINING), (moving, MOVING))
    return tuple((cache_folder() / f"warm-{name}", usual) for name, usual in names if name)


def missing_kernels(config: Config, plan: Plan, placements: Collection[str]) -> int:
    """How many kernels of a run are not in the cache, at most; arguments as for `warm_up`."""
    return sum(counted(*marker).missing for marker in markers_of(config, plan, placements))


def is_ready(config: Config, plan: Plan, placements: Collection[str]) -> bool:
    """Are all kernels of a run in the cache? Arguments as for `warm_up`."""
    return missing_kernels(config, plan, placements) == 0


def cpu_seconds() -> float:
    """CPU seconds of this process, and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def remember(kernels: int, seconds: float) -> None:
    """Keep what a kernel takes beside the kernels: so many took so many CPU seconds."""
    if kernels >= FEWEST:
        with suppress(OSError):
            write(cache_folder() / "pace", f"{seconds / kernels:.3f}\n".encode())


def expected_seconds(kernels: int) -> float:
    """Seconds on a clock in which so many kernels can be compiled now."""
    processes = 1 if len(available()) < 2 or cannot_write() else 2
    cores = min(len(available()), core_quota())
    load = 0.0
    with suppress(OSError):  # not known on this system
        load = os.getloadavg()[0]
    # whatever runs has the same share of the cores, and a process one core at most
    share = min(1.0, cores / (load + processes))
    return kernels * _cpu_seconds_each() / (processes * share)


def _cpu_seconds_each() -> float:
    """CPU seconds of a kernel, as remembered."""
    with suppress(OSError, ValueError):
        seconds = float((cache_folder() / "pace").read_text())
        if 0.01 < seconds < 100:  # not what somebody else wrote there
            return seconds
    return USUAL
