"""Is the model of NVFP4 that of its definition, and do other right kernels pass?"""

import numpy as np
import pytest

from neocpu.oracle.adapters import codes_of
from neocpu.oracle.checking import check, run
from neocpu.oracle.ops.nvfp4 import E2M1_VALUES, tiled, unpacked
from neocpu.oracle.truth.formats import decode
from tests.oracle_cases import all_cases

OPS = ["nvfp4_quantize", "nvfp4_dequantize", "nvfp4_scale_layout"]
CASES = {case.name: case for case in all_cases(OPS)}
ml_dtypes = pytest.importorskip("ml_dtypes")


def another_kernel(x: np.ndarray, factor: float) -> dict[str, np.ndarray]:
    """Reciprocals and products instead of quotients; casts by another library."""
    blocks = x.reshape(len(x), -1, 16)
    most = np.abs(blocks).max(-1)
    sixth = np.float32(1) / np.float32(6)
    wide = np.minimum(most * (sixth * np.float32(factor)), np.float32(448))
    scale = wide.astype(ml_dtypes.float8_e4m3fn)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        units = blocks * (np.float32(factor) / scale.astype(np.float32))[..., None]
        units = np.where(scale.astype(np.float32)[..., None] > 0, units, 0)
        values = units.astype(np.float32).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    return {"scales": scale, "values": values.reshape(x.shape)}


@pytest.mark.parametrize("name", [name for name in CASES if "-quantize" in name])
def test_a_kernel_of_other_operations_is_right(name: str) -> None:
    case = CASES[name]
    x = case.inputs["x"]
    factor = float(case.options.get("factor", 1.0))
    answer = another_kernel(x, factor)
    assert check(case.op, case.inputs, answer, case.options), name
    wrong = {"values": answer["values"] * -1, "scales": answer["scales"]}
    assert not check(case.op, case.inputs, wrong, case.options)


def test_ties_go_to_even_codes() -> None:
    case = CASES["nvfp4-quantize-ties"]
    values = run(case.op, case.inputs, case.options)["values"].reshape(-1)
    x = case.inputs["x"].reshape(-1)
    expected = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}
    for tie, value in expected.items():
        assert (values[x == tie] == value).all() and (values[x == -tie] == -value).all()
    half_up = run(case.op, case.inputs, case.options)
    half_up["values"] = half_up["values"].copy()
    half_up["values"].reshape(-1)[x == 2.5] = 3.0
    assert not check(case.op, case.inputs, half_up, case.options)


def test_dequantize_multiplies_codes_scales_and_the_factor() -> None:
    case = CASES["nvfp4-dequantize-factor"]
    out = run(case.op, case.inputs, case.options)["out"]
    codes = case.inputs["codes"]
    scale = decode(case.inputs["scales"], "fp8_e4m3")
    row, column = 5, 21
    nibble = int(codes[row, column // 2] >> 4)
    value = (-1) ** (nibble >> 3) * E2M1_VALUES[nibble & 7]
    expected = value * scale[row, column // 16] / float(case.options["factor"])
    assert out[row, column] == pytest.approx(expected, rel=1e-6)
    swapped = {**case.inputs, "codes": codes >> 4 | codes << 4}
    wrong = run(case.op, swapped, case.options)
    assert not check(case.op, case.inputs, wrong, case.options)
    assert unpacked(np.array([[0x2F]], np.uint8)).tolist() == [[-6.0, 1.0]]


def test_tiles_put_rows_32_apart_side_by_side() -> None:
    scales = np.arange(200 * 9).reshape(200, 9).astype(np.uint16)
    low = tiled((scales & 255).astype(np.uint8)).astype(int)
    high = tiled((scales >> 8).astype(np.uint8)).astype(int)
    where = low | high << 8
    assert where.size == 256 * 12
    # the first sixteen bytes: rows 0, 32, 64, 96, four scales of each
    assert where[:16].tolist() == [r * 9 + c for r in (0, 32, 64, 96) for c in range(4)]
    assert where[512:516].tolist() == [4, 5, 6, 7]
    for row, column in ((131, 8), (199, 3), (77, 6)):
        tile = (row // 128) * 3 + column // 4
        place = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
        assert where[place] == row * 9 + column
    case = CASES["nvfp4-scale-layout-200x9"]
    row_major = codes_of(case.inputs["scales"]).reshape(-1)
    padded = np.pad(row_major, (0, where.size - row_major.size))
    assert not check(case.op, case.inputs, padded, case.options)
