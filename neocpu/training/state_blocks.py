"""What is the state of training made of? Tensors, cut into blocks of 4,096 row numbers, and one
digest of them all.

A tensor is a dense parameter or a table, with its optimizer state as further fields. Of a table, a
row belongs to the state if a byte of it differs from its initial value; of a dense parameter, all
rows do (`docs/arithmetic.md` §11).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.formats import table_format

BLOCK = 4096
STATE_VERSION = 1
F32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Values = Mapping[str, F32]
NOTHING = np.empty(0, np.int64)
CANONICAL_NAN = np.uint32(0x7FC00000)


@dataclass(frozen=True)
class Tensor:
    """`rows` rows; `fields` are (name, shape of one row): first the values, then the optimizer
    state.

    format : the values are numbers of it (`embedding.specs`). Here all fields are fp32 numbers,
        whatever keeps them.
    quantized : a format of whole rows, to which a file rounds the values; "": to none.
    """

    name: str
    rows: int
    fields: tuple[tuple[str, tuple[int, ...]], ...]
    format: str = "fp32"
    quantized: str = ""

    @property
    def table(self) -> bool:
        """A table, not a dense parameter?"""
        return self.name.startswith("tables/")

    @property
    def coded(self) -> bool:
        """Whether files hold its values as codes."""
        return not table_format(self.format).exact

    def of(self, field: str) -> str:
        """Format in which files hold a field."""
        return self.format if self.coded and field == "weight" else "fp32"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row with its number."""
        return 8 + 4 * sum(int(np.prod(shape)) for _, shape in self.fields)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.rows // BLOCK)


@dataclass(frozen=True)
class Blocks:
    """Neighbouring blocks of tensor `tensor`: their rows in the state, i64[n] ascending, and f32[n,
    ...] fields.

    numbers, counts : i64[m], which blocks, ascending, and how many of the rows are theirs.
    changed, gone : of blocks looked at for what changed since the last checkpoint: bool[n], which
        of the rows did (None: all), and i64[k], rows that did and do not belong to the state now.
    codes : what a file holds of fields whose values are rounded for it.
    """

    tensor: int
    numbers: Ints
    counts: Ints
    rows: Ints
    values: Values
    changed: NDArray[np.bool_] | None = None
    gone: Ints = field(default_factory=lambda: NOTHING)
    codes: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @staticmethod
    def of(tensor: int, rows: Ints, values: Values) -> "Blocks":
        """The blocks that have any of these rows."""
        numbers, counts = runs_of(rows // BLOCK)
        return Blocks(tensor, numbers, counts, rows, values)

    def per_block(self, rows: Ints) -> Ints:
        """How many of some rows are in each block, i64[m]."""
        return per_block(self.numbers, rows)

    def sha256(self) -> list[bytes]:
        """Hash of each block: of its row numbers (int64) and then every field in order (float32),
        all little-endian.
        """
        arrays = [
            np.ascontiguousarray(self.rows, "<i8"),
            *(np.ascontiguousarray(v, "<f4") for v in self.values.values()),
        ]
        parts = [(a.reshape(-1).view(np.uint8).data, a.nbytes // max(len(a), 1)) for a in arrays]
        found = []
        for lo, hi in pairwise([0, *np.cumsum(self.counts).tolist()]):
            sha = hashlib.sha256()
            for data, size in parts:
                sha.update(data[lo * size : hi * size])
            found.append(sha.digest())
        return found


def among(values: Ints, some: Ints) -> NDArray[np.bool_]:
    """Which of some numbers are among others, which are ascending?"""
    if not some.size:
        return np.zeros(values.size, np.bool_)
    return some[np.minimum(np.searchsorted(some, values), some.size - 1)] == values


def per_block(numbers: Ints, rows: Ints) -> Ints:
    """How many of some rows are in each of some blocks: i64[m]."""
    return np.bincount(np.searchsorted(numbers, rows // BLOCK), minlength=numbers.size).astype(
        np.int64
    )


def runs_of(values: Ints) -> tuple[Ints, Ints]:
    """Runs of equal neighbours: their values and lengths."""
    cuts = np.append(np.flatnonzero(np.diff(values, prepend=-1 if values.size else 0)), values.size)
    return values[cuts[:-1]], np.diff(cuts)


@dataclass(frozen=True)
class Index:
    """All blocks of the state in order: tensor i64[m], number i64[m], rows i64[m], sha256 u8[m,
    32].
    """

    tensor: Ints
    number: Ints
    rows: Ints
    sha256: NDArray[np.uint8]

    def of(self, tensor: int) -> slice:
        """Where the blocks of one tensor stand."""
        lo, hi = np.searchsorted(self.tensor, [tensor, tensor + 1])
        return slice(int(lo), int(hi))

    def over(self, older: "Index") -> "Index":
        """What an older index has become by the blocks of this one; those without rows are no more."""
        tensor = np.concatenate([older.tensor, self.tensor])
        number = np.concatenate([older.number, self.number])
        rows = np.concatenate([older.rows, self.rows])
        sha = np.concatenate([older.sha256, self.sha256])
        order = np.lexsort((number, tensor))  # stable: of two equal ones the newer is the second
        last = np.append((np.diff(tensor[order]) != 0) | (np.diff(number[order]) != 0), True)[
            : order.size
        ]
        kept = order[last]
        kept = kept[rows[kept] > 0]
        return Index(tensor[kept], number[kept], rows[kept], sha[kept])

    def rows_of(self, tensor: int) -> int:
        """Rows of one tensor."""
        return int(self.rows[self.of(tensor)].sum())


def by_tensor(starts: Ints, blocks: Ints) -> Iterator[tuple[int, Ints]]:
    """(tensor, numbers of its blocks) of blocks i64[n], ascending, counted over all tensors; tensor
    t begins at starts[t].
    """
    tensors, counts = runs_of(np.searchsorted(starts, blocks, side="right").astype(np.int64) - 1)
    for tensor, lo, hi in zip(
        tensors.tolist(), (np.cumsum(counts) - counts).tolist(), np.cumsum(counts).tolist()
    ):
        yield tensor, blocks[lo:hi] - starts[tensor]


def canonical(values: F32) -> F32:
    """A copy in which every NaN has the bits 0x7fc00000."""
    copied = np.array(values, np.float32, order="C")
    copied.view(np.uint32)[np.isnan(copied)] = CANONICAL_NAN
    return copied


def canonical_json(data: Any) -> bytes:
    """JSON with sorted keys, without spaces, in ASCII."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest_of(header: Mapping[str, Any], step: int, tensors: Sequence[Tensor], index: Index) -> str:
    """SHA-256, in hexadecimal, of a state: the config's header, the step, and the blocks of all
    tensors.
    """
    top = {
        "version": STATE_VERSION,
        "config": header,
        "seed": header["training"]["seed"],
        "step": step,
    }
    found = hashlib.sha256(canonical_json(top) + b"\n")
    for number, tensor in enumerate(tensors):
        here = index.of(number)
        fields = [[name, "float32", list(shape)] for name, shape in tensor.fields]
        count = here.stop - here.start
        line = {"name": tensor.name, "rows": tensor.rows, "fields": fields, "blocks": count}
        found.update(canonical_json(line) + b"\n")
        entries = np.empty((count, 40), np.uint8)
        entries[:, :8] = (
            np.ascontiguousarray(index.number[here], "<i8").view(np.uint8).reshape(-1, 8)
        )
        entries[:, 8:] = index.sha256[here]
        found.update(entries.data)
    return found.hexdigest()
