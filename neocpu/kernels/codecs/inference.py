"""Where does FBGEMM's inference table keep a row's scale and bias? In front of the codes, mostly.

    | scale | bias | codes | padding |      `reverse_qparam=False`
    | codes | scale | bias | padding |      `reverse_qparam=True`

Scale and bias are both fp16 (4 bytes together) or both fp32 (8).
The codes themselves are those of `codecs/rows.py`; a row is padded with zeros to the table's row
alignment (16 on a GPU, 1 on a CPU). Examples: `docs/formats.md`.
"""

from numba import prange

from neocpu.kernels.codecs.rows import get_float, get_half, half_of, put_float, put_word, read_line
from neocpu.kernels.codecs.small_floats import RUN
from neocpu.kernels.compile.jit import parallel_kernel
from neocpu.kernels.simd.bags import view


@parallel_kernel
def pack_inference(codes, header, size, last, out):
    """Rows of an inference table from fused rows.

    Shapes: codes u8[R, data + header], header 8 (fp32 words, int8) or 4 (fp16 words, int4 and
    int2); size 4 or 8: bytes of scale and bias in `out` (fp16 words are rounded to nearest even);
    last 1: they follow the codes, 0: they come first; out u8[R, W], W >= data + size, the rest is
    zero. Source: FBGEMM split_table_batched_embeddings_ops_inference.py
    (`scale_bias_size_in_bytes`, `reverse_qparam`, `row_alignment`). Order: none.
    """
    flat = codes.reshape(-1)
    to = out.reshape(-1)
    width = codes.shape[1]
    w = out.shape[1]
    data = width - header
    at, first = (data, 0) if last else (0, size)
    share = max(1, RUN // max(1, width))
    for task in prange((codes.shape[0] + share - 1) // share):
        for r in range(task * share, min(task * share + share, codes.shape[0])):
            line = view(flat, r * width, width)
            row = view(to, r * w, w)
            # int8 has fp32 words, int4 and int2 fp16 ones
            if header == 8:
                scale = get_float(line, data)
                bias = get_float(line, data + 4)
            else:
                scale = get_half(line, data)
                bias = get_half(line, data + 2)
            for c in range(data):
                row[first + c] = line[c]
            # padding is zero, as FBGEMM writes it
            for c in range(data + size, w):
                row[c] = 0
            if size == 8:
                put_float(row, at, scale)
                put_float(row, at + 4, bias)
            else:
                put_word(row, at, half_of(scale), 2)
                put_word(row, at + 2, half_of(bias), 2)


@parallel_kernel
def dequantize_inference(codes, bits, size, last, out):
    """out = fma(code, scale, bias), rounded once.

    Shapes: codes u8[R, W]; bits 8, 4 or 2; size, last as in `pack_inference`; out f32[R, D].
    Source: as `pack_inference`.
    Order: none.
    """
    flat = out.reshape(-1)
    bytes_ = codes.reshape(-1)
    d = out.shape[1]
    width = codes.shape[1]
    data = (d * bits + 7) // 8
    at, first = (data, 0) if last else (0, size)
    share = max(1, RUN // max(1, d))
    for task in prange((out.shape[0] + share - 1) // share):
        for r in range(task * share, min(task * share + share, out.shape[0])):
            row = view(bytes_, r * width, width)
            if size == 8:
                scale = get_float(row, at)
                bias = get_float(row, at + 4)
            else:
                scale = get_half(row, at)
                bias = get_half(row, at + 2)
            read_line(
                view(bytes_, r * width + first, data), bits, scale, bias, view(flat, r * d, d)
            )
