"""How long does planning take, how much memory, and how far is the plan from the bound?

Tables are drawn: rows log-uniform from 10 to 20 million, 16 to 256 columns, 1 to 63 lookups per
bag, log-uniform; 512 samples of a rank; the machine is the preset `zionex`. Every line is a fresh
process. "search" is `parallel.planner`; the others are single partitioners over whole tables
("table_wise") and over the search's cheapest proposal, without local search.

    python -m benchmarks.planning                 # 1,000 tables on 128 ranks, 10,000 on 1,024
    python -m benchmarks.planning --quick         # 100 tables on 16 ranks
    python -m benchmarks.planning --json planning.json
    python -m benchmarks.planning --published table_configs.json

With --published, models of a file of published table sets (NVIDIA's synthetic ones and MLPerf's
DLRM) are planned for 128 ranks under each cost model, and all plans are priced by ours.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.core.errors import PlanError
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.models import COST_MODELS
from neocpu.plan.cost.seconds import StepSeconds, loads_of, step_seconds
from neocpu.plan.cost.work import Workload
from neocpu.plan.machines.machine_file import load
from neocpu.plan.search.bound import bounded
from neocpu.plan.search.drafts import build, lay
from neocpu.plan.search.options import SearchTask, options_of
from neocpu.plan.search.partition import PARTITIONERS
from neocpu.plan.search.prices import cheapest
from neocpu.plan.search.search import plan_tables
from neocpu.plan.tiers.limits import rank_limits
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.specs.specs import TableSpec

CASES = ((1_000, 128), (10_000, 1_024))
QUICK = ((100, 16),)
SEED = 7


def model_of(tables: int, ranks: int) -> tuple[StepSeconds, tuple[TableSpec, ...], Workload]:
    """The model of a case."""
    rng = np.random.default_rng(SEED)
    specs = tuple(
        TableSpec(
            name=f"t{i}",
            rows=int(10 ** rng.uniform(1, 7.3)),
            dim=int(rng.choice([16, 32, 64, 128, 256])),
            features=(f"f{i}",),
        )
        for i in range(tables)
    )
    pooling = {spec.name: float(np.ceil(10 ** rng.uniform(0, 1.8))) for spec in specs}
    work = Workload(batch=512 * ranks, pooling=pooling)
    return StepSeconds(load("zionex"), specs, work, Layout(ranks, 8)), specs, work


def plan(tables: int, ranks: int, planner: str) -> dict[str, Any]:
    """One line: seconds, memory and distance to the bound of one planner in this process."""
    model, specs, work = model_of(tables, ranks)
    layout = model.layout
    capacity = Capacity.of_machine(model.machine)
    started = time.perf_counter()
    processor = time.process_time()
    if planner == "search":
        answer = plan_tables(specs, "auto", layout, model, work, capacity)
        above = answer.above_bound
        step = answer.seconds
    else:
        choice_of, partitioner = planner.split()
        options = options_of(SearchTask(specs, ["auto"] * tables, layout, model, work, capacity))
        cost = options.seconds.sum(axis=1)
        if choice_of == "table_wise":
            cost = np.where((options.home == 0) & (options.parts == 1), cost, np.inf)
        limits = rank_limits(capacity, specs, work, ranks)
        laid = lay(options, layout, limits, cheapest(options, cost))
        draft = laid and build(options, layout, limits, laid, PARTITIONERS[partitioner])
        if draft is None:
            return {"planner": planner, "step_s": None}
        step = model.fixed_seconds + draft.value
        above = 0.0
    record = {
        "tables": tables,
        "ranks": ranks,
        "planner": planner,
        "wall_s": time.perf_counter() - started,
        "cpu_s": time.process_time() - processor,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "step_s": step,
    }
    if planner != "search":
        bound = model.fixed_seconds + bounded(options, layout, limits).seconds
        above = step / bound - 1.0
    return record | {"above_bound": above}


def fresh(tables: int, ranks: int, planner: str) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.planning", "--one", planner]
    command += ["--tables", str(tables), "--ranks", str(ranks)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(process.stdout)


def line(record: dict[str, Any]) -> str:
    """A record as a line of the table."""
    if record["step_s"] is None:
        return f"| {record['planner']} | | | | does not fit | |"
    return (
        f"| {record['planner']} | {record['wall_s']:.2f} s | {record['cpu_s']:.2f} s "
        f"| {record['peak_mb']:,.0f} MB | {1e3 * record['step_s']:.2f} ms "
        f"| {record['above_bound']:.1%} |"
    )


# ---- published models ----


def published(path: Path) -> dict[str, tuple[tuple[TableSpec, ...], dict[str, float]]]:
    """(tables, mean lookups per bag) of the models of a file, by name."""
    sets = json.loads(path.read_text())
    models = {}
    for name, content in sets["nvidia_synthetic_v3"].items():
        specs: list[TableSpec] = []
        pooling: dict[str, float] = {}
        for group in content["groups"]:
            for _ in range(group["num_tables"]):
                table = f"t{len(specs)}"
                features = tuple(f"{table}.{k}" for k in range(len(group["hotness"])))
                specs.append(TableSpec(table, group["rows"], group["dim"], features))
                pooling[table] = float(np.mean(group["hotness"]))
        models[name] = (tuple(specs), pooling)
    mlperf = sets["mlperf_dlrmv2"]
    specs = [TableSpec(f"t{i}", rows, 128, (f"f{i}",)) for i, rows in enumerate(mlperf["rows"])]
    hotness = [float(count) for count in mlperf["multi_hot_sizes"]]
    models["mlperf"] = (tuple(specs), {f"t{i}": count for i, count in enumerate(hotness)})
    return models


def compare_models(path: Path, ranks: int = 128, batch: int = 512) -> None:
    """A line for each model: our step under the plans that each cost model chooses."""
    machine = load("zionex")
    capacity = Capacity.of_machine(machine)
    layout = Layout(ranks, 8)
    print(f"| model | tables | {' | '.join(COST_MODELS)} | above the bound |")
    print("|---" * (len(COST_MODELS) + 3) + "|")
    for name, (specs, pooling) in published(path).items():
        work = Workload(batch=batch * ranks, pooling=pooling)
        ours = StepSeconds(machine, specs, work, layout)
        cells = []
        above = ""
        for kind, factory in COST_MODELS.items():
            model = factory(machine, specs, work, layout)
            try:
                answer = plan_tables(specs, "auto", layout, model, work, capacity)
            except PlanError:
                cells.append("does not fit")
                continue
            step = step_seconds(ours, loads_of(ours, answer.rectangles, ranks))
            cells.append(f"{1e3 * step:.2f} ms")
            if kind == "neo":
                above = f"{answer.above_bound:.1%}"
        print(f"| {name} | {len(specs):,} | {' | '.join(cells)} | {above} |", flush=True)


def main() -> None:
    """Run the cases and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one small case")
    parser.add_argument("--json", type=Path, help="write all records to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--tables", type=int, default=0, help="tables of the only case")
    parser.add_argument("--ranks", type=int, default=0, help="its ranks")
    parser.add_argument("--published", type=Path, help="a file of published table sets")
    options = parser.parse_args()
    if options.published:
        compare_models(options.published)
        return
    if options.one:
        print(json.dumps(plan(options.tables, options.ranks, options.one)))
        return
    cases = QUICK if options.quick else CASES
    if options.tables and options.ranks:
        cases = ((options.tables, options.ranks),)
    planners = ["search"]
    planners += [f"{what} {name}" for what in ("cheapest", "table_wise") for name in PARTITIONERS]
    records = []
    for tables, ranks in cases:
        print(f"### {tables:,} tables on {ranks:,} ranks\n")
        print("| planner | wall | processor | peak memory | step | above the bound |")
        print("|---|---|---|---|---|---|")
        for planner in planners:
            records.append(fresh(tables, ranks, planner))
            print(line(records[-1]), flush=True)
        print()
    if options.json:
        options.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
