"""In which order do peers add, and where do they round? The steps that all mirrors share.

Everything is fp32, one IEEE operation at a time. Columns and bags are independent, so NumPy takes
them together; whatever has an order is a loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neocpu.core.errors import OracleError
from neocpu.core.types import Floats, Ints
from neocpu.kernels.twins.numbers.fma import fma
from neocpu.oracle.adapters import Array, coded, codes_of
from neocpu.oracle.operator import Arrays, Options

F = np.float32
RADIX_SORT = 32768  # from so many keys on torch sorts by radix: stable
INSERTION_SORT = 16  # std::sort leaves partitions of at most this size to its insertion sort


class NoMirror(OracleError):
    """A peer does not answer this question, or its order of operations is not known; says which."""


@dataclass(frozen=True)
class Feature:
    """One feature of a batch: its table, its bags, and where it stands in inputs and output."""

    number: int
    table: int
    rows: Floats  # f32[R, D]: the table; narrow rows decoded
    indices: Ints  # i64[n]
    offsets: Ints  # i64[B+1], from 0
    weights: Floats | None  # f32[n]
    first: int  # of its lookups, among all
    column: int  # first column in the output

    @property
    def lengths(self) -> Ints:
        """Lookups of each bag, i64[B]."""
        return np.diff(self.offsets)

    @property
    def bag(self) -> Ints:
        """Bag of each lookup."""
        return np.repeat(np.arange(self.lengths.size), self.lengths)


def fused(x: Floats | np.float32, y: Floats | np.float32, z: Floats | np.float32) -> Floats:
    """x*y + z rounded once, where numbers broadcast."""
    return fma(np.asarray(x), np.asarray(y), np.asarray(z))


def decoded(codes: Array, form: str) -> Floats:
    """fp32 numbers of fp32, fp16 or bf16 elements."""
    bare = codes_of(codes)
    if form == "fp32":
        return np.array(bare, np.float32)
    if form == "fp16":
        return bare.view(np.float16).astype(np.float32)
    return (bare.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encoded(x: Floats, form: str, half_up: bool = False) -> Array:
    """fp32 numbers as elements of fp32, fp16 or bf16, to nearest even.

    half_up : bf16 by adding 0x8000, whatever the bits, NaN included.
    """
    if form == "fp32":
        return x
    if form == "fp16":
        return coded(x.astype(np.float16), "fp16")
    bits = np.ascontiguousarray(x).view(np.uint32)
    if half_up:
        return coded(((bits + np.uint32(0x8000)) >> np.uint32(16)).astype(np.uint16), "bf16")
    even = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return coded(np.where(np.isnan(x), np.uint32(0x7FC0), even).astype(np.uint16), "bf16")


def tables(inputs: Arrays, form: str) -> list[Floats]:
    """Every table as a matrix of its own, fp32."""
    flat = decoded(inputs["weights"], form).reshape(-1)
    sizes = inputs["rows"] * inputs["dims"]
    ends = np.cumsum(sizes)
    return [
        flat[end - size : end].reshape(int(rows), int(dim))
        for end, size, rows, dim in zip(
            ends.tolist(), sizes.tolist(), inputs["rows"], inputs["dims"]
        )
    ]


def flat(parts: list[Floats]) -> Floats:
    """Arrays one after the other."""
    return np.concatenate([np.empty(0, np.float32), *(part.reshape(-1) for part in parts)])


def features(inputs: Arrays, matrices: list[Floats], pruned: bool = False) -> Iterator[Feature]:
    """The features of a batch.

    pruned : row -1 is allowed.
    Raises NoMirror where batch sizes vary, nothing is looked up, or a row is out of range.
    """
    if "batch_sizes" in inputs:
        raise NoMirror("batches that vary by feature are beyond the peer's CPU operators")
    feature_table = inputs["feature_table"].astype(np.int64).tolist()
    offsets = inputs["offsets"].astype(np.int64)
    indices = inputs["indices"].astype(np.int64)
    all_weights = inputs.get("per_sample_weights")
    batch = (offsets.size - 1) // max(len(feature_table), 1)
    if not feature_table or not batch:
        raise NoMirror("nothing is looked up: peers disagree on empty batches")
    column = 0
    for f, t in enumerate(feature_table):
        bag_limits = offsets[f * batch : (f + 1) * batch + 1]
        lookups = slice(int(bag_limits[0]), int(bag_limits[-1]))
        rows = indices[lookups]
        if rows.size and (rows.min() < -pruned or rows.max() >= len(matrices[t])):
            raise NoMirror("pruned rows and rows out of range are errors to the peer's lookup")
        yield Feature(
            number=f,
            table=t,
            rows=matrices[t],
            indices=rows,
            offsets=bag_limits - bag_limits[0],
            weights=None if all_weights is None else np.array(all_weights[lookups], np.float32),
            first=lookups.start,
            column=column,
        )
        column += matrices[t].shape[1]


def by_table(inputs: Arrays, matrices: list[Floats]) -> dict[int, list[Feature]]:
    """The features of each table that has some, in order."""
    by_number: dict[int, list[Feature]] = {}
    for feature in features(inputs, matrices):
        by_number.setdefault(feature.table, []).append(feature)
    return by_number


def gradient_of(feature: Feature, inputs: Arrays, options: Options) -> Floats:
    """grad_output of each lookup of a feature, f32[n, D], clipped; not yet divided or weighted."""
    gradient = np.asarray(inputs["grad_output"], np.float32)
    limit = F(float(options.get("max_gradient", 0.0)))
    if limit:
        gradient = np.clip(gradient, -limit, limit)
    if options["pooling"] == "none":
        return gradient[feature.first : feature.first + feature.indices.size]
    columns = slice(feature.column, feature.column + feature.rows.shape[1])
    return np.ascontiguousarray(gradient[feature.bag, columns])


def running_sums(x: Floats, first: Ints, count: Ints, weights: Floats | None = None) -> Floats:
    """Sums of segments of rows of x, f32[segments, D], in order, from +0.

    x : f32[n, D]; first, count : i64[segments], first row and number of rows of each.
    weights : f32[n]; each step is then one fused multiply-add.
    """
    total = np.zeros((first.size, x.shape[1]), np.float32)
    for k in range(int(count.max(initial=0))):
        longer = np.flatnonzero(count > k)
        row = first[longer] + k
        if weights is None:
            total[longer] = total[longer] + x[row]
        else:
            total[longer] = fused(weights[row, None], x[row], total[longer])
    return total


def segments(keys: Ints, order: Ints) -> tuple[Ints, Ints, Ints]:
    """Unique keys in ascending order; first place and count of each in the sorted `order`."""
    return np.unique(keys[order], return_index=True, return_counts=True)


def stable_order(keys: Ints) -> Ints:
    """Places of the keys in ascending order, equal ones as they come."""
    return np.argsort(keys, kind="stable")


def introsort_order(keys: Ints) -> Ints:
    """Places of the keys as torch.sort leaves them: libstdc++'s std::sort below 32768 keys.

    Median of three to the front, partition around it, small parts to insertion sort (stable): the
    same swaps, in the same order. Beyond 16 keys it is not stable. Raises NoMirror where the depth
    limit would turn it into heap sort.
    """
    if keys.size >= RADIX_SORT:
        return stable_order(keys)
    key = keys.tolist()
    place = list(range(keys.size))
    parts = [(0, keys.size, 2 * (max(keys.size, 1).bit_length() - 1))]
    while parts:
        first, last, depth = parts.pop()
        while last - first > INSERTION_SORT:
            if not depth:
                raise NoMirror("std::sort falls back on heap sort for these row numbers")
            depth -= 1
            cut = _partition(key, place, first, last)
            # libstdc++ recurses into the right part and loops over the left.
            parts.append((cut, last, depth))
            last = cut
    partitioned = np.array(place, np.int64)
    # The final insertion sort is stable over what partitioning left.
    return partitioned[np.argsort(keys[partitioned], kind="stable")]


def _partition(key: list[int], place: list[int], first: int, last: int) -> int:
    """Swap the median of three to `first`, then partition the rest around it; returns the cut."""

    def swap(i: int, j: int) -> None:
        key[i], key[j] = key[j], key[i]
        place[i], place[j] = place[j], place[i]

    swap(first, _median(key, first + 1, first + (last - first) // 2, last - 1))
    pivot = key[first]
    low = first + 1
    high = last
    while True:
        while key[low] < pivot:
            low += 1
        high -= 1
        while pivot < key[high]:
            high -= 1
        if low >= high:
            return low
        swap(low, high)
        low += 1


def _median(key: list[int], a: int, b: int, c: int) -> int:
    """Which of three places holds the median; ties as libstdc++ breaks them."""
    if key[a] < key[b]:
        return b if key[b] < key[c] else c if key[a] < key[c] else a
    return a if key[a] < key[c] else c if key[b] < key[c] else b
