"""How is a row written down? One record per format: its codes, its header, its bytes, and the dtype
kernels know it by.

`FORMATS` are the formats of table rows, `INFERENCE` FBGEMM's tables that only serve, `WIRES`
formats that only travel. `docs/formats.md` draws every layout byte by byte; `reference/codecs.py`
says which functions write and read them.

A kernel learns the format of its rows from the dtype of the array: narrow codes are passed as
records of one field that carries the format's name (`RowFormat.view`), fp32 rows as plain float32.
Numba then picks the decoder when it compiles.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class RowFormat:
    """A format of rows of `columns` elements.

    Attributes:
        name: as in configs and suites.
        dtype: NumPy dtype of one code, or "|u1" where a row is a run of bytes.
        bits: bits of one element's code.
        header: (name, dtype) of the words that scale a row or block, in the order they are stored.
        header_first: whether they stand before the codes.
        multiple: bytes of codes are padded with zero bytes to a multiple of this.
        block: elements that share one header; 0: the whole row does.
    """

    name: str
    dtype: str
    bits: int
    header: tuple[tuple[str, str], ...] = ()
    header_first: bool = False
    multiple: int = 1
    block: int = 0

    @property
    def row_scaled(self) -> bool:
        """Whether the value of an element depends on more than its code."""
        return bool(self.header)

    @property
    def header_bytes(self) -> int:
        """Bytes of one header."""
        return sum(np.dtype(dtype).itemsize for _, dtype in self.header)

    @property
    def code_dtype(self) -> np.dtype[Any]:
        """Dtype of the array kernels get: float32, or a record of one field named after the format."""
        return np.dtype(self.dtype) if self.name == "fp32" else np.dtype([(self.name, self.dtype)])

    def data_bytes(self, columns: int) -> int:
        """Bytes of the codes of `columns` elements, padding included."""
        unit = 8 * self.multiple
        return (columns * self.bits + unit - 1) // unit * self.multiple

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` elements."""
        if self.block:
            blocks = (columns + self.block - 1) // self.block
            return blocks * (self.data_bytes(self.block) + self.header_bytes)
        return self.data_bytes(columns) + self.header_bytes

    def row_codes(self, columns: int) -> int:
        """Elements of dtype `dtype` in one row: the last axis of an array of rows."""
        return self.row_bytes(columns) // np.dtype(self.dtype).itemsize

    def view(self, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """`codes` (dtype `dtype`, or anything of that item size) as kernels want it; no copy."""
        return codes.view(self.code_dtype)


_SCALE32 = (("scale", "<f4"), ("bias", "<f4"))
_SCALE16 = (("scale", "<f2"), ("bias", "<f2"))

FORMATS = {
    f.name: f
    for f in (
        RowFormat("fp32", "<f4", 32),
        RowFormat("fp16", "<u2", 16),
        RowFormat("bf16", "<u2", 16),
        RowFormat("fp8_e4m3", "|u1", 8),
        RowFormat("fp8_e5m2", "|u1", 8),
        RowFormat("int8", "|u1", 8, _SCALE32),
        RowFormat("int4", "|u1", 4, _SCALE16),
        RowFormat("int2", "|u1", 2, _SCALE16),
    )
}

INFERENCE = {
    f.name: f
    for f in (RowFormat(f"nbit{b}", "|u1", b, _SCALE16, header_first=True) for b in (8, 4, 2))
}

WIRES = {
    f.name: f
    for f in (
        RowFormat("int8_gpu", "|u1", 8, _SCALE32, multiple=4),
        RowFormat("fp8_row_forward", "|u1", 8, (("scale", "<f4"), ("zero", "<f4")), multiple=4),
        RowFormat("fp8_row_backward", "|u1", 8, (("scale", "<f4"), ("zero", "<f4")), multiple=4),
        RowFormat("hfp8_forward", "|u1", 8),
        RowFormat("hfp8_backward", "|u1", 8),
        RowFormat("mx4", "|u1", 4, (("exponent", "|u1"),), block=32),
    )
}
