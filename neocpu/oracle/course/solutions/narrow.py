"""Rows of bytes, and rounding that is right on average."""

import numpy as np


def quantize(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Store each row as bytes with a scale and a bias of its own.

    x : f32[R, D], finite.
    Returns (codes u8[R, D], scale f32[R], bias f32[R]): bias is the row's least number, scale a
    255th of its range, and code*scale + bias is as near to x as a code can bring it. A row of equal
    numbers has the scale 0 and codes 0.
    """
    bias = x.min(axis=1)
    span = x.max(axis=1) - bias
    scale = span / np.float32(255)
    inverse = np.where(span > 0, 255 / np.where(span > 0, span, 1), 0)
    codes = np.rint((x - bias[:, None]) * inverse[:, None])
    return codes.astype(np.uint8), scale, bias


def round_to_bf16(x: np.ndarray, random: np.ndarray) -> np.ndarray:
    """Round to bf16 stochastically: up or down, so that the mean over all random bits is x.

    x : f32[R, D], finite. bf16 is the upper 16 bits of an fp32 number.
    random : uint16[R, D], every value as likely as every other.
    Returns the codes uint16[R, D] of one of the two bf16 numbers next to each x (itself, if it is
    one): the one farther from 0 with a chance in proportion to how far x is from the other.
    """
    bits = x.view(np.uint32)
    return ((bits + random.astype(np.uint32)) >> np.uint32(16)).astype(np.uint16)
