"""How does a kernel move unaligned bytes, and wait for bytes that it wrote past the caches?

By memcpy, by words that are loaded and stored at any byte, and by a fence. Words are little-endian,
as on all machines that Numba supports and in the file formats that these kernels read.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neocpu.kernels.simd import I64, call, data
from neocpu.kernels.simd.quiet import X86

# LLVM type of each word
_WORDS = {types.uint64: ir.IntType(64), types.uint32: ir.IntType(32)}


def _pointer(context, builder, signature, args, array, at, kind):
    """Pointer to `kind` at the byte args[at] of the array args[array]."""
    byte = builder.gep(data(context, builder, signature, args, array), [args[at]])
    return builder.bitcast(byte, kind.as_pointer())


@intrinsic
def copy_bytes(typingctx, source, source_at, target, target_at, count):
    """target[target_at : target_at + count] = source[source_at : source_at + count].

    Both are u8 arrays and do not overlap.
    """

    def codegen(context, builder, signature, args):
        source_byte, target_byte = (
            builder.gep(data(context, builder, signature, args, i), [args[i + 1]]) for i in (0, 2)
        )
        # align=1: records and fields of files begin at any byte
        cgutils.raw_memcpy(builder, target_byte, source_byte, args[4], I64(1), align=1)
        return context.get_dummy_value()

    n = types.int64
    return types.void(source, n, target, n, n), codegen


def _load(kind):
    """Intrinsic: load the word of type `kind` at byte `at` of a u8 array."""

    @intrinsic
    def load(typingctx, array, at):
        def codegen(context, builder, signature, args):
            return builder.load(
                _pointer(context, builder, signature, args, 0, 1, _WORDS[kind]), align=1
            )

        return kind(array, types.int64), codegen

    return load


def _store(kind):
    """Intrinsic: store a word of type `kind` at byte `at` of a u8 array."""

    @intrinsic
    def store(typingctx, array, at, word):
        def codegen(context, builder, signature, args):
            builder.store(
                args[2], _pointer(context, builder, signature, args, 0, 1, _WORDS[kind]), align=1
            )
            return context.get_dummy_value()

        return types.void(array, types.int64, kind), codegen

    return store


load_u64 = _load(types.uint64)
load_u32 = _load(types.uint32)
store_u64 = _store(types.uint64)
store_u32 = _store(types.uint32)


@intrinsic
def settle_past(typingctx):
    """What this thread wrote past the caches is seen before what it writes from now on."""

    def codegen(context, builder, signature, args):
        if X86:
            call(builder, "llvm.x86.sse.sfence", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), codegen
