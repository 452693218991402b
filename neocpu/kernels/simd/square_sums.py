"""How long is a vector of fp32 numbers? Eight of their squares at a time, exact in fp64."""

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
