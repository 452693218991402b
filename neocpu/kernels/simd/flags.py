"""Has this thread rounded?

x86 has a sticky flag that every inexact operation sets, so it tells at no cost whether plain sums
were exact. Clearing the flag waits for all earlier arithmetic, some hundred cycles, so it is asked
once for a group of bags. On other processors `tells` is False, and the range of exponents
decides whether a sum is exact (`simd/bags.py`).

The product of a weight and a row is rounded by definition and must not set the flag, nor may the
decoding of row-scaled integers. AVX-512 has instructions that leave it as it is (`simd/quiet.py`);
without them the flag is not used for such sums.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neocpu.kernels.compile.jit import inlined
from neocpu.kernels.simd import I1, I8, I32, call
from neocpu.kernels.simd.decoders import ROWS, format_of
from neocpu.kernels.simd.quiet import QUIET, X86

# the precision flag PE of MXCSR
INEXACT = 0x20


@inlined
def may_ask(values, weights):
    """Does `rounded` tell whether sums of rows of this format, maybe weighted, are exact?"""
    return tells(values) and (QUIET or weights.size == 0)


@intrinsic
def tells(typingctx, values):
    """Do only the sums of rows of this format set the flag, and not the decoding of rows, too?"""

    def codegen(context, builder, signature, args):
        exact = not ROWS[format_of(signature.args[0])].header
        return I1(int(QUIET or (X86 and exact)))

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
        inexact = builder.icmp_unsigned("!=", builder.and_(state, I32(INEXACT)), I32(0))
        # writing the register waits for all that computes, reading it does not
        with builder.if_then(inexact):
            # only this flag is cleared: rounding mode and masks belong to the process
            builder.store(builder.and_(state, I32(0xFFFFFFFF ^ INEXACT)), control)
            call(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), pointer)
        return inexact

    return types.boolean(), codegen
