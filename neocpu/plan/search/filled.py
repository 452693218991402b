"""Which drafts fill the ranks where memory is short? Those that start the search.

Tables go into the memories where they cost least for their bytes, or else where they fit first;
`fill.py` cuts them to fill the ranks. The best fillings become candidates beside the equal cuts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.parallel.sharding.plan import AUTO
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import CostModel
from neocpu.plan.cost.work import Floats, Workload
from neocpu.plan.search.cuts import RANK
from neocpu.plan.search.drafts import PlanDraft
from neocpu.plan.search.fill import Filler, Filling, draft_of_filling
from neocpu.plan.search.free_cuts import free_candidates
from neocpu.plan.search.options import Options, PricedCuts, assembled, joined
from neocpu.plan.search.prices import cheapest, packed, within
from neocpu.plan.tiers.placements import Variant
from neocpu.tables.specs.specs import TableSpec

# Part of all memory of a kind from which on it is short.
SHORT = 0.5
# Part of all memory that tables may take where they cost least.
ROOM = 0.98
# Fillings whose cuts become candidates.
KEPT = 2


@dataclass(frozen=True)
class Filled:
    """Fillings of the ranks; the fields are those of the search."""

    tables: Sequence[TableSpec]
    schemes: Sequence[str]
    layout: Layout
    model: CostModel
    work: Workload
    limits: Floats

    def drafts(
        self, candidates: PricedCuts, variants: tuple[Variant, ...]
    ) -> tuple[Options, list[PlanDraft]]:
        """(the candidates with the cuts of the best fillings, the drafts of these)."""
        options = assembled(self.tables, variants, candidates, self.model)
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
        budgets = self.limits.sum(axis=0)
        cost = options.seconds.sum(axis=1)
        taken = options.bytes[cheapest(options, cost)].sum(axis=0)
        if not (taken > SHORT * budgets).any():
            return
        filler = Filler(
            self.tables, self.schemes, self.layout, self.model, self.work, self.limits, options
        )
        named = np.array([scheme != AUTO for scheme in self.schemes], bool)
        uncut = (options.home == RANK) & (options.rectangles == 1)
        whole = uncut | named[options.table]
        uncached = np.array([not any(variant.cached) for variant in options.variants], bool)
        choices = [
            within(options, cost, budgets * ROOM),
            within(options, np.where(whole, cost, np.inf), budgets),
            # caches take of two memories, and single changes may not lead out of them
            within(options, np.where(whole & uncached[options.variant], cost, np.inf), budgets),
        ]
        fits = False
        seen = set()
        for choice in choices:
            # how tables are cut does not matter to a filling, unless they stay so
            key = (*filler.stays(choice).tolist(), *options.variant[choice].tolist())
            if key in seen:
                continue
            seen.add(key)
            for filling in filler.fillings(choice):
                fits = True
                yield filling
        # first fit is slower, and finds what prices miss
        for choice in () if fits else packed(options, whole, options.bytes, budgets):
            yield from filler.fillings(choice)

    def _with(
        self,
        candidates: PricedCuts,
        variants: tuple[Variant, ...],
        fillings: Sequence[Filling],
    ) -> tuple[Options, list[PlanDraft]]:
        """(the candidates with the cuts of some fillings, the drafts of these)."""
        cuts = [cut for filling in fillings for cut in filling.cuts.values()]
        added = free_candidates(self.tables, cuts, variants, self.model, self.work)
        options = assembled(self.tables, variants, joined(candidates, added), self.model)
        # cuts stand behind a table's other candidates, in the order of the fillings
        following = options.start[1:] - np.bincount(
            np.array([cut.table for cut in cuts], np.int64), minlength=len(self.tables)
        )
        drafts = []
        for filling in fillings:
            numbers = {}
            for table in filling.cuts:
                numbers[table] = int(following[table])
                following[table] += 1
            drafts.append(draft_of_filling(filling, numbers, options, self.layout, self.limits))
        return options, drafts
