"""Which placements does every paper compare with? One number per table, and greedy by it.

    random          any rank with room
    dim             columns
    lookup          columns x mean lookups
    size            rows x columns
    size_lookup     columns x mean lookups x log10 rows

(As in DreamShard and NeuroShard.) Tables stay whole: dearest first, each to the rank of the least
sum that has room for it.
"""

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Floats, TableArrays

SEED = 3
HEURISTICS = ("random", "dim", "lookup", "size", "size_lookup")


def prices(name: str, arrays: TableArrays) -> Floats:
    """The number by which a heuristic sorts and sums, f64[tables]; of "random" ones."""
    pooling = arrays.lookups / np.maximum(arrays.bags, 1.0)
    if name == "dim":
        return arrays.dim
    if name == "lookup":
        return arrays.dim * pooling
    if name == "size":
        return arrays.rows * arrays.dim
    if name == "size_lookup":
        return arrays.dim * pooling * np.log10(np.maximum(arrays.rows, 2.0))
    return np.ones_like(arrays.dim)


def place(
    name: str, arrays: TableArrays, sizes: Floats, ranks: int, capacity: float
) -> Ints | None:
    """A rank for each table, i64[tables]; None where a table finds no room.

    sizes : bytes of the tables. capacity : of a rank; inf for no limit.
    """
    price = prices(name, arrays)
    # a fixed seed: all ranks of a run place alike
    rng = np.random.default_rng(SEED)
    random = name == "random"
    order = np.arange(price.size) if random else np.argsort(-price, kind="stable")
    load = np.zeros(ranks)
    size = np.zeros(ranks)
    placed = np.zeros(price.size, np.int64)
    for table in order.tolist():
        room = size + sizes[table] <= capacity
        if not room.any():
            return None
        if random:
            rank = int(rng.choice(np.flatnonzero(room)))
        else:
            rank = int(np.where(room, load, np.inf).argmin())
        placed[table] = rank
        load[rank] += price[table]
        size[rank] += sizes[table]
    return placed
