"""Which rows does fast memory hold? A `Cache` knows, batch by batch; it says which lines to write
back and which to fill.

    moves = cache.prefetch(ids, counts)     1. write rows moves.evicted_ids from moves.evicted_lines home, if they are dirty
                                            2. read rows moves.filled_ids into moves.filled_lines
                                            3. row ids[i] is in line moves.lines[i]; -1: it stays
                                            outside
    …                                       lookup, backward, update: on lines
    cache.release(moves.lines)              the batch is done with them

Numbers only: rows and their bytes are the caller's. All evictions of a call may be written before
any of its rows is read: no row is in both lists. Several batches may be in flight, released in any
order. docs/memory.md tells the whole story.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels import cache as kernels
from neocpu.kernels import hashing
from neocpu.kernels.operands import BatchRows, CacheState, Evicted, Misses, RowsFound
from neocpu.reference.policies import DEFAULT, NEVER, POLICIES, Policy
from neocpu.storage.arena import Arena
from neocpu.storage.placement import WAYS, sets_for

__all__ = ["STATISTICS", "WAYS", "Cache", "Moves", "batches_ahead", "sets_for"]
Ints = NDArray[np.int64]
STATISTICS = (
    "calls",
    "requested",
    "unique",
    "unique_misses",
    "conflict_unique_misses",
    "conflict_misses",
)
_NONE = np.empty(0, np.int64)
# what is known of a line, side by side in a quarter of a line of the processor's cache
LINE = np.dtype(
    {
        "names": ["tag", "stamp", "locks", "dirty"],
        "formats": ["<i8", "<i4", "<i2", "|u1"],
        "offsets": [0, 8, 12, 14],
        "itemsize": 16,
    }
)
# the same for policies that count lookups or know the next use, in half a line
WIDE_LINE = np.dtype(
    {
        "names": ["tag", "stamp", "next_use", "locks", "dirty"],
        "formats": ["<i8", "<i8", "<i8", "<i2", "|u1"],
        "offsets": [0, 8, 16, 24, 26],
        "itemsize": 32,
    }
)


def line_of(policy: Policy) -> np.dtype[Any]:
    """What is known of a line under a policy."""
    return WIDE_LINE if policy.counts or policy.next_use else LINE


class Moves(NamedTuple):
    """What became of a batch's rows, in its order: of each row its line, or -1 (a conflict miss);
    then the lines that lose a row, which, and whether it was changed; and the lines that get one,
    by ascending row.
    """

    lines: Ints
    evicted_lines: Ints
    evicted_ids: Ints
    evicted_dirty: NDArray[np.bool_]
    filled_lines: Ints
    filled_ids: Ints


class _Counts:
    """How often rows were looked up that are not in the cache: a hash map that doubles when it is
    half full.
    """

    def __init__(self) -> None:
        self.keys = np.zeros(1024, np.uint64)
        self.values = np.zeros(1024, np.int64)
        self.used = 0

    def add(self, ids: Ints, counts: Ints) -> Ints:
        """Add to the counts of rows; their counts now."""
        if 2 * (self.used + ids.size) > self.keys.size:
            filled = self.values != 0
            room = 1 << (4 * (self.used + ids.size) - 1).bit_length()
            keys = self.keys[filled]
            values = self.values[filled]
            self.keys = np.zeros(room, np.uint64)
            self.values = np.zeros(room, np.int64)
            hashing.fill_map(keys, values, self.keys, self.values)
        out = np.empty_like(ids)
        self.used += hashing.add_counts(ids.view(np.uint64), counts, self.keys, self.values, out)
        return out

    def put(self, ids: Ints, counts: Ints) -> None:
        """Set the counts of rows that were counted before."""
        hashing.fill_map(ids.view(np.uint64), counts, self.keys, self.values)


class Cache:
    """A 32-way set-associative cache of row numbers.

    Attributes:
        sets, lines: its geometry; line = set * 32 + way.
        policy: its record in `reference.policies`.
        batch: number of the last batch that was prefetched, from 1.
    """

    def __init__(self, sets: int, policy: str = DEFAULT) -> None:
        self.sets = sets
        self.lines = sets * WAYS
        self.policy = POLICIES[policy]
        self.batch = 0
        self._find = kernels.finder(policy)
        self._populate = kernels.populator(policy)
        line = line_of(self.policy)
        self._arena = Arena(Arena.space(self.lines, np.uint8) + Arena.space(self.lines, line))
        self._prints = self._arena.take(self.lines, np.uint8)
        self._state = self._arena.take(self.lines, line)
        self._tags, self._stamp, self._locks, self._dirty = (
            self._state[name] for name in LINE.names or ()
        )
        self._next_use = self._state["next_use"] if self.policy.next_use else _NONE
        self._hand = np.full(sets if self.policy.hand else 0, -1)
        self._known = CacheState(
            prints=self._prints,
            tags=self._tags,
            locks=self._locks,
            dirty=self._dirty,
            stamp=self._stamp,
            next_use=self._next_use,
            hand=self._hand,
        )
        self._work = np.empty((0, 5), np.int64)
        self._held = np.empty((5, 0), np.int64)
        self._counts = _Counts() if self.policy.counts else None
        self._statistics = dict.fromkeys(STATISTICS, 0)

    def prefetch(self, ids: Ints, counts: Ints, ahead: Ints = _NONE) -> Moves:
        """Bring the rows of the next batch into lines, and lock those lines.

        ids i64[n]: its rows, each once, ascending, >= 0; counts i64[n]: lookups of each; ahead
        i64[n]: how many batches later each is used again, 0 where nobody knows (policy `lookahead`;
        without it, nobody does). Not checked.
        """
        self.batch += 1
        use = self._uses(ids, ahead)
        if self._work.shape[0] < ids.size:
            self._work = np.empty((ids.size + ids.size // 8, 5), np.int64)
            self._held = np.empty(self._work.T.shape, np.int64)
        lines = np.empty_like(ids)
        misses, lookups = np.empty((2, -(-ids.size // kernels.CHUNK)), np.int64)
        rows = BatchRows(ids, counts, use)
        found = RowsFound(lines, self._held[0], misses, lookups)
        self._find(rows, self.batch, self._known, found)
        m = kernels.gather(misses, self._held[0], lines, self._held[1])
        missed, sets, old, old_line, old_stamp = self._held[:, :m]
        amount = counts[missed]
        order = _NONE
        if self._counts:
            amount = self._counts.add(ids[missed], amount)
            order = np.argsort(-amount, kind="stable")
        elif use.size:
            order = np.argsort(use[missed], kind="stable")
        evicted = Evicted(old, old_line, old_stamp, np.empty(m, np.uint8))
        newcomers = Misses(missed, sets, amount, order)
        self._populate(rows, newcomers, self._work[:m], self.batch, self._known, lines, evicted)
        if self._counts:
            self._counts.put(old[old >= 0], old_stamp[old >= 0])
        moves = np.empty((4, m), np.int64)
        dirty = np.empty(m, np.bool_)
        out, come, outside = kernels.settle(rows, missed, lines, evicted, moves, dirty)
        news = 1, lookups.sum(), ids.size, m, m - come, outside
        self._statistics = {
            name: self._statistics[name] + int(n) for name, n in zip(STATISTICS, news)
        }
        return Moves(
            lines, moves[0, :out], moves[1, :out], dirty[:out], moves[2, :come], moves[3, :come]
        )

    def _uses(self, ids: Ints, ahead: Ints) -> Ints:
        """Number of the batch that uses each row next."""
        if not self.policy.next_use:
            return _NONE
        return (
            np.where(ahead > 0, self.batch + ahead, NEVER)
            if ahead.size
            else np.full_like(ids, NEVER)
        )

    def release(self, lines: Ints, changed: bool = True) -> None:
        """A batch is done with its lines (`Moves.lines`); `changed`: it wrote to them."""
        wrong = np.empty(-(-lines.size // kernels.CHUNK), np.int64)
        kernels.release(lines, changed, self._locks, self._dirty, wrong)
        if wrong.any():
            raise ValueError("a line was released more often than it was prefetched")

    def mark(self, lines: Ints) -> None:
        """Rows in these lines differ from those at home, whether or not a batch changed them."""
        self._dirty[lines[lines >= 0]] = 1

    def locate(self, ids: Ints) -> Ints:
        """Line of every row now, or -1; rows may repeat, in any order. Changes nothing."""
        out = np.empty_like(ids)
        kernels.locate(ids, self._prints, self._tags, out)
        return out

    def expect(self, ids: Ints, ahead: int) -> None:
        """The batch that comes `ahead` batches after the last one will use these rows: for
        `lookahead`, when a batch enters the window, news of the rows that are in lines already.
        """
        kernels.expect(self.locate(ids), self.batch + ahead, self.batch, self._next_use)

    def rows(self) -> tuple[Ints, Ints]:
        """(lines, rows) of all that the cache holds, by line."""
        lines = np.flatnonzero(self._prints)
        return lines, self._tags[lines]

    def flush(self) -> tuple[Ints, Ints]:
        """(lines, rows) of all dirty lines, by line, for the caller to write home; they stay, and
        are clean now.
        """
        lines = np.flatnonzero(self._dirty)
        self._dirty[lines] = 0
        return lines, self._tags[lines]

    def invalidate(self) -> None:
        """Forget all rows, dirty or not (`flush` comes first), but not how often they were used. No
        batch may be in flight.
        """
        if self._locks.any():
            raise ValueError(
                "a batch in flight uses the cache: release its lines before they are invalidated"
            )
        lines, ids = self.rows()
        if self._counts:
            self._counts.put(ids, self._stamp[lines])
        self._prints[lines] = 0
        self._dirty[lines] = 0

    def forget(self) -> None:
        """As `invalidate`, and forget how often rows were used: what comes is decided as by a new
        cache.
        """
        lines = self.rows()[0]
        self.invalidate()
        self._state[lines] = np.zeros((), self._state.dtype)
        self._hand[:] = -1
        self.batch = 0
        self._counts = _Counts() if self.policy.counts else None

    def stats(self) -> dict[str, int]:
        """FBGEMM's six: calls; lookups and rows requested; rows missed; rows, and lookups, that
        found no line.
        """
        return dict(self._statistics)

    def reset_stats(self) -> None:
        """Count from 0."""
        self._statistics = dict.fromkeys(STATISTICS, 0)

    @property
    def bytes(self) -> int:
        """Memory that the cache itself takes."""
        counts = self._counts.keys.nbytes + self._counts.values.nbytes if self._counts else 0
        return self._prints.nbytes + self._state.nbytes + self._hand.nbytes + counts


def batches_ahead(ids: Ints, later: list[Ints]) -> Ints:
    """How many batches ahead each row is used next, or 0: `Cache.prefetch`'s `ahead`, from the rows
    of the batches that follow, each ascending.
    """
    starts = np.cumsum([0, *(batch.size for batch in later)])
    out = np.empty_like(ids)
    kernels.batches_ahead(ids, np.concatenate([*later, _NONE]), starts, out)
    return out
