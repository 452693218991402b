"""Which rows break NVFP4 kernels? Cases of its three operators."""

from collections.abc import Iterator

import numpy as np

from neocpu.oracle.adapters import coded
from neocpu.oracle.cases.draw import Draw
from neocpu.oracle.operator import Case

FACTOR = 448.0 * 6.0 / 7.5  # as for a tensor whose largest magnitude is 7.5; no power of two


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; D is a multiple of 16, whatever the others have."""
    yield from _quantize(seed)
    yield from _dequantize(seed)
    for rows, columns in ((128, 4), (200, 9), (1, 1)):
        scales = Draw(seed, f"nvfp4-layout-{rows}").words(rows * columns).astype(np.uint8) % 127
        yield Case(
            f"nvfp4-scale-layout-{rows}x{columns}",
            "nvfp4_scale_layout",
            {"scales": coded(scales, "fp8_e4m3").reshape(rows, columns)},
            {},
            f"{rows} rows of {columns} scales: tiles of 128 by 4, the last ones padded",
        )


def _quantize(seed: int) -> Iterator[Case]:
    draw = Draw(seed, "nvfp4")
    ordinary = draw.floats((64, 128), -6, 2)
    for name, factor in (("", 1.0), ("-factor", FACTOR)):
        yield Case(
            f"nvfp4-quantize{name}",
            "nvfp4_quantize",
            {"x": ordinary},
            {"factor": factor},
            f"ordinary numbers, factor {factor:g}: scales per 16, codes to nearest even",
        )
    # a largest magnitude of 6 has scale 1: every tie of e2m1, and its neighbours
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
    around = np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, ties * 2)])
    row = np.zeros((4, 16), np.float32)
    row[:, 0] = 6
    row.reshape(-1)[np.flatnonzero(row.reshape(-1) == 0)[: 2 * 21]] = np.append(around, -around)
    yield Case(
        "nvfp4-quantize-ties",
        "nvfp4_quantize",
        {"x": row},
        {},
        "halfway between two codes, and an ulp beside: even codes win, of either sign",
    )
    zeros = draw.floats((3, 64), -2, 1)
    zeros[0] = 0
    zeros[1, 16:32] = 0
    zeros[2, 5] = -0.0
    yield Case(
        "nvfp4-quantize-zeros",
        "nvfp4_quantize",
        {"x": zeros},
        {"factor": FACTOR},
        "blocks of zeros are zeros, not 0/0",
    )
    wild = draw.floats((16, 64), -40, 30)
    yield Case(
        "nvfp4-quantize-range",
        "nvfp4_quantize",
        {"x": wild},
        {},
        "scales beyond 448 saturate, tiny ones are subnormal or 0: codes saturate, too",
    )


def _dequantize(seed: int) -> Iterator[Case]:
    all_codes = np.arange(256, dtype=np.uint8).reshape(8, 32)
    draw = Draw(seed, "nvfp4-codes")
    scales = coded((draw.words(32) % 127).astype(np.uint8), "fp8_e4m3").reshape(8, 4)
    for name, factor in (("", 1.0), ("-factor", FACTOR)):
        yield Case(
            f"nvfp4-dequantize{name}",
            "nvfp4_dequantize",
            {"codes": all_codes, "scales": scales},
            {"factor": factor},
            "every byte of two codes: even columns in the low nibble, negative zeros too",
        )
