"""What is the state of training made of? Tensors, cut into blocks of rows, and one digest.

A block has 4,096 row numbers.

A tensor is a dense parameter or a table, with its optimizer state as further fields. Of a table, a
row belongs to the state if a byte of it differs from its initial value; of a dense parameter, all
rows do (`docs/arithmetic.md` §11).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from neocpu.core.formats import table_format
from neocpu.core.types import Bools, Bytes, Elements, Floats, Ints, JsonObject

# part of the digest: another size would give other hashes
FACTORS = "shampoo."  # tensors of a dense optimizer that are no parameters begin so
SCALES = "precision."  # what operands of products are scaled by, and how it follows
BLOCK = 4096
STATE_VERSION = 1
Values = Mapping[str, Floats]
NOTHING = np.empty(0, np.int64)
# machines differ in the payload of a NaN, and digests may not
CANONICAL_NAN = np.uint32(0x7FC00000)


@dataclass(frozen=True)
class Tensor:
    """A tensor of the state, with its optimizer state.

    rows : their number. fields : (name, shape of one row), the values first.
    format : row format of the table; its weights are numbers of that format, but here all fields
        are held as fp32.
    quantized : row format to which a checkpoint file rounds the weights; "": none.
    """

    name: str
    rows: int
    fields: tuple[tuple[str, tuple[int, ...]], ...]
    format: str = "fp32"
    quantized: str = ""

    @property
    def table(self) -> bool:
        """Whether this is a table, not a dense parameter."""
        return self.name.startswith("tables/")

    @property
    def parameter(self) -> bool:
        """Whether this is a dense parameter, not what an optimizer knows of one."""
        return not (self.table or self.name.removeprefix("dense/").startswith((FACTORS, SCALES)))

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
    """Neighbouring blocks of tensor `tensor`.

    numbers : i64[m], which blocks, ascending. counts : i64[m], how many rows each has in the state.
    rows : i64[n], these rows, ascending. values : their fields, f32[n, ...].
    changed : bool[n], which rows changed since the last checkpoint; None: that is not known.
    gone : i64[k], rows that changed and are at their initial values now.
    codes : what a file holds of fields whose values are rounded for it.
    """

    tensor: int
    numbers: Ints
    counts: Ints
    rows: Ints
    values: Values
    changed: Bools | None = None
    gone: Ints = field(default_factory=lambda: NOTHING)
    codes: Mapping[str, Elements] = field(default_factory=dict)

    @staticmethod
    def of(tensor: int, rows: Ints, values: Values) -> "Blocks":
        """The blocks that have any of these rows."""
        numbers, counts = runs_of(rows // BLOCK)
        return Blocks(tensor, numbers, counts, rows, values)

    def per_block(self, rows: Ints) -> Ints:
        """How many of `rows` are in each block, i64[m]."""
        return per_block(self.numbers, rows)

    def sha256(self) -> list[bytes]:
        """Hash of each block.

        It covers the row numbers (int64), then every field in order (float32), all little-endian.
        """
        # the same bytes on a machine of any order
        arrays = [np.ascontiguousarray(self.rows, "<i8")]
        arrays += [np.ascontiguousarray(value, "<f4") for value in self.values.values()]
        parts = [
            (array.reshape(-1).view(np.uint8).data, array.nbytes // max(len(array), 1))
            for array in arrays
        ]
        hashes = []
        for first, end in pairwise([0, *np.cumsum(self.counts).tolist()]):
            sha = hashlib.sha256()
            for data, row_bytes in parts:
                sha.update(data[first * row_bytes : end * row_bytes])
            hashes.append(sha.digest())
        return hashes


def among(values: Ints, members: Ints) -> Bools:
    """Which of `values` are in `members`, which are ascending: bool, shaped like `values`."""
    if not members.size:
        return np.zeros(values.size, np.bool_)
    positions = np.minimum(np.searchsorted(members, values), members.size - 1)
    return members[positions] == values


def per_block(numbers: Ints, rows: Ints) -> Ints:
    """How many of `rows` are in each of the blocks `numbers` i64[m]: i64[m]."""
    positions = np.searchsorted(numbers, rows // BLOCK)
    return np.bincount(positions, minlength=numbers.size).astype(np.int64)


def runs_of(values: Ints) -> tuple[Ints, Ints]:
    """Runs of equal neighbours: their values and lengths."""
    cuts = np.append(np.flatnonzero(np.diff(values, prepend=-1 if values.size else 0)), values.size)
    return values[cuts[:-1]], np.diff(cuts)


@dataclass(frozen=True)
class Index:
    """All blocks of the state in order.

    tensor, number : i64[m], which block. rows : i64[m], how many. sha256 : u8[m, 32].
    """

    tensor: Ints
    number: Ints
    rows: Ints
    sha256: Bytes

    def of(self, tensor: int) -> slice:
        """Where the blocks of one tensor stand."""
        lo, hi = np.searchsorted(self.tensor, [tensor, tensor + 1])
        return slice(int(lo), int(hi))

    def over(self, older: "Index") -> "Index":
        """An older index with the blocks of this one in place of its own; without empty blocks."""
        tensor = np.concatenate([older.tensor, self.tensor])
        number = np.concatenate([older.number, self.number])
        rows = np.concatenate([older.rows, self.rows])
        sha = np.concatenate([older.sha256, self.sha256])
        order = np.lexsort((number, tensor))  # stable: the newer of two entries comes second
        differs_from_next = (np.diff(tensor[order]) != 0) | (np.diff(number[order]) != 0)
        newest = order[np.append(differs_from_next, True)[: order.size]]
        # all rows of a block may have gone back to their initial values
        newest = newest[rows[newest] > 0]
        return Index(tensor[newest], number[newest], rows[newest], sha[newest])

    def rows_of(self, tensor: int) -> int:
        """Rows of one tensor."""
        return int(self.rows[self.of(tensor)].sum())


def by_tensor(starts: Ints, blocks: Ints) -> Iterator[tuple[int, Ints]]:
    """(tensor, numbers of its blocks) of blocks i64[n], ascending, counted over all tensors.

    Tensor t begins at starts[t].
    """
    # right: an empty tensor begins where the next one does
    tensors, counts = runs_of(np.searchsorted(starts, blocks, side="right").astype(np.int64) - 1)
    first = 0
    for tensor, count in zip(tensors.tolist(), counts.tolist()):
        yield tensor, blocks[first : first + count] - starts[tensor]
        first += count


def canonical(values: Floats) -> Floats:
    """A copy in which every NaN has the bits 0x7fc00000."""
    copied = np.array(values, np.float32, order="C")
    # a copy: states of the run stay as they are
    copied.view(np.uint32)[np.isnan(copied)] = CANONICAL_NAN
    return copied


def canonical_json(data: object) -> bytes:
    """JSON with sorted keys, without spaces, in ASCII."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest_of(header: JsonObject, step: int, tensors: Sequence[Tensor], index: Index) -> str:
    """SHA-256 of a state, in hexadecimal: of config header, step, and blocks of all tensors."""
    top = {
        "version": STATE_VERSION,
        "config": header,
        "seed": header["training"]["seed"],
        "step": step,
    }
    sha = hashlib.sha256(canonical_json(top) + b"\n")
    for number, tensor in enumerate(tensors):
        blocks = index.of(number)
        fields = [[name, "float32", list(shape)] for name, shape in tensor.fields]
        count = blocks.stop - blocks.start
        line = {"name": tensor.name, "rows": tensor.rows, "fields": fields, "blocks": count}
        sha.update(canonical_json(line) + b"\n")
        entries = np.empty((count, 40), np.uint8)
        numbers = np.ascontiguousarray(index.number[blocks], "<i8")
        entries[:, :8] = numbers.view(np.uint8).reshape(-1, 8)
        entries[:, 8:] = index.sha256[blocks]
        sha.update(entries.data)
    return sha.hexdigest()


def not_finite(tensor: str, rows: Ints, values: Values) -> str:
    """The first of these rows with a number that is not finite, for a message; "" without any."""
    for name, numbers in values.items():
        sound = np.isfinite(numbers).all(axis=tuple(range(1, numbers.ndim)))
        if not sound.all():
            return f"{name} of row {rows[np.argmin(sound)]} of {tensor} is not finite"
    return ""
