"""How is a number rounded to bf16 and stays an fp32 number? Something is added to its 32 bits, and
the lower 16 go.

LLVM makes vectors of the loops that call these.
"""

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from neocpu.kernels.simd import F32, I32


def _i32(value: int) -> ir.Constant:
    return ir.Constant(I32, value)


def _bfloat_rounding(added: Callable[[ir.IRBuilder, ir.Value], ir.Value]):
    """Codegen of a number whose lower 16 bits go, after something was added to all 32; of NaN it
    gives the quiet one, with its sign.
    """

    def codegen(context, b, signature, args):
        bits = b.bitcast(args[0], I32)
        upper = b.and_(b.add(bits, added(b, bits)), _i32(0xFFFF0000))
        quiet = b.or_(b.and_(bits, _i32(0x80000000)), _i32(0x7FC00000))
        nan = b.icmp_unsigned(">", b.and_(bits, _i32(0x7FFFFFFF)), _i32(0x7F800000))
        return b.bitcast(b.select(nan, quiet, upper), F32)

    return codegen


@intrinsic
def nearest_bfloat(typingctx, x):
    """fp32 number of the bf16 nearest to fp32 x, ties to even."""

    def added(b, bits):
        return b.add(_i32(0x7FFF), b.and_(b.lshr(bits, _i32(16)), _i32(1)))

    return types.float32(types.float32), _bfloat_rounding(added)


@intrinsic
def half_up_bfloat(typingctx, x):
    """fp32 number of the bf16 nearest to fp32 x, ties to the larger magnitude."""
    return types.float32(types.float32), _bfloat_rounding(lambda b, bits: _i32(0x8000))


@intrinsic
def truncated_bfloat(typingctx, x):
    """fp32 number of the upper 16 bits of fp32 x."""
    return types.float32(types.float32), _bfloat_rounding(lambda b, bits: _i32(0))


@intrinsic
def as_float(typingctx, bits):
    """fp32 number of int32 bits."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], F32)

    return types.float32(types.int32), codegen
