"""A planner by hand: the largest first, each to the rank that has the least."""

import numpy as np


def place(seconds: np.ndarray, sizes: np.ndarray, ranks: int, room: int) -> np.ndarray:
    """Give every table to a rank, so that the slowest rank is as quick as you can make it.

    seconds : f64[T], how long a step works on each table.
    sizes : int64[T], bytes of each table.
    room : bytes that a rank has; the tables fit.
    Returns the rank of each table, int64[T]. The sum of seconds on the fullest rank should be no
    more than what the greedy way gives: tables by falling seconds (the lower number first where
    equal), each to the rank with the least seconds that has room for it (the lower rank first).
    """
    load = np.zeros(ranks)
    free = np.full(ranks, room)
    owner = np.empty(len(seconds), np.int64)
    for table in np.argsort(-seconds, kind="stable"):
        rank = np.argmin(np.where(free >= sizes[table], load, np.inf))
        owner[table] = rank
        load[rank] += seconds[table]
        free[rank] -= sizes[table]
    return owner
