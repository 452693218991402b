"""How are rows of inference tables laid out and read? In bytes, a format of its own per table.

A row is | scale | bias | codes | padding |, scale and bias fp16, for INT8, INT4 and INT2, and codes
alone for FP32, FP16 and FP8. Rows are padded to a multiple of the row alignment, tables to 128
bytes (`docs/formats.md`). The arithmetic is that of `peers/arrays.py`: rows are decoded exactly,
bags summed exactly and rounded once.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from neocpu.core.codecs import layout
from neocpu.core.types import Bytes, Elements, Floats, Ints
from neocpu.kernels.codecs import small_floats as codecs
from neocpu.peers import arrays
from neocpu.peers.fbgemm.names import Option, SparseType, of

# Name, rows, columns, format and location of a table.
InferenceSpec: TypeAlias = tuple[str, int, int, Option, Option]
# Our name of each format of rows; FP8 rows are decoded first.
FORMATS = {
    "fp32": "fp32",
    "fp16": "fp16",
    "int8": "nbit8",
    "int4": "nbit4",
    "int2": "nbit2",
    "fp8": "fp32",
}
# Formats whose rows begin with scale and bias.
SCALED = ("int8", "int4", "int2")
# Bytes of scale and bias.
HEADER = 4
CACHELINE = 128
# Tells decoders of FP8 that there is no infinity and no NaN: no number is beyond it.
NO_LIMIT = 3e38


def round_up(size: int, multiple: int) -> int:
    """The next multiple."""
    return (size + multiple - 1) // multiple * multiple


def align_to_cacheline(a: int) -> int:
    """The next multiple of 128 bytes."""
    return round_up(a, CACHELINE)


def unpadded_row_size_in_bytes(
    dim: int, weight_ty: Option, scale_bias_size_in_bytes: int = HEADER
) -> int:
    """Bytes of a row without padding."""
    sparse_type = of(SparseType, weight_ty)
    header = scale_bias_size_in_bytes if sparse_type.value in SCALED else 0
    return dim * sparse_type.bit_rate() // 8 + header


def rounded_row_size_in_bytes(
    dim: int, weight_ty: Option, row_alignment: int, scale_bias_size_in_bytes: int = HEADER
) -> int:
    """Bytes from one row to the next."""
    return round_up(
        unpadded_row_size_in_bytes(dim, weight_ty, scale_bias_size_in_bytes), row_alignment
    )


class InferenceTable(NamedTuple):
    """A table of an inference module: its shape, format and place."""

    name: str
    rows: int
    dim: int
    form: str  # a value of SparseType
    start: int  # its first byte among the module's weights
    row_bytes: int  # from one row to the next
    row_alignment: int

    def bytes_of(self, weights: Bytes) -> Bytes:
        """The table's bytes [rows, row_bytes], in place."""
        return weights[self.start : self.start + self.rows * self.row_bytes].reshape(
            self.rows, self.row_bytes
        )


class Fp8(NamedTuple):
    """What FP8 codes mean: sign, exponent bits with a bias, and mantissa."""

    exponent_bits: int
    exponent_bias: int

    def decode(self, codes: Bytes) -> Floats:
        """Numbers of codes, of the same shape."""
        out = np.empty(codes.shape, np.float32)
        form = layout(8, 7 - self.exponent_bits, self.exponent_bias, limit=NO_LIMIT)
        codecs.decode_rows(np.ascontiguousarray(codes), form, out)
        return out


def _elements(table: InferenceTable, codes: Bytes) -> Elements:
    """The codes as the elements that `arrays.lookup` wants; copied where they are not aligned."""
    size = {"fp32": 4, "fp16": 2}.get(table.form, 1)
    flat = codes.reshape(-1)
    # Without cacheline alignment a table may begin at any byte.
    if flat.ctypes.data % size:
        flat = flat.copy()
    return flat.view({4: np.float32, 2: np.uint16, 1: np.uint8}[size])


def pooled(
    table: InferenceTable,
    weights: Bytes,
    indices: Ints,
    offsets: Ints,
    lookup_weights: Floats | None,
    pooling: str,
    fp8: Fp8,
) -> Floats:
    """Bags of one feature: f32[B, dim], or f32[n, dim] with pooling none.

    indices : i64[n], -1: pruned. offsets : i64[B+1] from 0. lookup_weights : f32[n] or None.
    """
    codes = table.bytes_of(weights)
    rows = table.rows
    alignment = table.row_alignment
    elements = _elements(table, codes)
    if table.form == "fp8":
        # Only the rows that are read are decoded.
        unique, renumbered = np.unique(indices, return_inverse=True)
        # -1 sorts first: without it the rest would be numbered from 1.
        pruned = int(unique.size > 0 and unique[0] < 0)
        indices = renumbered.astype(np.int64) - pruned
        elements = fp8.decode(codes[unique[pruned:], : table.dim]).reshape(-1)
        rows = unique.size - pruned
        alignment = 1
    return arrays.lookup(
        elements,
        np.array([rows]),
        np.array([table.dim]),
        np.zeros(1, np.int64),
        indices,
        offsets,
        lookup_weights,
        pooling,
        FORMATS[table.form],
        row_alignment=alignment,
    )


def remapped(
    indices: Ints,
    cuts: Ints,
    feature_table: Sequence[int],
    mappings: Elements,
    starts: Ints,
) -> Ints:
    """The rows i64[n] that indices stand for in pruned tables; -1 stays -1.

    cuts : i64[F+1], the first lookup of each feature.
    mappings : int[M], of all tables, one after the other, table t's from starts[t] to starts[t+1];
        a table without one keeps its rows.
    """
    rows = indices.copy()
    for feature, table in enumerate(feature_table):
        mapping = mappings[starts[table] : starts[table + 1]].astype(np.int64)
        if mapping.size:
            feature_rows = rows[cuts[feature] : cuts[feature + 1]]
            # -1 would index the mapping from its end.
            present = feature_rows >= 0
            feature_rows[present] = mapping[feature_rows[present]]
    return rows


def stored_rows(tables: Sequence[InferenceTable], weights: Bytes, rows: Ints, cuts: Ints) -> Bytes:
    """Rows of lookups as they are stored, u8[n, bytes], zeros where pruned.

    tables : of each feature, all of one format and width. rows : i64[n], -1: pruned.
    cuts : i64[F+1], the first lookup of each feature.
    """
    size = unpadded_row_size_in_bytes(tables[0].dim, tables[0].form)
    codes = np.zeros((rows.size, size), np.uint8)
    for feature, table in enumerate(tables):
        lookups = np.arange(cuts[feature], cuts[feature + 1])
        lookups = lookups[rows[lookups] >= 0]
        codes[lookups] = table.bytes_of(weights)[rows[lookups], :size]
    return codes
