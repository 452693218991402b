"""Which rows of its shards does a rank have in memory, and what is in them?

    shards     rectangles of tables: rows lo:hi, columns lo:hi
    stores     arrays of the rows of one format, shard after shard: shard h begins at base[h]
    slots      rows of a shard that there is room for: all, unless it is a cache (`tiered.py`)

A row is made with its initial values when it is first looked up. The object owns memory and order;
arithmetic is in `kernels/`, and the formats of rows are in `rows.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import ConfigError
from neocpu.core.rules import HyperParameters
from neocpu.core.types import Bytes, Elements, Floats, FloatsByName, Ints
from neocpu.kernels.numbers.philox import uniform_rows
from neocpu.kernels.records import InitialValues, Segments, ShardPlaces
from neocpu.kernels.rows import touch
from neocpu.kernels.twins.numbers.philox import INIT, STOCHASTIC_ROUNDING, tensor_key
from neocpu.tables.embedding.changes import PAGE, Changes, marked, pages_of
from neocpu.tables.embedding.lookups import EntryLayout, Lookups, Rectangle
from neocpu.tables.embedding.rows import RowStore, runs
from neocpu.tables.embedding.sorting import Scratch, cut
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec, TableSpecs
from neocpu.tables.storage.arena import Arena, LastingMemory

# A shard of at least LARGE rows gets all of them once the MANYth part of them exists.
MANY = 4
LARGE = 4096
PIECE = 1 << 16  # rows whose initial values are made at a time, where they must be rounded


class ShardRows:
    """The rows of some shards, with their optimizer state.

    tables, shards : specs, and rectangles of them; shard i of every method is shards[i].
    optimizer, seed : update rule; the seed of initial values.
    budget : bytes that rows and states may take (0: no limit). Raises TrainingError where they do
        not fit.
    huge : ask for huge pages: faster, but then a touched row may cost two mebibytes.
    slots : rows of every shard that there is room for, i64[H]; None: all. With fewer, a subclass
        decides which rows are in them.
    lasting : memory of rows and states that outlives the process (None: they need none).

    Attributes: refuses_overflow, is an update that makes a row infinite an error (`overflow.py`)?
    before_change, called with a shard and its rows i64[n] that are about to be updated; updated, of
    all shards' rows, those that `before_change` knows: u8[rows], empty without `lasting`.
    """

    def __init__(
        self,
        tables: TableSpecs,
        shards: Iterable[Rectangle],
        optimizer: SparseOptimizer,
        seed: int,
        budget: int = 0,
        huge: bool = True,
        slots: Ints | None = None,
        lasting: LastingMemory | None = None,
    ) -> None:
        self.tables = tuple(tables)
        self.shards = tuple(shards)
        self.optimizer = optimizer
        self.rule = optimizer.rule
        self.rounds = optimizer.rounds
        self.refuses_overflow = False
        self.before_change: Callable[[int, Ints], None] | None = None
        self.lasting = lasting
        self._hyper_step: int | None = None  # the step of `_hypers`
        self._hypers: list[HyperParameters] = []  # of each of `_optimizers`
        # shard i learns with the numbers of that of _group_of[i]
        self._optimizers: tuple[SparseOptimizer, ...] = (optimizer,)
        self.heights = np.array([s.rows[1] - s.rows[0] for s in self.shards], np.int64)
        self.width = np.array([s.cols[1] - s.cols[0] for s in self.shards], np.int64)
        self._group_of = np.zeros(len(self.shards), np.int64)
        self.slots = self.heights if slots is None else slots
        specs = [tables[s.table] for s in self.shards]
        self._store_of, self.base, kinds, elements = shelve(specs, self.slots * self.width)
        self._places = ShardPlaces(
            base=self.base,
            width=self.width,
            full_width=np.array([spec.dim for spec in specs], np.int64),
            row_base=np.cumsum(self.slots) - self.slots,
            row0=np.array([s.rows[0] for s in self.shards], np.int64),
            column0=np.array([s.cols[0] for s in self.shards], np.int64),
            # of the table's name: however tables are cut, an element draws the same words
            key=_keys(seed, STOCHASTIC_ROUNDING, specs),
        )
        starts = [spec.initial for spec in specs]
        self._initial = InitialValues(
            key=_keys(seed, INIT, specs),
            scale=np.array([start.bound for start in starts], np.float32),
            mean=np.array([start.mean for start in starts], np.float32),
            states=self._state_starts(self.rule.element_state),
            row_states=self._state_starts(self.rule.row_state),
        )
        self._allocate(kinds, elements, int(self.slots.sum()), budget, huge)
        self._marked_pages: Ints | None = None  # once asked for, until there are others
        self._row_counts = np.zeros(len(self.shards), np.int64)  # rows of each shard that exist
        self._scratch = Scratch()
        self.changes = Changes([*map(self.touched, range(len(self.shards)))])

    def _allocate(
        self, kinds: TableSpecs, elements: Sequence[int], rows: int, budget: int, huge: bool
    ) -> None:
        per_element = len(self.rule.element_state)
        # the states of a row side by side; a byte and a bit (for lookups) of each: does it exist?
        states = (rows * len(self.rule.row_state), "f4")
        pages = pages_of(rows)
        marks = [(pages * PAGE, "u1"), (pages, "u1"), (pages * PAGE // 64, "u8")]
        if self.lasting is None:
            self._stores, (self._row_state, self._touched, self._pages, self._bits) = allocate(
                kinds, elements, per_element, [states, *marks], budget, huge
            )
            self.updated = self._touched[:0]
            return
        # marks may run ahead of the rows: they are not for others to find
        _, (self._touched, self._pages, self._bits) = allocate([], [], 0, marks, 0, huge)
        self._stores, (self._row_state, self.updated) = allocate(
            kinds, elements, per_element, [states, (rows, "u1")], budget, huge, self.lasting
        )

    def _state_starts(self, names: Sequence[str]) -> Floats:
        """What these states of a new row are."""
        start = self.optimizer.initial_accumulator_value
        return np.array([start if n == self.rule.accumulator else 0.0 for n in names], np.float32)

    def _spec(self, shard: int) -> TableSpec:
        return self.tables[self.shards[shard].table]

    def _store(self, shard: int) -> RowStore:
        return self._stores[self._store_of[shard]]

    # ---- rows come into being ----

    def create(self, layout: EntryLayout, lookups: Lookups) -> None:
        """Make the rows that do not exist yet; shards that have all their rows cost nothing."""
        shard = layout.shard
        if (self._row_counts[shard] == self.slots[shard]).all():
            return
        chunks = cut(layout, lookups)
        owner = chunks.shards[chunks.owner]
        complete = self._row_counts[owner] == self.slots[owner]
        # -1 spares the kernel a look at chunks in which nothing can be missing
        origin = np.where(complete, -1, self._places.row_base[owner])
        fresh = self._scratch.take("fresh", lookups.rows.size)
        count = np.zeros(owner.size, np.int64)
        touch.find_untouched(lookups.rows, chunks.start, origin, self._bits, fresh, count)
        if count.any():
            claimed = touch.claim_rows(chunks.start, count, self._bits, fresh)
            self._make(fresh[:claimed])
            self._complete()

    def _complete(self) -> None:
        """Make all rows of large shards of which many exist: their pages are in use already, and
        no step has to look for missing rows again.
        """
        many = self._row_counts >= self.slots / MANY
        missing = self._row_counts < self.slots
        for shard in np.flatnonzero(many & missing & (self.slots >= LARGE)).tolist():
            rows = np.flatnonzero(self.touched(shard) == 0)
            self._make(rows + self._places.row_base[shard])

    def _make(self, fresh: Ints) -> None:
        """Initial values of rows, by their numbers among those of all shards."""
        # then the new rows of each shard, and of each store, are one run
        fresh = np.sort(fresh, kind="stable")
        self._mark(fresh)
        bounds = np.append(self._places.row_base, self._touched.size)
        first = np.searchsorted(fresh, bounds).tolist()
        for shelf, lo, hi in runs(self._store_of):
            rows = fresh[first[lo] : first[hi]]
            if not rows.size:
                continue
            store = self._stores[shelf]
            if not store.coded:
                states = self.rule.element_record(*store.element_states)
                touch.make_rows(
                    rows, self._places, self._initial, store.table, states, self._row_state
                )
                continue
            for shard in range(lo, hi):
                local = fresh[first[shard] : first[shard + 1]] - self._places.row_base[shard]
                # in pieces: unrounded rows take up to four times the memory of their codes
                for at in range(0, local.size, PIECE):
                    piece = local[at : at + PIECE]
                    self._set(shard, piece, self._start(shard, piece))
        self._row_counts += np.diff(first)

    def _mark(self, rows: Ints) -> int:
        """Rows, by their numbers among those of all shards, exist from now on; returns how many
        were not claimed yet. `rows` may be overwritten where only some were.
        """
        self._touched[rows] = 1
        self._pages[rows // PAGE] = 1
        self._marked_pages = None
        ends = np.array([0, rows.size])
        return int(touch.claim_rows(ends, ends[1:], self._bits, rows))

    def _note(self, segments: Segments) -> None:
        """The unique rows of the segments are about to be updated."""
        self.changes.note(segments)
        if self.before_change is not None:
            for shard, lo, hi in segments.spans():
                self.before_change(shard, segments.unique[lo:hi])

    # ---- state ----

    def raw(self, shard: int) -> list[Bytes]:
        """Views of all that is kept of a shard's rows, as bytes u8[slots, n]: numbers and states,
        and last `updated` u8[slots, 1].
        """
        height = int(self.slots[shard])
        width = int(self.width[shard])
        per_row = len(self.rule.row_state)
        first = int(self.base[shard])
        row = int(self._places.row_base[shard])
        arrays = [
            *(array[first : first + height * width] for array in self._store(shard).arrays),
            self._row_state[row * per_row : (row + height) * per_row],
            self.updated[row : row + height],
        ]
        return [array.view(np.uint8).reshape(height, -1) for array in arrays if array.size]

    def state(self, shard: int) -> dict[str, Floats]:
        """Views of a shard's slots: "weight" f32[slots, width], element states likewise, row states
        f32[slots], strided.

        The weights of a shard of codes are decoded where they are asked for, `weight[rows]`; they
        are no view.
        """
        height = int(self.slots[shard])
        row = int(self._places.row_base[shard])
        store = self._store(shard)
        views = {"weight": store.numbers(self._places, shard, height)}
        views |= zip(self.rule.element_state, store.states(self._places, shard, height))
        per_row = len(self.rule.row_state)
        for i, name in enumerate(self.rule.row_state):
            views[name] = self._row_state.reshape(-1, per_row)[row : row + height, i]
        return views

    def touched(self, shard: int) -> Bytes:
        """Which slots of a shard have a row: u8[slots]."""
        row = int(self._places.row_base[shard])
        return self._touched[row : row + int(self.slots[shard])]

    def existing(self, shard: int, lo: int, hi: int) -> Ints:
        """Local rows lo <= i64[n] < hi of a shard that exist, ascending."""
        base = int(self._places.row_base[shard])
        if self._marked_pages is None:
            self._marked_pages = np.flatnonzero(self._pages)
        return marked(self._touched, self._marked_pages, base + lo, base + hi) - base

    def values(self, shard: int, rows: Ints) -> dict[str, Floats]:
        """Values of rows i64[n] that exist, as `state` names them."""
        return {name: values[rows] for name, values in self.state(shard).items()}

    def initial(self, shard: int, rows: Ints) -> dict[str, Floats]:
        """Initial values of local rows i64[n]: as `state`, n rows."""
        values = self._start(shard, rows)
        return values | {"weight": self._store(shard).rounded(values["weight"])}

    def _start(self, shard: int, rows: Ints) -> dict[str, Floats]:
        """Initial values before they are rounded to the format of the shard."""
        width = int(self.width[shard])
        weight = np.empty((rows.size, width), np.float32)
        uniform_rows(
            self._initial.key[shard],
            self._places.row0[shard] + rows,
            self._places.column0[shard],
            self._initial.scale[shard],
            weight,
        )
        if self._initial.mean[shard]:
            weight += self._initial.mean[shard]
        values: dict[str, Floats] = {"weight": weight}
        for name, start in zip(self.rule.element_state, self._initial.states):
            values[name] = np.full((rows.size, width), start, np.float32)
        for name, start in zip(self.rule.row_state, self._initial.row_states):
            values[name] = np.full(rows.size, start, np.float32)
        return values

    def load_rows(self, shard: int, rows: Ints, values: FloatsByName) -> None:
        """Set local rows i64[n] and their states (as `state` names them); the rows exist from now
        on.

        Raises TrainingError for a weight that the format of the table does not have.
        """
        self._set(shard, rows, values)
        self._row_counts[shard] += self._mark(rows + self._places.row_base[shard])
        if self._store(shard).coded and "weight" in values:
            self._check_loaded(shard, rows, values["weight"], rows)

    def _set(self, shard: int, rows: Ints, values: FloatsByName) -> None:
        state = self.state(shard)
        for name, array in values.items():
            if name == "weight":
                height = int(self.slots[shard])
                self._store(shard).write(self._places, shard, height, rows, array)
            else:
                state[name][rows] = array

    def _check_loaded(self, shard: int, slots: Ints, weight: Floats, rows: Ints) -> None:
        """Raise TrainingError if the weights of rows that were put into `slots` were rounded."""
        from neocpu.tables.embedding.rounded import refuse_rounded

        refuse_rounded(
            self._spec(shard),
            self._places.row0[shard] + rows,
            int(self._places.column0[shard]),
            self.state(shard)["weight"][slots],
            np.ascontiguousarray(weight, np.float32),
        )


def _keys(seed: int, purpose: int, specs: TableSpecs) -> NDArray[np.uint64]:
    """Key of the random words of each shard's table."""
    return np.array([tensor_key(seed, purpose, spec.name) for spec in specs], np.uint64)


class Shelves(NamedTuple):
    """Which store each shard is in and where it begins there, i64[H]; a table of each format and
    rounding, a store each, and the elements of those.
    """

    store: Ints
    base: Ints
    kinds: list[TableSpec]
    elements: list[int]


def shelve(specs: TableSpecs, sizes: Ints) -> Shelves:
    """Deal shards of these tables, of so many elements i64[H], to one store per format and
    rounding.
    """
    # a rank without shards has a store all the same, which is empty
    kinds = {(t.format, t.rounding): t for t in specs or [TableSpec("", 0, 1, ())]}
    names = list(kinds)
    store = np.array([names.index((t.format, t.rounding)) for t in specs], np.int64)
    base = np.zeros(store.size, np.int64)
    elements = []
    for i, spec in enumerate(kinds.values()):
        in_store = np.flatnonzero(store == i)
        # what a lookup reads counts: of split rows that is one of two arrays
        line = 64 // spec.lookup_bytes
        whole = -(-sizes[in_store] // line) * line  # every shard begins on a cache line
        base[in_store] = np.cumsum(whole) - whole
        elements.append(int(whole.sum()))
    return Shelves(store, base, list(kinds.values()), elements)


def allocate(
    specs: TableSpecs,
    elements: Sequence[int],
    per_element: int,
    row_arrays: Sequence[tuple[int, str]],
    budget: int,
    huge: bool = True,
    lasting: LastingMemory | None = None,
) -> tuple[list[RowStore], list[Elements]]:
    """Stores in the formats of `specs`, with room for so many elements and `per_element` states;
    and `row_arrays`, (size, dtype) each.

    All are zeros in one mapping, of huge pages if `huge`, or in `lasting`. Raises TrainingError
    where they do not fit `budget` bytes (0: any number fits).
    """
    code_dtypes = [spec.row_format.arrays for spec in specs]
    state_parts = ["f4"] * per_element
    sizes = [
        (count, dtype)
        for count, dtypes in zip(elements, code_dtypes)
        for dtype in (*dtypes, *state_parts)
    ]
    arena = Arena(sum(Arena.space(*size) for size in (*sizes, *row_arrays)), budget, huge, lasting)
    stores = []
    for spec, count, dtypes in zip(specs, elements, code_dtypes):
        arrays = [arena.take(count, dtype) for dtype in dtypes]
        states = [arena.take(count, dtype) for dtype in state_parts]
        stores.append(_store(spec, arrays, states))
    return stores, [arena.take(n, kind) for n, kind in row_arrays]


def _store(spec: TableSpec, arrays: Sequence[Elements], states: Sequence[Elements]) -> RowStore:
    """A store in a table's format, over these arrays."""
    if spec.format == "fp32":
        return RowStore(arrays[0], states)
    if spec.row_format.row_scaled:
        raise ConfigError(
            f"table {spec.name!r}: {spec.format} rows train below a cache of wider numbers "
            "(TieredEmbedding, and a cache_format)"
        )
    # where all rows are fp32, its kernels are never imported
    from neocpu.tables.embedding.coded import CodedRowStore

    return CodedRowStore(spec.format, spec.rounding, arrays, states)
