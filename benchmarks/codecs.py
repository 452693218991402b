"""Are rows encoded and decoded at the speed of memory? Every format, against a copy of the fp32
rows and against FBGEMM.

One time is one pass over 2^23 numbers, 32 MiB. The copy moves 64 MiB; a codec reads or writes 32
MiB of fp32 and the rows of its format. FBGEMM's operators allocate their result unless they have an
`Out` form, which is used; they run on one thread.
"""

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks import ours, rivals
from benchmarks.harness import THREADS, Contender, main, measure, summarise
from neocpu.core.codecs import CODECS, Codec
from neocpu.core.formats import FORMATS, WIRES

# Formats that are measured.
NAMES = ("fp16", "bf16", "fp8_e4m3", "int8", "int4", "int2", "fp8_row_forward", "mx4")


def _options(codec: Codec, options: dict[str, Any], rows: int) -> list[Any]:
    """Arguments of a codec's function between its input and its output."""
    values = [
        codec.choices[name][value] if isinstance(value, str) else value
        for name, value in options.items()
    ]
    return (
        [*values, np.uint64(0), np.zeros(rows, np.int64), 0]
        if codec.quantize == "quantize_mx4" and values
        else values
    )


def _ours(
    name: str, x: np.ndarray
) -> tuple[Callable[[], Any], Callable[[], Any], np.ndarray, np.ndarray]:
    """(encode, decode, codes, numbers) with our kernels."""
    codec = CODECS[name]
    form = FORMATS.get(name) or WIRES[name]
    module = import_module(f"neocpu.kernels.{codec.module}")
    codes = np.empty((len(x), form.row_codes(x.shape[1])), form.dtype)
    numbers = np.empty_like(x)
    encode = getattr(module, codec.quantize)
    decode = getattr(module, codec.dequantize)
    encode_options, decode_options = (
        _options(codec, options, len(x))
        for options in (codec.quantize_options, codec.dequantize_options)
    )
    return (
        lambda: encode(x, *encode_options, codes),
        lambda: decode(codes, *decode_options, numbers),
        codes,
        numbers,
    )


def _fbgemm(
    name: str, x: np.ndarray, codes: np.ndarray
) -> tuple[Callable[[], Any], Callable[[], Any]] | None:
    """(encode, decode) with FBGEMM's operators, if it has them."""
    import torch

    rows = torch.from_numpy(codes.copy())
    numbers = torch.from_numpy(x)
    ops: Any = torch.ops.fbgemm
    if name == "int8":
        out = torch.empty_like(rows)
        read_back = torch.empty_like(numbers)
        return (
            lambda: ops.FloatToFused8BitRowwiseQuantizedOut(out, numbers),
            lambda: ops.Fused8BitRowwiseQuantizedToFloatOut(read_back, rows, True, True),
        )
    if name in ("int4", "int2"):
        bits = int(name[3:])
        return (
            lambda: ops.FloatToFusedNBitRowwiseQuantizedSBHalf(numbers, bits),
            lambda: ops.FusedNBitRowwiseQuantizedSBHalfToFloat(rows, bits),
        )
    return None


def case(name: str, columns: int, size: int, rivals_too: bool, rounds: int) -> list[dict[str, Any]]:
    """Encoding and decoding of one format."""
    x = np.random.default_rng(0).standard_normal((size // columns, columns), np.float32)
    encode, decode, codes, _ = _ours(name, x)
    encode()
    rival = _fbgemm(name, x, codes) if rivals_too else None
    target = np.empty_like(x)
    records = []
    for i, (direction, function) in enumerate((("encode", encode), ("decode", decode))):
        contenders = [
            Contender("neocpu", "ours", lambda _, f=function: f(), n, ours.threads) for n in THREADS
        ]
        contenders.append(
            Contender("NumPy copy of the fp32 rows", "note", lambda _: np.copyto(target, x))
        )
        if rival is not None:
            contenders.append(
                Contender("FBGEMM", "rival", lambda _, f=rival[i]: f(), 1, rivals.threads)
            )
        measure(contenders, rounds)
        shape = {"rows": len(x), "D": columns}
        record = summarise(f"{direction} {name}, D={columns}", shape, contenders, {"FBGEMM": 1.0})
        fastest = min((c for c in contenders if c.side == "ours"), key=lambda c: c.median)
        speed = (x.nbytes + codes.nbytes) / fastest.median / 1e9
        copy_speed = 2 * x.nbytes / next(c for c in contenders if c.side == "note").median / 1e9
        records.append(
            record | {"notes": [f"neocpu {speed:.1f} GB/s, copy {copy_speed:.1f} GB/s."]}
        )
    return records


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every format at two widths."""
    rivals_too = not options.no_rivals and rivals.have("torch", "fbgemm_gpu")
    if rivals_too:
        rivals.preload()
    widths, size = ((32,), 1 << 14) if options.quick else ((16, 128), 1 << 23)
    names = ("fp16", "int8") if options.quick else NAMES
    return [
        r for d in widths for name in names for r in case(name, d, size, rivals_too, options.rounds)
    ]


if __name__ == "__main__":
    main(__doc__, benchmark)
