"""Which slot has a row, which slots are free, and what changed since the last commit?

The index of one table, in memory.
"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.errors import StorageError
from neocpu.core.types import Bools, Bytes, Ints
from neocpu.kernels.tiers import row_index as kernels
from neocpu.kernels.twins.tiers.row_index import FREE, FRESH, HELD, LIVE, NEW, STAYED

FULLEST = 0.75  # load factor of the hash map at which it doubles
PIECE = 1 << 20  # rows of one piece of `RowSlots.rows`


class RowSlots:
    """The index of one table: a hash map from row to slot, and a status byte per slot.

    It also lists the slots that changed since the last commit.

    rows : that the table could have.
    count, free : attributes, rows that have a slot, and slots without a row.
    """

    def __init__(self, name: str, rows: int) -> None:
        self._name = name
        # a word of the map is a row and its slot: rows take the bits they need, slots the rest
        self._shift = 64 - max(1, (rows - 1).bit_length())
        self._words = np.zeros(64, np.uint64)
        self._status = np.zeros(0, np.uint8)
        self.count = 0
        self.free = 0
        self._cursor = 0
        self._born: list[Ints] = []
        self._died: list[Ints] = []
        # Slots that the commit before the last one needs, and those that the last one will leave.
        self._held = np.zeros(0, np.int64)
        self._left = np.zeros(0, np.int64)

    @property
    def slots(self) -> int:
        """Slots that there are."""
        return self._status.size

    @property
    def nbytes(self) -> int:
        """Memory of the index; lists of changed slots come on top until the next commit."""
        return self._words.nbytes + self._status.nbytes

    def extend(self, slots: int) -> None:
        """There are that many slots now; new ones are free."""
        # the slot would not fit beside the row in its word
        if slots >= 1 << min(self._shift, 62):
            raise StorageError(
                f"table {self._name}: {slots:,} slots are more than its index can number; use "
                "more ranks"
            )
        growth = slots - self.slots
        if growth > 0:
            self._status = np.concatenate([self._status, np.zeros(growth, np.uint8)])
            self.free += growth

    def find(self, rows: Ints) -> Ints:
        """Slot of every row, -1 for one that is not there."""
        slots = np.empty(rows.size, np.int64)
        kernels.find_slots(rows, self._words, self._shift, slots)
        return slots

    def slots_needed(self, rows: Ints) -> int:
        """How many free slots it takes to write these rows."""
        slots = self.find(rows)
        return rows.size - int(np.count_nonzero(self._status[slots[slots >= 0]] == FRESH))

    def place(self, rows: Ints) -> Ints:
        """Slots in which distinct rows are to be written; `slots_needed(rows)` must be free."""
        self._make_room(rows.size)
        slots = np.empty(rows.size, np.int64)
        old = np.empty(rows.size, np.int64)
        # the search for free slots goes on where the last one ended: neighbours are written
        # together
        self._cursor = kernels.place_rows(
            rows, self._words, self._shift, self._status, self._cursor, slots, old
        )
        born = slots[old != STAYED]
        self.count += int(np.count_nonzero(old == NEW))
        self.free -= born.size
        self._born.append(born)
        # -1 and below: the row had no slot, or stays in its own
        self._died.append(old[old >= 0])
        return slots

    def load(self, rows: Ints, slots: Ints) -> int:
        """Enter committed rows; returns the index in `rows` of a duplicate, or -1."""
        self._make_room(rows.size)
        duplicate: int = kernels.insert_rows(rows, slots, self._words, self._shift)
        self.count += rows.size
        return duplicate

    def restore(self, live: Bytes, held: Ints) -> None:
        """Set the statuses to those after a commit.

        live : u8[slots], 1 where a row lives.
        held : slots that only the commit before needs.
        """
        self._status = live.astype(np.uint8)
        # should the last header be damaged, the one before it counts, with these slots
        self._status[held] = HELD
        self._held = held
        self.free = int(np.count_nonzero(self._status == FREE))

    def live(self, low: int, high: int) -> Ints:
        """Slots in [low, high) with rows of the last commit or later."""
        status = self._status[low:high]
        return low + np.flatnonzero((status == LIVE) | (status == FRESH))

    def _make_room(self, count: int) -> None:
        size = self._words.size
        while self.count + count > FULLEST * size:
            size *= 2
        if size > self._words.size:
            larger = np.zeros(size, np.uint64)
            kernels.rehash(self._words, self._shift, larger)
            self._words = larger

    def changes(self) -> tuple[Ints, Ints]:
        """Slots born and died since the last commit was begun, ascending."""
        none = [np.zeros(0, np.int64)]
        born = np.sort(np.concatenate(self._born + none))
        died = np.sort(np.concatenate(self._died + none))
        return born, died

    def alive(self) -> Bytes:
        """A byte per slot: 1 where a row lives once this is committed."""
        alive: Bools = (self._status == LIVE) | (self._status == FRESH)
        return alive.astype(np.uint8)

    def seal(self) -> None:
        """Assign all changes to a commit that is being made; later writes take other slots."""
        born, died = self.changes()
        self._status[born] = LIVE
        self._status[died] = HELD  # until this commit is made, the last one still needs them
        self._left = died
        self._born = []
        self._died = []

    def release(self) -> None:
        """That commit is made: free the slots that only the one before the last needed."""
        self._status[self._held] = FREE
        self.free += self._held.size
        # they wait one more commit: the header before the last still names them
        self._held = self._left

    def rows(self) -> Iterator[Ints]:
        """All rows that have a slot, ascending, in pieces of about a million or a sixteenth."""
        wide = max(0, 64 - self._shift - 12)
        counts = np.zeros(1 << min(12, 64 - self._shift), np.int64)
        kernels.count_ranges(self._words, self._shift, wide, counts)
        most = max(PIECE, self.count // 16)
        low = 0
        total = 0
        for end, count in enumerate([*counts.tolist(), most + 1]):
            if total and total + count > most:
                piece = np.empty(total, np.int64)
                kernels.rows_between(self._words, self._shift, low << wide, end << wide, piece)
                piece.sort()
                yield piece
                total = 0
            if not total:
                low = end
            total += count
