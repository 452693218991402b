"""How does a row of numbers become a row of 8-, 4- or 2-bit codes? Its range first, then 32 columns at a time.

    row_range     minimum and maximum as FBGEMM's AVX2 code finds them, NaN and signed zeros included
    quick_range   the same numbers of ordinary rows, in four independent chains
    write_codes   (x - low) * inverse, rounded by adding 2^23; the lowest bytes are the codes, squeezed into words
    read_codes    words spread to bytes, then fma(code, scale, bias)

The columns left over take the same way through a buffer of 32.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neocpu.kernels.simd import F32, I1, I8, I32, I64, call, data, splat, vector_pointer

ROW_LANES = 8  # the order in which FBGEMM's AVX2 code compares the elements of a row
_RUN = 32  # columns of one step: their codes fill at least one word of 64 bits


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

        # One lane after the other would wait for each comparison. Without NaN and infinity, neighbours against neighbours,
        # the first of equals kept, find the same number (and the same zero).
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
        values = [b.load(slots["low"][2]), b.load(slots["high"][2]), b.zext(b.load(odd), ir.IntType(8))]
        return context.make_tuple(b, signature.return_type, values)

    return types.Tuple((types.float32, types.float32, types.uint8))(line), codegen


@intrinsic
def quick_range(typingctx, line):
    """(minimum, maximum, whether any is NaN) of a line f32[n], in any order: not for zeros of either sign, nor for NaN."""

    def codegen(context, b, signature, args):
        lanes, chains = ROW_LANES, 4
        vector, mask = ir.VectorType(F32, lanes), ir.VectorType(I1, lanes)
        array = context.make_array(signature.args[0])(context, b, args[0])
        line, n = data(context, b, signature, args, 0), array.nitems
        largest = ir.Constant(vector, [3.4028234663852886e38] * lanes)
        smallest = ir.Constant(vector, [-3.4028234663852886e38] * lanes)
        low, high, odd = ([cgutils.alloca_once(b, t) for _ in range(chains)] for t in (vector, vector, mask))
        for i in range(chains):
            b.store(largest, low[i])
            b.store(smallest, high[i])
            b.store(ir.Constant(mask, [0] * lanes), odd[i])

        def see(i: int, x: Any) -> None:
            m, h = b.load(low[i]), b.load(high[i])
            b.store(b.select(b.fcmp_ordered("<", m, x), m, x), low[i])
            b.store(b.select(b.fcmp_ordered(">", h, x), h, x), high[i])
            b.store(b.or_(b.load(odd[i]), b.fcmp_unordered("uno", x, x)), odd[i])

        runs, whole = b.and_(n, I64(-lanes * chains)), b.and_(n, I64(-lanes))
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

        any_odd = b.or_(b.or_(b.load(odd[0]), b.load(odd[1])), b.or_(b.load(odd[2]), b.load(odd[3])))
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


def _squeeze(b: Any, codes: Any, bits: int) -> Any:
    """Bytes of 32 codes (<32 x i8>), low bits first."""
    if bits == 8:
        return codes
    word = ir.IntType(64 // bits)
    n = _RUN * 8 // word.width
    v = b.bitcast(codes, _vector(word, n))
    all_ = v
    for i in range(1, 8 // bits):
        all_ = b.or_(all_, b.lshr(v, _many(word, (8 - bits) * i, n)))
    return b.trunc(all_, _vector(I8, n))


def _spread(b: Any, packed: Any, bits: int) -> Any:
    """32 codes (<32 x i8>) of their bytes."""
    n = _RUN * bits // 8
    word = ir.IntType(8 * 8 // bits)
    v = b.zext(packed, _vector(word, n))
    all_, mask = v, (1 << bits) - 1
    for i in range(1, 8 // bits):
        all_ = b.or_(all_, b.shl(v, _many(word, (8 - bits) * i, n)))
        mask |= ((1 << bits) - 1) << (8 * i)
    return b.bitcast(b.and_(all_, _many(word, mask, n)), _vector(I8, _RUN))


def _each_run(b: Any, n: Any, bits: Any, widths: tuple[int, ...], step: Any) -> None:
    """step(bits, first column, columns) for all runs of 32 columns, and for what is left over; one loop for each width."""
    whole = b.and_(n, I64(-_RUN))
    for width in widths:
        with b.if_then(b.icmp_signed("==", bits, I64(width))):
            with cgutils.for_range_slice(b, I64(0), whole, I64(_RUN)) as (j, _):
                step(width, j, None)
            with b.if_then(b.icmp_signed("<", whole, n)):
                step(width, whole, b.sub(n, whole))


def _bytes_of(b: Any, columns: Any, bits: int) -> Any:
    return b.lshr(b.add(b.mul(columns, I64(bits)), I64(7)), I64(3))


@intrinsic
def write_codes(typingctx, line, bits, low, inverse, row):
    """row = codes of 8, 4 or 2 bits of (x - low) * inverse, nearest even, saturated, low bits first; NaN becomes 0.

    `line` f32[n], `row` u8[>= ceil(n * bits / 8)]; 2^23 is added, then the lowest byte is the code.
    """

    def codegen(context, b, signature, args):
        array = context.make_array(signature.args[0])(context, b, args[0])
        source, to = (data(context, b, signature, args, p) for p in (0, 4))
        f32 = _vector(F32, _RUN)
        lows, inverses = splat(b, args[2], _RUN), splat(b, args[3], _RUN)
        padded, spare = cgutils.alloca_once(b, f32), cgutils.alloca_once(b, _vector(I8, _RUN))

        def step(width: int, j: Any, left: Any) -> None:
            at = b.gep(to, [b.lshr(b.mul(j, I64(width)), I64(3))])
            if left is None:
                x = b.load(vector_pointer(b, source, j, f32), align=4)
            else:
                cgutils.raw_memcpy(b, b.bitcast(padded, F32.as_pointer()), b.gep(source, [j]), left, 4)
                x = b.load(padded)
            v = b.fmul(b.fsub(x, lows), inverses)
            zero, most = _many(F32, 0.0, _RUN), _many(F32, float((1 << width) - 1), _RUN)
            v = b.select(b.fcmp_ordered(">", v, zero), v, zero)
            v = b.select(b.fcmp_ordered("<", v, most), v, most)
            whole = b.bitcast(b.fadd(v, _many(F32, 8388608.0, _RUN)), _vector(I32, _RUN))
            codes = b.trunc(whole, _vector(I8, _RUN))
            if left is None:
                packed = _squeeze(b, codes, width)
                b.store(packed, b.bitcast(at, packed.type.as_pointer()), align=1)
            else:
                lane = ir.Constant(_vector(I32, _RUN), list(range(_RUN)))
                inside = b.icmp_unsigned("<", lane, splat(b, b.trunc(left, I32), _RUN))
                packed = _squeeze(b, b.select(inside, codes, _many(I8, 0, _RUN)), width)
                b.store(packed, b.bitcast(spare, packed.type.as_pointer()), align=1)
                cgutils.raw_memcpy(b, at, b.bitcast(spare, I8.as_pointer()), _bytes_of(b, left, width), 1)

        _each_run(b, array.nitems, args[1], (8, 4, 2), step)
        return context.get_dummy_value()

    return types.void(line, types.int64, types.float32, types.float32, row), codegen


@intrinsic
def read_codes(typingctx, row, bits, scale, bias, line):
    """line = fma(code, scale, bias) of codes of 4 or 2 bits. `row` u8[>= ceil(n * bits / 8)], `line` f32[n]."""

    def codegen(context, b, signature, args):
        array = context.make_array(signature.args[4])(context, b, args[4])
        source, to = (data(context, b, signature, args, p) for p in (0, 4))
        f32 = _vector(F32, _RUN)
        scales, biases = splat(b, args[2], _RUN), splat(b, args[3], _RUN)
        spare, numbers = cgutils.alloca_once(b, _vector(I8, _RUN)), cgutils.alloca_once(b, f32)

        def step(width: int, j: Any, left: Any) -> None:
            packed = _vector(I8, _RUN * width // 8)
            at = b.gep(source, [b.lshr(b.mul(j, I64(width)), I64(3))])
            if left is not None:
                cgutils.raw_memcpy(b, b.bitcast(spare, I8.as_pointer()), at, _bytes_of(b, left, width), 1)
                at = b.bitcast(spare, I8.as_pointer())
            codes = _spread(b, b.load(b.bitcast(at, packed.as_pointer()), align=1), width)
            q = b.sitofp(b.zext(codes, _vector(I32, _RUN)), f32)
            value = call(b, f"llvm.fma.v{_RUN}f32", f32, q, scales, biases)
            if left is None:
                b.store(value, vector_pointer(b, to, j, f32), align=4)
            else:
                b.store(value, numbers)
                cgutils.raw_memcpy(b, b.gep(to, [j]), b.bitcast(numbers, F32.as_pointer()), left, 4)

        _each_run(b, array.nitems, args[1], (4, 2), step)
        return context.get_dummy_value()

    return types.void(row, types.int64, types.float32, types.float32, line), codegen
