"""What would another cut of one table cost, if all other tables stayed where they are?"""

from dataclasses import replace

import numpy as np

from neocpu.parallel.plan import AUTO
from neocpu.planner.answer import Alternative, Answer
from neocpu.planner.cuts import RANK
from neocpu.planner.drafts import PlanDraft, spread
from neocpu.planner.insertion import Ground, Insertion, insert
from neocpu.planner.local_search import LEVELS
from neocpu.planner.norms import Budget, Norm
from neocpu.planner.options import Options, bytes_of, options_of
from neocpu.planner.seconds import SCHEME_NAMES, step_seconds
from neocpu.planner.work import Floats, Ints, Rectangles


def alternatives(answer: Answer, table: int) -> list[Alternative]:
    """The other options of a table, each in its best home, cheapest first.

    Options that do not fit are priced as if they did, and say how many bytes the fullest rank
    lacks.
    """
    options = _options(answer, table)
    loads = _loads_without(answer, table)
    base = _without(answer, table, options, loads)
    chosen = _chosen(answer, table)
    priced = [
        _priced(answer, base, loads, candidate)
        for candidate in options.of_table(table)
        if _kind(options, candidate) != chosen
    ]
    return sorted(priced, key=lambda other: (other.seconds, other.scheme, other.columns))


def _options(answer: Answer, table: int) -> Options:
    """Options of one table; others have none."""
    tables = answer.plan.tables
    schemes = [AUTO if number == table else "" for number in range(len(tables))]
    return options_of(tables, schemes, answer.layout, answer.model, answer.work, answer.budget)


def _kind(options: Options, candidate: int) -> tuple[str, int, str, float]:
    """(scheme, column blocks, placement, share of rows in fast memory) of a candidate."""
    return (
        SCHEME_NAMES[int(options.scheme[candidate])],
        int(options.parts[candidate]),
        options.placement(candidate),
        options.variants[int(options.variant[candidate])].share,
    )


def _chosen(answer: Answer, table: int) -> tuple[str, int, str, float]:
    """The same of what the table has."""
    blocks = len({shard.cols for shard in answer.plan.of_table(table)})
    share = float(answer.rectangles.share[answer.rectangles.table == table][0])
    return answer.plan.schemes[table], blocks, answer.placements[table], share


def _rectangles_of(answer: Answer, table: int) -> Rectangles:
    """The rectangles of a table."""
    ours = answer.rectangles.table == table
    return Rectangles(*(column[ours] for column in answer.rectangles))


def _loads_without(answer: Answer, table: int) -> Floats:
    """Seconds of the ranks without a table, f64[ranks, phases]."""
    rectangles = _rectangles_of(answer, table)
    loads = answer.loads.copy()
    np.subtract.at(loads, rectangles.rank, answer.model.seconds(rectangles))
    # what rounding leaves of a phase that no other table has
    return np.where(loads > 1e-12 * answer.loads.max(axis=0), loads, 0.0)


def _without(answer: Answer, table: int, options: Options, loads: Floats) -> PlanDraft:
    """A draft of all tables but one, of which only the loads are known."""
    rectangles = _rectangles_of(answer, table)
    if answer.model.synchronised and options.active.size:
        seconds = loads[:, options.active]
    else:
        seconds = loads.sum(axis=1, keepdims=True)
    memory = np.concatenate(
        [answer.memory, answer.memory.sum(axis=1, keepdims=True)], axis=1
    ).astype(np.float64)
    share = float(rectangles.share[0])
    same = [v.name == answer.placements[table] and v.share == share for v in options.variants]
    variant = np.full(rectangles.table.size, int(np.argmax(same)))
    size = bytes_of(answer.plan.tables, rectangles, options.variants, variant, answer.work)
    np.subtract.at(memory, rectangles.rank, size)
    none = np.zeros(0, np.int64)
    tables = len(answer.plan.tables)
    return PlanDraft(
        options=options,
        layout=answer.layout,
        limits=answer.budget.limits,
        choice=np.zeros(tables, np.int64),
        node=np.zeros(tables, np.int64),
        item_table=none,
        item_piece=none,
        item_rank=none,
        seconds=seconds,
        bytes=np.maximum(memory, 0.0),
    )


def _priced(answer: Answer, base: PlanDraft, loads: Floats, candidate: int) -> Alternative:
    """A candidate in its best home; loads : f64[ranks, phases] of all other tables."""
    inserted = _inserted(base, candidate)
    if inserted is None:
        anywhere = replace(base, limits=np.full(base.limits.size, np.inf))
        inserted = _inserted(anywhere, candidate)
    assert inserted is not None
    options = base.options
    ranks, pieces = _rectangles(base, inserted)
    loads = loads.copy()
    size = base.bytes.copy()
    np.add.at(loads, ranks, options.piece_phases[pieces])
    np.add.at(size, ranks, options.piece_bytes[pieces])
    missing = np.where(np.isfinite(base.limits), size - base.limits, 0.0).max()
    return Alternative(
        scheme=SCHEME_NAMES[int(options.scheme[candidate])],
        columns=int(options.width[options.pieces(candidate)].max()),
        placement=options.placement(candidate),
        home=int(ranks[0]),
        seconds=step_seconds(answer.model, loads),
        missing_bytes=max(int(np.ceil(missing)), 0),
    )


def _inserted(base: PlanDraft, candidate: int) -> Insertion | None:
    """Where the candidate goes best; None where it does not fit."""
    norm = Norm(base, LEVELS[-1])
    ground = Ground(base.seconds, base.bytes, norm.powers, norm.sums)
    return insert(norm, ground, candidate, Budget(np.inf))


def _rectangles(base: PlanDraft, inserted: Insertion) -> tuple[Ints, Ints]:
    """(ranks, pieces) of an inserted candidate's rectangles."""
    options = base.options
    if options.home[inserted.candidate] == RANK:
        return inserted.ranks, options.repeated(inserted.candidate)
    return spread(options, inserted.candidate, inserted.node, base.layout)
