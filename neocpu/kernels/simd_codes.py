"""How is a number rounded to a small float without a branch? In 32-bit integers, one lane at a time; LLVM adds the lanes.

Codes of magnitudes ascend with the magnitudes, so a small float is a shift of the fp32 bits:

    normal      (bits + half an ulp, made even by the bit above - bias) >> dropped bits
    subnormal   |x| + 2^(23 + lowest exponent - mantissa bits): fp32 addition itself rounds at the right place
    overflow    the code after the largest finite one: infinity (IEEE-754) or NaN (e4m3fn)

Numba widens integer arithmetic to 64 bits, which halves the lanes; here it stays at 32. Each function takes the words
that `codecs.words_of` makes of a layout.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neocpu.kernels.simd import F32, I1, I32, I64, call, data, vector_pointer

ROW_LANES = 8  # the order in which FBGEMM's AVX2 code compares the elements of a row
_WORDS = types.UniTuple(types.int32, 9)


def _i32(value: int) -> Any:
    return ir.Constant(I32, value)


class _Float:
    """The parts of an fp32 number, and the words of a layout, as LLVM values."""

    def __init__(self, builder: Any, x: Any, words: Any) -> None:
        self.builder = b = builder
        (
            self.drop, self.rebias, self.least, self.magic, self.over, self.quiet, self.limit, self.shift, self.mantissa
        ) = (b.extract_value(words, i) for i in range(9))  # fmt: skip
        bits = b.bitcast(x, I32)
        self.sign = b.lshr(b.and_(bits, _i32(0x80000000)), self.shift)
        self.given = b.and_(bits, _i32(0x7FFFFFFF))
        self.a = self.umin(self.given, self.limit)

    def umin(self, x: Any, y: Any) -> Any:
        return self.builder.select(self.builder.icmp_unsigned("<", x, y), x, y)

    def nearest(self) -> Any:
        """Code of the magnitude: nearest, ties to even."""
        b, a = self.builder, self.a
        even = b.and_(b.lshr(a, self.drop), _i32(1))
        half = b.sub(b.shl(_i32(1), b.sub(self.drop, _i32(1))), _i32(1))
        normal = b.lshr(b.sub(b.add(b.add(a, half), even), self.rebias), self.drop)
        moved = b.bitcast(b.fadd(b.bitcast(a, F32), b.bitcast(self.magic, F32)), I32)
        code = b.select(b.icmp_unsigned("<", a, self.least), b.sub(moved, self.magic), normal)
        return self.umin(code, self.over)

    def random(self, word: Any, top: Any) -> Any:
        """Code of the magnitude: up if word / 2^32 + fraction >= 1. Beyond the largest finite number: nearest."""
        b, a = self.builder, self.a
        exponent = b.lshr(a, _i32(23))
        some = b.icmp_unsigned(">", exponent, _i32(0))
        implicit = b.select(some, _i32(1 << 23), _i32(0))
        significand = b.or_(b.and_(a, _i32(0x7FFFFF)), implicit)
        exponent = b.select(some, exponent, _i32(1))
        first = b.add(b.lshr(self.rebias, _i32(23)), _i32(1))  # exponent of the smallest normal number
        below = b.sub(first, exponent)
        below = b.select(b.icmp_signed(">", below, _i32(0)), below, _i32(0))
        drop = self.umin(b.add(self.drop, below), _i32(63))
        wide = b.lshr(b.shl(b.zext(significand, I64), I64(32)), b.zext(drop, I64))
        units = b.trunc(b.lshr(b.add(wide, b.zext(word, I64)), I64(32)), I32)
        upper = b.shl(b.sub(b.add(exponent, below), first), self.mantissa)
        return b.select(b.icmp_unsigned(">", a, top), self.nearest(), b.add(upper, units))

    def code(self, magnitude: Any) -> Any:
        """With NaN and the sign."""
        b = self.builder
        nan = b.icmp_unsigned(">", self.a, _i32(0x7F800000))
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
    """int32 code of fp32 x: one of its neighbours, by a random uint32; `top` int32 bits of the largest finite number."""

    def codegen(context, builder, signature, args):
        x, word, top, words = args
        number = _Float(builder, x, words)
        return number.code(number.random(word, top))

    return types.int32(types.float32, types.uint32, types.int32, _WORDS), codegen


@intrinsic
def truncated_code(typingctx, x, top, words):
    """int32 code of fp32 x: the neighbour towards zero, which never is infinity unless x is."""

    def codegen(context, builder, signature, args):
        x, top, words = args
        number = _Float(builder, x, words)
        inside = number.umin(number.a, top)
        finite = builder.icmp_unsigned("<", number.given, _i32(0x7F800000))
        number.a = builder.select(finite, inside, number.a)
        return number.code(number.random(_i32(0), top))

    return types.int32(types.float32, types.int32, _WORDS), codegen


@intrinsic
def half_up_code(typingctx, x):
    """int32 bf16 code of fp32 x: half an ulp is added to the bits, whatever they mean (FBGEMM)."""

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
        drop, rebias, _, magic, over, _, _, shift, mantissa = (b.extract_value(words, i) for i in range(9))
        sign = b.and_(b.shl(code, shift), _i32(0x80000000))
        c = b.and_(code, b.lshr(_i32(0x7FFFFFFF), shift))
        normal = b.add(b.shl(c, drop), rebias)
        low = b.bitcast(b.fsub(b.bitcast(b.add(c, magic), F32), b.bitcast(magic, F32)), I32)
        value = b.select(b.icmp_unsigned("<", c, b.shl(_i32(1), mantissa)), low, normal)
        # IEEE-754: `over` is infinity, above it NaN. e4m3fn: `over` is NaN, its mantissa is all ones. HFP8: never reached.
        infinite = b.icmp_unsigned("==", b.and_(c, b.sub(b.shl(_i32(1), mantissa), _i32(1))), _i32(0))
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
def low_byte(typingctx, x):
    """uint8: the lowest byte of the bits of fp32 x. For 0 <= v < 2^22, of v + 2^23: v rounded to nearest even."""

    def codegen(context, builder, signature, args):
        return builder.trunc(builder.bitcast(args[0], I32), ir.IntType(8))

    return types.uint8(types.float32), codegen


@intrinsic
def row_range(typingctx, line):
    """(minimum, maximum, whether any is NaN) of a line f32[n], compared in the order of FBGEMM's AVX2 code.

    Eight lanes go down the row, each `m = m < x ? m : x` (so a NaN wipes out what its lane has seen, and is itself wiped
    out by the next number); then the lanes, then the rest of the row, `m = x < m ? x : m`.
    """

    def codegen(context, builder, signature, args):
        b, lanes = builder, ROW_LANES
        vector, mask = ir.VectorType(F32, lanes), ir.VectorType(I1, lanes)
        array = context.make_array(signature.args[0])(context, b, args[0])
        line, n = data(context, b, signature, args, 0), array.nitems
        largest = ir.Constant(F32, 3.4028234663852886e38)
        smallest = ir.Constant(F32, -3.4028234663852886e38)
        slots = {}
        for name, order, start in (("low", "<", largest), ("high", ">", smallest)):
            slots[name] = order, cgutils.alloca_once(b, vector), cgutils.alloca_once(b, F32)
            b.store(ir.Constant(vector, [start.constant] * lanes), slots[name][1])
            b.store(start, slots[name][2])
        unordered = cgutils.alloca_once(b, mask)
        b.store(ir.Constant(mask, [0] * lanes), unordered)
        whole = b.and_(n, I64(-lanes))
        with cgutils.for_range_slice(b, I64(0), whole, I64(lanes)) as (j, _):
            x = b.load(vector_pointer(b, line, j, vector), align=4)
            for order, seen, _ in slots.values():
                m = b.load(seen)
                b.store(b.select(b.fcmp_ordered(order, m, x), m, x), seen)
            b.store(b.or_(b.load(unordered), b.fcmp_unordered("uno", x, x)), unordered)
        odd = cgutils.alloca_once(b, I1)
        b.store(call(b, f"llvm.vector.reduce.or.v{lanes}i1", I1, b.load(unordered)), odd)

        def compare(value: Any, order: str, slot: Any) -> None:
            m = b.load(slot)
            b.store(b.select(b.fcmp_ordered(order, value, m), value, m), slot)

        for order, seen, slot in slots.values():
            lanes_seen = b.load(seen)
            for i in range(lanes):
                compare(b.extract_element(lanes_seen, I32(i)), order, slot)
        with cgutils.for_range_slice(b, whole, n, I64(1)) as (j, _):
            x = b.load(b.gep(line, [j]))
            for order, _, slot in slots.values():
                compare(x, order, slot)
            b.store(b.or_(b.load(odd), b.fcmp_unordered("uno", x, x)), odd)
        values = [b.load(slots["low"][2]), b.load(slots["high"][2]), b.zext(b.load(odd), ir.IntType(8))]
        return context.make_tuple(b, signature.return_type, values)

    return types.Tuple((types.float32, types.float32, types.uint8))(line), codegen
