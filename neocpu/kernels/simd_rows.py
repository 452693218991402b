"""How is a bag of rows summed without leaving the registers? Blocks of columns, fp64 accumulators, exponents on the side.

`sum_rows_N` walks the rows of one bag for N columns. Each fp32 term is widened and added in fp64; beside it an
integer maximum and minimum of the bit patterns keeps the range of exponents, from which the caller knows whether the
fp64 sum is exact (`docs/arithmetic.md` §3). Rows of coming lookups are prefetched in two stages: from far into the
second-level cache, whose queue is long, then into the first (one stage alone keeps the first level's few fill buffers
full). N is one of `BLOCKS`; a row of any width is a run of such blocks, so no width is compiled in.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from neocpu.kernels._jit import inlined
from neocpu.kernels.simd import F32, F64, I8, I32, I64, call, data, splat, vector_pointer

BLOCKS = (128, 64, 16, 4, 1)
FAR, NEAR = 64, 4  # lookups ahead at which a row is asked into the second-level cache, and into the first


def _lanes(block: int) -> int:
    return min(block, 16)


def _ask(builder: Any, row: Any, block: int, locality: int) -> None:
    """Prefetch the cache lines of `block` columns."""
    for c in range(0, block, 16):
        line = builder.bitcast(builder.gep(row, [I64(c)]), I8.as_pointer())
        call(builder, "llvm.prefetch.p0", ir.VoidType(), line, I32(0), I32(locality), I32(1))


def _sum_rows(block: int) -> Any:
    lanes = _lanes(block)
    v32, v64, vint = ir.VectorType(F32, lanes), ir.VectorType(F64, lanes), ir.VectorType(I32, lanes)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, index, weights, out = (data(context, builder, signature, args, p) for p in (0, 1, 2, 8))
        lo, hi, base, stride, column = args[3:8]
        last = builder.sub(context.make_array(signature.args[1])(context, builder, args[1]).nitems, I64(1))
        weighted = builder.icmp_signed(
            ">", context.make_array(signature.args[2])(context, builder, args[2]).nitems, I64(0)
        )
        origin = builder.add(base, column)
        high, low = cgutils.alloca_once(builder, vint), cgutils.alloca_once(builder, vint)
        builder.store(ir.Constant(vint, [0] * lanes), high)
        builder.store(ir.Constant(vint, [0xFFFFFFFF] * lanes), low)
        sums = [cgutils.alloca_once(builder, v64) for _ in range(block // lanes)]
        for s in sums:
            builder.store(ir.Constant(v64, [0.0] * lanes), s)

        def row(j: Any) -> Any:
            number = builder.load(builder.gep(index, [j]))
            return number, builder.gep(values, [builder.add(origin, builder.mul(number, stride))])

        def walk(has_weights: bool) -> None:
            with cgutils.for_range_slice(builder, lo, hi, I64(1)) as (j, _):
                for distance, locality in ((FAR, 2), (NEAR, 3)):
                    far = builder.add(j, I64(distance))
                    _, ahead = row(builder.select(builder.icmp_signed("<", far, last), far, last))
                    _ask(builder, ahead, block, locality)
                number, here = row(j)
                with builder.if_then(builder.icmp_signed(">=", number, I64(0)), likely=True):
                    if has_weights:
                        scale = splat(builder, builder.load(builder.gep(weights, [j])), lanes)
                    for i, s in enumerate(sums):
                        term = builder.load(vector_pointer(builder, here, I64(lanes * i), v32), align=4)
                        if has_weights:
                            term = builder.fmul(term, scale)
                        bits = builder.bitcast(term, vint)
                        bits = builder.add(bits, bits)  # the sign falls off; the exponent is the top byte
                        builder.store(call(builder, f"llvm.umax.v{lanes}i32", vint, builder.load(high), bits), high)
                        bits = builder.sub(bits, ir.Constant(vint, [1] * lanes))  # a zero becomes the largest
                        builder.store(call(builder, f"llvm.umin.v{lanes}i32", vint, builder.load(low), bits), low)
                        builder.store(builder.fadd(builder.load(s), builder.fpext(term, v64)), s)

        with builder.if_else(weighted) as (then, otherwise):
            with then:
                walk(True)
            with otherwise:
                walk(False)
        for i, s in enumerate(sums):
            builder.store(builder.load(s), vector_pointer(builder, out, I64(lanes * i), v64), align=8)
        if lanes == 1:
            most, least = (builder.extract_element(builder.load(p), I32(0)) for p in (high, low))
        else:
            most = call(builder, f"llvm.vector.reduce.umax.v{lanes}i32", I32, builder.load(high))
            least = call(builder, f"llvm.vector.reduce.umin.v{lanes}i32", I32, builder.load(low))
        return builder.or_(builder.shl(builder.zext(most, I64), I64(32)), builder.zext(least, I64))

    return codegen


def _signature(values: Any, index: Any, weights: Any, out: Any) -> Any:
    i = types.int64
    return i(values, index, weights, i, i, i, i, i, out)


@intrinsic
def sum_rows_64(typingctx, values, index, weights, lo, hi, base, stride, column, out):
    """out[:64] = fp64 sums over j in [lo, hi) of values[base + index[j]*stride + column + c] (times
    weights[j]; index < 0 is skipped).

    Returns (largest bits << 32 | smallest bits), bits without sign, shifted left by one; zeros count as largest in the minimum.
    """
    return _signature(values, index, weights, out), _sum_rows(64)


@intrinsic
def sum_rows_128(typingctx, values, index, weights, lo, hi, base, stride, column, out):
    """`sum_rows_64` for 128 columns."""
    return _signature(values, index, weights, out), _sum_rows(128)


@intrinsic
def sum_rows_16(typingctx, values, index, weights, lo, hi, base, stride, column, out):
    """`sum_rows_64` for 16 columns."""
    return _signature(values, index, weights, out), _sum_rows(16)


@intrinsic
def sum_rows_4(typingctx, values, index, weights, lo, hi, base, stride, column, out):
    """`sum_rows_64` for 4 columns."""
    return _signature(values, index, weights, out), _sum_rows(4)


@intrinsic
def sum_rows_1(typingctx, values, index, weights, lo, hi, base, stride, column, out):
    """`sum_rows_64` for one column."""
    return _signature(values, index, weights, out), _sum_rows(1)


def _pairs(builder: Any, a: Any, b: Any) -> Any:
    """Sums of adjacent pairs of the lanes of a, then of b."""
    lanes = a.type.count
    index = ir.VectorType(I32, lanes)
    even = builder.shuffle_vector(a, b, ir.Constant(index, list(range(0, 2 * lanes, 2))))
    odd = builder.shuffle_vector(a, b, ir.Constant(index, list(range(1, 2 * lanes, 2))))
    return builder.fadd(even, odd)


def _square_tree(block: int) -> Any:
    v32 = ir.VectorType(F32, 16)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = data(context, builder, signature, args, 0)
        level = []
        for i in range(0, block, 16):
            x = builder.load(vector_pointer(builder, source, builder.add(args[1], I64(i)), v32), align=4)
            level.append(builder.fmul(x, x))
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

    return codegen


@intrinsic
def square_tree_64(typingctx, g, offset):
    """Sum of squares of g[offset : offset + 64] (f32) as a binary tree, adjacent pairs first."""
    return types.float32(g, types.int64), _square_tree(64)


@intrinsic
def square_tree_16(typingctx, g, offset):
    """Sum of squares of g[offset : offset + 16] (f32) as a binary tree, adjacent pairs first."""
    return types.float32(g, types.int64), _square_tree(16)


@inlined
def bare(array):
    """All of a 1-D array as a `view`: a loop that hands bare arrays to its functions counts no references."""
    return view(array, 0, array.size)


@intrinsic
def view(typingctx, array, start, size):
    """array[start : start + size] of a contiguous 1-D array, without a reference count.

    A Numba slice counts references atomically, which costs more than a row's arithmetic and serialises threads. The
    view must not outlive the array.
    """

    def codegen(context, builder, signature, args):
        kind = signature.return_type
        source = context.make_array(signature.args[0])(context, builder, args[0])
        found = context.make_array(kind)(context, builder)
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
        populate_array(
            found,
            data=builder.gep(source.data, [args[1]]),
            shape=[args[2]],
            strides=[itemsize],
            itemsize=itemsize,
            meminfo=None,
        )
        return found._getvalue()

    return types.Array(array.dtype, 1, "C")(array, types.int64, types.int64), codegen
