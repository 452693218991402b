"""Which rows are asked for most? With `memory.warm` they are in the caches before the first step.

Counts come from the train data: kept in the dataset since its conversion (`--frequencies`), else
counted now. A code's row is that of the loader, by hash or by vocabulary. A row that is warm is the
row that would have come later: no bit changes.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.specs import bags
from neocpu.embedding.tiered import TieredEmbedding
from neocpu.ingest.loader import Loader
from neocpu.ingest.vocabulary import frequencies
from neocpu.training.world import World

Ints = NDArray[np.int64]


def wanted_rows(loader: Loader, table: int) -> Ints:
    """Rows of a table that the data ask for most, most frequent first, equal ones ascending."""
    found = [np.empty(0, np.int64)]
    counts = [np.empty(0, np.int64)]
    for bag in bags(loader.tables):
        if bag.table == table:
            codes, often = frequencies(loader.dataset, bag.feature)
            found.append(loader.rows_of(bag, codes))
            counts.append(often)
    rows, place = np.unique(np.concatenate(found), return_inverse=True)
    total = np.zeros(rows.size, np.int64)
    np.add.at(total, place, np.concatenate(counts))
    return rows[np.lexsort((rows, -total))]


def warm_caches(world: World, loader: Loader, begun: bool = False) -> None:
    """Fill the caches of this rank with the rows that are asked for most.

    Caches wider than their rows stay as a checkpoint leaves them, empty, if training has `begun`:
    bits depend on them.
    """
    tbe = world.embedding.tbe
    if not isinstance(tbe, TieredEmbedding):
        return
    wanted = cache(lambda table: wanted_rows(loader, table))
    for h, shard in enumerate(tbe.shards):
        if begun and world.plan.tables[shard.table].cache_format:
            continue
        if room := tbe.lines(h):
            rows, (first, last) = wanted(shard.table), shard.rows
            tbe.warm(h, rows[(rows >= first) & (rows < last)][:room] - first)
