"""Which kernels does a run need, and are they all in the cache? A marker there says so.

A marker in the cache folder spares later runs the walk that compiles (`warmup.py`). It is named by
the facts of the run that choose kernels and by the sources of this package, it stands in the folder
of this compiler and CPU (`kernels/compile/cache.py`), and it lists the files of the kernels that
were used: a run is warm if all of them exist. What was edited without effect on kernels costs one
walk that compiles nothing.
"""

import functools
import hashlib
import json
from collections.abc import Collection
from pathlib import Path

from neocpu.kernels.compile.cache import (
    cache_folder,
    is_sound,
    refusal,
)
from neocpu.kernels.compile.choice import family
from neocpu.kernels.compile.key import PACKAGE, source_digest
from neocpu.parallel.sharding.plan import Plan
from neocpu.tables.tiers.placement import PLACEMENTS
from neocpu.train.config.config import Config


def signature(config: Config, plan: Plan) -> str:
    """What decides which kernels a run needs that has all tables in memory."""
    model = config.model
    optimizer = config.optimizer
    distinct = ["unique rows"] if config.parallel.unique_rows != "off" else []
    distinct += ["repeated bags"] if config.data.deduplicate else []
    distinct += ["hot rows"] if rows_move(config) else []
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
            config.memory.policy,
            table_formats(plan),
            config.optimizer.sparse.name,
        ]
    )


def _operations(config: Config) -> list[object]:
    """Operations that compose tables of kinds, with what they are told; full tables have none."""
    operations = {(part.operation, repr(part.options)) for part in config.compositions}
    unpooled = ["rows"] * any(table.pooling == "none" for table in config.tables)
    unpooled += sorted({keys.normalise for keys in config.model.attention.values()})
    return [sorted(operations), *unpooled] if operations else []


@functools.cache
def _sources() -> str:
    return source_digest(PACKAGE.parent)


def _hash(facts: list[object]) -> str:
    text = json.dumps([*facts, _sources()])
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
    try:
        names = json.loads(marker.read_bytes()) if marker.is_file() and not refusal() else []
    except (OSError, ValueError, RecursionError):
        return False  # damaged: the walk writes it again
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return False
    return bool(names) and all(is_sound(marker.parent / Path(name).name) for name in names)


def is_ready(config: Config, plan: Plan, placements: Collection[str]) -> bool:
    """Are all kernels of a run in the cache? Arguments as for `warm_up`."""
    names = [signature(config, plan), memory_signature(config, plan, placements)]
    return all(is_warm(cache_folder() / f"warm-{name}") for name in names if name)
