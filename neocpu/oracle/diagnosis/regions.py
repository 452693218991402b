"""Which places have something in common? Columns and rows by their number, told in words.

Halves, every so many, blocks of a vector or a warp, all from one on, what no whole vector takes.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Ints

Mask = NDArray[np.bool_]
FROM = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
WHOLE = (4, 8, 16, 32, 64, 128)  # columns that a vector or a warp takes
PERIODS = (2, 3, 4)
SIZES = (1, 2, 4, 8, 16, 32)  # of a block, one of so many of which is meant
MOST_SHARE = 0.8  # of all places, that words may hold for and still say something
ORDINALS = ("first", "second", "third", "fourth")

Predicate = Callable[[Ints, int], Mask]  # of places, and of how many there are


def _predicates(noun: str) -> dict[str, Predicate]:
    """What may be told of places (columns, rows), by its words."""
    predicates: dict[str, Predicate] = {
        f"the first {noun}": lambda k, n: k == 0,
        f"the last {noun}": lambda k, n: k == n - 1,
        f"the first half of the {noun}s": lambda k, n: k < n // 2,
        f"the second half of the {noun}s": lambda k, n: k >= n // 2,
        f"even {noun}s": lambda k, n: k % 2 == 0,
        f"odd {noun}s": lambda k, n: k % 2 == 1,
    }
    for size in SIZES:
        for period in PERIODS:
            for rest in range(period):
                words = f"the {ORDINALS[rest]} of every {period} times {size} {noun}s"
                if size == 1:
                    words = f"{noun}s {period}k + {rest}"
                elif (period, rest) == (2, 1):
                    words = f"every second {size} {noun}s"
                predicates[words] = partial(_regular, size, period, rest)
    for begin in FROM:
        predicates[f"{noun}s from {begin} on"] = partial(_from, begin)
        predicates[f"the first {begin} {noun}s"] = partial(_until, begin)
    for size in WHOLE:
        predicates[f"{noun}s after the last whole {size}"] = partial(_beyond_whole, size)
    return predicates


def _regular(size: int, period: int, rest: int, place: Ints, count: int) -> Mask:
    return np.asarray(place // size % period == rest)


def _from(begin: int, place: Ints, count: int) -> Mask:
    return np.asarray(place >= begin)


def _until(end: int, place: Ints, count: int) -> Mask:
    return np.asarray(place < end)


def _beyond_whole(size: int, place: Ints, count: int) -> Mask:
    return np.asarray(place >= count // size * size)


COLUMNS = _predicates("column")
ROWS = _predicates("row")


def in_common(predicates: dict[str, Predicate], places: Sequence[tuple[Ints, int]]) -> str:
    """The words that hold for all places, and for the fewest others; "" for none.

    places : and of how many they are.
    """
    best = ""
    fewest = MOST_SHARE
    if not places:  # outputs without rows and columns
        return ""
    for words, holds in predicates.items():
        shares = []
        for place, size in places:
            inside = holds(np.arange(size), size)
            if not inside[place].all():
                break
            shares.append(inside.mean())
        else:
            share = float(np.mean(shares))
            if share < fewest:
                fewest = share
                best = words
    return best


def columns_in_common(blocks: Sequence[Mask]) -> str:
    """What the wrong columns of rows [n, D] have in common; "" for nothing."""
    words = in_common(COLUMNS, [(np.flatnonzero(b.any(0)), b.shape[1]) for b in blocks])
    return f"all in {words}" if words else ""


def rows_in_common(blocks: Sequence[Mask]) -> str:
    """What the wrong rows, or samples, have in common; "" for nothing."""
    words = in_common(ROWS, [(np.flatnonzero(b.any(1)), b.shape[0]) for b in blocks])
    return f"only {words} (or samples) of a table or feature" if words else ""
