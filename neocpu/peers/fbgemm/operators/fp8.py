"""How do rows become fp8 under one scale each? By the operators that FBGEMM has on GPUs only."""

import numpy as np
import torch
from torch import Tensor

from neocpu.kernels.codecs import rows as codecs_rows
from neocpu.peers.fbgemm.operators.moves import result_dtype
from neocpu.peers.fbgemm.operators.registry import Refused, operator

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
