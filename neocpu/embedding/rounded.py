"""Which number of a format is nearest to a number? Asked of whole rows, by the functions that write
and read rows of codes.
"""

from types import ModuleType

import numpy as np

from neocpu.embedding.lookups import Floats
from neocpu.formats import table_format
from neocpu.reference.codecs import LAYOUTS

NO_HALVES = np.empty(0, np.uint16)


def rounded(numbers: Floats, form: str, narrow: ModuleType) -> Floats:
    """Numbers f32[n, D], each the nearest one of a format, by `kernels.narrow` or its twin."""
    record = table_format(form)
    if record.exact:
        return numbers
    count, width = numbers.shape
    codes = np.empty(numbers.size, record.dtype)
    out = np.empty(numbers.size, np.float32)
    zero = np.zeros(1, np.int64)
    rows = np.arange(count, dtype=np.int64)
    which = zero, np.array([width]), zero, np.array([0, count]), rows
    layout = LAYOUTS[form]
    last = (0, zero.astype(np.uint64), zero, zero, 0, rows)
    flat = np.ascontiguousarray(numbers, np.float32).reshape(-1)
    narrow.close_rows(codes, NO_HALVES, *which, layout, *last, rows * width, flat)
    narrow.open_rows(codes, NO_HALVES, *which, layout, rows * width, out)
    return out.reshape(count, width)
