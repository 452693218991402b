"""How do rows of numbers become the bytes of a narrow format, and numbers again? A `RowCodec` for
any of `reference.CODECS`.

Rounded to nearest, or stochastically by random words of a stream of each row (`streams_of`):
(table, row, what the row holds). So a row that leaves a cache with the same bytes leaves with the
same codes, whenever that is. Formats that scale whole rows (int8, int4) give scale and bias as
numbers of their own (`scales`), with which `restore` finds the codes again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.formats import FORMATS, RowFormat
from neocpu.reference.codecs import CODECS, LAYOUTS, STOCHASTIC

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class RowCodec:
    """Rows of `columns` numbers in `name`, a row format of `neocpu.formats`; column0: the first
    one's column in the table.

    rounding : nearest or stochastic, by random words of `key`. backend : "kernels", or "reference"
        for their twins.
    """

    name: str
    columns: int
    rounding: str = "nearest"
    key: int = 0
    column0: int = 0
    backend: str = "kernels"

    @property
    def form(self) -> RowFormat:
        """Its layout."""
        return FORMATS[self.name]

    @property
    def bytes(self) -> int:
        """Bytes of a row."""
        return self.form.row_bytes(self.columns)

    def encode(self, numbers: Floats, streams: Ints | None = None) -> Bytes:
        """Bytes u8[n, bytes] of rows f32[n, columns]; without streams i64[n], to nearest."""
        codec = CODECS[self.name]
        form = self.form
        x = np.ascontiguousarray(numbers, np.float32)
        out = np.empty((len(x), form.row_codes(self.columns)), form.dtype)
        if streams is None or self.rounding == "nearest":
            self._call(codec.quantize, x, *_options(codec.quantize_options, codec.choices), out)
        elif form.row_scaled:
            self._call(codec.randomly, x, form.bits, np.uint64(self.key), streams, 0, out)
        else:
            first = STOCHASTIC, np.uint64(self.key), streams, self.column0, 0
            self._call(codec.randomly, x, LAYOUTS[self.name], *first, out)
        return out.view(np.uint8).reshape(len(x), self.bytes)

    def decode(self, data: Bytes) -> Floats:
        """Rows f32[n, columns] of bytes."""
        codec = CODECS[self.name]
        out = np.empty((len(data), self.columns), np.float32)
        codes = np.ascontiguousarray(data).view(self.form.dtype)
        self._call(codec.dequantize, codes, *_options(codec.dequantize_options, codec.choices), out)
        return out

    def _call(self, function: str, *given: Any) -> None:
        module = import_module(f"neocpu.{self.backend}.{CODECS[self.name].module}")
        with np.errstate(all="ignore"):
            getattr(module, function)(*given)

    def scales(self, data: Bytes) -> dict[str, Floats]:
        """What scales each row, f32[n] by name: "weight_scale" and "weight_bias" of formats that
        have them.
        """
        if not self.form.row_scaled:
            return {}
        last = np.ascontiguousarray(data[:, data.shape[1] - self.form.header_bytes :]).view(
            _header(self.form)
        )[:, 0]
        return {f"weight_{name}": last[name].astype(np.float32) for name, _ in self.form.header}

    def restore(self, numbers: Floats, scales: Mapping[str, Any]) -> Bytes:
        """The bytes of which `decode` and `scales` gave these; where there are none such, something
        near.
        """
        if not self.form.row_scaled:
            return self.encode(numbers)
        x = np.ascontiguousarray(numbers, np.float32)
        header = np.empty(len(numbers), _header(self.form))
        with np.errstate(all="ignore"):
            for name, _ in self.form.header:
                header[name] = scales[f"weight_{name}"]
            low, step = (header[name].astype(np.float64)[:, None] for name in ("bias", "scale"))
            guess = np.nan_to_num(np.rint((x - low) / step), nan=0)
        most = (1 << self.form.bits) - 1
        first = codes = np.clip(guess, 0, most).astype(np.uint8)
        for other in (
            np.minimum(first, most - 1) + 1,
            np.maximum(first, 1) - 1,
            first & 0,
            first & 0 | 1,
        ):
            data = self._written(codes, header)
            wrong = ~same_bits(self.decode(data), x)
            if not wrong.any():
                return data
            codes = np.where(wrong, other, codes).astype(np.uint8)
        return self._written(codes, header)

    def _written(self, codes: Bytes, header: NDArray[Any]) -> Bytes:
        """Codes, low bits first, and headers."""
        per = 8 // self.form.bits
        padded = np.zeros((len(codes), self.form.data_bytes(self.columns), per), np.uint8)
        padded.reshape(len(codes), -1)[:, : self.columns] = codes
        shifted = padded << (np.arange(per, dtype=np.uint8) * np.uint8(self.form.bits))
        data = np.bitwise_or.reduce(shifted, axis=2)
        return np.concatenate([data, header.view(np.uint8).reshape(len(codes), -1)], axis=1)


def streams_of(rows: Ints, records: Bytes) -> Ints:
    """A number for each row i64[n] and what it holds, u8[n, m], of which random words are drawn:
    i64[n], none negative.
    """
    from neocpu.kernels import row_records

    tags = np.empty(rows.size * row_records.TAG, np.uint8)
    row_records.make_tags(records.reshape(-1), records.shape[1], rows, rows, 0, tags)
    held = tags.view(np.uint32).reshape(rows.size, -1)[:, 2].astype(np.int64)
    return rows ^ held << 31


def _header(form: RowFormat) -> np.dtype[Any]:
    return np.dtype(list(form.header))


def _options(given: Mapping[str, object], choices: Mapping[str, Mapping[str, int]]) -> list[Any]:
    return [
        choices[name][value] if isinstance(value, str) else value for name, value in given.items()
    ]


def same_bits(a: Floats, b: Floats) -> NDArray[np.bool_]:
    """Which numbers are the same to the bit; a NaN is any NaN."""
    return (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
