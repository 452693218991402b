"""How are small products of scattered rows computed? Four rows at a time, where they are.

A row of a tensor-train table is a product of small matrices that other rows share in part, so the
rows of a product stand anywhere and there are few of them: nothing is packed.

    strip_chains   c[i][j] (+)= sum_k a[i][k] b[k][j]     lanes over j: a chain over ascending k
    strip_dots     c[i][j] = sum_k a[i][k] b[j][k]        lanes over k: 16 chains, k = l, l + 16,
                                                          ..., then a binary tree, neighbours first

Both take four rows i; of fewer, the last is given again. All positions are flat.
Source: docs/arithmetic.md §14.
"""

from itertools import product

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neocpu.kernels.simd import F32, I32, I64, call, data, fields, splat, vector_pointer
from neocpu.kernels.simd.tiles import LANES

ROWS = 4  # of a strip
# Vectors of a strip's chains: with four rows they fill the registers, or what is left of a line.
WIDE = 4 if LANES == 16 else 2
DOTS = 16  # chains of a dot product, whatever the processor's vectors


def _rows(builder, base, starts):
    """Pointers to the elements starts[i] of an array."""
    return [builder.gep(base, [builder.load(builder.gep(starts, [I64(i)]))]) for i in range(ROWS)]


def _strip(vectors):
    """Intrinsic: chains of ROWS rows and `vectors` vectors of columns.

    out[into[i] + j] = chain over the lines k of fma(number k of row i, number j of line k), for j
    from `column` on, from +0 if `fresh`, else from the values of out. rows : `tt.StripRows`. lines
    : `tt.StripLines`. into : i64[ROWS].
    """

    @intrinsic
    def chains(typingctx, rows, lines, out, into, column, fresh):
        def codegen(context, builder, signature, args):
            _, _, _, _, column, fresh = args
            values, places, row_step = fields(context, builder, signature, args, 0)
            left = _rows(builder, values, places)
            values, line_at, line_step, count = fields(context, builder, signature, args, 1)
            right = builder.gep(values, [builder.add(line_at, column)])
            out, into = (data(context, builder, signature, args, q) for q in (2, 3))
            target = _rows(builder, builder.gep(out, [column]), into)
            vector = ir.VectorType(F32, LANES)
            cells = list(product(range(ROWS), range(vectors)))
            sums = {cell: cgutils.alloca_once(builder, vector) for cell in cells}
            is_fresh = builder.icmp_signed("!=", fresh, I64(0))
            with builder.if_else(is_fresh) as (fresh_sums, stored_sums):
                with fresh_sums:
                    for cell in cells:
                        builder.store(ir.Constant(vector, [0.0] * LANES), sums[cell])
                with stored_sums:
                    for i, j in cells:
                        at = vector_pointer(builder, target[i], I64(j * LANES), vector)
                        builder.store(builder.load(at, align=4), sums[i, j])
            # nothing is prefetched: rows that share a factor follow one another, so it is in the
            # first level
            with cgutils.for_range_slice(builder, I64(0), count, I64(1)) as (k, _):
                line = builder.gep(right, [builder.mul(k, line_step)])
                columns = [
                    builder.load(vector_pointer(builder, line, I64(j * LANES), vector), align=4)
                    for j in range(vectors)
                ]
                step = builder.mul(k, row_step)
                for i in range(ROWS):
                    number = builder.load(builder.gep(left[i], [step]))
                    factor = splat(builder, number, LANES)
                    for j in range(vectors):
                        chain = builder.load(sums[i, j])
                        name = f"llvm.fma.v{LANES}f32"
                        longer = call(builder, name, vector, factor, columns[j], chain)
                        builder.store(longer, sums[i, j])
            for i, j in cells:
                at = vector_pointer(builder, target[i], I64(j * LANES), vector)
                builder.store(builder.load(sums[i, j]), at, align=4)
            return context.get_dummy_value()

        return types.void(rows, lines, out, into, types.int64, types.int64), codegen

    return chains


# columns of WIDE, two and one vectors
wide_chains = _strip(WIDE)
pair_chains = _strip(2)
slim_strip = _strip(1)


def _halves(builder, x, y, even, odd):
    """fl(x and y shuffled by `even` + x and y shuffled by `odd`)."""
    first, second = (
        builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, DOTS), mask))
        for mask in (even, odd)
    )
    return builder.fadd(first, second)


def _in_groups(builder, x, y):
    """Neighbours of each group of four lanes: [x01 x23 y01 y23 | ...]."""
    even = [4 * q + at for q in range(4) for at in (0, 2, DOTS, DOTS + 2)]
    return _halves(builder, x, y, even, [place + 1 for place in even])


def _of_groups(builder, x, y):
    """Neighbouring groups of four lanes: [x0+x1 | x2+x3 | y0+y1 | y2+y3]."""
    even = [start + lane for start in (0, 8, DOTS, DOTS + 8) for lane in range(4)]
    return _halves(builder, x, y, even, [place + 4 for place in even])


def _trees(builder, sums):
    """A vector of 16 numbers: the tree over the lanes of each of 4 x 4 vectors, row by row."""
    rows = []
    for i in range(ROWS):
        # Shuffles inside groups of four lanes first, which are cheaper: each round of a tree that
        # serves 16 sums at once halves the vectors that are left for the others.
        pairs = [_in_groups(builder, sums[i, j], sums[i, j + 1]) for j in (0, 2)]
        rows.append(_in_groups(builder, *pairs))
    return _of_groups(
        builder, _of_groups(builder, rows[0], rows[1]), _of_groups(builder, rows[2], rows[3])
    )


@intrinsic
def strip_dots(typingctx, a, at, b, right, count, c, into):
    """c[into[i] + j] = dot product of a[at[i] : at[i] + count] and b[right[j] : right[j] + count].

    at, right, into : i64[4], i, j < 4. count : a multiple of 16. A chain of fused multiply-adds for
    each k mod 16 from +0, then a binary tree over the 16, neighbours first.
    """

    def codegen(context, builder, signature, args):
        left, columns, target = (
            _rows(builder, *(data(context, builder, signature, args, q + i) for i in (0, 1)))
            for q in (0, 2, 5)
        )
        vector = ir.VectorType(F32, DOTS)
        # 16 vectors of 16 lanes: as wide as AVX-512, and two or four registers each elsewhere; the
        # number of chains is part of the result, so it may not follow the processor
        cells = list(product(range(ROWS), range(4)))
        sums = {cell: cgutils.alloca_once(builder, vector) for cell in cells}
        for cell in cells:
            builder.store(ir.Constant(vector, [0.0] * DOTS), sums[cell])
        with cgutils.for_range_slice(builder, I64(0), args[4], I64(DOTS)) as (k, _):
            lines = [
                builder.load(vector_pointer(builder, column, k, vector), align=4)
                for column in columns
            ]
            for i in range(ROWS):
                row = builder.load(vector_pointer(builder, left[i], k, vector), align=4)
                for j in range(4):
                    chain = builder.load(sums[i, j])
                    longer = call(builder, "llvm.fma.v16f32", vector, row, lines[j], chain)
                    builder.store(longer, sums[i, j])
        dots = _trees(builder, {cell: builder.load(sums[cell]) for cell in cells})
        four = ir.VectorType(F32, 4)
        for i in range(ROWS):
            mask = ir.Constant(ir.VectorType(I32, 4), [4 * i + j for j in range(4)])
            part = builder.shuffle_vector(dots, ir.Constant(vector, ir.Undefined), mask)
            builder.store(part, vector_pointer(builder, target[i], I64(0), four), align=4)
        return context.get_dummy_value()

    return types.void(a, at, b, right, types.int64, c, into), codegen
