"""Which rows of a table are in fast memory, and where? The plain twin of `kernels/tiers/cache.py`:
whole sets compared at once.
"""

import numpy as np

from neocpu.core.policies import NEVER
from neocpu.kernels.twins.tiers import policies

WAYS = 32
CHUNK = 1024
TASKS = 32
BUCKETS = 4096


def mix(numbers):
    """Murmur3's 64-bit finaliser of an array; see `kernels.tiers.cache.mix`."""
    h = np.asarray(numbers).astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ (h >> np.uint64(33))) * np.uint64(factor)
    return h ^ (h >> np.uint64(33))


def set_of(ids, sets, out):
    """The set of every row; see `kernels.tiers.cache.set_of`."""
    out[:] = (mix(ids) % np.uint64(sets)).astype(np.int64)


def locate(ids, prints, tags, out):
    """Where rows are now, or -1; see `kernels.tiers.cache.locate`."""
    sets = np.empty_like(ids)
    set_of(ids, prints.size // WAYS, sets)
    there = (
        # an empty line keeps the tag of the row that left it, and -1 is nowhere
        np.where(prints > 0, tags, -1).reshape(-1, WAYS)[sets]
        == np.where(ids < 0, -2, ids)[:, None]
    )
    out[:] = np.where(there.any(axis=1), sets * WAYS + there.argmax(axis=1), -1)


def finder(policy):
    """Find the rows of a batch, touch and lock those that are there; see
    `kernels.tiers.cache.finder`.
    """
    touch = getattr(policies, f"{policy}_touch")

    def find(rows, now, state, found):
        ids, counts, use = rows
        lines = found.lines
        locate(ids, state.prints, state.tags, lines)
        hit = lines >= 0
        touch(lines[hit], False, counts[hit], use[hit] if use.size else NEVER, now, state)
        state.locks[lines[hit]] += 1
        sets = np.empty_like(ids)
        set_of(ids, state.prints.size // WAYS, sets)
        lines[~hit] = -1 - sets[~hit]
        for t in range(found.misses.size):
            begin = t * CHUNK
            missed = begin + np.flatnonzero(~hit[begin : begin + CHUNK])
            found.misses[t] = missed.size
            found.missed[begin : begin + missed.size] = missed
            found.lookups[t] = counts[begin : begin + CHUNK].sum()

    return find


def gather(misses, missed, lines, sets):
    """All misses side by side, with their sets; returns how many.

    See `kernels.tiers.cache.gather`.
    """
    chunks = [missed[t * CHUNK : t * CHUNK + m] for t, m in enumerate(misses)]
    positions = np.concatenate([*chunks, missed[:0]])
    missed[: positions.size] = positions
    sets[: positions.size] = -1 - lines[positions]
    lines[positions] = -1
    return positions.size


def populator(policy):
    """Give lines to missing rows, in turn; see `kernels.tiers.cache.populator`."""
    touch = getattr(policies, f"{policy}_touch")
    victim = getattr(policies, f"{policy}_victim")

    def populate(rows, misses, work, now, state, lines, evicted):
        missed, sets, amount, order = misses
        run = 1  # sets that are neighbours
        most = max(TASKS, min(missed.size // 2, BUCKETS))
        while -(-(state.prints.size // WAYS) // run) > most:
            run *= 2
        # by runs of neighbouring sets, as the kernel's buckets: `evicted` is in the order of these
        # turns
        turns = order if order.size else np.arange(missed.size)
        for turn, k in enumerate(turns[np.argsort(sets[turns] // run, kind="stable")]):
            i = missed[k]
            s = int(sets[k])
            use = rows.use[i] if rows.use.size else NEVER
            empty = np.flatnonzero(state.prints[WAYS * s : WAYS * s + WAYS] == 0)
            way = int(empty[0]) if empty.size else victim(s, amount[k], use, now, state)
            line = WAYS * s + way
            evicted.rows[turn] = -1
            if way >= 0 and not empty.size:
                evicted.rows[turn] = state.tags[line]
                evicted.lines[turn] = line
                evicted.stamp[turn] = state.stamp[line]
                evicted.dirty[turn] = state.dirty[line]
            if way >= 0:
                state.tags[line] = rows.ids[i]
                state.prints[line] = max(int(mix(rows.ids[i : i + 1])[0]) >> 56, 1)
                state.locks[line] = 1
                state.dirty[line] = 0
                lines[i] = line
                touch(line, True, amount[k], use, now, state)

    return populate


def settle(rows, missed, lines, evicted, moves, dirty):
    """What moves, side by side; see `kernels.tiers.cache.settle`."""
    leaving = np.flatnonzero(evicted.rows >= 0)
    coming = missed[lines[missed] >= 0]
    outside = missed[lines[missed] < 0]
    moves[0, : leaving.size] = evicted.lines[leaving]
    moves[1, : leaving.size] = evicted.rows[leaving]
    dirty[: leaving.size] = evicted.dirty[leaving] != 0
    moves[2, : coming.size] = lines[coming]
    moves[3, : coming.size] = rows.ids[coming]
    return leaving.size, coming.size, rows.counts[outside].sum()


def release(lines, changed, locks, dirty, wrong):
    """A batch is done with its lines; wrong: how many were not locked; see
    `kernels.tiers.cache.release`.
    """
    for t in range(wrong.size):
        used = lines[t * CHUNK : (t + 1) * CHUNK]
        used = used[used >= 0]
        locked = used[locks[used] > 0]
        wrong[t] = used.size - locked.size
        locks[locked] -= 1
        dirty[locked] |= changed
