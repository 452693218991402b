"""Which rows of a table are in fast memory, and where? The plain twin of `kernels/cache.py`: whole
sets compared at once.
"""

import numpy as np

from neocpu.reference import policies
from neocpu.reference.policies import NEVER

WAYS = 32
CHUNK = 1024
TASKS = 32
BUCKETS = 4096


def mix(numbers):
    """Murmur3's 64-bit finaliser of an array; see `kernels.cache.mix`."""
    h = np.asarray(numbers).astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ (h >> np.uint64(33))) * np.uint64(factor)
    return h ^ (h >> np.uint64(33))


def set_of(ids, sets, out):
    """The set of every row; see `kernels.cache.set_of`."""
    out[:] = (mix(ids) % np.uint64(sets)).astype(np.int64)


def locate(ids, prints, tags, out):
    """Where rows are now, or -1; see `kernels.cache.locate`."""
    sets = np.empty_like(ids)
    set_of(ids, prints.size // WAYS, sets)
    there = (
        np.where(prints > 0, tags, -1).reshape(-1, WAYS)[sets]
        == np.where(ids < 0, -2, ids)[:, None]
    )
    out[:] = np.where(there.any(axis=1), sets * WAYS + there.argmax(axis=1), -1)


def finder(policy):
    """Find the rows of a batch, touch and lock those that are there; see `kernels.cache.finder`."""
    touch = getattr(policies, f"{policy}_touch")

    def find(
        ids, counts, use, now, prints, tags, locks, stamp, next_use, lines, missed, misses, lookups
    ):
        locate(ids, prints, tags, lines)
        hit = lines >= 0
        touch(lines[hit], False, counts[hit], use[hit] if use.size else NEVER, now, stamp, next_use)
        locks[lines[hit]] += 1
        sets = np.empty_like(ids)
        set_of(ids, prints.size // WAYS, sets)
        lines[~hit] = -1 - sets[~hit]
        for t in range(misses.size):
            mine = t * CHUNK + np.flatnonzero(~hit[t * CHUNK : (t + 1) * CHUNK])
            misses[t] = mine.size
            missed[t * CHUNK : t * CHUNK + mine.size] = mine
            lookups[t] = counts[t * CHUNK : (t + 1) * CHUNK].sum()

    return find


def gather(misses, missed, lines, sets):
    """All misses side by side, with their sets; returns how many; see `kernels.cache.gather`."""
    found = np.concatenate(
        [missed[t * CHUNK : t * CHUNK + m] for t, m in enumerate(misses)] + [missed[:0]]
    )
    missed[: found.size] = found
    sets[: found.size] = -1 - lines[found]
    lines[found] = -1
    return found.size


def populator(policy):
    """Give lines to missing rows, in turn; see `kernels.cache.populator`."""
    touch = getattr(policies, f"{policy}_touch")
    victim = getattr(policies, f"{policy}_victim")

    def populate(
        ids,
        missed,
        sets,
        amount,
        use,
        order,
        work,
        now,
        prints,
        tags,
        locks,
        dirty,
        stamp,
        next_use,
        hand,
        lines,
        old,
        old_line,
        old_stamp,
        old_dirty,
    ):
        # sets that are neighbours
        run = 1
        most = max(TASKS, min(missed.size // 2, BUCKETS))
        while -(-(prints.size // WAYS) // run) > most:
            run *= 2
        turns = order if order.size else np.arange(missed.size)
        for turn, k in enumerate(turns[np.argsort(sets[turns] // run, kind="stable")]):
            i = missed[k]
            s = int(sets[k])
            later = use[i] if use.size else NEVER
            empty = np.flatnonzero(prints[WAYS * s : WAYS * s + WAYS] == 0)
            way = (
                int(empty[0])
                if empty.size
                else victim(s, amount[k], later, now, locks, stamp, next_use, hand)
            )
            line = WAYS * s + way
            old[turn] = -1
            if way >= 0 and not empty.size:
                old[turn] = tags[line]
                old_line[turn] = line
                old_stamp[turn] = stamp[line]
                old_dirty[turn] = dirty[line]
            if way >= 0:
                tags[line], prints[line] = ids[i], max(int(mix(ids[i : i + 1])[0]) >> 56, 1)
                locks[line] = 1
                dirty[line] = 0
                lines[i] = line
                touch(line, True, amount[k], later, now, stamp, next_use)

    return populate


def settle(ids, counts, missed, lines, old, old_line, old_dirty, moves, dirty):
    """What moves, side by side; see `kernels.cache.settle`."""
    gone = np.flatnonzero(old >= 0)
    come = missed[lines[missed] >= 0]
    outside = missed[lines[missed] < 0]
    moves[0, : gone.size] = old_line[gone]
    moves[1, : gone.size] = old[gone]
    dirty[: gone.size] = old_dirty[gone] != 0
    moves[2, : come.size] = lines[come]
    moves[3, : come.size] = ids[come]
    return gone.size, come.size, counts[outside].sum()


def release(lines, changed, locks, dirty, wrong):
    """A batch is done with its lines; wrong: how many were not locked; see `kernels.cache.release`."""
    for t in range(wrong.size):
        mine = lines[t * CHUNK : (t + 1) * CHUNK]
        mine = mine[mine >= 0]
        held = mine[locks[mine] > 0]
        wrong[t] = mine.size - held.size
        locks[held] -= 1
        dirty[held] |= changed


def batches_ahead(ids, later, starts, out):
    """How many batches ahead each row is used next, or 0; see `kernels.cache.batches_ahead`."""
    out[:] = 0
    for b in reversed(range(starts.size - 1)):
        out[np.isin(ids, later[starts[b] : starts[b + 1]])] = b + 1


def expect(lines, use, now, next_use):
    """Rows in these lines will be used by a batch; see `kernels.cache.expect`."""
    lines = lines[lines >= 0]
    lines = lines[(next_use[lines] <= now) | (next_use[lines] > use)]
    next_use[lines] = use
