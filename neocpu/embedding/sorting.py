"""How are the lookups of a step sorted by row? Cut into chunks that threads share, dealt to groups,
sorted, counted.

Chunks      the lookups in runs of one shard
Segments    the same lookups by (shard, row): unique rows, and where the gradients of each are
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from neocpu.embedding.lookups import EntryLayout, Floats, Ints, Lookups
from neocpu.kernels import segments
from neocpu.kernels.records import Segments

# lookups of a chunk, of a group, about; groups of a shard, at most
CHUNK = 8192
GROUP = 8192
GROUPS = 512


@dataclass(frozen=True)
class Chunks:
    """Lookups in runs of one shard: chunk t is [start[t], start[t+1]) of shard owner[t]; shard
    shards[h] has chunks [first[h], first[h+1]).
    """

    shards: Ints
    first: Ints
    start: Ints
    owner: Ints


class Scratch:
    """Arrays that are needed again at every step: one per name, grown when too small. Contents do
    not last.
    """

    def __init__(self) -> None:
        self._held: dict[str, NDArray[Any]] = {}

    def take(self, name: str, size: int, dtype: DTypeLike = np.int64) -> NDArray[Any]:
        """An array of `size` elements with any contents, valid until the name is taken again."""
        held = self._held.get(name)
        if held is None or held.size < size:
            held = self._held[name] = np.empty(size + size // 8, dtype)
        return held[:size]


def cut(layout: EntryLayout, lookups: Lookups) -> Chunks:
    """Cut lookups into runs that threads may share."""
    shards, entry = np.unique(layout.shard, return_index=True)
    cuts = lookups.offsets[np.append(entry, layout.shard.size) * lookups.samples]
    count = -(-np.diff(cuts) // CHUNK)
    first = np.zeros(shards.size + 1, np.int64)
    np.cumsum(count, out=first[1:])
    owner = np.repeat(np.arange(shards.size), count)
    start = np.append(cuts[owner] + (np.arange(owner.size) - first[owner]) * CHUNK, cuts[-1])
    return Chunks(shards.astype(np.int64), first, start, owner)


def sort(
    layout: EntryLayout, lookups: Lookups, heights: Ints, stride: int | Ints, scratch: Scratch
) -> Segments:
    """Sort lookups by shard and row. The result lives in `scratch`: it lasts until the next call.

    heights i64: rows of every shard; the gradient of sample s for entry k is at element column[k] +
    s * stride of the flat gradient; stride: the columns of its matrix, or i64[K].
    """
    by_bag = lookups.weights.size == 0
    place_of = _places(layout, lookups.samples, stride)
    if not by_bag:
        place_of = np.repeat(place_of, np.diff(lookups.offsets))
    return _sort(layout, lookups, heights, by_bag, place_of, lookups.weights, scratch)


def index(layout: EntryLayout, lookups: Lookups, heights: Ints, scratch: Scratch) -> Segments:
    """As `sort`, but `place` has the numbers of the lookups, and there are no weights."""
    place_of = np.arange(lookups.rows.size, dtype=np.int64)
    none = np.empty(0, np.float32)
    return _sort(layout, lookups, heights, False, place_of, none, scratch)


def _places(layout: EntryLayout, samples: int, stride: int | Ints) -> Ints:
    """Where the gradient of each bag begins."""
    places: Ints = (layout.column[:, None] + np.outer(stride, np.arange(samples))).reshape(-1)
    return places


def placed(found: Segments, layout: EntryLayout, lookups: Lookups, stride: int | Ints) -> Segments:
    """What `sort` gives, from what `index` found of the same lookups."""
    bags = layout.shard.size * lookups.samples
    bag = np.repeat(np.arange(bags), np.diff(lookups.offsets[: bags + 1]))[found.place]
    weights = lookups.weights[found.place] if lookups.weights.size else lookups.weights
    return found._replace(place=_places(layout, lookups.samples, stride)[bag], weights=weights)


def _sort(
    layout: EntryLayout,
    lookups: Lookups,
    heights: Ints,
    by_bag: bool,
    place_of: Ints,
    weights: Floats,
    scratch: Scratch,
) -> Segments:
    chunks = cut(layout, lookups)
    rows = lookups.rows
    heights = heights[chunks.shards]
    bits = max(1, int(place_of.size).bit_length())
    names = None
    # no room for row and id in one number: sort ranks of rows
    if int(heights.max(initial=1)).bit_length() + bits > 63:
        names, rows = np.unique(rows, return_inverse=True)
        rows = np.where(names[rows] < 0, -1, rows)
        heights = np.full_like(heights, names.size)
    return _sorted(
        chunks, lookups.offsets, rows, heights, bits, by_bag, place_of, weights, names, scratch
    )


def _sorted(
    chunks: Chunks,
    offsets: Ints,
    rows: Ints,
    heights: Ints,
    bits: int,
    by_bag: bool,
    place_of: Ints,
    given: Floats,
    names: Ints | None,
    scratch: Scratch,
) -> Segments:
    owner = chunks.owner
    height = np.array([max(int(h) - 1, 0).bit_length() for h in heights], np.int64)
    wanted = np.array(
        [(int(k) // GROUP).bit_length() for k in np.diff(chunks.start[chunks.first])], np.int64
    )
    split = np.minimum(np.minimum(wanted, height), GROUPS.bit_length() - 1)
    low = height - split
    groups = np.int64(1) << split
    most = int(groups.max(initial=1))
    counts = scratch.take("counts", owner.size * most).reshape(owner.size, most)
    shift = low[owner]
    segments.count_groups(rows, chunks.start, shift, counts)
    group_start = np.zeros(int(groups.sum()) + 1, np.int64)
    segments.place_chunks(counts, chunks.first, groups, group_start)
    valid = int(group_start[-1])
    keys = scratch.take("keys", valid, np.uint64)
    spare = scratch.take("spare", valid, np.uint64)
    bags = np.searchsorted(offsets, chunks.start[:-1], "right") - 1
    segments.deal_lookups(rows, offsets, by_bag, chunks.start, bags, shift, bits, counts, keys)
    of = np.repeat(np.arange(groups.size), groups)
    found = np.zeros(of.size + 1, np.int64)
    segments.sort_groups(keys, spare, group_start, low[of], bits, found[1:])
    first = np.cumsum(found)
    group_row = (np.arange(of.size) - np.repeat(np.cumsum(groups) - groups, groups)) << low[of]
    total = int(first[-1])
    unique = scratch.take("unique", total)
    starts = scratch.take("starts", total + 1)
    place = scratch.take("place", valid)
    weights = scratch.take("weights", valid if given.size else 0, np.float32)
    segments.write_segments(
        keys, group_start, group_row, first, bits, place_of, given, unique, starts, place, weights
    )
    ends = np.append(0, np.cumsum(groups))
    return Segments(
        chunks.shards,
        first[ends],
        unique if names is None else names[unique],
        starts,
        place,
        weights,
    )
