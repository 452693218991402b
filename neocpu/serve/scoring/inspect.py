"""What did a model learn? A checkpoint as read-only arrays, for notebooks.

Needs neither MPI nor Numba.

model = neocpu.load("runs/a/checkpoints/step-00010000.h5")
model.tables["C1"][[0, 17]]        # rows 0 and 17, float32[2, D]; composed if C1 is of a kind
model.dense["bottom.0.weight"]     # float32[out, in]
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neocpu.kernels.twins.numbers.philox import uniform_rows
from neocpu.tables.kinds import FULL
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config.config import Config
from neocpu.train.model.composition_layout import CompositionLayout, KeyVectors
from neocpu.train.state.initial import initial_rows

if TYPE_CHECKING:
    from neocpu.train.model.logical_rows import LogicalRows

F32 = NDArray[np.float32]


class Table:
    """One embedding table: `table[rows]` are weights, initial ones of rows never trained.

    Attributes: name; rows, their number; dim; learnt i64[n], rows that differ from their initial
    values, ascending; fields, "weight" and the optimizer's state.
    """

    def __init__(self, file: CheckpointFile, spec: TableSpec, config: Config) -> None:
        number = file.number(f"tables/{spec.name}")
        self.name = spec.name
        self.rows = spec.rows
        self.dim = spec.dim
        self.learnt = file.rows(number)
        self._spec = spec
        self._config = config
        self._stored = {name: file.field(number, name) for name, _ in file.tensors[number].fields}

    @property
    def fields(self) -> tuple[str, ...]:
        """Names that `field` knows."""
        return tuple(self._stored)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, rows: ArrayLike | slice) -> F32:
        """Weights: f32[D] of one row, f32[n, D] of a slice, f32[..., D] of row numbers int[...]."""
        return self.field("weight", rows)

    def field(self, name: str, rows: ArrayLike | slice) -> F32:
        """The same of any field; f32[...] of those with one number per row.

        Raises IndexError outside [0, rows), KeyError for a field that the table does not have.
        """
        shaped = self._numbers(rows)
        flat = shaped.reshape(-1)
        optimizer = self._config.optimizer.sparse
        seed = self._config.training.seed
        # A checkpoint holds trained rows only; the others are a function of (seed, table, row).
        values = initial_rows(self._spec, optimizer, seed, flat, uniform_rows)[name]
        if self.learnt.size:
            # Beyond the last row searchsorted gives the size, which is no place.
            place = np.minimum(np.searchsorted(self.learnt, flat), self.learnt.size - 1)
            stored = self.learnt[place] == flat
            values[stored] = self._stored[name][place[stored]]
        return values.reshape(*shaped.shape, *values.shape[1:])

    def _numbers(self, rows: ArrayLike | slice) -> NDArray[np.int64]:
        """Row numbers of an index, in its shape."""
        if isinstance(rows, slice):
            return np.arange(*rows.indices(self.rows), dtype=np.int64)
        numbers = np.asarray(rows)
        if numbers.size == 0:
            numbers = numbers.astype(np.int64)  # NumPy takes [] for floats
        if numbers.dtype.kind not in "iu":
            raise IndexError(f"rows of table {self.name} are whole numbers, not {numbers.dtype}")
        outside = (numbers < 0) | (numbers >= self.rows)
        if outside.any():
            raise IndexError(
                f"table {self.name} has rows 0 to {self.rows - 1}; got {numbers[outside].flat[0]}"
            )
        return numbers.astype(np.int64)

    def __repr__(self) -> str:
        return f"<table {self.name}: {self.rows} rows x {self.dim}, {self.learnt.size} learnt>"


class ComposedTable(Table):
    """A table of some kind: `table[rows]` are its rows, composed of those of physical tables.

    spec : of the logical table.
    model : has the physical tables and parameters.
    layout : how it is composed of them.

    Attributes: as of `Table`; learnt, the rows all of whose parts are learnt: any of them may have
    been learnt by other rows that share it.
    """

    def __init__(self, spec: TableSpec, model: "TrainedModel", layout: CompositionLayout) -> None:
        self.name = spec.name
        self.rows = spec.rows
        self.dim = spec.dim
        self._spec = spec
        self._model = model
        self._layout = layout

    @property
    def fields(self) -> tuple[str, ...]:
        """Names that `field` knows."""
        return ("weight",)

    @cached_property
    def learnt(self) -> NDArray[np.int64]:  # type: ignore[override]
        """Rows i64[n], ascending."""
        rows = np.arange(self.rows, dtype=np.int64)
        complete = np.ones(self.rows, np.bool_)
        logical = self._logical_rows()
        for table, mapped in logical.places(self._composition, rows):
            learnt = self._model.physical_tables[self._model.config.tables[table].name].learnt
            # -1: the part has nothing for this row, so nothing of it could be learnt.
            complete &= np.isin(mapped, learnt) | (mapped < 0)
        return rows[complete]

    def field(self, name: str, rows: ArrayLike | slice) -> F32:
        """As of `Table`, of "weight"."""
        if name not in self.fields:
            raise KeyError(name)
        shaped = self._numbers(rows)
        values = self._logical_rows().rows(self._composition, shaped.reshape(-1))
        return values.reshape(*shaped.shape, self.dim)

    @property
    def _composition(self) -> KeyVectors:
        return next(part for part in self._layout.parts if part.table == self.name)

    def _logical_rows(self) -> "LogicalRows":
        from neocpu.train.model.logical_rows import LogicalRows  # needs Numba
        from neocpu.train.step.dynamic_kinds import maps_of

        physical = self._model.config.tables

        def read(table: int, rows: NDArray[np.int64]) -> F32:
            return self._model.physical_tables[physical[table].name][rows]

        # where rows are is no parameter, but stands among them in a checkpoint
        moved = maps_of(self._model.config, [self._composition], self._model.dense)
        return LogicalRows(physical, self._layout, self._model.dense, read, moved)

    def __repr__(self) -> str:
        kind = next(t.kind for t in self._model.config.kinds if t.spec.name == self.name)
        return f"<table {self.name}: {self.rows} rows x {self.dim}, of kind {kind}>"


class TrainedModel:
    """A checkpoint, read-only.

    Attributes: path, step, digest, config; tables, `Table` by name, as the config names them;
    physical_tables, those in which the rows of tables of kinds are kept; dense, f32 array by
    parameter.

    overrides : of keys of the config.
    """

    def __init__(self, path: str | Path, overrides: Sequence[str] = ()) -> None:
        with CheckpointFile(path) as file:
            self.path = file.path
            self.step = file.step
            self.digest = file.digest
            self.config = file.config(overrides)
            self.physical_tables: Mapping[str, Table] = {
                spec.name: self._table(file, spec) for spec in self.config.tables
            }
            self.dense = {
                tensor.name.removeprefix("dense/"): file.field(number, "value")
                for number, tensor in enumerate(file.tensors)
                if tensor.parameter
            }
            composition = self.config.layout(file.dense_features).composition
        full = {table.spec.name for table in self.config.kinds if table.kind == FULL}
        self.tables: Mapping[str, Table] = self.physical_tables
        if composition is not None and self.config.kinds:
            self.tables = {
                spec.name: self.physical_tables[spec.name]
                # a full table beside tables of kinds is its own physical one
                if spec.name in full
                else self._composed(spec, composition)
                for spec in self.config.model_tables
            }

    def _composed(self, spec: TableSpec, layout: CompositionLayout) -> Table:
        """A table of a kind."""
        return ComposedTable(spec, self, layout)

    def _table(self, file: CheckpointFile, spec: TableSpec) -> Table:
        """The table of an open file."""
        return Table(file, spec, self.config)

    def __repr__(self) -> str:
        return (
            f"<model {self.path}: step {self.step}, {len(self.tables)} tables, digest "
            f"{self.digest[:12]}…>"
        )


def load(path: str | Path) -> TrainedModel:
    """Open a checkpoint to look at it. Raises CheckpointError if it is missing or broken.

    Values are mapped from the file and not verified; `neocpu checkpoint digest` verifies them.
    """
    return TrainedModel(path)
