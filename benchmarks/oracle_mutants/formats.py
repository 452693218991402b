"""How do numbers become bytes? Small floats and row-scaled rows, from docs/formats.md alone."""

from typing import NamedTuple

import numpy as np

from benchmarks.oracle_mutants.questions import Array

F32 = np.float32


class SmallFloat(NamedTuple):
    """A float of at most 16 bits; `last` is the code of its largest number."""

    bits: int
    mantissa: int
    bias: int
    last: int
    has_infinity: bool


SMALL = {
    "fp16": SmallFloat(16, 10, 15, 0x7BFF, True),
    "bf16": SmallFloat(16, 7, 127, 0x7F7F, True),
    "fp8_e4m3": SmallFloat(8, 3, 7, 0x7E, False),
    "fp8_e5m2": SmallFloat(8, 2, 15, 0x7B, True),
}
QUIET = {"fp16": 0x7E00, "bf16": 0x7FC0, "fp8_e4m3": 0x7F, "fp8_e5m2": 0x7E}


def code_dtype(small: SmallFloat) -> type:
    """The unsigned integer of a code."""
    return np.uint16 if small.bits == 16 else np.uint8


def binary_exponent(size: Array, least: int) -> Array:
    """Exponents of magnitudes, no smaller than that of subnormal numbers."""
    return np.where(size == 0, least, np.maximum(np.frexp(size)[1] - 1, least))


class SmallFloats:
    """Codes of small floats."""

    def spec(self, name: str) -> SmallFloat:
        """The layout that a format's name stands for."""
        return SMALL[name]

    def decode_small(self, codes: Array, name: str) -> Array:
        """Numbers of codes, fp32."""
        small = self.spec(name)
        whole = codes.astype(np.int64)
        sign = np.where(whole >> (small.bits - 1) & 1, -1.0, 1.0)
        magnitude = whole & ((1 << (small.bits - 1)) - 1)
        field = magnitude >> small.mantissa
        fraction = (magnitude & ((1 << small.mantissa) - 1)) / 2.0**small.mantissa
        hidden = np.where(field == 0, 0.0, 1.0)
        exponent = np.maximum(field, 1) - small.bias
        number = sign * self.significand(hidden, fraction) * 2.0**exponent
        number = np.where(magnitude > small.last, np.nan, number)
        if small.has_infinity:
            number = np.where(magnitude == small.last + 1, sign * np.inf, number)
        return number.astype(F32)

    def significand(self, hidden: Array, fraction: Array) -> Array:
        """1.f, or 0.f of a subnormal number."""
        return hidden + fraction

    def encode_small(self, x: Array, name: str, mode: str) -> Array:
        """Codes of numbers, rounded as `mode` says: nearest, truncate or stochastic."""
        small = self.spec(name)
        x = np.asarray(x, F32)
        size = np.abs(x.astype(np.float64))
        finite = np.where(np.isfinite(size), size, 0.0)
        least = 1 - small.bias
        exponent = binary_exponent(finite, least)
        units = np.ldexp(finite, small.mantissa - exponent)
        beyond = finite > self.decode_small(np.array(small.last), name)
        whole = self.rounded_units(units, x, mode, beyond)
        code = ((exponent - least).astype(np.int64) << small.mantissa) + whole.astype(np.int64)
        code = self.past_the_end(code, small, mode)
        code = np.where(np.isinf(size), self.infinity(small), code)
        code = np.where(np.isnan(size), self.quiet_nan(name), code)
        sign = np.signbit(x).astype(np.int64) << (small.bits - 1)
        return (code | self.sign_bits(sign, code)).astype(code_dtype(small))

    def sign_bits(self, sign: Array, code: Array) -> Array:
        """The sign, at its place in the code."""
        return sign

    def rounded_units(self, units: Array, x: Array, mode: str, beyond: Array) -> Array:
        """Multiples of the last place as whole numbers."""
        if mode == "truncate":
            return self.truncated(units)
        nearest = self.nearest(units)
        if mode == "nearest":
            return nearest
        return np.where(beyond, nearest, self.by_chance(units, x))

    def truncated(self, units: Array) -> Array:
        """Towards zero."""
        return np.floor(units)

    def nearest(self, units: Array) -> Array:
        """To nearest, ties to even."""
        return np.rint(units)

    def by_chance(self, units: Array, x: Array) -> Array:
        """Up with the probability of the fraction that is dropped."""
        below = np.floor(units)
        return below + (self.words(x) + (units - below) >= 1.0)

    def words(self, x: Array) -> Array:
        """Random numbers of [0, 1), one for each element."""
        return self.generator.integers(0, 1 << 32, x.shape) / 2.0**32

    seed = 0
    generator = np.random.default_rng(0)

    def past_the_end(self, code: Array, small: SmallFloat, mode: str) -> Array:
        """Codes beyond the largest number."""
        if mode == "truncate":
            return np.minimum(code, small.last)
        return np.minimum(code, small.last + 1)

    def infinity(self, small: SmallFloat) -> int:
        """The code after that of the largest number."""
        return small.last + 1

    def quiet_nan(self, name: str) -> int:
        """The code of NaN, without its sign."""
        return QUIET[name]


def header_bytes(*words: Array) -> Array:
    """Columns of little-endian words, as bytes: [rows] each -> [rows, bytes]."""
    parts = [np.ascontiguousarray(word).view(np.uint8).reshape(len(word), -1) for word in words]
    return np.concatenate(parts, axis=1)


def fused(a: Array, b: Array, c: Array) -> Array:
    """fma(a, b, c) in fp32."""
    exact = np.asarray(a, np.float64) * np.asarray(b, np.float64) + np.asarray(c, np.float64)
    return exact.astype(F32)


BITS = {"int8": 8, "int8_gpu": 8, "int4": 4, "int2": 2, "nbit8": 8, "nbit4": 4, "nbit2": 2}


class RowScaled:
    """Rows of integers with a scale and a bias of their own."""

    def row_width(self, name: str, columns: int, alignment: int = 1) -> int:
        """Codes or bytes of a row."""
        if name in ("fp32", *SMALL):
            return columns
        packed = -(-columns * BITS[name] // 8)
        if name == "int8":
            return columns + 8
        if name == "int8_gpu":
            return -(-columns // 4) * 4 + 8
        if name in ("int4", "int2"):
            return packed + 4
        return -(-(packed + 4) // alignment) * alignment

    def decode_rows(self, codes: Array, name: str, columns: int) -> Array:
        """fp32[rows, columns] of bytes."""
        packed = -(-columns * BITS[name] // 8)
        codes = np.ascontiguousarray(codes)
        if name == "int8":
            header = codes[:, packed : packed + 8].copy().view("<f4")
        elif name == "int8_gpu":
            header = codes[:, -8:].copy().view("<f4")
        elif name in ("int4", "int2"):
            header = codes[:, packed : packed + 4].copy().view("<f2").astype(F32)
        else:
            header = self.inference_header(codes)
            codes = codes[:, self.inference_codes() :]
        scale, bias = self.scale_and_bias(header, name)
        numbers = self.unpack(codes[:, :packed], BITS[name])[:, :columns]
        return self.scaled(self.levels(numbers, name), scale[:, None], bias[:, None])

    def inference_header(self, codes: Array) -> Array:
        """Scale and bias of an inference table's rows."""
        return codes[:, :4].copy().view("<f2").astype(F32)

    def inference_codes(self) -> int:
        """Where an inference table's codes begin."""
        return 4

    def scale_and_bias(self, header: Array, name: str) -> tuple[Array, Array]:
        """Both words of the header."""
        return header[:, 0], header[:, 1]

    def levels(self, numbers: Array, name: str) -> Array:
        """Codes as the numbers that are scaled."""
        return numbers

    def scaled(self, numbers: Array, scale: Array, bias: Array) -> Array:
        """q * scale + bias."""
        return fused(numbers, scale, bias)

    def unpack(self, packed: Array, bits: int) -> Array:
        """Numbers of packed bytes, low bits first."""
        if bits == 8:
            return packed
        shifts = self.shifts(bits)
        mask = (1 << bits) - 1
        return (packed[:, :, None] >> shifts & mask).reshape(
            len(packed), packed.shape[1] * len(shifts)
        )

    def pack(self, numbers: Array, bits: int) -> Array:
        """The bytes of numbers, low bits first, unused bits 0."""
        if bits == 8:
            return numbers.astype(np.uint8)
        each = 8 // bits
        spare = -numbers.shape[1] % each
        numbers = np.pad(numbers, ((0, 0), (0, spare)), constant_values=self.spare_code())
        groups = numbers.astype(np.uint8).reshape(len(numbers), numbers.shape[1] // each, each)
        return np.bitwise_or.reduce(groups << self.shifts(bits), axis=2).astype(np.uint8)

    def shifts(self, bits: int) -> Array:
        """By how many bits each number of a byte is shifted."""
        return np.arange(0, 8, bits).astype(np.uint8)

    def spare_code(self) -> int:
        """What fills the last byte."""
        return 0
