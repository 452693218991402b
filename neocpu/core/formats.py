"""How is a row written down? One record per format, from which everything else follows.

`FORMATS` are the formats of table rows, `SPLIT` those that keep fp32 numbers in two halves,
`INFERENCE` FBGEMM's tables that only serve, `WIRES` formats that only travel. `docs/formats.md`
draws every layout byte by byte; `kernels/twins/codecs/small_floats.py` says which functions write
and read them.

A kernel learns the format of its rows from the dtype of the array: narrow codes are passed as
records of one field that carries the format's name (`RowFormat.view`), fp32 rows as plain float32.
Numba then picks the decoder when it compiles.

This file is data that kernels and their twins share: it imports NumPy only, and nothing here
computes with rows.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.types import Dtype, Elements

CODE_BITS = (8, 16)  # widths of small floats that kernels are compiled for
INTEGER_BITS = (8, 4, 2)  # widths of row-scaled integers that kernels read


class SmallFloat(NamedTuple):
    """What the codes of a small float mean: 1 sign bit, exponent bits, `mantissa` bits, a bias.

    bits : bits of a code; what sign and mantissa leave are the exponent's.
    mantissa : bits of the mantissa.
    bias : of the exponent.
    infinity : whether the topmost exponent means infinity and NaN (IEEE-754), or only the topmost
        code of either sign is NaN and the rest are numbers (e4m3fn).
    limit : where finite, there is no infinity and no NaN: numbers beyond it become it (HFP8).
    """

    bits: int
    mantissa: int
    bias: int
    infinity: bool = True
    limit: float = np.inf

    @property
    def words(self) -> tuple[int, int, int, int, int]:
        """What codecs are told: bits, mantissa bits, bias, kind, bits of the limit in fp32.

        Kind 0: only the topmost code is NaN. 1: as IEEE-754. 2: there is a limit.
        """
        kind = 2 if np.isfinite(self.limit) else int(self.infinity)
        limit = int(np.float32(self.limit).view(np.int32))
        return self.bits, self.mantissa, self.bias, kind, limit

    @property
    def largest(self) -> float:
        """The largest finite number."""
        top = (1 << (self.bits - 1 - self.mantissa)) - 1
        if self.infinity:
            # the topmost exponent is that of infinity and NaN
            significand = 2.0 - 2.0**-self.mantissa
            return float(np.ldexp(significand, top - 1 - self.bias))
        # the topmost code is NaN, so the largest number is the one before it
        return float(np.ldexp(2.0 - 2.0 ** (1 - self.mantissa), top - self.bias))

    @property
    def smallest(self) -> float:
        """The smallest number above 0."""
        return float(np.ldexp(1.0, 1 - self.bias - self.mantissa))

    def holds(self, other: "SmallFloat") -> bool:
        """Whether every number of another small float is one of this."""
        return (
            self.mantissa >= other.mantissa
            and self.largest >= other.largest
            and self.smallest <= other.smallest
            and self.infinity
        )


class RowFormat(NamedTuple):
    """A format of rows of `columns` elements.

    name : as in configs and suites.
    dtype : NumPy dtype of one code, or "|u1" where a row is a run of bytes.
    bits : bits of one element.
    number : what a code means, where it is a small float.
    header : (name, dtype) of the words that scale a row or block, in the order they are stored.
    header_first : whether they stand before the codes.
    multiple : bytes of codes are padded with zero bytes to a multiple of this.
    block : elements that share one header; 0: the whole row does.
    trains : whether a table may be trained in it. Row-scaled formats are, below a cache.
    caches : whether caches may have it, above rows of narrower formats.
    split : where rows are fp32 numbers in two halves: the format of the upper ones, which lookups
        read. The lower halves are an array of their own, of the same dtype.
    """

    name: str
    dtype: str
    bits: int
    number: SmallFloat | None = None
    header: tuple[tuple[str, str], ...] = ()
    header_first: bool = False
    multiple: int = 1
    block: int = 0
    trains: bool = False
    caches: bool = False
    split: str = ""

    @property
    def exact(self) -> bool:
        """Whether it holds every fp32 number."""
        return self.name == "fp32" or bool(self.split)

    @property
    def row_scaled(self) -> bool:
        """Whether the value of an element depends on more than its code."""
        return bool(self.header)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Dtypes of the arrays that hold a table's rows."""
        return (self.dtype, self.dtype) if self.split else (self.dtype,)

    @property
    def lookup_bytes(self) -> int:
        """Bytes of an element that a lookup reads."""
        return np.dtype(self.dtype).itemsize

    @property
    def header_bytes(self) -> int:
        """Bytes of one header."""
        return sum(np.dtype(dtype).itemsize for _, dtype in self.header)

    @property
    def code_dtype(self) -> Dtype:
        """Dtype of the array that kernels get: float32, or a record of one field that names how
        its codes are read.
        """
        if self.name == "fp32":
            return np.dtype(self.dtype)
        return np.dtype([(self.split or self.name, self.dtype)])

    def data_bytes(self, columns: int) -> int:
        """Bytes of the codes of `columns` elements, padding included."""
        unit = 8 * self.multiple
        return (columns * self.bits + unit - 1) // unit * self.multiple

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` elements."""
        if self.block:
            blocks = (columns + self.block - 1) // self.block
            # the last block is filled up with zeros
            return blocks * (self.data_bytes(self.block) + self.header_bytes)
        return self.data_bytes(columns) + self.header_bytes

    def row_codes(self, columns: int) -> int:
        """Elements of dtype `dtype` in one row: the last axis of an array of rows."""
        return self.row_bytes(columns) // np.dtype(self.dtype).itemsize

    def view(self, codes: Elements) -> Elements:
        """`codes` (dtype `dtype`, or anything of that item size) as kernels want it; no copy."""
        return codes.view(self.code_dtype)

    def holds(self, other: "RowFormat") -> bool:
        """Whether a cache of this format may stand above rows of another, narrower one.

        It must hold every number of small floats. Row-scaled rows can have any number; of theirs
        it holds the nearest.
        """
        # rows of as many bits would gain nothing from such a cache
        if other.exact or other.bits >= self.bits:
            return False
        if other.number is None or self.number is None:
            return True
        return self.number.holds(other.number)

    def fault(self) -> str:
        """What the record lacks for tables to be trained in the format; "" if nothing."""
        if not self.trains:
            return "its record does not say trains=True"
        if self.exact:
            return ""
        if self.row_scaled:
            fits = self.bits in INTEGER_BITS and [name for name, _ in self.header] == [
                "scale",
                "bias",
            ]
            return (
                ""
                if fits
                else f"row-scaled rows are integers of {_listed(INTEGER_BITS)} bits under a scale "
                "and a bias"
            )
        if self.number is None:
            return "its record has neither a SmallFloat nor a header, so its codes mean nothing"
        exponent = self.bits - 1 - self.number.mantissa
        if self.bits not in CODE_BITS or self.bits != 8 * np.dtype(self.dtype).itemsize:
            return f"codes of small floats have {_listed(CODE_BITS)} bits, like their dtype"
        if self.number.bits != self.bits or exponent < 2 or self.number.mantissa < 1:
            return f"{self.number} does not fill {self.bits} bits with 2 or more of exponent"
        if np.isfinite(self.number.limit):
            return "a small float with a limit only travels"
        with np.errstate(over="ignore"):  # the largest number may be beyond fp32, or even fp64
            beyond = self.number.largest > np.finfo(np.float32).max
        if beyond or self.number.bias < 1:
            return f"{self.number} has numbers that fp32 lacks"
        return ""


def _listed(numbers: Iterable[int]) -> str:
    return " or ".join(map(str, numbers))


_SCALE32 = (("scale", "<f4"), ("bias", "<f4"))
_SCALE16 = (("scale", "<f2"), ("bias", "<f2"))
FP16 = SmallFloat(16, 10, 15)
_BF16 = SmallFloat(16, 7, 127)
HFP8_FORWARD = SmallFloat(8, 3, 15, limit=0.9375)
HFP8_BACKWARD = SmallFloat(8, 2, 31, limit=0.875)

_TABLES = (
    RowFormat("fp32", "<f4", 32, trains=True, caches=True),
    RowFormat("fp16", "<u2", 16, FP16, trains=True, caches=True),
    RowFormat("bf16", "<u2", 16, _BF16, trains=True),
    RowFormat("bf16_split", "<u2", 32, _BF16, trains=True, split="bf16"),
    RowFormat("fp8_e4m3", "|u1", 8, SmallFloat(8, 3, 7, infinity=False), trains=True),
    RowFormat("fp8_e5m2", "|u1", 8, SmallFloat(8, 2, 15), trains=True),
    RowFormat("int8", "|u1", 8, header=_SCALE32, trains=True),
    RowFormat("int4", "|u1", 4, header=_SCALE16, trains=True),
    RowFormat("int2", "|u1", 2, header=_SCALE16),
)
_WIRES = (
    RowFormat("int8_gpu", "|u1", 8, header=_SCALE32, multiple=4),
    RowFormat("fp8_row_forward", "|u1", 8, header=(("scale", "<f4"), ("zero", "<f4")), multiple=4),
    RowFormat("fp8_row_backward", "|u1", 8, header=(("scale", "<f4"), ("zero", "<f4")), multiple=4),
    RowFormat("hfp8_forward", "|u1", 8, HFP8_FORWARD),
    RowFormat("hfp8_backward", "|u1", 8, HFP8_BACKWARD),
    RowFormat("mx4", "|u1", 4, header=(("exponent", "|u1"),), block=32),
)

FORMATS = {form.name: form for form in _TABLES if not form.split}
SPLIT = {form.name: form for form in _TABLES if form.split}
INFERENCE = {
    f"nbit{bits}": RowFormat(f"nbit{bits}", "|u1", bits, header=_SCALE16, header_first=True)
    for bits in INTEGER_BITS
}
WIRES = {form.name: form for form in _WIRES}

# formats of `tables.NAME.format`: those of numbers first, then those of whole rows
TRAINED = tuple(
    form.name for form in sorted(_TABLES, key=lambda form: form.row_scaled) if form.trains
)
SCALED = tuple(name for name in TRAINED if name in FORMATS and FORMATS[name].row_scaled)
# formats of a cache, and those that the rows below it may have
CACHES = {
    form.name: tuple(name for name in TRAINED if name in FORMATS and form.holds(FORMATS[name]))
    for form in _TABLES
    if form.caches
}


def table_format(name: str) -> RowFormat:
    """The record of a format that tables may have. Raises ConfigError for any other name."""
    if name not in FORMATS and name not in SPLIT:
        raise ConfigError(
            f"format {name!r} is none of tables: choose one of {', '.join((*FORMATS, *SPLIT))}"
        )
    return FORMATS.get(name) or SPLIT[name]
