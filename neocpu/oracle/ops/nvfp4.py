"""What must rows become in NVFP4, and what do they stand for?

Operators `nvfp4_quantize`, `nvfp4_dequantize` and `nvfp4_scale_layout`. Sixteen e2m1 codes share a
scale in fp8 (e4m3), and all of a tensor share one factor in fp32, so that scales fit into fp8:

    scale = e4m3(largest magnitude of 16 / 6 * factor)        number = code * scale / factor

FBGEMM: triton_scale_nvfp4_quant; its tests take the factor from the tensor's largest magnitude,
448 * 6 / amax. The model works on whole arrays in fp64; both backends give its answer.
"""

import numpy as np

from neocpu.oracle.adapters import coded, codes_of
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truth, Truths, Value
from neocpu.oracle.options import Number
from neocpu.oracle.truth.formats import FORMATS, Format, decode, in_format, limits, nearest
from neocpu.oracle.truth.numbers import TINY, ULP, Bounded, Real

BLOCK = 16  # numbers that share a scale
LARGEST = 6.0  # of e2m1
# the rounding of one number beyond E2M1.largest saturates, which `quantized` does
E2M1 = Format("e2m1", precision=2, smallest=0, largest=LARGEST, beyond=LARGEST, dtype="|u1")
E4M3 = FORMATS["fp8_e4m3"]
E2M1_VALUES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# Tiles in which tensor cores want scales: 128 rows of 4 scales, rows 32 apart side by side.
TILE_ROWS = 128
TILE_COLUMNS = 4
TILE_GROUPS = 4


def quantized(x: Real) -> Real:
    """Numbers of e2m1: nearest, ties to even, saturating; NaN stays NaN."""
    # Below 8 first, so that nothing reaches what lies beyond the format's end.
    return np.clip(nearest(np.clip(x, -8.0, 8.0), E2M1), -LARGEST, LARGEST)


def _scales(blocks: Real, factor: float) -> tuple[Bounded, Truth]:
    """Unrounded scales [R, blocks] of blocks [R, blocks, 16], and what they are in e4m3."""
    largest = np.abs(blocks).max(-1)
    # Scales saturate: e4m3 has no infinity.
    value = np.minimum(largest / LARGEST * factor, E4M3.largest)
    # a division and a product, in either order, perhaps by a reciprocal
    scale = Bounded(value, np.where(value > 0, 3 * ULP * value + 2 * TINY, 0.0))
    truth = in_format(scale, "fp8_e4m3")
    # a block of zeros is zeros, whatever its scale
    bound = np.where(largest == 0, np.inf, truth.bound)
    assert truth.lower is not None and truth.upper is not None
    lower = np.where(largest == 0, 0.0, truth.lower)
    upper = np.where(largest == 0, E4M3.largest, truth.upper)
    return scale, Truth(truth.reference, bound, lower, upper, format="fp8_e4m3")


def _quantize_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    x = np.asarray(inputs["x"], np.float64)
    factor = float(np.float32(options["factor"]))
    blocks = x.reshape(len(x), -1, BLOCK)
    scale, scale_truth = _scales(blocks, factor)
    lowest, highest = limits(scale, "fp8_e4m3")
    lower = np.full(blocks.shape, np.inf)
    upper = np.full(blocks.shape, -np.inf)
    for stored in (lowest, highest):
        exact = _in_units(blocks, stored, factor)
        # a unit that is a power of two costs no rounding, so that ties are ties
        whole = (np.frexp(stored / factor)[0] == 0.5)[..., None]
        error = np.where(whole, 0.0, 3 * ULP * np.abs(exact))
        lower = np.minimum(lower, quantized(exact - error))
        upper = np.maximum(upper, quantized(exact + error))
    reference = _in_units(blocks, nearest(scale.value, E4M3), factor)
    bound = np.maximum(upper - reference, reference - lower)
    shape = x.shape
    numbers = Truth(
        reference=reference.reshape(shape),
        bound=bound.reshape(shape),
        lower=lower.reshape(shape),
        upper=upper.reshape(shape),
    )
    return {"scales": scale_truth, "values": numbers}


def _in_units(blocks: Real, scale: Real, factor: float) -> Real:
    """Blocks in units of their scales: what is rounded to e2m1. 0 where the scale is 0."""
    unit = (scale / factor)[..., None]
    return np.where(unit > 0, blocks / np.where(unit > 0, unit, 1.0), 0.0)


def _quantize_run(inputs: Arrays, options: Options, backend: str) -> Arrays:
    x = np.asarray(inputs["x"], np.float32)
    factor = np.float32(options["factor"])
    blocks = x.reshape(len(x), -1, BLOCK)
    largest = np.abs(blocks).max(-1)
    wide = np.minimum(largest / np.float32(LARGEST) * factor, np.float32(E4M3.largest))
    scale = nearest(wide.astype(np.float64), E4M3).astype(np.float32)
    unit = (scale / factor)[..., None]
    units = np.where(unit > 0, blocks / np.where(unit > 0, unit, np.float32(1)), np.float32(0))
    values = quantized(units.astype(np.float64)).astype(np.float32)
    return {"scales": _e4m3_codes(scale), "values": values.reshape(x.shape)}


def _e4m3_codes(scale: np.ndarray) -> np.ndarray:
    """Codes of numbers >= 0 that e4m3 holds."""
    codes = np.arange(127, dtype=np.uint8)
    table = decode(codes, "fp8_e4m3")
    return coded(np.searchsorted(table, scale).astype(np.uint8), "fp8_e4m3").reshape(scale.shape)


def unpacked(codes: np.ndarray) -> Real:
    """Numbers of packed e2m1 codes u8[R, D/2]: even columns in the low nibble."""
    nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
    magnitude = E2M1_VALUES[nibbles & 7]
    return np.where(nibbles & 8, -magnitude, magnitude)


def _dequantize_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    factor = float(np.float32(options["factor"]))
    values = unpacked(codes_of(inputs["codes"]))
    scale = np.repeat(decode(inputs["scales"], "fp8_e4m3"), BLOCK, axis=1)
    number = values * scale / factor
    # the product of code and scale is exact; a division, or a reciprocal and a product
    finite = np.isfinite(number)
    error = np.where(finite & (number != 0), 2 * ULP * np.abs(number) + 2 * TINY, 0.0)
    exactly = factor == 2.0 ** np.round(np.log2(factor))
    normal = np.abs(number) >= 2.0**-126
    error = np.where(exactly & normal, 0.0, error)
    return {"out": in_format(Bounded(number, error), "fp32")}


def _dequantize_run(inputs: Arrays, options: Options, backend: str) -> Arrays:
    values = unpacked(codes_of(inputs["codes"])).astype(np.float32)
    scale = np.repeat(decode(inputs["scales"], "fp8_e4m3"), BLOCK, axis=1).astype(np.float32)
    return {"out": values * scale / np.float32(options["factor"])}


def tiled(scales: np.ndarray) -> np.ndarray:
    """Scales u8[R, C] in the order of tensor cores, flat; padded with zeros to whole tiles."""
    rows, columns = scales.shape
    padded = np.zeros(
        (-(-rows // TILE_ROWS) * TILE_ROWS, -(-columns // TILE_COLUMNS) * TILE_COLUMNS), np.uint8
    )
    padded[:rows, :columns] = scales
    group_rows = TILE_ROWS // TILE_GROUPS
    tiles = padded.reshape(
        padded.shape[0] // TILE_ROWS,
        TILE_GROUPS,
        group_rows,
        padded.shape[1] // TILE_COLUMNS,
        TILE_COLUMNS,
    )
    # tile row, tile column, row of 32, group of rows, column
    return np.ascontiguousarray(tiles.transpose(0, 3, 2, 1, 4)).reshape(-1)


def _layout_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    out = tiled(codes_of(inputs["scales"]))
    return {"tiles": Truth.exactly(out, "uint8")}


def _layout_run(inputs: Arrays, options: Options, backend: str) -> Arrays:
    return {"tiles": tiled(codes_of(inputs["scales"]))}


FACTOR: dict[str, Value] = {"factor": Number(1.0, 0)}
SCALES = Field("scale of every 16 numbers, fp8_e4m3 [R, D/16]", ("row", "block"))

QUANTIZE = Operator(
    name="nvfp4_quantize",
    about="Rows as NVFP4: an e2m1 number for each element, and an e4m3 scale for every 16. The "
    "factor is the tensor's, that which its scales are multiplied by. FBGEMM: "
    "triton_scale_nvfp4_quant.",
    inputs={"x": Field("fp32[R, D], D a multiple of 16", ("row", "column"))},
    options=FACTOR,
    outputs={
        "scales": SCALES,
        "values": Field("what each code stands for, 0 to 6: fp32[R, D]", ("row", "column")),
    },
    run_=_quantize_run,
    truth_=_quantize_truth,
)
DEQUANTIZE = Operator(
    name="nvfp4_dequantize",
    about="Numbers of packed NVFP4 rows: code * scale / factor.",
    inputs={
        "codes": Field(
            "e2m1 codes, two to a byte, even columns in the low nibble, uint8[R, D/2]",
            ("row", "byte"),
        ),
        "scales": SCALES,
    },
    options=FACTOR,
    outputs={"out": Field("fp32[R, D]", ("row", "column"))},
    run_=_dequantize_run,
    truth_=_dequantize_truth,
)
SCALE_LAYOUT = Operator(
    name="nvfp4_scale_layout",
    about="Scales in the order in which block-scaled matrix products want them: tiles of 128 rows "
    "and 4 scales, in each of which rows r, r + 32, r + 64 and r + 96 stand side by side; padding "
    "is 0.",
    inputs={"scales": SCALES},
    options={},
    outputs={"tiles": Field("bytes, flat: whole tiles", ("byte",))},
    run_=_layout_run,
    truth_=_layout_truth,
)

OPERATORS = (QUANTIZE, DEQUANTIZE, SCALE_LAYOUT)
