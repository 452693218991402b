"""What did a model learn? A checkpoint as read-only arrays, for notebooks; needs neither MPI nor
Numba.

model = neocpu.load("runs/a/checkpoints/step-00010000.h5")
model.tables["C1"][[0, 17]]        # rows 0 and 17, float32[2, D]
model.dense["bottom.0.weight"]     # float32[out, in]
"""

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
    """One embedding table: `table[rows]`, also of rows that training never touched, which have
    their initial values.

    learnt : i64[n], rows that differ from their initial values. fields : "weight" and the
        optimizer's state.
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
        """Weights: f32[D] of one row, f32[n, D] of a slice, f32[..., D] of an array of row numbers."""
        return self.field("weight", rows)

    def field(self, name: str, rows: Any) -> F32:
        """The same of any field; one number per row where the rule keeps one. Raises IndexError
        outside [0, rows).
        """
        wanted = self._numbers(rows)
        flat = wanted.reshape(-1)
        start = initial_rows(
            self._spec,
            self._config.optimizer.sparse,
            self._config.training.seed,
            flat,
            uniform_rows,
        )
        found = start[name]
        at = np.minimum(np.searchsorted(self.learnt, flat), max(self.learnt.size - 1, 0))
        known = self.learnt[at] == flat if self.learnt.size else np.zeros(flat.size, np.bool_)
        found[known] = self._stored[name][at[known]]
        return found.reshape(*wanted.shape, *found.shape[1:])

    def _numbers(self, rows: ArrayLike | slice) -> NDArray[np.int64]:
        if isinstance(rows, slice):
            return np.arange(*rows.indices(self.rows), dtype=np.int64)
        wanted = np.asarray(rows)
        if wanted.size == 0:
            wanted = wanted.astype(np.int64)
        if wanted.dtype.kind not in "iu":
            raise IndexError(f"rows of table {self.name} are whole numbers, not {wanted.dtype}")
        outside = (wanted < 0) | (wanted >= self.rows)
        if outside.any():
            raise IndexError(
                f"table {self.name} has rows 0 to {self.rows - 1}; got {wanted[outside].flat[0]}"
            )
        return wanted.astype(np.int64)

    def __repr__(self) -> str:
        return f"<table {self.name}: {self.rows} rows x {self.dim}, {self.learnt.size} learnt>"


class TrainedModel:
    """A checkpoint, read-only: `tables` by name, `dense` parameters by name, `config`, `step`,
    `digest`.
    """

    def __init__(self, path: str | Path) -> None:
        with CheckpointFile(path) as file:
            self.path = file.path
            self.step = file.step
            self.digest = file.digest
            self.config = file.config()
            self.tables = {spec.name: Table(file, spec, self.config) for spec in self.config.tables}
            self.dense = {
                tensor.name.removeprefix("dense/"): file.field(number, "value")
                for number, tensor in enumerate(file.tensors)
                if tensor.name.startswith("dense/")
            }

    def __repr__(self) -> str:
        return (
            f"<model {self.path}: step {self.step}, {len(self.tables)} tables, digest "
            f"{self.digest[:12]}…>"
        )


def load(path: str | Path) -> TrainedModel:
    """Open a checkpoint for looking at it. Raises CheckpointError if it is missing or broken.

    Values are mapped from the file and not verified; `neocpu checkpoint digest` does that.
    """
    return TrainedModel(path)
