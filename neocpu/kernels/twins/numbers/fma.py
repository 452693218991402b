"""What is a fused multiply-add in fp32, in NumPy, which has none? The exact fp64 product and one
careful sum.

The product of two fp32 numbers is exact in fp64. The fp64 sum is rounded to odd (if it is inexact
and its last bit is even, step towards the exact value), so that the final rounding to fp32 sees
what was lost: x*y + z rounded once (Boldo, Melquiond 2008, "Emulation of FMA and correctly rounded
sums: proved algorithms using rounding to odd").
"""

import numpy as np


def fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x*y + z rounded once to fp32; x, y, z f32 arrays that broadcast."""
    with np.errstate(all="ignore"):
        product = np.multiply(x, y, dtype=np.float64)
        wide = np.asarray(z, np.float64)
        total = product + wide
        # Knuth's TwoSum: `lost` is the exact error of the fp64 sum
        back = total - product
        lost = (product - (total - back)) + (wide - back)
        bits = np.atleast_1d(total).view(np.int64).reshape(total.shape)
        step = np.where((lost > 0) == (total > 0), 1, -1)
        odd = np.where(np.isfinite(total) & (lost != 0) & (bits & 1 == 0), bits + step, bits)
        return np.atleast_1d(odd).view(np.float64).reshape(total.shape).astype(np.float32)
