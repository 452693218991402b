"""Which rows are looked up most often?

With `memory.warm` they are in the caches before the first step.

Counts come from the train data: kept in the dataset since its conversion (`--frequencies`), else
counted now. A code's row is that of the loader, by hash or by vocabulary. Training would bring the
same rows later, so no bit changes.
"""

from functools import cache

import numpy as np

from neocpu.core.types import Ints
from neocpu.ingest.dataset.vocabulary import frequencies
from neocpu.ingest.loader import Loader
from neocpu.tables.embedding.tiered import TieredEmbedding
from neocpu.tables.specs.specs import bags
from neocpu.train.step.world import World


def frequent_rows(loader: Loader, table: int) -> Ints:
    """Rows of a table by the number of their lookups in the data, largest first.

    Rows with equal numbers are ascending.
    """
    row_parts = [np.empty(0, np.int64)]
    count_parts = [np.empty(0, np.int64)]
    for bag in bags(loader.tables):
        # where rows move, nobody knows yet which rows these codes will have
        moves = bag.row_map is not None and bag.row_map.rule == "row"
        if bag.table == table and not moves:
            codes, counts = frequencies(loader.dataset, bag.feature)
            row_parts.append(loader.rows_of(bag, codes))
            count_parts.append(counts)
    # several codes and features may share a row
    rows, positions = np.unique(np.concatenate(row_parts), return_inverse=True)
    total = np.zeros(rows.size, np.int64)
    np.add.at(total, positions, np.concatenate(count_parts))
    # equal counts by row number, so that any rank warms the same rows
    return rows[np.lexsort((rows, -total))]


def warm_caches(world: World, loader: Loader, begun: bool, share: float) -> None:
    """Fill a share of the caches of this rank with the rows that are looked up most often.

    begun : training has begun, so caches wider than their rows stay empty, as a checkpoint leaves
    them: bits depend on which rows they hold.
    """
    tbe = world.embedding.tbe
    if not isinstance(tbe, TieredEmbedding):
        return
    rows_of_table = cache(lambda table: frequent_rows(loader, table))
    for h, shard in enumerate(tbe.shards):
        if begun and world.plan.tables[shard.table].cache_format:
            continue
        lines = tbe.lines(h)
        if lines:
            rows = rows_of_table(shard.table)
            first, end = shard.rows
            shard_rows = rows[(rows >= first) & (rows < end)]
            tbe.warm(h, shard_rows[:lines] - first, share)
