"""How does a kernel read a row whose numbers are no fp32? It decodes them in registers, exactly;
the dtype says how.

    fp32            plain float32 arrays
    fp16, bf16, …   arrays of records of one field, which names the format
    (`neocpu/core/formats.py`)

Numba compiles a kernel per dtype, so the decoder is picked when it is compiled. It follows from the
format's record; `DECODERS` has those that the processor does faster in another way. Small floats
are shifted into place and multiplied by a power of two, which is exact, subnormals included.
Row-scaled integers are fma(q, scale, bias): rounded once. A row starts at element base + row *
stride; for row-scaled integers an element is a byte and the stride the bytes of a row.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import Signature
from numba.extending import intrinsic

from neocpu.core.formats import FORMATS, FP16, INFERENCE, SmallFloat
from neocpu.kernels.simd import F32, F64, I1, I8, I32, I64, call, data, prefetch_line, splat
from neocpu.kernels.simd.quiet import QUIET, X86, quiet_fma
from neocpu.kernels.simd.tiles import LANES, target

ROWS = FORMATS | INFERENCE  # formats that kernels read
_I16 = ir.IntType(16)
_NAN = 0x7FC00000  # bits of the one NaN that is stored
HALVES = "+f16c" in target()[1].split(",")  # the processor decodes fp16 itself
WIDE_HALVES = "+avx512fp16" in target()[1].split(",")


def format_of(kind: Any) -> str:
    """Name of the format that an array's Numba type carries."""
    return "fp32" if kind.dtype == types.float32 else str(next(iter(kind.dtype.fields)))


class RowDecoder:
    """The rows of one array, as LLVM values: addresses of rows, vectors of their numbers."""

    def __init__(
        self,
        context: BaseContext,
        builder: ir.IRBuilder,
        kind: types.Array,
        values: ir.Value,
        stride: ir.Value,
    ) -> None:
        """Of an array.

        kind   : Numba's type of the array
        values : pointer to its elements
        stride : i64
        """
        self.builder = builder
        self.name = format_of(kind)
        self.form = ROWS[self.name]
        self.bits = self.form.bits
        self.scaled = bool(self.form.header)
        # bytes of a scale or a bias
        # scale and bias are both fp32 (int8) or both fp16 (int4, int2), as FBGEMM has them
        self.word = 4 if self.scaled and self.form.header[0][1] == "<f4" else 2
        self.size = I64(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
        self.values = builder.bitcast(values, I8.as_pointer())
        self.row_bytes = builder.mul(stride, self.size)

    def row(self, element: ir.Value) -> ir.Value:
        """Address of the row that starts at an element."""
        return self.builder.gep(self.values, [self.builder.mul(element, self.size)])

    def bytes_of(self, columns: int) -> int:
        """Bytes that the codes of some columns take."""
        return max(1, columns * self.bits // 8)

    def codes(self, row: ir.Value, column: ir.Value) -> ir.Value:
        """Address of the byte that holds the code of a column."""
        b = self.builder
        first = b.gep(row, [I64(2 * self.word)]) if self.form.header_first else row
        if self.bits >= 8:
            return b.gep(first, [b.mul(column, I64(self.bits // 8))])
        return b.gep(first, [b.lshr(column, I64((8 // self.bits).bit_length() - 1))])

    def header(self, row: ir.Value) -> ir.Value:
        """Address of the scale of a row."""
        if self.form.header_first:
            return row
        return self.builder.gep(row, [self.builder.sub(self.row_bytes, I64(2 * self.word))])

    def scales(self, row: ir.Value, lanes: int) -> Sequence[ir.Value]:
        """(scale, bias) of a row in every lane; none where numbers stand for themselves."""
        if not self.scaled:
            return ()
        b = self.builder
        at = self.header(row)
        words = []
        for i in range(2):
            word = b.gep(at, [I64(self.word * i)])
            if self.word == 4:
                # align=1: the header stands behind any number of bytes of codes
                pointer = b.bitcast(word, F32.as_pointer())
                words.append(splat(b, b.load(pointer, align=1), lanes))
            else:
                pointer = b.bitcast(word, _I16.as_pointer())
                half = splat(b, b.zext(b.load(pointer, align=1), I32), lanes)
                words.append(_half(b, half, lanes))
        return words

    def vector(
        self, row: ir.Value, scales: Sequence[ir.Value], column: ir.Value, first: int, lanes: int
    ) -> ir.Value:
        """Numbers of the columns [column + first, column + first + lanes) of a row, as fp32;
        `first` is known.
        """
        b = self.builder
        if self.bits < 8:
            q = self._packed(row, column, first, lanes)
        else:
            at = b.gep(self.codes(row, column), [I64(first * self.bits // 8)])
            kind = ir.VectorType({8: I8, 16: _I16, 32: F32}[self.bits], lanes)
            q = b.load(b.bitcast(at, kind.as_pointer()), align=4 if self.bits == 32 else 1)
            if self.bits == 32:
                return q
            q = b.zext(q, ir.VectorType(I32, lanes))
        if not self.scaled:
            if self.name in DECODERS:
                return DECODERS[self.name](b, q, lanes)
            assert self.form.number is not None, f"{self.name} says nowhere what a code means"
            return _small_float(b, q, lanes, self.form.number)
        # one rounding, as FBGEMM's CPU code does it; product and sum apart would round twice
        number = b.uitofp(q, ir.VectorType(F32, lanes))
        if QUIET:
            return quiet_fma(b, number, *scales)
        return call(b, f"llvm.fma.v{lanes}f32", number.type, number, *scales)

    def _packed(self, row: ir.Value, column: ir.Value, first: int, lanes: int) -> ir.Value:
        """Codes of less than a byte, low bits first; `column + first` is a multiple of 4 unless
        there is one lane.
        """
        b = self.builder
        per = 8 // self.bits
        vector = ir.VectorType(I32, lanes)
        mask = ir.Constant(vector, [(1 << self.bits) - 1] * lanes)
        if lanes == 1:
            column = b.add(column, I64(first))
            byte = b.zext(b.load(self.codes(row, column)), I32)
            shift = b.mul(b.trunc(b.and_(column, I64(per - 1)), I32), I32(self.bits))
            return b.and_(splat(b, b.lshr(byte, shift), 1), mask)
        at = b.gep(self.codes(row, column), [I64(first // per)])
        count = lanes // per
        kind = ir.VectorType(I8, count)
        some = b.zext(b.load(b.bitcast(at, kind.as_pointer()), align=1), ir.VectorType(I32, count))
        # each byte goes to all lanes that hold one of its codes, and each lane shifts by its own
        # amount
        spread = ir.Constant(vector, [i // per for i in range(lanes)])
        shifts = ir.Constant(vector, [i % per * self.bits for i in range(lanes)])
        return b.and_(b.lshr(b.shuffle_vector(some, some, spread), shifts), mask)


def _small_float(b: ir.IRBuilder, code: ir.Value, lanes: int, number: SmallFloat) -> ir.Value:
    """fp32 numbers of codes (i32 vectors) of a small float.

    The magnitude is shifted to where fp32 keeps its own, and a power of two makes up for the
    biases. Magnitudes from `special` on (shifted) get the bits `infinite` too: a topmost exponent,
    so that they are infinite or NaN.
    """
    vector = ir.VectorType(I32, lanes)
    floats = ir.VectorType(F32, lanes)
    left = 23 - number.mantissa
    rebias = 127 - number.bias
    sign_bit = left + number.bits - 1
    top = (1 << (number.bits - 1)) - 1
    first_special = top + 1 - (1 << number.mantissa) if number.infinity else top
    special = first_special << left
    infinite = 0x7F800000 if number.infinity else 0x7FC00000

    def constant(value: int) -> ir.Constant:
        return ir.Constant(vector, [value] * lanes)

    shifted = b.shl(code, constant(left))
    magnitude = b.and_(shifted, constant((1 << sign_bit) - 1))
    sign = b.shl(b.and_(shifted, constant(1 << sign_bit)), constant(31 - sign_bit))
    # a subnormal: read beside a 1, which then goes
    small = b.icmp_unsigned("<", magnitude, constant(1 << 23))
    # The number is built beside a power of two that is subtracted again: exact, while arithmetic on
    # a subnormal fp32 number is many times slower.
    base = b.select(small, constant((rebias + 1) << 23), constant(rebias << 23))
    one, none = (ir.Constant(floats, [x] * lanes) for x in (math.ldexp(1.0, rebias - 126), 0.0))
    scaled = b.fsub(b.bitcast(b.add(magnitude, base), floats), b.select(small, one, none))
    above = b.icmp_unsigned(">=", magnitude, constant(special))
    bits = b.select(above, b.or_(magnitude, constant(infinite)), b.bitcast(scaled, vector))
    return b.bitcast(b.or_(bits, sign), floats)


def _half(b: ir.IRBuilder, code: ir.Value, lanes: int) -> ir.Value:
    if (
        WIDE_HALVES and lanes == 16
    ):  # fp16 to fp64 in one instruction, which LLVM would make of it, is slower than in two
        floats = ir.VectorType(F32, lanes)
        narrow = b.trunc(code, ir.VectorType(_I16, lanes))
        zeros = ir.Constant(floats, [0.0] * lanes)
        return call(
            b, "llvm.x86.avx512.mask.vcvtph2ps.512", floats, narrow, zeros, _I16(-1), I32(4)
        )
    if HALVES:
        halves = b.bitcast(
            b.trunc(code, ir.VectorType(_I16, lanes)), ir.VectorType(ir.HalfType(), lanes)
        )
        return b.fpext(halves, ir.VectorType(F32, lanes))
    return _small_float(b, code, lanes, FP16)


def _bf16(b: ir.IRBuilder, code: ir.Value, lanes: int) -> ir.Value:
    shifted = b.shl(code, ir.Constant(ir.VectorType(I32, lanes), [16] * lanes))
    return b.bitcast(shifted, ir.VectorType(F32, lanes))


def _e5m2(b: ir.IRBuilder, code: ir.Value, lanes: int) -> ir.Value:
    return _half(b, b.shl(code, ir.Constant(ir.VectorType(I32, lanes), [8] * lanes)), lanes)


# where the processor, or the likeness to a wider format, saves instructions
DECODERS = {"fp16": _half, "bf16": _bf16, "fp8_e5m2": _e5m2}


def _decoder(
    context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
) -> RowDecoder:
    """Of intrinsics whose arguments begin with (values, row, stride)."""
    values = data(context, builder, signature, args, 0)
    return RowDecoder(context, builder, signature.args[0], values, args[2])


@intrinsic
def number_at(typingctx, values, row, stride, column):
    """fp32 number of one column of the row that starts at element `row`."""

    def codegen(context, builder, signature, args):
        rows = _decoder(context, builder, signature, args)
        address = rows.row(args[1])
        number = rows.vector(address, rows.scales(address, 1), args[3], 0, 1)
        return builder.extract_element(number, I32(0))

    i = types.int64
    return types.float32(values, i, i, i), codegen


def _plus_zero(builder: ir.IRBuilder, numbers: ir.Value) -> ir.Value:
    """-0 becomes +0."""
    return builder.fadd(numbers, ir.Constant(numbers.type, [0.0] * numbers.type.count))


def _canonical(builder: ir.IRBuilder, numbers: ir.Value) -> ir.Value:
    """-0 becomes +0, every NaN the one that is stored."""
    y = _plus_zero(builder, numbers)
    nan = builder.bitcast(
        ir.Constant(ir.VectorType(I32, y.type.count), [_NAN] * y.type.count), y.type
    )
    return builder.select(builder.fcmp_ordered("ord", y, y), y, nan)


def _widened(builder: ir.IRBuilder, numbers: ir.Value) -> ir.Value:
    """fp64, -0 as +0."""
    return _plus_zero(builder, builder.fpext(numbers, ir.VectorType(F64, numbers.type.count)))


def _each_vector(
    rows: RowDecoder,
    addresses: Sequence[ir.Value],
    width: ir.Value,
    most: int,
    body: Callable[[ir.Value, list[ir.Value]], None],
) -> None:
    """body(column, numbers of each row) for all columns of some rows, `most` of them at once."""
    b = rows.builder
    done = b.and_(width, I64(-most))
    # whole vectors, then single columns: the row behind may not be read, it can be the table's last
    for lanes, first, last in ((most, I64(0), done), (1, done, width)):
        scales = [rows.scales(address, lanes) for address in addresses]
        with cgutils.for_range_slice(b, first, last, I64(lanes)) as (c, _):
            body(c, [rows.vector(a, s, c, 0, lanes) for a, s in zip(addresses, scales)])


def _row_copy(finish: Callable[[ir.IRBuilder, ir.Value], ir.Value], element: ir.Type) -> Any:
    """Intrinsic: the numbers of a row into an array of `element`, each through `finish`."""

    def codegen(context, b, signature, args):
        rows = _decoder(context, b, signature, args)
        out = data(context, b, signature, args, 4)

        def copy(c: ir.Value, row: list[ir.Value]) -> None:
            numbers = finish(b, row[0])
            target = b.bitcast(b.gep(out, [c]), numbers.type.as_pointer())
            b.store(numbers, target, align=8 if element == F64 else 4)

        _each_vector(rows, [rows.row(args[1])], args[3], LANES, copy)
        return context.get_dummy_value()

    @intrinsic
    def copy_row(typingctx, values, row, stride, width, out):
        """out[:width] = the numbers of the row that starts at element `row`."""
        i = types.int64
        return types.void(values, i, i, i, out), codegen

    return copy_row


read_row = _row_copy(lambda _, numbers: numbers, F32)
widened_row = _row_copy(_widened, F64)


def _added_rows(most: int) -> Any:
    """Intrinsic: a row, or the sum of two, `most` numbers at once."""

    def codegen(context, b, signature, args):
        values, rows, stride, width, weights, past, out = args
        values, out = (data(context, b, signature, args, q) for q in (0, 6))
        decoder = RowDecoder(context, b, signature.args[0], values, stride)
        addresses = [decoder.row(row) for row in cgutils.unpack_tuple(b, rows)]
        weights = cgutils.unpack_tuple(b, weights)

        def copy(past: bool) -> None:
            def body(c: ir.Value, numbers: Sequence[ir.Value]) -> None:
                lanes = numbers[0].type.count
                terms = [b.fmul(x, splat(b, w, lanes)) for x, w in zip(numbers, weights)]
                total = _canonical(b, reduce(b.fadd, terms))
                target = b.bitcast(b.gep(out, [c]), total.type.as_pointer())
                store = b.store(total, target, align=4 * lanes if past else 4)
                if past:
                    store.set_metadata("nontemporal", b.module.add_metadata([I32(1)]))

            _each_vector(decoder, addresses, width, most, body)

        with b.if_else(b.and_(past, I1(int(X86)))) as (then, otherwise):
            with then:
                copy(True)
            with otherwise:
                copy(False)
        return context.get_dummy_value()

    @intrinsic
    def add_rows(typingctx, values, rows, stride, width, weights, past, out):
        """out[:width] f32 = a row times its weight, or the sum of two, rounded once, canonical.

        rows : elements at which they start. weights : f32, one for each.
        past : is `out` written past the caches? Then it is aligned to a cache line.
        """
        i = types.int64
        return types.void(values, rows, i, i, weights, types.boolean, out), codegen

    return add_rows


whole_rows = _added_rows(LANES)
# For the column tree, which soon reads the row eight at a time: a load that is wider than the
# stores before it waits for them (`simd/square_sums.py`).
rows_in_eights = _added_rows(min(LANES, 8))


def _row_fetch(locality: int) -> Any:
    """Intrinsic: prefetch a row into the first-level cache (locality 3) or the second (2)."""

    def codegen(context, builder, signature, args):
        b = builder
        rows = _decoder(context, b, signature, args)
        address = rows.row(args[1])
        size = b.lshr(b.mul(args[3], I64(rows.bits)), I64(3))
        # 8: the longest header, which may stand in one more cache line
        end = b.add(size, I64(8 if rows.scaled else 0))
        with cgutils.for_range_slice(b, I64(0), end, I64(64)) as (at, _):
            prefetch_line(b, b.gep(address, [at]), locality)
        return context.get_dummy_value()

    @intrinsic
    def fetch(typingctx, values, row, stride, width):
        """Prefetch the row that starts at element `row`."""
        i = types.int64
        return types.void(values, i, i, i), codegen

    return fetch


fetch_row = _row_fetch(3)
fetch_row_far = _row_fetch(2)
