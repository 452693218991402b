"""How does a checkpoint hold numbers? As what their format keeps of them: the same numbers in half
or a quarter of the bytes.

fp16 as HDF5's half floats; other small floats as unsigned integers. Every number of a table is one
of its format, so nothing is rounded; hashes and digests are of the numbers. All other fields, and
bf16_split, are float32. A quantised file (Check-N-Run) has the weights of float32 tables as rows of
int8 or int4 (`docs/formats.md`), which does round them. NumPy only: no kernels.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neocpu.core.formats import table_format
from neocpu.core.types import Elements
from neocpu.train.state.blocks import Blocks, Tensor, canonical

if TYPE_CHECKING:
    from neocpu.tables.storage.row_codecs import RowCodec

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Code:
    """What is written of a field whose rows have `shape`: numbers of `form`, or, `scaled`, whole
    rows of that format.
    """

    form: str
    shape: tuple[int, ...]
    scaled: bool = False

    @staticmethod
    def of(tensor: Tensor, field: str) -> "Code":
        """That of a field of a tensor."""
        shape = dict(tensor.fields)[field]
        if tensor.quantized and field == "weight":
            return Code(tensor.quantized, shape, True)
        return Code(tensor.of(field), shape)

    @property
    def dtype(self) -> str:
        """Dtype of the dataset."""
        if self.scaled:
            return "|u1"
        if not self.coded:
            return "<f4"
        return "<f2" if self.form == "fp16" else table_format(self.form).dtype

    @property
    def coded(self) -> bool:
        """Whether every number is written as its code, that of a small float."""
        record = table_format(self.form)
        return not self.scaled and record.number is not None and not record.split

    @property
    def entry(self) -> tuple[int, ...]:
        """Shape of a row in the dataset."""
        return (self._codec.bytes,) if self.scaled else self.shape

    @property
    def bytes(self) -> int:
        """Bytes of a row."""
        return np.dtype(self.dtype).itemsize * int(np.prod(self.entry))

    @property
    def _codec(self) -> "RowCodec":
        from neocpu.tables.storage.row_codecs import RowCodec

        # NumPy twins: checkpoints are read by programs without Numba
        return RowCodec(self.form, self.shape[0], backend="reference")

    def encode(self, numbers: F32) -> Elements:
        """What is written for numbers f32[n, ...]; but for scaled rows, those of the format."""
        if self.scaled:
            return self._codec.encode(numbers)
        if not self.coded:
            return np.ascontiguousarray(numbers, "<f4")
        # NumPy's and HDF5's own type, and a shift, are much faster than the twin of the codecs
        if self.form == "fp16":
            with np.errstate(over="ignore"):
                return numbers.astype("<f2")
        if self.form == "bf16":
            return (np.ascontiguousarray(numbers, "<f4").view("<u4") >> np.uint32(16)).astype("<u2")
        from neocpu.core.codecs import LAYOUTS, NEAREST
        from neocpu.kernels.twins.codecs.small_floats import encode_rows

        codes = np.empty(numbers.shape, self.dtype)
        layout = LAYOUTS[self.form]
        encode_rows(np.ascontiguousarray(numbers, np.float32), layout, NEAREST, codes)
        return codes

    def decode(self, stored: Elements) -> F32:
        """The numbers f32[n, ...] of what was written."""
        if self.scaled:
            return self._codec.decode(stored)
        if not self.coded:
            return np.asarray(stored, np.float32)
        if self.form == "fp16":
            return stored.astype(np.float32)
        if self.form == "bf16":
            return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        from neocpu.core.codecs import LAYOUTS
        from neocpu.kernels.twins.codecs.small_floats import decode_rows

        numbers = np.empty(stored.shape, np.float32)
        decode_rows(stored, LAYOUTS[self.form], numbers)
        return numbers


class Coded:
    """A field in a file that is not held as float32: `coded[rows]` are numbers, f32."""

    def __init__(self, stored: Elements, code: Code) -> None:
        self._stored = stored
        self._code = code
        self.shape = (len(stored), *code.shape)

    def __getitem__(self, rows: Any) -> F32:
        # only the rows asked for are decoded; the rest stays mapped
        stored = self._stored[rows]
        return self._code.decode(np.asarray(stored).reshape(-1, *self._code.entry))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Elements:
        return self[:].astype(dtype or np.float32, copy=False)


def rounded(blocks: Blocks, tensor: Tensor) -> Blocks:
    """Blocks as the file has them, with the codes of their weights, if it rounds this tensor."""
    if not tensor.quantized:
        return blocks
    code = Code.of(tensor, "weight")
    codes = code.encode(blocks.values["weight"])
    # hashes are of what readers will see
    values = dict(blocks.values) | {"weight": canonical(code.decode(codes))}
    return replace(blocks, values=values, codes={"weight": codes})
