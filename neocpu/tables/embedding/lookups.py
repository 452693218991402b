"""What does a table-batched embedding take and return? The records of lookups, merged gradients and
exact words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Floats, Ints

Words = NDArray[np.float64]


class Rectangle(Protocol):
    """A shard, as a TBE sees it."""

    @property
    def table(self) -> int: ...
    @property
    def rows(self) -> tuple[int, int]: ...
    @property
    def cols(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class EntryLayout:
    """Entry k reads shard `shard[k]` (i64[K], nondecreasing) and owns columns from `column[k]`
    (i64[K]) on.
    """

    shard: Ints
    column: Ints

    @cached_property
    def shards(self) -> tuple[Ints, Ints]:
        """(shards i64[H] that are read, ascending; i64[H+1] first entry of each, and the end)."""
        shards, entry = np.unique(self.shard, return_index=True)
        return shards.astype(np.int64), np.append(entry, self.shard.size)


@dataclass(frozen=True)
class Lookups:
    """Bags of K entries by S samples: bag k*S + s holds rows[offsets[k*S+s] : offsets[k*S+s+1]],
    local to the shard.

    offsets : i64[K*S+1].
    rows : i64[n], -1 reads nothing.
    weights : f32[n], or f32[0]: none.
    """

    offsets: Ints
    rows: Ints
    weights: Floats
    samples: int


@dataclass(frozen=True)
class ExtraWords:
    """Words beyond the first: word m belongs to bag bag[m] (ascending, repeats) and is
    words[start[m] : start[m+1]].
    """

    bag: Ints
    start: Ints
    words: Words

    @classmethod
    def concatenated(cls, parts: "Sequence[ExtraWords]") -> "ExtraWords":
        """The words of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        ends = np.cumsum([0, *(part.words.size for part in parts)])
        start = [part.start[:-1] + end for part, end in zip(parts, ends)]
        words = np.concatenate([np.empty(0), *(part.words for part in parts)])
        bag = np.concatenate([np.empty(0, np.int64), *(part.bag for part in parts)])
        return cls(bag, np.concatenate([*start, ends[-1:]]), words)


@dataclass(frozen=True)
class Merged:
    """Unique rows and merged, regularised gradients of some shards.

    first, last : shard i has rows[first[i] : last[i]].
    rows : i64[U], local.
    start : i64[U+1], row u has gradient[start[u] : start[u+1]].
    weights : f32, like the gradient, the decoded numbers of rows that are kept as codes; f32[0] if
        there are none.
    counts : i64[U], lookups of each row.
    """

    first: dict[int, int]
    last: dict[int, int]
    rows: Ints
    start: Ints
    gradient: Floats
    weights: Floats
    counts: Ints


@dataclass(frozen=True)
class KeyLookups:
    """The lookups of one key without pooling, of this rank's samples.

    offsets : i64[b+1], sample s has lookups [offsets[s], offsets[s+1]).
    rows : i64[n], the row of each lookup, -1: none, which gives zeros.
    values : f32[m, D], the rows that were looked up.
    lines : i64[n], where in `values` each lookup finds its row, whose weight is not applied (None:
        m is n, each lookup has a line, multiplied by its weight if there are weights).
    weights : f32[n], of the lookups, or None.
    leaves : i64[l+1], first sample of each of this rank's leaves, and the end.
    """

    offsets: Ints
    rows: Ints
    values: Floats
    lines: Ints | None
    weights: Floats | None
    leaves: Ints


@dataclass(frozen=True)
class RowTerms:
    """Gradients of one key without pooling: f32[m, D], one term for each of rows i64[m].

    rows : -1: no row. None: those that were looked up, a term for each line of
    `KeyLookups.values`; weights are applied to it then.
    """

    gradient: Floats
    rows: Ints | None = None
