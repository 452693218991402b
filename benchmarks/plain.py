"""How fast would our pooling be without exactness? The same kernel with plain fp32 sums.

It has the same tasks, walk and prefetches. The C limit has one fixed width and bags of one length;
this kernel shows what the exact arithmetic alone costs.
"""

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic

from neocpu.kernels import pooling
from neocpu.kernels.pooling import task_bags, task_count
from neocpu.kernels.simd import I64, data, vector_pointer
from neocpu.kernels.simd.bags import Walk, bare, view


def _plain_rows(block: int) -> Any:
    @intrinsic
    def plain_rows(typingctx, values, index, weights, lo, hi, base, stride, column, out):
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            walk = Walk(context, builder, signature, args, block)
            sums = [walk.variable(walk.f32, 0.0) for _ in range(block // walk.lanes)]
            walk.each(lambda i, term: walk.add(sums[i], term))
            target = data(context, builder, signature, args, 8)
            for i, slot in enumerate(sums):
                at = vector_pointer(
                    builder, target, I64(i * walk.lanes), ir.VectorType(ir.FloatType(), walk.lanes)
                )
                builder.store(builder.load(slot), at, align=4)
            return context.get_dummy_value()

        i = types.int64
        return types.void(values, index, weights, i, i, i, i, i, out), codegen

    return plain_rows


_rows_128, _rows_64, _rows_16, _rows_1 = (_plain_rows(block) for block in (128, 64, 16, 1))


@numba.njit(error_model="numpy", nogil=True, parallel=True)
def plain_sum(table, base, width, offsets, rows, weights, out, column):
    """`pooling.pooled_sum` with plain fp32 sums, which depend on the order and are rounded at every
    step.
    """
    samples = out.shape[0]
    flat = out.reshape(-1)
    tasks = task_count(offsets)
    for task in prange(tasks):
        values = bare(table)
        index = bare(rows)
        scale = bare(weights)
        first, last = task_bags(offsets, task, tasks)
        for bag in range(first, last):
            k = bag // samples
            lo = offsets[bag]
            hi = offsets[bag + 1]
            d = width[k]
            c = 0
            while c < d:
                line = view(flat, (bag - k * samples) * out.shape[1] + column[k] + c, d - c)
                if d - c >= 128:
                    _rows_128(values, index, scale, lo, hi, base[k], d, c, line)
                    c += 128
                elif d - c >= 64:
                    _rows_64(values, index, scale, lo, hi, base[k], d, c, line)
                    c += 64
                elif d - c >= 16:
                    _rows_16(values, index, scale, lo, hi, base[k], d, c, line)
                    c += 16
                else:
                    _rows_1(values, index, scale, lo, hi, base[k], d, c, line)
                    c += 1


def plainly(run: Callable[[int], Any]) -> Callable[[int], Any]:
    """`run` with `plain_sum` in the place of `pooled_sum`."""

    def call(i: int) -> Any:
        exact = pooling.pooled_sum
        pooling.pooled_sum = plain_sum
        try:
            return run(i)
        finally:
            pooling.pooled_sum = exact

    return call
