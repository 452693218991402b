"""What would a step take if one table were kept in another way, the others staying where they are?

Every candidate of the table (`options.py`) is tried at its best home: rectangles that may go to any
rank go one by one to where the step grows least, those of a node to the best node. Ranks without
room are avoided where others have it; what is missing all the same is told.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.sharding.plan import AUTO
from neocpu.plan.cost.seconds import SCHEME_NAMES, CostModel, slowness_of, step_seconds
from neocpu.plan.cost.work import Floats, Rectangles, on_rows, whole_rectangles
from neocpu.plan.search.answer import Alternative, Answer
from neocpu.plan.search.cuts import NODE, RANK
from neocpu.plan.search.drafts import Spread, spread, sums_by_rank
from neocpu.plan.search.free_cuts import FreeCut, cut_of, cut_of_candidate, free_candidates
from neocpu.plan.search.options import (
    CODES,
    Options,
    SearchTask,
    assembled,
    joined,
    priced_candidates,
)
from neocpu.plan.tiers.limits import bytes_of, rank_limits, with_variants
from neocpu.plan.tiers.placements import Capacity

# Seconds that are added for each part of a rank's memory that is missing, so that ranks with room
# come first.
NO_ROOM = 1e6


@dataclass(frozen=True)
class Trial:
    """One way to keep a table: its price.

    candidate : its number in the options, -1 for the way of the answer. phases : of a step with it,
    seconds of the slowest rank f64[phases]. own : seconds of the table's rectangles on all ranks
    together, f64[phases]. ranks : that hold it.
    """

    alternative: Alternative
    candidate: int
    phases: Floats
    own: Floats
    ranks: int

    @property
    def fits(self) -> bool:
        """Is there memory for it?"""
        return self.alternative.missing_bytes == 0

    @property
    def words(self) -> str:
        """The scheme, with its columns where it cuts them, and the placement."""
        alternative = self.alternative
        cut = "column" in alternative.scheme or alternative.scheme == "grid_shard"
        columns = f" of {alternative.columns} columns" if cut else ""
        by_rows = "row" in alternative.scheme or alternative.scheme == "grid_shard"
        count = f" in {alternative.rectangles}" if by_rows else ""
        return f"{alternative.scheme}{columns}{count}, {alternative.placement}"


class Trials:
    """Trials of the tables of an answer.

    answer : of a planner. capacity : under which it was made.
    model : prices in its place, such as those of other lookups; None: the answer's.
    """

    def __init__(self, answer: Answer, capacity: Capacity, model: CostModel | None = None) -> None:
        self.answer = answer
        self.capacity = capacity
        self.model = model or answer.model
        slowness = slowness_of(self.model)
        # f64[ranks, 1]
        self.slow = np.ones((answer.layout.ranks, 1)) if slowness is None else slowness[:, None]
        self.limits = rank_limits(capacity, answer.plan.tables, answer.work, answer.layout.ranks)

    @cached_property
    def options(self) -> Options:
        """The candidates of all tables, and the answer's ways that are none of them."""
        answer = self.answer
        tables = answer.plan.tables
        schemes = (AUTO,) * len(tables)
        task = SearchTask(tables, schemes, answer.layout, self.model, answer.work, self.capacity)
        candidates, variants = priced_candidates(task)
        options = assembled(task, variants, candidates)
        free = list(self._free_cuts(options))
        if not free:
            return options
        added = free_candidates(task, free, variants)
        return assembled(task, variants, joined(candidates, added))

    def _free_cuts(self, options: Options) -> Iterator[FreeCut]:
        """The answer's tables whose rectangles no candidate has."""
        answer = self.answer
        # the first rectangle of a table tells its variant
        first = np.searchsorted(answer.rectangles.table, np.arange(len(answer.plan.tables)))
        for table in range(len(answer.plan.tables)):
            shards = answer.plan.of_table(table)
            share = float(answer.rectangles.share[first[table]])
            code = CODES[answer.plan.schemes[table]]
            cut = cut_of([shard.shape for shard in shards])
            wanted = (code, answer.placements[table], share, cut)
            same = (
                wanted
                == (
                    int(options.scheme[candidate]),
                    options.placement(candidate),
                    options.variants[int(options.variant[candidate])].share,
                    cut_of_candidate(options, candidate),
                )
                for candidate in options.of_table(table)
                if options.rectangles[candidate] == len(shards)
            )
            if not any(same):
                kinds = [(kind.name, kind.share) for kind in options.variants]
                variant = kinds.index((answer.placements[table], share))
                yield FreeCut(answer.plan.schemes[table], shards, variant)

    @cached_property
    def rectangle_seconds(self) -> Floats:
        """Seconds of the answer's rectangles by phase, f64[n, phases]."""
        return self.model.seconds(self.answer.rectangles)

    @cached_property
    def rectangle_bytes(self) -> Floats:
        """Bytes of the answer's rectangles by memory, f64[n, 4] (`options.bytes_of`)."""
        answer = self.answer
        rectangles = answer.rectangles
        variants = self.options.variants
        number: dict[tuple[str, float], int] = {}
        for index, kind in enumerate(variants):
            number.setdefault((kind.name, kind.share), index)
        names = [answer.placements[t] for t in rectangles.table.tolist()]
        variant = np.array(
            [number[name, share] for name, share in zip(names, rectangles.share.tolist())], np.int64
        )
        return bytes_of(answer.plan.tables, rectangles, variants, variant, answer.work)

    def of_table(self, table: int, candidates: Iterable[int] | None = None) -> list[Trial]:
        """All ways to keep a table, those that fit first, cheapest first.

        candidates : only these.
        """
        options = self.options
        seconds, size = self._others(table)
        numbers = options.of_table(table) if candidates is None else candidates
        trials = [self._trial(candidate, seconds, size) for candidate in numbers]
        return sorted(trials, key=_cheapest_first)

    def of_schemes(self, table: int) -> list[Trial]:
        """The cheapest of each scheme, width of columns and placement, and the answer's own way, in
        `of_table`'s order.
        """
        seen = set()
        best = []
        kept = of_answer(self, table)
        for trial in self.of_table(table):
            alternative = trial.alternative
            kind = (alternative.scheme, alternative.columns, alternative.placement)
            if kind not in seen or is_same(trial, kept):
                seen.add(kind)
                best.append(trial)
        return best

    def repriced(
        self, table: int, trials: Iterable[Trial], model: CostModel, others: CostModel | None = None
    ) -> list[Trial]:
        """The same ways where the table costs what another model says, cheapest first.

        others : the model of the other tables and of what is fixed; None: as it was.
        """
        chosen = list(trials)
        phases = self.options.piece_phases.copy()
        phases[self._pieces(table)] = model.seconds(self._piece_rectangles(table))
        options = self.options._replace(piece_phases=phases)
        under = Trials(self.answer, self.capacity, others or self.model)
        under.options = options
        # bytes do not depend on the model, so what is cached is handed on; seconds only where they
        # stay
        under.rectangle_bytes = self.rectangle_bytes
        if others is None:
            under.rectangle_seconds = self.rectangle_seconds
        return under.of_table(table, [trial.candidate for trial in chosen])

    # ---- parts ----

    def _pieces(self, table: int) -> slice:
        candidates = self.options.of_table(table)
        piece = self.options.piece
        return slice(int(piece[candidates.start]), int(piece[candidates.stop]))

    def _piece_rectangles(self, table: int) -> Rectangles:
        """The pieces of all candidates of a table, as rectangles on rank 0."""
        options = self.options
        pieces = self._pieces(table)
        # the last candidate that begins at the piece or before it
        owner = np.searchsorted(options.piece, np.arange(pieces.start, pieces.stop), "right") - 1
        rectangles = whole_rectangles(
            table=np.full(owner.size, table),
            scheme=options.scheme[owner],
            rows=options.rows[pieces],
            width=options.width[pieces],
        )
        work = self.answer.work
        rectangles = on_rows(rectangles, self.answer.plan.tables, work, options.first_row[pieces])
        return with_variants(rectangles, options.variants, options.variant[owner])

    def _others(self, table: int) -> tuple[Floats, Floats]:
        """(seconds f64[ranks, phases], bytes f64[ranks, 4]) of all tables but one."""
        rectangles = self.answer.rectangles
        kept = rectangles.table != table
        ranks = rectangles.rank[kept]
        count = self.answer.layout.ranks
        rows = np.flatnonzero(kept)
        return (
            sums_by_rank(self.rectangle_seconds, rows, ranks, count) * self.slow,
            sums_by_rank(self.rectangle_bytes, rows, ranks, count),
        )

    def _trial(self, candidate: int, seconds: Floats, size: Floats) -> Trial:
        """A candidate at its best home beside other tables' loads."""
        options = self.options
        layout = self.answer.layout
        limits = self.limits
        if options.home[candidate] == RANK:
            homes = [self._on_ranks(candidate, seconds, size)]
        elif options.home[candidate] == NODE:
            nodes = range(int(options.first_node[candidate]), int(options.last_node[candidate]))
            homes = [spread(options, candidate, node, layout) for node in nodes]
        else:
            homes = [spread(options, candidate, 0, layout)]
        best: tuple[tuple[float, float], Spread, Floats] | None = None
        for home in homes:
            loads = seconds.copy()
            taken = size.copy()
            np.add.at(loads, home.ranks, options.piece_phases[home.pieces] * self.slow[home.ranks])
            np.add.at(taken, home.ranks, options.piece_bytes[home.pieces])
            missing = float(np.maximum(taken - limits, 0.0).max())
            # what fits comes before what is fast
            price = (missing, step_seconds(self.model, loads))
            if best is None or price < best[0]:
                best = (price, home, loads)
        assert best is not None
        (missing, price_seconds), home, loads = best
        alternative = Alternative(
            scheme=SCHEME_NAMES[int(options.scheme[candidate])],
            cut=cut_of_candidate(options, candidate),
            placement=options.placement(candidate),
            home=int(home.ranks[0]),
            seconds=price_seconds,
            missing_bytes=int(np.ceil(missing)),
        )
        return Trial(
            alternative=alternative,
            candidate=candidate,
            phases=loads.max(axis=0),
            own=options.piece_phases[home.pieces].sum(axis=0),
            ranks=np.unique(home.ranks).size,
        )

    def _on_ranks(self, candidate: int, seconds: Floats, size: Floats) -> Spread:
        """Rectangles one by one, each to the rank where the step grows least."""
        options = self.options
        pieces: Ints = options.repeated(candidate)
        loads = seconds.copy()
        taken = size.copy()
        limits = self.limits
        limited = np.isfinite(limits).any(axis=0)
        ranks = np.zeros(pieces.size, np.int64)
        for index, piece in enumerate(pieces.tolist()):
            grown = loads + options.piece_phases[piece] * self.slow
            if self.model.synchronised:
                growth = np.maximum(grown - loads.max(axis=0), 0.0).sum(axis=1)
            else:
                growth = np.maximum(grown.sum(axis=1) - loads.sum(axis=1).max(), 0.0)
            excess = np.maximum(taken + options.piece_bytes[piece] - limits, 0.0)
            # of ranks without room the one that lacks least, so that missing bytes are told at
            # their least
            growth += NO_ROOM * (excess[:, limited] / limits[:, limited]).sum(axis=1)
            # of ranks where nothing grows, the one that has least to do
            order = np.lexsort((grown.sum(axis=1), growth))
            ranks[index] = order[0]
            loads[order[0]] = grown[order[0]]
            taken[order[0]] += options.piece_bytes[piece]
        return Spread(ranks, pieces)


def of_answer(trials: Trials, table: int) -> Trial:
    """The way that an answer keeps a table, priced as the answer has it."""
    answer = trials.answer
    own_rectangles = answer.rectangles.table == table
    shards = answer.plan.of_table(table)
    alternative = Alternative(
        scheme=answer.plan.schemes[table],
        cut=cut_of([shard.shape for shard in shards]),
        placement=answer.placements[table],
        home=min(shard.rank for shard in shards),
        seconds=answer.seconds,
    )
    return Trial(
        alternative=alternative,
        candidate=-1,
        phases=answer.loads.max(axis=0),
        own=trials.rectangle_seconds[own_rectangles].sum(axis=0),
        ranks=len({shard.rank for shard in shards}),
    )


def is_same(trial: Trial, kept: Trial) -> bool:
    """Is it the way in which the answer keeps the table, wherever it is?"""
    kind = replace(trial.alternative, home=0, seconds=0.0, missing_bytes=0)
    return kind == replace(kept.alternative, home=0, seconds=0.0, missing_bytes=0)


def _cheapest_first(trial: Trial) -> tuple[bool, int, float, float]:
    """Those that fit, then by the step, then by the work of all ranks."""
    alternative = trial.alternative
    # steps that differ by rounding are equal
    step = float(f"{alternative.seconds:.9g}")
    return not trial.fits, alternative.missing_bytes, step, float(trial.own.sum())
