"""How are the rows of one format kept? fp32 numbers as they are; other formats as codes, decoded
whenever a row is read.

    fp32           f32[:], changed in place (`RowStore`)
    small floats   codes u16[:] or u8[:], rounded once, at the end of a row's update
                   (`coded.CodedRowStore`)
    bf16_split     upper and lower halves of fp32 numbers: lookups read the upper ones, updates
                   join both (`coded.CodedRowStore`)

A store holds the shards of one format, one after the other, and their element states; where they
begin is in `Places`. Its owner (`tbe.py`) knows which shards those are, and keeps all else.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.lookups import EntryLayout, Floats, Ints, Lookups
from neocpu.embedding.sorting import Segments
from neocpu.kernels import lookup, update
from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.reference.rules import Rule

NONE = np.empty(0, np.float32)


class Places(NamedTuple):
    """Where each shard is: first element in its store, columns, columns of its table, first row
    among all shards, and its first row and column in the table, i64[H]; the key of its random
    words, u64[H].
    """

    base: Ints
    width: Ints
    full_width: Ints
    row_base: Ints
    row0: Ints
    column0: Ints
    key: NDArray[np.uint64]

    @property
    def where(self) -> tuple[Ints, Ints, Ints, Ints]:
        """What every update kernel asks for."""
        return self.base, self.width, self.full_width, self.row_base


def entries_of(places: Places, shards: Ints, samples: int) -> Entries:
    """What kernels read for entries that have `samples` bags each, entry k in shard shards[k]."""
    width = places.width[shards]
    return Entries(places.base[shards], width, width, np.arange(shards.size + 1) * samples)


class RowStore:
    """fp32 rows, and what is asked of rows of any format.

    table : what lookups read. states : per-element states, f32 arrays like the table.
    """

    coded = False

    def __init__(self, table: NDArray[Any], states: Sequence[Floats]) -> None:
        self.table = table
        self.element_states = tuple(states)
        self.state0, self.state1 = (*states, NONE, NONE)[:2]

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """All that this store keeps of every element, by element: the numbers first, then the
        states.
        """
        return self.table, *self.element_states

    def over(self, arrays: Sequence[NDArray[Any]]) -> "RowStore":
        """A store of this format with other `arrays`."""
        return RowStore(arrays[0], arrays[1:])

    def pool(self, places: Places, layout: EntryLayout, lookups: Lookups, out: Floats) -> None:
        """Pooled rows of some entries: out f32[S, C], from column[k] on."""
        samples, columns = out.shape
        entries = entries_of(places, layout.shard, samples)
        bags = Bags(lookups.offsets, lookups.rows, lookups.weights)
        lines = Lines(layout.column, np.full(layout.column.size, columns))
        lookup.pooled_rows(self.table, entries, bags, False, lines, out.reshape(-1))

    def update(
        self,
        rule: Rule,
        limited: bool,
        row_state: Floats,
        places: Places,
        found: Segments,
        gradient: Floats,
        hyper: Floats,
        step: int,
        rows: Ints,
    ) -> None:
        """The fused update of unique rows, which may be slots; `rows` i64[U]: their numbers in the
        shard.
        """
        fused = update.fused(rule.name, rule.row_scalars, len(rule.row_state), limited)
        fused(
            self.table, self.state0, self.state1, row_state, *places.where, *found, gradient, hyper
        )

    def open(self, places: Places, found: Segments, to: Ints, out: Floats) -> NDArray[Any]:
        """Where the phases of an update find the numbers of unique rows: row u at out[to[u] :] if
        they are `coded`.
        """
        return self.table

    def close(
        self, places: Places, found: Segments, to: Ints, numbers: Floats, step: int, rows: Ints
    ) -> None:
        """Put rows back that were opened and changed; `rows` as of `update`."""

    def numbers(self, places: Places, shard: int, height: int) -> Any:
        """The numbers of a shard f32[height, width]: a view, or what decodes the rows that are
        asked for.
        """
        at = int(places.base[shard])
        width = int(places.width[shard])
        return self.table[at : at + height * width].reshape(height, width)

    def states(self, places: Places, shard: int, height: int) -> list[Floats]:
        """Views of a shard's element states f32[height, width]."""
        at = int(places.base[shard])
        width = int(places.width[shard])
        return [
            state[at : at + height * width].reshape(height, width) for state in self.element_states
        ]

    def write(self, places: Places, shard: int, height: int, rows: Ints, numbers: Floats) -> None:
        """Set local rows i64[n] of a shard, rounded to nearest even."""
        self.numbers(places, shard, height)[rows] = numbers

    def rounded(self, numbers: Floats) -> Floats:
        """Numbers f32[n, D], each the nearest one of the format."""
        return numbers


def runs(store: Ints) -> list[tuple[int, int, int]]:
    """(store, first, last): where neighbours have the same one."""
    cuts = [0, *(np.flatnonzero(np.diff(store)) + 1).tolist(), store.size]
    return [(int(store[lo]), lo, hi) for lo, hi in pairwise(cuts) if lo < hi]


def part(found: Segments, lo: int, hi: int) -> Segments:
    """Segments of the shards in [lo, hi) of those found."""
    if hi - lo == found.shards.size:
        return found
    first, last = int(found.first[lo]), int(found.first[hi])
    unique = found.unique[first:last]
    starts = found.starts[first : last + 1]
    return Segments(
        found.shards[lo:hi],
        found.first[lo : hi + 1] - first,
        unique,
        starts,
        found.place,
        found.weights,
    )


def one_by_one(shard: int, rows: Ints, place: Ints) -> Segments:
    """Rows of one shard, each with one gradient."""
    count = np.arange(rows.size + 1, dtype=np.int64)
    return Segments(np.array([shard]), np.array([0, rows.size]), rows, count, place, NONE)
