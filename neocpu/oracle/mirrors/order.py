"""In which order do peers add, and where do they round? The steps that all mirrors share, one IEEE
operation at a time.

Everything is fp32; what is vectorised here (columns, bags) is independent, what has an order is a
loop.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.errors import OracleError
from neocpu.oracle.adapters import Array, coded, codes_of
from neocpu.oracle.operator import Arrays, Value
from neocpu.reference.fma import fma

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
F = np.float32
RADIX = 32768  # from so many keys on torch sorts by radix: stable
fused: Callable[[Any, Any, Any], Floats] = fma  # x*y + z rounded once; numbers broadcast
SMALL = 16  # partitions of std::sort that are left to its insertion sort


class NoMirror(OracleError):
    """A peer has no bits for this question, or nobody knows in which order it computes them; the
    text says which.
    """


@dataclass(frozen=True)
class Feature:
    """One feature of a batch: its table [R, D] as fp32 numbers, its bags, and where its columns
    begin in the output.
    """

    number: int
    table: int
    rows: Floats  # f32[R, D]: the table; narrow rows decoded
    indices: Ints
    offsets: Ints  # i64[B+1], from 0
    weights: Floats | None
    first: int  # of its lookups, among all
    column: int

    @property
    def lengths(self) -> Ints:
        """Lookups of each bag, i64[B]."""
        return np.diff(self.offsets)

    @property
    def bag(self) -> Ints:
        """Bag of each lookup."""
        return np.repeat(np.arange(self.lengths.size), self.lengths)


def decoded(codes: Array, form: str) -> Floats:
    """fp32 numbers of fp32, fp16 or bf16 elements."""
    bare = codes_of(codes)
    if form == "fp32":
        return np.array(bare, np.float32)
    if form == "fp16":
        return bare.view(np.float16).astype(np.float32)
    return (bare.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encoded(x: Floats, form: str, half_up: bool = False) -> Array:
    """fp32 numbers as elements of fp32, fp16 or bf16, to nearest even; `half_up`: bf16 by adding
    0x8000, whatever the bits.
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
    """The features of a batch. Raises NoMirror where batches vary or a row number is out of range;
    `pruned`: -1 is not.
    """
    if "batch_sizes" in inputs:
        raise NoMirror("batches that vary by feature are beyond the peer's CPU operators")
    of = inputs["feature_table"].astype(np.int64).tolist()
    offsets = inputs["offsets"].astype(np.int64)
    indices = inputs["indices"].astype(np.int64)
    batch = (offsets.size - 1) // max(len(of), 1)
    if not of or not batch:
        raise NoMirror("nothing is looked up: peers disagree on empty batches")
    column = 0
    for f, t in enumerate(of):
        at = offsets[f * batch : (f + 1) * batch + 1]
        mine = indices[at[0] : at[-1]]
        if mine.size and (mine.min() < -pruned or mine.max() >= len(matrices[t])):
            raise NoMirror("pruned rows and rows out of range are errors to the peer's lookup")
        scale = inputs.get("per_sample_weights")
        weights = None if scale is None else np.array(scale[at[0] : at[-1]], np.float32)
        yield Feature(f, t, matrices[t], mine, at - at[0], weights, int(at[0]), column)
        column += matrices[t].shape[1]


def by_table(inputs: Arrays, matrices: list[Floats]) -> dict[int, list[Feature]]:
    """The features of each table that has some, in order."""
    found: dict[int, list[Feature]] = {}
    for feature in features(inputs, matrices):
        found.setdefault(feature.table, []).append(feature)
    return found


def gradient_of(feature: Feature, inputs: Arrays, options: dict[str, Value]) -> Floats:
    """grad_output of each lookup of a feature, f32[n, D], clipped; not yet divided or weighted."""
    given = np.asarray(inputs["grad_output"], np.float32)
    most = F(float(options.get("max_gradient", 0.0)))
    if most:
        given = np.clip(given, -most, most)
    if options["pooling"] == "none":
        return given[feature.first : feature.first + feature.indices.size]
    columns = slice(feature.column, feature.column + feature.rows.shape[1])
    return np.ascontiguousarray(given[feature.bag, columns])


def running_sums(x: Floats, first: Ints, count: Ints, weights: Floats | None = None) -> Floats:
    """Sums of consecutive rows of x, one after the other from +0, f32[segments, D]; with weights
    each step is one fused multiply-add.
    """
    total = np.zeros((first.size, x.shape[1]), np.float32)
    for k in range(int(count.max(initial=0))):
        live = np.flatnonzero(count > k)
        at = first[live] + k
        total[live] = (
            total[live] + x[at] if weights is None else fused(weights[at, None], x[at], total[live])
        )
    return total


def segments(keys: Ints, order: Ints) -> tuple[Ints, Ints, Ints]:
    """Unique keys in ascending order; first place and count of each in the sorted `order`."""
    return np.unique(keys[order], return_index=True, return_counts=True)


def stable_order(keys: Ints) -> Ints:
    """Places of the keys in ascending order, equal ones as they come."""
    return np.argsort(keys, kind="stable")


def introsort_order(keys: Ints) -> Ints:
    """Places of the keys as libstdc++'s std::sort leaves them, which torch.sort uses below 32768
    keys: not stable beyond 16.

    Median of three to the front, partition around it, small parts to insertion sort (stable): the
    same swaps, in the same order. Raises NoMirror where the depth limit would turn it into heap
    sort.
    """
    if keys.size >= RADIX:
        return stable_order(keys)
    key = keys.tolist()
    at = list(range(keys.size))
    parts = [(0, keys.size, 2 * (max(keys.size, 1).bit_length() - 1))]
    while parts:
        first, last, depth = parts.pop()
        while last - first > SMALL:
            if not depth:
                raise NoMirror("std::sort falls back on heap sort for these row numbers")
            depth -= 1
            cut = _partition(key, at, first, last)
            parts.append((cut, last, depth))
            last = cut
    done = np.array(at, np.int64)
    return done[np.argsort(keys[done], kind="stable")]


def _partition(key: list[int], at: list[int], first: int, last: int) -> int:
    """Swap the median of three to `first`, then part the rest around it; returns the cut."""

    def swap(i: int, j: int) -> None:
        key[i], key[j] = key[j], key[i]
        at[i], at[j] = at[j], at[i]

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
