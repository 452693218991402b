"""Where does FBGEMM's inference table keep a row's scale and bias? In front of the codes, mostly.

The plain twin of `kernels/codecs/inference.py`, over whole arrays.
"""

import numpy as np

from neocpu.kernels.twins.codecs.rows import _bytes, _half, _number, _unpack
from neocpu.kernels.twins.numbers.fma import fma


def _scales(words, size):
    """(scale, bias) f32[R] of header bytes u8[R, size]."""
    words = np.ascontiguousarray(words)
    if size == 8:
        return words.view(np.float32).T
    return [_number(half) for half in np.ascontiguousarray(words.view(np.uint16).T)]


def pack_inference(codes, header, size, last, out):
    """Rows of an inference table from fused rows; shapes as in the kernel."""
    code_bytes = codes.shape[1] - header
    scale, bias = _scales(codes[:, code_bytes:], header)
    words = _bytes(scale, bias) if size == 8 else _bytes(_half(scale), _half(bias))
    parts = [codes[:, :code_bytes], words] if last else [words, codes[:, :code_bytes]]
    out[:] = 0
    out[:, : code_bytes + size] = np.concatenate(parts, axis=1)


def dequantize_inference(codes, bits, size, last, out):
    """fma(code, scale, bias); shapes as in the kernel."""
    code_bytes = (out.shape[1] * bits + 7) // 8
    header = codes[:, code_bytes : code_bytes + size] if last else codes[:, :size]
    scale, bias = _scales(header, size)
    q = _unpack(
        codes[:, :code_bytes] if last else codes[:, size : size + code_bytes], bits, out.shape[1]
    )
    out[:] = fma(q.astype(np.float32), scale[:, None], bias[:, None])
