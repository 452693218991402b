"""How does a rank train tables larger than its memory? It brings the rows of the step at hand into
slots: kernels see those.

    rows of a batch -> unique rows of each shard -> slots (`storage/levels.py`) -> lookup, backward,
    update: as ever, by slot

A slot is one number, good for weights and states alike. Rows keep their true numbers wherever order
or randomness depends on them: sorting, column shards' talk, initial values. So every placement
gives the bits of the one that keeps all rows in memory (Neo's memory hierarchy; `docs/memory.md`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.embedding.borders import Narrowed
from neocpu.embedding.lookups import EntryLayout, Floats, Ints, Lookups, Rectangle
from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.embedding.shard_rows import PIECE
from neocpu.embedding.sorting import index, placed
from neocpu.embedding.specs import TableSpec
from neocpu.embedding.tbe import TableBatchedEmbedding
from neocpu.errors import StorageError, TrainingError
from neocpu.kernels._threads import threading_layer
from neocpu.kernels.records import Segments, whole_table
from neocpu.reference.policies import DEFAULT
from neocpu.storage import placement
from neocpu.storage.device import Device
from neocpu.storage.homes import Border, Filed, Kept, Memory, Stored
from neocpu.storage.levels import Home, Level, Slots
from neocpu.storage.mover import Mover
from neocpu.storage.placement import PLACEMENTS, Room, make_room
from neocpu.storage.row_file import RowFile, RowTable
from neocpu.storage.row_tools import remove
from neocpu.storage.tier import Tier, Visit


@dataclass(frozen=True)
class MemoryPlan:
    """Where the tables of a run live: placement of each, budgets of a rank in bytes (`ssd`: of its
    file; 0: no limit), policy of the caches, the folder for SSD files, which last as long as the
    run, where placements were chosen by it, bytes that a step asks of a byte of each table, speeds
    that slower devices would have (0: as fast as they are), and how many batches' rows are brought
    up before their turn (`config.MemoryConfig`).
    """

    placements: tuple[str, ...]
    hbm: int = 0
    ddr: int = 0
    policy: str = DEFAULT
    folder: Path | None = None
    demands: tuple[float, ...] = ()
    ddr_bandwidth: float = 0.0
    ssd_bandwidth: float = 0.0
    ssd_iops: float = 0.0
    prefetch: int = 0
    ssd: int = 0

    def rooms(
        self,
        tables: Sequence[TableSpec],
        shards: Sequence[Rectangle],
        state_floats: tuple[int, int],
    ) -> list[Room]:
        """Room of every shard of a rank; `state_floats`: optimizer floats per element and per row.
        Raises TrainingError.
        """
        found = []
        for shard in shards:
            table = tables[shard.table]
            lo, hi = shard.cols
            size = table.cached.row_bytes(hi - lo, state_floats)
            narrow = table.row_bytes(hi - lo, state_floats) if table.cache_format else 0
            rows = shard.rows[1] - shard.rows[0]
            where = self.placements[shard.table]
            found.append(placement.Rows(table.name, rows, size, where, narrow))
        return make_room(found, self.hbm, self.ddr)

    @property
    def over_ssd(self) -> bool:
        """Is any table over SSD?"""
        return any(PLACEMENTS[name].ssd for name in self.placements)

    @property
    def plain(self) -> bool:
        """Are all tables whole in memory?"""
        return not any(PLACEMENTS[name].caches for name in self.placements)


@dataclass(frozen=True)
class _Batch:
    """Lookups of one batch, sorted, and of each shard the rows to bring."""

    lookups: Lookups
    found: Segments
    visits: dict[int, Visit]


class TieredEmbedding(TableBatchedEmbedding):
    """A `TableBatchedEmbedding` some of whose shards live in slower memory than the one they are
    used in.

    memory : placements and budgets. file : name of this rank's SSD file in `memory.folder`; an old
        one is overwritten.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        shards: Iterable[Rectangle],
        optimizer: SparseOptimizer,
        seed: int,
        memory: MemoryPlan,
        file: str = "rank-0.h5",
        huge: bool = True,
    ) -> None:
        shards = tuple(shards)
        self.rooms = rooms = memory.rooms(tables, shards, optimizer.state_floats)
        places = [PLACEMENTS[memory.placements[shard.table]] for shard in shards]
        slots = np.array([room.slots for room in rooms], np.int64)
        super().__init__(
            [table.cached for table in tables], shards, optimizer, seed, 0, huge, slots
        )
        self._huge = huge
        self._tiers = dict[int, Tier]()
        self._narrow = {
            h: Narrowed(tables[shard.table], shard, self.rule, seed)
            for h, shard in enumerate(shards)
            if tables[shard.table].cache_format
        }
        for h in self._narrow:
            if not places[h].caches:
                table = tables[shards[h].table]
                raise TrainingError(
                    f"table {table.name}: has a cache_format, but no cache; give it another "
                    "memory.placement"
                )
        self._ddr = Device(memory.ddr_bandwidth)
        self._mover = Mover(memory.prefetch > 0 and threading_layer() != "workqueue")
        self._coming: dict[int, _Batch] = {}  # known, by identity of the lookups
        self._present: dict[bytes, _Batch] = {}  # at work, by the shards that they are asked of
        self._known: dict[int, Ints] = {}  # rows at home when they were last flushed
        self._file, numbers = self._open(
            memory, file, [h for h, place in enumerate(places) if place.ssd]
        )
        for h, (room, place) in enumerate(zip(rooms, places)):
            if place.caches:
                self.changes.marks[h] = None
                self._tiers[h] = self._tier(h, room, place, memory.policy, numbers.get(h, -1))
                self._row_counts[h] = room.slots  # slots are made by their homes

    def _open(
        self, memory: MemoryPlan, file: str, stored: list[int]
    ) -> tuple[RowFile | None, dict[int, int]]:
        """The SSD file, and its table's number for each shard that it stores."""
        if not stored:
            return None, {}
        assert memory.folder is not None
        path = memory.folder / file
        try:
            memory.folder.mkdir(parents=True, exist_ok=True)
            remove(path)
        except OSError as error:
            raise StorageError(
                f"{path}: cannot be made: {error.strerror}; choose another memory.folder"
            ) from error
        tables = []
        for h in stored:
            shard = self.shards[h]
            record = self._narrow[h].record if h in self._narrow else self._slots(h).record
            name = f"{self.tables[shard.table].name}.{h}"
            rows = int(self.heights[h])
            width = int(self.width[h])
            tables.append(
                RowTable(
                    name, rows, record, shard.rows[0], shard.cols[0], width, self._layout_of(h)
                )
            )
        found = RowFile.create(
            path, tables, bandwidth=memory.ssd_bandwidth, iops=memory.ssd_iops, budget=memory.ssd
        )
        return found, {h: i for i, h in enumerate(stored)}

    def _layout_of(self, h: int) -> str:
        """What a record is made of, in words."""
        spec = self.tables[self.shards[h].table]
        rule = self.rule
        form = self._narrow[h].codec.name if h in self._narrow else spec.format
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

    def _tier(
        self, h: int, room: Room, place: placement.Placement, policy: str, number: int
    ) -> Tier:
        slots, whole = self._slots(h), self.slots[h] - room.whole

        def create(rows: Ints, to: Ints) -> None:
            for at in range(0, rows.size, PIECE):
                start = self._start(h, rows[at : at + PIECE])
                if h in self._narrow:
                    start["weight"] = self._narrow[h].nearest(start["weight"])
                self._set(h, to[at : at + PIECE], start)

        home: Home
        border = self._border(h) if h in self._narrow else Border(slots)
        if place.ssd:
            assert self._file is not None
            home = Stored(Filed(self._file, number), border, create)
        elif h in self._narrow:
            home = Stored(
                Kept(place.whole, int(self.heights[h]), border.record, self._huge),
                border,
                create,
                self._ddr,
            )
        else:
            home = Memory(place.whole, slots, int(whole), room.whole, create, self._ddr)
        first = [0, room.lines[0] + room.scratch]
        for i in reversed(range(len(place.caches))):
            home = Level(
                place.caches[i],
                slots,
                first[i],
                room.lines[i],
                policy,
                home,
                self._ddr if i else None,
            )
        assert isinstance(home, Level)
        return Tier(
            self.tables[self.shards[h].table].name,
            home,
            slots,
            (room.lines[0], room.scratch),
            self._mover,
        )

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
        found = index(layout, lookups, self.heights, self._scratch)
        found = found._replace(
            unique=found.unique.copy(), starts=found.starts.copy(), place=found.place.copy()
        )
        counts = np.diff(found.starts)
        visits = {}
        for h, lo, hi in found.spans():
            if h in self._tiers:
                visits[h] = Visit(found.unique[lo:hi], counts[lo:hi])
        return _Batch(lookups, found, visits)

    def _ready(self, layout: EntryLayout, lookups: Lookups) -> Lookups:
        self.create(layout, lookups)
        if not any(h in self._tiers for h in layout.shard.tolist()):
            return lookups
        batch = self._coming.pop(id(lookups), None) or self._find(layout, lookups)
        self._present[layout.shard.tobytes()] = batch
        found, slots, rows = batch.found, batch.found.unique.copy(), lookups.rows.copy()
        for h, lo, hi in found.spans():
            if h in self._tiers:
                slots[lo:hi] = self._tiers[h].begin(batch.visits[h])
        rows[found.place] = np.repeat(slots, np.diff(found.starts))
        return replace(lookups, rows=rows)

    def _sort(self, layout: EntryLayout, lookups: Lookups, stride: int | Ints) -> Segments:
        batch = self._present.get(layout.shard.tobytes())
        if batch is None or batch.lookups is not lookups:
            return super()._sort(layout, lookups, stride)
        # they are in order since their rows were brought
        return placed(batch.found, layout, lookups, stride)

    def _located(self, found: Segments) -> Segments:
        if not any(h in self._tiers for h in found.shards.tolist()):
            return found
        slots = found.unique.copy()
        for h, lo, hi in found.spans():
            if h in self._tiers:
                slots[lo:hi] = self._slots_of(h, found.unique[lo:hi])
        return found._replace(unique=slots)

    def _slots_of(self, shard: int, rows: Ints) -> Ints:
        return self._tiers[shard].slots_of(rows) if shard in self._tiers else rows

    def settle(self) -> None:
        for tier in self._tiers.values():
            tier.settle()
        self._present.clear()

    def lines(self, shard: int) -> int:
        """Rows that the largest cache of a shard holds."""
        return max((room for room in self.rooms[shard].lines), default=0)

    def warm(self, shard: int, rows: Ints) -> None:
        """Bring rows i64[n] of a shard, most wanted first, into its caches before the first batch."""
        self._tiers[shard].level.warm(rows)

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

    def _apart(self, shard: int, records: Any) -> dict[str, Floats]:
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
        found = {"weight": np.asarray(copy.numbers(alone, 0, n)[:])}
        found |= zip(self.rule.element_state, copy.states(alone, 0, n))
        rest = np.ascontiguousarray(records[:, at:]).view(np.float32).reshape(n, -1)
        return found | {name: rest[:, i] for i, name in enumerate(self.rule.row_state)}

    def load_rows(self, shard: int, rows: Ints, values: Mapping[str, Any]) -> None:
        if shard not in self._tiers:
            return super().load_rows(shard, rows, values)
        tier = self._tiers[shard]
        slots = self._slots(shard)
        tier.empty()
        room = tier.level.cache.lines
        for at in range(0, rows.size, room):
            some = rows[at : at + room]
            given = {name: array[at : at + room] for name, array in values.items()}
            if shard in self._narrow:
                tier.level.load(some, self._narrow[shard].records(some, given))
                continue
            to = np.arange(some.size, dtype=np.int64)
            self._set(shard, to, given)
            if self._store(shard).coded:
                self._check_loaded(shard, to, given["weight"], some)
            tier.level.load(some, slots.pack(to))

    def seal(self, note: bytes) -> Callable[[], None] | None:
        return self._file.seal(self._file.epoch + 1, note) if self._file else None

    def close(self) -> None:
        """Drop the SSD file: rows that matter are in checkpoints."""
        self._mover.close()
        if self._file is not None:
            self._file.close()
            remove(self._file.path)

    @property
    def stalled(self) -> float:
        return self._mover.stalled

    def tiers(self) -> dict[str, list[dict[str, Any]]]:
        """Counts of each cached shard's levels, nearest first, by table."""
        found: dict[str, list[dict[str, Any]]] = {}
        for h, tier in self._tiers.items():
            found.setdefault(self.tables[self.shards[h].table].name, []).extend(tier.stats())
        return found
