"""How are rows packed? round, quantize and dequantize, from docs/formats.md alone."""

import numpy as np

from benchmarks.oracle_mutants.formats import (
    BITS,
    F32,
    RowScaled,
    SmallFloat,
    SmallFloats,
    binary_exponent,
    header_bytes,
)
from benchmarks.oracle_mutants.questions import Array, Question

FLT_MAX = np.finfo(F32).max
HFP8 = {  # mantissa bits, bias, limit
    "fp8_row_forward": (3, 15, 0.9375),
    "fp8_row_backward": (2, 31, 0.875),
}
MX_BLOCK = 32
MX_NUMBERS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], F32)


class Codecs(SmallFloats, RowScaled):
    """The operators round, quantize and dequantize."""

    def op_round(self, question: Question) -> dict[str, Array]:
        """Codes of numbers."""
        options = question.options
        x = self.rounded_input(question.inputs["x"])
        return {"codes": self.encode_small(x, options["format"], options["rounding"])}

    def rounded_input(self, x: Array) -> Array:
        """Numbers as they are loaded."""
        return x

    def op_quantize(self, question: Question) -> dict[str, Array]:
        """Bytes of rows."""
        name = question.options["format"]
        x = self.quantized_input(question.inputs["x"].astype(F32))
        if name in HFP8:
            codes = self.fp8_rows(x, name)
        elif name == "mx4":
            codes = self.mx4_rows(x)
        elif name in ("int8", "int8_gpu"):
            codes = self.int8_rows(x, name)
        else:
            codes = self.nbit_rows(x, name)
        return {"codes": self.finished(codes, name)}

    def quantized_input(self, x: Array) -> Array:
        """Rows as they are loaded."""
        return x

    def finished(self, codes: Array, name: str) -> Array:
        """Bytes as they are stored."""
        return codes

    def op_dequantize(self, question: Question) -> dict[str, Array]:
        """Numbers of bytes."""
        name = question.options["format"]
        codes = self.dequantized_input(question.inputs["codes"], name)
        columns = int(question.options["columns"])
        if name in HFP8:
            out = self.fp8_numbers(codes, name, columns)
        elif name == "mx4":
            out = self.mx4_numbers(codes, columns)
        else:
            out = self.decode_rows(codes, name, columns)
        return {"out": self.dequantized(out, name)}

    def dequantized_input(self, codes: Array, name: str) -> Array:
        """Bytes as they are loaded."""
        return codes

    def dequantized(self, out: Array, name: str) -> Array:
        """Numbers as they are stored."""
        return out

    # Row-scaled integers.

    def row_range(self, x: Array, name: str) -> tuple[Array, Array]:
        """Least and greatest number of each row."""
        if x.shape[1] == 0:
            return np.zeros(len(x), F32), np.zeros(len(x), F32)
        if name == "int8_gpu":
            low = np.fmin.reduce(x, axis=1)
            return low, np.fmax.reduce(x, axis=1)
        low = np.array([self.least(row) for row in x], F32)
        return low, np.array([-self.least(-row) for row in x], F32)

    def least(self, row: Array) -> np.float32:
        """The minimum in FBGEMM's order: eight lanes, then the lanes and the tail."""
        lanes = np.full(8, FLT_MAX, F32)
        whole = len(row) // 8 * 8
        for start in range(0, whole, 8):
            part = row[start : start + 8]
            lanes = np.where(lanes < part, lanes, part)
        least = F32(FLT_MAX)
        for number in [*lanes, *row[whole:]]:
            least = number if number < least else least
        return least

    def int8_rows(self, x: Array, name: str) -> Array:
        """int8 rows: codes, then scale and bias in fp32."""
        low, high = self.row_range(x, name)
        span = (high - low).astype(F32)
        scale = self.int8_scale(span)
        inverse = self.int8_inverse(span, scale, name)
        codes = self.int8_codes((self.centred(x, low) * inverse[:, None]).astype(F32))
        if name == "int8_gpu":
            codes = np.pad(codes, ((0, 0), (0, -x.shape[1] % 4)))
        return np.concatenate([codes, self.header(scale, low, name)], axis=1)

    def centred(self, x: Array, low: Array) -> Array:
        """x - bias."""
        return (x - low[:, None]).astype(F32)

    def int8_scale(self, span: Array) -> Array:
        """One step of the codes."""
        return (span / F32(255)).astype(F32)

    def int8_inverse(self, span: Array, scale: Array, name: str) -> Array:
        """Codes per unit."""
        return (F32(255) / (span + F32(self.epsilon(name))).astype(F32)).astype(F32)

    def epsilon(self, name: str) -> float:
        """What keeps the division of a constant row from 0."""
        return 1e-8 if name == "int8" else 1e-20

    def int8_codes(self, v: Array) -> Array:
        """Codes of scaled numbers."""
        whole = np.where(np.isfinite(v), self.rounded_codes(v), 0.0)
        return np.clip(whole, 0, 255).astype(np.uint8)

    def rounded_codes(self, v: Array) -> Array:
        """To whole numbers, ties to even."""
        return np.rint(v)

    def header(self, scale: Array, bias: Array, name: str) -> Array:
        """Bytes of scale and bias."""
        word = np.float32 if name in ("int8", "int8_gpu") else np.float16
        return header_bytes(scale.astype(word), bias.astype(word))

    def nbit_rows(self, x: Array, name: str) -> Array:
        """int4 and int2 rows: packed codes, then scale and bias in fp16."""
        bits = BITS[name]
        most = (1 << bits) - 1
        low, high = self.row_range(x, name)
        bias = self.nbit_bias(low)
        span = (high - bias).astype(F32)
        scale = self.nbit_scale(span, most)
        inverse = self.nbit_inverse(scale, span, most)
        lost = np.isinf(inverse)
        scale = np.where(lost, F32(1), scale)
        inverse = np.where(lost, F32(1), inverse)
        v = (self.centred(x, bias) * inverse[:, None]).astype(F32)
        codes = self.limited(self.rounded_codes(v), most)
        packed = self.pack(np.nan_to_num(codes, nan=0.0), bits)
        return np.concatenate([packed, self.header(scale, bias, name)], axis=1)

    def nbit_bias(self, low: Array) -> Array:
        """The minimum as an fp16 number."""
        return low.astype(np.float16).astype(F32)

    def nbit_scale(self, span: Array, most: int) -> Array:
        """One step of the codes, an fp16 number; 1 for a constant row."""
        scale = (span / F32(most)).astype(np.float16).astype(F32)
        return np.where(span == 0, F32(1), scale)

    def nbit_inverse(self, scale: Array, span: Array, most: int) -> Array:
        """Codes per unit."""
        return (F32(1) / scale).astype(F32)

    def limited(self, codes: Array, most: int) -> Array:
        """Codes that the bits can hold."""
        return np.clip(codes, 0, most)

    # fp8 rows.

    def op_fp8_rowwise(self, question: Question) -> dict[str, Array]:
        """Scales of rows, and what the codes mean."""
        name = "fp8_row_backward" if question.options["backward"] else "fp8_row_forward"
        mantissa, bias, _ = HFP8[name]
        x = self.quantized_input(question.inputs["x"].astype(F32))
        columns = x.shape[1]
        codes = self.fp8_rows(x, name)
        padded = -(-columns // 4) * 4
        scale = codes[:, padded : padded + 4].copy().view("<f4").astype(F32)
        small = SmallFloat(8, mantissa, self.hfp8_bias(bias), 0x7F, False)
        return {"scale": scale[:, 0], "numbers": self.hfp8_number(codes[:, :columns], small)}

    def fp8_rows(self, x: Array, name: str) -> Array:
        """HFP8 codes, padding, the row's scale and a zero."""
        mantissa, bias, limit = HFP8[name]
        largest = self.fp8_largest(x)
        scale = (F32(limit) / (F32(1e-20) + largest).astype(F32)).astype(F32)
        scaled = np.clip((x * scale[:, None]).astype(F32), -F32(limit), F32(limit))
        scaled = np.where(np.isnan(scaled), F32(limit), scaled)
        codes = self.hfp8(scaled, mantissa, bias)
        codes = np.pad(codes, ((0, 0), (0, -x.shape[1] % 4)))
        return np.concatenate([codes, self.fp8_header(scale)], axis=1)

    def fp8_largest(self, x: Array) -> Array:
        """The largest magnitude of each row."""
        magnitude = np.abs(x)
        least = np.full((len(x), 1), F32(1e-20))
        return np.fmax.reduce(np.concatenate([magnitude, least], axis=1), axis=1)

    def fp8_header(self, scale: Array) -> Array:
        """The scale, and a zero."""
        return header_bytes(scale, np.zeros_like(scale))

    def hfp8(self, x: Array, mantissa: int, bias: int) -> Array:
        """Codes of HFP8; all 256 are numbers."""
        size = np.abs(x.astype(np.float64))
        least = 1 - bias
        exponent = binary_exponent(size, least)
        whole = self.nearest(np.ldexp(size, mantissa - exponent)).astype(np.int64)
        code = ((exponent - least).astype(np.int64) << mantissa) + whole
        return (code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)

    def fp8_numbers(self, codes: Array, name: str, columns: int) -> Array:
        """Numbers of fp8 rows."""
        mantissa, bias, _ = HFP8[name]
        padded = -(-columns // 4) * 4
        scale = codes[:, padded : padded + 4].copy().view("<f4").astype(F32)
        small = SmallFloat(8, mantissa, self.hfp8_bias(bias), 0x7F, False)
        numbers = self.hfp8_number(codes[:, :columns], small)
        return self.unscaled(numbers, scale)

    def hfp8_bias(self, bias: int) -> int:
        """The bias of exponents."""
        return bias

    def hfp8_number(self, codes: Array, small: SmallFloat) -> Array:
        """Numbers of HFP8 codes."""
        whole = codes.astype(np.int64)
        field = (whole & 0x7F) >> small.mantissa
        fraction = (whole & ((1 << small.mantissa) - 1)) / 2.0**small.mantissa
        hidden = np.where(field == 0, 0.0, 1.0)
        size = self.significand(hidden, fraction) * 2.0 ** (np.maximum(field, 1) - small.bias)
        return np.where(whole & 0x80, -size, size).astype(F32)

    def unscaled(self, numbers: Array, scale: Array) -> Array:
        """Numbers over the row's scale."""
        return (numbers / scale).astype(F32)

    # NVFP4.

    def op_nvfp4_dequantize(self, question: Question) -> dict[str, Array]:
        """Code times scale over factor."""
        nibbles = self.mx_nibbles(question.inputs["codes"])
        size = np.where(nibbles & 8, -MX_NUMBERS[nibbles & 7], MX_NUMBERS[nibbles & 7])
        scales = self.decode_small(question.inputs["scales"], "fp8_e4m3").repeat(16, axis=1)
        product = (size * scales).astype(F32)
        return {"out": self.without_factor(product, F32(question.options["factor"]))}

    def without_factor(self, numbers: Array, factor: float) -> Array:
        """Numbers over the tensor's factor."""
        return (numbers / factor).astype(F32)

    def op_nvfp4_scale_layout(self, question: Question) -> dict[str, Array]:
        """Tiles of 128 rows and 4 scales."""
        scales = question.inputs["scales"]
        codes = scales[scales.dtype.names[0]] if scales.dtype.names else scales
        rows, columns = codes.shape
        padded = np.zeros((-(-rows // 128) * 128, -(-columns // 4) * 4), np.uint8)
        padded[:rows, :columns] = codes.view(np.uint8)
        blocks = padded.reshape(-1, 4, 32, padded.shape[1] // 4, 4)
        return {"tiles": blocks.transpose(self.tile_axes()).reshape(-1)}

    def tile_axes(self) -> tuple[int, ...]:
        """The order of [tile of rows, quarter, row, tile of columns, column] in memory."""
        return (0, 3, 2, 1, 4)

    # MX4.

    def mx_block(self) -> int:
        """Columns that share an exponent."""
        return MX_BLOCK

    def mx4_rows(self, x: Array) -> Array:
        """Blocks of 32 columns: 16 bytes of e2m1 codes and an exponent."""
        spare = -x.shape[1] % MX_BLOCK
        blocks = np.pad(x, ((0, 0), (0, spare))).reshape(len(x), -1, MX_BLOCK)
        exponent = self.mx_exponent(self.mx_largest(blocks))
        with np.errstate(over="ignore"):
            scaled = np.abs(blocks.astype(np.float64)) * 2.0 ** -exponent[..., None]
        scaled = np.where(np.isnan(scaled), 6.0, np.minimum(scaled, 6.0))
        codes = self.mx_codes(scaled) | np.where(np.signbit(blocks), 8, 0)
        packed = self.mx_packed(codes.astype(np.uint8))
        shared = (exponent + 127).astype(np.uint8)[..., None]
        return np.concatenate([packed, shared], axis=2).reshape(len(x), -1)

    def mx_largest(self, blocks: Array) -> Array:
        """The largest magnitude of each block; NaN does not count."""
        return np.fmax.reduce(np.abs(np.where(np.isnan(blocks), 0, blocks)), axis=2)

    def mx_exponent(self, largest: Array) -> Array:
        """The shared exponent of blocks: the rounding `ceil`."""
        wide = largest.astype(np.float64)
        fraction, exponent = np.frexp(np.where(np.isfinite(wide), wide, float(FLT_MAX)))
        shared = exponent - 1 + self.mx_up(fraction * 2) - 2
        tiny = wide < np.finfo(F32).tiny
        return np.where(tiny, -127, np.clip(shared, -127, 125)).astype(np.int64)

    def mx_up(self, fraction: Array) -> Array:
        """Does the exponent go up? (even: where 1.f is beyond 1.75)"""
        return (fraction > 1.75).astype(np.int64)

    def mx_codes(self, scaled: Array) -> Array:
        """e2m1 codes of magnitudes, halves away from zero."""
        middles = (MX_NUMBERS[1:] + MX_NUMBERS[:-1]) / 2
        return np.searchsorted(middles, scaled, side="right")

    def mx_packed(self, codes: Array) -> Array:
        """Two codes a byte, the even column in the low half."""
        return codes[..., 0::2] | codes[..., 1::2] << 4

    def mx4_numbers(self, codes: Array, columns: int) -> Array:
        """Numbers of MX4 blocks."""
        blocks = codes.reshape(len(codes), -1, MX_BLOCK // 2 + 1)
        shared = blocks[..., -1:].astype(np.int64)
        nibbles = self.mx_nibbles(blocks[..., :-1])
        size = MX_NUMBERS[nibbles & 7].astype(np.float64) * 2.0 ** (shared - self.mx_bias())
        numbers = np.where(nibbles & 8, -size, size)
        numbers = np.where(shared == 255, np.nan, numbers)
        return numbers.reshape(len(codes), -1)[:, :columns].astype(F32)

    def mx_bias(self) -> int:
        """The bias of shared exponents."""
        return 127

    def mx_nibbles(self, packed: Array) -> Array:
        """Codes of bytes, the low half first."""
        return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
