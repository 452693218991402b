"""From a draft to a plan with its price, and from any plan to its price."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.sharding.plan import AUTO, Plan, PlanSpec, choose_schemes
from neocpu.parallel.sharding.schemes import SCHEMES, Shard, column_blocks
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import SCHEME_NAMES, CostModel, loads_of
from neocpu.plan.cost.work import Floats, Workload, rectangles_of
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.bound import bounded
from neocpu.plan.search.cuts import NODE, RANK
from neocpu.plan.search.drafts import PlanDraft, Spread, sums_by_rank
from neocpu.plan.search.free_cuts import cut_of, cut_of_candidate
from neocpu.plan.search.options import CODES, Options, SearchTask, options_of, rank_layout
from neocpu.plan.search.relaxed import ranges_of
from neocpu.plan.tiers.limits import bytes_of, with_variants
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.specs.specs import TableSpec, TableSpecs

# Rows and columns of a rectangle: first and end of each.
Edges = tuple[tuple[int, int], tuple[int, int]]


def answer_of(draft: PlanDraft, task: SearchTask, bound: float) -> Answer:
    """The plan of a draft, and its price; bound : seconds of `bounded`."""
    tables, model, work = task.tables, task.model, task.work
    options = draft.options
    layout = draft.layout
    shards, pieces = _shards(draft, tables)
    schemes = tuple(SCHEME_NAMES[code] for code in options.scheme[draft.choice].tolist())
    plan = Plan(
        tables=tuple(tables),
        schemes=schemes,
        shards=tuple(shards),
        ranks=layout.ranks,
        ranks_per_node=rank_layout(layout).ranks_per_node,
    )
    rectangles = rectangles_of(plan, work)
    variant = options.variant[draft.choice[rectangles.table]]
    rectangles = with_variants(rectangles, options.variants, variant)
    size = sums_by_rank(options.piece_bytes, pieces, rectangles.rank, layout.ranks)
    return Answer(
        plan=plan.check(),
        placements=tuple(options.placement(c) for c in draft.choice.tolist()),
        model=model,
        work=work,
        layout=layout,
        rectangles=rectangles,
        loads=loads_of(model, rectangles, layout.ranks),
        memory=size[:, :3].astype(np.int64),
        bound=model.fixed_seconds + bound,
        budget=task.capacity,
    )


def answer_of_plan(
    plan: Plan,
    layout: Layout,
    model: CostModel,
    work: Workload,
    capacity: Capacity | None = None,
    spec: PlanSpec = AUTO,
    planner: str = "",
) -> Answer:
    """The price of any plan, and the bound of all plans for `spec`.

    Rows are placed as `capacity` names it; where it leaves the choice, in the fastest memory.
    """
    capacity = capacity or Capacity()
    variants, allowed = capacity.variants([table.name for table in plan.tables])
    # variants stand fastest first
    variant_of_table = allowed.argmax(axis=1)
    rectangles = rectangles_of(plan, work)
    variant = variant_of_table[rectangles.table]
    rectangles = with_variants(rectangles, variants, variant)
    loads = loads_of(model, rectangles, layout.ranks)
    each = bytes_of(plan.tables, rectangles, variants, variant, work)
    pieces = np.arange(rectangles.table.size)
    size = sums_by_rank(each, pieces, rectangles.rank, layout.ranks)
    schemes = choose_schemes(plan.tables, spec)
    task = SearchTask(plan.tables, schemes, layout, model, work, capacity)
    options = options_of(task)
    ranges = ranges_of(plan.tables, schemes, layout, model, work, options)
    bound = bounded(options, layout, task.limits, ranges).seconds
    return Answer(
        plan=plan,
        placements=tuple(variants[v].name for v in variant_of_table.tolist()),
        model=model,
        work=work,
        layout=layout,
        rectangles=rectangles,
        loads=loads,
        memory=size[:, :3].astype(np.int64),
        bound=model.fixed_seconds + bound,
        planner=planner,
        budget=capacity,
    )


def draft_of(options: Options, plan: Plan, layout: Layout, limits: Floats) -> PlanDraft | None:
    """The draft of a plan whose schemes are among the candidates; None where one is not.

    Rows are placed as the first variant of each candidate has them.
    """
    choice = np.zeros(len(plan.tables), np.int64)
    node = np.zeros(len(plan.tables), np.int64)
    items: list[tuple[int, Ints, Ints]] = []
    for table in range(len(plan.tables)):
        shards = plan.of_table(table)
        candidate = _candidate_of(options, plan.schemes[table], table, shards, layout)
        if candidate is None:
            return None
        choice[table] = candidate
        node[table] = shards[0].rank // layout.ranks_per_node
        if options.home[candidate] == RANK:
            ranks = np.array([shard.rank for shard in shards], np.int64)
            items.append((table, options.repeated(candidate), ranks))
    return PlanDraft.of_items(options, layout, limits, choice, node, items)


def _candidate_of(
    options: Options, scheme: str, table: int, shards: Sequence[Shard], layout: Layout
) -> int | None:
    """The first candidate that cuts a table into these rectangles; None where there is none."""
    blocks = len({shard.cols for shard in shards})
    cut = cut_of(shard.shape for shard in shards)
    for candidate in options.of_table(table):
        if (
            options.scheme[candidate] != CODES[scheme]
            or options.parts[candidate] != blocks
            or options.rectangles[candidate] != len(shards)
            or cut_of_candidate(options, candidate) != cut
        ):
            continue
        node = shards[0].rank // layout.ranks_per_node
        if options.home[candidate] == NODE and not (
            options.first_node[candidate] <= node < options.last_node[candidate]
        ):
            continue
        return candidate
    return None


def _edges(options: Options, candidate: int, table: TableSpec) -> list[Edges]:
    """(rows, columns) of a RANK candidate's rectangles, in the order of `Options.repeated`."""
    pieces = options.pieces(candidate)
    rows = options.rows[pieces].astype(np.int64).tolist()
    width = options.width[pieces].astype(np.int64).tolist()
    if options.first_row[pieces.start] >= 0:
        first_row = options.first_row[pieces].tolist()
        first_column = options.first_column[pieces].tolist()
        return [
            ((row, row + height), (column, column + wide))
            for row, height, column, wide in zip(first_row, rows, first_column, width)
        ]
    blocks = list(column_blocks(table.dim, int(options.parts[candidate])))
    cells: dict[tuple[int, int], deque[Edges]] = {}
    height = rows[0]
    for row in range(0, table.rows, height):
        end = min(row + height, table.rows)
        for left, right in blocks:
            size = end - row, right - left
            cells.setdefault(size, deque()).append(((row, end), (left, right)))
    edges = []
    for size, copies in zip(zip(rows, width), options.copies[pieces].tolist()):
        edges += [cells[size].popleft() for _ in range(copies)]
    return edges


def _shards(draft: PlanDraft, tables: TableSpecs) -> tuple[list[Shard], Ints]:
    """(shards in order, their pieces i64[n])."""
    options = draft.options
    layout = rank_layout(draft.layout)
    shards: list[Shard] = []
    pieces: list[Ints] = []
    table_of, everything = draft.all_rectangles()
    edges = np.searchsorted(table_of, np.arange(len(tables) + 1)).tolist()
    for number, table in enumerate(tables):
        candidate = int(draft.choice[number])
        rectangles = Spread(*(column[edges[number] : edges[number + 1]] for column in everything))
        pinned = options.is_pinned(candidate)
        if pinned or options.home[candidate] == RANK:
            edges_of = _edges(options, candidate, table)
            cut = [
                Shard(number, rows, cols, rank)
                for (rows, cols), rank in zip(edges_of, rectangles.ranks.tolist())
            ]
        else:
            scheme = SCHEMES[SCHEME_NAMES[int(options.scheme[candidate])]]
            cut = scheme.cut(number, table.rows, table.dim, layout, int(draft.node[number]))
        # a grid's rectangles come node by node or kind by kind, the plan's go by rows and columns
        by_nodes = options.scheme[candidate] == CODES["grid_shard"]
        if by_nodes or pinned or options.home[candidate] == RANK:
            order = sorted(range(len(cut)), key=cut.__getitem__)
            cut = [cut[i] for i in order]
            rectangles = Spread(rectangles.ranks[order], rectangles.pieces[order])
        shards.extend(cut)
        pieces.append(rectangles.pieces)
    return shards, np.concatenate(pieces)
