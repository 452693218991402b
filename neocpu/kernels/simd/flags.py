"""Has this thread rounded? x86 keeps a sticky flag, and so tells for nothing whether plain fp64
sums were exact.

Reading the flag waits until all earlier arithmetic is done, some hundred cycles, so it is asked
once for a group of bags. Other processors: `tells` is False, and exactness is found out by the
range of exponents (`bags.py`).

A lookup's weight times its row is rounded by definition, which must not raise the flag: AVX-512 has
multiplications that leave it alone. Without them weighted sums are not asked about.
"""

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neocpu.kernels._jit import inlined
from neocpu.kernels.simd import F32, I1, I8, I32, call
from neocpu.kernels.simd.decoders import ROWS, format_of
from neocpu.kernels.simd.tiles import LANES

X86 = platform.machine() in ("x86_64", "AMD64")
QUIET = X86 and LANES == 16  # are there multiplications that leave the flag alone?
INEXACT = 0x20  # "precision" flag of MXCSR
# rounding of an AVX-512 instruction: to nearest even, no flag, whatever MXCSR says
_NEAREST_QUIETLY = 8


def quiet_product(builder: Any, x: Any, y: Any) -> Any:
    """fl(x * y) of two vectors of up to 16 floats; the flag stays as it is. Only where `QUIET`."""
    lanes = x.type.count
    wide = ir.VectorType(F32, 16)
    nothing = ir.Constant(x.type, ir.Undefined)
    mask = ir.VectorType(I32, 16)
    if lanes < 16:
        repeat = ir.Constant(mask, [i % lanes for i in range(16)])
        x, y = (builder.shuffle_vector(v, nothing, repeat) for v in (x, y))
    product = call(builder, "llvm.x86.avx512.mul.ps.512", wide, x, y, I32(_NEAREST_QUIETLY))
    if lanes == 16:
        return product
    first = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))
    return builder.shuffle_vector(product, ir.Constant(wide, ir.Undefined), first)


@inlined
def may_ask(values, weights):
    """Is `rounded` to be asked about sums of rows of this format with these weights, if any?"""
    return tells(values) and (QUIET or weights.size == 0)


@intrinsic
def tells(typingctx, values):
    """Does `rounded` speak of the sums of rows of this format alone? Not where decoding them rounds
    already.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return I1(int(X86 and not ROWS[format_of(signature.args[0])].header))

    return types.boolean(values), codegen


@intrinsic
def rounded(typingctx):
    """Has this thread rounded a number since the last call? Clears the flag."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not X86:
            return I1(1)
        word = cgutils.alloca_once(builder, I32)
        pointer = builder.bitcast(word, I8.as_pointer())
        call(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), pointer)
        state = builder.load(word)
        builder.store(builder.and_(state, I32(0xFFFFFFFF ^ INEXACT)), word)
        call(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), pointer)
        return builder.icmp_unsigned("!=", builder.and_(state, I32(INEXACT)), I32(0))

    return types.boolean(), codegen
