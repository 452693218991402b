"""How does a Numba kernel speak of vectors, fused multiply-add and prefetch? Through the few
intrinsics of this file.

LLVM turns each into the target's own instructions (AVX-512, AVX2 + FMA, NEON); the bits of the
result never depend on which: a vector operation is the same IEEE-754 operation in every lane. Only
files of this folder touch llvmlite.
"""

from collections.abc import Sequence

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import Signature
from numba.extending import intrinsic

F32 = ir.FloatType()
F64 = ir.DoubleType()
I32 = ir.IntType(32)
I64 = ir.IntType(64)
I1 = ir.IntType(1)
I8 = ir.IntType(8)


def call(builder: ir.IRBuilder, name: str, result: ir.Type, *args: ir.Value) -> ir.Value:
    """Call the LLVM intrinsic `name`."""
    signature = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), args)


def data(
    context: BaseContext,
    builder: ir.IRBuilder,
    signature: Signature,
    args: Sequence[ir.Value],
    position: int,
) -> ir.Value:
    """Pointer to the first element of the array argument at `position`."""
    return context.make_array(signature.args[position])(context, builder, args[position]).data


def fields(
    context: BaseContext,
    builder: ir.IRBuilder,
    signature: Signature,
    args: Sequence[ir.Value],
    position: int,
) -> list[ir.Value]:
    """Fields of the record argument at `position`: numbers, and pointers to the first elements of
    arrays.
    """
    kinds = signature.args[position].types
    values = cgutils.unpack_tuple(builder, args[position])
    return [
        context.make_array(kind)(context, builder, value).data
        if isinstance(kind, types.Array)
        else value
        for kind, value in zip(kinds, values)
    ]


def start_and_step(
    context: BaseContext,
    builder: ir.IRBuilder,
    signature: Signature,
    args: Sequence[ir.Value],
    position: int,
) -> tuple[ir.Value, ir.Value]:
    """(pointer to the first element, step) of a matrix in the array argument at `position`, whose
    `Position` is the argument after it.
    """
    at, step = fields(context, builder, signature, args, position + 1)
    return builder.gep(data(context, builder, signature, args, position), [at]), step


def vector_pointer(
    builder: ir.IRBuilder, base: ir.Value, offset: ir.Value, vector: ir.VectorType
) -> ir.Value:
    """`base + offset` elements, as a pointer to `vector`."""
    return builder.bitcast(builder.gep(base, [offset]), vector.as_pointer())


def splat(builder: ir.IRBuilder, scalar: ir.Value, lanes: int) -> ir.Value:
    """Vector of `lanes` copies of `scalar`."""
    vector = ir.VectorType(scalar.type, lanes)
    # one insertion and a shuffle with zeros: the form that LLVM knows as a broadcast
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    zeros = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)


@intrinsic
def fma(typingctx, x, y, z):
    """x*y + z rounded once, in the type of the operands (float32 or float64)."""

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    # None: Numba then refuses the call, instead of casting an operand and rounding twice
    if x == y == z and x in (types.float32, types.float64):
        return x(x, x, x), codegen
    return None


def prefetch_line(
    builder: ir.IRBuilder, pointer: ir.Value, locality: int, write: bool = False
) -> None:
    """Ask for the cache line behind `pointer`: locality 3 into the first-level cache, 2 into the
    second-level one.
    """
    line = builder.bitcast(pointer, I8.as_pointer())
    call(builder, "llvm.prefetch.p0", ir.VoidType(), line, I32(int(write)), I32(locality), I32(1))


def _prefetch(locality, write=False):
    def codegen(context, builder, signature, args):
        pointer = builder.gep(data(context, builder, signature, args, 0), [args[1]])
        prefetch_line(builder, pointer, locality, write)
        return context.get_dummy_value()

    return codegen


@intrinsic
def prefetch(typingctx, array, index):
    """Ask for the cache line that holds flat element `index` of a contiguous array, into the
    first-level cache.
    """
    return types.void(array, types.int64), _prefetch(3)


@intrinsic
def prefetch_far(typingctx, array, index):
    """Ask for the cache line that holds flat element `index` of a contiguous array, into the
    second-level cache.
    """
    return types.void(array, types.int64), _prefetch(2)


@intrinsic
def prefetch_write(typingctx, array, index):
    """Ask for the cache line that holds flat element `index` of a contiguous array, in order to
    write it.
    """
    return types.void(array, types.int64), _prefetch(3, True)


@intrinsic
def take_next(typingctx, counter):
    """counter[0] (i64), which becomes one more, as a step that no other thread comes between."""

    def codegen(context, builder, signature, args):
        # monotonic: threads only share out numbers by it; the arrays that they write are told apart
        # by those numbers, so no other memory has to be ordered
        return builder.atomic_rmw(
            "add", data(context, builder, signature, args, 0), I64(1), "monotonic"
        )

    return types.int64(counter), codegen
