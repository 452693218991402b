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

from neocpu.kernels.operands import Bag
from neocpu.kernels.rows import lookup
from neocpu.kernels.rows.pooling import bare_terms, entry_of, task_bags, task_count
from neocpu.kernels.simd import I64, data, vector_pointer
from neocpu.kernels.simd.bags import Walk, view


def _plain_rows(block: int) -> Any:
    @intrinsic
    def plain_rows(typingctx, terms, bag, column, out):
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            walk = Walk(context, builder, signature, args, block)
            sums = [walk.variable(walk.f32, 0.0) for _ in range(block // walk.lanes)]
            walk.each(lambda i, term: walk.add(sums[i], term))
            target = data(context, builder, signature, args, 3)
            for i, slot in enumerate(sums):
                at = vector_pointer(
                    builder, target, I64(i * walk.lanes), ir.VectorType(ir.FloatType(), walk.lanes)
                )
                builder.store(builder.load(slot), at, align=4)
            return context.get_dummy_value()

        return types.void(terms, bag, types.int64, out), codegen

    return plain_rows


_rows_128, _rows_64, _rows_16, _rows_1 = (_plain_rows(block) for block in (128, 64, 16, 1))


@numba.njit(error_model="numpy", nogil=True, parallel=True)
def plain_sum(table, entries, bags, mean, lines, out):
    """`lookup.pooled_rows` with plain fp32 sums, rounded at every addition; without MEAN."""
    base, width, stride, first = entries
    offsets = bags.offsets
    tasks = task_count(offsets)
    for task in prange(tasks):
        terms = bare_terms(table, bags)
        begin, end = task_bags(offsets, task, tasks)
        k = entry_of(first, begin)
        for b in range(begin, end):
            while first[k + 1] <= b:
                k += 1
            d = width[k]
            bag = Bag(offsets[b], offsets[b + 1], base[k], stride[k], d)
            place = lines.place[k] + (b - first[k]) * lines.pitch[k]
            c = 0
            while c < d:
                line = view(out, place + c, d - c)
                if d - c >= 128:
                    _rows_128(terms, bag, c, line)
                    c += 128
                elif d - c >= 64:
                    _rows_64(terms, bag, c, line)
                    c += 64
                elif d - c >= 16:
                    _rows_16(terms, bag, c, line)
                    c += 16
                else:
                    _rows_1(terms, bag, c, line)
                    c += 1


def plainly(run: Callable[[int], Any]) -> Callable[[int], Any]:
    """`run` with `plain_sum` in the place of `pooled_rows`."""

    def call(i: int) -> Any:
        exact = lookup.pooled_rows
        lookup.pooled_rows = plain_sum
        try:
            return run(i)
        finally:
            lookup.pooled_rows = exact

    return call
