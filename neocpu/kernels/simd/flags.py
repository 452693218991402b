"""Has this thread rounded?

x86 has a sticky flag that every inexact operation sets, so it tells at no cost whether plain fp64
sums were exact. Reading the flag waits for all earlier arithmetic, some hundred cycles, so it is
read once for a group of bags. On other processors `tells` is False, and the range of exponents
decides whether a sum is exact (`simd/bags.py`).

The product of a weight and a row is rounded by definition and must not set the flag. AVX-512 has
multiplications that leave it as it is; without them the flag is not used for weighted sums.
"""

import platform

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neocpu.kernels.compile.jit import inlined
from neocpu.kernels.simd import F32, I1, I8, I32, call
from neocpu.kernels.simd.decoders import ROWS, format_of
from neocpu.kernels.simd.tiles import LANES

X86 = platform.machine() in ("x86_64", "AMD64")
# Are there multiplications that leave the flag as it is? AVX-512 has them.
QUIET = X86 and LANES == 16
# the precision flag PE of MXCSR
INEXACT = 0x20
# operand of an AVX-512 instruction: round to nearest even and set no flag, whatever MXCSR says
_NEAREST_QUIETLY = 8


def quiet_product(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """fl(x * y) of two vectors of up to 16 floats without setting the flag; only if `QUIET`."""
    lanes = x.type.count
    wide = ir.VectorType(F32, 16)
    undefined = ir.Constant(x.type, ir.Undefined)
    mask = ir.VectorType(I32, 16)
    if lanes < 16:
        repeat = ir.Constant(mask, [i % lanes for i in range(16)])
        x, y = (builder.shuffle_vector(v, undefined, repeat) for v in (x, y))
    product = call(builder, "llvm.x86.avx512.mul.ps.512", wide, x, y, I32(_NEAREST_QUIETLY))
    if lanes == 16:
        return product
    first = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))
    return builder.shuffle_vector(product, ir.Constant(wide, ir.Undefined), first)


@inlined
def may_ask(values, weights):
    """Does `rounded` tell whether sums of rows of this format, maybe weighted, are exact?"""
    return tells(values) and (QUIET or weights.size == 0)


@intrinsic
def tells(typingctx, values):
    """Do only the sums of rows of this format set the flag, and not the decoding of rows, too?"""

    def codegen(context, builder, signature, args):
        return I1(int(X86 and not ROWS[format_of(signature.args[0])].header))

    return types.boolean(values), codegen


@intrinsic
def rounded(typingctx):
    """Has this thread rounded a number since the last call? Clears the flag."""

    def codegen(context, builder, signature, args):
        if not X86:
            return I1(1)
        # the control register is written to memory and read from it; it has no other way
        control = cgutils.alloca_once(builder, I32)
        pointer = builder.bitcast(control, I8.as_pointer())
        call(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), pointer)
        state = builder.load(control)
        # only this flag is cleared: rounding mode and masks belong to the process
        builder.store(builder.and_(state, I32(0xFFFFFFFF ^ INEXACT)), control)
        call(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), pointer)
        return builder.icmp_unsigned("!=", builder.and_(state, I32(INEXACT)), I32(0))

    return types.boolean(), codegen
