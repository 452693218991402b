"""Where do the numbers of the cases come from? Philox, by seed and name of the case: the same for
ever, on every machine.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.formats import FORMATS
from neocpu.oracle.operator import Arrays
from neocpu.oracle.truth.bags import SCALED
from neocpu.reference.codecs import LAYOUTS, ROUNDINGS, encode_rows
from neocpu.reference.philox import GENERATOR, random_words, tensor_key

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Draw:
    """A stream of random numbers of one case."""

    def __init__(self, seed: int, name: str) -> None:
        self._key = tensor_key(seed, GENERATOR, f"oracle/{name}")
        self._row = 0

    def words(self, count: int) -> NDArray[np.uint32]:
        """`count` words of 32 bits."""
        out = np.empty((1, max(count, 1)), np.uint32)
        random_words(self._key, self._row, 0, 0, out)
        self._row += 1
        return out[0, :count]

    def whole(self, shape: int | tuple[int, ...], low: int, high: int) -> Ints:
        """Whole numbers in [low, high)."""
        count = int(np.prod(shape))
        return (low + (self.words(count).astype(np.int64) * (high - low) >> 32)).reshape(shape)

    def floats(self, shape: int | tuple[int, ...], low: int = -3, high: int = 2) -> Floats:
        """fp32 numbers of either sign with all 24 bits, exponents in [low, high)."""
        count = int(np.prod(shape))
        words = self.words(count)
        fraction = 1.0 + (words & 0x7FFFFF).astype(np.float64) / (1 << 23)
        sign = np.where(words >> 31, -1.0, 1.0)
        return (
            np.ldexp(sign * fraction, self.whole(count, low, high))
            .astype(np.float32)
            .reshape(shape)
        )

    def dyadic(self, shape: int | tuple[int, ...], bits: int = 6, unit: int = -4) -> Floats:
        """Whole multiples of 2^unit below 2^bits units, none of them 0: sums of thousands are exact
        in any order.
        """
        count = int(np.prod(shape))
        words = self.words(count)
        size = 1 + (words >> 1) % ((1 << bits) - 1)
        return (
            np.ldexp(np.where(words & 1, -1.0, 1.0) * size, unit).astype(np.float32).reshape(shape)
        )


Lengths = Sequence[Sequence[int]]  # by feature, by sample
Pick = Callable[[Draw, int, int], Ints]


def uniform(draw: Draw, rows: int, count: int) -> Ints:
    """Any row."""
    return draw.whole(count, 0, rows)


def skewed(draw: Draw, rows: int, count: int) -> Ints:
    """Small row numbers most of the time, as in click logs: half of the lookups hit a handful of
    rows.
    """
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
    """Tables of fp32 rows; features one for each table unless named. `exact`: small dyadic numbers."""
    count = int(np.dot(rows, dims))
    return {
        "weights": draw.dyadic(count) if exact else draw.floats(count),
        "rows": np.array(rows, np.int64),
        "dims": np.array(dims, np.int64),
        "feature_table": np.array(range(len(rows)) if features is None else features, np.int64),
    }


def bags(
    draw: Draw, given: Arrays, lengths: Lengths, pick: Pick = uniform, weighted: bool = False
) -> Arrays:
    """Bags of those lengths over the tables: indices, offsets, weights; batch_sizes where samples
    differ.
    """
    rows = given["rows"].tolist()
    feature_table = given["feature_table"].tolist()
    flat = [n for feature in lengths for n in feature]
    offsets = np.append(0, np.cumsum(np.array(flat, np.int64)))
    indices = [pick(draw, rows[t], sum(feature)) for t, feature in zip(feature_table, lengths)]
    found: Arrays = {
        "indices": np.concatenate([np.empty(0, np.int64), *indices]),
        "offsets": offsets,
    }
    if weighted:
        found["per_sample_weights"] = draw.floats(int(offsets[-1]))
    sizes = [len(feature) for feature in lengths]
    if len(set(sizes)) > 1:
        found["batch_sizes"] = np.array(sizes, np.int64)
    return found


def gradient(draw: Draw, given: Arrays, pooling: str = "sum", exact: bool = False) -> Floats:
    """A gradient of the output of a lookup, of the shape that it has."""
    dims = given["dims"][given["feature_table"]]
    if pooling == "none":
        shape: tuple[int, ...] = (given["indices"].size, int(dims[0]))
    elif "batch_sizes" in given:
        shape = (int((given["batch_sizes"] * dims).sum()),)
    else:
        shape = ((given["offsets"].size - 1) // max(dims.size, 1), int(dims.sum()))
    return draw.dyadic(shape) if exact else draw.floats(shape)


def ragged(draw: Draw, features: int, batch: int, most: int = 9) -> list[list[int]]:
    """Lengths 0 to `most`, about one bag in five empty."""
    found = draw.whole((features, batch), -2, most + 1)
    return np.maximum(found, 0).tolist()


def coded(values: Floats, name: str) -> NDArray[Any]:
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
) -> NDArray[np.uint8]:
    """Random row-scaled rows: any code, a scale and a bias that keep numbers of ordinary size;
    padding of 0xAA.
    """
    bits, dtype, first = SCALED[name]
    parts = []
    for r, d in zip(rows, dims):
        data = -(-d * bits // 8)
        codes = draw.words(r * data).astype(np.uint8).reshape(r, data)
        codes[:, -1] &= 255 >> (data * 8 - d * bits)
        header = (
            np.stack([np.abs(draw.floats(r, -8, -5)), draw.floats(r, -2, 1)], axis=1)
            .astype(dtype)
            .view(np.uint8)
        )
        row = np.concatenate([header, codes] if first else [codes, header], axis=1)
        parts.append(
            np.pad(row, ((0, 0), (0, -row.shape[1] % alignment)), constant_values=0xAA).reshape(-1)
        )
    return np.concatenate(parts)
