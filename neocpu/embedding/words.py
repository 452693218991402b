"""What does a rank send where others have terms of the same sum? Exact fp64 words of its own,
nearly always one each.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.lookups import EntryLayout, ExtraWords, Floats, Ints, Lookups, Words
from neocpu.embedding.rows import Places
from neocpu.embedding.sorting import Scratch, Segments
from neocpu.kernels import pooling, update


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
    h = layout.shard[entries]
    column = layout.column[entries]
    offsets = lookups.offsets[which]
    rows = lookups.rows
    weights = lookups.weights
    used = scratch.take("used", offsets.size - 1)
    pooling.pooled_words(
        table, places.base[h], places.width[h], offsets, rows, weights, out, column, used
    )
    bags = np.flatnonzero(used > 1)
    k, s = np.divmod(bags, max(lookups.samples, 1))
    width = places.width[h[k]]
    more = used[bags] - 1
    bag = np.repeat(bags, more) + which.start
    start = np.append(0, np.cumsum(np.repeat(width, more)))
    extra = np.empty(int(start[-1]))
    ends = np.append(0, np.cumsum(width * more))[:-1]
    into = s * out.shape[1] + column[k]
    pooling.bag_words(
        table,
        rows,
        weights,
        offsets[bags],
        offsets[bags + 1],
        places.base[h[k]],
        width,
        width,
        more + 1,
        into,
        ends,
        out.reshape(-1),
        extra,
    )
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
    ends = (starts[several], starts[several + 1])
    bags = (0 * one, one, width * one)
    pooling.bag_words(
        gradient,
        found.place,
        found.weights,
        *ends,
        *bags,
        used[several],
        at,
        at + width,
        flat,
        flat,
    )
    return np.repeat(rows, used), words
