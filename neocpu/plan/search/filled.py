"""Which drafts fill the ranks where memory is short? Those that start the search.

Tables go into the memories where they cost least for their bytes, or else where they fit first;
`fill.py` cuts them to fill the ranks. The best fillings become candidates beside the equal cuts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Flags, Floats
from neocpu.plan.search.cuts import RANK
from neocpu.plan.search.drafts import PlanDraft
from neocpu.plan.search.fill import Filler, Filling, cut_anyhow, draft_of_filling
from neocpu.plan.search.free_cuts import free_candidates
from neocpu.plan.search.options import Options, PricedCuts, SearchTask, assembled, joined
from neocpu.plan.search.prices import is_short, packed, refill, within
from neocpu.plan.tiers.placements import Variant

# Parts of the fast memory that tables may take where they cost least: cuts take some for buffers.
ROOMS = (1.0, 0.9, 0.8, 0.6)
# Fillings whose cuts become candidates.
KEPT = 2


@dataclass(frozen=True)
class Filled:
    """Fillings of the ranks."""

    task: SearchTask

    def drafts(
        self, candidates: PricedCuts, variants: tuple[Variant, ...]
    ) -> tuple[Options, list[PlanDraft]]:
        """(the candidates with the cuts of the best fillings, the drafts of these)."""
        options = assembled(self.task, variants, candidates)
        fillings = list(self._fillings(options))
        if not fillings:
            return options, []
        _, drafts = self._with(candidates, variants, fillings)
        # bytes of caches are rounded up, of each rectangle
        fitting = [number for number, draft in enumerate(drafts) if draft.fits]
        best = sorted(fitting, key=lambda number: drafts[number].value)[:KEPT]
        return self._with(candidates, variants, [fillings[number] for number in best])

    def _fillings(self, options: Options) -> Iterator[Filling]:
        """All fillings that fit; none where no memory is short."""
        budgets = self.task.limits.sum(axis=0)
        cost = options.seconds.sum(axis=1)
        if not is_short(options, budgets):
            return
        filler = Filler(self.task, options)
        fits = False
        seen = set()
        for choices in self._choices(options, cost, budgets):
            for choice in choices:
                # how tables are cut does not matter to a filling, unless they stay so
                key = (*filler.stays(choice).tolist(), *options.variant[choice].tolist())
                fillings = [] if key in seen else list(filler.fillings(choice))
                seen.add(key)
                yield from fillings
                if fillings:
                    fits = True
                    break
        # first fit is slower, and finds what prices miss
        whole = self._whole(options)
        for choice in () if fits else packed(options, whole, options.bytes, budgets):
            yield from filler.fillings(choice)

    def _whole(self, options: Options) -> Flags:
        """Candidates that cut nothing, and those of tables that stay as they are cut,
        bool[candidates].
        """
        named = ~cut_anyhow(self.task.schemes)
        return named[options.table] | (options.home == RANK) & (options.rectangles == 1)

    def _choices(self, options: Options, cost: Floats, budgets: Floats) -> Iterator[Iterator[Ints]]:
        """Choices i64[tables] by what they prefer, each within less and less of the fast memory."""
        whole = self._whole(options)
        uncached = np.array([not any(v.cached) for v in options.variants], bool)[options.variant]
        fast = int(np.isfinite(budgets).argmax())
        rooms = []
        for room in ROOMS:
            rooms.append(budgets.copy())
            rooms[-1][fast] *= room
        for allowed in (True, whole, whole & uncached):
            allowed_cost = np.where(allowed, cost, np.inf)
            yield (within(options, allowed_cost, limits) for limits in rooms)
        # caches take of two memories, and single changes may not lead out of them, but into them
        uncut_cost = np.where(whole, cost, np.inf)
        plain_cost = np.where(whole & uncached, cost, np.inf)
        plain = [within(options, plain_cost, limits) for limits in rooms]
        for choice in plain:
            yield (_refilled(options, uncut_cost, limits, choice) for limits in rooms)

    def _with(
        self, candidates: PricedCuts, variants: tuple[Variant, ...], fillings: Sequence[Filling]
    ) -> tuple[Options, list[PlanDraft]]:
        """(the candidates with the cuts of some fillings, the drafts of these)."""
        cuts = [cut for filling in fillings for cut in filling.cuts.values()]
        added = free_candidates(self.task, cuts, variants)
        options = assembled(self.task, variants, joined(candidates, added))
        # cuts stand behind a table's other candidates, in the order of the fillings
        following = options.start[1:] - np.bincount(
            np.array([cut.table for cut in cuts], np.int64), minlength=len(self.task.tables)
        )
        drafts = []
        for filling in fillings:
            numbers = {}
            for table in filling.cuts:
                numbers[table] = int(following[table])
                following[table] += 1
            draft = draft_of_filling(filling, numbers, options, self.task.layout, self.task.limits)
            drafts.append(draft)
        return options, drafts


def _refilled(options: Options, cost: Floats, budgets: Floats, choice: Ints) -> Ints:
    """A choice with cheaper candidates where the budgets allow it."""
    refilled = choice.copy()
    refill(options, cost, budgets, refilled)
    return refilled
