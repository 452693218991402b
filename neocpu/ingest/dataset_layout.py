"""What does a dataset file look like inside? A plain HDF5 file with the columns of a KJT.

N is the number of samples (the attribute `rows`: one row of the log each), C1 a feature.

    /                  attributes: format, version, rows, source, options, description, …
                       (text or JSON)
    /labels            float32[N]; absent in logs without labels
    /more_labels/NAME  float32[N], labels of a table besides the first; the attribute `labels` of /
                       has name, least and most value of each: [["click", 0.0, 1.0], …]
    /schema            uint8, only tables: the schema in JSON, with the numbers that were fitted
    /dense             float32[N, Nd]; attributes: columns (names), missing (counts), transform

    /features/C1/...
      codes            uint32 or uint64: the category *code* (hex value, or a 64-bit hash of the
                       text); hotness 1: [N], hotness L > 1: [N, L], hotness 0 (ragged):
                       [sum of lengths]
      lengths          int32[N], only ragged: codes of every sample
      block_offsets    int64[ceil(N/4096) + 1], only ragged: first code of every 4,096th sample,
                       and the end
      weights          float32, shaped like codes, only weighted features
      vocabulary       like codes, [V], only with a vocabulary: entry i is table row i + 1, every
                       other code is row 0
      frequent         like codes, [F], only if counted: codes seen more than once, at most
                       65,536, by count
      frequent_counts  int64[F]: how often, too small by at most their attribute `short`

Codes are stored, not rows of tables: they are mapped when they are read (`neocpu.ingest.code_map`),
so one file serves every table size. Datasets are contiguous and uncompressed unless compression was
requested, so a rank maps what it needs.

Beside each column (labels, dense, codes, lengths, weights) with elements is one of checksums:

    labels_crc32, …    uint32[ceil(n/4096)]: the CRC-32 of each block of 4,096 entries of the first
                       axis, little-endian and not compressed; verified when a block is first read

All other bytes are under the file's seal (`neocpu.tables.hdf5.seal`), which is verified before HDF5
reads the file. Files of neocpu 0.1.0 have neither and stay readable; lengths of their bags are
compared with `block_offsets`.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Elements, Floats, Ints

FORMAT = "neocpu-dataset"
VERSION = 1
BLOCK = 4096  # samples; the unit of shuffling, of compression chunks and of `block_offsets`
CRC = "_crc32"  # ends the name of a column's checksums
COMPRESSIONS = ("none", "gzip", "zstd")


@dataclass(frozen=True)
class FeatureColumn:
    """One categorical feature: its name, how its codes were made, and how long its bags are.

    hotness : codes of every sample; 0 where samples differ ("ragged"). A ragged feature whose bags
    turn out to be equally long is stored as a fixed one.
    """

    name: str
    dtype: str = "uint32"  # or "uint64"
    hotness: int = 1
    weighted: bool = False
    kind: str = "hex"  # how a code follows from the log's field (`CategoryField.description`)


class BagColumn(NamedTuple):
    """The bags of one feature in some samples: all codes in order, and how many each sample has.

    codes : uint32[n] or uint64[n]. lengths : int32[samples], None where every sample has the same
    number. weights : float32[n].
    """

    codes: NDArray[np.unsignedinteger]
    lengths: NDArray[np.int32] | None = None
    weights: Floats | None = None


def take_bags(column: BagColumn, samples: Ints) -> BagColumn:
    """The bags of some samples, i64[n], in their order."""
    if column.lengths is None:
        return BagColumn(
            column.codes[samples], None, None if column.weights is None else column.weights[samples]
        )
    lengths = column.lengths[samples]
    ends = np.cumsum(column.lengths, dtype=np.int64)
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    chosen = np.repeat(ends[samples] - lengths, lengths) + within
    weights = None if column.weights is None else column.weights[chosen]
    return BagColumn(column.codes[chosen], lengths, weights)


def crc32_of(entries: Elements, before: int = 0) -> int:
    """CRC-32 of the bytes of a contiguous array; before : that of those ahead of it."""
    return zlib.crc32(entries.reshape(-1).view(np.uint8).data, before)


def extreme_lines(sources: Sequence[str], sizes: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """That dense columns have numbers of these sizes: a line for each source and column."""
    for source, of_columns in zip(sources, sizes):
        for column, size in of_columns.items():
            yield (
                f"{source}: column {column!r} has numbers up to {size:.3g} in size, after its "
                "transform: one of them can end a run; transform it otherwise, or clip = [least, "
                "most] in its [[dense]] moves numbers into a range"
            )
