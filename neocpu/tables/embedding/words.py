"""What does a rank send where other ranks have terms of the same sum? Exact fp64 words of its own
terms, nearly always one for each sum.
"""

from collections.abc import Sequence

import numpy as np

from neocpu.core.types import Elements, Floats, Ints
from neocpu.kernels.operands import Bags, Lines, Terms, WideBags
from neocpu.kernels.records import Segments, ShardPlaces
from neocpu.kernels.rows import pooling, update
from neocpu.tables.embedding.lookups import EntryLayout, ExtraWords, Lookups, Words
from neocpu.tables.embedding.rows import entries_of
from neocpu.tables.embedding.sorting import Scratch


def pool(
    table: Elements,
    places: ShardPlaces,
    layout: EntryLayout,
    entries: slice,
    bags: slice,
    lookups: Lookups,
    scratch: Scratch,
    out: Words,
) -> ExtraWords:
    """Pool the bags of these `entries` of a layout, whose rows are in one table: first words of the
    exact sums into out f64[S, C], the rare further words returned. bags : offsets of their bags.
    """
    column = layout.column[entries]
    columns = out.shape[1]
    flat = out.reshape(-1)
    lookup_bags = Bags(lookups.offsets[bags], lookups.rows, lookups.weights)
    used = scratch.take("used", lookup_bags.offsets.size - 1)
    sources = entries_of(places, layout.shard[entries], lookups.samples)
    lines = Lines(column, np.full(column.size, columns))
    pooling.pooled_words(table, sources, lookup_bags, lines, flat, used)
    long_bags = np.flatnonzero(used > 1)  # bags whose exact sum takes several words
    entry, sample = np.divmod(long_bags, max(lookups.samples, 1))
    width = sources.width[entry]
    further = used[long_bags] - 1
    extra_start = np.append(0, np.cumsum(np.repeat(width, further)))
    extra = np.empty(int(extra_start[-1]))
    wide_bags = WideBags(
        lo=lookup_bags.offsets[long_bags],
        hi=lookup_bags.offsets[long_bags + 1],
        base=sources.base[entry],
        stride=width,
        width=width,
        used=used[long_bags],
        place=sample * columns + column[entry],
        start=np.append(0, np.cumsum(width * further))[:-1],
    )
    terms = Terms(table, lookups.rows, lookups.weights)
    pooling.bag_words(terms, wide_bags, flat, extra)
    # bags are numbered in the whole layout, of which this is a part
    return ExtraWords(np.repeat(long_bags, further) + bags.start, extra_start, extra)


def merge(segments: Segments, gradient: Floats, width: Ints) -> list[tuple[Ints, Words]]:
    """Exact merged gradients of the shards of `segments`: for each, rows i64[M] (ascending,
    repeated for further words) and words f64[M, D]. gradient f32[:], width i64[H] of all shards.
    """
    return [
        _merge_shard(segments.part(i, i + 1), gradient, int(width[shard]))
        for i, shard in enumerate(segments.shards.tolist())
    ]


def _merge_shard(segments: Segments, gradient: Floats, width: int) -> tuple[Ints, Words]:
    rows = segments.unique
    words = np.empty((rows.size, width))
    used = np.empty(rows.size, np.int64)
    update.merge_words(segments, gradient, words, used)
    several = np.flatnonzero(used > 1)
    if not several.size:
        return rows.copy(), words  # segments live in scratch arrays
    place = np.cumsum(used) - used
    first_words = words
    words = np.empty((int(used.sum()), width))
    words[place] = first_words
    at = place[several] * width
    one = np.ones(several.size, np.int64)
    flat = words.reshape(-1)
    wide_bags = WideBags(
        lo=segments.starts[several],
        hi=segments.starts[several + 1],
        base=0 * one,
        stride=one,
        width=width * one,
        used=used[several],
        place=at,
        start=at + width,
    )
    terms = Terms(gradient, segments.place, segments.weights)
    pooling.bag_words(terms, wide_bags, flat, flat)
    return np.repeat(rows, used), words


def with_counts(
    segments: Segments, merged: Sequence[tuple[Ints, Words]]
) -> list[tuple[Ints, Words]]:
    """What `merge` gives, each row's first word with its number of lookups as a further column.

    Counts are whole numbers, so they add up over ranks exactly, as the words do.
    """
    counted = []
    for i, (rows, words) in enumerate(merged):
        part = segments.part(i, i + 1)
        counts = np.zeros((rows.size, 1))
        counts[np.searchsorted(rows, part.unique), 0] = np.diff(part.starts)
        counted.append((rows, np.hstack([words, counts])))
    return counted


def summed(
    shards: Ints, gradients: Sequence[tuple[Ints, Floats]], width: Ints, counted: bool
) -> tuple[Segments, Floats]:
    """Rows whose gradients were summed over all ranks, as segments of one term each; and these
    gradients, flat.

    gradients : for each of `shards`, rows i64[U] (unique, local) and gradient f32[U, D], or
    f32[U, D+1] with the lookups of each row where they are `counted`. width i64[H] of all shards.
    """
    first = np.cumsum([0, *(rows.size for rows, _ in gradients)])
    columns = np.repeat(width[shards], np.diff(first))
    numbers = [gradient[:, :-1] if counted else gradient for _, gradient in gradients]
    none = np.empty(0, np.float32)
    segments = Segments(
        shards=shards,
        first=first,
        unique=np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in gradients)]),
        starts=np.arange(first[-1] + 1, dtype=np.int64),
        place=np.cumsum(columns) - columns,
        weights=none,
    )
    flat = np.concatenate([none, *(gradient.reshape(-1) for gradient in numbers)])
    if not counted:
        return segments, flat
    counts = np.concatenate([none, *(gradient[:, -1] for _, gradient in gradients)])
    return _as_lookups(segments, flat, counts, int(columns.max(initial=0)))


def _as_lookups(
    segments: Segments, gradient: Floats, counts: Floats, width: int
) -> tuple[Segments, Floats]:
    """Rows with merged gradients as if each were looked up counts[u] times, f32[U].

    Kernels count a row's lookups by its terms: all but the first are zeros, which change no sum.
    segments : with one lookup of each row. width : of the widest row.
    """
    lookups = counts.astype(np.int64)
    starts = np.append(0, np.cumsum(lookups))
    place = np.full(int(starts[-1]), gradient.size)
    place[starts[:-1]] = segments.place
    with_zeros = np.append(gradient, np.zeros(width, np.float32))
    return segments._replace(starts=starts, place=place), with_zeros
