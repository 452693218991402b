"""Where do the numbers of the cases come from, and their words? Philox, by seed and name of the
case; `cases.csv`, by its name, unless it is one of a series.

They are the same on every machine, and never change.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.codecs import LAYOUTS, ROUNDINGS
from neocpu.core.formats import FORMATS
from neocpu.core.types import Bytes, Elements, Floats, Ints
from neocpu.kernels.twins.codecs.small_floats import encode_rows
from neocpu.kernels.twins.numbers.philox import GENERATOR, random_words, tensor_key
from neocpu.oracle.operator import Arrays
from neocpu.oracle.truth.bags import SCALED

_TABLE = Path(__file__).resolve().with_name("cases.csv").read_text(encoding="utf-8")
# what a case breaks, by its name
ABOUT = {row["name"]: row["about"] for row in csv.DictReader(_TABLE.splitlines())}
NARROW = 3  # columns of narrow rows where odd widths are allowed


class Recipe(NamedTuple):
    """What all cases of a suite have in common.

    seed : of the numbers. dim_multiple : rows have such a multiple of columns.
    """

    seed: int
    dim_multiple: int = 1

    @property
    def narrow(self) -> int:
        """Columns of narrow rows: one multiple, or NARROW where any number is allowed."""
        return self.dim_multiple if self.dim_multiple > 1 else NARROW

    def width(self, columns: int) -> int:
        """So many columns, or the next multiple above."""
        return -(-columns // self.dim_multiple) * self.dim_multiple

    def widths(self, *columns: int) -> tuple[int, ...]:
        """`width` of each."""
        return tuple(map(self.width, columns))

    def tail(self, columns: int) -> int:
        """The first width above so many columns: a tail of one vector beside a power of two."""
        return self.width(columns + 1)

    def tails(self) -> tuple[int, ...]:
        """Widths around vectors, warps and blocks that are a multiple of none of them.

        Of rows in multiples of 4: 4, 12, 20, 28, 36, 60, 68, 124, 132, 252, 260 and 1028.
        """
        if self.dim_multiple == 1:
            return (1, 2, 3, 5, 7, 12, 31, 33, 63, 65, 127, 129, 255, 257)
        odd = (1, 3, 5, 7, 9, 15, 17, 31, 33, 63, 65)
        return (*(self.dim_multiple * number for number in odd), self.tail(1024))


class Draw:
    """A stream of random numbers of one case."""

    def __init__(self, seed: int, name: str) -> None:
        self._key = tensor_key(seed, GENERATOR, f"oracle/{name}")
        self._row = 0

    def words(self, count: int) -> NDArray[np.uint32]:
        """`count` words of 32 bits."""
        out = np.empty((1, max(count, 1)), np.uint32)
        random_words(self._key, self._row, 0, 0, out)
        # A row of its own for each call, so that one drawn longer leaves the others as they are.
        self._row += 1
        return out[0, :count]

    def whole(self, shape: int | tuple[int, ...], low: int, high: int) -> Ints:
        """Whole numbers in [low, high)."""
        count = int(np.prod(shape))
        # A multiplication instead of a remainder, in whole numbers: the same on every machine.
        return (low + (self.words(count).astype(np.int64) * (high - low) >> 32)).reshape(shape)

    def floats(self, shape: int | tuple[int, ...], low: int = -3, high: int = 2) -> Floats:
        """fp32 numbers of either sign with all 24 bits, exponents in [low, high)."""
        count = int(np.prod(shape))
        words = self.words(count)
        # All 24 bits at random: numbers with short fractions would add up without rounding.
        fraction = 1.0 + (words & 0x7FFFFF).astype(np.float64) / (1 << 23)
        sign = np.where(words >> 31, -1.0, 1.0)
        numbers: Floats = np.ldexp(sign * fraction, self.whole(count, low, high)).astype(np.float32)
        return numbers.reshape(shape)

    def dyadic(self, shape: int | tuple[int, ...], bits: int = 6, unit: int = -4) -> Floats:
        """Whole multiples of 2^unit below 2^bits units, none of them 0.

        Sums of thousands of them are exact in any order.
        """
        words = self.words(int(np.prod(shape)))
        # Never 0: a lost 0 would not show.
        units = 1 + (words >> 1) % ((1 << bits) - 1)
        sign = np.where(words & 1, -1.0, 1.0)
        numbers: Floats = np.ldexp(sign * units, unit).astype(np.float32)
        return numbers.reshape(shape)


Lengths = Sequence[Sequence[int]]  # by feature, by sample
Pick = Callable[[Draw, int, int], Ints]


def uniform(draw: Draw, rows: int, count: int) -> Ints:
    """Any row."""
    return draw.whole(count, 0, rows)


def skewed(draw: Draw, rows: int, count: int) -> Ints:
    """Small row numbers most of the time, as in click logs: a few rows get half of the lookups."""
    u = draw.words(count).astype(np.float64) / 2.0**32
    return np.minimum((rows * u * u * u * u).astype(np.int64), rows - 1)


def last(draw: Draw, rows: int, count: int) -> Ints:
    """The last row, and now and then the first."""
    return np.where(draw.whole(count, 0, 4) == 0, 0, rows - 1)


def hot(draw: Draw, rows: int, count: int) -> Ints:
    """One row, always."""
    return np.full(count, rows // 2)


def tables(
    draw: Draw,
    rows: Sequence[int],
    dims: Sequence[int],
    features: Sequence[int] | None = None,
    exact: bool = False,
) -> Arrays:
    """Tables of fp32 rows.

    features : the table of each feature; None: one feature for each table.
    exact : small dyadic numbers.
    """
    count = int(np.dot(rows, dims))
    return {
        "weights": draw.dyadic(count) if exact else draw.floats(count),
        "rows": np.array(rows, np.int64),
        "dims": np.array(dims, np.int64),
        "feature_table": np.array(range(len(rows)) if features is None else features, np.int64),
    }


def bags(
    draw: Draw, inputs: Arrays, lengths: Lengths, pick: Pick = uniform, weighted: bool = False
) -> Arrays:
    """Bags of these lengths over the tables: indices, offsets, weights.

    Also batch_sizes, where the numbers of samples of features differ.
    """
    rows = inputs["rows"].tolist()
    feature_table = inputs["feature_table"].tolist()
    flat = [n for feature in lengths for n in feature]
    offsets = np.append(0, np.cumsum(np.array(flat, np.int64)))
    indices = [pick(draw, rows[t], sum(feature)) for t, feature in zip(feature_table, lengths)]
    batch: Arrays = {
        "indices": np.concatenate([np.empty(0, np.int64), *indices]),
        "offsets": offsets,
    }
    if weighted:
        batch["per_sample_weights"] = draw.floats(int(offsets[-1]))
    sizes = [len(feature) for feature in lengths]
    if len(set(sizes)) > 1:
        batch["batch_sizes"] = np.array(sizes, np.int64)
    return batch


def gradient(draw: Draw, inputs: Arrays, pooling: str = "sum", exact: bool = False) -> Floats:
    """A gradient of the output of a lookup, of the shape that it has."""
    dims = inputs["dims"][inputs["feature_table"]]
    if pooling == "none":
        shape: tuple[int, ...] = (inputs["indices"].size, int(dims[0]))
    elif "batch_sizes" in inputs:
        shape = (int((inputs["batch_sizes"] * dims).sum()),)
    else:
        shape = ((inputs["offsets"].size - 1) // max(dims.size, 1), int(dims.sum()))
    return draw.dyadic(shape) if exact else draw.floats(shape)


def ragged(draw: Draw, features: int, batch: int, most: int = 9) -> list[list[int]]:
    """Lengths 0 to `most`, about one bag in five empty."""
    lengths = draw.whole((features, batch), -2, most + 1)
    return [[max(length, 0) for length in samples] for samples in lengths.tolist()]


def coded(values: Floats, name: str) -> Elements:
    """Numbers as codes of a narrow format, to nearest."""
    if name == "fp32":
        return values
    out = np.empty((1, values.size), FORMATS[name].dtype)
    encode_rows(
        np.ascontiguousarray(values).reshape(1, -1), LAYOUTS[name], ROUNDINGS["nearest"], out
    )
    return FORMATS[name].view(out).reshape(values.shape)


def scaled_rows(
    draw: Draw, name: str, rows: Sequence[int], dims: Sequence[int], alignment: int = 1
) -> Bytes:
    """Random rows of a row-scaled format, as bytes; padding of 0xAA.

    Any code; scale and bias keep numbers of ordinary size.
    """
    bits, dtype, header_first = SCALED[name]
    table_bytes = []
    for row_count, dim in zip(rows, dims):
        code_bytes = -(-dim * bits // 8)
        codes = draw.words(row_count * code_bytes).astype(np.uint8).reshape(row_count, code_bytes)
        codes[:, -1] &= 255 >> (code_bytes * 8 - dim * bits)
        scale = np.abs(draw.floats(row_count, -8, -5))
        bias = draw.floats(row_count, -2, 1)
        header = np.stack([scale, bias], axis=1).astype(dtype).view(np.uint8)
        row = np.concatenate([header, codes] if header_first else [codes, header], axis=1)
        padding = ((0, 0), (0, -row.shape[1] % alignment))
        table_bytes.append(np.pad(row, padding, constant_values=0xAA).reshape(-1))
    return np.concatenate(table_bytes)
