"""How does a rank train tables larger than its memory? It brings the rows of each batch into the
slots of a cache, where kernels read and write them.

    rows of a batch ─► unique rows of each shard ─► slots (`tables/tiers/levels.py`)
                                                      └─► lookup, backward and update by slot

One slot number serves weights and states. Rows keep their own numbers wherever order or randomness
depends on them: sorting, sums over column shards, initial values. So every placement gives the bits
of the one that keeps all rows in memory (Neo's memory hierarchy; `docs/memory.md`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from neocpu.core.errors import StorageError, TrainingError
from neocpu.core.types import Bytes, Floats, FloatsByName, Ints
from neocpu.kernels.compile.threads import threading_layer
from neocpu.kernels.records import Segments, whole_table
from neocpu.tables.embedding.borders import Narrowed
from neocpu.tables.embedding.lookups import EntryLayout, Lookups, Rectangle
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.tables.embedding.shard_rows import PIECE
from neocpu.tables.embedding.sorting import sort_lookups, with_gradient_places
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpecs
from neocpu.tables.storage.device import Device
from neocpu.tables.storage.extents import RowTable
from neocpu.tables.storage.row_file import RowFile
from neocpu.tables.storage.row_tools import remove
from neocpu.tables.tiers.homes import Border, FileRecords, Memory, MemoryRecords, RecordHome
from neocpu.tables.tiers.levels import Home, Level, Slots, Stats
from neocpu.tables.tiers.mover import Mover
from neocpu.tables.tiers.placement import PLACEMENTS, Placement, Room
from neocpu.tables.tiers.tier import Tier, Visit

__all__ = ["MemoryPlan", "TieredEmbedding"]


@dataclass(frozen=True)
class _Batch:
    """Lookups of one batch, by shard and row, and for each tiered shard the rows to bring."""

    lookups: Lookups
    segments: Segments
    visits: dict[int, Visit]


class TieredEmbedding(TableBatchedEmbedding):
    """A `TableBatchedEmbedding` some of whose shards live in slower memory than the one they are
    used in.

    memory : placements and budgets.
    file : name of this rank's SSD file in `memory.folder`; an old one is overwritten.
    """

    def __init__(
        self,
        tables: TableSpecs,
        shards: Iterable[Rectangle],
        optimizer: SparseOptimizer,
        seed: int,
        memory: MemoryPlan,
        file: str = "rank-0.h5",
        huge: bool = True,
    ) -> None:
        shards = tuple(shards)
        self.rooms = rooms = memory.rooms(tables, shards, optimizer.state_floats)
        placements = [PLACEMENTS[memory.placements[shard.table]] for shard in shards]
        slots = np.array([room.slots for room in rooms], np.int64)
        super().__init__(
            # kernels see rows as the caches hold them, perhaps wider than at home
            [table.cached for table in tables],
            shards,
            optimizer,
            seed,
            0,
            huge,
            slots,
        )
        self._huge = huge
        self._tiers = dict[int, Tier]()
        self._narrow = {
            h: Narrowed(tables[shard.table], shard, self.rule, seed)
            for h, shard in enumerate(shards)
            if tables[shard.table].cache_format
        }
        for h in self._narrow:
            if not placements[h].caches:
                table = tables[shards[h].table]
                raise TrainingError(
                    f"table {table.name}: has a cache_format, but no cache; give it another "
                    "memory.placement"
                )
        self._ticket = memory.ticket(file)
        self._share = self._ticket.share if self._ticket else None
        self._ddr = Device(memory.ddr_bandwidth, share=self._share)
        # Numba's workqueue ends the process when two threads run kernels at once
        self._mover = Mover(memory.prefetch > 0 and threading_layer() != "workqueue")
        self._coming: dict[int, _Batch] = {}  # known batches, by identity of their lookups
        # batches of this step, by the shards of their layout
        self._present: dict[bytes, _Batch] = {}
        self._known: dict[int, Ints] = {}  # rows of each shard that existed at the last flush
        self._file, file_tables = self._open(
            memory, file, [h for h, placement in enumerate(placements) if placement.ssd]
        )
        for h, (room, placement) in enumerate(zip(rooms, placements)):
            if placement.caches:
                # a slot passes from row to row, so a mark on it would say nothing
                self.changes.marks[h] = None
                self._tiers[h] = self._tier(
                    h, room, placement, memory.policy, file_tables.get(h, -1)
                )
                self._row_counts[h] = room.slots  # slots are made by their homes

    def _open(
        self, memory: MemoryPlan, file: str, stored: list[int]
    ) -> tuple[RowFile | None, dict[int, int]]:
        """The SSD file, and its table's number for each shard that it stores."""
        if not stored:
            return None, {}
        assert memory.folder is not None
        path = (self._ticket.rows if self._ticket else memory.folder) / file
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # what matters of an older run is in its checkpoints
            remove(path)
        except OSError as error:
            raise StorageError(
                f"{path}: cannot be made: {error.strerror}; choose another memory.folder"
            ) from error
        tables = []
        for h in stored:
            shard = self.shards[h]
            record = self._narrow[h].record if h in self._narrow else self._slots(h).record
            name = f"{self._spec(h).name}.{h}"
            rows = int(self.heights[h])
            width = int(self.width[h])
            tables.append(
                RowTable(
                    name, rows, record, shard.rows[0], shard.cols[0], width, self._layout_of(h)
                )
            )
        row_file = RowFile.create(
            path,
            tables,
            device=Device(memory.ssd_bandwidth, memory.ssd_iops, share=self._share),
            budget=memory.ssd,
        )
        return row_file, {h: i for i, h in enumerate(stored)}

    def _layout_of(self, h: int) -> str:
        """What a record is made of, in words."""
        rule = self.rule
        form = self._narrow[h].codec.name if h in self._narrow else self._spec(h).format
        return ", ".join(
            [f"weight {form}", *(f"{name} fp32" for name in (*rule.element_state, *rule.row_state))]
        )

    def _slots(self, h: int, numbers: bool = True) -> Slots:
        """Slots of a shard, with its numbers or of states alone."""
        slots = int(self.slots[h])
        width = int(self.width[h])
        at = int(self.base[h])
        store = self._store(h)
        row = int(self._places.row_base[h])
        per_row = len(self.rule.row_state)
        arrays = [
            a[at : at + slots * width] for a in (store.arrays if numbers else store.element_states)
        ]
        return Slots([*arrays, self._row_state[row * per_row : (row + slots) * per_row]], slots)

    def _tier(self, h: int, room: Room, placement: Placement, policy: str, file_table: int) -> Tier:
        slots = self._slots(h)
        whole = self.slots[h] - room.whole

        def create(rows: Ints, to: Ints) -> None:
            for at in range(0, rows.size, PIECE):
                start = self._start(h, rows[at : at + PIECE])
                if h in self._narrow:
                    # a new row is what it would be had it been at home
                    start["weight"] = self._narrow[h].nearest(start["weight"])
                self._set(h, to[at : at + PIECE], start)

        home: Home
        border = self._border(h) if h in self._narrow else Border(slots)
        if placement.ssd:
            assert self._file is not None
            home = RecordHome(FileRecords(self._file, file_table), border, create)
        elif h in self._narrow:
            home = RecordHome(
                MemoryRecords(placement.whole, int(self.heights[h]), border.record, self._huge),
                border,
                create,
                self._ddr,
            )
        else:
            home = Memory(placement.whole, slots, int(whole), room.whole, create, self._ddr)
        # one region: lines of the first cache, scratch, lines of the second, rows kept whole
        first = [0, room.lines[0] + room.scratch]
        for i in reversed(range(len(placement.caches))):
            home = Level(
                placement.caches[i],
                slots,
                first[i],
                room.lines[i],
                policy,
                home,
                self._ddr if i else None,
            )
        assert isinstance(home, Level)
        return Tier(self._spec(h).name, home, slots, (room.lines[0], room.scratch), self._mover)

    def _border(self, h: int) -> Border:
        """Between the wide slots of a shard and its narrow records."""
        return self._narrow[h].border(
            self._slots(h),
            self._slots(h, numbers=False),
            lambda slots: np.asarray(self.state(h)["weight"][slots]),
            lambda slots, numbers: self._set(h, slots, {"weight": numbers}),
        )

    # ---- rows and slots ----

    def know(self, layout: EntryLayout, lookups: Lookups) -> None:
        if any(h in self._tiers for h in layout.shard.tolist()):
            coming = self._coming[id(lookups)] = self._find(layout, lookups)
            for h, visit in coming.visits.items():
                self._tiers[h].know(visit)

    def prefetch(self, lookups: Lookups) -> None:
        if (coming := self._coming.get(id(lookups))) is not None:
            for h, visit in coming.visits.items():
                if not visit.planned:
                    self._tiers[h].plan(visit)

    def _find(self, layout: EntryLayout, lookups: Lookups) -> "_Batch":
        segments = sort_lookups(layout, lookups, self.heights, self._scratch)
        # the arrays are scratch, and the batch may wait for its turn
        segments = segments._replace(
            unique=segments.unique.copy(),
            starts=segments.starts.copy(),
            place=segments.place.copy(),
        )
        counts = np.diff(segments.starts)
        visits = {}
        for h, lo, hi in segments.spans():
            if h in self._tiers:
                visits[h] = Visit(segments.unique[lo:hi], counts[lo:hi])
        return _Batch(lookups, segments, visits)

    def _ready(self, layout: EntryLayout, lookups: Lookups) -> Lookups:
        self.create(layout, lookups)
        if not any(h in self._tiers for h in layout.shard.tolist()):
            return lookups
        batch = self._coming.pop(id(lookups), None) or self._find(layout, lookups)
        self._present[layout.shard.tobytes()] = batch
        segments = batch.segments
        slots = segments.unique.copy()
        for h, lo, hi in segments.spans():
            if h in self._tiers:
                slots[lo:hi] = self._tiers[h].begin(batch.visits[h])
        slot_lookups = lookups.rows.copy()
        slot_lookups[segments.place] = np.repeat(slots, np.diff(segments.starts))
        return replace(lookups, rows=slot_lookups)

    def _sort(self, layout: EntryLayout, lookups: Lookups, stride: int | Ints) -> Segments:
        batch = self._present.get(layout.shard.tobytes())
        if batch is None or batch.lookups is not lookups:
            return super()._sort(layout, lookups, stride)
        # they were sorted when their rows were brought
        return with_gradient_places(batch.segments, layout, lookups, stride)

    def _located(self, segments: Segments) -> Segments:
        if not any(h in self._tiers for h in segments.shards.tolist()):
            return segments
        slots = segments.unique.copy()
        for h, lo, hi in segments.spans():
            if h in self._tiers:
                slots[lo:hi] = self._slots_of(h, segments.unique[lo:hi])
        return segments._replace(unique=slots)

    def _slots_of(self, shard: int, rows: Ints) -> Ints:
        return self._tiers[shard].slots_of(rows) if shard in self._tiers else rows

    def settle(self) -> None:
        for tier in self._tiers.values():
            tier.settle()
        self._present.clear()

    def lines(self, shard: int) -> int:
        """Rows that the largest cache of a shard holds."""
        return max((room for room in self.rooms[shard].lines), default=0)

    def warm(self, shard: int, rows: Ints, share: float = 1.0) -> None:
        """Bring rows i64[n], most used first, into a share of a shard's lines, before any batch."""
        self._tiers[shard].level.warm(rows, share)

    # ---- state ----

    def flush(self) -> None:
        """Bring every changed row to its home; then `existing` and `values` see all rows.

        Caches over narrower rows are empty afterwards, as they are after a checkpoint was loaded:
        what follows is the same.
        """
        for h, tier in self._tiers.items():
            if h in self._narrow:
                tier.forget()
            else:
                tier.flush()
        self._known = {h: tier.level.rows() for h, tier in self._tiers.items()}

    def existing(self, shard: int, lo: int, hi: int) -> Ints:
        if shard not in self._tiers:
            return super().existing(shard, lo, hi)
        known = self._known[shard]
        return known[slice(*np.searchsorted(known, [lo, hi]))]

    def values(self, shard: int, rows: Ints) -> dict[str, Floats]:
        if shard not in self._tiers:
            return super().values(shard, rows)
        records = self._tiers[shard].level.peek(rows)
        return (
            self._narrow[shard].values(records)
            if shard in self._narrow
            else self._apart(shard, records)
        )

    def initial(self, shard: int, rows: Ints) -> dict[str, Floats]:
        if shard in self._narrow:
            return self._narrow[shard].start(self._start(shard, rows))
        return super().initial(shard, rows)

    def _apart(self, shard: int, records: Bytes) -> dict[str, Floats]:
        """Values of records u8[n, record]: a store of these rows alone decodes them."""
        n = len(records)
        width = int(self.width[shard])
        store = self._store(shard)
        parts = []
        at = 0
        for array in store.arrays:
            size = width * array.itemsize
            parts.append(
                np.ascontiguousarray(records[:, at : at + size]).view(array.dtype).reshape(-1)
            )
            at += size
        alone = whole_table(width)
        copy = store.over(parts)
        values = {"weight": np.asarray(copy.numbers(alone, 0, n)[:])}
        values |= zip(self.rule.element_state, copy.states(alone, 0, n))
        rest = np.ascontiguousarray(records[:, at:]).view(np.float32).reshape(n, -1)
        return values | {name: rest[:, i] for i, name in enumerate(self.rule.row_state)}

    def load_rows(self, shard: int, rows: Ints, values: FloatsByName) -> None:
        if shard not in self._tiers:
            return super().load_rows(shard, rows, values)
        tier = self._tiers[shard]
        slots = self._slots(shard)
        tier.empty()
        room = tier.level.cache.lines
        for at in range(0, rows.size, room):
            piece = rows[at : at + room]
            piece_values = {name: array[at : at + room] for name, array in values.items()}
            if shard in self._narrow:
                tier.level.load(piece, self._narrow[shard].records(piece, piece_values))
                continue
            # the lines are empty by now: rows are laid out in them only to be packed
            to = np.arange(piece.size, dtype=np.int64)
            self._set(shard, to, piece_values)
            if self._store(shard).coded:
                self._check_loaded(shard, to, piece_values["weight"], piece)
            tier.level.load(piece, slots.pack(to))

    def seal(self, note: bytes) -> Callable[[], None] | None:
        return self._file.seal(self._file.epoch + 1, note) if self._file else None

    def close(self) -> None:
        """Drop the SSD file: rows that matter are in checkpoints."""
        self._mover.close()
        if self._file is not None:
            self._file.close()
            remove(self._file.path)
        if self._ticket:
            self._ticket.close()

    @property
    def stalled(self) -> float:
        return self._mover.stalled

    def tiers(self) -> dict[str, list[Stats]]:
        """Counts of each cached shard's levels, nearest first, by table."""
        levels: dict[str, list[Stats]] = {}
        for h, tier in self._tiers.items():
            levels.setdefault(self._spec(h).name, []).extend(tier.stats())
        return levels
