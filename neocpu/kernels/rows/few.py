"""How are bags of one row or two pooled? Without an addition or by one, which rounds once by
itself; into a large output, past the caches.

A store into the cache first reads the line that it writes. Where bags are single rows, this is as
much traffic as the rows are.
"""

import numpy as np

from neocpu.kernels.compile.jit import inlined
from neocpu.kernels.rows.pooling import fetch_ahead, round_bag
from neocpu.kernels.simd.decoders import rows_in_eights, whole_rows

# Numbers of an output, as many as no cache holds: the last ones are gone before they are read.
LARGE = 8 << 20


@inlined
def goes_past(out, place, pitch, width):
    """Are these lines of `out` better written past the caches? Then they are whole cache lines."""
    bits = out.ctypes.data | 4 * place | 4 * pitch | 4 * width
    return out.size >= LARGE and bits % 64 == 0


@inlined
def is_few(index, bag):
    """Is it a bag of one row or two, none of them pruned?"""
    count = bag.hi - bag.lo
    return 0 < count < 3 and min(index[bag.lo], index[bag.hi - 1]) >= 0


@inlined
def weight_at(weights, j):
    """The weight of lookup j; a product with 1 is exact."""
    return weights[j] if weights.size else np.float32(1.0)


def pooling_few(add_rows):
    """`pool_bag`, by an intrinsic that adds one row or two."""

    @inlined
    def pool_bag(terms, bag, past, out, acc):
        """`round_bag`; bags of one row or two, the commonest, are done in the caller's loop.

        past: `goes_past` of the line `out`.
        """
        values, index, weights = terms
        lo = bag.lo
        if not is_few(index, bag):
            round_bag(terms, bag, out, acc)
            return
        fetch_ahead(terms, bag, lo)
        row = bag.base + index[lo] * bag.stride
        weight = weight_at(weights, lo)
        if bag.hi - lo == 1:
            add_rows(values, (row,), bag.stride, bag.width, (weight,), past, out)
            return
        fetch_ahead(terms, bag, lo + 1)
        rows = (row, bag.base + index[lo + 1] * bag.stride)
        both = (weight, weight_at(weights, lo + 1))
        add_rows(values, rows, bag.stride, bag.width, both, past, out)

    return pool_bag


pool_bag = pooling_few(whole_rows)
pool_bag_in_eights = pooling_few(rows_in_eights)
