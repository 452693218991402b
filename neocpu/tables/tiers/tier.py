"""Which slots do the rows of a batch have, and of the batches after it?

The rows of a shard are brought up before the batch that uses them begins.

    plan      the cache finds lines for the batch's rows and locks them; the mover gets their moves
    begin     these moves have ended: kernels may use the slots
    settle    the batch is done: its lines are free, rows that found no line go home

Several batches may be planned ahead. A row that found no line, because the batches in flight use
all ways of its set, is used where its home keeps it, or in a scratch slot; so several batches may
have copies of it. The copy of the batch at work is the valid one: when that batch is settled, its
bytes are copied to the others. Batches are planned in the order in which they run: a row that has a
line keeps it for all later batches. Moves run in the order in which they were planned: a row that
leaves is home before it is fetched again. Under a policy whose rows expire, those of a settled
batch that no known batch uses go home at once, behind the moves that the next batch waits for: what
BagPipe calls late synchronisation. Source: the hazards of Neo's prefetching (`docs/memory.md` §3).
"""

from dataclasses import dataclass, field

import numpy as np

from neocpu.core.errors import TrainingError
from neocpu.core.types import Ints
from neocpu.tables.tiers.cache import Moves, batches_ahead
from neocpu.tables.tiers.homes import Memory
from neocpu.tables.tiers.levels import Level, Slots, Stats
from neocpu.tables.tiers.mover import Job, Mover
from neocpu.tables.tiers.placement import WAYS

NONE = np.empty(0, np.int64)


@dataclass(eq=False)
class Visit:
    """The rows i64[n] of one shard that a batch uses, and how often each is looked up.

    rows : distinct, ascending.

    Once it is planned:

    slots, lines : of the rows (-1: no line).
    aside : where in `rows` those without a line are.
    scratch : the scratch slots that they were given.
    fetched : rows that were brought up for it. late : was that when its turn came?
    """

    rows: Ints
    counts: Ints
    planned: bool = False
    changed: bool = False
    late: bool = False
    fetched: int = 0
    slots: Ints = field(default_factory=lambda: NONE)
    lines: Ints = field(default_factory=lambda: NONE)
    aside: Ints = field(default_factory=lambda: NONE)
    scratch: Ints = field(default_factory=lambda: NONE)
    job: Job | None = None


class Tier:
    """The rows of one shard: the nearest cache, and scratch slots for rows without a line in it.

    scratch : (first, count); if the home keeps rows in slots, they are used there instead.
    """

    def __init__(
        self, table: str, level: Level, slots: Slots, scratch: tuple[int, int], mover: Mover
    ) -> None:
        self.table = table
        self.level = level
        self._slots = slots
        self._mover = mover
        # a home that has a slot for every row
        self._home = level.home if isinstance(level.home, Memory) else None
        self._free = np.arange(scratch[0], sum(scratch))
        self._known: list[Visit] = []  # batches announced but not planned, in order
        self._coming: list[Visit] = []  # batches planned, in order
        self._current: Visit | None = None
        self._last: Job | None = None  # must have ended before the next batch begins
        self._later: Job | None = None  # must have ended before anybody reads the homes
        self._late = 0

    # ---- before its turn ----

    def know(self, visit: Visit) -> None:
        """Announce a batch that comes after those known, for a policy that looks ahead."""
        self._known.append(visit)
        if self.level.cache.policy.next_use:
            self.level.cache.expect(visit.rows, len(self._known))

    def plan(self, visit: Visit) -> bool:
        """Begin to bring up the rows of a coming batch, the first known one that is not planned.

        Returns false, and leaves it unplanned, if it does not fit beside the batches in flight.
        """
        if visit in self._known[1:]:
            return False
        ahead = NONE
        if self.level.cache.policy.next_use:
            ahead = batches_ahead(
                visit.rows, [later.rows for later in self._known if later is not visit]
            )
        moves = self.level.cache.prefetch(visit.rows, visit.counts, ahead)
        aside = np.flatnonzero(moves.lines < 0)
        if self._home is None and aside.size > self._free.size:
            # the cache has decided already: lines and rows must agree with it, for this batch or
            # none
            self._last = self._mover.run(lambda: self.level.move(moves))
            self.level.cache.release(moves.lines, False)
            visit.aside = aside
            return False
        visit.slots = moves.lines + self.level.first
        visit.lines = moves.lines
        visit.aside = aside
        if self._home is None:
            visit.scratch = self._free[: aside.size]
            self._free = self._free[aside.size :]
            visit.slots[aside] = visit.scratch
        else:
            visit.slots[aside] = self._home.slots_of(visit.rows[aside])
        visit.fetched = moves.filled_rows.size + visit.scratch.size
        rows = visit.rows[aside]
        scratch = visit.scratch
        visit.job = self._mover.run(lambda: self._fetch(moves, rows, scratch))
        visit.planned = True
        self._known = [later for later in self._known if later is not visit]
        self._coming.append(visit)
        return True

    def _fetch(self, moves: Moves, aside: Ints, scratch: Ints) -> None:
        self.level.move(moves)
        if self._home is not None:
            self._home.place(aside)
        elif aside.size:
            self.level.home.read(aside, scratch)

    def _cancel(self) -> None:
        """Undo the plans of all batches that have not begun."""
        for visit in self._coming:
            self.level.cache.release(visit.lines, False)
            self._free_scratch(visit)
            visit.planned = False
        # they come first: they were to run before those that are only known
        self._known = self._coming + self._known
        self._coming = []

    def _free_scratch(self, visit: Visit) -> None:
        self._free = np.concatenate([self._free, visit.scratch])
        visit.scratch = NONE

    # ---- its turn ----

    def begin(self, visit: Visit) -> Ints:
        """Slots of the batch's rows; they stay there until `settle`.

        Raises TrainingError if the rows are more than fit.
        """
        self.settle()
        if not visit.planned:
            self._cancel()  # batches are planned in the order in which they run
            visit.late = True
            if not self.plan(visit):
                lines = self.level.cache.lines
                raise TrainingError(
                    f"a batch looks up {visit.rows.size:,} rows of table {self.table} on this "
                    f"rank. Its cache has {lines:,} lines in sets of {WAYS}, and a row belongs to "
                    f"one set: {visit.aside.size:,} of these rows find theirs full, and only "
                    f"{self._free.size:,} such rows have room beside the cache; raise "
                    f"memory.{self.level.name}, use more ranks, or lower training.batch_size"
                )
        self._wait(visit)
        self._coming.remove(visit)
        self._current = visit
        return visit.slots

    def slots_of(self, rows: Ints) -> Ints:
        """Slots of rows i64[n] of the batch at work, which are about to change."""
        assert self._current is not None
        self._current.changed = True
        return self._current.slots[np.searchsorted(self._current.rows, rows)]

    def settle(self) -> None:
        """End the batch at work, if any: free its lines, and return its rows without a line.

        Such rows go home, and to the batches that have a copy of them.
        """
        visit = self._current
        self._current = None
        if visit is None:
            return
        # evaluation changes nothing, so its rows need not be written home
        self.level.cache.release(visit.lines, visit.changed)
        if visit.changed and visit.aside.size:
            self._return(visit.rows[visit.aside], visit.slots[visit.aside])
        self._free_scratch(visit)
        if visit.changed:
            self._late += visit.fetched if visit.late else 0
            self._late += visit.aside.size if self._home is not None else 0
        # evaluation knows no later batches, so its rows would all go only to be fetched again
        if visit.changed and self.level.cache.policy.expires:
            lines, rows, dirty = self.level.cache.expire(visit.lines)
            gone = rows[dirty], lines[dirty]
            # the next batch does not wait for it: a row that returns is fetched after it
            self._later = self._mover.run(lambda: self.level.send_home(*gone))

    def _return(self, rows: Ints, slots: Ints) -> None:
        # A later batch may have brought some of the rows into lines before they were updated.
        lines = self.level.cache.locate(rows)
        inside = lines >= 0
        # the line gets bytes that home lacks, whether or not its own batch changes the row
        self.level.cache.mark(lines)
        copies = [(slots[inside], lines[inside] + self.level.first)]
        if self._home is None:
            for visit in self._coming:
                scratch_rows = visit.rows[visit.aside]
                _, i, j = np.intersect1d(
                    rows, scratch_rows, assume_unique=True, return_indices=True
                )
                copies.append((slots[i], visit.slots[visit.aside[j]]))

        def work() -> None:
            if self._home is None:
                # rows with a line stay there: the cache writes them home when they leave
                self.level.home.write(rows[~inside], slots[~inside])
            for source, target in copies:
                self._slots.copy(source, target)

        self._last = self._mover.run(work)

    def _wait(self, *visits: Visit) -> None:
        for job in (self._last, *(visit.job for visit in visits)):
            if job is not None:
                self._mover.wait(job)
        self._last = None

    def _quiet(self) -> None:
        """Wait for all moves."""
        self._wait(*self._coming)
        if self._later is not None:
            self._mover.wait(self._later)
        self._later = None

    # ---- all of it ----

    def flush(self) -> None:
        """Write all changed rows to their lowest home."""
        self.settle()
        self._quiet()
        self.level.flush()

    def empty(self) -> None:
        """Flush, and empty all caches. No batch may be planned."""
        self.settle()
        self._quiet()
        self.level.empty()

    def forget(self) -> None:
        """Flush, and reset all caches; only statistics and announced batches are kept."""
        self.settle()
        self._quiet()
        self._cancel()
        self.level.forget()

    def stats(self) -> list[Stats]:
        """Counts of all levels, nearest first.

        "late" of the nearest: rows of batches that changed them which were not in fast memory when
        their batch's turn came. They were fetched then, or used where they lie.
        """
        self._quiet()
        nearest, *below = self.level.stats()
        return [{**nearest, "late": self._late}, *below]
