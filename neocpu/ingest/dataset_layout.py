"""What does a dataset file look like inside? A plain HDF5 file, columnar and KJT-shaped, that a
stranger can read.

    /                   attributes: format, version, rows, source, options, description, …
                        (text or JSON)
    /labels             float32[N]        absent in logs without labels
    /dense              float32[N, Nd]    attributes: columns (names), missing (counts), transform
    /features/C1/
        codes           uint32 or uint64  the category *code*: hex value, or a 64-bit hash of text;
                        hotness 1: [N], hotness L > 1: [N, L], hotness 0 (ragged): [sum of lengths]
        lengths         int32[N]          only ragged: codes of every row
        block_offsets   int64[ceil(N/4096) + 1]
                                          only ragged: first code of every 4,096th row, and the end
        weights         float32           only weighted features; shape of codes
        vocabulary      as codes, [V]     only with a vocabulary: entry i is row i + 1, others row 0
        frequent        as codes, [F]     only if counted: codes seen more than once, at most
                                          65,536, by count
        frequent_counts int64[F]          how often, too small by at most their attribute `short`

Codes, not rows, are stored: the loader maps them (`neocpu.ingest.loader`), so one file serves every
table size. Datasets are contiguous and uncompressed unless the file was asked to be smaller, so a
rank maps what it needs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FORMAT = "neocpu-dataset"
VERSION = 1
BLOCK = 4096  # rows; the unit of shuffling, of compression chunks and of `block_offsets`
COMPRESSIONS = ("none", "gzip", "zstd")


@dataclass(frozen=True)
class FeatureColumn:
    """One categorical feature: its name, how its codes were made, and how many codes a row has.

    hotness: codes of every row; 0 where rows differ ("ragged"). A ragged feature whose rows turn
    out to be equally long is stored as a fixed one.
    """

    name: str
    dtype: str = "uint32"  # or "uint64"
    hotness: int = 1
    weighted: bool = False
    kind: str = "hex"  # hex | text | int: how a code follows from the log's field


class BagColumn(NamedTuple):
    """The bags of one feature in some rows: codes one after the other, and how many belong to each
    row.

    codes: uint32[n] or uint64[n]. lengths: int32[rows], None where every row has the same number.
    weights: float32[n].
    """

    codes: NDArray[np.unsignedinteger]
    lengths: NDArray[np.int32] | None = None
    weights: NDArray[np.float32] | None = None
