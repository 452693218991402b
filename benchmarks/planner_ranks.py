"""Are plans that cost less by the model faster here? Plans of all planners, measured on ranks.

Tables of the published sets, cut down until they fit; every planner places them for this-machine.
Then as many ranks as a plan has look up a batch, pool, exchange, and update the rows from a
gradient: the embedding part of a training step, caches written over before. A step takes as long as
its slowest rank; the least of several tries counts, in passes in which the plans take turns.

    neocpu calibrate && neocpu calibrate --learned      once: rates, and networks
    python -m benchmarks.planner_ranks
    python -m benchmarks.planner_ranks --zipf 1.05 --tables 3    # rows cut by frequency, or not

With --zipf low rows are looked up most, as a vocabulary by frequency numbers them, and three plans
are compared: every table in equal rows, the search's for rows that are alike, and the search's that
knows how lookups are spread (`plan/cost/row_curves.py`).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.planner_tasks import PlannerTask, tasks
from benchmarks.planners import Setting, contestants, price
from neocpu.core.errors import PlanError
from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.parallel.embeddings.sharded import ShardedEmbedding
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.launch import (
    bind_kernel_threads,
    get_comm,
    mpiexec_command,
    prepare_threads,
    run_guarded,
)
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.row_curves import curve_of
from neocpu.plan.cost.seconds import StepSeconds
from neocpu.plan.cost.work import Workload
from neocpu.plan.learned import store
from neocpu.plan.machines.machine_file import THIS_MACHINE, load
from neocpu.plan.search.search import plan_tables
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.specs.optimizers import SparseOptimizer

BATCH = 1024
LEAVES = 16
# Lookups of a bag, rows, columns and tables beyond these are left out.
MOST_HOTNESS = 30.0
MOST_ROWS = 200_000
MOST_DIM = 128
MOST_TABLES = 40
TRIES = 6
PASSES = 2
# Lookups of a table of which the search knows the rows, as a run takes them from its log.
KNOWN = 4096
FLUSHED = 64 << 20
MEASURED = (
    "search",
    "neuroshard",
    "autoshard",
    "neuroshard alone",
    "autoshard alone",
    "greedy (bytes)",
    "heuristic: random",
    "heuristic: dim",
    "heuristic: lookup",
    "heuristic: size",
    "heuristic: size_lookup",
    "whole tables: greedy",
    "whole tables: karmarkar_karp",
)
BY_FREQUENCY = ("search", "search, rows alike", "equal rows")


def small(task: PlannerTask, ranks: int, most_tables: int, zipf: float) -> PlannerTask:
    """The task cut down to what fits here; zipf : exponent of the rows' frequencies, 0: alike."""
    tables = tuple(
        replace(
            table,
            rows=min(table.rows, MOST_ROWS),
            dim=min(table.dim, MOST_DIM),
            features=table.features[:1],
        )
        for table in task.tables[:most_tables]
    )
    pooling = {
        table.name: float(round(min(task.work.pooling[table.name], MOST_HOTNESS)))
        for table in tables
    }
    work = Workload(BATCH, pooling)
    if zipf:
        rng = np.random.default_rng(11)
        curves = {t.name: curve_of(drawn_rows(rng, t.rows, KNOWN, zipf), t.rows) for t in tables}
        work = replace(work, curves={name: curve for name, curve in curves.items() if curve})
    return PlannerTask(task.name, tables, work, ranks, ranks)


def drawn_rows(rng: np.random.Generator, rows: int, lookups: int, zipf: float) -> Any:
    """i64[lookups] of a table; row r as often as 1 / (r + 1)^zipf."""
    shares = np.cumsum(1.0 / np.arange(1, rows + 1) ** zipf)
    return np.searchsorted(shares, rng.random(lookups) * shares[-1], side="right")


# ---- one rank ----


def plan_seconds(
    comm: Comm, plan: Plan, pooling: dict[str, float], zipf: float, flushed: Any
) -> float:
    """Seconds of the embedding part of a step on the slowest rank, the least of several tries.

    Collective.
    """
    optimizer = SparseOptimizer(name="exact_rowwise_adagrad", learning_rate=0.01)
    tables = ShardedEmbedding(ShardingEnv(plan, comm, optimizer, 1, LEAVES))
    low, high = rank_samples(comm.rank, comm.size, BATCH, LEAVES)
    rng = np.random.default_rng(7 + comm.rank)
    bags = [int(pooling[table.name]) for table in plan.tables]
    rows = [
        drawn_rows(rng, table.rows, (high - low) * bag, zipf)
        for table, bag in zip(plan.tables, bags)
    ]
    lengths = np.repeat(np.array(bags, np.int32)[:, None], high - low, axis=1)
    kjt = KJT(tables.keys, lengths, np.concatenate(rows))
    out = np.zeros((high - low, tables.columns), np.float32)
    gradient = np.full_like(out, 1e-3)
    best = np.inf
    # The first try compiles, and creates the rows.
    for turn in range(TRIES + 1):
        flushed += 1
        comm.barrier()
        begin = time.perf_counter_ns()
        tables.forward(kjt, BATCH).finish(out)
        tables.backward(gradient, turn + 1)
        spent = comm.largest(time.perf_counter_ns() - begin) * 1e-9
        best = min(best, spent) if turn else best
    tables.tbe.close()
    return best


def rank_main(path: str) -> int:
    """One rank: measure all plans of the file, rank 0 writes the seconds beside it."""
    comm = get_comm()
    prepare_threads(comm)
    bind_kernel_threads(comm)
    flushed = np.zeros(FLUSHED, np.uint8)
    entries = json.loads(Path(path).read_text())
    best = [np.inf] * len(entries)
    for _ in range(PASSES):
        for number, entry in enumerate(entries):
            plan = Plan.from_dict(entry["plan"])
            seconds = plan_seconds(comm, plan, entry["pooling"], entry["zipf"], flushed)
            best[number] = min(best[number], seconds)
    if comm.rank == 0:
        measured = [{"step": seconds} for seconds in best]
        Path(path).with_suffix(".seconds").write_text(json.dumps(measured))
    return 0


# ---- the benchmark ----


def searched(setting: Setting) -> Plan:
    """The plan of the search."""
    return plan_tables(*setting.arguments).plan


def rows_alike(setting: Setting) -> Plan:
    """The plan of the search that is told nothing of how lookups are spread."""
    task = replace(setting.task, work=replace(setting.task.work, curves={}))
    model = StepSeconds(setting.machine, task.tables, task.work, setting.layout)
    return searched(replace(setting, task=task, model=model))


def equal_rows(setting: Setting) -> Plan:
    """Every table by rows over all ranks."""
    return searched(replace(setting, task=replace(setting.task, spec="row_wise")))


def plans_of(options: argparse.Namespace, ranks: int) -> list[dict[str, Any]]:
    """Plans of all planners for some tasks, equal ones once: plan, planners, predicted seconds.

    Without networks the learned planners take no part.
    """
    machine = load(options.machine)
    path = options.networks or store.networks_path(THIS_MACHINE)
    nets = store.load(path, THIS_MACHINE) if path.exists() else None
    names = [name for name in MEASURED if nets or "shard" not in name]
    capacity = Capacity()
    field = contestants(False) | {"search": searched}
    if options.zipf:
        names = list(BY_FREQUENCY)
        field |= {"search, rows alike": rows_alike, "equal rows": equal_rows}
    entries: list[dict[str, Any]] = []
    published = tasks(Capacity.of_machine(load("zionex")).hbm)[: options.tasks]
    for number, whole in enumerate(published):
        task = small(whole, ranks, options.tables, options.zipf)
        layout = Layout(ranks, ranks)
        model = StepSeconds(machine, task.tables, task.work, layout)
        setting = Setting(task, layout, model, machine, capacity, nets, 60)
        by_text: dict[str, dict[str, Any]] = {}
        for name in names:
            try:
                plan = field[name](setting)
            except PlanError:
                continue
            data = plan.to_dict()
            entry = by_text.setdefault(
                json.dumps(data["tables"]),
                {
                    "task": number,
                    "plan": data,
                    "pooling": dict(task.work.pooling),
                    "zipf": options.zipf,
                    "planners": [],
                    "predicted": price(setting, plan) - model.fixed_seconds,
                },
            )
            entry["planners"].append(name)
        entries += by_text.values()
    return entries


def summary(entries: list[dict[str, Any]], ranks: int) -> str:
    """The table of one number of ranks, in Markdown; and the rank correlation of the model."""
    lines = [
        f"{ranks} ranks",
        "",
        "| planner | tasks | predicted / search | measured / search | worst measured |",
        "|---|---|---|---|---|",
    ]
    base = {entry["task"]: entry for entry in entries if "search" in entry["planners"]}
    for name in dict.fromkeys((*MEASURED, *BY_FREQUENCY)):
        measured_entries = [e for e in entries if name in e["planners"] and e["task"] in base]
        if not measured_entries:
            continue
        predicted, measured = (
            np.array([entry[column] / base[entry["task"]][column] for entry in measured_entries])
            for column in ("predicted", "step")
        )
        cells = [f"{predicted.mean():.3f}", f"{measured.mean():.3f}", f"{measured.max():.2f}"]
        lines.append(f"| {name} | {len(measured_entries)} | " + " | ".join(cells) + " |")
    correlations = []
    for task in base:
        of_task = [entry for entry in entries if entry["task"] == task]
        if len(of_task) > 3:
            pairs = [[entry[c] for entry in of_task] for c in ("predicted", "step")]
            orders = [np.argsort(np.argsort(column)) for column in pairs]
            correlations.append(float(np.corrcoef(orders)[0, 1]))
    if correlations:
        mean = np.mean(correlations)
        lines += ["", f"rank correlation of model and step, mean over tasks: {mean:.2f}"]
    return "\n".join(lines)


def main() -> int:
    """Plan, measure under mpiexec, print."""
    if len(sys.argv) == 3 and sys.argv[1] == "--rank":
        return run_guarded(lambda: rank_main(sys.argv[2]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=20, help="how many")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4], help="numbers of ranks")
    parser.add_argument("--tables", type=int, default=MOST_TABLES, help="at most, of a task")
    parser.add_argument("--zipf", type=float, default=0.0, help="exponent; 0: rows are alike")
    parser.add_argument("--machine", default=THIS_MACHINE, help="name or file of the machine")
    parser.add_argument("--networks", type=Path, help="of this-machine, if not in their place")
    parser.add_argument("--plans", type=Path, help="write plans into this folder, or read them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.plans or Path(name)
        for ranks in options.ranks:
            path = folder / f"plans-{ranks}.json"
            if not path.exists():
                path.write_text(json.dumps(plans_of(options, ranks)))
            entries = json.loads(path.read_text())
            command, environment = mpiexec_command(
                ranks, ["-m", "benchmarks.planner_ranks", "--rank", str(path)]
            )
            subprocess.run(command, env=environment, check=True)
            seconds = json.loads(path.with_suffix(".seconds").read_text())
            print(summary([e | s for e, s in zip(entries, seconds)], ranks), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
