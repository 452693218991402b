"""Which rows does a software cache hold after each batch? Sets of 32 ways, as dictionaries.

A row may be in any way of one set: Murmur3's 64-bit finaliser of the row, modulo the sets (FBGEMM's
caches). Rows that a batch misses are brought in one after the other, into the lowest empty way,
else the way of the policy's victim, else nowhere. Rows of batches in flight stay (docs/memory.md
has the policies).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

WAYS = 32
NEVER = 1 << 62
FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)


def set_of(row: int, sets: int) -> int:
    """The set of a row."""
    for factor in FACTORS:
        row = (row ^ row >> 33) * factor % 2**64
    return (row ^ row >> 33) % sets


@dataclass
class CachedRow:
    """A row in a way of its set."""

    row: int
    born: int  # the batch that brought it
    used: int  # the last batch that used it
    again: bool  # used again since, or twice at once
    locks: int = 0  # batches in flight that use it
    changed: bool = False


@dataclass
class BatchMoves:
    """What one batch did, rows ascending."""

    hits: list[int] = field(default_factory=list)
    filled: list[int] = field(default_factory=list)
    outside: list[int] = field(default_factory=list)  # rows that found no way
    evicted: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)  # evicted ones that were changed


@dataclass
class RowCache:
    """A cache of `sets` sets of 32 ways under a policy; bends: mistakes that it makes."""

    sets: int
    policy: str
    bends: frozenset[str] = frozenset()
    batch: int = 0  # number of the last one, from 1
    ways: dict[int, dict[int, CachedRow]] = field(default_factory=dict)  # set -> way -> row
    counts: Counter[int] = field(default_factory=Counter)  # lookups of every row so far
    hands: dict[int, tuple[int, int]] = field(default_factory=dict)  # of SIEVE: batch and way

    def rows(self) -> dict[int, CachedRow]:
        """All rows that are cached, by number."""
        return {entry.row: entry for ways in self.ways.values() for entry in ways.values()}

    def bring(self, lookups: Mapping[int, int], next_use: Mapping[int, int]) -> BatchMoves:
        """Bring in the rows of the next batch, and lock them.

        lookups : of each row of the batch. next_use : of cached rows and those of the batch, the
            next batch that uses them; those without are not known to be used.
        """
        self.batch += 1
        moves = BatchMoves()
        cached = self.rows()
        for row, count in sorted(lookups.items()):
            self.counts[row] += 1 if "cache_lfu_counts_batches" in self.bends else count
            if row in cached:
                moves.hits.append(row)
                entry = cached[row]
                if "cache_hits_do_not_refresh" not in self.bends:
                    entry.used = self.batch
                entry.again = True
                entry.locks += 1
        missing = [row for row in lookups if row not in cached]
        for row in sorted(missing, key=lambda row: (self._turn(row, next_use), row)):
            self._fill(row, lookups[row] > 1, next_use, moves)
        for rows in vars(moves).values():
            rows.sort()
        return moves

    def _turn(self, row: int, next_use: Mapping[int, int]) -> int:
        """Rows of which this is less get a way first."""
        if self.policy == "lfu":
            return -self.counts[row]
        return next_use.get(row, NEVER) if self.policy == "lookahead" else 0

    def _fill(self, row: int, again: bool, next_use: Mapping[int, int], moves: BatchMoves) -> None:
        """Give a missing row a way, or leave it outside."""
        number = set_of(row, self.sets)
        ways = self.ways.setdefault(number, {})
        way = next((w for w in range(WAYS) if w not in ways), None)
        if way is None:
            way = self._victim(number, row, next_use)
        if way is None:
            moves.outside.append(row)
            return
        moves.filled.append(row)
        leaving = ways.get(way)
        if leaving is not None:
            moves.evicted.append(leaving.row)
            if self._writes(leaving):
                moves.written.append(leaving.row)
            if "cache_lfu_forgets_counts" in self.bends:
                del self.counts[leaving.row]
        ways[way] = CachedRow(row, self.batch, self.batch, again, locks=1)

    def _writes(self, leaving: CachedRow) -> bool:
        """Is the row written home?"""
        if "cache_drops_changes" in self.bends:
            return False
        return leaving.changed or "cache_writes_all" in self.bends

    def _victim(self, number: int, row: int, next_use: Mapping[int, int]) -> int | None:
        """The way of a full set that gives way to a row; None if none does."""
        ways = self.ways[number]
        free = [w for w in sorted(ways) if not ways[w].locks]
        if "cache_evicts_locked_rows" in self.bends:
            free = sorted(ways)
        if not free:
            return None
        if self.policy == "sieve":
            return self._sieve(number, free)
        if self.policy == "lfu":
            rarest = min(free, key=lambda w: self.counts[ways[w].row])
            return None if self.counts[ways[rarest].row] > self.counts[row] else rarest
        if self.policy == "lookahead":
            uses = {w: next_use.get(ways[w].row, NEVER) for w in free}
            farthest = min(free, key=lambda w: (-uses[w], ways[w].used))
            return None if uses[farthest] < next_use.get(row, NEVER) else farthest
        return min(free, key=lambda w: ways[w].used)

    def _sieve(self, number: int, free: Iterable[int]) -> int:
        """The first row from the hand on that was not used again."""
        ways = self.ways[number]
        queue = sorted((ways[w].born, w) for w in free)
        hand = self.hands.get(number, (0, 0))
        ahead = [place for place in queue if place > hand]
        behind = [place for place in queue if place <= hand]
        # A round takes all marks, so that the second one finds a row.
        for place in 2 * (ahead + behind):
            entry = ways[place[1]]
            if not entry.again:
                self.hands[number] = place
                return place[1]
            entry.again = False
        raise AssertionError("marks stay after a round")

    def release(self, rows: Iterable[int], changed: bool) -> None:
        """A batch is done with its rows, which it changed or not."""
        cached = self.rows()
        for row in rows:
            if row in cached and cached[row].locks:
                cached[row].locks -= 1
                cached[row].changed |= changed
