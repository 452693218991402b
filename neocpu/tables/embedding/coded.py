"""How are rows of codes kept, decoded and encoded? By `kernels/rows/narrow.py`; here are the arrays
and the words it asks for.

Decoding is exact. What is written is rounded once: to nearest even, or stochastically by (table,
row, column, step), so the codes are the same on every plan (`docs/arithmetic.md` §5). Initial
values and rows that are loaded are rounded to nearest.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from neocpu.core.codecs import LAYOUTS, ROUNDINGS
from neocpu.core.formats import table_format
from neocpu.core.types import Elements, Floats, Ints
from neocpu.kernels.compile.choice import chosen
from neocpu.kernels.records import CodedTable, Segments, ShardPlaces, one_by_one
from neocpu.kernels.rows import narrow
from neocpu.tables.embedding.rounded import NO_HALVES, rounded
from neocpu.tables.embedding.rows import RowStore, StepRule


class CodedRowStore(RowStore):
    """Rows of codes.

    arrays : of the codes and, for bf16_split, of the lower halves.
    """

    coded = True

    def __init__(
        self, form: str, rounding: str, arrays: Sequence[Elements], states: Sequence[Floats]
    ) -> None:
        record = table_format(form)
        super().__init__(record.view(arrays[0]), states)
        self.form = form
        # the upper halves of split rows are numbers of a small float themselves
        self.layout = LAYOUTS[record.split or form]
        self.rounding = ROUNDINGS[rounding]
        self.rounding_name = rounding
        self.codes, self.low = (*arrays, NO_HALVES)[:2]

    @property
    def arrays(self) -> tuple[Elements, ...]:
        return self.codes, *([self.low] if self.low.size else []), *self.element_states

    def over(self, arrays: Sequence[Elements]) -> "CodedRowStore":
        numbers = len(arrays) - len(self.element_states)
        return CodedRowStore(self.form, self.rounding_name, arrays[:numbers], arrays[numbers:])

    def update(
        self,
        by: StepRule,
        row_state: Floats,
        places: ShardPlaces,
        segments: Segments,
        rows: Ints,
        gradient: Floats,
    ) -> None:
        table = self._coded_table(self.rounding, by.step, rows)
        fused = chosen("rows.narrow", "fused")(by.rule, by.limited)
        states = by.rule.element_record(*self.element_states)
        fused(table, states, row_state, places, segments, gradient, by.hyper)

    def _coded_table(self, rounding: int, step: int, rows: Ints) -> CodedTable:
        return CodedTable(self.codes, self.low, self.layout, rounding, step, rows)

    def open(self, places: ShardPlaces, segments: Segments, offsets: Ints, out: Floats) -> Floats:
        # decoding draws no random words, so neither step nor rows matter
        table = self._coded_table(self.rounding, 0, segments.unique)
        narrow.open_rows(table, places, segments, offsets, out)
        return out

    def close(
        self,
        places: ShardPlaces,
        segments: Segments,
        offsets: Ints,
        numbers: Floats,
        step: int,
        rows: Ints,
    ) -> None:
        table = self._coded_table(self.rounding, step, rows)
        narrow.close_rows(table, places, segments, offsets, numbers)

    def numbers(self, places: ShardPlaces, shard: int, height: int) -> "Decoded":
        return Decoded(self, places, shard, height)

    def write(
        self, places: ShardPlaces, shard: int, height: int, rows: Ints, numbers: Floats
    ) -> None:
        to = np.arange(rows.size, dtype=np.int64) * int(places.width[shard])
        flat = np.ascontiguousarray(numbers, np.float32).reshape(-1)
        # no step rounds these rows: to nearest, however updates of the table are rounded
        table = self._coded_table(ROUNDINGS["nearest"], 0, rows)
        narrow.close_rows(table, places, one_by_one(shard, rows, to), to, flat)

    def rounded(self, numbers: Floats) -> Floats:
        return rounded(numbers, self.form, narrow)


class Decoded:
    """The numbers of a shard of codes: `decoded[rows]` are those of some rows, f32[n, width]; a
    view for nobody.
    """

    def __init__(self, store: CodedRowStore, places: ShardPlaces, shard: int, height: int) -> None:
        self._store = store
        self._places = places
        self._shard = shard
        self.shape = height, int(places.width[shard])
        self.dtype = np.dtype(np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Ints) -> Floats:
        row_numbers = np.arange(self.shape[0], dtype=np.int64)[rows]
        flat = np.ascontiguousarray(row_numbers.reshape(-1))
        out = np.empty(flat.size * self.shape[1], np.float32)
        to = np.arange(flat.size, dtype=np.int64) * self.shape[1]
        self._store.open(self._places, one_by_one(self._shard, flat, to), to, out)
        return out.reshape(*row_numbers.shape, self.shape[1])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Elements:
        return self[:].astype(dtype or np.float32, copy=False)
