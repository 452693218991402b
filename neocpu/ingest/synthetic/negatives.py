"""Which items did a user not choose? Drawn beside those that a log of choices has.

A negative is never an item that the user chose anywhere in the log, and none is drawn twice beside
one choice. Draws are Philox words of (seed, number of the choice, number of the negative), so they
depend on nothing else.
"""

import numpy as np

from neocpu.core.types import Doubles, Ints
from neocpu.kernels.twins.numbers.philox import GENERATOR, random_words64, tensor_key

UNIFORM = "uniform"
POPULARITY = "popularity"  # to the power of 3/4, as in word2vec (Mikolov et al. 2013)
WAYS = (UNIFORM, POPULARITY)
ATTEMPTS = 16  # draws of one negative before the items that are left are listed
UNIT = 2.0**-53


def draw_negatives(
    users: Ints, items: Ints, per: int, way: str = UNIFORM, seed: int = 1
) -> tuple[Ints, Ints]:
    """Negatives of choices: which choice each stands beside, i64[m] ascending, and its item.

    users, items : i64[n] of each choice, numbered from 0. per : negatives of a choice; fewer where
    a user left fewer items. way : "uniform", or by "popularity".
    """
    count = int(items.max()) + 1 if items.size else 0
    weights = np.ones(count)
    if way == POPULARITY:
        root = np.sqrt(np.bincount(items, minlength=count).astype(np.float64))
        # square roots are rounded alike on every machine, powers are not
        weights = root * np.sqrt(root)
    chosen = np.full((users.size, per), -1, np.int64)
    seen = np.unique(users * count + items)
    key = tensor_key(seed, GENERATOR, f"negatives {way}")
    for column in range(per):
        pending = np.arange(users.size, dtype=np.int64)
        for attempt in range(ATTEMPTS):
            drawn = _draw(weights, _uniform(key, pending, column, attempt))
            known = np.isin(users[pending] * count + drawn, seen)
            known |= (chosen[pending, :column] == drawn[:, None]).any(axis=1)
            chosen[pending[~known], column] = drawn[~known]
            pending = pending[known]
            if not pending.size:
                break
        shares = _uniform(key, pending, column, ATTEMPTS)
        for row, share in zip(pending.tolist(), shares):
            left = np.ones(count, bool)
            low, high = np.searchsorted(seen, [users[row] * count, (users[row] + 1) * count])
            left[seen[low:high] - users[row] * count] = False
            left[chosen[row, :column][chosen[row, :column] >= 0]] = False
            if left.any():
                chosen[row, column] = _draw(np.where(left, weights, 0.0), np.array([share]))[0]
    beside, column_of = np.nonzero(chosen >= 0)
    return beside.astype(np.int64), chosen[beside, column_of]


def _uniform(key: np.uint64, rows: Ints, column: int, step: int) -> Doubles:
    """Numbers f64[n] in [0, 1) of these rows."""
    words = np.empty(rows.size, np.uint64)
    random_words64(key, rows, 2 * column, step, words)
    return (words >> np.uint64(11)).astype(np.float64) * UNIT


def _draw(weights: Doubles, shares: Doubles) -> Ints:
    """Items i64[n] of shares of all weights."""
    ends = np.add.accumulate(weights)
    # right: a share on the end of an item belongs to the next that has a weight
    drawn: Ints = np.searchsorted(ends, shares * ends[-1], side="right")
    return np.minimum(drawn, np.flatnonzero(weights)[-1])
