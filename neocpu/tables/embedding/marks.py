"""Which rows of a huge table are there, without a look at all that could be?

Each row has a byte, in a mapping whose untouched pages take no memory; but to read them takes
minutes where a table has 10^12 rows. So there is a byte more for each PAGE rows, which says whether
any of them is marked.
"""

import numpy as np

from neocpu.core.types import Bytes, Ints

PAGE = 4096  # rows
TOGETHER = 4096  # pages that are looked through at a time, where there are gaps between them


def pages_of(rows: int) -> int:
    """Pages that so many rows have."""
    return -(-rows // PAGE)


def marked(marks: Bytes, pages: Ints, first: int, end: int) -> Ints:
    """Marked rows first <= i64[n] < end, ascending.

    marks : u8[whole pages]. pages : i64[p], those that have any, ascending.
    """
    numbers = pages[slice(*np.searchsorted(pages, [first // PAGE, pages_of(end)]))]
    if first >= end or not numbers.size:
        return np.empty(0, np.int64)
    if numbers.size == numbers[-1] - numbers[0] + 1:
        lo = max(first, int(numbers[0]) * PAGE)
        return np.flatnonzero(marks[lo : min(end, int(numbers[-1] + 1) * PAGE)]) + lo
    by_page = marks.reshape(-1, PAGE)
    runs = []
    for at in range(0, numbers.size, TOGETHER):
        part = numbers[at : at + TOGETHER]
        places = np.flatnonzero(by_page[part])
        runs.append(part[places // PAGE] * PAGE + places % PAGE)
    rows = np.concatenate(runs)
    return rows[slice(*np.searchsorted(rows, [first, end]))]
