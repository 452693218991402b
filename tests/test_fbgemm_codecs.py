"""Does FBGEMM's CPU library write and read the same bytes? In every format with an operator.

Needs the `peers` extra (torch and fbgemm-gpu-cpu); skipped elsewhere. The differences are asserted
as well, with their reasons.
"""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the peers extra: torch and fbgemm-gpu-cpu")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("fbgemm_gpu", reason="needs the peers extra: torch and fbgemm-gpu-cpu")

from neocpu.core.codecs import HALF_UP, LAYOUTS, MX_ROUNDINGS, NEAREST, layout  # noqa: E402
from neocpu.kernels.codecs import inference as codecs_inference  # noqa: E402
from neocpu.kernels.codecs import mx as codecs_mx  # noqa: E402
from neocpu.kernels.codecs import rows as codecs_rows  # noqa: E402
from neocpu.kernels.codecs import small_floats as codecs  # noqa: E402
from tests.test_codecs import hard_numbers  # noqa: E402
from tests.test_codecs_rows import hard_rows, read, written  # noqa: E402

COLUMNS = [1, 2, 3, 5, 7, 8, 9, 15, 16, 24, 31, 32, 33, 40, 64, 70, 128, 136, 200]
HFP8 = {"hfp8_forward": (4, 15, 0.9375), "hfp8_backward": (5, 31, 0.875)}


def ops(name):
    return getattr(torch.ops.fbgemm, name)


def same(actual, expected):
    nan = np.isnan(actual) & np.isnan(expected)
    np.testing.assert_array_equal(np.where(nan, 0, actual), np.where(nan, 0, expected))


def quiet(x):
    """x without signalling NaNs, which glibc's fminf changes, so that HFP8 stores payload bits."""
    return np.where(np.isnan(x), np.copysign(np.float32(np.nan), x), x)


def noise(shape):
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("columns", COLUMNS)
def test_int8_rows_are_written_alike(columns):
    x = hard_rows(np.random.default_rng(columns), columns, 20)
    expected = ops("FloatToFused8BitRowwiseQuantized")(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(
        written(codecs_rows, "quantize_int8", x, 0, width=columns + 8), expected
    )


@pytest.mark.parametrize("columns", COLUMNS)
def test_int8_rows_are_read_alike_but_for_the_last_columns(columns):
    """FBGEMM rounds the last D mod 8 columns twice, in fp64 and fp32, and the others once."""
    x = hard_rows(np.random.default_rng(columns), columns, 20)
    full_columns = columns // 8 * 8
    for codes in (
        written(codecs_rows, "quantize_int8", x, 0, width=columns + 8),
        noise((500, columns + 8)),
    ):
        expected = ops("Fused8BitRowwiseQuantizedToFloat")(torch.from_numpy(codes)).numpy()
        actual = read(codecs_rows, "dequantize_int8", codes, columns=columns)
        same(actual[:, :full_columns], expected[:, :full_columns])
        with np.errstate(all="ignore"):
            scale, bias = (
                np.ascontiguousarray(codes[:, -8:])
                .view(np.float32)
                .T.astype(np.float64)[:, :, None]
            )
            rounded_twice = (codes[:, full_columns:columns] * scale + bias).astype(np.float32)
        same(rounded_twice, expected[:, full_columns:])


def test_the_last_columns_of_int8_rows_can_differ_by_an_ulp():
    """With scale 1 - 2^-17 and bias 2^-60, 255 * scale is a tie but for the bias.

    fp64 loses the bias.
    """
    scale = np.float32(1 - 2**-17)
    bias = np.float32(2**-60)
    codes = np.concatenate([np.full(1, 255, np.uint8), np.array([scale, bias]).view(np.uint8)])[
        None
    ]
    actual = read(codecs_rows, "dequantize_int8", codes, columns=1)
    expected = ops("Fused8BitRowwiseQuantizedToFloat")(torch.from_numpy(codes)).numpy()
    assert actual[0, 0] == np.nextafter(expected[0, 0], np.float32(256))


@pytest.mark.parametrize(
    ("bits", "columns"),
    [(b, c) for b in (4, 2) for c in (8, 16, 24, 32, 40, 64, 72, 128, 136, 200)],
)
def test_nbit_rows(bits, columns):
    """FBGEMM takes rows of whole pairs of bytes only."""
    x = hard_rows(np.random.default_rng(columns), columns, 20)
    expected = ops("FloatToFusedNBitRowwiseQuantizedSBHalf")(torch.from_numpy(x), bits).numpy()
    actual = written(codecs_rows, "quantize_nbit", x, bits, width=expected.shape[1])
    np.testing.assert_array_equal(actual, expected)
    for codes in (actual, noise((500, expected.shape[1]))):
        expected = ops("FusedNBitRowwiseQuantizedSBHalfToFloat")(
            torch.from_numpy(codes), bits
        ).numpy()
        same(read(codecs_rows, "dequantize_nbit", codes, bits, columns=columns), expected)


def test_eight_bits_with_fp16_scales():
    x = hard_rows(np.random.default_rng(0), 38, 20)
    expected = ops("FloatToFusedNBitRowwiseQuantizedSBHalf")(torch.from_numpy(x), 8).numpy()
    np.testing.assert_array_equal(written(codecs_rows, "quantize_nbit", x, 8, width=42), expected)


@pytest.mark.parametrize("bits", [4, 2])
def test_half_input(bits):
    """fp16 rows are read as fp32 and then quantised, byte for byte."""
    with np.errstate(all="ignore"):
        half = hard_rows(np.random.default_rng(7), 48, 20).astype(np.float16)
    x = half.astype(np.float32)
    expected = ops("HalfToFusedNBitRowwiseQuantizedSBHalf")(torch.from_numpy(half), bits).numpy()
    np.testing.assert_array_equal(
        written(codecs_rows, "quantize_nbit", x, bits, width=expected.shape[1]), expected
    )
    expected = ops("HalfToFused8BitRowwiseQuantized")(torch.from_numpy(half)).numpy()
    np.testing.assert_array_equal(written(codecs_rows, "quantize_int8", x, 0, width=56), expected)


@pytest.mark.parametrize("name", HFP8)
def test_hfp8(name):
    bits, bias, limit = HFP8[name]
    x = quiet(hard_numbers(name))
    expected = ops("FloatToHFP8Quantized")(torch.from_numpy(x), bits, bias, limit).numpy()
    actual = np.empty(x.shape, np.uint8)
    codecs.encode_rows(x, LAYOUTS[name], NEAREST, actual)
    np.testing.assert_array_equal(actual, expected)
    codes = np.arange(256, dtype=np.uint8)[None]
    numbers = np.empty(codes.shape, np.float32)
    codecs.decode_rows(codes, LAYOUTS[name], numbers)
    assert (
        numbers.tobytes()
        == ops("HFP8QuantizedToFloat")(torch.from_numpy(codes), bits, bias).numpy().tobytes()
    )


@pytest.mark.parametrize(
    ("bits", "bias", "limit"), [(4, 7, 240.0), (3, 5, 3.5), (5, 15, 57344.0), (2, 1, 1.9)]
)
def test_any_hfp8(bits, bias, limit):
    x = quiet(
        np.concatenate([hard_numbers("fp16", anything=1000), hard_numbers("fp8_e5m2", 1)], axis=1)
    )
    expected = ops("FloatToHFP8Quantized")(torch.from_numpy(x), bits, bias, limit).numpy()
    actual = np.empty(x.shape, np.uint8)
    codecs.encode_rows(x, layout(8, 7 - bits, bias, limit=limit), NEAREST, actual)
    np.testing.assert_array_equal(actual, expected)


def test_bf16_is_rounded_half_up():
    x = hard_numbers("bf16")
    expected = (
        ops("FloatToBfloat16Quantized")(torch.from_numpy(x))
        .view(torch.int16)
        .numpy()
        .view(np.uint16)
    )
    actual = np.empty(x.shape, np.uint16)
    codecs.encode_rows(x, LAYOUTS["bf16"], HALF_UP, actual)
    np.testing.assert_array_equal(actual, expected)
    even = np.empty(x.shape, np.uint16)
    codecs.encode_rows(x, LAYOUTS["bf16"], NEAREST, even)
    torch_even = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    nan = np.isnan(x)
    np.testing.assert_array_equal(even[~nan], torch_even[~nan])
    assert (even != actual).any(), "ties differ"
    numbers = np.empty(x.shape, np.float32)
    codecs.decode_rows(actual, LAYOUTS["bf16"], numbers)
    same(
        numbers,
        ops("Bfloat16QuantizedToFloat")(
            torch.from_numpy(actual.view(np.int16)).view(torch.bfloat16)
        ).numpy(),
    )


@pytest.mark.parametrize("name", ["fp16", "fp8_e4m3", "fp8_e5m2"])
def test_torch_casts(name):
    """e4m3fn is compared up to 464: beyond, torch 2.13 saturates, ml_dtypes and ours give NaN."""
    x = hard_numbers(name)
    kind = {"fp16": torch.float16, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}[
        name
    ]
    actual = np.empty(x.shape, np.uint16 if name == "fp16" else np.uint8)
    codecs.encode_rows(x, LAYOUTS[name], NEAREST, actual)
    expected = (
        torch.from_numpy(x)
        .to(kind)
        .view(torch.int16 if name == "fp16" else torch.uint8)
        .numpy()
        .view(actual.dtype)
    )
    keep = np.abs(x) <= (464 if name == "fp8_e4m3" else np.inf)
    np.testing.assert_array_equal(actual[keep], expected[keep])


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_rows_of_inference_tables(bits):
    """Scale and bias in front, as fp16: read by the operators that FBGEMM's own tests use."""
    columns = 40
    x = hard_rows(np.random.default_rng(3), columns, 5)
    name, options, header = ("int8", (0,), 8) if bits == 8 else ("nbit", (bits,), 4)
    data = columns * bits // 8
    fused = written(codecs_rows, f"quantize_{name}", x, *options, width=data + header)
    codes = written(codecs_inference, "pack_inference", fused, header, 4, 0, width=data + 4)
    if bits == 8:
        expected = ops("Fused8BitRowwiseQuantizedToFloatOrHalf")(
            torch.from_numpy(codes), 0, False, False
        ).numpy()
        half = torch.from_numpy(np.ascontiguousarray(fused[:, -8:]).view(np.float32)).to(
            torch.float16
        )
        finite = ~np.isnan(np.ascontiguousarray(fused[:, -8:]).view(np.float32)).any(1)
        np.testing.assert_array_equal(codes[finite, :4], half.view(torch.uint8).numpy()[finite])
    else:
        packed = torch.from_numpy(codes)
        expected = read(
            codecs_rows, "dequantize_nbit", np.roll(codes, -4, axis=1), bits, columns=columns
        )
        operator_answer = ops("FusedNBitRowwiseQuantizedSBHalfToFloat")(
            torch.roll(packed, -4, 1), bits
        ).numpy()
        same(expected, operator_answer)
    same(
        read(codecs_inference, "dequantize_inference", codes, bits, 4, 0, columns=columns), expected
    )


def mx4_reference():
    module = pytest.importorskip(
        "fbgemm_gpu.triton.quantize_ref", reason="this FBGEMM has no MX4 reference"
    )
    return module.py_quantize_mx4, module.py_dequantize_mx4


@pytest.mark.parametrize("rounding", ["nearest", "floor", "even", "ceil"])
def test_mx4_against_the_python_reference(rounding):
    quantize, dequantize = mx4_reference()
    x = hard_rows(np.random.default_rng(5), 96, 40)
    x = x[np.isfinite(x).all(1) & (np.abs(x).max(1) < 2.0**127)]
    mode = MX_ROUNDINGS[rounding]
    options = (mode, np.uint64(0), np.zeros(len(x), np.int64), 0)
    actual = written(codecs_mx, "quantize_mx4", x, *options, width=51)
    np.testing.assert_array_equal(actual, quantize(torch.from_numpy(x), rounding_mode=mode).numpy())
    codes = noise((300, 51))
    # 255 is NaN to OCP and us, 2^-128 to FBGEMM
    codes[:, 16::17] = np.minimum(codes[:, 16::17], 254)
    for block in (actual, codes):
        same(
            read(codecs_mx, "dequantize_mx4", block, columns=96),
            dequantize(torch.from_numpy(block)).numpy(),
        )


def test_mx4_python_reference_rounds_logarithms():
    """Next to a power of two its fp32 log2 is a whole number, so its exponent is off by one."""
    quantize, _ = mx4_reference()
    for value, rounding, wrong in (
        (2.0**100 * (1 - 2.0**-24), "floor", 1),
        (2.0**100 * (1 + 2.0**-23), "ceil", -1),
    ):
        x = np.full((1, 32), value, np.float32)
        mode = MX_ROUNDINGS[rounding]
        actual = written(
            codecs_mx, "quantize_mx4", x, mode, np.uint64(0), np.zeros(1, np.int64), 0, width=17
        )
        expected = quantize(torch.from_numpy(x), rounding_mode=mode).numpy()
        assert int(expected[0, 16]) - int(actual[0, 16]) == wrong
