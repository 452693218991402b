"""How is a row found in the cache?

The set is a remainder, computed without a division. One vector comparison of the set's 32 tag bytes
then gives a mask of the ways that may hold the row, bit w for way w.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from neocpu.kernels.simd import I1, I8, I32, I64, call, data, splat, vector_pointer

# lines of a set; as many bytes as one AVX2 vector has, and as many bits as the mask
WAYS = 32


@intrinsic
def matching(typingctx, array, first, byte):
    """Mask i64 of the ways w with array[first + w] == byte, for a contiguous u8 array."""

    def codegen(context, builder, signature, args):
        vector = ir.VectorType(I8, WAYS)
        pointer = vector_pointer(
            builder, data(context, builder, signature, args, 0), args[1], vector
        )
        # 32 bytes in one load: a set's prints fill half a cache line
        tags = builder.load(pointer, align=1)
        matches = builder.icmp_unsigned("==", tags, splat(builder, args[2], WAYS))
        return builder.zext(builder.bitcast(matches, I32), I64)

    if byte == types.uint8:
        return types.int64(array, types.int64, byte), codegen
    return None


@intrinsic
def lowest(typingctx, mask):
    """Number of the lowest bit that is set in an i64 other than 0."""

    def codegen(context, builder, signature, args):
        # I1(1): 0 is not asked for, so LLVM needs no branch for it
        return call(builder, "llvm.cttz.i64", I64, args[0], I1(1))

    if mask == types.int64:
        return types.int64(mask), codegen
    return None


@intrinsic
def remainder(typingctx, x, divisor, inverse):
    """x % divisor of u64, with inverse = (2^64 - 1) // divisor.

    The high half of x * inverse is the quotient or one less, so one subtraction corrects it.
    """

    def codegen(context, builder, signature, args):
        # a widening multiplication takes a few cycles, a division of 64 bits several times as many
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[2], wide))
        quotient = builder.trunc(builder.lshr(product, wide(64)), I64)
        rest = builder.sub(args[0], builder.mul(quotient, args[1]))
        return builder.select(
            builder.icmp_unsigned("<", rest, args[1]), rest, builder.sub(rest, args[1])
        )

    if x == divisor == inverse == types.uint64:
        return types.uint64(x, x, x), codegen
    return None
