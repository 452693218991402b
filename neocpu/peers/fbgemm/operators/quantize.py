"""How are rows quantised and read back? By FBGEMM's fused row-wise operators, byte for byte.

Rows are the last axis. Formats and roundings: docs/formats.md. All columns of an int8 row are read
with one fused operation; FBGEMM's CPU operator rounds the last D mod 8 columns twice.

Rows become fp8 under one scale each by the operators that FBGEMM has on GPUs only.
"""

import math

import numpy as np
import torch
from torch import Tensor

from neocpu.core.codecs import HALF_UP, NEAREST, layout
from neocpu.kernels.codecs import rows as codecs_rows
from neocpu.kernels.codecs import small_floats as codecs
from neocpu.peers.fbgemm.operators.codes import decode, encode
from neocpu.peers.fbgemm.operators.moves import result_dtype
from neocpu.peers.fbgemm.operators.registry import Refused, operator

# The part of a schema that several operators share.
OUT = "int output_dtype=0, bool scale_bias_last=True"


def _rows(t: Tensor) -> Tensor:
    """[R, W] of [..., W]."""
    # Not -1: of a tensor without elements the number of rows could not be told.
    return t.contiguous().reshape(math.prod(t.shape[:-1]), t.shape[-1])


def _quantised(t: Tensor, form: str) -> Tensor:
    """uint8 [..., W] of numbers [..., D]."""
    if t.dim() < 1:
        raise Refused("a number is no row")
    rows = _rows(t.detach().float()).numpy()
    codes = encode(rows, form)
    return torch.from_numpy(codes).view(*t.shape[:-1], codes.shape[-1])


def _read(input: Tensor, form: str, columns: int, dtype: torch.dtype) -> Tensor:
    """Numbers [..., columns] of uint8 [..., W], rounded from fp32 to nearest even."""
    if input.shape[-1] and columns < 0:
        raise Refused(f"rows of {input.shape[-1]} bytes have no room for scale and bias")
    numbers = decode(_rows(input).numpy(), form, columns)
    return torch.from_numpy(numbers).view(*input.shape[:-1], columns).to(dtype)


def _only(dtype: torch.dtype, t: Tensor) -> Tensor:
    if t.dtype != dtype:
        raise Refused(f"rows are {t.dtype} instead of {dtype}")
    return t


@operator("(Tensor t) -> Tensor")
def FloatToFused8BitRowwiseQuantized(t: Tensor) -> Tensor:
    """uint8 [..., D + 8] of fp32 [..., D]: codes, fp32 scale, fp32 bias."""
    return _quantised(_only(torch.float32, t), "int8")


@operator("(Tensor t) -> Tensor")
def HalfToFused8BitRowwiseQuantized(t: Tensor) -> Tensor:
    """uint8 [..., D + 8] of fp16 [..., D]."""
    return _quantised(_only(torch.float16, t), "int8")


@operator("(Tensor t) -> Tensor")
def FloatOrHalfToFused8BitRowwiseQuantized(t: Tensor) -> Tensor:
    """uint8 [..., D + 8] of fp32 or fp16 [..., D]."""
    return _quantised(t, "int8")


@operator("(Tensor input) -> Tensor")
def Fused8BitRowwiseQuantizedToFloat(input: Tensor) -> Tensor:
    """fp32 [..., D] of uint8 [..., D + 8]."""
    return _read(input, "int8", input.shape[-1] - 8, torch.float32)


@operator("(Tensor input) -> Tensor")
def Fused8BitRowwiseQuantizedToHalf(input: Tensor) -> Tensor:
    """fp16 [..., D] of uint8 [..., D + 8]."""
    return _read(input, "int8", input.shape[-1] - 8, torch.float16)


@operator("(Tensor input) -> Tensor")
def Fused8BitRowwiseQuantizedToBfloat16(input: Tensor) -> Tensor:
    """bf16 [..., D] of uint8 [..., D + 8]."""
    return _read(input, "int8", input.shape[-1] - 8, torch.bfloat16)


@operator(f"(Tensor input, {OUT}, bool quant_padding_float_type=True) -> Tensor")
def Fused8BitRowwiseQuantizedToFloatOrHalf(
    input: Tensor,
    output_dtype: int = 0,
    scale_bias_last: bool = True,
    quant_padding_float_type: bool = True,
) -> Tensor:
    """[..., D] in `output_dtype` (0 fp32, 1 fp16, 5 bf16) of uint8 [..., D + 8] or [..., D + 4].

    scale_bias_last False: scale and bias come first. quant_padding_float_type False: they are fp16,
    4 bytes together.
    """
    header = 8 if quant_padding_float_type else 4
    return _headed(input, 8, header, scale_bias_last, result_dtype(output_dtype))


def _headed(input: Tensor, bits: int, header: int, header_last: bool, dtype: torch.dtype) -> Tensor:
    """Numbers of rows whose scale and bias, 8 or 4 bytes, stand first or last."""
    from neocpu.kernels.codecs.inference import dequantize_inference

    if bits not in (8, 4, 2):
        raise Refused(f"bit_rate {bits}: choose 8, 4 or 2")
    columns = (input.shape[-1] - header) * 8 // bits
    if columns < 0:
        raise Refused(f"rows of {input.shape[-1]} bytes have no room for scale and bias")
    codes = _rows(input).numpy()
    out = np.empty((codes.shape[0], columns), np.float32)
    dequantize_inference(codes, bits, header, header_last, out)
    return torch.from_numpy(out).view(*input.shape[:-1], columns).to(dtype)


def _nbit(input: Tensor, bits: int) -> Tensor:
    """uint8 [..., ceil(D * bits / 8) + 4] of numbers [..., D]."""
    if bits not in (8, 4, 2):
        raise Refused(f"bit_rate {bits}: choose 8, 4 or 2")
    rows = _rows(input.detach().float()).numpy()
    out = np.empty((rows.shape[0], (rows.shape[1] * bits + 7) // 8 + 4), np.uint8)
    codecs_rows.quantize_nbit(rows, bits, out)
    return torch.from_numpy(out).view(*input.shape[:-1], out.shape[1])


@operator("(Tensor input, int bit_rate) -> Tensor")
def FloatToFusedNBitRowwiseQuantizedSBHalf(input: Tensor, bit_rate: int) -> Tensor:
    """uint8 [..., ceil(D * bit_rate / 8) + 4] of fp32 [..., D].

    A row is codes, low bits first, fp16 scale, fp16 bias.
    """
    return _nbit(_only(torch.float32, input), bit_rate)


@operator("(Tensor input, int bit_rate) -> Tensor")
def HalfToFusedNBitRowwiseQuantizedSBHalf(input: Tensor, bit_rate: int) -> Tensor:
    """As `FloatToFusedNBitRowwiseQuantizedSBHalf`, of fp16."""
    return _nbit(_only(torch.float16, input), bit_rate)


@operator("(Tensor input, int bit_rate) -> Tensor")
def FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf(input: Tensor, bit_rate: int) -> Tensor:
    """As `FloatToFusedNBitRowwiseQuantizedSBHalf`, of fp32 or fp16."""
    return _nbit(input, bit_rate)


@operator("(Tensor input, int bit_rate) -> Tensor")
def FusedNBitRowwiseQuantizedSBHalfToFloat(input: Tensor, bit_rate: int) -> Tensor:
    """fp32 [..., D], D as many as the bytes hold, of quantised rows."""
    return FusedNBitRowwiseQuantizedSBHalfToFloatOrHalf(input, bit_rate)


@operator("(Tensor input, int bit_rate) -> Tensor")
def FusedNBitRowwiseQuantizedSBHalfToHalf(input: Tensor, bit_rate: int) -> Tensor:
    """fp16 [..., D] of quantised rows."""
    return FusedNBitRowwiseQuantizedSBHalfToFloatOrHalf(input, bit_rate, 1)


@operator(f"(Tensor input, int bit_rate, {OUT}) -> Tensor")
def FusedNBitRowwiseQuantizedSBHalfToFloatOrHalf(
    input: Tensor, bit_rate: int, output_dtype: int = 0, scale_bias_last: bool = True
) -> Tensor:
    """[..., D] in `output_dtype` (0 fp32, 1 fp16, 5 bf16) of quantised rows.

    scale_bias_last False: scale and bias come first.
    """
    return _headed(input, bit_rate, 4, scale_bias_last, result_dtype(output_dtype))


@operator("(Tensor input) -> Tensor")
def FloatToBfloat16Quantized(input: Tensor) -> Tensor:
    """bf16 of fp32, ties away from zero, as FBGEMM (a NaN of many ones becomes -0)."""
    x = _only(torch.float32, input).detach().contiguous().numpy().reshape(1, -1)
    out = np.empty(x.shape, np.uint16)
    # FBGEMM's bits, so that files are interchangeable.
    codecs.encode_rows(x, layout(16, 7, 127), HALF_UP, out)
    return torch.from_numpy(out.view(np.int16)).view(torch.bfloat16).view(input.shape)


@operator("(Tensor input) -> Tensor")
def Bfloat16QuantizedToFloat(input: Tensor) -> Tensor:
    """fp32 of bf16, bit for bit."""
    # A shift is exact, and keeps the bits of NaN.
    words = input.contiguous().view(torch.int16).numpy().view(np.uint16).astype(np.uint32) << 16
    return torch.from_numpy(words.view(np.float32)).view(input.shape)


@operator("(Tensor input, int ebits, int exponent_bias, float max_pos) -> Tensor")
def FloatToHFP8Quantized(input: Tensor, ebits: int, exponent_bias: int, max_pos: float) -> Tensor:
    """uint8 of fp32: sign, `ebits` of exponent, the rest mantissa; saturates at max_pos."""
    x = _only(torch.float32, input).detach().contiguous().numpy().reshape(1, -1)
    out = np.empty(x.shape, np.uint8)
    codecs.encode_rows(x, layout(8, 7 - ebits, exponent_bias, limit=max_pos), NEAREST, out)
    return torch.from_numpy(out).view(input.shape)


@operator("(Tensor input, int ebits, int exponent_bias) -> Tensor")
def HFP8QuantizedToFloat(input: Tensor, ebits: int, exponent_bias: int) -> Tensor:
    """fp32 of the bytes that `FloatToHFP8Quantized` writes."""
    codes = input.contiguous().numpy().reshape(1, -1)
    out = np.empty(codes.shape, np.float32)
    # The limit of the writer is not known here; 3e38 makes every code a finite number.
    codecs.decode_rows(codes, layout(8, 7 - ebits, exponent_bias, limit=3e38), out)
    return torch.from_numpy(out).view(input.shape)


HEADER = 8  # bytes: the scale, then 0.0, both fp32


def row_bytes(columns: int) -> int:
    """Bytes of a row: a code for each column, padding to a multiple of 4, scale and 0."""
    return -(-columns // 4) * 4 + HEADER


def _as_rows(values: Tensor) -> Tensor:
    """[..., n] as [rows, n]."""
    return values.detach().contiguous().view(-1, values.shape[-1])


@operator("(Tensor t, bool forward) -> Tensor")
def FloatToFP8RowwiseQuantized(t: Tensor, forward: bool) -> Tensor:
    """uint8 [..., D rounded up to 4, plus 8] of fp32 [..., D]: codes, scale, 0.

    forward : 4 exponent bits and limit 0.9375; else 5 and 0.875.
    """
    rows = _as_rows(t).float().numpy()
    codes = np.empty((rows.shape[0], row_bytes(rows.shape[1])), np.uint8)
    # The kernel counts formats from 0: 4 exponent bits, then 5.
    codecs_rows.quantize_fp8_row(rows, int(not forward), codes)
    return torch.from_numpy(codes).view(*t.shape[:-1], codes.shape[1])


@operator("(Tensor input, bool forward, int output_dtype=0) -> Tensor")
def FP8RowwiseQuantizedToFloat(input: Tensor, forward: bool, output_dtype: int = 0) -> Tensor:
    """[..., n - 8] in `output_dtype` (0 fp32, 1 fp16, 5 bf16) of uint8 [..., n]."""
    dtype = result_dtype(output_dtype)
    codes = _as_rows(input)
    if codes.shape[1] < HEADER:
        raise Refused(f"rows of {codes.shape[1]} bytes: fp8 rows have {HEADER} bytes of scale")
    out = np.empty((codes.shape[0], codes.shape[1] - HEADER), np.float32)
    codecs_rows.dequantize_fp8_row(codes.numpy(), int(not forward), out)
    return torch.from_numpy(out).view(*input.shape[:-1], out.shape[1]).to(dtype)
