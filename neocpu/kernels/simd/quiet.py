"""How does a kernel round a number without leaving a trace?

x86 notes in a flag that something was rounded, and kernels ask that flag whether sums were exact
(`simd/flags.py`). What is rounded by definition must not set it: products of weights, decoded
integers, the first float of a compensated sum and its result. An AVX-512 instruction can carry its
own rounding mode and then sets no flag. Each function here gives the bits of the plain operation.
"""

import platform

from llvmlite import ir

from neocpu.kernels.simd import F32, I32, call
from neocpu.kernels.simd.tiles import LANES

X86 = platform.machine() in ("x86_64", "AMD64")
# Are there such instructions?
QUIET = X86 and LANES == 16
# operand of an AVX-512 instruction: round to nearest even and set no flag, whatever MXCSR says
_NEAREST_QUIETLY = 8


def _quietly(builder: ir.IRBuilder, name: str, *vectors: ir.Value) -> ir.Value:
    """An AVX-512 operation on vectors of up to 16 floats."""
    lanes = vectors[0].type.count
    wide = ir.VectorType(F32, 16)
    if lanes == 16:
        return call(builder, name, wide, *vectors, I32(_NEAREST_QUIETLY))
    undefined = ir.Constant(vectors[0].type, ir.Undefined)
    repeat = ir.Constant(ir.VectorType(I32, 16), [i % lanes for i in range(16)])
    repeated = [builder.shuffle_vector(v, undefined, repeat) for v in vectors]
    result = call(builder, name, wide, *repeated, I32(_NEAREST_QUIETLY))
    own = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))
    return builder.shuffle_vector(result, ir.Constant(wide, ir.Undefined), own)


def quiet_product(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """fl(x * y) of two vectors of up to 16 floats; only if `QUIET`."""
    return _quietly(builder, "llvm.x86.avx512.mul.ps.512", x, y)


def quiet_sum(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """fl(x + y) of two vectors of up to 16 floats; only if `QUIET`."""
    return _quietly(builder, "llvm.x86.avx512.add.ps.512", x, y)


def quiet_fma(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """fl(x * y + z) of three vectors of up to 16 floats; only if `QUIET`."""
    return _quietly(builder, "llvm.x86.avx512.vfmadd.ps.512", x, y, z)
