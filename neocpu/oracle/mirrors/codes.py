"""Which codes do peers' CPU libraries write, and which numbers do they read?

Rounding, and the bytes of row-scaled rows. FBGEMM's bytes are neocpu's (docs/formats.md); it reads
the last D mod 8 columns of int8 rows with fp64 arithmetic, rounded twice, and rounds to bf16 half
up. torch's casts are to nearest even.
"""

import numpy as np

from neocpu.oracle.mirrors.order import NoMirror, encoded
from neocpu.oracle.operator import Arrays, Options
from neocpu.oracle.ops.codecs import DEQUANTIZE, QUANTIZE, ROUND

FBGEMM_ROWS = ("int8", "int4", "int2")


def fbgemm_round(inputs: Arrays, options: Options) -> Arrays:
    """FloatToBfloat16Quantized: half up."""
    if options["format"] != "bf16" or options["rounding"] != "nearest":
        raise NoMirror("FBGEMM's CPU library rounds to nearest bf16")
    return {"codes": encoded(np.asarray(inputs["x"], np.float32), "bf16", half_up=True)}


def torch_round(inputs: Arrays, options: Options) -> Arrays:
    """Tensor.to(dtype): to nearest even."""
    if options["rounding"] != "nearest" or options["format"] not in ("fp16", "bf16"):
        raise NoMirror("torch's casts to fp16 and bf16 are mirrored, to nearest")
    return ROUND.run(inputs, options, "reference")


def fbgemm_quantize(inputs: Arrays, options: Options) -> Arrays:
    """FloatToFused8BitRowwiseQuantized, FloatToFusedNBitRowwiseQuantizedSBHalf."""
    name = str(options["format"])
    columns = inputs["x"].shape[1]
    if name not in FBGEMM_ROWS or (name != "int8" and columns % (8 if name == "int2" else 4)):
        raise NoMirror(f"FBGEMM's CPU library writes no {name} rows of {columns} columns")
    return QUANTIZE.run(inputs, options, "reference")


def fbgemm_dequantize(inputs: Arrays, options: Options) -> Arrays:
    """Fused8BitRowwiseQuantizedToFloat, FusedNBitRowwiseQuantizedSBHalfToFloat."""
    name = str(options["format"])
    columns = int(options["columns"])
    if name not in FBGEMM_ROWS or (name != "int8" and columns % (8 if name == "int2" else 4)):
        raise NoMirror(f"FBGEMM's CPU library reads no {name} rows of {columns} columns")
    outputs = DEQUANTIZE.run(inputs, options, "reference")
    # A vector of AVX2 has 8 columns.
    whole = columns // 8 * 8
    if name == "int8" and whole < columns:
        header = np.ascontiguousarray(inputs["codes"][:, -8:]).view(np.float32).astype(np.float64)
        codes = inputs["codes"][:, whole:columns]
        outputs["out"][:, whole:] = (codes * header[:, :1] + header[:, 1:]).astype(np.float32)
    return outputs
