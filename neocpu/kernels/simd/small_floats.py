"""How is a number rounded to a small float without a branch?

In 32-bit integers; the code below is for one number, and LLVM vectorizes it. Codes ascend with the
magnitudes, so the code of a small float is a shift of the fp32 bits:

    normal      (bits + half an ulp - 1 + the last bit kept - bias) >> dropped bits
    subnormal   |x| + 2^(23 + lowest exponent - mantissa bits), which fp32 addition rounds at the
                right bit
    overflow    the code after the largest finite one: infinity (IEEE-754) or NaN (e4m3fn)

Numba would widen integer arithmetic to 64 bits and so halve the lanes; these intrinsics keep it at
32. Each takes the words of a layout that `codecs.small_floats.words_of` computes.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from neocpu.kernels.simd import F32, I32

_WORDS = types.UniTuple(types.int32, 9)


def _i32(value: int) -> ir.Constant:
    return ir.Constant(I32, value)


class _Float:
    """An fp32 number and the words of a layout, as LLVM values.

    drop      : mantissa bits of fp32 that the format drops
    rebias    : difference of the exponent biases, in the exponent's place
    least     : bits of the least normal number of the format
    magic     : bits of the power of two that rounds a subnormal number when it is added
    over      : code after the largest finite one
    quiet     : code of NaN
    limit     : bits to which magnitudes are limited before they are rounded
    shift     : bits between the sign of fp32 and that of the code
    mantissa  : mantissa bits of the format
    magnitude : bits of |x|
    bounded   : the magnitude, at most limit
    """

    def __init__(self, builder: ir.IRBuilder, x: ir.Value, words: ir.Value) -> None:
        self.builder = b = builder
        (
            self.drop,
            self.rebias,
            self.least,
            self.magic,
            self.over,
            self.quiet,
            self.limit,
            self.shift,
            self.mantissa,
        ) = (b.extract_value(words, i) for i in range(9))
        bits = b.bitcast(x, I32)
        self.sign = b.lshr(b.and_(bits, _i32(0x80000000)), self.shift)
        self.magnitude = b.and_(bits, _i32(0x7FFFFFFF))
        self.bounded = self.umin(self.magnitude, self.limit)

    def umin(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.icmp_unsigned("<", x, y), x, y)

    def nearest(self) -> ir.Value:
        """Code of the magnitude: nearest, ties to even."""
        b = self.builder
        a = self.bounded
        last_kept = b.and_(b.lshr(a, self.drop), _i32(1))
        # half an ulp less one, plus the last bit kept: ties go to even without a comparison
        half = b.sub(b.shl(_i32(1), b.sub(self.drop, _i32(1))), _i32(1))
        normal = b.lshr(b.sub(b.add(b.add(a, half), last_kept), self.rebias), self.drop)
        # fp32 addition has its rounding bit where the format's subnormal numbers end
        magic_sum = b.bitcast(b.fadd(b.bitcast(a, F32), b.bitcast(self.magic, F32)), I32)
        subnormal = b.sub(magic_sum, self.magic)
        code = b.select(b.icmp_unsigned("<", a, self.least), subnormal, normal)
        # rounding up may carry beyond the largest number: that is infinity, or the NaN of e4m3fn
        return self.umin(code, self.over)

    def _parts(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """(24-bit significand, how many of its bits are dropped, code of the exponent).

        The code of the magnitude is the sum of the exponent's code and the kept bits.
        """
        b = self.builder
        a = self.bounded
        exponent = b.lshr(a, _i32(23))
        normal = b.icmp_unsigned(">", exponent, _i32(0))
        significand = b.or_(b.and_(a, _i32(0x7FFFFF)), b.select(normal, _i32(1 << 23), _i32(0)))
        exponent = b.select(normal, exponent, _i32(1))
        # A subnormal number of the format drops as many more bits as its exponent is below that of
        # the least normal number.
        least_exponent = b.add(b.lshr(self.rebias, _i32(23)), _i32(1))
        below = b.sub(least_exponent, exponent)
        below = b.select(b.icmp_signed(">", below, _i32(0)), below, _i32(0))
        upper = b.shl(b.sub(b.add(exponent, below), least_exponent), self.mantissa)
        return significand, b.add(self.drop, below), upper

    def down(self) -> ir.Value:
        """Code of the magnitude: towards zero."""
        significand, drop, upper = self._parts()
        return self.builder.add(upper, self.builder.lshr(significand, self.umin(drop, _i32(31))))

    def random(self, word: ir.Value, top: ir.Value) -> ir.Value:
        """Code of the magnitude: rounded up if word / 2^32 + fraction >= 1.

        Numbers beyond the largest finite one are rounded to nearest.
        """
        b = self.builder
        significand, drop, upper = self._parts()
        units = b.lshr(significand, self.umin(drop, _i32(31)))
        # The fraction of a unit in 1 / 2^32: the dropped bits, aligned to the top of a word.
        below_word = b.icmp_unsigned("<", drop, _i32(32))
        # LLVM leaves a shift by 32 or more undefined, so both cases shift by less and one is
        # chosen.
        near = b.shl(significand, b.select(below_word, b.sub(_i32(32), drop), _i32(0)))
        far = b.lshr(
            significand, b.select(below_word, _i32(0), self.umin(b.sub(drop, _i32(32)), _i32(31)))
        )
        fraction = b.select(below_word, near, far)
        # the sum has wrapped round 2^32 if it is below a summand
        carry = b.zext(b.icmp_unsigned("<", b.add(fraction, word), word), I32)
        return b.select(
            b.icmp_unsigned(">", self.bounded, top),
            self.nearest(),
            b.add(b.add(upper, units), carry),
        )

    def code(self, magnitude: ir.Value) -> ir.Value:
        """Code of the number: that of its magnitude, or NaN, and the sign."""
        b = self.builder
        # NaN has bits above infinity's, and is not limited by formats that have one
        nan = b.icmp_unsigned(">", self.bounded, _i32(0x7F800000))
        return b.or_(b.select(nan, self.quiet, magnitude), self.sign)


@intrinsic
def nearest_code(typingctx, x, words):
    """int32 code of fp32 x: nearest, ties to even."""

    def codegen(context, builder, signature, args):
        number = _Float(builder, *args)
        return number.code(number.nearest())

    return types.int32(types.float32, _WORDS), codegen


@intrinsic
def random_code(typingctx, x, word, top, words):
    """int32 code of fp32 x, rounded to one of its neighbours by a random uint32.

    `top` int32: bits of the largest finite number of the format.
    """

    def codegen(context, builder, signature, args):
        x, word, top, words = args
        number = _Float(builder, x, words)
        return number.code(number.random(word, top))

    return types.int32(types.float32, types.uint32, types.int32, _WORDS), codegen


@intrinsic
def truncated_code(typingctx, x, top, words):
    """int32 code of fp32 x, rounded towards zero; only an infinite x gives infinity."""

    def codegen(context, builder, signature, args):
        x, top, words = args
        number = _Float(builder, x, words)
        inside = number.umin(number.bounded, top)
        finite = builder.icmp_unsigned("<", number.magnitude, _i32(0x7F800000))
        infinite = builder.icmp_unsigned(">", number.bounded, top)
        number.bounded = builder.select(finite, inside, number.bounded)
        return number.code(
            builder.select(
                finite, number.down(), builder.select(infinite, number.over, number.down())
            )
        )

    return types.int32(types.float32, types.int32, _WORDS), codegen


@intrinsic
def half_up_code(typingctx, x):
    """int32 bf16 code of fp32 x: half an ulp is added to the bits, also of NaN (FBGEMM)."""

    def codegen(context, builder, signature, args):
        return builder.lshr(builder.add(builder.bitcast(args[0], I32), _i32(0x8000)), _i32(16))

    return types.int32(types.float32), codegen


@intrinsic
def with_noise(typingctx, x, word):
    """x plus 13 random bits below the fp16 mantissa, in fp32 (FBGEMM's stochastic rounding)."""

    def codegen(context, builder, signature, args):
        x, word = args
        power = builder.and_(builder.bitcast(x, I32), _i32(0xFF800000))
        noise = builder.bitcast(builder.or_(power, builder.lshr(word, _i32(19))), F32)
        return builder.fadd(x, builder.fsub(noise, builder.bitcast(power, F32)))

    return types.float32(types.float32, types.uint32), codegen


@intrinsic
def number_of_code(typingctx, code, words):
    """fp32 number of a code (uint32)."""

    def codegen(context, b, signature, args):
        code, words = args
        drop, rebias, _, magic, over, _, _, shift, mantissa = (
            b.extract_value(words, i) for i in range(9)
        )
        sign = b.and_(b.shl(code, shift), _i32(0x80000000))
        c = b.and_(code, b.lshr(_i32(0x7FFFFFFF), shift))
        normal = b.add(b.shl(c, drop), rebias)
        low = b.bitcast(b.fsub(b.bitcast(b.add(c, magic), F32), b.bitcast(magic, F32)), I32)
        value = b.select(b.icmp_unsigned("<", c, b.shl(_i32(1), mantissa)), low, normal)
        # IEEE-754: `over` is infinity and codes above it are NaN. e4m3fn: `over` is NaN, whose
        # mantissa is all ones. HFP8: no code reaches `over`.
        infinite = b.icmp_unsigned(
            "==", b.and_(c, b.sub(b.shl(_i32(1), mantissa), _i32(1))), _i32(0)
        )
        special = b.select(infinite, _i32(0x7F800000), _i32(0x7FC00000))
        value = b.select(b.icmp_unsigned("<", c, over), value, special)
        return b.bitcast(b.or_(value, sign), F32)

    return types.float32(types.uint32, _WORDS), codegen


@intrinsic
def magnitude(typingctx, x):
    """int32 bits of |x|."""

    def codegen(context, builder, signature, args):
        return builder.and_(builder.bitcast(args[0], I32), _i32(0x7FFFFFFF))

    return types.int32(types.float32), codegen


@intrinsic
def code4(typingctx, x, inverse):
    """uint8 e2m1 code of x * inverse: nearest, ties away from zero.

    Numbers beyond 6, the largest one, become 6, and so do infinity and NaN.
    """

    def codegen(context, b, signature, args):
        x, inverse = args
        sign = b.lshr(b.and_(b.bitcast(x, I32), _i32(0x80000000)), _i32(28))
        a = b.fmul(b.bitcast(b.and_(b.bitcast(x, I32), _i32(0x7FFFFFFF)), F32), inverse)
        # the comparison is false for NaN, which so becomes the largest number too
        six = ir.Constant(F32, 6.0)
        a = b.select(b.fcmp_ordered("<", a, six), a, six)
        normal = b.sub(b.lshr(b.add(b.bitcast(a, I32), _i32(1 << 21)), _i32(22)), _i32(252))
        steps = [
            b.zext(b.fcmp_ordered(">=", a, ir.Constant(F32, edge)), I32) for edge in (0.25, 0.75)
        ]
        small = b.fcmp_ordered("<", a, ir.Constant(F32, 1.0))
        return b.trunc(b.or_(b.select(small, b.add(*steps), normal), sign), ir.IntType(8))

    return types.uint8(types.float32, types.float32), codegen


@intrinsic
def number4(typingctx, code):
    """fp32 number of an e2m1 code, the low four bits of a uint8."""

    def codegen(context, b, signature, args):
        code = b.zext(args[0], I32)
        sign = b.and_(b.shl(code, _i32(28)), _i32(0x80000000))
        c = b.and_(code, _i32(7))
        small = b.select(b.icmp_unsigned("==", c, _i32(1)), _i32(0x3F000000), _i32(0))
        value = b.select(
            b.icmp_unsigned("<", c, _i32(2)), small, b.shl(b.add(c, _i32(252)), _i32(22))
        )
        return b.bitcast(b.or_(value, sign), F32)

    return types.float32(types.uint8), codegen


@intrinsic
def half_bits(typingctx, x):
    """int32 fp16 code of fp32 x, which is not NaN beyond the quiet one: nearest, ties to even."""

    def codegen(context, builder, signature, args):
        # one instruction where the processor has it (F16C); callers ask `HALVES` before
        narrow = builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))
        return builder.zext(narrow, I32)

    return types.int32(types.float32), codegen


@intrinsic
def half_value(typingctx, code):
    """fp32 number of an fp16 code (uint16)."""

    def codegen(context, builder, signature, args):
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), F32)

    return types.float32(types.uint16), codegen


@intrinsic
def bfloat_bits(typingctx, x):
    """int32 bf16 code of fp32 x, which is not NaN beyond the quiet one: nearest, ties to even."""

    def codegen(context, builder, signature, args):
        bits = builder.bitcast(args[0], I32)
        odd = builder.and_(builder.lshr(bits, _i32(16)), _i32(1))
        return builder.lshr(builder.add(builder.add(bits, _i32(0x7FFF)), odd), _i32(16))

    return types.int32(types.float32), codegen


@intrinsic
def bfloat_value(typingctx, code):
    """fp32 number of a bf16 code (uint16)."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(builder.shl(builder.zext(args[0], I32), _i32(16)), F32)

    return types.float32(types.uint16), codegen


@intrinsic
def order_key(typingctx, x):
    """int32 that is ordered as fp32 x is, -0 below +0; of NaN beyond those of the infinities."""

    def codegen(context, builder, signature, args):
        return _ordered(builder, builder.bitcast(args[0], I32))

    return types.int32(types.float32), codegen


@intrinsic
def number_of_key(typingctx, key):
    """fp32 number of an `order_key`."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(_ordered(builder, args[0]), F32)

    return types.float32(types.int32), codegen


def _ordered(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Bits of negative numbers turned round, but for the sign; its own inverse."""
    negative = b.ashr(bits, _i32(31))
    return b.xor(bits, b.lshr(negative, _i32(1)))


@intrinsic
def lowest_byte(typingctx, x):
    """uint8 of the lowest byte of the bits of fp32 x: the whole number in x if 2^23 was added."""

    def codegen(context, builder, signature, args):
        return builder.trunc(builder.bitcast(args[0], I32), ir.IntType(8))

    return types.uint8(types.float32), codegen
