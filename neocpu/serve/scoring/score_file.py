"""How are predictions written to a file? As CSV, Parquet or NumPy, as its name says.

    NAME.parquet    the columns row (from 0), key columns of the data, prediction (float32), and
                    where faulty rows are scored too, reason: why one has no prediction
    NAME.npy        float32[n], the predictions alone; NaN for a faulty row
                    Of classes that are texts the predictions are texts, in a .npy "" for NaN
    any other name  CSV with the columns of Parquet; a number has the fewest digits that give the
                    same fp32 back. Names of other formats, as .xlsx, are refused

A file gets its name once it is complete.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import DataError, told_as

if TYPE_CHECKING:
    import polars as pl

F32 = NDArray[np.float32]
OTHERS = (
    *(".xlsx", ".xls", ".ods", ".npz", ".h5", ".hdf5", ".feather", ".arrow", ".orc", ".avro"),
    *(".json", ".jsonl", ".ndjson", ".pkl", ".gz", ".bz2", ".xz", ".zst", ".zip"),
)
SPECIAL = {*',"\n\r'}  # characters of a text that CSV quotes


class ScoreFile:
    """A file of predictions in the making: `write` them in order, then `finish`.

    keys : columns to stand beside the predictions, with a row for each of them (None: none).
    reasons : whether there is a column reason. named : gives predictions f32[n] as they are to
    stand, texts maybe. rows : how many were written.

    All methods but `discard` raise DataError where the file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        keys: "pl.DataFrame | None" = None,
        reasons: bool = False,
        named: Callable[[F32], NDArray[Any]] | None = None,
    ) -> None:
        if path.suffix.lower() in OTHERS:
            raise DataError(
                f"{path}: predictions are written as CSV, .parquet or .npy, not as {path.suffix}; "
                "give it a name that says so"
            )
        self.path = path
        self.rows = 0
        self._keys = keys
        self._reasons = reasons
        self._named = named or (lambda predictions: predictions)
        self._faults: dict[int, str] = {}  # of rows that are not written yet
        self._parts = [np.empty(0, np.float32)]
        # Under another name until it is whole: a killed command leaves no file that looks complete.
        self._partial = path.with_name(f".{path.name}.partial")
        # long CSV files are written as predictions come
        self._streams = keys is None and path.suffix not in (".parquet", ".npy")
        with told_as(DataError, self.path):
            # open until `finish` or `discard`: batches come one by one
            self._file = open(self._partial, "wb")  # noqa: SIM115
            if self._streams:
                self._file.write(b"row,prediction,reason\n" if reasons else b"row,prediction\n")

    def write(self, predictions: F32, faults: Mapping[int, str] | None = None) -> None:
        """Append predictions f32[n]; faults : why some of them have none, by row from 0."""
        faults = faults or {}
        if self._streams:
            with told_as(DataError, self.path):
                self._file.write("".join(self._lines(predictions, faults)).encode())
        else:
            self._parts.append(predictions.copy())
            self._faults |= {self.rows + row: reason for row, reason in faults.items()}
        self.rows += predictions.size

    def _lines(self, predictions: F32, faults: Mapping[int, str]) -> Iterator[str]:
        """Lines of CSV."""
        end = ",\n" if self._reasons else "\n"
        named = self._named(predictions)
        texts = named.dtype.kind == "U"
        for row, value in enumerate(named):
            if row in faults:
                yield f"{self.rows + row},,{_quoted(faults[row])}\n"
            else:
                # of numbers no character has to be looked at
                shown = _quoted(value) if texts and SPECIAL & {*value} else value
                yield f"{self.rows + row},{shown!s}{end}"

    def finish(self) -> None:
        """Give the file its name. Raises DataError unless each prediction has its key row."""
        if self._keys is not None and self._keys.height != self.rows:
            raise DataError(
                f"{self.path}: the data had {self._keys.height} rows with key columns, but then "
                f"{self.rows}; did they change meanwhile?"
            )
        with told_as(DataError, self.path):
            if not self._streams:
                self._write_all(self._named(np.concatenate(self._parts)))
            self._file.close()
            os.replace(self._partial, self.path)

    def discard(self) -> None:
        """Remove the file unless `finish` gave it its name."""
        with suppress(OSError):  # what could not be written is not wanted any more
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def _write_all(self, predictions: NDArray[Any]) -> None:
        """Write a file at once."""
        if self.path.suffix == ".npy":
            np.save(self._file, predictions)
            return
        import polars as pl

        rows = pl.Series("row", np.arange(predictions.size, dtype=np.int64))
        keys = [] if self._keys is None else self._keys.get_columns()
        scores = pl.Series("prediction", predictions)
        if self.path.suffix != ".parquet" or predictions.dtype.kind == "U":
            # As NumPy prints fp32: the shortest text that reads back as the same bits.
            scores = pl.Series("prediction", [str(value) for value in predictions], pl.String)
        reasons = pl.Series("reason", [None] * predictions.size, pl.String)
        faulty = list(self._faults)
        reasons = reasons.scatter(faulty, list(self._faults.values()))
        columns = [rows, *keys, scores.scatter(faulty, None), *[reasons] * self._reasons]
        if self.path.suffix == ".parquet":
            pl.DataFrame(columns).write_parquet(self._file)
        else:
            pl.DataFrame(columns).write_csv(self._file)


def _quoted(text: str) -> str:
    """A text as CSV has it where it may have commas, quotes or ends of lines."""
    return '"' + text.replace('"', '""') + '"'
