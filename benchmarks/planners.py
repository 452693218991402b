"""Which planner finds the cheapest plan? Ours against heuristics, learned ones and TorchRec's.

100 tasks (`planner_tasks.py`) on the machine zionex, every plan priced by the same cost model
(--cost-model, which guides the planners too). A planner's plan that does not fit a rank's memory
counts as infeasible, as does none. Columns: mean, geometric mean and worst price as a multiple of
search's, on how many tasks it is better than search, infeasible tasks, above the lower bound,
processor seconds to plan.

    neocpu calibrate --learned --machine zionex         once: the learned planners' networks
    python -m benchmarks.planners --json planners.jsonl

TorchRec's planner is asked where torchrec is installed, for at most --patience seconds a task.
"""

import argparse
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import heuristics, rivals
from benchmarks.planner_tasks import PlannerTask, tasks
from neocpu.core.errors import PlanError
from neocpu.parallel.sharding.plan import Plan, PlanSpec
from neocpu.parallel.sharding.schemes import Shard
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.models import COST_MODELS
from neocpu.plan.cost.seconds import CostModel, loads_of, step_seconds
from neocpu.plan.cost.work import TableArrays, Workload, rectangles_of
from neocpu.plan.learned import plans, store
from neocpu.plan.machines.machine import Machine
from neocpu.plan.machines.machine_file import load
from neocpu.plan.search.partition import PARTITIONERS, Packing, fits
from neocpu.plan.search.search import greedy, plan_tables
from neocpu.plan.tiers.limits import bytes_of, rank_limits, with_variants
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.specs.specs import TableSpec

MACHINE = "zionex"
# Pieces x ranks above which the byte-counting planner, whose time grows with it, is not asked.
GREEDY_LIMIT = 40_000
STRIDE = 0.618
LEARNED = ("neuroshard", "autoshard")
HEADER = (
    "planner",
    "mean / search",
    "geometric",
    "worst / search",
    "better than search",
    "infeasible",
    "too slow",
    "above bound, median",
    "planning, median s",
    "most s",
)

# of all planners: tables, scheme, layout, model, work, capacity
Arguments = tuple[tuple[TableSpec, ...], PlanSpec, Layout, CostModel, Workload, Capacity]


@dataclass(frozen=True)
class Setting:
    """A task with what all planners share."""

    task: PlannerTask
    layout: Layout
    model: CostModel
    machine: Machine
    capacity: Capacity
    networks: store.Networks | None
    patience: int

    @property
    def arguments(self) -> Arguments:
        """Arguments of all planners."""
        task = self.task
        return task.tables, task.spec, self.layout, self.model, task.work, self.capacity


Contestant = Callable[[Setting], Plan]


def whole_tables(name: str, setting: Setting) -> Plan:
    """Whole tables, by a heuristic or a partitioner."""
    tables = setting.task.tables
    ranks = setting.layout.ranks

    def on(homes: list[int]) -> Plan:
        shards = tuple(
            Shard(number, (0, table.rows), (0, table.dim), home)
            for number, (table, home) in enumerate(zip(tables, homes))
        )
        schemes = ("table_wise",) * len(tables)
        return Plan(tables, schemes, shards, ranks, setting.layout.ranks_per_node)

    each = rectangles_of(on([0] * len(tables)))
    sizes = priced_bytes(setting, on([0] * len(tables)))
    room = limits_of(setting)
    if name in heuristics.HEURISTICS:
        arrays = TableArrays.of(tables, setting.task.work)
        placed = heuristics.place(name, arrays, sizes[:, 0], ranks, float(room[0, 0]))
    else:
        packing = Packing(
            seconds=setting.model.seconds(each),
            bytes=sizes,
            rank_seconds=np.zeros((ranks, len(setting.model.phases))),
            rank_bytes=np.zeros((ranks, sizes.shape[1])),
            limits=room,
            slowness=np.ones(ranks),
        )
        placed = PARTITIONERS[name](packing)
    if placed is None:
        raise PlanError("a table found no room")
    return on(placed.tolist())


def limits_of(setting: Setting) -> Any:
    """Bytes of each rank's memories, f64[ranks, 4]."""
    task = setting.task
    return rank_limits(setting.capacity, task.tables, task.work, setting.layout.ranks)


def priced_bytes(setting: Setting, plan: Plan) -> Any:
    """Bytes of a plan's rectangles in hbm, ddr, ssd and together, rows in the fastest memory."""
    variants, allowed = setting.capacity.variants([table.name for table in plan.tables])
    rectangles = rectangles_of(plan)
    variant = allowed.argmax(axis=1)[rectangles.table]
    placed = with_variants(rectangles, variants, variant)
    return bytes_of(plan.tables, placed, variants, variant, setting.task.work)


def price(setting: Setting, plan: Plan) -> float:
    """Seconds of a step of any plan under the shared cost model; inf where it does not fit."""
    rectangles = rectangles_of(plan, setting.task.work)
    each = priced_bytes(setting, plan)
    size = np.zeros((setting.layout.ranks, each.shape[1]))
    np.add.at(size, rectangles.rank, each)
    if not fits(size, limits_of(setting)):
        return float("inf")
    return step_seconds(setting.model, loads_of(setting.model, rectangles, setting.layout.ranks))


def alone(propose: plans.Propose, setting: Setting) -> Plan:
    """What a learned planner finds by itself, without the search."""
    task = plans.task_of("a planner", *setting.arguments, setting.networks)
    placed = propose(task)
    if not np.isfinite(placed.seconds):
        raise PlanError("no placement fits")
    return plans.plan_of(task.costs, placed)


def whole_planner(name: str, setting: Setting) -> Plan:
    """A learned planner of `parallel.planner`."""
    return plans.learned_plan(name, *setting.arguments, networks=setting.networks).plan


def by_bytes(setting: Setting) -> Plan:
    """The planner that counts bytes."""
    task = setting.task
    if len(task.tables) * task.ranks > GREEDY_LIMIT:
        raise TimeoutError
    capacity = Capacity(total=setting.capacity.hbm)
    return greedy(*setting.arguments[:-1], capacity).plan


def torchrec(setting: Setting) -> Plan:
    """TorchRec's planner with the machine's bandwidths and capacity, no memory reserved."""
    from benchmarks.planner_torchrec import torchrec_plan

    with limited(setting.patience):
        return torchrec_plan(setting.task, setting.machine, setting.capacity.hbm)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in what takes more processor time."""

    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def contestants(with_rivals: bool) -> dict[str, Contestant]:
    """All planners but the search."""
    field: dict[str, Contestant] = {}
    field["neuroshard"] = partial(whole_planner, "neuroshard")
    field["autoshard"] = partial(whole_planner, "autoshard")
    field["neuroshard alone"] = partial(alone, plans.beam_search)
    field["autoshard alone"] = partial(alone, plans.play)
    field["greedy (bytes)"] = by_bytes
    for name in (*heuristics.HEURISTICS, *PARTITIONERS):
        kind = "heuristic" if name in heuristics.HEURISTICS else "whole tables"
        field[f"{kind}: {name}"] = partial(whole_tables, name)
    if with_rivals and rivals.have("torchrec"):
        field["TorchRec"] = torchrec
    return field


def compete(setting: Setting, field: dict[str, Contestant]) -> dict[str, Any]:
    """Seconds of every contestant's plan, and of its planning; None where it has no plan."""
    fixed = setting.model.fixed_seconds
    begin = time.process_time()
    try:
        answer = plan_tables(*setting.arguments)
    except PlanError:
        # schemes that are named may leave no room
        answer = None
    ours = {"seconds": answer.seconds - fixed if answer else None, "why": "memory"}
    results: dict[str, Any] = {"search": ours | {"planning": time.process_time() - begin}}
    for name, contestant in field.items():
        begin = time.process_time()
        plan = None
        why = ""
        try:
            plan = contestant(setting)
        except TimeoutError:
            why = "time"
        except PlanError:
            why = "memory"
        spent = time.process_time() - begin
        seconds = price(setting, plan) if plan is not None else float("inf")
        if np.isfinite(seconds):
            results[name] = {"seconds": seconds - fixed, "planning": spent}
        else:
            results[name] = {"seconds": None, "planning": spent, "why": why or "memory"}
    bound = answer.bound - fixed if answer else None
    return {"task": setting.task.name, "bound": bound, "results": results}


def summary(records: list[dict[str, Any]]) -> str:
    """The table, in Markdown."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    for name in records[0]["results"]:
        rows = [record["results"][name] for record in records if name in record["results"]]
        pairs = [
            (record["results"][name]["seconds"], record["results"]["search"]["seconds"])
            for record in records
            if record["results"].get(name, {}).get("seconds") is not None
            and record["results"]["search"]["seconds"] is not None
        ]
        ratios = np.array([one / ours for one, ours in pairs]) if pairs else np.array([np.nan])
        above = [
            row["seconds"] / record["bound"] - 1
            for row, record in zip(rows, records)
            if row["seconds"] is not None and record["bound"]
        ]
        planning = [row["planning"] for row in rows]
        cells = [
            name,
            f"{ratios.mean():.3f}",
            f"{np.exp(np.log(ratios).mean()):.3f}",
            f"{ratios.max():.2f}",
            str(int((ratios < 1 - 1e-9).sum())),
            str(sum(row["seconds"] is None and row["why"] == "memory" for row in rows)),
            str(sum(row["seconds"] is None and row["why"] == "time" for row in rows)),
            f"{100 * np.median(above):.1f} %" if above else "",
            f"{np.median(planning):.2f}",
            f"{max(planning):.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run the tasks, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=100, help="how many of the 100")
    parser.add_argument("--no-rivals", action="store_true", help="without TorchRec's planner")
    parser.add_argument(
        "--constrained",
        action="store_true",
        help="allow some tables some schemes; only TorchRec",
    )
    parser.add_argument("--only", nargs="*", help="planners beside search, by name")
    parser.add_argument("--patience", type=int, default=60, help="seconds that TorchRec may plan")
    parser.add_argument("--networks", type=Path, help="of zionex, if not in their usual place")
    parser.add_argument("--cost-model", default="neo", choices=COST_MODELS)
    parser.add_argument("--json", type=Path, help="a line for each task; done ones are left out")
    options = parser.parse_args()
    machine = load(MACHINE)
    capacity = Capacity(hbm=Capacity.of_machine(machine).hbm, memories=("hbm",))
    field = contestants(not options.no_rivals)
    # the others know no lists of schemes
    only = ["TorchRec"] if options.constrained else options.only
    if only is not None:
        field = {name: field[name] for name in only}
    networks = None
    if any(name.startswith(LEARNED) for name in field):
        networks = store.load(options.networks or store.networks_path(MACHINE), MACHINE)
    logging.disable(logging.WARNING)  # TorchRec's, on every table
    records: list[dict[str, Any]] = []
    if options.json and options.json.exists():
        records = [json.loads(line) for line in options.json.read_text().splitlines()]
    done = {record["task"] for record in records}
    drawn = tasks(capacity.hbm, options.tasks if options.tasks < 100 else None)
    # Small and large tasks in turn, so that a part of the run is a fair sample.
    numbers = sorted(range(len(drawn)), key=lambda number: number * STRIDE % 1.0)
    for task in (drawn[number] for number in numbers):
        if task.name in done:
            continue
        task = task.constrained() if options.constrained else task
        layout = Layout(task.ranks, task.per_node)
        setting = Setting(
            task=task,
            layout=layout,
            model=COST_MODELS[options.cost_model](machine, task.tables, task.work, layout),
            machine=machine,
            capacity=capacity,
            networks=networks,
            patience=options.patience,
        )
        records.append(compete(setting, field))
        print(task.name, file=sys.stderr)
        if options.json:
            with options.json.open("a") as lines:
                lines.write(json.dumps(records[-1]) + "\n")
    print(summary(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
