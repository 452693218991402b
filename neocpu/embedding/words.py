"""What does a rank send where others have terms of the same sum? Exact fp64 words of its own,
nearly always one each.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.lookups import EntryLayout, ExtraWords, Floats, Ints, Lookups, Words
from neocpu.embedding.rows import Places, entries_of
from neocpu.embedding.sorting import Scratch, Segments
from neocpu.kernels import pooling, update
from neocpu.kernels.operands import Bags, Lines, Terms, WideBags


def pool(
    table: NDArray[Any],
    places: Places,
    layout: EntryLayout,
    entries: slice,
    which: slice,
    lookups: Lookups,
    scratch: Scratch,
    out: Words,
) -> ExtraWords:
    """Pool the bags of some `entries` of a layout, whose rows are in one table: first words of the
    exact sums into out f64[S, C], the rare further words returned. `which`: the offsets of their
    bags.
    """
    column = layout.column[entries]
    columns = out.shape[1]
    flat = out.reshape(-1)
    bags = Bags(lookups.offsets[which], lookups.rows, lookups.weights)
    used = scratch.take("used", bags.offsets.size - 1)
    sources = entries_of(places, layout.shard[entries], lookups.samples)
    lines = Lines(column, np.full(column.size, columns))
    pooling.pooled_words(table, sources, bags, lines, flat, used)
    wide = np.flatnonzero(used > 1)
    k, s = np.divmod(wide, max(lookups.samples, 1))
    width = sources.width[k]
    more = used[wide] - 1
    bag = np.repeat(wide, more) + which.start
    start = np.append(0, np.cumsum(np.repeat(width, more)))
    extra = np.empty(int(start[-1]))
    ends = np.append(0, np.cumsum(width * more))[:-1]
    wide_bags = WideBags(
        lo=bags.offsets[wide],
        hi=bags.offsets[wide + 1],
        base=sources.base[k],
        stride=width,
        width=width,
        used=more + 1,
        place=s * columns + column[k],
        start=ends,
    )
    pooling.bag_words(Terms(table, bags.rows, bags.weights), wide_bags, flat, extra)
    return ExtraWords(bag, start, extra)


def merge(found: Segments, gradient: Floats, width: Ints) -> list[tuple[Ints, Words]]:
    """Exact merged gradients of shards that were sorted: for each, rows i64[M] (ascending, repeated
    for further words) and words f64[M, D]. gradient f32[:], width i64[H] of all shards.
    """
    return [_shard(found, lo, hi, int(width[shard]), gradient) for shard, lo, hi in found.spans()]


def _shard(found: Segments, lo: int, hi: int, width: int, gradient: Floats) -> tuple[Ints, Words]:
    rows = found.unique[lo:hi]
    starts = found.starts[lo : hi + 1]
    words = np.empty((hi - lo, width))
    used = np.empty(hi - lo, np.int64)
    update.merge_words(gradient, found.place, found.weights, starts, words, used)
    several = np.flatnonzero(used > 1)
    place = np.cumsum(used) - used
    if several.size:
        first = words
        words = np.empty((int(used.sum()), width))
        words[place] = first
    at = place[several] * width
    one = np.ones(several.size, np.int64)
    flat = words.reshape(-1)
    wide_bags = WideBags(
        lo=starts[several],
        hi=starts[several + 1],
        base=0 * one,
        stride=one,
        width=width * one,
        used=used[several],
        place=at,
        start=at + width,
    )
    pooling.bag_words(Terms(gradient, found.place, found.weights), wide_bags, flat, flat)
    return np.repeat(rows, used), words
