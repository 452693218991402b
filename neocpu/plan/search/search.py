"""Which plan takes the fewest seconds? A search over schemes, column widths, memories and homes.

    candidates   every way to cut and keep each table, with its cost          options.py
    proposals    one candidate for each table: the cheapest whose largest rectangle stays below a
                 part of a rank's fair share; where memory is short, bytes have a price
    fillings     where memory is short: tables cut by rows to fill the ranks  filled.py
    partition    homes for the proposals' rectangles, by every partitioner    partition.py
    bound        what no plan of these candidates can stay below              bound.py

What does not fit is proposed again with smaller rectangles and dearer memory. Nothing depends on a
clock or on chance, so every rank finds the same plan.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from neocpu.core.errors import PlanError
from neocpu.core.types import Ints
from neocpu.parallel.sharding.pins import check_pins
from neocpu.parallel.sharding.plan import Plan, PlanSpec, choose_schemes
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import CostModel
from neocpu.plan.cost.work import Flags, Floats, Workload
from neocpu.plan.search import auto
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.bound import bounded
from neocpu.plan.search.cuts import ALL, RANK
from neocpu.plan.search.drafts import PlanDraft, build, lay
from neocpu.plan.search.filled import Filled
from neocpu.plan.search.free_cuts import FreeCuts, Pins
from neocpu.plan.search.local_search import improve
from neocpu.plan.search.options import CODES, Options, SearchTask, priced_candidates
from neocpu.plan.search.partition import PARTITIONERS
from neocpu.plan.search.prices import cheapest, is_short, packed, within
from neocpu.plan.search.pricing import answer_of, answer_of_plan, draft_of
from neocpu.plan.search.relaxed import ranges_of
from neocpu.plan.tiers.limits import TOGETHER
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.specs.specs import TableSpecs

# Work of the local search for a table and rank (see `local_search.Budget`), and its limits.
WORK = 40.0
LEAST_WORK = 8e6
MOST_WORK = 2e8
# Drafts that local search starts from, each by this part slower than the one before.
STARTS = 5
APART = 1e-3
# Tables times ranks for which the planner that counts bytes is asked too.
MOST_FOR_AUTO = 4096
# Largest rectangles of a proposal, as parts of a rank's fair share.
PEAKS = (np.inf, 1.0, 0.5, 0.25, 0.125)
# Where memory is short: (part of all memory that a proposal may take, part of a rank's memory that
# one rectangle may), tried in this order.
TIGHTER = (
    (0.98, 1.0),
    (0.95, 0.5),
    (0.9, 0.25),
    (0.85, 0.125),
    (0.8, 0.06),
    (0.9, 1e-9),
    (1.0, 1e-9),
)


def plan_tables(
    tables: TableSpecs,
    spec: PlanSpec,
    layout: Layout,
    model: CostModel,
    work: Workload,
    capacity: Capacity | None = None,
    fixed: Pins | None = None,
    proposed: Sequence[Plan] = (),
) -> Answer:
    """The plan of fewest seconds that the search finds, and its price.

    spec : a scheme for all tables, or {pattern: scheme}; `auto` tables may have any.
    fixed : rectangles of tables that stay where they are, by number; their schemes are named.
    proposed : plans of others, which the search starts from too.

    Raises ConfigError: unknown scheme, or a pattern that matches no table; PlanError: the tables do
    not fit the capacity; the message says how much they need.
    """
    capacity = capacity or Capacity()
    schemes = choose_schemes(tables, spec)
    check_pins(tables, schemes, work.pins, layout.ranks, fixed)
    task = SearchTask(tables, schemes, layout, model, work, capacity)
    limits = task.limits
    candidates, variants = priced_candidates(task)
    cuts = FreeCuts(task, variants)
    candidates = cuts.proposed(candidates, proposed)
    candidates = cuts.pinned(candidates, fixed or {})
    options, drafts = Filled(task).drafts(candidates, variants)
    ranges = ranges_of(tables, schemes, layout, model, work, options)
    bound = bounded(options, layout, limits, ranges)
    drafts += starts(options, layout, limits, bound.choices, patient=not drafts)
    # a start that needs no machine: the answer is then never worse than the default planner's
    others = [*proposed, *_byte_counting(task, spec, fixed)]
    others_drafts = (draft_of(options, plan, layout, limits) for plan in others)
    drafts += [draft for draft in others_drafts if draft is not None and draft.fits]
    if not drafts:
        raise _does_not_fit(tables, options, limits)
    # by tables and ranks, not by a clock, so that every rank of a run finds the same plan
    total = min(max(WORK * len(tables) * layout.ranks, LEAST_WORK), MOST_WORK)
    # another start may end lower, as local search stops where no single change helps
    begun: list[PlanDraft] = []
    for draft in sorted(drafts, key=lambda draft: draft.value):
        if len(begun) < STARTS and (not begun or draft.value > begun[-1].value * (1.0 + APART)):
            begun.append(draft)
    improved = [improve(draft, total / len(begun)) for draft in begun]
    best = min(improved, key=lambda draft: draft.value)
    return answer_of(best, task, bound.seconds)


def greedy(
    tables: TableSpecs,
    spec: PlanSpec,
    layout: Layout,
    model: CostModel,
    work: Workload,
    capacity: Capacity | None = None,
    fixed: Pins | None = None,
) -> Answer:
    """The plan of `auto.make_plan`, which counts bytes; the model prices it only.

    It knows one limit of a rank, that of all its memories together, and places rows nowhere but in
    fast memory.

    Raises ConfigError and PlanError as `auto.make_plan` does.
    """
    capacity = capacity or Capacity()
    plan = auto.make_plan(
        tables, spec, layout.ranks, layout.ranks_per_node, work, capacity.total or None, fixed
    )
    return answer_of_plan(plan, layout, model, work, capacity, spec, "greedy")


# ---- proposals ----


def affordable(options: Options, peak: float, peak_bytes: Floats) -> Floats:
    """Seconds f64[candidates] of those whose largest rectangle is small enough, else infinite.

    peak : seconds that it may take. peak_bytes : f64[memories]. A table whose candidates are all
    too large keeps those that exceed these limits least.
    """
    excess = np.maximum(options.peak / peak, 1.0)
    limited = np.isfinite(peak_bytes)
    if limited.any():
        fill = options.peak_bytes[:, limited] / np.maximum(peak_bytes[limited], 1.0)
        excess = np.maximum(excess, fill.max(axis=1))
    least = np.minimum.reduceat(excess, options.start[:-1])
    return np.where(excess <= least[options.table], options.seconds.sum(axis=1), np.inf)


def proposals(options: Options, layout: Layout, limits: Floats) -> Iterator[list[Ints]]:
    """Lists of choices i64[tables], each list tighter in memory than the one before."""
    least = cheapest(options, options.seconds.sum(axis=1))
    fair = float(options.seconds[least].sum()) / layout.ranks
    # without limits there is nothing to be tightened
    for full, largest in TIGHTER if np.isfinite(limits).any() else TIGHTER[:1]:
        choices: list[Ints] = []
        for share in PEAKS:
            room = _scaled(limits.max(axis=0), largest)
            cost = affordable(options, max(share * fair, 1e-300), room)
            # less than all memory, since whole items leave gaps on the ranks
            choice = within(options, cost, limits.sum(axis=0) * full)
            if not any((choice == earlier).all() for earlier in choices):
                choices.append(choice)
        yield choices


def _scaled(limits: Floats, share: float) -> Floats:
    """A part of each limit; what has none keeps none."""
    return np.where(np.isfinite(limits), share * np.nan_to_num(limits, posinf=0.0), np.inf)


def starts(
    options: Options,
    layout: Layout,
    limits: Floats,
    choices_of_bound: Sequence[Ints],
    patient: bool = True,
) -> Iterator[PlanDraft]:
    """Drafts that fit: the proposals, and choices on the way to the bound, partitioned.

    All are partitioned by phases, the best of them and whole tables by every partitioner; if
    `patient`, those that do not fit by phases as well.
    """

    def drafts(choices: Sequence[Ints], names: Sequence[str]) -> Iterator[PlanDraft]:
        for choice in choices:
            laid = lay(options, layout, limits, choice)
            if laid is None:
                continue
            for name in names:
                draft = build(options, layout, limits, laid, PARTITIONERS[name])
                if draft is not None:
                    yield draft

    # whole tables in every way, so that no simple planner has a better plan
    yield from drafts([_whole_tables(options)], tuple(PARTITIONERS))
    # rows over all ranks by first fit, so that what fits in this simplest way is always found
    least = limits.min(axis=0)
    # ranks on which no rectangle of a pinned table may be do not limit the others
    least[TOGETHER + 1 :] = np.inf
    for choice in packed(options, _over_all_ranks(options), options.peak_bytes, least):
        yield from drafts([choice], ["greedy_phases"])
    short = is_short(options, limits.sum(axis=0))
    fitting = list(drafts(choices_of_bound, ["greedy_phases"]))
    for choices in proposals(options, layout, limits):
        fitting += drafts(choices, ["greedy_phases"])
        if patient and not fitting:
            # where that one fails, another partitioner may fit
            fitting += drafts(choices, tuple(PARTITIONERS))
        # smaller rectangles may balance better where memory decides how many go on a rank
        if fitting and not short:
            break
    for best in sorted(fitting, key=lambda draft: draft.value)[:1]:
        fitting += drafts([best.choice], tuple(PARTITIONERS))
    yield from fitting


def _byte_counting(task: SearchTask, spec: PlanSpec, fixed: Pins | None) -> list[Plan]:
    """`auto.make_plan`'s plan; none where making it would take long, or it finds none."""
    tables, layout, work = task.tables, task.layout, task.work
    if len(tables) * layout.ranks > MOST_FOR_AUTO:
        return []
    try:
        plan = auto.make_plan(
            tables,
            spec,
            layout.ranks,
            layout.ranks_per_node,
            work,
            task.capacity.total or None,
            fixed,
        )
    except PlanError:
        return []
    return [plan]


def _whole_tables(options: Options) -> Ints:
    """The cheapest uncut candidate of each table on one rank; any where there is none."""
    cost = options.seconds.sum(axis=1)
    uncut = (options.home == RANK) & (options.parts == 1)
    return cheapest(options, np.where(uncut, cost, cost.sum() + cost))


def _over_all_ranks(options: Options) -> Flags:
    """Candidates with the smallest rectangles of their table, rows over all ranks if it has such,
    bool[candidates].
    """
    by_rows = (options.scheme == CODES["row_wise"]) & (options.home == ALL)
    rectangle = options.peak_bytes[:, TOGETHER] * ~by_rows
    return rectangle == np.minimum.reduceat(rectangle, options.start[:-1])[options.table]


def _does_not_fit(tables: TableSpecs, options: Options, limits: Floats) -> PlanError:
    """The error that names the table that needs most of a rank, and what all of them need."""
    room_of_all = limits.sum(axis=0)
    fill = (options.peak_bytes / limits.max(axis=0)).max(axis=1)
    smallest = cheapest(options, fill)
    worst = int(smallest[fill[smallest].argmax()])
    table = tables[int(options.table[worst])]
    need = options.peak_bytes[worst]
    total = options.bytes[smallest].sum(axis=0)
    names = ("hbm", "ddr", "ssd", "all memories")
    limited = np.flatnonzero(np.isfinite(room_of_all)).tolist()
    room = ", ".join(
        f"{int(total[i]):,} bytes in {names[i]} of {int(room_of_all[i]):,}" for i in limited
    )
    bytes_needed = int(max((need[i] for i in limited), default=0))
    return PlanError(
        f"no plan was found that fits: cut finest, all tables take {room}; table {table.name!r} "
        f"({table.rows:,} rows x {table.dim}) needs {bytes_needed:,} on a rank; use more ranks, "
        "fewer rows or columns, row_wise for the large tables, memories below (memory.placement), "
        "or an optimizer with less state (exact_rowwise_adagrad, exact_sgd)"
    )
