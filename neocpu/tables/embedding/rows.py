"""How are the rows of one format kept? fp32 numbers as they are; other formats as codes, decoded
whenever a row is read.

    fp32           f32[:], changed in place (`RowStore`)
    small floats   codes u16[:] or u8[:], rounded once, at the end of a row's update
                   (`coded.CodedRowStore`)
    bf16_split     upper and lower halves of fp32 numbers: lookups read the upper ones, updates
                   join both (`coded.CodedRowStore`)

A store holds the shards of one format, one after the other, and their element states; where they
begin is in `ShardPlaces`. Its owner (`tbe.py`) knows which shards those are, and keeps all else.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from neocpu.core.rules import HyperParameters, Rule
from neocpu.core.types import Elements, Floats, Ints
from neocpu.kernels.compile.choice import chosen
from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.kernels.records import Segments, ShardPlaces
from neocpu.tables.embedding.lookups import EntryLayout, Lookups

NONE = np.empty(0, np.float32)


def entries_of(places: ShardPlaces, shards: Ints, samples: int) -> Entries:
    """What kernels read for entries that have `samples` bags each, entry k in shard shards[k]."""
    width = places.width[shards]
    return Entries(places.base[shards], width, width, np.arange(shards.size + 1) * samples)


class StepRule(NamedTuple):
    """A rule as the kernels of one step take it.

    limited : whether rows are scaled down to `max_norm` after the rule.
    hyper : its numbers at `step`, which counts from 1.
    """

    rule: Rule
    limited: bool
    hyper: HyperParameters
    step: int


class RowStore:
    """fp32 rows, and what is asked of rows of any format.

    table : what lookups read.
    states : per-element states, f32 arrays like the table.
    """

    coded = False

    def __init__(self, table: Elements, states: Sequence[Floats]) -> None:
        self.table = table
        self.element_states = tuple(states)

    @property
    def arrays(self) -> tuple[Elements, ...]:
        """All that this store keeps of every element, by element: the numbers first, then the
        states.
        """
        return self.table, *self.element_states

    def over(self, arrays: Sequence[Elements]) -> "RowStore":
        """A store of this format with other `arrays`."""
        return RowStore(arrays[0], arrays[1:])

    def pool(self, places: ShardPlaces, layout: EntryLayout, lookups: Lookups, out: Floats) -> None:
        """Pooled rows of some entries: out f32[S, C], from column[k] on."""
        samples, columns = out.shape
        entries = entries_of(places, layout.shard, samples)
        bags = Bags(lookups.offsets, lookups.rows, lookups.weights)
        lines = Lines(layout.column, np.full(layout.column.size, columns))
        pooled_rows = chosen("rows.lookup", "pooled_rows")
        pooled_rows(self.table, entries, bags, False, lines, out.reshape(-1))

    def update(
        self,
        by: StepRule,
        row_state: Floats,
        places: ShardPlaces,
        segments: Segments,
        rows: Ints,
        gradient: Floats,
    ) -> None:
        """The fused update of unique rows.

        segments : by slot.
        rows : i64[U], the same as rows of the shard, by which stochastic rounding draws.
        """
        fused = chosen("rows.update", "fused")(by.rule, by.limited)
        states = by.rule.element_record(*self.element_states)
        fused(self.table, states, row_state, places, segments, gradient, by.hyper)

    def open(self, places: ShardPlaces, segments: Segments, offsets: Ints, out: Floats) -> Elements:
        """Where the phases of an update find the numbers of unique rows: if they are `coded`, row u
        is decoded to out[offsets[u] :].
        """
        return self.table

    def close(
        self,
        places: ShardPlaces,
        segments: Segments,
        offsets: Ints,
        numbers: Floats,
        step: int,
        rows: Ints,
    ) -> None:
        """Put back rows that were opened and changed; `step` and `rows` as of `update`."""

    def numbers(self, places: ShardPlaces, shard: int, height: int) -> Any:
        """The numbers of a shard f32[height, width]: a view, or what decodes the rows that are
        asked for.
        """
        at = int(places.base[shard])
        width = int(places.width[shard])
        return self.table[at : at + height * width].reshape(height, width)

    def states(self, places: ShardPlaces, shard: int, height: int) -> list[Floats]:
        """Views of a shard's element states f32[height, width]."""
        at = int(places.base[shard])
        width = int(places.width[shard])
        return [
            state[at : at + height * width].reshape(height, width) for state in self.element_states
        ]

    def write(
        self, places: ShardPlaces, shard: int, height: int, rows: Ints, numbers: Floats
    ) -> None:
        """Set local rows i64[n] of a shard, rounded to nearest even."""
        self.numbers(places, shard, height)[rows] = numbers

    def rounded(self, numbers: Floats) -> Floats:
        """Numbers f32[n, D], each the nearest one of the format."""
        return numbers


def runs(store: Ints) -> list[tuple[int, int, int]]:
    """(store, first, last): where neighbours have the same one."""
    cuts = [0, *(np.flatnonzero(np.diff(store)) + 1).tolist(), store.size]
    return [(int(store[lo]), lo, hi) for lo, hi in pairwise(cuts) if lo < hi]
