"""Which rows of a table are in fast memory, and where? A 32-way set-associative cache of row
numbers, one call per batch.

    find       each unique row of the batch: its line (set * 32 + way), touched and locked, or a
               miss (parallel by row)
    populate   each miss, in turn: an empty line of its set, or its policy's victim's, or none
               (parallel by set)
    settle     what moved, side by side
    release    the batch is done with its lines

The cache knows integers only: who keeps rows and moves them is told which lines leave and which
come (`tables/tiers/cache.py`). A set is 32 lines; set = Murmur3's 64-bit finaliser of the row's
number, modulo sets. A byte per line, `prints`, has the hash's top byte (0: empty), so that one
vector comparison finds a row among 32; what else is known of a line is best given as the fields of
one record per line (`operands.CacheState`), since they are needed together. Every line that a batch
uses is locked until the batch is done, so no batch evicts what it, or another one in flight, uses.
Threads never meet in a line, so nothing depends on their number.
Sources: Neo (Mudigere et al. 2022), FBGEMM's `lru_cache_find` and `_populate`, `lfu_cache_*`.
"""

from functools import cache

import numpy as np
from numba import prange
from numba.extending import register_jitable

from neocpu.core.policies import NEVER
from neocpu.kernels.compile.jit import inlined, kernel, parallel_kernel
from neocpu.kernels.scratch import task_body
from neocpu.kernels.simd import prefetch, prefetch_far, prefetch_write
from neocpu.kernels.simd.cache_sets import WAYS, lowest, matching, remainder
from neocpu.kernels.tiers import policies

CHUNK = 1024  # rows that a thread takes at once
NEAR = 32  # rows between asking for a line and using it
AHEAD = 6  # misses between asking for a set and using it
TASKS = 32  # runs of misses that threads share
BUCKETS = 4096  # of misses by set, at most


@register_jitable
def mix(number):
    """Murmur3's 64-bit finaliser."""
    # mixed, so that rows with a common factor, as of strided ids, spread over all sets
    h = np.uint64(number)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(33))


@inlined
def print_of(h):
    """The byte by which a line is found: the hash's highest, or 1 where that is 0."""
    return np.uint8(max(h >> np.uint64(56), np.uint64(1)))


@inlined
def fetch_set(s, prints, tags):
    """Ask for all that is known of a set's lines."""
    prefetch(prints, s * WAYS)
    step = tags.strides[0] // 8
    for byte in range(0, WAYS * tags.strides[0], 64):
        prefetch(tags, s * WAYS * step + byte // 8)


@inlined
def search(number, first, mask, tags):
    """The line of a row among those of a set that have its print, or -1."""
    while mask != 0:
        line = first + lowest(mask)
        if tags[np.uint64(line)] == number:  # no sign: nobody asks whether it counts from the end
            return line
        mask &= mask - 1
    return np.int64(-1)


@kernel
def set_of(ids, sets, out):
    """The set of every row.

    Shapes: ids i64[n] >= 0; sets i64; out i64[n]. Source: FBGEMM's `cache_slot`.
    """
    for i in range(ids.size):
        out[i] = mix(ids[i]) % np.uint64(sets)


@inlined
def hash_rows(rows, sets, prints, first, hashes):
    """first[j] = first line of the set of rows[j], whose prints are asked for; hashes[j]: of it."""
    # one division for a chunk (`simd/cache_sets.py`)
    inverse = np.uint64(0xFFFFFFFFFFFFFFFF) // sets
    for j in range(rows.size):  # a loop of its own: it becomes vectors
        hashes[j] = mix(rows[j])
    for j in range(rows.size):
        first[j] = np.int64(remainder(np.uint64(hashes[j]), sets, inverse)) * WAYS
        # a chunk ahead: into the second level, for the first is too small for 1024 sets
        prefetch_far(prints, first[j])


@inlined
def match_prints(j, prints, tags, first, masks):
    """masks[j], still a hash, becomes the mask of the lines of its set with its print; what is
    known of the first is asked for.
    """
    mask = matching(prints, first[j], print_of(np.uint64(masks[j])))
    masks[j] = mask
    if mask != 0:
        # To be written: a row that is found is touched and locked. It is the first match in nearly
        # all cases, since a print agrees by chance once in 255.
        prefetch_write(tags, (first[j] + lowest(mask)) * (tags.strides[0] // 8))


@parallel_kernel
def locate(ids, prints, tags, out):
    """Where rows are now: out[i] = line of ids[i], or -1. Nothing is touched; rows may repeat.

    Shapes: ids i64[n] >= 0, or -1, which is nowhere; prints u8[lines]; tags i64[lines] >= 0; out
    i64[n]. Source: FBGEMM's `lxu_cache_lookup`. Order: none.
    """
    sets = np.uint64(prints.size // WAYS)
    for t in prange((ids.size + CHUNK - 1) // CHUNK):
        first = np.empty(CHUNK, np.int64)
        masks = np.empty(CHUNK, np.int64)
        rows = ids[t * CHUNK : (t + 1) * CHUNK]
        lines = out[t * CHUNK : (t + 1) * CHUNK]
        hash_rows(rows, sets, prints, first, masks)
        # the first rows, which nobody asked for earlier
        for j in range(min(NEAR, rows.size)):
            match_prints(j, prints, tags, first, masks)
        for j in range(rows.size):
            if j + NEAR < rows.size:
                match_prints(j + NEAR, prints, tags, first, masks)
            lines[j] = search(rows[j], first[j], masks[j], tags)


def _fuse_find(touch):
    """Kernel that finds rows, and touches and locks those that are there."""

    @task_body
    def find_chunk(t, scratch, rows, now, state, found):
        prints = state.prints
        tags = state.tags
        use = rows.use
        first, masks = scratch
        missing = 0
        requested = 0
        ids = rows.ids[t * CHUNK : (t + 1) * CHUNK]
        counts = rows.counts[t * CHUNK : (t + 1) * CHUNK]
        hash_rows(ids, np.uint64(prints.size // WAYS), prints, first, masks)
        for j in range(min(NEAR, ids.size)):
            match_prints(j, prints, tags, first, masks)
        for j in range(ids.size):
            if j + NEAR < ids.size:
                match_prints(j + NEAR, prints, tags, first, masks)
            i = t * CHUNK + j
            line = search(ids[j], first[j], masks[j], tags)
            requested += counts[j]
            if line >= 0:
                # unsigned: Numba asks at each use of a signed index whether it counts from the end
                at = np.uint64(line)
                touch(at, False, counts[j], use[i] if use.size else NEVER, now, state)
                state.locks[at] += 1
                found.lines[i] = line
            else:
                # the set of a miss, as a negative number: `gather` need not hash the row again
                found.lines[i] = -1 - first[j] // WAYS
                found.missed[t * CHUNK + missing] = i
                missing += 1
        found.misses[t] = missing
        found.lookups[t] = requested

    @parallel_kernel
    def find(rows, now, state, found):
        for t in prange(found.misses.size):
            scratch = np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
            find_chunk(np.int64(t), scratch, rows, now, state, found)

    return find


@cache
def finder(policy):
    """The kernel that finds the rows of a batch: those that are there are touched and locked.

    `finder(policy)(rows, now, state, found)`. Shapes: rows `BatchRows`; now i64: number of the
    batch; state `CacheState`, of which dirty and hand are not asked for; found `RowsFound`.
    Source: FBGEMM's `lru_cache_find_uncached`. Order: misses ascending.
    """
    return _fuse_find(getattr(policies, f"{policy}_touch"))


@kernel
def gather(misses, missed, lines, sets):
    """All misses that `finder` left, side by side: missed[:m], with their sets; their lines become
    -1. Returns m.

    Shapes: misses i64[chunks]; missed, lines, sets i64[n]. Order: ascending.
    """
    m = 0
    for t in range(misses.size):
        for k in range(misses[t]):
            i = missed[t * CHUNK + k]
            missed[m] = i
            sets[m] = -1 - lines[i]
            lines[i] = -1
            m += 1
    return m


@inlined
def deal(rows, misses, shift, work, ends):
    """Misses in their order, dealt to buckets of neighbouring sets: bucket b, sets with s >> shift
    == b, has the rows work[ends[b] : ends[b + 1]]: position, row, set, amount and use of a miss.
    """
    sets = misses.sets
    ends[:] = 0
    for k in range(sets.size):
        # counted two places on: after the sums, `ends[b + 1]` is where bucket b is filled, and ends
        # there
        ends[(sets[k] >> shift) + 2] += 1
    for b in range(ends.size - 2):
        ends[b + 2] += ends[b + 1]
    for turn in range(sets.size):
        k = misses.order[turn] if misses.order.size else turn
        i = misses.missed[k]
        bucket = (sets[k] >> shift) + 1
        at = ends[bucket]
        ends[bucket] = at + 1
        work[at, 0] = i
        work[at, 1] = rows.ids[i]
        work[at, 2] = sets[k]
        work[at, 3] = misses.amount[k]
        work[at, 4] = rows.use[i] if rows.use.size else NEVER


def _fuse_populate(touch, victim):
    """Kernel that gives lines to missing rows."""

    @task_body
    def populate_run(begin, end, work, now, state, lines, evicted):
        prints = state.prints
        tags = state.tags
        for turn in range(begin, end):
            # a policy reads all lines of a full set, so all that is known of them is asked for
            fetch_set(work[min(turn + AHEAD, end - 1), 2], prints, tags)
            row = work[turn, 1]
            s = work[turn, 2]
            amount = work[turn, 3]
            use = work[turn, 4]
            evicted.rows[turn] = -1
            # empty lines are found as rows are: their print is 0
            empty = matching(prints, s * WAYS, np.uint8(0))
            if empty != 0:
                line = s * WAYS + lowest(empty)
            else:
                way = victim(s, amount, use, now, state)
                # every line is locked by a batch in flight, or the policy leaves the row uncached
                if way < 0:
                    continue
                line = s * WAYS + way
                evicted.rows[turn] = tags[line]
                evicted.lines[turn] = line
                evicted.stamp[turn] = state.stamp[line]
                evicted.dirty[turn] = state.dirty[line]
            prints[line] = print_of(mix(row))
            tags[line] = row
            state.locks[line] = 1
            state.dirty[line] = 0
            lines[work[turn, 0]] = line
            touch(line, True, amount, use, now, state)

    @parallel_kernel
    def populate(rows, misses, work, now, state, lines, evicted):
        shift = 0
        buckets = state.prints.size // WAYS
        # Misses of neighbouring sets together, in as many buckets as there is work for: one thread
        # has a set, so lines need no locks, and what depends on order does not depend on threads.
        while buckets > max(TASKS, min(misses.sets.size // 2, BUCKETS)):
            shift = shift + 1
            buckets = (buckets + 1) // 2
        ends = np.empty(buckets + 2, np.int64)
        deal(rows, misses, shift, work, ends)
        for task in prange(TASKS):
            begin = ends[buckets * task // TASKS]
            end = ends[buckets * (task + 1) // TASKS]
            populate_run(begin, end, work, now, state, lines, evicted)

    return populate


@cache
def populator(policy):
    """The kernel that gives lines to missing rows: empty ways first, the lowest first, then the
    policy's victims.

    `populator(policy)(rows, misses, work, now, state, lines, evicted)`: lines[missed[k]] = line of
    miss k, locked once and clean, or -1 as before where no line may be taken: a conflict miss.
    Shapes: rows `BatchRows`; misses `Misses`; work i64[m, 5], scratch; now i64: number of the
    batch; state `CacheState`; lines i64[n]; evicted `Evicted`.
    Source: FBGEMM's `lru_cache_insert`, `lfu_cache_insert`.
    Order: `misses.order` within a set; `evicted` by runs of sets.
    """
    return _fuse_populate(
        getattr(policies, f"{policy}_touch"), getattr(policies, f"{policy}_victim")
    )


@kernel
def settle(rows, missed, lines, evicted, moves, dirty):
    """What `populator` did, side by side: lines that lose a row moves[0, :e], their rows moves[1,
    :e], were they changed? dirty[:e]; lines that get one moves[2, :f], their rows moves[3, :f].
    Returns (e, f, lookups of rows that found no line).

    Shapes: as there; missed i64[m]; moves i64[4, m], dirty bool[m].
    Order: of `evicted`; of `missed`.
    """
    leaving = 0
    coming = 0
    outside = 0
    for turn in range(missed.size):
        i = missed[turn]
        if lines[i] >= 0:
            moves[2, coming] = lines[i]
            moves[3, coming] = rows.ids[i]
            coming += 1
        else:
            outside += rows.counts[i]
        if evicted.rows[turn] >= 0:
            moves[0, leaving] = evicted.lines[turn]
            moves[1, leaving] = evicted.rows[turn]
            dirty[leaving] = evicted.dirty[turn] != 0
            leaving += 1
    return leaving, coming, outside


@parallel_kernel
def release(lines, changed, locks, dirty, wrong):
    """A batch is done with its lines: each is unlocked once, and dirty if the batch changed it.

    Shapes: lines i64[n] distinct, -1 skipped; changed bool; locks integers[lines]; dirty u8[lines];
    wrong i64[ceil(n / 1024)]: how many of a chunk were not locked, and stay so. Source: FBGEMM's
    `lxu_cache_locking_counter_decrement`. Order: none.
    """
    step = locks.strides[0] // locks.itemsize
    for t in prange(wrong.size):
        unlocked = 0
        last = min((t + 1) * CHUNK, lines.size)
        for i in range(t * CHUNK, last):
            line = lines[i]
            prefetch_write(locks, max(lines[min(i + NEAR, last - 1)], 0) * step)
            if line >= 0:
                # a line that was not locked stays so: one below 0 would never be evicted again
                if locks[line] > 0:
                    locks[line] -= 1
                    if changed:
                        dirty[line] = 1
                else:
                    unlocked += 1
        wrong[t] = unlocked
