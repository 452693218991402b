"""How does a row of numbers become a row of 8-, 4- or 2-bit codes?

Its range is found first, then its columns are encoded, 32 at a time.

    row_range     minimum and maximum as FBGEMM's AVX2 code finds them, also with NaN and zeros
    quick_range   the same for rows without NaN and zeros, in four independent chains
    write_codes   (x - low) * inverse, rounded by adding 2^23; the lowest bytes are the codes, which
                  are packed into words
    read_codes    codes unpacked to bytes, then fma(code, scale, bias)

The last columns, fewer than eight, are handled in the same way, in a buffer if they do not fill
whole bytes.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neocpu.kernels.simd import F32, I1, I8, I32, I64, call, data, splat, vector_pointer

# lanes of FBGEMM's AVX2 code; they give the order in which the elements of a row are compared
ROW_LANES = 8
# columns of one step, whose codes fill at least one word of 64 bits
_RUN = 32


@intrinsic
def row_range(typingctx, line):
    """(minimum, maximum, is any NaN) of a row f32[n], in the order of FBGEMM's AVX2 code.

    Each of eight lanes computes `m = m < x ? m : x` over its elements, so a NaN replaces the
    minimum of its lane and is itself replaced by the next number. Then the lanes and after them the
    rest of the row are compared by `m = x < m ? x : m`.
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
        extrema = {}
        for name, order, start in (("low", "<", largest), ("high", ">", smallest)):
            extrema[name] = order, cgutils.alloca_once(b, vector), cgutils.alloca_once(b, F32)
            b.store(ir.Constant(vector, [start.constant] * lanes), extrema[name][1])
            b.store(start, extrema[name][2])
        unordered = cgutils.alloca_once(b, mask)
        b.store(ir.Constant(mask, [0] * lanes), unordered)
        whole = b.and_(n, I64(-lanes))
        with cgutils.for_range_slice(b, I64(0), whole, I64(lanes)) as (j, _):
            # `m < x ? m : x`, not a minimum: of two equal zeros, and with a NaN, the second is kept
            x = b.load(vector_pointer(b, line, j, vector), align=4)
            for order, lane_slot, _ in extrema.values():
                m = b.load(lane_slot)
                b.store(b.select(b.fcmp_ordered(order, m, x), m, x), lane_slot)
            b.store(b.or_(b.load(unordered), b.fcmp_unordered("uno", x, x)), unordered)
        any_nan = cgutils.alloca_once(b, I1)
        b.store(call(b, f"llvm.vector.reduce.or.v{lanes}i1", I1, b.load(unordered)), any_nan)

        # Lanes compared one by one would wait for each comparison. Without NaN and infinity, a
        # tree that keeps the first of equal numbers finds the same number, and the same zero.
        for order, lane_slot, slot in extrema.values():
            start = ir.Constant(vector, [(largest if order == "<" else smallest).constant] * lanes)
            m = b.load(lane_slot)
            m = b.select(b.fcmp_ordered(order, m, start), m, start)
            for distance in (1, 2, 4):
                m = _reduced(b, m, order, distance)
            b.store(b.extract_element(m, I32(0)), slot)
        with cgutils.for_range_slice(b, whole, n, I64(1)) as (j, _):
            x = b.load(b.gep(line, [j]))
            for order, _, slot in extrema.values():
                m = b.load(slot)
                b.store(b.select(b.fcmp_ordered(order, x, m), x, m), slot)
            b.store(b.or_(b.load(any_nan), b.fcmp_unordered("uno", x, x)), any_nan)
        values = [
            b.load(extrema["low"][2]),
            b.load(extrema["high"][2]),
            b.zext(b.load(any_nan), ir.IntType(8)),
        ]
        return context.make_tuple(b, signature.return_type, values)

    return types.Tuple((types.float32, types.float32, types.uint8))(line), codegen


@intrinsic
def quick_range(typingctx, line):
    """(minimum, maximum, is any NaN) of a row f32[n], in any order.

    With a NaN in the row the extrema are undefined, and of equal zeros either sign may be found.
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
        low, high, unordered = (
            [cgutils.alloca_once(b, t) for _ in range(chains)] for t in (vector, vector, mask)
        )
        for i in range(chains):
            b.store(largest, low[i])
            b.store(smallest, high[i])
            b.store(ir.Constant(mask, [0] * lanes), unordered[i])

        def compare(i: int, x: ir.Value) -> None:
            least = b.load(low[i])
            most = b.load(high[i])
            b.store(b.select(b.fcmp_ordered("<", least, x), least, x), low[i])
            b.store(b.select(b.fcmp_ordered(">", most, x), most, x), high[i])
            b.store(b.or_(b.load(unordered[i]), b.fcmp_unordered("uno", x, x)), unordered[i])

        # four chains, so that no comparison waits for the one before it
        runs = b.and_(n, I64(-lanes * chains))
        whole = b.and_(n, I64(-lanes))
        with cgutils.for_range_slice(b, I64(0), runs, I64(lanes * chains)) as (j, _):
            for i in range(chains):
                compare(
                    i, b.load(vector_pointer(b, line, b.add(j, I64(lanes * i)), vector), align=4)
                )
        with cgutils.for_range_slice(b, runs, whole, I64(lanes)) as (j, _):
            compare(0, b.load(vector_pointer(b, line, j, vector), align=4))
        with cgutils.for_range_slice(b, whole, n, I64(1)) as (j, _):
            # a single column in every lane: no lane needs a mask, and a minimum may see a number
            # twice
            compare(1, splat(b, b.load(b.gep(line, [j])), lanes))

        unordered_lanes = b.or_(
            b.or_(b.load(unordered[0]), b.load(unordered[1])),
            b.or_(b.load(unordered[2]), b.load(unordered[3])),
        )
        any_nan = call(b, f"llvm.vector.reduce.or.v{lanes}i1", I1, unordered_lanes)
        values = [_extremum(b, low, "<"), _extremum(b, high, ">"), b.zext(any_nan, ir.IntType(8))]
        return context.make_tuple(b, signature.return_type, values)

    return types.Tuple((types.float32, types.float32, types.uint8))(line), codegen


def _reduced(b: ir.IRBuilder, m: ir.Value, order: str, distance: int) -> ir.Value:
    """Lanes of m, each compared with the lane `distance` after it; of equal ones m[i] is kept."""
    numbers = [min(i + distance, ROW_LANES - 1) for i in range(ROW_LANES)]
    x = b.shuffle_vector(m, m, ir.Constant(ir.VectorType(I32, ROW_LANES), numbers))
    return b.select(b.fcmp_ordered(order, x, m), x, m)


def _extremum(b: ir.IRBuilder, slots: Sequence[ir.Value], order: str) -> ir.Value:
    """The least or greatest number of several chains of lanes."""
    m = b.load(slots[0])
    for slot in slots[1:]:
        x = b.load(slot)
        m = b.select(b.fcmp_ordered(order, x, m), x, m)
    for distance in (4, 2, 1):
        m = _reduced(b, m, order, distance)
    return b.extract_element(m, I32(0))


def _vector(kind: ir.Type, lanes: int) -> ir.VectorType:
    return ir.VectorType(kind, lanes)


def _repeated(kind: ir.Type, value: float, lanes: int) -> ir.Constant:
    """Constant vector of `lanes` equal values."""
    return ir.Constant(_vector(kind, lanes), [value] * lanes)


def _packed(b: ir.IRBuilder, codes: ir.Value, bits: int, columns: int) -> ir.Value:
    """Bytes of codes (<columns x i8>), low bits first."""
    if bits == 8:
        return codes
    # Codes are packed as words of 16 or 32 bits: the shifts move all codes of a byte at once.
    word = ir.IntType(64 // bits)
    n = columns * 8 // word.width
    v = b.bitcast(codes, _vector(word, n))
    packed = v
    for i in range(1, 8 // bits):
        packed = b.or_(packed, b.lshr(v, _repeated(word, (8 - bits) * i, n)))
    return b.trunc(packed, _vector(I8, n))


def _unpacked(b: ir.IRBuilder, packed: ir.Value, bits: int, columns: int) -> ir.Value:
    """Codes (<columns x i8>) from their bytes, the inverse of `_packed`."""
    if bits == 8:
        return packed
    n = columns * bits // 8
    word = ir.IntType(64 // bits)
    v = b.zext(packed, _vector(word, n))
    spread = v
    mask = (1 << bits) - 1
    for i in range(1, 8 // bits):
        spread = b.or_(spread, b.shl(v, _repeated(word, (8 - bits) * i, n)))
        mask |= ((1 << bits) - 1) << (8 * i)
    return b.bitcast(b.and_(spread, _repeated(word, mask, n)), _vector(I8, columns))


def _each_run(
    b: ir.IRBuilder,
    n: ir.Value,
    bits: ir.Value,
    step: Callable[[int, ir.Value, int, ir.Value | None], None],
) -> None:
    """Code of the steps over n columns: in runs of 32, then 16 and 8, then the rest of the row.

    step(bits, first, columns, None) handles whole runs, step(bits, first, 8, count) the rest where
    it needs a buffer.
    """
    for width in (8, 4, 2):
        # the width is asked once for a row; each has loops of its own
        with b.if_then(b.icmp_signed("==", bits, I64(width))):
            whole = b.and_(n, I64(-_RUN))
            with cgutils.for_range_slice(b, I64(0), whole, I64(_RUN)) as (j, _):
                step(width, j, _RUN, None)
            for columns in (16, 8):
                with b.if_then(b.icmp_signed("!=", b.and_(n, I64(columns)), I64(0))):
                    step(width, b.and_(n, I64(-2 * columns)), columns, None)
            codes_per_byte = 8 // width
            # If the row fills whole bytes, its last eight columns are done in one step, which
            # repeats some of them with the same result.
            whole_bytes = b.and_(
                b.icmp_signed(">=", n, I64(8)),
                b.icmp_signed("==", b.and_(n, I64(codes_per_byte - 1)), I64(0)),
            )
            with (
                b.if_then(b.icmp_signed("!=", b.and_(n, I64(7)), I64(0))),
                b.if_else(whole_bytes) as (overlapping, buffered),
            ):
                with overlapping:
                    step(width, b.sub(n, I64(8)), 8, None)
                with buffered:
                    step(width, b.and_(n, I64(-8)), 8, b.and_(n, I64(7)))


def _copy(b: ir.IRBuilder, target: ir.Value, source: ir.Value, n: ir.Value) -> None:
    """target[i] = source[i] for i < n, a few elements."""
    with cgutils.for_range(b, n) as loop:
        b.store(b.load(b.gep(source, [loop.index])), b.gep(target, [loop.index]))


def _byte_at(b: ir.IRBuilder, base: ir.Value, column: ir.Value, bits: int) -> ir.Value:
    """Pointer to the byte with the code of a column."""
    return b.gep(base, [b.lshr(b.mul(column, I64(bits)), I64(3))])


def _bytes_of(b: ir.IRBuilder, columns: ir.Value, bits: int) -> ir.Value:
    """Number of bytes that the codes of some columns fill."""
    return b.lshr(b.add(b.mul(columns, I64(bits)), I64(7)), I64(3))


@intrinsic
def write_codes(typingctx, line, bits, low, inverse, row):
    """row = codes of 8, 4 or 2 bits of (x - low) * inverse, packed with the low bits first.

    Rounded to nearest even (2^23 is added, and the lowest byte is the code) and saturated; the code
    of NaN is 0.
    Shapes: line f32[n]; row u8[>= ceil(n * bits / 8)].
    """

    def codegen(context, b, signature, args):
        array = context.make_array(signature.args[0])(context, b, args[0])
        source, target = (data(context, b, signature, args, p) for p in (0, 4))
        padded = cgutils.alloca_once(b, _vector(F32, 8))
        spare = cgutils.alloca_once(b, _vector(I8, 8))

        def step(width: int, j: ir.Value, columns: int, count: ir.Value | None) -> None:
            f32 = _vector(F32, columns)
            at = _byte_at(b, target, j, width)
            if count is None:
                x = b.load(vector_pointer(b, source, j, f32), align=4)
            else:
                # low has code 0, so the columns past the end do, too.
                b.store(splat(b, args[2], columns), padded)
                _copy(b, b.bitcast(padded, F32.as_pointer()), b.gep(source, [j]), count)
                x = b.load(padded)
            v = b.fmul(b.fsub(x, splat(b, args[2], columns)), splat(b, args[3], columns))
            zero = _repeated(F32, 0.0, columns)
            most = _repeated(F32, float((1 << width) - 1), columns)
            # the comparison is false for NaN, whose code so is 0
            v = b.select(b.fcmp_ordered(">", v, zero), v, zero)
            v = b.select(b.fcmp_ordered("<", v, most), v, most)
            # From 2^23 on fp32 numbers are whole: the addition rounds to nearest even, as the
            # conversion of FBGEMM's AVX2 code does, and needs no conversion.
            whole = b.bitcast(b.fadd(v, _repeated(F32, 8388608.0, columns)), _vector(I32, columns))
            packed = _packed(b, b.trunc(whole, _vector(I8, columns)), width, columns)
            first_byte = at if count is None else b.bitcast(spare, I8.as_pointer())
            b.store(packed, b.bitcast(first_byte, packed.type.as_pointer()), align=1)
            if count is not None:
                _copy(b, at, first_byte, _bytes_of(b, count, width))

        _each_run(b, array.nitems, args[1], step)
        return context.get_dummy_value()

    return types.void(line, types.int64, types.float32, types.float32, row), codegen


@intrinsic
def read_codes(typingctx, row, bits, scale, bias, line):
    """line = fma(code, scale, bias) of codes of 8, 4 or 2 bits.

    Shapes: row u8[>= ceil(n * bits / 8)]; line f32[n].
    """

    def codegen(context, b, signature, args):
        array = context.make_array(signature.args[4])(context, b, args[4])
        source, target = (data(context, b, signature, args, p) for p in (0, 4))
        spare = cgutils.alloca_once(b, _vector(I8, 8))
        numbers = cgutils.alloca_once(b, _vector(F32, 8))

        def step(width: int, j: ir.Value, columns: int, count: ir.Value | None) -> None:
            f32 = _vector(F32, columns)
            packed = _vector(I8, columns * width // 8)
            at = _byte_at(b, source, j, width)
            if count is not None:
                buffer = b.bitcast(spare, I8.as_pointer())
                _copy(b, buffer, at, _bytes_of(b, count, width))
                at = buffer
            codes = _unpacked(
                b, b.load(b.bitcast(at, packed.as_pointer()), align=1), width, columns
            )
            q = b.sitofp(b.zext(codes, _vector(I32, columns)), f32)
            value = call(
                b,
                f"llvm.fma.v{columns}f32",
                f32,
                q,
                splat(b, args[2], columns),
                splat(b, args[3], columns),
            )
            if count is None:
                b.store(value, vector_pointer(b, target, j, f32), align=4)
            else:
                b.store(value, numbers)
                _copy(b, b.gep(target, [j]), b.bitcast(numbers, F32.as_pointer()), count)

        _each_run(b, array.nitems, args[1], step)
        return context.get_dummy_value()

    return types.void(row, types.int64, types.float32, types.float32, line), codegen
