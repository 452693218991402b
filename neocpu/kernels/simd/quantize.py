"""How does a row of numbers become a row of 8-, 4- or 2-bit codes? Its range first, then 32 columns
at a time.

    row_range     minimum and maximum as FBGEMM's AVX2 code finds them, also of NaN and zeros
    quick_range   the same numbers of ordinary rows, in four independent chains
    write_codes   (x - low) * inverse, rounded by adding 2^23; the lowest bytes are the codes,
                  squeezed into words
    read_codes    words spread to bytes, then fma(code, scale, bias)

The last columns, fewer than eight, take the same way, through a buffer if they do not fill whole
bytes.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neocpu.kernels.simd import F32, I1, I8, I32, I64, call, data, splat, vector_pointer

ROW_LANES = 8  # the order in which FBGEMM's AVX2 code compares the elements of a row
# columns of one step: their codes fill at least one word of 64 bits; then 16, then 8 columns
_RUN = 32


@intrinsic
def row_range(typingctx, line):
    """(minimum, maximum, whether any is NaN) of a line f32[n], compared in the order of FBGEMM's
    AVX2 code.

    Eight lanes go down the row, each `m = m < x ? m : x` (so a NaN wipes out what its lane has
    seen, and is itself wiped out by the next number); then the lanes, then the rest of the row, `m
    = x < m ? x : m`.
    """

    def codegen(context, builder, signature, args):
        b = builder
        lanes = ROW_LANES
        vector = ir.VectorType(F32, lanes)
        mask = ir.VectorType(I1, lanes)
        array = context.make_array(signature.args[0])(context, b, args[0])
        line = data(context, b, signature, args, 0)
        n = array.nitems
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

        # One lane after the other would wait for each comparison. Without NaN and infinity,
        # neighbours against neighbours, the first of equals kept, find the same number (and the
        # same zero).
        for order, seen, slot in slots.values():
            start = ir.Constant(vector, [(largest if order == "<" else smallest).constant] * lanes)
            m = b.load(seen)
            m = b.select(b.fcmp_ordered(order, m, start), m, start)
            for half in (1, 2, 4):
                other = b.shuffle_vector(m, m, ir.Constant(ir.VectorType(I32, lanes), _moved(half)))
                m = b.select(b.fcmp_ordered(order, other, m), other, m)
            b.store(b.extract_element(m, I32(0)), slot)
        with cgutils.for_range_slice(b, whole, n, I64(1)) as (j, _):
            x = b.load(b.gep(line, [j]))
            for order, _, slot in slots.values():
                compare(x, order, slot)
            b.store(b.or_(b.load(odd), b.fcmp_unordered("uno", x, x)), odd)
        values = [
            b.load(slots["low"][2]),
            b.load(slots["high"][2]),
            b.zext(b.load(odd), ir.IntType(8)),
        ]
        return context.make_tuple(b, signature.return_type, values)

    return types.Tuple((types.float32, types.float32, types.uint8))(line), codegen


@intrinsic
def quick_range(typingctx, line):
    """(minimum, maximum, whether any is NaN) of a line f32[n], in any order: not for zeros of
    either sign, nor for NaN.
    """

    def codegen(context, b, signature, args):
        lanes = ROW_LANES
        chains = 4
        vector = ir.VectorType(F32, lanes)
        mask = ir.VectorType(I1, lanes)
        array = context.make_array(signature.args[0])(context, b, args[0])
        line = data(context, b, signature, args, 0)
        n = array.nitems
        largest = ir.Constant(vector, [3.4028234663852886e38] * lanes)
        smallest = ir.Constant(vector, [-3.4028234663852886e38] * lanes)
        low, high, odd = (
            [cgutils.alloca_once(b, t) for _ in range(chains)] for t in (vector, vector, mask)
        )
        for i in range(chains):
            b.store(largest, low[i])
            b.store(smallest, high[i])
            b.store(ir.Constant(mask, [0] * lanes), odd[i])

        def see(i: int, x: Any) -> None:
            m = b.load(low[i])
            h = b.load(high[i])
            b.store(b.select(b.fcmp_ordered("<", m, x), m, x), low[i])
            b.store(b.select(b.fcmp_ordered(">", h, x), h, x), high[i])
            b.store(b.or_(b.load(odd[i]), b.fcmp_unordered("uno", x, x)), odd[i])

        runs = b.and_(n, I64(-lanes * chains))
        whole = b.and_(n, I64(-lanes))
        with cgutils.for_range_slice(b, I64(0), runs, I64(lanes * chains)) as (j, _):
            for i in range(chains):
                see(i, b.load(vector_pointer(b, line, b.add(j, I64(lanes * i)), vector), align=4))
        with cgutils.for_range_slice(b, runs, whole, I64(lanes)) as (j, _):
            see(0, b.load(vector_pointer(b, line, j, vector), align=4))
        with cgutils.for_range_slice(b, whole, n, I64(1)) as (j, _):
            see(1, splat(b, b.load(b.gep(line, [j])), lanes))

        def merge(slots: Any, order: str) -> Any:
            m = b.load(slots[0])
            for slot in slots[1:]:
                other = b.load(slot)
                m = b.select(b.fcmp_ordered(order, other, m), other, m)
            for half in (4, 2, 1):
                other = b.shuffle_vector(m, m, ir.Constant(ir.VectorType(I32, lanes), _moved(half)))
                m = b.select(b.fcmp_ordered(order, other, m), other, m)
            return b.extract_element(m, I32(0))

        any_odd = b.or_(
            b.or_(b.load(odd[0]), b.load(odd[1])), b.or_(b.load(odd[2]), b.load(odd[3]))
        )
        found = call(b, f"llvm.vector.reduce.or.v{lanes}i1", I1, any_odd)
        values = [merge(low, "<"), merge(high, ">"), b.zext(found, ir.IntType(8))]
        return context.make_tuple(b, signature.return_type, values)

    return types.Tuple((types.float32, types.float32, types.uint8))(line), codegen


def _moved(half: int) -> list[int]:
    """Lane i + half for lane i, as far as there is one."""
    return [min(i + half, ROW_LANES - 1) for i in range(ROW_LANES)]


def _vector(kind: Any, lanes: int) -> Any:
    return ir.VectorType(kind, lanes)


def _many(kind: Any, value: Any, lanes: int) -> Any:
    return ir.Constant(_vector(kind, lanes), [value] * lanes)


def _squeeze(b: Any, codes: Any, bits: int, columns: int) -> Any:
    """Bytes of some codes (<columns x i8>), low bits first."""
    if bits == 8:
        return codes
    word = ir.IntType(64 // bits)
    n = columns * 8 // word.width
    v = b.bitcast(codes, _vector(word, n))
    packed = v
    for i in range(1, 8 // bits):
        packed = b.or_(packed, b.lshr(v, _many(word, (8 - bits) * i, n)))
    return b.trunc(packed, _vector(I8, n))


def _spread(b: Any, packed: Any, bits: int, columns: int) -> Any:
    """Codes (<columns x i8>) of their bytes."""
    if bits == 8:
        return packed
    n = columns * bits // 8
    word = ir.IntType(64 // bits)
    v = b.zext(packed, _vector(word, n))
    spread = v
    mask = (1 << bits) - 1
    for i in range(1, 8 // bits):
        spread = b.or_(spread, b.shl(v, _many(word, (8 - bits) * i, n)))
        mask |= ((1 << bits) - 1) << (8 * i)
    return b.bitcast(b.and_(spread, _many(word, mask, n)), _vector(I8, columns))


def _each_run(b: Any, n: Any, bits: Any, step: Any) -> None:
    """step(bits, first, columns, None) for runs of 32, 16 and 8 columns, then the rest or
    step(bits, first, 8, how many).
    """
    for width in (8, 4, 2):
        with b.if_then(b.icmp_signed("==", bits, I64(width))):
            whole = b.and_(n, I64(-_RUN))
            with cgutils.for_range_slice(b, I64(0), whole, I64(_RUN)) as (j, _):
                step(width, j, _RUN, None)
            for columns in (16, 8):
                with b.if_then(b.icmp_signed("!=", b.and_(n, I64(columns)), I64(0))):
                    step(width, b.and_(n, I64(-2 * columns)), columns, None)
            per = 8 // width
            # Eight columns that fill whole bytes: the last ones are done, some of them for the
            # second time.
            plain = b.and_(
                b.icmp_signed(">=", n, I64(8)), b.icmp_signed("==", b.and_(n, I64(per - 1)), I64(0))
            )
            with (
                b.if_then(b.icmp_signed("!=", b.and_(n, I64(7)), I64(0))),
                b.if_else(plain) as (again, buffered),
            ):
                with again:
                    step(width, b.sub(n, I64(8)), 8, None)
                with buffered:
                    step(width, b.and_(n, I64(-8)), 8, b.and_(n, I64(7)))


def _copy(b: Any, to: Any, source: Any, n: Any) -> None:
    """to[i] = source[i] for i < n, a few elements."""
    with cgutils.for_range(b, n) as loop:
        b.store(b.load(b.gep(source, [loop.index])), b.gep(to, [loop.index]))


def _byte_at(b: Any, base: Any, column: Any, bits: int) -> Any:
    return b.gep(base, [b.lshr(b.mul(column, I64(bits)), I64(3))])


def _bytes_of(b: Any, columns: Any, bits: int) -> Any:
    return b.lshr(b.add(b.mul(columns, I64(bits)), I64(7)), I64(3))


@intrinsic
def write_codes(typingctx, line, bits, low, inverse, row):
    """row = codes of 8, 4 or 2 bits of (x - low) * inverse, nearest even, saturated, low bits
    first; NaN becomes 0.

    `line` f32[n], `row` u8[>= ceil(n * bits / 8)]; 2^23 is added, then the lowest byte is the code.
    """

    def codegen(context, b, signature, args):
        array = context.make_array(signature.args[0])(context, b, args[0])
        source, to = (data(context, b, signature, args, p) for p in (0, 4))
        padded = cgutils.alloca_once(b, _vector(F32, 8))
        spare = cgutils.alloca_once(b, _vector(I8, 8))

        def step(width: int, j: Any, columns: int, left: Any) -> None:
            f32 = _vector(F32, columns)
            at = _byte_at(b, to, j, width)
            if left is None:
                x = b.load(vector_pointer(b, source, j, f32), align=4)
            else:
                b.store(splat(b, args[2], columns), padded)  # columns past the end get code 0
                _copy(b, b.bitcast(padded, F32.as_pointer()), b.gep(source, [j]), left)
                x = b.load(padded)
            v = b.fmul(b.fsub(x, splat(b, args[2], columns)), splat(b, args[3], columns))
            zero = _many(F32, 0.0, columns)
            most = _many(F32, float((1 << width) - 1), columns)
            v = b.select(b.fcmp_ordered(">", v, zero), v, zero)
            v = b.select(b.fcmp_ordered("<", v, most), v, most)
            whole = b.bitcast(b.fadd(v, _many(F32, 8388608.0, columns)), _vector(I32, columns))
            packed = _squeeze(b, b.trunc(whole, _vector(I8, columns)), width, columns)
            place = at if left is None else b.bitcast(spare, I8.as_pointer())
            b.store(packed, b.bitcast(place, packed.type.as_pointer()), align=1)
            if left is not None:
                _copy(b, at, place, _bytes_of(b, left, width))

        _each_run(b, array.nitems, args[1], step)
        return context.get_dummy_value()

    return types.void(line, types.int64, types.float32, types.float32, row), codegen


@intrinsic
def read_codes(typingctx, row, bits, scale, bias, line):
    """line = fma(code, scale, bias) of codes of 8, 4 or 2 bits. `row` u8[>= ceil(n * bits / 8)],
    `line` f32[n].
    """

    def codegen(context, b, signature, args):
        array = context.make_array(signature.args[4])(context, b, args[4])
        source, to = (data(context, b, signature, args, p) for p in (0, 4))
        spare = cgutils.alloca_once(b, _vector(I8, 8))
        numbers = cgutils.alloca_once(b, _vector(F32, 8))

        def step(width: int, j: Any, columns: int, left: Any) -> None:
            f32 = _vector(F32, columns)
            packed = _vector(I8, columns * width // 8)
            at = _byte_at(b, source, j, width)
            if left is not None:
                place = b.bitcast(spare, I8.as_pointer())
                _copy(b, place, at, _bytes_of(b, left, width))
                at = place
            codes = _spread(b, b.load(b.bitcast(at, packed.as_pointer()), align=1), width, columns)
            q = b.sitofp(b.zext(codes, _vector(I32, columns)), f32)
            value = call(
                b,
                f"llvm.fma.v{columns}f32",
                f32,
                q,
                splat(b, args[2], columns),
                splat(b, args[3], columns),
            )
            if left is None:
                b.store(value, vector_pointer(b, to, j, f32), align=4)
            else:
                b.store(value, numbers)
                _copy(b, b.gep(to, [j]), b.bitcast(numbers, F32.as_pointer()), left)

        _each_run(b, array.nitems, args[1], step)
        return context.get_dummy_value()

    return types.void(row, types.int64, types.float32, types.float32, line), codegen
