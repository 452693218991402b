"""Which rows of a table are in fast memory, and where? A 32-way set-associative cache of row
numbers, one call per batch.

    find       each unique row of the batch: its line (set * 32 + way), touched and locked; or a miss    (parallel by row)
    populate   each miss, in turn: an empty line of its set, or its policy's victim's; or none           (parallel by set)
    settle     what moved, side by side

The cache knows integers only: who keeps rows and moves them is told which lines leave and which
come (`storage/cache.py`). A set is 32 lines; set = Murmur3's 64-bit finaliser of the row's number,
modulo sets. A byte per line, `prints`, has the hash's top byte (0: empty), so that one vector
comparison finds a row among 32; what else is known of a line (tag, stamp, next_use, locks, dirty)
is best given as the fields of one record per line, 1-D arrays of any stride, since they are needed
together. Every line that a batch uses is locked until the batch is done, so no batch evicts what
it, or another one in flight, uses. Threads never meet in a line, so nothing depends on their
number. Sources: Neo (Mudigere et al. 2022), FBGEMM's `lru_cache_find` and `_populate`,
`lfu_cache_*`.
"""

from functools import cache

import numpy as np
from numba import prange
from numba.extending import register_jitable

from neocpu.kernels import policies
from neocpu.kernels._jit import inlined, kernel, parallel_kernel
from neocpu.kernels.policies import NEVER
from neocpu.kernels.simd import prefetch, prefetch_far, prefetch_write
from neocpu.kernels.simd.cache_sets import WAYS, lowest, matching, remainder

# rows that a thread takes at once; rows between asking for a line and using it
CHUNK = 1024
NEAR = 32
# misses; runs of misses that threads share; heaps of misses by set, at most
AHEAD = 6
TASKS = 32
BUCKETS = 4096


@register_jitable
def mix(number):
    """Murmur3's 64-bit finaliser."""
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
def hash_rows(row, sets, prints, first, found):
    """first[j] = first line of the set of row[j], whose prints are asked for; found[j] = its hash."""
    inverse = np.uint64(0xFFFFFFFFFFFFFFFF) // sets
    for j in range(row.size):  # a loop of its own: it becomes vectors
        found[j] = mix(row[j])
    for j in range(row.size):
        first[j] = np.int64(remainder(np.uint64(found[j]), sets, inverse)) * WAYS
        prefetch_far(prints, first[j])


@inlined
def match_prints(j, prints, tags, first, found):
    """found[j], a hash, becomes the mask of the lines of its set with its print; what is known of
    the first is asked for.
    """
    mask = matching(prints, first[j], print_of(np.uint64(found[j])))
    found[j] = mask
    if mask != 0:
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
        found = np.empty(CHUNK, np.int64)
        row = ids[t * CHUNK : (t + 1) * CHUNK]
        line = out[t * CHUNK : (t + 1) * CHUNK]
        hash_rows(row, sets, prints, first, found)
        for j in range(min(NEAR, row.size)):
            match_prints(j, prints, tags, first, found)
        for j in range(row.size):
            if j + NEAR < row.size:
                match_prints(j + NEAR, prints, tags, first, found)
            line[j] = search(row[j], first[j], found[j], tags)


def _fuse_find(touch):
    """Kernel that finds rows, and touches and locks those that are there."""

    @parallel_kernel
    def find(
        ids, counts, use, now, prints, tags, locks, stamp, next_use, lines, missed, misses, lookups
    ):
        sets = np.uint64(prints.size // WAYS)
        for t in prange(misses.size):
            first = np.empty(CHUNK, np.int64)
            found = np.empty(CHUNK, np.int64)
            here = 0
            asked = 0
            row = ids[t * CHUNK : (t + 1) * CHUNK]
            count = counts[t * CHUNK : (t + 1) * CHUNK]
            hash_rows(row, sets, prints, first, found)
            for j in range(min(NEAR, row.size)):
                match_prints(j, prints, tags, first, found)
            for j in range(row.size):
                if j + NEAR < row.size:
                    match_prints(j + NEAR, prints, tags, first, found)
                i = t * CHUNK + j
                line = search(row[j], first[j], found[j], tags)
                asked += count[j]
                if line >= 0:
                    at = np.uint64(line)
                    touch(at, False, count[j], use[i] if use.size else NEVER, now, stamp, next_use)
                    locks[at] += 1
                    lines[i] = line
                else:
                    lines[i] = -1 - first[j] // WAYS
                    missed[t * CHUNK + here] = i
                    here += 1
            misses[t] = here
            lookups[t] = asked

    return find


@cache
def finder(policy):
    """The kernel that finds the rows of a batch: those that are there are touched and locked.

    `finder(policy)(ids, counts, use, now, prints, tags, locks, stamp, next_use, lines, missed,
    misses, lookups)`: lines[i] = line of ids[i], or -1 - its set; the misses i of chunk t, rows
    [1024 t, 1024 (t+1)), are missed[1024 t :], misses[t] of them; lookups[t] = its counts in all.
    Shapes: ids i64[n] >= 0 unique; counts i64[n]: lookups of each; use i64[n] or [0]
    (`policies.py`); now i64: number of the batch; prints u8[lines]; tags i64[lines]; locks
    integers[lines]; stamp, next_use integers[lines], or [0] where the policy keeps none; lines,
    missed i64[n]; misses, lookups i64[ceil(n / 1024)]. Source: FBGEMM's `lru_cache_find_uncached`.
    Order: misses ascending.
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
def deal(ids, missed, sets, amount, use, order, shift, work, ends):
    """Misses in their order, dealt to buckets of neighbouring sets: bucket b, sets with s >> shift
    == b, has the rows work[ends[b] : ends[b + 1]]: position, row, set, amount and use of a miss.
    """
    ends[:] = 0
    for k in range(sets.size):
        ends[(sets[k] >> shift) + 2] += 1
    for b in range(ends.size - 2):
        ends[b + 2] += ends[b + 1]
    for turn in range(sets.size):
        k = order[turn] if order.size else turn
        i = missed[k]
        bucket = (sets[k] >> shift) + 1
        at = ends[bucket]
        ends[bucket] = at + 1
        work[at, 0] = i
        work[at, 1] = ids[i]
        work[at, 2] = sets[k]
        work[at, 3] = amount[k]
        work[at, 4] = use[i] if use.size else NEVER


def _fuse_populate(touch, victim):
    """Kernel that gives lines to missing rows."""

    @parallel_kernel
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
        shift = 0
        buckets = prints.size // WAYS
        while buckets > max(TASKS, min(sets.size // 2, BUCKETS)):
            shift = shift + 1
            buckets = (buckets + 1) // 2
        ends = np.empty(buckets + 2, np.int64)
        deal(ids, missed, sets, amount, use, order, shift, work, ends)
        for task in prange(TASKS):
            last = ends[buckets * (task + 1) // TASKS]
            for turn in range(ends[buckets * task // TASKS], last):
                fetch_set(work[min(turn + AHEAD, last - 1), 2], prints, tags)
                row = work[turn, 1]
                s = work[turn, 2]
                count = work[turn, 3]
                upcoming = work[turn, 4]
                old[turn] = -1
                empty = matching(prints, s * WAYS, np.uint8(0))
                if empty != 0:
                    line = s * WAYS + lowest(empty)
                else:
                    way = victim(s, count, upcoming, now, locks, stamp, next_use, hand)
                    if way < 0:
                        continue
                    line = s * WAYS + way
                    old[turn] = tags[line]
                    old_line[turn] = line
                    old_stamp[turn] = stamp[line]
                    old_dirty[turn] = dirty[line]
                prints[line] = print_of(mix(row))
                tags[line] = row
                locks[line] = 1
                dirty[line] = 0
                lines[work[turn, 0]] = line
                touch(line, True, count, upcoming, now, stamp, next_use)

    return populate


@cache
def populator(policy):
    """The kernel that gives lines to missing rows: empty ways first, the lowest first, then the
    policy's victims.

    `populator(policy)(ids, missed, sets, amount, use, order, work, now, prints, tags, locks, dirty,
    stamp, next_use, hand, lines, old, old_line, old_stamp, old_dirty)`: lines[missed[k]] = line of
    miss k, locked once and clean, or -1 as before where no line may be taken: a conflict miss. Rows
    that leave: old (-1: none), from old_line, with old_stamp and old_dirty.
    Shapes: ids, lines i64[n]; missed, sets, amount i64[m]; order i64[m] or [0]: who comes first,
    ascending ids without; use i64[n] or [0]; work i64[m, 5], scratch; dirty u8[lines]; old,
    old_line, old_stamp i64[m]; old_dirty u8[m]; the others as for `finder`. Source: FBGEMM's
    `lru_cache_insert`, `lfu_cache_insert`.
    Order: `order` within a set; `old` by runs of sets.
    """
    return _fuse_populate(
        getattr(policies, f"{policy}_touch"), getattr(policies, f"{policy}_victim")
    )


@kernel
def settle(ids, counts, missed, lines, old, old_line, old_dirty, moves, dirty):
    """What `populator` did, side by side: lines that lose a row moves[0, :e], their rows moves[1,
    :e], were they changed? dirty[:e]; lines that get one moves[2, :f], their rows moves[3, :f].
    Returns (e, f, lookups of rows that found no line).

    Shapes: as there; moves i64[4, m], dirty bool[m]. Order: of `old`; of `missed`.
    """
    gone = 0
    come = 0
    outside = 0
    for turn in range(missed.size):
        i = missed[turn]
        if lines[i] >= 0:
            moves[2, come] = lines[i]
            moves[3, come] = ids[i]
            come += 1
        else:
            outside += counts[i]
        if old[turn] >= 0:
            moves[0, gone] = old_line[turn]
            moves[1, gone] = old[turn]
            dirty[gone] = old_dirty[turn] != 0
            gone += 1
    return gone, come, outside


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
                if locks[line] > 0:
                    locks[line] -= 1
                    if changed:
                        dirty[line] = 1
                else:
                    unlocked += 1
        wrong[t] = unlocked


@kernel
def batches_ahead(ids, later, starts, out):
    """How many batches ahead each row is used next: out[i] = b + 1 for the first later batch b that
    has ids[i], else 0.

    Shapes: ids i64[n] ascending; batch b is later[starts[b] : starts[b+1]], ascending; starts
    i64[B+1]; out i64[n].
    """
    out[:] = 0
    for b in range(starts.size - 1):
        j = starts[b]
        last = starts[b + 1]
        for i in range(ids.size):
            while j < last and later[j] < ids[i]:
                j += 1
            if j == last:
                break
            if later[j] == ids[i] and out[i] == 0:
                out[i] = b + 1


@kernel
def expect(lines, use, now, next_use):
    """The rows in these lines will be used by batch `use`: news for those with no known use after
    batch `now`.

    Shapes: lines i64[n], -1 skipped; use, now i64; next_use i64[lines].
    """
    for i in range(lines.size):
        line = lines[i]
        if line >= 0 and (next_use[line] <= now or next_use[line] > use):
            next_use[line] = use
