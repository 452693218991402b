"""How is a bag of one row looked up? The row is copied; into a large output, past the caches.

A store into the cache first reads the line that it writes. Where bags are single rows, this is as
much traffic as the rows are.
"""

import numpy as np

from neocpu.kernels.compile.jit import inlined
from neocpu.kernels.rows.pooling import round_bag
from neocpu.kernels.simd.ahead import NEAR, far_of
from neocpu.kernels.simd.decoders import lone_row

# Numbers of an output, as many as no cache holds: the last ones are gone before they are read.
LARGE = 8 << 20


@inlined
def goes_past(out, place, pitch, width):
    """Are these lines of `out` better written past the caches? Then they are whole cache lines."""
    bits = out.ctypes.data | 4 * place | 4 * pitch | 4 * width
    return out.size >= LARGE and bits % 64 == 0


@inlined
def pool_or_copy(terms, bag, past, out, acc):
    """`round_bag`; the bag of one row, the commonest, is copied, times its weight.

    past: `goes_past` of the line `out`.
    """
    values, index, weights = terms
    lo = bag.lo
    if bag.hi - lo != 1 or index[lo] < 0:
        round_bag(terms, bag, out, acc)
        return
    last = index.size - 1
    rows = (
        bag.base + index[lo] * bag.stride,
        bag.base + index[min(lo + NEAR, last)] * bag.stride,
        bag.base + index[min(lo + far_of(4 * bag.width), last)] * bag.stride,
    )
    # a product with 1 is exact
    weight = weights[lo] if weights.size else np.float32(1.0)
    lone_row(values, rows, bag.stride, bag.width, weight, past, out)
