"""Which number of a format is nearest to a number? Asked of whole rows, by the functions that write
and read rows of codes.
"""

from types import ModuleType

import numpy as np

from neocpu.core.codecs import LAYOUTS
from neocpu.core.errors import TrainingError
from neocpu.core.formats import table_format
from neocpu.core.types import Floats, Ints
from neocpu.kernels.records import CodedTable, one_by_one, whole_table
from neocpu.tables.specs.specs import TableSpec
from neocpu.tables.storage.row_codecs import same_bits

NO_HALVES = np.empty(0, np.uint16)


def refuse_rounded(
    table: TableSpec, rows: Ints, column: int, stored: Floats, numbers: Floats
) -> None:
    """Raise TrainingError if the numbers that are stored are not those that were loaded.

    rows : i64[n], of the table.
    column : of it, the first one here.
    stored, numbers : f32[n, D].
    """
    mismatches = np.argwhere(~same_bits(stored, numbers))
    if mismatches.size:
        i, c = mismatches[0]
        raise TrainingError(
            f"table {table.name}, row {rows[i]}, column {column + c}: {numbers[i, c]!s} is no "
            f"{table.format} number"
        )


def rounded(numbers: Floats, form: str, narrow: ModuleType) -> Floats:
    """Numbers f32[n, D], each the nearest one of a format, by `kernels.rows.narrow` or its twin."""
    record = table_format(form)
    if record.exact:
        return numbers
    count, width = numbers.shape
    codes = np.empty(numbers.size, record.dtype)
    out = np.empty(numbers.size, np.float32)
    rows = np.arange(count, dtype=np.int64)
    table = CodedTable(codes, NO_HALVES, LAYOUTS[form], rounding=0, step=0, rows=rows)
    places = whole_table(width)
    segments = one_by_one(0, rows, rows)
    offsets = rows * width
    flat = np.ascontiguousarray(numbers, np.float32).reshape(-1)
    narrow.close_rows(table, places, segments, offsets, flat)
    narrow.open_rows(table, places, segments, offsets, out)
    return out.reshape(count, width)
