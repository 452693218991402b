"""How do rows of a narrow format become fp32 numbers and back? By the codecs of `docs/formats.md`.

Rows are written back to nearest even, or stochastically by Philox
(`docs/arithmetic.md` §9): the same seed, table, row and step give the same bits.
"""

import numpy as np

from neocpu.core.codecs import CODECS, ROUNDINGS
from neocpu.core.formats import FORMATS
from neocpu.core.types import Elements, Floats, Ints
from neocpu.kernels.compile.choice import backend_module
from neocpu.kernels.twins.numbers.philox import tensor_key

# Purpose of the random keys of stochastic rounding, docs/arithmetic.md §9.
STOCHASTIC = 2
# Our name of each SparseType that tables may have.
NAMES = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "int8": "int8", "nfp8": "fp8_e4m3"}


def row_codes(form: str, columns: int) -> int:
    """Elements of storage in one row."""
    return FORMATS[form].row_codes(columns)


def _call(form: str, function: str, x: Elements, options: list[object], out: Elements) -> Elements:
    getattr(backend_module(CODECS[form].module, "kernels"), function)(x, *options, out)
    return out


def decode(codes: Elements, form: str, columns: int) -> Floats:
    """Numbers f32[R, columns] of rows of codes [R, W]; fp32 rows are returned as they are."""
    if form == "fp32":
        return codes
    codec = CODECS[form]
    out = np.empty((codes.shape[0], columns), np.float32)
    return _call(
        form,
        codec.dequantize,
        np.ascontiguousarray(codes),
        list(codec.dequantize_options.values()),
        out,
    )


def encode(x: Floats, form: str) -> Elements:
    """Codes [R, W] of numbers f32[R, columns], to nearest even; fp32 rows as they are."""
    if form == "fp32":
        return x
    codec = CODECS[form]
    options = [
        codec.choices[k][v] if isinstance(v, str) else v for k, v in codec.quantize_options.items()
    ]
    return _call(form, codec.quantize, np.ascontiguousarray(x), options, _room(x, form))


def encode_randomly(x: Floats, form: str, table: str, rows: Ints, step: int) -> Elements:
    """As `encode`, but rounded stochastically: codes of rows i64[R] of `table` at update `step`."""
    codec = CODECS[form]
    # FBGEMM's constructor has no seed, so all modules share one.
    key = tensor_key(0, STOCHASTIC, table)
    x = np.ascontiguousarray(x)
    if codec.module == "codecs.small_floats":
        # Small floats and row-scaled formats have encoders with other arguments.
        options = [codec.quantize_options["layout"], ROUNDINGS["stochastic"], key, rows, 0, step]
    else:
        options = [FORMATS[form].bits, key, rows, step]
    return _call(form, codec.randomly, x, options, _room(x, form))


def _room(x: Floats, form: str) -> Elements:
    return np.empty((x.shape[0], row_codes(form, x.shape[1])), FORMATS[form].dtype)
