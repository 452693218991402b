"""What did a model learn? A checkpoint as read-only arrays, for notebooks.

Needs neither MPI nor Numba.

model = neocpu.load("runs/a/checkpoints/step-00010000.h5")
model.tables["C1"][[0, 17]]        # rows 0 and 17, float32[2, D]
model.dense["bottom.0.weight"]     # float32[out, in]
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neocpu.config import Config
from neocpu.embedding.specs import TableSpec
from neocpu.reference.philox import uniform_rows
from neocpu.training.checkpoint.reading import CheckpointFile
from neocpu.training.initial import initial_rows

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

    def __getitem__(self, rows: Any) -> F32:
        """Weights: f32[D] of one row, f32[n, D] of a slice, f32[..., D] of row numbers int[...]."""
        return self.field("weight", rows)

    def field(self, name: str, rows: Any) -> F32:
        """The same of any field; f32[...] of those with one number per row.

        Raises IndexError outside [0, rows), KeyError for a field that the table does not have.
        """
        shaped = self._numbers(rows)
        flat = shaped.reshape(-1)
        optimizer = self._config.optimizer.sparse
        seed = self._config.training.seed
        values = initial_rows(self._spec, optimizer, seed, flat, uniform_rows)[name]
        if self.learnt.size:
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


class TrainedModel:
    """A checkpoint, read-only.

    Attributes: path, step, digest, config; tables, `Table` by name; dense, f32 array by parameter.
    overrides : of keys of the config.
    """

    def __init__(self, path: str | Path, overrides: Sequence[str] = ()) -> None:
        with CheckpointFile(path) as file:
            self.path = file.path
            self.step = file.step
            self.digest = file.digest
            self.config = file.config(overrides)
            self.tables: Mapping[str, Table] = {
                spec.name: self._table(file, spec) for spec in self.config.tables
            }
            self.dense = {
                tensor.name.removeprefix("dense/"): file.field(number, "value")
                for number, tensor in enumerate(file.tensors)
                if tensor.name.startswith("dense/")
            }

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
