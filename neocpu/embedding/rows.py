"""How are the rows of one format kept? fp32 numbers as they are; other formats as codes, decoded
whenever a row is read.

    fp32                 f32[:], changed in place                                                       `Rows`
    fp16, bf16, fp8_*    codes u16[:] or u8[:]; rounded once, at the end of a row's update              `coded.CodedRows`
    bf16_split           upper and lower halves of fp32 numbers: lookups read the upper ones, updates join both

A store holds the shards of one format, one after the other, and their element states; where they
begin is in `ShardPlaces`. Its owner (`tbe.py`) knows which shards those are, and keeps all else.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.lookups import EntryLayout, Floats, Ints, Lookups
from neocpu.embedding.specs import TableSpec
from neocpu.kernels import lookup, update
from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.kernels.records import Segments, ShardPlaces
from neocpu.reference.rules import Hyper, Rule
from neocpu.storage.arena import Arena

NONE = np.empty(0, np.float32)


def entries_of(places: ShardPlaces, shards: Ints, samples: int) -> Entries:
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

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """All that this store keeps of every element, by element: the numbers first, then the
        states.
        """
        return self.table, *self.element_states

    def over(self, arrays: Sequence[NDArray[Any]]) -> "RowStore":
        """A store of this format with other `arrays`."""
        return RowStore(arrays[0], arrays[1:])

    def pool(self, places: ShardPlaces, layout: EntryLayout, lookups: Lookups, out: Floats) -> None:
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
        places: ShardPlaces,
        segments: Segments,
        gradient: Floats,
        hyper: Hyper,
        step: int,
        rows: Ints,
    ) -> None:
        """The fused update of unique rows, which may be slots; `rows` i64[U]: their numbers in the
        shard.
        """
        fused = update.fused(rule, limited)
        states = rule.element_record(*self.element_states)
        fused(self.table, states, row_state, places, segments, gradient, hyper)

    def open(self, places: ShardPlaces, segments: Segments, offsets: Ints, out: Floats) -> Any:
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


class Shelves(NamedTuple):
    """Which store each shard is in and where it begins there, i64[H]; a table of each format and
    rounding, a store each, and the elements of those.
    """

    store: Ints
    base: Ints
    kinds: list[TableSpec]
    elements: list[int]


def shelve(specs: Sequence[TableSpec], sizes: Ints) -> Shelves:
    """Deal shards of these tables, of so many elements i64[H], to one store per format and
    rounding.
    """
    kinds = {(t.format, t.rounding): t for t in specs or [TableSpec("", 0, 1, ())]}
    names = list(kinds)
    store = np.array([names.index((t.format, t.rounding)) for t in specs], np.int64)
    base = np.zeros(store.size, np.int64)
    elements = []
    for i, spec in enumerate(kinds.values()):
        mine = np.flatnonzero(store == i)
        line = 64 // spec.lookup_bytes
        whole = -(-sizes[mine] // line) * line  # every shard begins on a cache line
        base[mine] = np.cumsum(whole) - whole
        elements.append(int(whole.sum()))
    return Shelves(store, base, list(kinds.values()), elements)


def allocate(
    specs: Sequence[TableSpec],
    elements: Sequence[int],
    per_element: int,
    other: Sequence[tuple[int, str]],
    budget: int,
    huge: bool = True,
) -> tuple[list[RowStore], list[NDArray[Any]]]:
    """Stores in the formats of `specs`, with room for so many elements and `per_element` states;
    and `other` arrays, (size, dtype) each.

    All are zeros in one mapping, of huge pages if `huge`. Raises TrainingError where they do not
    fit `budget` bytes (0: any number fits).
    """
    parts = [_parts(spec) for spec in specs]
    wanted = [
        (n, kind) for n, kinds in zip(elements, parts) for kind in (*kinds, *["f4"] * per_element)
    ] + [*other]
    arena = Arena(sum(Arena.space(n, kind) for n, kind in wanted), budget, huge)
    stores = []
    for spec, n, kinds in zip(specs, elements, parts):
        arrays, states = (
            [arena.take(n, kind) for kind in some] for some in (kinds, ["f4"] * per_element)
        )
        if spec.format == "fp32":
            stores.append(RowStore(arrays[0], states))
        else:
            from neocpu.embedding.coded import (
                CodedRowStore,  # nothing of it where all rows are fp32
            )

            stores.append(CodedRowStore(spec.format, spec.rounding, arrays, states))
    return stores, [arena.take(n, kind) for n, kind in other]


def _parts(spec: TableSpec) -> tuple[str, ...]:
    """Dtypes of the arrays that hold a format's rows."""
    return (
        ("u2", "u2")
        if spec.format == "bf16_split"
        else ({4: "f4", 2: "u2", 1: "u1"}[spec.number_bytes],)
    )


def runs(store: Ints) -> list[tuple[int, int, int]]:
    """(store, first, last): where neighbours have the same one."""
    cuts = [0, *(np.flatnonzero(np.diff(store)) + 1).tolist(), store.size]
    return [(int(store[lo]), lo, hi) for lo, hi in pairwise(cuts) if lo < hi]
