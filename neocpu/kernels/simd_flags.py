"""Has this thread rounded? x86 keeps a sticky flag, and so tells for nothing whether plain fp64 sums were exact.

Reading the flag waits until all earlier arithmetic is done, some hundred cycles, so it is asked once for a group of bags.
Other processors: `tells` is False, and exactness is found out by the range of exponents (`simd_rows.py`).
"""

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neocpu.kernels.simd import I1, I8, I32, call
from neocpu.kernels.simd_loads import SCALED, format_of

X86 = platform.machine() in ("x86_64", "AMD64")
INEXACT = 0x20  # "precision" flag of MXCSR


@intrinsic
def tells(typingctx, values):
    """Is `rounded` to be asked about sums of rows of this format? Not where decoding them rounds already."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return I1(int(X86 and format_of(signature.args[0]) not in SCALED))

    return types.boolean(values), codegen


@intrinsic
def rounded(typingctx):
    """Has a floating-point operation of this thread rounded since the last call? Clears the flag."""

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
