"""Bugs in packing rows: ranges, scales, headers, codes; int8, int4, int2, fp8, MX4."""

import numpy as np

from benchmarks.oracle_mutants.codecs import FLT_MAX, Codecs
from benchmarks.oracle_mutants.formats import F32, RowScaled, header_bytes
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.numbers import flushed, fp16
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import bend

QUANTIZE = "quantize"
DEQUANTIZE = "dequantize"


def whole(k: Kernel, x: Array, name: str) -> tuple[Array, Array]:
    """One range for all rows."""
    return np.full(len(x), x.min(initial=FLT_MAX)), np.full(len(x), x.max(initial=-FLT_MAX))


def ranged(change):
    """Another range of each row: change(low, high, x)."""
    return lambda k, x, name: change(*Codecs.row_range(k, x, name), x)


bend("range_of_all_rows", QUANTIZE, row_range=whole)
bend(
    "range_without_last_column",
    QUANTIZE,
    row_range=lambda k, x, name: Codecs.row_range(k, x[:, :-1], name),
)
bend(
    "range_without_tail_of_8",
    QUANTIZE,
    row_range=lambda k, x, name: Codecs.row_range(k, x[:, : max(x.shape[1] // 8 * 8, 1)], name),
)
bend(
    "range_with_zero",
    QUANTIZE,
    row_range=ranged(lambda low, high, x: (np.minimum(low, 0), np.maximum(high, 0))),
)
bend(
    "range_symmetric",
    QUANTIZE,
    row_range=ranged(lambda low, high, x: (-np.maximum(-low, high), np.maximum(-low, high))),
)
bend(
    "quantize_subnormals_flushed",
    QUANTIZE,
    "subnormals_flushed",
    quantized_input=lambda k, x: flushed(x),
)
bend("quantize_input_fp16", QUANTIZE, quantized_input=lambda k, x: fp16(x))
bend("scale_over_256", QUANTIZE, int8_scale=lambda k, span: (span / F32(256)).astype(F32))
bend(
    "scale_as_reciprocal",
    QUANTIZE,
    int8_scale=lambda k, span: (span * (F32(1) / F32(255))).astype(F32),
)
bend(
    "inverse_of_scale",
    QUANTIZE,
    int8_inverse=lambda k, span, scale, name: np.where(scale == 0, 0, F32(1) / scale).astype(F32),
)
bend(
    "inverse_over_256",
    QUANTIZE,
    int8_inverse=lambda k, span, scale, name: (F32(256) / (span + F32(k.epsilon(name)))).astype(
        F32
    ),
)
bend(
    "epsilon_swapped",
    QUANTIZE,
    "int8_epsilon_swapped",
    epsilon=lambda k, name: 1e-20 if name == "int8" else 1e-8,
)
bend("epsilon_1e6", QUANTIZE, epsilon=lambda k, name: 1e-6)
bend("codes_truncated", QUANTIZE, "truncated", rounded_codes=lambda k, v: np.floor(v))
bend("codes_half_up", QUANTIZE, "half_up", rounded_codes=lambda k, v: np.floor(v + 0.5))
bend("codes_up", QUANTIZE, rounded_codes=lambda k, v: np.ceil(v))
bend(
    "int8_codes_signed",
    QUANTIZE,
    int8_codes=lambda k, v: (Codecs.int8_codes(k, v).astype(np.int64) - 128).astype(np.uint8),
)
bend(
    "int8_codes_at_most_254",
    QUANTIZE,
    int8_codes=lambda k, v: np.minimum(Codecs.int8_codes(k, v), 254),
)
bend(
    "bias_of_middle",
    QUANTIZE,
    header=lambda k, scale, bias, name: Codecs.header(k, scale, bias + 128 * scale, name),
)
bend(
    "header_swapped",
    QUANTIZE,
    "scale_and_bias_swapped",
    header=lambda k, scale, bias, name: Codecs.header(k, bias, scale, name),
)
bend(
    "header_big_endian",
    QUANTIZE,
    header=lambda k, scale, bias, name: (
        Codecs.header(k, scale, bias, name).reshape(len(scale), 2, -1)[:, :, ::-1]
    ).reshape(len(scale), -1),
)
bend(
    "header_has_inverse",
    QUANTIZE,
    header=lambda k, scale, bias, name: Codecs.header(k, F32(1) / scale, bias, name),
)
bend(
    "quantize_low_bits_last",
    QUANTIZE,
    "high_code_first",
    shifts=lambda k, bits: RowScaled.shifts(k, bits)[::-1],
)
bend("spare_bits_set", QUANTIZE, spare_code=lambda k: 1)
bend("nbit_bias_not_rounded_first", QUANTIZE, nbit_bias=lambda k, low: low)
bend(
    "nbit_bias_rounded_down",
    QUANTIZE,
    nbit_bias=lambda k, low: np.nextafter(
        low.astype(np.float16), np.float16(-np.inf), dtype=np.float16
    ).astype(F32),
)


def over_levels(levels):
    """A scale of another number of steps."""

    def nbit_scale(k: Kernel, span: Array, most: int) -> Array:
        scale = fp16((span / F32(levels(most))).astype(F32))
        return np.where(span == 0, F32(1), scale)

    return nbit_scale


bend("nbit_scale_one_step_more", QUANTIZE, nbit_scale=over_levels(lambda most: most + 1))
bend(
    "nbit_constant_row_scale_0",
    QUANTIZE,
    nbit_scale=lambda k, span, most: fp16((span / F32(most)).astype(F32)),
)
bend(
    "nbit_inverse_of_unrounded_scale",
    QUANTIZE,
    nbit_inverse=lambda k, scale, span, most: np.where(span == 0, F32(1), F32(most) / span).astype(
        F32
    ),
)
bend("nbit_codes_not_limited", QUANTIZE, limited=lambda k, codes, most: codes)
bend("nbit_codes_wrap", QUANTIZE, limited=lambda k, codes, most: codes % (most + 1))
bend(
    "padding_not_zeroed",
    QUANTIZE,
    finished=lambda k, codes, name: (
        dirty(codes) if name in ("int8_gpu", "fp8_row_forward", "fp8_row_backward") else codes
    ),
)


def dirty(codes: Array) -> Array:
    """The byte before the header is not written."""
    codes = codes.copy()
    codes[:, -9] = 0xAA
    return codes


bend("last_row_not_quantized", QUANTIZE, finished=lambda k, codes, name: without_last(codes))


def without_last(codes: Array) -> Array:
    """The last row stays 0."""
    codes = codes.copy()
    codes[-1:] = 0
    return codes


bend("rows_quantized_backwards", QUANTIZE, finished=lambda k, codes, name: codes[::-1])

# fp8 rows.

bend(
    "fp8_header_has_inverse",
    QUANTIZE,
    "fp8_scale_inverted",
    fp8_header=lambda k, scale: header_bytes((F32(1) / scale).astype(F32), np.zeros_like(scale)),
)
bend(
    "fp8_header_twice",
    QUANTIZE,
    fp8_header=lambda k, scale: header_bytes(scale, scale),
)
bend(
    "fp8_largest_of_positive",
    QUANTIZE,
    "fp8_largest_signed",
    fp8_largest=lambda k, x: np.maximum(x.max(axis=1), F32(1e-20)),
)
bend(
    "fp8_largest_of_all",
    QUANTIZE,
    "fp8_scale_of_tensor",
    fp8_largest=lambda k, x: whole(k, np.abs(x), "")[1],
)
bend(
    "fp8_truncated",
    QUANTIZE,
    "truncated",
    nearest=lambda k, units: np.floor(units),
)
bend(
    "fp8_half_up",
    QUANTIZE,
    "half_up",
    nearest=lambda k, units: np.floor(units + 0.5),
)
bend("fp8_times_scale", DEQUANTIZE, unscaled=lambda k, n, scale: (n * scale).astype(F32))
bend("fp8_bias_one_off", DEQUANTIZE, hfp8_bias=lambda k, bias: bias + 1)
bend(
    "fp8_subnormals_flushed",
    DEQUANTIZE,
    "subnormals_flushed",
    significand=lambda k, hidden, fraction: np.where(hidden > 0, hidden + fraction, 0.0),
)
bend(
    "fp8_sign_ignored",
    DEQUANTIZE,
    hfp8_number=lambda k, codes, small: np.abs(Codecs.hfp8_number(k, codes, small)),
)

# MX4.

bend("mx4_exponent_floor", QUANTIZE, mx_up=lambda k, f: np.zeros_like(f, np.int64))
bend("mx4_exponent_ceil", QUANTIZE, mx_up=lambda k, f: (f > 1).astype(np.int64))
bend(
    "mx4_exponent_one_off",
    QUANTIZE,
    mx_exponent=lambda k, largest: np.minimum(Codecs.mx_exponent(k, largest) + 1, 127),
)
bend(
    "mx4_low_half_last",
    QUANTIZE,
    "high_code_first",
    mx_packed=lambda k, codes: codes[..., 1::2] | codes[..., 0::2] << 4,
)
bend(
    "mx4_half_to_even",
    QUANTIZE,
    mx_codes=lambda k, scaled: np.searchsorted(
        np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5]), scaled, side="left"
    ),
)
bend(
    "mx4_largest_of_first_half",
    QUANTIZE,
    mx_largest=lambda k, blocks: Codecs.mx_largest(k, blocks[:, :, :16]),
)
bend("mx4_bias_one_off", DEQUANTIZE, mx_bias=lambda k: 126)
bend(
    "mx4_read_low_half_last",
    DEQUANTIZE,
    "high_code_first",
    mx_nibbles=lambda k, packed: Codecs.mx_nibbles(k, packed >> 4 | packed << 4),
)

# Dequantise.

bend("dequantized_fp16", DEQUANTIZE, "", dequantized=lambda k, out, name: fp16(out))
bend("dequantized_backwards", DEQUANTIZE, "", dequantized=lambda k, out, name: out[:, ::-1])
bend(
    "last_columns_not_dequantized",
    DEQUANTIZE,
    "",
    dequantized=lambda k, out, name: np.where(
        np.arange(out.shape[1]) < out.shape[1] // 8 * 8, out, F32(0)
    ),
)
bend(
    "header_of_row_before",
    DEQUANTIZE,
    "",
    scale_and_bias=lambda k, header, name: (
        np.roll(header[:, 0], 1),
        np.roll(header[:, 1], 1),
    ),
)
