"""How are the lookups of a step sorted by row? Cut into chunks that threads share, dealt to groups,
sorted, counted.

Chunks      the lookups in runs of one shard
Segments    the same lookups by (shard, row): unique rows, and where the gradients of each are
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike

from neocpu.core.types import Elements, Floats, Ints
from neocpu.kernels.records import LookupChunks, RowGroups, Segments
from neocpu.kernels.rows import segments
from neocpu.tables.embedding.lookups import EntryLayout, Lookups

CHUNK = 8192  # lookups of a chunk, at most
GROUP = 8192  # lookups of a group, about: its keys stay in the second-level cache
GROUPS = 512  # groups of a shard, at most


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
    """Arrays that are reused at every step: one per name, grown when too small."""

    def __init__(self) -> None:
        self._arrays: dict[str, Elements] = {}

    def take(self, name: str, size: int, dtype: DTypeLike = np.int64) -> Elements:
        """An array of `size` elements with any contents, valid until the name is taken again."""
        array = self._arrays.get(name)
        if array is None or array.size < size:
            # some room: batches differ a little, and growing touches new pages
            array = np.empty(size + size // 8, dtype)
            self._arrays[name] = array
        return array[:size]


def cut(layout: EntryLayout, lookups: Lookups) -> Chunks:
    """Cut lookups into runs that threads may share."""
    shards, entries = layout.shards
    cuts = lookups.offsets[entries * lookups.samples]
    count = -((cuts[:-1] - cuts[1:]) // CHUNK)
    first = np.zeros(shards.size + 1, np.int64)
    count.cumsum(out=first[1:])
    chunks = int(first[-1])
    owner = np.arange(shards.size).repeat(count)
    start = np.empty(chunks + 1, np.int64)
    start[:-1] = cuts[owner] + (np.arange(chunks) - first[owner]) * CHUNK
    start[-1] = cuts[-1]
    return Chunks(shards, first, start, owner)


def sort(
    layout: EntryLayout, lookups: Lookups, heights: Ints, stride: int | Ints, scratch: Scratch
) -> Segments:
    """Sort lookups by shard and row. The result lives in `scratch`: it lasts until the next call.

    heights : i64, rows of every shard.
    stride : columns of the gradient's matrix, or i64[K]: that of sample s for entry k is at element
        column[k] + s * stride of the flat gradient.
    """
    # lookups of a bag without weights share its gradient, so the bag is id enough
    by_bag = lookups.weights.size == 0
    place_of = _places(layout, lookups.samples, stride)
    if not by_bag:
        place_of = np.repeat(place_of, np.diff(lookups.offsets))
    return _sort(layout, lookups, heights, by_bag, place_of, lookups.weights, scratch)


def sort_lookups(
    layout: EntryLayout, lookups: Lookups, heights: Ints, scratch: Scratch
) -> Segments:
    """As `sort`, but `place` has the numbers of the lookups, and there are no weights."""
    place_of = np.arange(lookups.rows.size, dtype=np.int64)
    none = np.empty(0, np.float32)
    return _sort(layout, lookups, heights, False, place_of, none, scratch)


def _places(layout: EntryLayout, samples: int, stride: int | Ints) -> Ints:
    """Where the gradient of each bag begins."""
    return (layout.column[:, None] + np.outer(stride, np.arange(samples))).reshape(-1)


def with_gradient_places(
    segments: Segments, layout: EntryLayout, lookups: Lookups, stride: int | Ints
) -> Segments:
    """What `sort` gives, from the result of `sort_lookups` for the same lookups."""
    bags = layout.shard.size * lookups.samples
    bag_of = np.repeat(np.arange(bags), np.diff(lookups.offsets[: bags + 1]))
    place = _places(layout, lookups.samples, stride)[bag_of[segments.place]]
    weights = lookups.weights
    if weights.size:
        weights = weights[segments.place]
    return segments._replace(place=place, weights=weights)


def _sort(
    layout: EntryLayout,
    lookups: Lookups,
    heights: Ints,
    by_bag: bool,
    place_of: Ints,
    weights: Floats,
    scratch: Scratch,
) -> Segments:
    """Sort lookups; an id, of a bag or a lookup, has its gradient at place_of[id]."""
    chunks = cut(layout, lookups)
    shard_heights = heights[chunks.shards]
    id_bits = max(1, int(place_of.size).bit_length())
    if int(shard_heights.max(initial=1)).bit_length() + id_bits <= 63:
        return _radix_sort(
            chunks, lookups, shard_heights, id_bits, by_bag, place_of, weights, scratch
        )
    # No room for row and id in one number: sort the ranks of rows instead.
    distinct_rows, ranks = np.unique(lookups.rows, return_inverse=True)
    ranked = replace(lookups, rows=np.where(distinct_rows[ranks] < 0, -1, ranks))
    rank_heights = np.full_like(shard_heights, distinct_rows.size)
    # ranks are dense, so they fit, and their order is that of the rows
    segments = _radix_sort(
        chunks, ranked, rank_heights, id_bits, by_bag, place_of, weights, scratch
    )
    return segments._replace(unique=distinct_rows[segments.unique])


def _radix_sort(
    chunks: Chunks,
    lookups: Lookups,
    heights: Ints,
    id_bits: int,
    by_bag: bool,
    place_of: Ints,
    weights: Floats,
    scratch: Scratch,
) -> Segments:
    """`_sort` where row and id fit one number; heights i64: rows of each shard of the chunks."""
    high_bits, low_bits = _split_rows(chunks, heights)
    group_counts = np.int64(1) << high_bits
    lookup_chunks = LookupChunks(
        start=chunks.start,
        bag=np.searchsorted(lookups.offsets, chunks.start[:-1], "right") - 1,
        shift=low_bits[chunks.owner],
    )
    most = int(group_counts.max(initial=1))
    counts = scratch.take("counts", chunks.owner.size * most).reshape(chunks.owner.size, most)
    segments.count_groups(lookups.rows, lookup_chunks, counts)
    group_start = np.zeros(int(group_counts.sum()) + 1, np.int64)
    segments.place_chunks(counts, chunks.first, group_counts, group_start)
    valid = int(group_start[-1])
    keys = scratch.take("keys", valid, np.uint64)
    spare = scratch.take("spare", valid, np.uint64)
    segments.deal_lookups(
        lookups.rows, lookups.offsets, by_bag, lookup_chunks, id_bits, counts, keys
    )
    groups = _row_groups(group_counts, group_start, low_bits)
    unique_counts = np.zeros(groups.row.size + 1, np.int64)
    segments.sort_groups(keys, spare, groups, id_bits, unique_counts[1:])
    first = np.cumsum(unique_counts)
    unique_rows = int(first[-1])
    sorted_lookups = Segments(
        shards=chunks.shards,
        first=first[np.append(0, np.cumsum(group_counts))],
        unique=scratch.take("unique", unique_rows),
        starts=scratch.take("starts", unique_rows + 1),
        place=scratch.take("place", valid),
        weights=scratch.take("weights", valid if weights.size else 0, np.float32),
    )
    segments.write_segments(keys, groups, first, id_bits, place_of, weights, sorted_lookups)
    return sorted_lookups


def _split_rows(chunks: Chunks, heights: Ints) -> tuple[Ints, Ints]:
    """(high, low) bits of the rows of each shard: the high ones are the number of its group."""
    row_bits = np.array([max(int(height) - 1, 0).bit_length() for height in heights], np.int64)
    lookup_counts = np.diff(chunks.start[chunks.first])
    group_bits = np.array([(int(n) // GROUP).bit_length() for n in lookup_counts], np.int64)
    high = np.minimum(np.minimum(group_bits, row_bits), GROUPS.bit_length() - 1)
    return high, row_bits - high


def _row_groups(group_counts: Ints, group_start: Ints, low_bits: Ints) -> RowGroups:
    """The groups of all shards; group_counts, low_bits i64: of each shard."""
    shard = np.repeat(np.arange(group_counts.size), group_counts)
    first_group = np.cumsum(group_counts) - group_counts
    bits = low_bits[shard]
    group = np.arange(shard.size) - first_group[shard]
    return RowGroups(start=group_start, row=group << bits, bits=bits)
