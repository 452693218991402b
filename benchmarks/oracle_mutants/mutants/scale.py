"""Bugs that show in large tables only: offsets in 32 bits, of elements, of bytes, of outputs."""

import numpy as np

from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import bend

AT_SCALE = "lookup_at_scale backward_at_scale"


def signed(x: Array) -> Array:
    """Numbers that wrap around at 2^31."""
    return np.asarray(x).astype(np.int64).astype(np.int32).astype(np.int64)


def unsigned(x: Array) -> Array:
    """Numbers that wrap around at 2^32."""
    return np.asarray(x).astype(np.int64) & 0xFFFFFFFF


bend(
    "scale_product_of_32_bits",
    AT_SCALE,
    "row_offset_32bit",
    scale_address=lambda k, base, row, columns, code: base + signed(row * columns),
)
bend(
    "scale_product_of_32_bits_unsigned",
    AT_SCALE,
    "row_offset_32bit",
    scale_address=lambda k, base, row, columns, code: base + unsigned(row * columns),
)
bend(
    "scale_address_of_32_bits",
    AT_SCALE,
    "row_offset_32bit",
    scale_address=lambda k, base, row, columns, code: signed(base + row * columns),
)
bend(
    "scale_bytes_of_32_bits",
    AT_SCALE,
    "byte_offset_32bit",
    scale_address=lambda k, base, row, columns, code: (
        unsigned((base + row * columns) * code) // code
    ),
)
bend(
    "scale_bases_of_32_bits",
    AT_SCALE,
    "table_offset_32bit",
    scale_bases=lambda k, s: signed(np.cumsum(s) - s),
)
bend(
    "scale_rows_of_24_bits",
    AT_SCALE,
    "",
    scale_address=lambda k, b, r, c, n: b + (r & 0xFFFFFF) * c,
)
bend(
    "scale_rows_of_16_bits", AT_SCALE, "", scale_address=lambda k, b, r, c, n: b + (r & 0xFFFF) * c
)
bend("scale_output_of_32_bits", AT_SCALE, "", output_place=lambda k, s, width: signed(s * width))
bend(
    "scale_output_of_32_bits_unsigned",
    AT_SCALE,
    "",
    output_place=lambda k, s, width: unsigned(s * width),
)
