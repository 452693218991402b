"""Which rows does fast memory hold? A `Cache` decides it, batch by batch.

    moves = cache.prefetch(rows, counts)   1. write rows moves.evicted_rows, those that are dirty,
                                             from moves.evicted_lines home
                                          2. read rows moves.filled_rows into moves.filled_lines
                                          3. row rows[i] is in line moves.lines[i], or outside (-1)
    …                                     lookup, backward, update: on lines
    cache.release(moves.lines)            the batch is done with them

The cache holds row numbers only; the bytes of the rows are the caller's. All evictions of a call
may be written before any of its rows is read: no row is in both lists. Several batches may be in
flight, released in any order. docs/memory.md explains the policies.
"""

from typing import NamedTuple

import numpy as np

from neocpu.core.policies import DEFAULT, NEVER, POLICIES, Policy
from neocpu.core.types import Bools, Dtype, Ints
from neocpu.kernels.compile.choice import chosen
from neocpu.kernels.logs import hashing
from neocpu.kernels.operands import BatchRows, CacheState, Evicted, Misses, RowsFound
from neocpu.kernels.tiers import cache as kernels
from neocpu.kernels.tiers import next_uses
from neocpu.tables.storage.arena import Arena
from neocpu.tables.tiers.placement import WAYS, sets_for

__all__ = ["STATISTICS", "WAYS", "Cache", "Moves", "batches_ahead", "sets_for"]
STATISTICS = (
    "calls",
    "requested",
    "unique",
    "unique_misses",
    "conflict_unique_misses",
    "conflict_misses",
)
_NONE = np.empty(0, np.int64)
# The state of a line: 16 bytes, so that a cache line of the processor holds four of them.
LINE = np.dtype(
    {
        "names": ["tag", "stamp", "locks", "dirty"],
        "formats": ["<i8", "<i4", "<i2", "|u1"],
        "offsets": [0, 8, 12, 14],
        "itemsize": 16,
    }
)
# The same for policies that count lookups or know the next use: two in a cache line.
WIDE_LINE = np.dtype(
    {
        "names": ["tag", "stamp", "next_use", "locks", "dirty"],
        "formats": ["<i8", "<i8", "<i8", "<i2", "|u1"],
        "offsets": [0, 8, 16, 24, 26],
        "itemsize": 32,
    }
)


def line_of(policy: Policy) -> Dtype:
    """The dtype of a line's state under a policy."""
    return WIDE_LINE if policy.counts or policy.next_use else LINE


class Moves(NamedTuple):
    """What a cache decided for the rows of a batch.

    lines : of each row, in the order of the batch, its line, or -1 (a conflict miss).
    evicted_* : lines that lose a row, the row, and whether it was changed.
    filled_* : lines that get a row and the row, by ascending row.
    """

    lines: Ints
    evicted_lines: Ints
    evicted_rows: Ints
    evicted_dirty: Bools
    filled_lines: Ints
    filled_rows: Ints


class _Counts:
    """Lookup counts of rows that are not in the cache: a hash map that doubles when half full."""

    def __init__(self) -> None:
        self.rows = np.zeros(1024, np.uint64)
        self.counts = np.zeros(1024, np.int64)
        self.used = 0

    def add(self, rows: Ints, counts: Ints) -> Ints:
        """Add to the counts of rows; returns the new counts."""
        if 2 * (self.used + rows.size) > self.rows.size:
            filled = self.counts != 0
            # at most a quarter full, so that it does not grow again at once
            room = 1 << (4 * (self.used + rows.size) - 1).bit_length()
            kept_rows = self.rows[filled]
            kept_counts = self.counts[filled]
            self.rows = np.zeros(room, np.uint64)
            self.counts = np.zeros(room, np.int64)
            hashing.fill_map(kept_rows, kept_counts, self.rows, self.counts)
        out = np.empty_like(rows)
        self.used += hashing.add_counts(rows.view(np.uint64), counts, self.rows, self.counts, out)
        return out

    def put(self, rows: Ints, counts: Ints) -> None:
        """Set the counts of rows that were counted before."""
        hashing.fill_map(rows.view(np.uint64), counts, self.rows, self.counts)


class Cache:
    """A 32-way set-associative cache of row numbers.

    sets, lines : its geometry; line = set * 32 + way.
    policy : its record in `neocpu.core.policies`.
    batch : number of the last batch that was prefetched, from 1.
    held, peak : rows in the lines, and the most that there were.
    """

    def __init__(self, sets: int, policy: str = DEFAULT) -> None:
        self.sets = sets
        self.lines = sets * WAYS
        self.policy = POLICIES[policy]
        self.batch = 0
        self.held = 0
        self.peak = 0
        self._find = chosen("tiers.cache", "finder")(self.policy.functions)
        self._populate = kernels.populator(self.policy.functions)
        line = line_of(self.policy)
        # lazily committed: lines that never hold a row take no memory
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
        self._missing = np.empty((5, 0), np.int64)
        self._counts = _Counts() if self.policy.counts else None
        self._statistics = dict.fromkeys(STATISTICS, 0)

    def prefetch(self, rows: Ints, counts: Ints, ahead: Ints = _NONE) -> Moves:
        """Bring the rows of the next batch into lines, and lock those lines.

        rows : i64[n], each once, ascending, >= 0. Not checked.
        counts : i64[n], lookups of each.
        ahead : i64[n], how many batches later each is used again, 0 where that is unknown (only the
            policy `lookahead` uses it).
        """
        self.batch += 1
        next_use = self._uses(rows, ahead)
        if self._work.shape[0] < rows.size:
            self._work = np.empty((rows.size + rows.size // 8, 5), np.int64)
            self._missing = np.empty(self._work.T.shape, np.int64)
        lines = np.empty_like(rows)
        # threads share the rows by chunks, and each chunk has counters of its own
        misses, lookups = np.empty((2, -(-rows.size // kernels.CHUNK)), np.int64)
        batch = BatchRows(rows, counts, next_use)
        self._find(
            batch, self.batch, self._known, RowsFound(lines, self._missing[0], misses, lookups)
        )
        miss_count = kernels.gather(misses, self._missing[0], lines, self._missing[1])
        missed, sets, old_rows, old_lines, old_stamps = self._missing[:, :miss_count]
        evicted = Evicted(old_rows, old_lines, old_stamps, np.empty(miss_count, np.uint8))
        amounts = counts[missed]
        order = _NONE
        # Where ways are scarce, rows looked up most, or used again soonest, get a line first.
        if self._counts:
            amounts = self._counts.add(rows[missed], amounts)
            order = np.argsort(-amounts, kind="stable")
        elif next_use.size:
            order = np.argsort(next_use[missed], kind="stable")
        newcomers = Misses(missed, sets, amounts, order)
        work = self._work[:miss_count]
        self._populate(batch, newcomers, work, self.batch, self._known, lines, evicted)
        if self._counts:
            leaving = old_rows >= 0
            # the line counted while the row was in it
            self._counts.put(old_rows[leaving], old_stamps[leaving])
        moves = np.empty((4, miss_count), np.int64)
        dirty = np.empty(miss_count, np.bool_)
        evictions, fills, outside = kernels.settle(batch, missed, lines, evicted, moves, dirty)
        self.held += int(fills) - int(evictions)
        self.peak = max(self.peak, self.held)
        increments = (1, lookups.sum(), rows.size, miss_count, miss_count - fills, outside)
        for name, increment in zip(STATISTICS, increments):
            self._statistics[name] += int(increment)
        return Moves(
            lines=lines,
            evicted_lines=moves[0, :evictions],
            evicted_rows=moves[1, :evictions],
            evicted_dirty=dirty[:evictions],
            filled_lines=moves[2, :fills],
            filled_rows=moves[3, :fills],
        )

    def _uses(self, rows: Ints, ahead: Ints) -> Ints:
        """Number of the batch that uses each row next; empty for policies that ignore it."""
        if not self.policy.next_use:
            return _NONE
        if not ahead.size:
            return np.full_like(rows, NEVER)
        return np.where(ahead > 0, self.batch + ahead, NEVER)

    def release(self, lines: Ints, changed: bool = True) -> None:
        """Unlock the lines of a batch (`Moves.lines`); changed : the batch wrote to them."""
        errors = np.empty(-(-lines.size // kernels.CHUNK), np.int64)
        kernels.release(lines, changed, self._locks, self._dirty, errors)
        if errors.any():
            raise ValueError("a line was released more often than it was prefetched")

    def expire(self, lines: Ints) -> tuple[Ints, Ints, Bools]:
        """Empty those of the lines (-1: none) whose rows no known batch uses.

        For policies with `expires`, after `release`. Returns (lines, rows, dirty); the caller
        writes the dirty ones home before it reads any row again.
        """
        gone = np.empty((2, lines.size), np.int64)
        dirty = np.empty(lines.size, np.bool_)
        n = next_uses.expire(lines, self.batch, self._known, gone[0], gone[1], dirty)
        self.held -= n
        return gone[0, :n], gone[1, :n], dirty[:n]

    def mark(self, lines: Ints) -> None:
        """Mark lines (-1: none) as different from home, whether or not a batch changed them."""
        self._dirty[lines[lines >= 0]] = 1

    def locate(self, rows: Ints) -> Ints:
        """Current line of every row, or -1; rows may repeat, in any order. Changes nothing."""
        out = np.empty_like(rows)
        chosen("tiers.cache", "locate")(rows, self._prints, self._tags, out)
        return out

    def expect(self, rows: Ints, ahead: int) -> None:
        """Announce that the batch `ahead` batches after the last one will use these rows.

        For the policy `lookahead`, when a batch enters its window: it updates the next use of rows
        that are in lines already.
        """
        next_uses.expect(self.locate(rows), self.batch + ahead, self.batch, self._next_use)

    def rows(self) -> tuple[Ints, Ints]:
        """(lines, rows) of all rows that the cache holds, by line."""
        # prints of rows are never 0, so 0 means an empty line
        lines = np.flatnonzero(self._prints)
        return lines, self._tags[lines]

    def flush(self) -> tuple[Ints, Ints]:
        """(lines, rows) of all dirty lines, by line; they stay, and count as clean.

        The caller writes them home.
        """
        lines = np.flatnonzero(self._dirty)
        self._dirty[lines] = 0
        return lines, self._tags[lines]

    def invalidate(self) -> None:
        """Empty all lines, dirty or not (`flush` comes first); lookup counts are kept.

        Raises ValueError while a batch is in flight.
        """
        if self._locks.any():
            raise ValueError(
                "a batch in flight uses the cache: release its lines before they are invalidated"
            )
        lines, rows = self.rows()
        if self._counts:
            # rows that leave take their counts along, as if they were evicted
            self._counts.put(rows, self._stamp[lines])
        self._prints[lines] = 0
        self._dirty[lines] = 0
        self.held = 0

    def forget(self) -> None:
        """As `invalidate`, and reset lookup counts: it then decides like a new cache."""
        # asked before the lines are emptied
        lines = self.rows()[0]
        self.invalidate()
        self._state[lines] = np.zeros((), self._state.dtype)
        self._hand[:] = -1
        self.batch = 0
        self._counts = _Counts() if self.policy.counts else None

    def stats(self) -> dict[str, int]:
        """FBGEMM's six counters (`STATISTICS`).

        Calls; lookups requested; rows requested; rows missed; rows, and lookups, that found no
        line.
        """
        return dict(self._statistics)

    def reset_stats(self) -> None:
        """Count from 0."""
        self._statistics = dict.fromkeys(STATISTICS, 0)


def batches_ahead(rows: Ints, later: list[Ints]) -> Ints:
    """How many batches later each row is used next, or 0: the `ahead` of `Cache.prefetch`.

    later : the rows of the batches that follow, each ascending.
    """
    starts = np.cumsum([0, *(batch.size for batch in later)])
    out = np.empty_like(rows)
    next_uses.batches_ahead(rows, np.concatenate([*later, _NONE]), starts, out)
    return out
