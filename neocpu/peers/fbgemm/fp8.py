"""How do rows become fp8 under one scale each? By the operators that FBGEMM has on GPUs only."""

import numpy as np
import torch
from torch import Tensor

from neocpu.kernels import codecs_rows
from neocpu.peers.fbgemm.operators import Refused, operator

DTYPES = {0: torch.float32, 1: torch.float16, 5: torch.bfloat16}
HEADER = 8  # bytes: the scale, then 0.0, both fp32


def _as_rows(input: Tensor) -> Tensor:
    """[..., n] as [rows, n]."""
    return input.detach().contiguous().view(-1, input.shape[-1])


@operator("(Tensor t, bool forward) -> Tensor")
def FloatToFP8RowwiseQuantized(t: Tensor, forward: bool) -> Tensor:
    """uint8 [..., D rounded up to 4, plus 8] of fp32 [..., D]: codes, scale, 0.

    forward : 4 exponent bits and limit 0.9375; else 5 and 0.875.
    """
    rows = _as_rows(t).float().numpy()
    codes = np.empty((rows.shape[0], -(-rows.shape[1] // 4) * 4 + HEADER), np.uint8)
    codecs_rows.quantize_fp8_row(rows, int(not forward), codes)
    return torch.from_numpy(codes).view(*t.shape[:-1], codes.shape[1])


@operator("(Tensor input, bool forward, int output_dtype=0) -> Tensor")
def FP8RowwiseQuantizedToFloat(input: Tensor, forward: bool, output_dtype: int = 0) -> Tensor:
    """[..., n - 8] in `output_dtype` (0 fp32, 1 fp16, 5 bf16) of uint8 [..., n]."""
    if output_dtype not in DTYPES:
        raise Refused(f"output_dtype {output_dtype}: choose one of {sorted(DTYPES)}")
    codes = _as_rows(input)
    if codes.shape[1] < HEADER:
        raise Refused(f"rows of {codes.shape[1]} bytes have no room for the scale")
    out = np.empty((codes.shape[0], codes.shape[1] - HEADER), np.float32)
    codecs_rows.dequantize_fp8_row(codes.numpy(), int(not forward), out)
    return torch.from_numpy(out).view(*input.shape[:-1], out.shape[1]).to(DTYPES[output_dtype])
