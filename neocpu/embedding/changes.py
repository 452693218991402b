"""Which rows were updated since somebody last asked? Marks, where a byte of each row is there
anyway; else lists of numbers.

The rows of a step arrive ascending and distinct; in a list they are put together once they are more
than what is known already, so a row that is updated often costs a few bytes for a while and a sort
now and then.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.lookups import Ints
from neocpu.kernels.records import Segments

# marks
EXISTS = 1
CHANGED = 3
MANY = 1 << 16  # rows that wait at least until they are put together


class Changes:
    """Rows of each shard noted since `track` or `clear`; marks[h]: a byte u8[rows] for each row of
    shard h, or None.
    """

    def __init__(self, marks: Sequence[NDArray[np.uint8] | None]) -> None:
        self.marks = list(marks)
        self._on = False
        # the first is ascending and distinct, others wait
        self._parts: list[list[Ints]] = [[] for _ in marks]
        self._waiting = [0 for _ in marks]

    def track(self) -> None:
        """Take notes from now on."""
        self._on = True

    def note(self, found: Segments) -> Segments:
        """Rows, by their numbers, are about to change; the same segments."""
        if not self._on:
            return found
        for h, lo, hi in found.spans():
            rows = found.unique[lo:hi]
            marks = self.marks[h]
            if marks is not None:
                marks[rows] = CHANGED
                continue
            self._parts[h].append(rows.copy())
            self._waiting[h] += rows.size
            if self._waiting[h] > max(MANY, self._parts[h][0].size):
                self.rows(h)
        return found

    def rows(self, shard: int) -> Ints:
        """Rows i64[n] of a shard that were noted, ascending."""
        marks = self.marks[shard]
        if marks is not None:
            return np.flatnonzero(marks == CHANGED)
        if len(self._parts[shard]) != 1 or self._waiting[shard]:
            self._parts[shard] = [
                np.unique(np.concatenate([np.empty(0, np.int64), *self._parts[shard]]))
            ]
            self._waiting[shard] = 0
        return self._parts[shard][0]

    def clear(self) -> None:
        """Forget all of them."""
        if not self._on:
            return
        for shard, marks in enumerate(self.marks):
            if marks is not None:
                marks[self.rows(shard)] = EXISTS
            self._parts[shard] = []
            self._waiting[shard] = 0
