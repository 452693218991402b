"""Which rank needs which lookup, where a table is cut?"""

import numpy as np


def bucketize(
    lengths: np.ndarray, rows: np.ndarray, block: int, ranks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Deal out the lookups of a table that is cut by rows: rank r has the rows from r*block on.

    lengths : int64[B], lookups of each bag.
    rows : int64[n], the row of each lookup, bag after bag; below block * ranks.
    block : rows of each rank.
    Returns (lengths int64[ranks * B], rows int64[n]): for rank after rank, how many lookups it gets
    of each bag, and these lookups, in the order of the bags, as rows of the rank's own block.
    """
    bag = np.repeat(np.arange(len(lengths)), lengths)
    owner = rows // block
    dealt_lengths = [np.bincount(bag[owner == r], minlength=len(lengths)) for r in range(ranks)]
    dealt_rows = [rows[owner == r] - r * block for r in range(ranks)]
    return np.concatenate(dealt_lengths), np.concatenate(dealt_rows)


def needs(
    rectangles: np.ndarray, rows: np.ndarray, home: int, ranks: int, columns: int
) -> np.ndarray:
    """Which ranks need each lookup of a table, however it is cut?

    rectangles : int64[k, 5], of each piece of the table: first row, end of rows, first column, end
        of columns, rank; ends are the first numbers beyond.
    rows : int64[n], the rows that a sample of the rank `home` looks up.
    columns : of the table.
    Returns bool[n, ranks]: every rank that has some columns of the row, but only `home` where that
    has them all: then nothing is sent.
    """
    out = np.zeros((len(rows), ranks), bool)
    for begin, end, _, _, rank in rectangles:
        out[(begin <= rows) & (rows < end), rank] = True
    for begin, end, first, last, rank in rectangles:
        if rank == home and last - first == columns:
            inside = (begin <= rows) & (rows < end)
            out[inside] = np.arange(ranks) == home
    return out
