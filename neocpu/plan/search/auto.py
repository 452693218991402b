"""Which scheme for which table? Those marked `auto` get the cheapest that fits and balances ranks.

    1. Every scheme and home of a table is an option with a cost (`cost.py`).
    2. A rank's fair share is the cost of the cheapest options of all tables, divided by the ranks.
       Options that put more than that on one rank are dropped; if a table has no other, the one
       with the lowest peak stays.
    3. Tables are placed in the order of their need, largest first (LPT greedy). Each takes the
       cheapest option that still fits the memory of all ranks; among equally cheap ones, the one
       that leaves the most loaded rank lowest. If none fits, the largest table that can be cut
       finer is limited to its finest cuts, and placing starts again.

A better search may replace this one: it returns a `Plan` as well. Costs and ties depend on the
arguments only, so every rank makes the same plan.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from neocpu.core.errors import PlanError
from neocpu.parallel.exchange.wire_formats import cut_blocks
from neocpu.parallel.sharding.pins import check_pins
from neocpu.parallel.sharding.plan import (
    Plan,
    PlanSpec,
    allowed_schemes,
    choose_schemes,
    is_open,
    shard_bytes,
    unfit,
)
from neocpu.parallel.sharding.schemes import SCHEMES, RankLayout, Shard
from neocpu.plan.cost.cost import Cost, table_costs
from neocpu.plan.cost.work import Workload
from neocpu.tables.specs.specs import TableSpec, TableSpecs

# Costs that differ by less are equal: they are sums of floats in different orders.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Option:
    """One way to shard one table: its rectangles, and their cost by rank."""

    scheme: str
    shards: tuple[Shard, ...]
    costs: dict[int, Cost]

    @property
    def total(self) -> float:
        """Cost over all ranks."""
        return sum(cost.total for cost in self.costs.values())

    @property
    def peak(self) -> float:
        """Cost on the rank where it is highest."""
        return max(cost.total for cost in self.costs.values())

    @property
    def memory(self) -> int:
        """Bytes on the rank that holds most."""
        return max(cost.memory for cost in self.costs.values())


def make_plan(
    tables: TableSpecs,
    spec: PlanSpec,
    ranks: int,
    ranks_per_node: int | None = None,
    work: Workload | None = None,
    budget: int | None = None,
    fixed: Mapping[int, Sequence[Shard]] | None = None,
) -> Plan:
    """Checked plan for `parallel.plan` = `spec`; tables marked `auto` get a scheme here.

    spec : a scheme for all tables, or {pattern: scheme} (see `choose_schemes`).
    ranks_per_node : ranks of a node (None: one node).
    work : what a step does, for costs, and the pins of tables.
    budget : bytes that tables and their optimizer state may take on each rank; None: no limit.
    fixed : rectangles of tables that are not to be cut here, by number; their schemes are named.

    Raises ConfigError: unknown scheme, or a pattern that matches no table; PlanError: a table does
    not fit the budget; the message says how much it needs and what may help.
    """
    if ranks_per_node is not None and ranks_per_node < 1:
        raise PlanError(f"parallel.ranks_per_node is {ranks_per_node}; it must be at least 1")
    layout = RankLayout(ranks, min(ranks_per_node or ranks, ranks))
    work = work or Workload()
    fixed = fixed or {}
    chosen_schemes = choose_schemes(tables, spec)
    check_pins(tables, chosen_schemes, work.pins, ranks, fixed)
    options = [
        list(_options(number, table, scheme, layout, work, fixed.get(number, ())))
        for number, (table, scheme) in enumerate(zip(tables, chosen_schemes))
    ]
    cheapest = [min(option.total for option in table_options) for table_options in options]
    # what no plan can undercut on its fullest rank
    fair = sum(cheapest) / ranks
    options = [_affordable(table_options, fair) for table_options in options]
    try:
        chosen = _place(tables, options, ranks, fair, budget, work)
    except PlanError:
        if not work.curves:
            raise
        # blocks of equal lookups may be large; with rows alike the smallest blocks are affordable
        alike = replace(work, curves={})
        return make_plan(tables, spec, ranks, ranks_per_node, alike, budget, fixed)
    shards = tuple(sorted(shard for option in chosen for shard in option.shards))
    schemes = tuple(option.scheme for option in chosen)
    return Plan(tuple(tables), schemes, shards, ranks, layout.ranks_per_node).check()


def _options(
    number: int,
    table: TableSpec,
    scheme: str,
    layout: RankLayout,
    work: Workload,
    fixed: Sequence[Shard] = (),
) -> Iterator[Option]:
    """Options of a table under its scheme, or under all for `auto`, each set of rectangles once.

    fixed : its only rectangles, if there are any.
    """
    if fixed:
        # rectangles of a plan file are as they are; only copies cost otherwise
        copied = scheme == "data_parallel"
        costs = table_costs(table, fixed, layout.ranks, copied, work)
        yield Option(scheme, tuple(fixed), costs)
        return
    seen = set()
    free = is_open(scheme)
    pin = work.pins.get(table.name)
    # a pinned table is cut for its ranks, as if there were no others
    own = RankLayout(len(pin), len(pin)) if pin else layout
    for name, cut in _cuts(number, table, scheme, own, work):
        shards = tuple(replace(shard, rank=pin[shard.rank]) for shard in cut) if pin else cut
        replicated = name == "data_parallel"
        inside_block = any(cut_blocks(work.wires.specs, table.dim, shards))
        if free and (inside_block or unfit(table, shards, replicated)):
            continue
        # on one rank, or of a single row, several schemes make the same rectangles
        if not (replicated and pin) and (shards, replicated) not in seen:
            seen.add((shards, replicated))
            costs = table_costs(table, shards, layout.ranks, replicated, work)
            yield Option(name, shards, costs)


def _cuts(
    number: int, table: TableSpec, choice: str, layout: RankLayout, work: Workload
) -> Iterator[tuple[str, tuple[Shard, ...]]]:
    """(scheme, rectangles) of each way that its schemes cut a table."""
    for name in allowed_schemes(choice):
        for home in SCHEMES[name].choices(layout):
            yield name, tuple(SCHEMES[name].cut(number, table.rows, table.dim, layout, home))
    # a scheme that is named alone has its own blocks
    if is_open(choice) and "row_wise" in allowed_schemes(choice) and table.name in work.curves:
        blocks = pairwise(work.curves[table.name].edges(layout.ranks, evenness=1.0))
        equal_lookups = [Shard(number, rows, (0, table.dim), r) for r, rows in enumerate(blocks)]
        yield "row_wise", tuple(equal_lookups)


def _affordable(options: list[Option], fair: float) -> list[Option]:
    """Options that put no more than a fair share on any rank, or those with the lowest peak."""
    limit = max(fair, min(option.peak for option in options))
    return [option for option in options if option.peak <= limit * (1 + TOLERANCE)]


def _place(
    tables: TableSpecs,
    options: Sequence[list[Option]],
    ranks: int,
    fair: float,
    budget: int | None,
    work: Workload,
) -> list[Option]:
    """One option for each table; the largest tables are cut finer until all fit.

    Raises PlanError if they do not even then.
    """
    remaining = [list(table_options) for table_options in options]
    while True:
        chosen, stuck = _try_to_place(remaining, ranks, fair, budget)
        if stuck is None:
            return chosen
        finest = [min(option.memory for option in table_options) for table_options in remaining]
        coarse = [
            t
            for t, table_options in enumerate(remaining)
            if any(option.memory > finest[t] for option in table_options)
        ]
        if not coarse:
            raise _does_not_fit(tables, stuck, remaining[stuck][0], ranks, budget or 0, work)
        # the largest table frees most bytes
        largest = max(coarse, key=lambda t: (tables[t].rows * tables[t].dim, -t))
        remaining[largest] = [o for o in remaining[largest] if o.memory == finest[largest]]


def _try_to_place(
    options: Sequence[list[Option]], ranks: int, fair: float, budget: int | None
) -> tuple[list[Option], int | None]:
    """(one option for every table, None), or ([], the table that does not fit)."""
    load = [0.0] * ranks
    memory = [0] * ranks
    chosen: dict[int, Option] = {}
    cheapest = [min(table_options, key=lambda option: option.total) for table_options in options]

    def largest_need_first(t: int) -> tuple[float, int, int]:
        option = cheapest[t]
        load_share = option.total / (fair or 1.0)
        memory_share = option.memory / budget if budget else 0.0
        # by the scarcer of load and memory; then by bytes and number, so that every rank breaks
        # ties alike
        return -max(load_share, memory_share), -option.memory, t

    def peaks(option: Option) -> tuple[float, int]:
        """Load and memory of the fullest rank of the option, were it chosen."""
        costs = option.costs.items()
        peak_load = max(load[rank] + cost.total for rank, cost in costs)
        peak_memory = max(memory[rank] + cost.memory for rank, cost in costs)
        return peak_load, peak_memory

    for t in sorted(range(len(options)), key=largest_need_first):
        fitting = [o for o in options[t] if budget is None or _fits(o, memory, budget)]
        if not fitting:
            return [], t
        least = min(option.total for option in fitting)
        # of equally cheap ways the one that keeps the fullest rank lowest
        best = min((o for o in fitting if o.total <= least * (1 + TOLERANCE)), key=peaks)
        for rank, cost in best.costs.items():
            load[rank] += cost.total
            memory[rank] += cost.memory
        chosen[t] = best
    return [chosen[t] for t in range(len(options))], None


def _fits(option: Option, memory: Sequence[int], budget: int) -> bool:
    """Does every rank that has `memory` bytes already have room for its part of the option?"""
    return all(memory[rank] + cost.memory <= budget for rank, cost in option.costs.items())


def _does_not_fit(
    tables: TableSpecs, stuck: int, option: Option, ranks: int, budget: int, work: Workload
) -> PlanError:
    """The error that names the table, its bytes, and what may help."""
    table = tables[stuck]
    total = sum(
        shard_bytes(t, Shard(0, (0, t.rows), (0, t.dim), 0), work.state_floats) for t in tables
    )
    return PlanError(
        f"table {table.name!r} ({table.rows:,} rows x {table.dim}) needs {option.memory:,} bytes "
        f"on a rank as {option.scheme} and does not fit beside the others: all tables with their "
        f"optimizer state take {total:,} bytes, and {ranks} rank(s) have {budget:,} each; use more "
        "ranks, fewer rows or columns, row_wise for the large tables, or an optimizer with less "
        "state (exact_rowwise_adagrad, exact_sgd)"
    )
