"""Which scheme for which table? For those marked `auto`: the cheapest that fits, spread so that no
rank has to wait.

    1. Every scheme and home of a table is costed (`cost.py`).
    2. A fair share of the step is what the cheapest choice of every table would cost, divided by
       the ranks. A choice that puts more than that on one rank is out, unless a table has no other
       (then its flattest one stays).
    3. Tables are placed in the order of their need, largest first: each takes its cheapest scheme
       of those that still fit in memory everywhere, at the home where the fullest rank ends lowest
       (LPT greedy). If one does not fit, the largest table that can be cut finer is cut as finely
       as it can be, and placing starts again.

This is the seam for a full planner: whatever searches better returns a `Plan` as well. Costs and
ties depend on the arguments only, so every rank makes the same plan.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neocpu.embedding.specs import TableSpec
from neocpu.errors import PlanError
from neocpu.parallel.plan import AUTO, Plan, PlanSpec, choose_schemes, shard_bytes, unfit
from neocpu.parallel.sharding import SCHEMES, RankLayout, Shard
from neocpu.planner.cost import Cost, Workload, table_costs


@dataclass(frozen=True)
class Option:
    """One way to hold one table: its rectangles, and their cost by rank."""

    scheme: str
    shards: tuple[Shard, ...]
    costs: dict[int, Cost]

    @property
    def total(self) -> float:
        """Cost over all ranks."""
        return sum(cost.total for cost in self.costs.values())

    @property
    def peak(self) -> float:
        """Cost on the rank that has most of it."""
        return max(cost.total for cost in self.costs.values())

    @property
    def memory(self) -> int:
        """Bytes on the rank that has most of it."""
        return max(cost.memory for cost in self.costs.values())


def make_plan(
    tables: Sequence[TableSpec],
    spec: PlanSpec,
    ranks: int,
    ranks_per_node: int | None = None,
    work: Workload | None = None,
    budget: int | None = None,
) -> Plan:
    """Checked plan for `parallel.plan` = `spec` (see `choose_schemes`); tables marked `auto` get a
    scheme here.

    ranks_per_node : ranks of a node (None: one node).
    work : what a step does; shapes costs only.
    budget : bytes that tables and their optimizer state may take on each rank; None: no limit.

    Raises
    ------
    ConfigError : unknown scheme, or a pattern that matches no table.
    PlanError : a table does not fit the budget; the message says how much it needs and what would
        help.
    """
    if ranks_per_node is not None and ranks_per_node < 1:
        raise PlanError(f"parallel.ranks_per_node is {ranks_per_node}; it must be at least 1")
    layout = RankLayout(ranks, min(ranks_per_node or ranks, ranks))
    work = work or Workload()
    options = [
        list(_options(number, table, scheme, layout, work))
        for number, (table, scheme) in enumerate(zip(tables, choose_schemes(tables, spec)))
    ]
    fair = sum(min(option.total for option in found) for found in options) / ranks
    options = [_affordable(found, fair) for found in options]
    chosen = _place(tables, options, ranks, fair, budget, work)
    shards = tuple(sorted(shard for option in chosen for shard in option.shards))
    schemes = tuple(option.scheme for option in chosen)
    return Plan(tuple(tables), schemes, shards, ranks, layout.ranks_per_node).check()


def _options(
    number: int, table: TableSpec, scheme: str, layout: RankLayout, work: Workload
) -> Iterator[Option]:
    """Every way to hold a table under its scheme, or under any for `auto`; equal rectangles are
    listed once.
    """
    seen = set()
    for name in SCHEMES if scheme == AUTO else [scheme]:
        for home in SCHEMES[name].choices(layout):
            shards = tuple(SCHEMES[name].cut(number, table.rows, table.dim, layout, home))
            replicated = name == "data_parallel"
            if scheme == AUTO and unfit(table, shards, replicated):
                continue
            if (shards, replicated) not in seen:
                seen.add((shards, replicated))
                costs = table_costs(table, shards, layout.ranks, replicated, work)
                yield Option(name, shards, costs)


def _affordable(options: list[Option], fair: float) -> list[Option]:
    flattest = min(option.peak for option in options)
    return [option for option in options if option.peak <= max(fair, flattest) * (1 + 1e-9)]


def _place(
    tables: Sequence[TableSpec],
    options: Sequence[list[Option]],
    ranks: int,
    fair: float,
    budget: int | None,
    work: Workload,
) -> list[Option]:
    """One option for every table; while one does not fit, the largest table that can still be cut
    finer is.
    """
    left = [list(found) for found in options]
    while True:
        chosen, stuck = _try_to_place(left, ranks, fair, budget)
        if stuck is None:
            return chosen
        thinner = [(min(o.memory for o in found), found) for found in left]
        coarse = [
            t for t, (least, found) in enumerate(thinner) if any(o.memory > least for o in found)
        ]
        if not coarse:
            raise _does_not_fit(tables, stuck, left[stuck][0], ranks, budget or 0, work)
        largest = max(coarse, key=lambda t: (tables[t].rows * tables[t].dim, -t))
        left[largest] = [o for o in left[largest] if o.memory == thinner[largest][0]]


def _try_to_place(
    options: Sequence[list[Option]], ranks: int, fair: float, budget: int | None
) -> tuple[list[Option], int | None]:
    """(one option for every table, None), or (unfinished, the table that does not fit)."""
    load = [0.0] * ranks
    held = [0] * ranks
    chosen: dict[int, Option] = {}
    cheapest = [min(found, key=lambda option: option.total) for found in options]

    def need(t: int) -> tuple[float, int, int]:
        option = cheapest[t]
        return (
            -max(option.total / (fair or 1.0), option.memory / budget if budget else 0.0),
            -option.memory,
            t,
        )

    def height(option: Option) -> tuple[float, int]:
        costs = option.costs.items()
        return max(load[rank] + c.total for rank, c in costs), max(
            held[rank] + c.memory for rank, c in costs
        )

    for number in sorted(range(len(options)), key=need):
        fitting = [o for o in options[number] if budget is None or _fits(o, held, budget)]
        if not fitting:
            return [], number
        least = min(option.total for option in fitting)
        best = min((o for o in fitting if o.total <= least * (1 + 1e-9)), key=height)
        for rank, cost in best.costs.items():
            load[rank] += cost.total
            held[rank] += cost.memory
        chosen[number] = best
    return [chosen[number] for number in range(len(options))], None


def _fits(option: Option, held: Sequence[int], budget: int) -> bool:
    return all(held[rank] + cost.memory <= budget for rank, cost in option.costs.items())


def _does_not_fit(
    tables: Sequence[TableSpec], stuck: int, option: Option, ranks: int, budget: int, work: Workload
) -> PlanError:
    table = tables[stuck]
    total = sum(
        shard_bytes(t, Shard(0, (0, t.rows), (0, t.dim), 0), work.state_floats) for t in tables
    )
    return PlanError(
        f"table {table.name!r} ({table.rows:,} rows x {table.dim}) needs {option.memory:,} bytes "
        "on a rank "
        f"as {option.scheme} and does not fit beside the others: all tables with their optimizer "
        f"state take {total:,} "
        f"bytes, and {ranks} rank(s) have {budget:,} each; use more ranks, fewer rows or columns, "
        "row_wise for the "
        "large tables, or an optimizer with less state (exact_rowwise_adagrad, exact_sgd)"
    )
