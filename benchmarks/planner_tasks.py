"""Which tasks do planners compete on? Tables of published models, drawn and scaled, for some ranks.

The file `table_configs.json` in the folder NEOCPU_TEST_DATA has rows, dimensions and lookups of
NVIDIA's synthetic models, HugeCTR's EMBark sets, MLPerf DLRMv2 and Criteo Kaggle. They are no
dlrm_datasets, on which NeuroShard and DreamShard report. EMBark's sets name no dimension: it is
drawn here. Features that share a table look it up one after the other.

Rows of a task are scaled down together until its tables fill a drawn part of the ranks' memory.
"""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.parallel.sharding.plan import AUTO, PlanSpec
from neocpu.parallel.sharding.schemes import SCHEMES
from neocpu.plan.cost.work import Workload
from neocpu.tables.specs.specs import TableSpec

FOLDER = Path(
    os.environ.get("NEOCPU_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
)
SEED = 2022
BATCH = 65_536
# (tasks, tables from, to, ranks); the last two are the largest published model as it is.
CLASSES = (
    (60, 10, 60, (4, 8, 16)),
    (22, 61, 300, (8, 16, 32, 64, 128)),
    (12, 301, 1000, (32, 64, 128, 256, 512)),
    (4, 1001, 2001, (128, 256, 512, 1024)),
    (1, 2002, 2002, (512,)),
    (1, 2002, 2002, (1024,)),
)
EMBARK_DIMS = (16, 32, 64, 128)
CONSTRAINED = 0.6
ON_NODES = ("table_row_wise", "table_column_wise", "grid_shard")
# Parts of all memory that a task's tables fill, log-uniform.
FILLED = (0.02, 0.8)


@dataclass(frozen=True)
class Table:
    """Rows, dimension, and lookups per sample of each feature."""

    rows: int
    dim: int
    hotness: tuple[float, ...]


@dataclass(frozen=True)
class PlannerTask:
    """What a planner is asked; per_node ranks are on a node. spec : `parallel.plan`."""

    name: str
    tables: tuple[TableSpec, ...]
    work: Workload
    ranks: int
    per_node: int
    spec: PlanSpec = AUTO

    def constrained(self) -> "PlannerTask":
        """The task with one to three schemes allowed for each of about 60 % of the tables."""
        rng = np.random.default_rng([SEED, len(self.tables), self.ranks])
        # schemes of nodes need several of them
        names = [n for n in SCHEMES if self.ranks > self.per_node or n not in ON_NODES]
        spec = {
            table.name: ", ".join(rng.choice(names, rng.integers(1, 4), replace=False))
            for table in self.tables
            if rng.random() < CONSTRAINED
        }
        return replace(self, spec=spec)


def published(path: Path = FOLDER / "table_configs.json") -> dict[str, list[Table]]:
    """Tables of each published set."""
    data: dict[str, Any] = json.loads(path.read_text())
    rng = np.random.default_rng(SEED)
    sets: dict[str, list[Table]] = {}
    for name, model in data["nvidia_synthetic_v3"].items():
        sets[name] = [
            Table(group["rows"], group["dim"], tuple(group["hotness"]))
            for group in model["groups"]
            for _ in range(group["num_tables"])
        ]
    for name, groups in data["hugectr_embark"].items():
        sets[name] = [
            Table(group["rows"], int(rng.choice(EMBARK_DIMS)), (group["hotness"],))
            for group in groups
            for _ in range(group["num_tables"])
        ]
    mlperf = data["mlperf_dlrmv2"]
    sets["mlperf"] = [
        Table(rows, mlperf["dim"], (hotness,))
        for rows, hotness in zip(mlperf["rows"], mlperf["multi_hot_sizes"])
    ]
    criteo = data["criteo_kaggle"]
    sets["criteo"] = [Table(rows, criteo["dim"], (1,)) for rows in criteo["rows"]]
    return sets


def tasks(capacity: int, count: int | None = None) -> list[PlannerTask]:
    """The tasks, always the same ones; `count`: so many of them, evenly spread.

    capacity : bytes of a rank, by which rows are scaled.
    """
    sets = published()
    everything = [table for tables in sets.values() for table in tables]
    rng = np.random.default_rng(SEED)
    drawn = []
    for number, low, high, ranks in CLASSES:
        for _ in range(number):
            tables = int(rng.integers(low, high + 1))
            source = sets["colossal"] if tables == len(sets["colossal"]) else everything
            chosen = rng.choice(len(source), tables, replace=False)
            world = int(rng.choice(ranks))
            filled = float(np.exp(rng.uniform(*np.log(np.array(FILLED)))))
            name = f"{len(drawn):02d}: {tables} tables, {world} ranks"
            drawn.append(_task(name, [source[i] for i in chosen], world, filled * capacity))
    if count is not None:
        drawn = [drawn[i] for i in np.linspace(0, len(drawn) - 1, count).astype(int)]
    return drawn


def _task(name: str, tables: list[Table], ranks: int, filled: float) -> PlannerTask:
    """A task whose tables fill `filled` bytes of each rank at most."""
    size = sum(table.rows * (4.0 * table.dim + 4) for table in tables)
    scale = min(1.0, filled * ranks / size)
    specs = tuple(
        TableSpec(
            f"t{i}",
            max(4, int(table.rows * scale)),
            table.dim,
            tuple(f"f{i}_{j}" for j in range(len(table.hotness))),
        )
        for i, table in enumerate(tables)
    )
    pooling = {spec.name: float(np.mean(table.hotness)) for spec, table in zip(specs, tables)}
    return PlannerTask(name, specs, Workload(BATCH, pooling), ranks, min(8, ranks))
