"""Which rows of a huge table are there, and which were updated since the last checkpoint? Marks,
where each row has a byte anyway; else lists of row numbers.

The bytes of marks lie in a mapping whose untouched pages take no memory; but to read them takes
minutes where a table has 10^12 rows. So there is a byte more for each PAGE rows, which says whether
any of them is marked.

The rows of a step arrive ascending and distinct. A list is sorted and its repeats are dropped once
the rows that were added outnumber those of the last sort: a row that is updated often costs a few
bytes for a while and a sort now and then.
"""

from collections.abc import Callable, Sequence

import numpy as np

from neocpu.core.types import Bytes, Ints
from neocpu.kernels.records import Segments

PAGE = 4096  # rows
TOGETHER = 4096  # pages that are looked through at a time, where there are gaps between them


def pages_of(rows: int) -> int:
    """Pages that so many rows have."""
    return -(-rows // PAGE)


def marked(marks: Bytes, pages: Ints, first: int, end: int) -> Ints:
    """Marked rows first <= i64[n] < end, ascending.

    marks : u8[whole pages]. pages : i64[p], those that have any, ascending.
    """
    numbers = pages[slice(*np.searchsorted(pages, [first // PAGE, pages_of(end)]))]
    if first >= end or not numbers.size:
        return np.empty(0, np.int64)
    if numbers.size == numbers[-1] - numbers[0] + 1:
        lo = max(first, int(numbers[0]) * PAGE)
        return np.flatnonzero(marks[lo : min(end, int(numbers[-1] + 1) * PAGE)]) + lo
    by_page = marks.reshape(-1, PAGE)
    runs = []
    for at in range(0, numbers.size, TOGETHER):
        part = numbers[at : at + TOGETHER]
        places = np.flatnonzero(by_page[part])
        runs.append(part[places // PAGE] * PAGE + places % PAGE)
    rows = np.concatenate(runs)
    return rows[slice(*np.searchsorted(rows, [first, end]))]


EXISTS = 1  # mark of a row that exists
CHANGED = 3  # mark of a row that exists and was updated
MANY = 1 << 16  # rows that are added to a list before it is sorted again, at least

Existing = Callable[[int, int, int], Ints]


class Changes:
    """Rows of each shard noted since `track` or `clear`.

    marks[h] : a byte u8[rows] for each row of shard h, or None.

    The rows of a shard with marks that exist are asked for by `existing(h, lo, hi)`: i64[n], lo <=
    row < hi, ascending. It is an argument, as the tables that know it would never be freed if they
    and their changes held each other.
    """

    def __init__(self, marks: Sequence[Bytes | None]) -> None:
        self.marks = list(marks)
        self._on = False
        # of each shard: the first list is ascending and distinct, the others were added since
        self._parts: list[list[Ints]] = [[] for _ in marks]
        self._waiting = [0 for _ in marks]

    def track(self) -> None:
        """Note rows from now on."""
        self._on = True

    def note(self, segments: Segments) -> None:
        """The unique rows of the segments are about to change."""
        if not self._on:
            return
        for h, lo, hi in segments.spans():
            self.note_rows(h, segments.unique[lo:hi])

    def note_rows(self, shard: int, rows: Ints) -> None:
        """Rows i64[n] of a shard, ascending and distinct, change."""
        if not self._on:
            return
        marks = self.marks[shard]
        if marks is not None:
            # a mark is the byte that says anyway that the row exists
            marks[rows] = CHANGED
            return
        # a copy: the rows of a step lie in scratch that the next step overwrites
        self._parts[shard].append(rows.copy())
        self._waiting[shard] += rows.size
        if self._waiting[shard] > max(MANY, self._parts[shard][0].size):
            self._listed(shard)

    def rows(self, shard: int, existing: Existing) -> Ints:
        """Rows i64[n] of a shard that were noted, ascending."""
        marks = self.marks[shard]
        if marks is not None:
            rows = existing(shard, 0, marks.size)
            return rows[marks[rows] == CHANGED]
        return self._listed(shard)

    def _listed(self, shard: int) -> Ints:
        if len(self._parts[shard]) != 1 or self._waiting[shard]:
            self._parts[shard] = [
                np.unique(np.concatenate([np.empty(0, np.int64), *self._parts[shard]]))
            ]
            self._waiting[shard] = 0
        return self._parts[shard][0]

    def clear(self, existing: Existing) -> None:
        """Forget all of them."""
        if not self._on:
            return
        for shard, marks in enumerate(self.marks):
            if marks is not None:
                marks[self.rows(shard, existing)] = EXISTS
            self._parts[shard] = []
            self._waiting[shard] = 0
