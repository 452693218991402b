"""How does a checkpoint hold the numbers of a narrow format? As their codes: half or a quarter of the bytes, the same numbers.

fp16 as HDF5's half floats; bf16 and fp8 as unsigned integers. Every number of a table is one of its format, so nothing is
rounded; hashes and digests are of the numbers. All other fields, and bf16_split, are float32. NumPy only: no kernels.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.reference.codecs import LAYOUTS, NEAREST, decode_rows, encode_rows

DTYPES = {"fp16": "<f2", "bf16": "<u2", "fp8_e4m3": "|u1", "fp8_e5m2": "|u1"}
F32 = NDArray[np.float32]


def dtype_of(form: str) -> str:
    """Dtype of the dataset of a format's numbers."""
    return DTYPES.get(form, "<f4")


def encode(numbers: F32, form: str) -> NDArray[Any]:
    """What is written for numbers that the format has."""
    if form == "fp16":
        with np.errstate(over="ignore"):
            return numbers.astype("<f2")
    if form == "bf16":
        return (np.ascontiguousarray(numbers, "<f4").view("<u4") >> np.uint32(16)).astype("<u2")
    if form in DTYPES:
        codes = np.empty(numbers.shape, np.uint8)
        encode_rows(np.ascontiguousarray(numbers, np.float32), LAYOUTS[form], NEAREST, codes)
        return codes
    return np.ascontiguousarray(numbers, "<f4")


def decode(stored: NDArray[Any], form: str) -> F32:
    """The numbers of what was written."""
    if form == "fp16":
        return stored.astype(np.float32)
    if form == "bf16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if form in DTYPES:
        numbers = np.empty(stored.shape, np.float32)
        decode_rows(stored, LAYOUTS[form], numbers)
        return numbers
    return np.asarray(stored, np.float32)


class Coded:
    """A field of codes in a file: `coded[rows]` are numbers, f32."""

    def __init__(self, stored: NDArray[Any], form: str) -> None:
        self._stored, self._form, self.shape = stored, form, stored.shape

    def __getitem__(self, rows: Any) -> F32:
        return decode(np.atleast_1d(np.asarray(self._stored[rows])), self._form)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or np.float32, copy=False)
