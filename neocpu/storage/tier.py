"""Which slots do the rows of a batch have, and of the batches after it? A shard's rows are brought
up before their turn.

    plan      the cache finds lines for the batch's rows and locks them; what must move is handed to the mover
    begin     its moves have ended: kernels may use its slots
    settle    it is done: its lines are free, rows that found no line go home

Several batches may be planned before their turn. A row that found no line, for want of ways that no
batch uses, is used where its home keeps it, or in a scratch slot; so several batches may have
copies of it, of which that of the batch at work is the one that counts: when it is settled, the
others get its bytes. Batches are planned in the order of their turns: a row that has a line has it
for all later ones. Moves run in the order in which they were planned: a row that leaves is home
before anybody fetches it. Source: the hazards of Neo's prefetching (`docs/memory.md` §3).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.errors import TrainingError
from neocpu.storage.cache import Moves, batches_ahead
from neocpu.storage.homes import Memory
from neocpu.storage.levels import Level, Slots
from neocpu.storage.mover import Job, Mover

Ints = NDArray[np.int64]
NONE = np.empty(0, np.int64)


@dataclass(eq=False)
class Visit:
    """A batch's rows i64[n] of one shard, distinct, ascending, each looked up counts[i] times.

    Once planned: the slot of each, its line or -1; `aside`: which have none; `scratch`: slots that
    those were given.
    """

    rows: Ints
    counts: Ints
    planned: bool = False
    changed: bool = False
    slots: Ints = field(default_factory=lambda: NONE)
    lines: Ints = field(default_factory=lambda: NONE)
    aside: Ints = field(default_factory=lambda: NONE)
    scratch: Ints = field(default_factory=lambda: NONE)
    job: Job | None = None


class Tier:
    """The rows of one shard: a first cache, and scratch slots for rows that find no line in it.

    `scratch`: (first, count); rows whose home keeps them in slots are used there instead.
    """

    def __init__(
        self, table: str, level: Level, slots: Slots, scratch: tuple[int, int], mover: Mover
    ) -> None:
        self.table = table
        self.level = level
        self._slots = slots
        self._mover = mover
        # that has a slot for every row
        self._home = level.home if isinstance(level.home, Memory) else None
        self._free = np.arange(scratch[0], sum(scratch))
        self._known: list[Visit] = []  # batches to come, in order; of them
        self._coming: list[Visit] = []  # those that are planned
        self._now: Visit | None = None
        self._last: Job | None = None  # that must have ended before the next batch begins

    # ---- before its turn ----

    def know(self, visit: Visit) -> None:
        """This batch comes after those known: news for a policy that looks ahead."""
        self._known.append(visit)
        if self.level.cache.policy.next_use:
            self.level.cache.expect(visit.rows, len(self._known))

    def plan(self, visit: Visit) -> bool:
        """Begin to bring up the rows of a coming batch: of those known the first that is not
        planned. Without room beside those under way it stays unplanned.
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
            self._last = self._mover.run(lambda: self.level.move(moves))
            self.level.cache.release(moves.lines, False)
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
        """Give up what was planned for batches whose turn has not come."""
        for visit in self._coming:
            self.level.cache.release(visit.lines, False)
            self._leave(visit)
            visit.planned = False
        self._known = self._coming + self._known
        self._coming = []

    def _leave(self, visit: Visit) -> None:
        self._free = np.concatenate([self._free, visit.scratch])
        visit.scratch = NONE

    # ---- its turn ----

    def begin(self, visit: Visit) -> Ints:
        """Slots of the batch's rows; they stay there until `settle`. Raises TrainingError where
        they are more than fit.
        """
        self.settle()
        if not visit.planned:
            self._cancel()  # batches are planned in the order of their turns
            if not self.plan(visit):
                lines = self.level.cache.lines
                name = self.level.name
                raise TrainingError(
                    f"a batch looks up {visit.rows.size:,} rows of table {self.table} on this "
                    "rank, but its cache has "
                    f"{lines:,} lines and {self._free.size:,} rows beside them; raise "
                    f"memory.{name}, use more ranks, or lower "
                    "training.batch_size"
                )
        self._wait(visit)
        self._coming.remove(visit)
        self._now = visit
        return visit.slots

    def slots_of(self, rows: Ints) -> Ints:
        """Slots of rows i64[n] of the batch at work, which are about to change."""
        assert self._now is not None
        self._now.changed = True
        return self._now.slots[np.searchsorted(self._now.rows, rows)]

    def settle(self) -> None:
        """The batch is done: its lines may be taken; rows without a line go home, and to batches
        that have a copy.
        """
        visit = self._now
        self._now = None
        if visit is None:
            return
        self.level.cache.release(visit.lines, visit.changed)
        if visit.changed and visit.aside.size:
            self._return(visit.rows[visit.aside], visit.slots[visit.aside])
        self._leave(visit)

    def _return(self, rows: Ints, slots: Ints) -> None:
        # a later batch has brought some of them into lines, as they were before
        lines = self.level.cache.locate(rows)
        inside = lines >= 0
        self.level.cache.mark(lines)
        copies = [(slots[inside], lines[inside] + self.level.first)]
        if self._home is None:
            for other in self._coming:
                theirs = other.rows[other.aside]
                _, here, there = np.intersect1d(
                    rows, theirs, assume_unique=True, return_indices=True
                )
                copies.append((slots[here], other.slots[other.aside[there]]))

        def work() -> None:
            if self._home is None:
                self.level.home.write(rows[~inside], slots[~inside])
            for source, target in copies:
                self._slots.copy(source, target)

        self._last = self._mover.run(work)

    def _wait(self, *visits: Visit) -> None:
        for job in (self._last, *(visit.job for visit in visits)):
            if job is not None:
                self._mover.wait(job)
        self._last = None

    # ---- all of it ----

    def flush(self) -> None:
        """All changed rows to their lowest home."""
        self.settle()
        self._wait(*self._coming)
        self.level.flush()

    def empty(self) -> None:
        """Flush, and forget all rows in caches: every slot of them is free. No batch may be
        planned.
        """
        self.settle()
        self._wait()
        self.level.empty()

    def forget(self) -> None:
        """Flush, and be as in the beginning, but for counts: what is known of coming batches is all
        that is kept.
        """
        self.settle()
        self._wait(*self._coming)
        self._cancel()
        self.level.forget()

    def stats(self) -> list[dict[str, Any]]:
        """Counts of all levels, nearest first."""
        return self.level.stats()
