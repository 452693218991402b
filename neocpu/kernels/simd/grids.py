"""How is a number rounded to one of a small float, and stays an fp32 number? Without a branch, and
without the code of the small float.

The numbers of a format are a grid among those of fp32:

    normal      mantissas end `drop` bits earlier: something is added to the bits, and these go
    subnormal   multiples of one power of two, `unit`, which fp32 arithmetic on |x| rounds to
    beyond      above `top` comes infinity (IEEE-754) or NaN (e4m3fn)

The grid of bf16 has the exponents of fp32, so that its subnormal numbers are bits that go as well.
LLVM makes vectors of the loops that call these.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from neocpu.kernels.simd import F32, I32

WORDS = 7
_WORDS = types.UniTuple(types.int32, WORDS)
_INFINITY = 0x7F800000
_NAN = 0x7FC00000


def _i32(value: int) -> ir.Constant:
    return ir.Constant(I32, value)


class _Number:
    """An fp32 number between the lines of a grid, as LLVM values.

    drop : mantissa bits that go. least : bits of the least normal number, 0 where all go the same
    way. top, beyond : bits of the largest number, and of what comes then. magic : the power of two
    whose last bit is `unit`. unit, units : the least number, and how many of it are 1.
    bits, magnitude : of the number.
    """

    def __init__(self, builder: ir.IRBuilder, x: ir.Value, words: ir.Value) -> None:
        self.builder = b = builder
        self.drop, self.least, self.top, self.beyond, *floats = (
            b.extract_value(words, i) for i in range(WORDS)
        )
        self.magic, self.unit, self.units = (b.bitcast(word, F32) for word in floats)
        self.bits = b.bitcast(x, I32)
        self.magnitude = b.and_(self.bits, _i32(0x7FFFFFFF))

    def half(self) -> ir.Value:
        """What is added before bits go: to nearest, ties to even."""
        b = self.builder
        last = b.and_(b.lshr(self.magnitude, self.drop), _i32(1))
        return b.add(b.sub(b.shl(_i32(1), b.sub(self.drop, _i32(1))), _i32(1)), last)

    def normal(self, added: ir.Value) -> ir.Value:
        """Bits of a magnitude to which something was added before bits went."""
        kept = self.builder.shl(_i32(-1), self.drop)
        return self.builder.and_(self.builder.add(self.magnitude, added), kept)

    def nearest_unit(self) -> ir.Value:
        """The multiple of the unit nearest to |x|, as fp32."""
        b = self.builder
        return b.fsub(b.fadd(b.bitcast(self.magnitude, F32), self.magic), self.magic)

    def lower_unit(self) -> ir.Value:
        """The multiple of the unit at or below |x|, as fp32."""
        b = self.builder
        nearest = self.nearest_unit()
        above = b.fcmp_ordered(">", nearest, b.bitcast(self.magnitude, F32))
        return b.select(above, b.fsub(nearest, self.unit), nearest)

    def random_unit(self, word: ir.Value) -> ir.Value:
        """One of the two multiples of the unit around |x|: the upper if word / 2^32 + fraction is 1
        or more.
        """
        b = self.builder
        below = b.icmp_unsigned("<", self.magnitude, self.least)
        small = b.bitcast(b.select(below, self.magnitude, _i32(0)), F32)
        count = b.fmul(small, self.units)
        whole = b.fptosi(count, I32)
        rest = b.fsub(count, b.sitofp(whole, F32))
        # bits below a word's last are no part of the comparison: words are whole numbers
        fraction = b.fptoui(b.fmul(rest, ir.Constant(F32, 2.0**32)), I32)
        # the sum has wrapped round 2^32 if it is below a summand
        carry = b.zext(b.icmp_unsigned("<", b.add(fraction, word), word), I32)
        return b.fmul(b.sitofp(b.add(whole, carry), F32), self.unit)

    def of(self, normal: ir.Value, subnormal: ir.Value) -> ir.Value:
        """The number with its sign; of NaN the quiet one."""
        b = self.builder
        below = b.icmp_unsigned("<", self.magnitude, self.least)
        bits = b.select(below, b.bitcast(subnormal, I32), normal)
        bits = b.select(b.icmp_unsigned(">", bits, self.top), self.beyond, bits)
        nan = b.icmp_unsigned(">", self.magnitude, _i32(_INFINITY))
        bits = b.select(nan, _i32(_NAN), bits)
        return b.bitcast(b.or_(bits, b.and_(self.bits, _i32(0x80000000))), F32)


@intrinsic
def nearest_number(typingctx, x, words):
    """fp32 number of the grid nearest to fp32 x, ties to even."""

    def codegen(context, builder, signature, args):
        number = _Number(builder, *args)
        return number.of(number.normal(number.half()), number.nearest_unit())

    return types.float32(types.float32, _WORDS), codegen


@intrinsic
def half_up_number(typingctx, x, words):
    """fp32 number of the grid nearest to fp32 x, ties to the larger magnitude; bf16 only."""

    def codegen(context, builder, signature, args):
        number = _Number(builder, *args)
        return number.of(number.normal(_i32(0x8000)), number.nearest_unit())

    return types.float32(types.float32, _WORDS), codegen


@intrinsic
def truncated_number(typingctx, x, words):
    """fp32 number of the grid from fp32 x towards zero; only an infinite x gives infinity."""

    def codegen(context, b, signature, args):
        number = _Number(b, *args)
        normal = number.normal(_i32(0))
        finite = b.icmp_unsigned("<", number.magnitude, _i32(_INFINITY))
        larger = b.and_(b.icmp_unsigned(">", normal, number.top), finite)
        return number.of(b.select(larger, number.top, normal), number.lower_unit())

    return types.float32(types.float32, _WORDS), codegen


@intrinsic
def random_number(typingctx, x, word, words):
    """fp32 number of the grid, one of the two around fp32 x by a random uint32: the upper if
    word / 2^32 + fraction is 1 or more. Beyond the largest one it is the nearest.
    """

    def codegen(context, b, signature, args):
        x, word, words = args
        number = _Number(b, x, words)
        drawn = b.lshr(word, b.sub(_i32(32), number.drop))
        outside = b.icmp_unsigned(">", number.magnitude, number.top)
        normal = number.normal(b.select(outside, number.half(), drawn))
        return number.of(normal, number.random_unit(word))

    return types.float32(types.float32, types.uint32, _WORDS), codegen


@intrinsic
def as_float(typingctx, bits):
    """fp32 number of int32 bits."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], F32)

    return types.float32(types.int32), codegen
