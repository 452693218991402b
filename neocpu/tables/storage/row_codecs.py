"""How do rows of numbers become the bytes of a narrow format, and numbers again?

By a `RowCodec`, for any format of tables that has a line in `neocpu.core.codecs.CODECS`. Numbers
are rounded to nearest, or stochastically by random words of a stream of each row (`streams_of`),
which depends on the table, the row and what the row holds: a row that leaves a cache with the same
bytes gets the same codes, whenever that is. Formats that scale whole rows (int8, int4) give scale
and bias as numbers of their own (`scales`), with which `restore` finds the codes again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from neocpu.core.codecs import CODECS, LAYOUTS, STOCHASTIC
from neocpu.core.formats import FORMATS, RowFormat
from neocpu.core.types import Bools, Bytes, Dtype, Elements, Floats, FloatsByName, Ints
from neocpu.kernels.compile.choice import backend_module


@dataclass(frozen=True)
class RowCodec:
    """Rows of `columns` numbers in `name`, a row format of `neocpu.core.formats`.

    rounding : nearest, or stochastic by random words of `key`.
    column0 : column of the table that is the first one here.
    backend : "kernels", or "reference" for their twins.
    """

    name: str
    columns: int
    rounding: str = "nearest"
    key: int = 0
    column0: int = 0
    backend: str = "kernels"

    @property
    def form(self) -> RowFormat:
        """The format's record."""
        return FORMATS[self.name]

    @property
    def bytes(self) -> int:
        """Bytes of a row."""
        return self.form.row_bytes(self.columns)

    def encode(self, numbers: Floats, streams: Ints | None = None) -> Bytes:
        """Bytes u8[n, bytes] of rows f32[n, columns], rounded.

        streams : i64[n], of the random words; None: to nearest, whatever `rounding` is.
        """
        codec = CODECS[self.name]
        form = self.form
        x = np.ascontiguousarray(numbers, np.float32)
        out = np.empty((len(x), form.row_codes(self.columns)), form.dtype)
        if streams is None or self.rounding == "nearest":
            self._call(codec.quantize, x, *_options(codec.quantize_options, codec.choices), out)
        elif form.row_scaled:
            self._call(codec.randomly, x, form.bits, np.uint64(self.key), streams, 0, out)
        else:
            layout = LAYOUTS[self.name]
            key = np.uint64(self.key)
            self._call(codec.randomly, x, layout, STOCHASTIC, key, streams, self.column0, 0, out)
        return out.view(np.uint8).reshape(len(x), self.bytes)

    def decode(self, data: Bytes) -> Floats:
        """Rows f32[n, columns] of bytes."""
        codec = CODECS[self.name]
        out = np.empty((len(data), self.columns), np.float32)
        codes = np.ascontiguousarray(data).view(self.form.dtype)
        self._call(codec.dequantize, codes, *_options(codec.dequantize_options, codec.choices), out)
        return out

    def _call(self, function: str, *arguments: object) -> None:
        module = backend_module(CODECS[self.name].module, self.backend)
        with np.errstate(all="ignore"):
            getattr(module, function)(*arguments)

    def scales(self, data: Bytes) -> dict[str, Floats]:
        """What scales each row: f32[n] "weight_scale" and "weight_bias", of row-scaled formats."""
        if not self.form.row_scaled:
            return {}
        words = np.ascontiguousarray(data[:, data.shape[1] - self.form.header_bytes :])
        header = words.view(_header(self.form))[:, 0]
        return {f"weight_{name}": header[name].astype(np.float32) for name, _ in self.form.header}

    def restore(self, numbers: Floats, scales: FloatsByName) -> Bytes:
        """The bytes u8[n, bytes] of which `decode` gave these numbers and `scales` these scales.

        Where there are no such bytes, something near; the caller decodes and compares.
        """
        if not self.form.row_scaled:
            return self.encode(numbers)
        x = np.ascontiguousarray(numbers, np.float32)
        header = np.empty(len(numbers), _header(self.form))
        with np.errstate(all="ignore"):
            for name, _ in self.form.header:
                header[name] = scales[f"weight_{name}"]
            # in fp64, where the quotient is off by one code at most
            bias = header["bias"].astype(np.float64)[:, None]
            scale = header["scale"].astype(np.float64)[:, None]
            quotient = np.nan_to_num(np.rint((x - bias) / scale), nan=0)
        most = (1 << self.form.bits) - 1
        guess = np.clip(quotient, 0, most).astype(np.uint8)
        codes = guess
        # the quotient can be off by one; where a scale is 0 or infinite, codes 0 and 1 tell all
        for candidate in (
            np.minimum(guess, most - 1) + 1,
            np.maximum(guess, 1) - 1,
            np.zeros_like(guess),
            np.ones_like(guess),
        ):
            data = self._written(codes, header)
            differs = ~same_bits(self.decode(data), x)
            if not differs.any():
                return data
            codes = np.where(differs, candidate, codes).astype(np.uint8)
        return self._written(codes, header)

    def _written(self, codes: Bytes, header: Elements) -> Bytes:
        """Bytes of rows of these codes u8[n, columns], low bits first, and headers."""
        per_byte = 8 // self.form.bits
        padded = np.zeros((len(codes), self.form.data_bytes(self.columns), per_byte), np.uint8)
        padded.reshape(len(codes), -1)[:, : self.columns] = codes
        shifted = padded << (np.arange(per_byte, dtype=np.uint8) * np.uint8(self.form.bits))
        data = np.bitwise_or.reduce(shifted, axis=2)
        return np.concatenate([data, header.view(np.uint8).reshape(len(codes), -1)], axis=1)


def streams_of(rows: Ints, records: Bytes) -> Ints:
    """Streams of random words i64[n], none negative, of rows i64[n] that hold records u8[n, m]."""
    # only rows that are rounded by chance need the kernel
    from neocpu.kernels.tiers import row_records

    tags = np.empty(rows.size * row_records.TAG, np.uint8)
    row_records.make_tags(records.reshape(-1), records.shape[1], rows, rows, 0, tags)
    checksum = tags.view(np.uint32).reshape(rows.size, -1)[:, 2].astype(np.int64)
    # the checksum fills bits 31 to 62: the stream stays positive
    return rows ^ checksum << 31


def _header(form: RowFormat) -> Dtype:
    return np.dtype(list(form.header))


def _options(
    options: Mapping[str, object], choices: Mapping[str, Mapping[str, int]]
) -> list[object]:
    """A codec's options in order, choices as the numbers that its functions take."""
    return [
        choices[name][value] if isinstance(value, str) else value for name, value in options.items()
    ]


def same_bits(a: Floats, b: Floats) -> Bools:
    """Which numbers are the same to the bit, where any NaN is the same as any other."""
    same: Bools = a.view(np.uint32) == b.view(np.uint32)
    return same | (np.isnan(a) & np.isnan(b))
