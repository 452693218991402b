"""Is there a plan by hand that beats the search? Tasks of extremes, and plans as people make them.

Tasks: few and many tables, 4 to 512 ranks, memories nearly full, giants beside hot small tables,
equal tables, one table of 200 lookups. Plans by hand, some hundred a task:

    rows       every table by rows over all ranks
    grids      every table by columns on k nodes, by rows over the ranks of each
    shares     tables in the fewest rows by columns that stay below a part of a rank's share of the
               seconds and of the memory, small ones copied or not, placed by LPT

each with the most demanded tables in HBM up to 97, 85 or 60 % of it, and the others in DDR or in
caches above it. Every plan is priced by the cost model that guides the search.

    python -m benchmarks.hand_plans                    # all tasks, under neo and torchrec
    python -m benchmarks.hand_plans --tasks 3,6 --cost-model torchrec
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import numpy as np

from neocpu.core.errors import PlanError
from neocpu.core.types import Ints
from neocpu.parallel.sharding.schemes import column_blocks, row_blocks
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.models import COST_MODELS
from neocpu.plan.cost.seconds import CostModel, loads_of, step_seconds
from neocpu.plan.cost.work import Floats, Rectangles, Workload, whole_rectangles
from neocpu.plan.machines.machine_file import load
from neocpu.plan.search.options import CODES
from neocpu.plan.search.partition import PARTITIONERS, Packing, fits
from neocpu.plan.search.search import plan_tables
from neocpu.plan.tiers.limits import bytes_of, rank_limits, with_variants
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.specs.specs import TableSpec

SEED = 31
PER_NODE = 8
GRIDS = {
    "columns": [(1, 1 << p) for p in range(6)] + [(1 << p, 4) for p in range(1, 10)],
    "rows": [(1 << p, 1) for p in range(10)],
    "grid": [(1 << (p + 1) // 2, 1 << p // 2) for p in range(10)],
}


@dataclass(frozen=True)
class Case:
    """Tables that fill a part of the HBM (all of it but the reserve), and their lookups.

    columns, weights, lookups : drawn for each table from what is named, with weights that are
    log-normal of this sigma, or equal for 0. giants : the first ones weigh a thousand times as much
    as the others. hot : lookups of all but these.
    """

    name: str
    tables: int
    ranks: int
    filled: float
    columns: tuple[int, ...] = (64,)
    sigma: float = 0.0
    lookups: tuple[int, int] = (10, 11)
    batch: int = 512
    machine: str = "zionex"
    giants: int = 0
    hot: int = 0


CASES = (
    Case("7 equal, 92 %", 7, 512, 0.92, lookups=(20, 21), batch=128),
    Case("40 equal, HBM and DDR 93 %", 40, 16, 6.06, batch=4096),
    Case("3 giants and 50 hot ones", 53, 256, 0.75, (64,), lookups=(5, 6), giants=3, hot=200),
    Case("small ones", 25, 8, 0.001, (4, 8, 16, 32), 3.0, (1, 20)),
    Case("one giant", 12, 128, 0.9, (128,), lookups=(1, 2), batch=1024, giants=1, hot=100),
    Case("two tables, 95 %", 2, 512, 0.95, (256,), 1.0, (10, 31)),
    Case("wide rows", 5, 40, 0.6, (1024,), 1.0, (1, 51)),
    Case("300, log-normal", 300, 32, 0.6, (16, 32, 64, 128, 256), 2.0, (1, 201), 2048),
    Case("2,000, log-normal", 2000, 128, 0.4, (8, 16, 32, 64, 128), 2.5, (1, 60)),
    Case("four ranks, 95 %", 12, 4, 0.95, (4, 16, 64, 256), 1.0, (1, 201), 2048),
    Case("beyond HBM", 17, 24, 1.3, (64, 128), 1.0, (1, 201)),
    Case("four times the HBM", 17, 24, 4.0, (64, 128), 1.0, (1, 201)),
    Case("dgx-a100, 220 %", 26, 16, 2.2, (128,), 3.0, (1, 100), 1024, "dgx-a100"),
    Case("dgx-h100, 500 tables", 500, 512, 0.5, (32, 64, 128), 2.0, (1, 201), 512, "dgx-h100"),
    Case("narrow and hot", 10, 16, 0.01, (4,), lookups=(200, 201), batch=4096),
)


@dataclass(frozen=True)
class HandTask:
    """A case with what its plans need."""

    tables: tuple[TableSpec, ...]
    work: Workload
    layout: Layout
    model: CostModel
    capacity: Capacity

    @classmethod
    def of(cls, case: Case, cost_model: str) -> "HandTask":
        """The tables of a case, always the same ones."""
        rng = np.random.default_rng([SEED, case.tables, case.ranks])
        machine = load(case.machine)
        capacity = Capacity.of_machine(machine)
        weights = rng.lognormal(0.0, case.sigma, case.tables)
        weights[case.giants :] /= 1000.0 if case.giants else 1.0
        dims = rng.choice(case.columns, case.tables)
        lookups = rng.integers(*case.lookups, case.tables)
        lookups[case.giants :] = case.hot or lookups[case.giants :]
        room = case.filled * case.ranks * capacity.hbm
        rows = np.maximum(room * weights / weights.sum() / (4 * dims + 4), 4).astype(np.int64)
        tables = tuple(
            TableSpec(f"t{i}", h, d, (f"f{i}",))
            for i, (h, d) in enumerate(zip(rows.tolist(), dims.tolist()))
        )
        pooling = {f"t{i}": float(count) for i, count in enumerate(lookups.tolist())}
        work = Workload(batch=case.batch * case.ranks, pooling=pooling)
        layout = Layout(case.ranks, min(PER_NODE, case.ranks))
        model = COST_MODELS[cost_model](machine, tables, work, layout)
        return cls(tables, work, layout, model, capacity)

    @cached_property
    def limits(self) -> Floats:
        """Bytes of the ranks, as the search has them."""
        return rank_limits(self.capacity, self.tables, self.work, self.layout.ranks)

    def placed(self, rectangles: Rectangles, variant: Ints) -> tuple[Rectangles, Floats]:
        """(rectangles with their rows in variants i64[tables], their bytes f64[n, memories])."""
        variants, _ = self.capacity.variants([table.name for table in self.tables])
        of_rectangle = variant[rectangles.table]
        moved = with_variants(rectangles, variants, of_rectangle)
        return moved, bytes_of(self.tables, moved, variants, of_rectangle, self.work)

    def seconds(self, rectangles: Rectangles, variant: Ints) -> float:
        """Of a step; infinite where it does not fit."""
        moved, size = self.placed(rectangles, variant)
        taken = np.zeros((self.layout.ranks, size.shape[1]))
        np.add.at(taken, moved.rank, size)
        if not fits(taken, self.limits):
            return float("inf")
        return step_seconds(self.model, loads_of(self.model, moved, self.layout.ranks))


def rectangles_of_cut(table: int, spec: TableSpec, down: int, across: int) -> list[tuple[int, ...]]:
    """(table, scheme, rows, columns) of each rectangle of a grid."""
    name = (("table_wise", "column_wise"), ("row_wise", "grid_shard"))[down > 1][across > 1]
    heights = [end - row for row, end in row_blocks(spec.rows, down)]
    widths = [end - column for column, end in column_blocks(spec.dim, across)]
    return [(table, CODES[name], height, width) for height in heights for width in widths]


def as_rectangles(entries: Sequence[tuple[int, ...]], ranks: Ints | None = None) -> Rectangles:
    """Entries of `rectangles_of_cut` on ranks i64[n]."""
    table, scheme, rows, width = np.array(entries, np.int64).reshape(-1, 4).T
    return whole_rectangles(table, scheme, rows.astype(np.float64), width.astype(np.float64), ranks)


def placements(task: HandTask) -> Iterator[Ints]:
    """Variants of the tables i64[tables]: the most demanded in HBM, others below or in caches."""
    variants, _ = task.capacity.variants([table.name for table in task.tables])
    below = [v for v, variant in enumerate(variants) if variant.name in ("ddr", "hbm_over_ddr")]
    size = np.array([table.rows * table.row_bytes(table.dim, (0, 1)) for table in task.tables])
    rows = np.array([table.rows for table in task.tables])
    demand = np.array([task.work.pooling[table.name] for table in task.tables]) / rows
    seen = set()
    for share, low in product((0.97, 0.85, 0.6), below):
        left = share * task.limits[:, 0].sum()
        variant = np.full(rows.size, low)
        for table in np.argsort(-demand, kind="stable").tolist():
            if size[table] <= left:
                variant[table] = 0
                left -= size[table]
        if variant.tobytes() not in seen:
            seen.add(variant.tobytes())
            yield variant


def by_shares(
    task: HandTask, variant: Ints, most: float, full: float, grids: str, copied: bool
) -> Rectangles | None:
    """Tables in the fewest rectangles below `most` seconds and a part of a rank, placed by LPT."""
    ranks = task.layout.ranks

    @lru_cache
    def priced(table: int, down: int, across: int) -> tuple[list[tuple[int, ...]], float, float]:
        entries = rectangles_of_cut(table, task.tables[table], down, across)
        moved, size = task.placed(as_rectangles(entries[:1]), variant)
        seconds = float(task.model.seconds(moved).sum())
        return entries, seconds, float((size / task.limits[0]).max())

    items: list[tuple[int, ...]] = []
    copies: list[tuple[int, ...]] = []
    for table, spec in enumerate(task.tables):
        whole = (table, CODES["data_parallel"], spec.rows, spec.dim)
        if copied and not variant[table]:
            moved, size = task.placed(as_rectangles([whole]), variant)
            cheap = float(task.model.seconds(moved).sum()) * ranks < priced(table, 1, 1)[1]
            if cheap and (size / task.limits[0]).max() < 0.3 / len(task.tables) ** 0.5:
                copies.append(whole)
                continue
        cuts = [
            (down, across)
            for down, across in GRIDS[grids]
            if down <= spec.rows and across <= spec.dim // 4 and down * across <= ranks
        ]
        entries, seconds, filled = priced(table, 1, 1)
        for down, across in cuts:
            if seconds <= most and filled <= full:
                break
            entries, seconds, filled = priced(table, down, across)
        items += entries
    moved, size = task.placed(as_rectangles(items), variant)
    ground, ground_size = task.placed(as_rectangles(copies), variant)
    packing = Packing(
        seconds=task.model.seconds(moved),
        bytes=size,
        rank_seconds=np.tile(task.model.seconds(ground).sum(axis=0), (ranks, 1)),
        rank_bytes=np.tile(ground_size.sum(axis=0), (ranks, 1)),
        limits=task.limits,
        slowness=np.ones(ranks),
    )
    homes = PARTITIONERS["greedy"](packing)
    if homes is None:
        return None
    on_all = np.repeat(np.arange(ranks), len(copies))
    return as_rectangles(items + copies * ranks, np.concatenate([homes, on_all]))


def on_nodes(task: HandTask, across: int) -> Rectangles:
    """Blocks of columns on one node after the other, their rows over its ranks."""
    nodes = task.layout.nodes
    entries: list[tuple[int, ...]] = []
    ranks: list[int] = []
    home = 0
    for table, spec in enumerate(task.tables):
        blocks = min(across, spec.dim // 8 or 1)
        for left, right in column_blocks(spec.dim, blocks):
            node = range(home * PER_NODE, min((home + 1) * PER_NODE, task.layout.ranks))
            scheme = CODES["grid_shard" if blocks > 1 else "table_row_wise"]
            heights = [end - row for row, end in row_blocks(spec.rows, len(node))]
            entries += [(table, scheme, height, right - left) for height in heights]
            ranks += node[: len(heights)]
            home = (home + 1) % nodes
    return as_rectangles(entries, np.array(ranks))


def by_hand(task: HandTask, most_seconds: float) -> tuple[float, str, int]:
    """(seconds of the best plan by hand, how it was made, how many fit)."""
    ranks = task.layout.ranks
    whole = as_rectangles([rectangles_of_cut(t, s, 1, 1)[0] for t, s in enumerate(task.tables)])
    fair = float(task.model.seconds(whole).sum()) / ranks
    best = (float("inf"), "")
    count = 0
    begin = time.process_time()
    over_all = [e for t, s in enumerate(task.tables) for e in rectangles_of_cut(t, s, ranks, 1)]
    homes = np.concatenate([np.arange(len(list(row_blocks(s.rows, ranks)))) for s in task.tables])
    for variant in placements(task):
        plans: list[tuple[str, Rectangles | None]] = [("rows", as_rectangles(over_all, homes))]
        for power in range(task.layout.nodes.bit_length()):
            plans.append((f"grids of {1 << power}", on_nodes(task, 1 << power)))
        settings = product((0.25, 0.5, 1.0, 2.0, np.inf), (0.1, 0.3, 0.9), GRIDS, (False, True))
        shares = ((f"shares {s}", by_shares(task, variant, s[0] * fair, *s[1:])) for s in settings)
        for source in (plans, shares):
            for name, rectangles in source:
                seconds = np.inf if rectangles is None else task.seconds(rectangles, variant)
                count += bool(np.isfinite(seconds))
                best = min(best, (seconds, name))
                if time.process_time() - begin > most_seconds:
                    return *best, count
    return *best, count


def main() -> None:
    """Print a line for each task and cost model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default=",".join(str(i) for i in range(len(CASES))))
    parser.add_argument("--cost-model", default="neo,torchrec")
    parser.add_argument("--patience", type=float, default=15.0, help="seconds for plans by hand")
    options = parser.parse_args()
    print("| task | ranks | cost model | search, ms | above bound | s | by hand / search | best |")
    for number, name in product(options.tasks.split(","), options.cost_model.split(",")):
        case = CASES[int(number)]
        task = HandTask.of(case, name)
        begin = time.process_time()
        arguments = (task.tables, "auto", task.layout, task.model, task.work, task.capacity)
        try:
            answer = plan_tables(*arguments)
            seconds, above = answer.seconds, answer.above_bound
        except PlanError:
            seconds, above = np.inf, np.inf
        took = time.process_time() - begin
        hand, how, count = by_hand(task, options.patience)
        print(
            f"| {case.name} | {case.ranks} | {name} | {1e3 * seconds:.3f} | {100 * above:.0f} % | "
            f"{took:.1f} | {hand / seconds:.3f} | {how} of {count} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
