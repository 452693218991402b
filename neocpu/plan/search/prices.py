"""What is a byte of each memory worth? Prices under which the tables' cheapest candidates fit.

With a price on bytes, tables give way in the order of what they lose: those whose bytes are
demanded least take slower memories or finer cuts first (MTrainS, 2023). The same prices make the
lower bound hold under memory limits (`bound.py`).
"""

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Floats
from neocpu.plan.search.options import Options

# Halvings of the interval in which a price is looked for.
HALVINGS = 30
# Factor from one end of that interval to the next while it is too short.
FACTOR = 8.0


def cheapest(options: Options, cost: Floats) -> Ints:
    """The first candidate of least cost of each table, i64[tables]; cost f64[candidates]."""
    heads = options.start[:-1]
    least = np.minimum.reduceat(cost, heads)
    # there is no argmin by segment; ties go to the first candidate, as on every other rank
    equal = np.flatnonzero(cost == least[options.table])
    return equal[np.searchsorted(options.table[equal], np.arange(heads.size))]


def memory_prices(options: Options, cost: Floats, budgets: Floats) -> Floats:
    """Seconds per byte f64[memories] with which the cheapest candidates keep within budgets.

    cost : f64[candidates] seconds, infinite for those that are left out. budgets : f64[memories],
    bytes of all ranks. Each price is the least that does, given those found before it; where none
    does it stays high.
    """
    prices = np.zeros(budgets.size)

    def taken(memory: int) -> float:
        choice = cheapest(options, cost + options.bytes @ prices)
        return float(options.bytes[choice, memory].sum())

    finite = cost[np.isfinite(cost)]
    scale = max(float(finite.max(initial=0.0)), 1e-12)
    # A price may drive tables into the next memory, so the first one is looked at again at last.
    for memory in (*range(budgets.size), 0):
        budget = float(budgets[memory])
        prices[memory] = 0.0
        if not np.isfinite(budget) or taken(memory) <= budget:
            continue
        low = 0.0
        # at which a full budget costs as much as the dearest candidate
        high = scale / max(budget, 1.0)
        # A byte may cost as much as all seconds: no candidate changes beyond that.
        while high <= scale:
            prices[memory] = high
            if taken(memory) <= budget:
                break
            low = high
            high *= FACTOR
        for _ in range(HALVINGS):
            prices[memory] = (low + high) / 2
            if taken(memory) <= budget:
                high = prices[memory]
            else:
                low = prices[memory]
        # the end of the interval at which all fits, if any did
        prices[memory] = high
    return prices
