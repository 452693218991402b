"""How are the panels of a matrix product packed, and its finished tiles stored?

By copies, sums, transposes and the last step of a product, on vectors of LANES floats. All take
flat positions in contiguous float32 arrays of any shape. Nothing is multiplied here, and only
`add_floats` and `finish_tile` add: one plain fp32 addition per element.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neocpu.kernels.simd import F32, I8, I32, I64, call, data, splat, start_and_step, vector_pointer
from neocpu.kernels.simd.tiles import LANES, MR, NC, NV

_VECTOR = ir.VectorType(F32, LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)


def _bases(context, builder, signature, args, *positions):
    """Pointers to the elements args[q][args[q + 1]] of the arrays at these argument positions."""
    return [
        builder.gep(data(context, builder, signature, args, q), [args[q + 1]]) for q in positions
    ]


def _load(builder, base, at):
    return builder.load(vector_pointer(builder, base, at, _VECTOR), align=4)


def _store(builder, value, base, at):
    builder.store(value, vector_pointer(builder, base, at, _VECTOR), align=4)


def _lanes_below(builder, count):
    """Mask of the lanes numbered below `count`."""
    numbers = ir.Constant(ir.VectorType(I64, LANES), list(range(LANES)))
    return builder.icmp_signed("<", numbers, splat(builder, count, LANES))


def _masked_load(builder, base, at, mask, otherwise):
    name = f"llvm.masked.load.v{LANES}f32.p0"
    return call(
        builder, name, _VECTOR, vector_pointer(builder, base, at, _VECTOR), I32(4), mask, otherwise
    )


def _masked_store(builder, value, base, at, mask):
    name = f"llvm.masked.store.v{LANES}f32.p0"
    call(
        builder,
        name,
        ir.VoidType(),
        value,
        vector_pointer(builder, base, at, _VECTOR),
        I32(4),
        mask,
    )


@intrinsic
def cache_line_offset(typingctx, x):
    """Floats between the start of x and the next cache line of 64 bytes: 0 ... 15."""

    def codegen(context, builder, signature, args):
        # New arrays begin at 16 or 32 bytes; a vector that crosses cache lines is read as two.
        address = builder.ptrtoint(data(context, builder, signature, args, 0), I64)
        return builder.and_(builder.lshr(builder.neg(address), I64(2)), I64(15))

    return types.int64(x), codegen


@intrinsic
def copy_floats(typingctx, x, x_at, out, out_at, count):
    """out[out_at : out_at + count] = x[x_at : x_at + count]."""

    def codegen(context, builder, signature, args):
        source, target = _bases(context, builder, signature, args, 0, 2)
        cgutils.raw_memcpy(builder, target, source, args[4], I64(4), align=4)
        return context.get_dummy_value()

    n = types.int64
    return types.void(x, n, out, n, n), codegen


@intrinsic
def clear_floats(typingctx, x, x_at, count):
    """x[x_at : x_at + count] = +0."""

    def codegen(context, builder, signature, args):
        (target,) = _bases(context, builder, signature, args, 0)
        cgutils.memset(
            builder, builder.bitcast(target, I8.as_pointer()), builder.mul(args[2], I64(4)), 0
        )
        return context.get_dummy_value()

    return types.void(x, types.int64, types.int64), codegen


@intrinsic
def add_floats(typingctx, x, x_at, out, out_at, count):
    """out[out_at + c] = fl(out[out_at + c] + x[x_at + c]) for c < count."""

    def codegen(context, builder, signature, args):
        source, target = _bases(context, builder, signature, args, 0, 2)
        # LANES is a power of two, so its negative is the mask that rounds down
        whole = builder.and_(args[4], I64(-LANES))
        with cgutils.for_range_slice(builder, I64(0), whole, I64(LANES)) as (c, _):
            _store(
                builder,
                builder.fadd(_load(builder, target, c), _load(builder, source, c)),
                target,
                c,
            )
        # one masked vector for the rest, instead of a loop over up to 15 elements
        with builder.if_then(builder.icmp_signed("<", whole, args[4])):
            mask = _lanes_below(builder, builder.sub(args[4], whole))
            sums, addends = (
                _masked_load(builder, base, whole, mask, _ZERO) for base in (target, source)
            )
            _masked_store(builder, builder.fadd(sums, addends), target, whole, mask)
        return context.get_dummy_value()

    n = types.int64
    return types.void(x, n, out, n, n), codegen


def _copy(lanes):
    """Intrinsic: out[out_at + c] = x[x_at + c] for c < lanes."""

    @intrinsic
    def copy(typingctx, x, x_at, out, out_at):
        def codegen(context, builder, signature, args):
            vector = ir.VectorType(F32, lanes)
            source, target = _bases(context, builder, signature, args, 0, 2)
            row = builder.load(vector_pointer(builder, source, I64(0), vector), align=4)
            builder.store(row, vector_pointer(builder, target, I64(0), vector), align=4)
            return context.get_dummy_value()

        return types.void(x, types.int64, out, types.int64), codegen

    return copy


# one step of an A panel
copy_a = _copy(MR)
# one step of a B panel
copy_b = _copy(NC)
# one vector
copy_lanes = _copy(LANES)


def _transposed(builder, rows):
    """Columns of a LANES x LANES block whose row vectors are given.

    log2(LANES) rounds exchange half of the elements between pairs of rows.
    """
    width = LANES // 2
    while width:
        for i in range(LANES):
            if i & width == 0:
                a = rows[i]
                b = rows[i + width]
                lower = [c if c & width == 0 else LANES + c - width for c in range(LANES)]
                upper = [c + width if c & width == 0 else LANES + c for c in range(LANES)]
                lower_mask, upper_mask = (
                    ir.Constant(ir.VectorType(I32, LANES), lanes) for lanes in (lower, upper)
                )
                rows[i] = builder.shuffle_vector(a, b, lower_mask)
                rows[i + width] = builder.shuffle_vector(a, b, upper_mask)
        width //= 2
    return rows


@intrinsic
def transpose_block(typingctx, x, x_at, stride, rows, out, out_at, step):
    """out[out_at + k*step + r] = x[x_at + min(r, rows - 1)*stride + k] for r, k < LANES.

    `rows` may be 0 or negative. The last row is repeated beyond the end: its values are not used,
    but leftovers in memory may be subnormal numbers, which make arithmetic slow.
    """

    def codegen(context, builder, signature, args):
        source, target = _bases(context, builder, signature, args, 0, 4)
        last = builder.sub(args[3], I64(1))
        vectors = []
        for r in range(LANES):
            # a row that exists is read again, so that no load leaves the matrix
            row = builder.select(builder.icmp_signed("<", I64(r), last), I64(r), last)
            vectors.append(_load(builder, source, builder.mul(args[2], row)))
        for k, column in enumerate(_transposed(builder, vectors)):
            _store(builder, column, target, builder.mul(args[6], I64(k)))
        return context.get_dummy_value()

    n = types.int64
    return types.void(x, n, n, n, out, n, n), codegen


@intrinsic
def mirror_block(typingctx, x, x_at, stride):
    """Mirror a lower triangle: x[x_at + r*stride + c] = x[x_at + c*stride + r], r < c < LANES."""

    def codegen(context, builder, signature, args):
        (base,) = _bases(context, builder, signature, args, 0)
        starts = [builder.mul(args[2], I64(r)) for r in range(LANES)]
        # all rows are loaded before any is stored: the block is its own source
        rows = [_load(builder, base, start) for start in starts]
        columns = _transposed(builder, list(rows))
        for r, (start, column) in enumerate(zip(starts, columns)):
            mask = ir.Constant(
                ir.VectorType(I32, LANES), [c if c <= r else LANES + c for c in range(LANES)]
            )
            _store(builder, builder.shuffle_vector(rows[r], column, mask), base, start)
        return context.get_dummy_value()

    n = types.int64
    return types.void(x, n, n), codegen


# What `finish_tile` does to a tile: nothing, add a bias, add a bias and apply ReLU, or clear the
# elements whose gate is not positive.
PLAIN = 0
BIAS = 1
BIAS_RELU = 2
GATE = 3


def _gated(builder, value, gate):
    """`value`, but +0 where `gate` <= 0; a NaN gate keeps the value."""
    # Ordered: a NaN compares false, so it stays, and -0 becomes +0.
    return builder.select(builder.fcmp_ordered("<=", gate, _ZERO), _ZERO, value)


def _finished(builder, value, operand, mode):
    """One vector of a tile, finished by `mode`, which is known when the code is generated."""
    if mode == GATE:
        return _gated(builder, value, operand)
    if mode == PLAIN:
        return value
    biased = builder.fadd(value, operand)
    return _gated(builder, biased, biased) if mode == BIAS_RELU else biased


@intrinsic
def finish_tile(typingctx, tiles, at, rows, columns, operand, beside, mode, out, into):
    """out[into.at + i*into.step + j] = finished tiles[at + i*NC + j] for i < rows, j < columns.

    The operand is a bias (beside.step 0) or a gate with the layout of out; PLAIN does not read it.
    beside, into : `operands.Position` in `operand` and `out`.
    """

    def codegen(context, builder, signature, args):
        _, _, rows, columns, _, _, mode, _, _ = args
        (source,) = _bases(context, builder, signature, args, 0)
        operand, operand_step = start_and_step(context, builder, signature, args, 4)
        target, target_step = start_and_step(context, builder, signature, args, 7)
        masks = [_lanes_below(builder, builder.sub(columns, I64(j * LANES))) for j in range(NV)]

        def position(row, step, j):
            return builder.add(builder.mul(row, step), I64(j * LANES))

        def emit_rows(mode, whole):
            with cgutils.for_range(builder, rows) as loop:
                for j in range(NV):
                    value = _load(builder, source, position(loop.index, I64(NC), j))
                    operand_at = position(loop.index, operand_step, j)
                    target_at = position(loop.index, target_step, j)
                    if mode == PLAIN:
                        vector = None
                    elif whole:
                        vector = _load(builder, operand, operand_at)
                    else:
                        vector = _masked_load(builder, operand, operand_at, masks[j], _ZERO)
                    finished = _finished(builder, value, vector, mode)
                    if whole:
                        _store(builder, finished, target, target_at)
                    else:
                        _masked_store(builder, finished, target, target_at, masks[j])

        full = builder.icmp_signed("==", columns, I64(NC))
        # The mode is asked once for a tile, not in its rows: each mode has loops of its own.
        for known in (PLAIN, BIAS, BIAS_RELU, GATE):
            chosen = builder.icmp_signed("==", mode, I64(known))
            with builder.if_then(chosen), builder.if_else(full) as (inner, edge):
                with inner:
                    emit_rows(known, True)
                with edge:
                    emit_rows(known, False)
        return context.get_dummy_value()

    n = types.int64
    return types.void(tiles, n, n, n, operand, beside, n, out, into), codegen
