"""Which lookups of a sum does a loop lose, or take twice? Sets of them that kernels treat alike.

One, an end, every so many, a border of blocks, what is left after the last whole vector; counted in
the sum itself, or among all lookups that a kernel has sorted. Words hold for sums of any length.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Ints

Mask = NDArray[np.bool_]

MOST_PLACES = 128  # of a lookup in a sum that are tried; of longer sums those at both ends
STRIDES = (2, 3, 4)  # lookups that a loop takes at once, of which any may be treated apart
BLOCKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # lookups that a warp or a block takes
WARPS = (32, 64, 128, 256)  # of sorted lookups, whatever row they are of


class Selection(NamedTuple):
    """Some lookups of a sum."""

    words: str
    mask: Mask  # [n]
    at_end: bool = False  # they are one end of the sum
    vague: str = ""  # words of any such selection, wherever it is


def selections(count: int, begin: int | None = None) -> list[Selection]:
    """Selections of the lookups of a sum: not none of them, nor all of several.

    begin : the place of the first one among all sorted lookups, where that may matter.
    """
    place = np.arange(count)
    chosen = [*_ends(place), *_regular(place)]
    if begin is not None:
        chosen += _sorted(begin + place)
    return [*_single(place), *(some for some in chosen if 0 < some.mask.sum() < count)]


def tried_places(count: int) -> Ints:
    """Places of lookups that are tried."""
    if count <= MOST_PLACES:
        return np.arange(count)
    ends = np.arange(8)
    borders = np.array(BLOCKS)
    near = np.concatenate([ends, borders - 1, borders, count - 1 - ends, count - borders])
    return np.unique(near[(near >= 0) & (near < count)])


def _single(place: Ints) -> Iterator[Selection]:
    one = "one lookup"
    yield Selection("the first lookup", place == 0, vague=one)
    yield Selection("the last lookup", place == place.size - 1, vague=one)
    for k in tried_places(place.size).tolist():
        yield Selection(f"lookup {k} (from 0)", place == k, vague=one)


def _ends(place: Ints) -> Iterator[Selection]:
    for k in tried_places(place.size).tolist():
        yield Selection(f"lookups from {k} (from 0) on", place >= k, True, "lookups at the end")
        yield Selection(f"the first {k} lookups", place < k, True, "lookups at the beginning")
    yield Selection("all lookups but the last", place < place.size - 1, True)


def _regular(place: Ints) -> Iterator[Selection]:
    """Every so many lookups, borders of blocks, and what no whole block takes."""
    count = place.size
    for stride in STRIDES:
        for rest in range(stride):
            yield Selection(f"lookups {stride}k + {rest} (from 0)", place % stride == rest)
    yield Selection("lookups of the second half", place >= (count + 1) // 2)
    inner = (place > 0) & (place < count - 1)
    yield Selection("lookups between the first and the last", inner)
    for size in BLOCKS:
        heads = place % size == 0
        tails = place % size == size - 1
        yield Selection(f"the first lookups of blocks of {size} but the first", heads & (place > 0))
        yield Selection(f"the first lookups of blocks of {size}", heads)
        yield Selection(f"the last lookups of blocks of {size}", tails)
        yield Selection(f"lookups after the last whole {size}", place >= count // size * size, True)
        yield Selection(f"lookups of the last block of {size}", place >= (count - 1) // size * size)
        yield Selection(f"lookups of every second block of {size}", place // size % 2 == 1)


def _sorted(place: Ints) -> Iterator[Selection]:
    """Borders and halves of blocks of all sorted lookups."""
    for size in WARPS:
        where = f"blocks of {size} sorted lookups"
        upper = place % size >= size // 2
        yield Selection(f"the first of {where}", place % size == 0)
        yield Selection(f"the last of {where}", place % size == size - 1)
        yield Selection(f"the second half of {where}", upper)
        yield Selection(
            f"the second half of {where}, but the first of a row", upper & (place > place[0])
        )
        yield Selection(f"lookups in the last of the {where}", place // size == place[-1] // size)
