"""How are the squares of fp32 numbers summed? In eight chains, exact squares in fp64, or in fp32 as
the column tree.

    square_sum    the norm of a gradient, which tells how much a lookup matters
    square_tree   the row scalars of optimizers (`docs/arithmetic.md` §4)
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neocpu.kernels.simd import F32, F64, I32, I64, data, vector_pointer

LANES = 8


@intrinsic
def square_sum(typingctx, array, at, blocks):
    """Sum in fp64 of the squares of 8 `blocks` numbers of a contiguous fp32 array, from flat
    element `at` on.

    Order: lane j adds numbers j, j + 8, ... to +0; then adjacent lanes are added, as a tree.
    """

    def codegen(context, builder, signature, args):
        base = data(context, builder, signature, args, 0)
        narrow = ir.VectorType(F32, LANES)
        wide = ir.VectorType(F64, LANES)
        # fp64, in which the square of an fp32 number is exact: only the additions round
        sums = cgutils.alloca_once_value(builder, ir.Constant(wide, [0.0] * LANES))
        with cgutils.for_range(builder, args[2]) as loop:
            offset = builder.add(args[1], builder.mul(loop.index, I64(LANES)))
            numbers = builder.load(vector_pointer(builder, base, offset, narrow), align=4)
            numbers = builder.fpext(numbers, wide)
            squares = builder.fmul(numbers, numbers)
            builder.store(builder.fadd(builder.load(sums), squares), sums)
        total = builder.load(sums)
        lanes = [builder.extract_element(total, I32(j)) for j in range(LANES)]
        while len(lanes) > 1:
            lanes = [builder.fadd(a, b) for a, b in zip(lanes[::2], lanes[1::2])]
        return lanes[0]

    return types.float64(array, types.int64, types.int64), codegen


def _pairs(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Sums of adjacent pairs of the lanes of a, then of b."""
    lanes = a.type.count
    index = ir.VectorType(I32, lanes)
    even = builder.shuffle_vector(a, b, ir.Constant(index, list(range(0, 2 * lanes, 2))))
    odd = builder.shuffle_vector(a, b, ir.Constant(index, list(range(1, 2 * lanes, 2))))
    return builder.fadd(even, odd)


def _within(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """`_pairs` that stays inside runs of four lanes, which is cheaper: those of a and of b in turn,
    run by run.
    """
    lanes = a.type.count
    even = [at + i for at in range(0, lanes, 4) for i in (0, 2, lanes, lanes + 2)]
    index = ir.VectorType(I32, lanes)
    left = builder.shuffle_vector(a, b, ir.Constant(index, even))
    return builder.fadd(
        left, builder.shuffle_vector(a, b, ir.Constant(index, [i + 1 for i in even]))
    )


def _halves(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """Sum of the two halves of a vector."""
    half = a.type.count // 2
    index = ir.VectorType(I32, half)
    low = builder.shuffle_vector(a, a, ir.Constant(index, list(range(half))))
    return builder.fadd(
        low, builder.shuffle_vector(a, a, ir.Constant(index, list(range(half, 2 * half))))
    )


def square_tree(block: int) -> Any:
    """Intrinsic: sum of squares of `block` columns as a binary tree, adjacent pairs first.

    It loads eight lanes at a time: that is how the row was stored, and a wider load would wait
    until the row is in the cache.
    """
    vector = ir.VectorType(F32, 8)

    def codegen(context, builder, signature, args):
        source = data(context, builder, signature, args, 0)
        level = []
        for i in range(0, block, 8):
            x = builder.load(
                vector_pointer(builder, source, builder.add(args[1], I64(i)), vector), align=4
            )
            level.append(builder.fmul(x, x))
        # eights a, b, c, d become [a03 b03 c03 d03 | a47 b47 c47 d47]
        for _ in range(2 if block >= 32 else 0):
            level = [_within(builder, a, b) for a, b in zip(level[::2], level[1::2])]
        if block >= 32:
            level = [_halves(builder, x) for x in level]
        # fewer columns than 32: so few shuffles that their kind does not matter
        while len(level) > 1:
            level = [_pairs(builder, a, b) for a, b in zip(level[::2], level[1::2])]
        x = level[0]
        while x.type.count > 1:
            half = x.type.count // 2
            index = ir.VectorType(I32, half)
            even = builder.shuffle_vector(x, x, ir.Constant(index, list(range(0, 2 * half, 2))))
            odd = builder.shuffle_vector(x, x, ir.Constant(index, list(range(1, 2 * half, 2))))
            x = builder.fadd(even, odd)
        return builder.extract_element(x, I32(0))

    @intrinsic
    def square_sum_tree(typingctx, g, offset):
        """Sum of squares of g[offset : offset + block] (f32) as a tree, adjacent pairs first."""
        return types.float32(g, types.int64), codegen

    return square_sum_tree


square_tree_64 = square_tree(64)
square_tree_16 = square_tree(16)
