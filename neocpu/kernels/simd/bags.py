"""How is a bag of rows summed without leaving the registers? Blocks of columns, fp64 accumulators,
exponents on the side.

    sum_rows     walks the rows of a bag for some columns: each fp32 term is widened and added in
                 fp64; beside it an integer maximum and minimum of the bit patterns keeps the range
                 of exponents, which tells whether the fp64 sum is exact (`docs/arithmetic.md` §3)
    plain_rows   the same walk without the range
    compensated_rows   the same sums in two floats (`rows/compensated.py`)
    cut_rows     the same walk for a range that is too wide: each term is cut on a grid, parts and
                 rests are added apart

Each makes an intrinsic for a number of columns (`sum_rows_16`). They take the terms, a bag and the
first column (`operands.Terms`, `operands.Bag`), and where the sums go.

Rows of any format are decoded to fp32 in registers (`simd/decoders.py`), the terms from then on are
fp32 numbers.

A row of any width is a run of such blocks, so no width is compiled in. Rows further on are
prefetched, bag borders or not (`simd/ahead.py`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import Signature
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from neocpu.kernels.compile.jit import inlined
from neocpu.kernels.simd import F32, F64, I32, I64, call, data, splat, vector_pointer
from neocpu.kernels.simd.ahead import NEAR, far_of
from neocpu.kernels.simd.decoders import RowDecoder
from neocpu.kernels.simd.quiet import QUIET, quiet_product, quiet_sum
from neocpu.kernels.simd.tiles import LANES

# 32 registers of 512 bits hold 128 columns of fp64 sums, 16 of 256 bits hold 32.
WIDE = LANES == 16


class Walk:
    """The loop over the rows of a bag, for one block of columns.

    Arguments of its intrinsics begin with: terms (`Terms`), bag (`Bag`), column.
    """

    def __init__(
        self,
        context: BaseContext,
        builder: ir.IRBuilder,
        signature: Signature,
        args: Sequence[ir.Value],
        block: int,
    ) -> None:
        self.builder = builder
        self.block = block
        self.lanes = min(block, LANES)
        self.f32 = ir.VectorType(F32, self.lanes)
        self.f64 = ir.VectorType(F64, self.lanes)
        self.int = ir.VectorType(I32, self.lanes)
        kinds = signature.args[0].types
        values, index, weights = (
            context.make_array(kind)(context, builder, array)
            for kind, array in zip(kinds, cgutils.unpack_tuple(builder, args[0]))
        )
        self.index = index.data
        self.weights = weights.data
        self.lo, self.hi, self.base, self.stride, _ = cgutils.unpack_tuple(builder, args[1])
        self.column = args[2]
        self.rows = RowDecoder(context, builder, kinds[0], values.data, self.stride)
        self.last = builder.sub(index.nitems, I64(1))
        self.weighted = builder.icmp_signed(">", weights.nitems, I64(0))
        # an address, so that a selection of addresses takes the place of a branch around the load
        self.one = cgutils.alloca_once_value(builder, F32(1.0))

    def variable(self, vector: ir.VectorType, value: float) -> ir.Value:
        """A register that starts with `value` in every lane."""
        slot = cgutils.alloca_once(self.builder, vector)
        self.builder.store(ir.Constant(vector, [value] * self.lanes), slot)
        return slot

    def add(self, slot: ir.Value, value: ir.Value) -> None:
        """slot += value"""
        self.builder.store(self.builder.fadd(self.builder.load(slot), value), slot)

    def row(self, j: ir.Value) -> ir.Value:
        """(number, address) of the row of lookup j."""
        number = self.builder.load(self.builder.gep(self.index, [j]))
        at = self.builder.add(self.base, self.builder.mul(number, self.stride))
        return number, self.rows.row(at)

    def weight(self, j: ir.Value) -> ir.Value:
        """Address of the weight of lookup j; where the loop is shared, of a 1 if there are no
        weights.
        """
        if self.rows.name == "fp32":
            return self.builder.gep(self.weights, [j])
        return self.builder.select(self.weighted, self.builder.gep(self.weights, [j]), self.one)

    def fetch(self, j: ir.Value, ahead: int, locality: int) -> None:
        """Prefetch lookup j + ahead."""
        b = self.builder
        # The last lookup of the batch, again, behind its end: an address that may be asked for.
        far = b.add(j, I64(ahead))
        _, row = self.row(b.select(b.icmp_signed("<", far, self.last), far, self.last))
        codes = self.rows.codes(row, self.column)
        size = self.rows.bytes_of(self.block)
        places = [*range(0, size, 64)]
        if self.rows.name != "fp32":  # not aligned: the last byte may be in one more line
            places.append(size - 1)
        lines = [b.gep(codes, [I64(at)]) for at in dict.fromkeys(places)]
        for line in [*lines, self.rows.header(row)] if self.rows.scaled else lines:
            call(b, "llvm.prefetch.p0", ir.VoidType(), line, I32(0), I32(locality), I32(1))

    def each(self, body: Callable[[int, ir.Value], None]) -> None:
        """body(i, term) for every vector i of every row's block: fp32 rows in a loop with weights
        and one without.

        Other rows have one loop, and weights of 1 where there are none: exact, and half as much to
        compile.
        """
        if self.rows.name != "fp32":
            self.loop(body, True)
            return
        with self.builder.if_else(self.weighted) as (then, otherwise):
            with then:
                self.loop(body, True)
            with otherwise:
                self.loop(body, False)

    def loop(
        self,
        body: Callable[[int, ir.Value], None],
        weighted: bool,
        product: Callable[..., ir.Value] = ir.IRBuilder.fmul,
    ) -> None:
        """body(i, term) for every vector i of every row's block, times the row's weight if
        `weighted`, by `product`.
        """
        b = self.builder
        with cgutils.for_range_slice(b, self.lo, self.hi, I64(1)) as (j, _):
            self.fetch(j, far_of(self.rows.bytes_of(self.block)), 2)
            self.fetch(j, NEAR, 3)
            number, row = self.row(j)
            # pruned lookups are rare, so the branch is guessed well
            with b.if_then(b.icmp_signed(">=", number, I64(0)), likely=True):
                scale = splat(b, b.load(self.weight(j)), self.lanes) if weighted else None
                scales = self.rows.scales(row, self.lanes)
                for i in range(self.block // self.lanes):
                    # all vectors of a row before the next row: its cache lines are read once
                    term = self.rows.vector(row, scales, self.column, self.lanes * i, self.lanes)
                    body(i, product(b, term, scale) if weighted else term)

    def store(self, slots: list[ir.Value], out: ir.Value, first: int) -> None:
        """out[first:] = the registers."""
        for i, slot in enumerate(slots):
            at = vector_pointer(self.builder, out, I64(first + self.lanes * i), self.f64)
            self.builder.store(self.builder.load(slot), at, align=8)

    def round(
        self,
        pairs: list[tuple[ir.Value, ir.Value]],
        start: ir.Value,
        out: ir.Value,
        peaks: ir.Value,
    ) -> None:
        """out = (high - start) + low of each pair; `peaks` raised to the bits of these sums."""
        b = self.builder
        at = b.bitcast(peaks, self.int.as_pointer())
        peak = b.load(at, align=4)
        for i, (high, low) in enumerate(pairs):
            # both exact, or the flag is set: so their sum is the one number that is rounded
            total = quiet_sum(b, b.fsub(b.load(high), start), b.load(low))
            b.store(total, vector_pointer(b, out, I64(self.lanes * i), self.f32), align=4)
            bits = b.bitcast(total, self.int)
            peak = call(b, f"llvm.umax.v{self.lanes}i32", self.int, peak, b.add(bits, bits))
        b.store(peak, at, align=4)

    def reduce(self, name: str, slot: ir.Value) -> ir.Value:
        """One integer from all lanes."""
        value = self.builder.load(slot)
        if self.lanes == 1:
            return self.builder.extract_element(value, I32(0))
        return call(self.builder, f"llvm.vector.reduce.{name}.v{self.lanes}i32", I32, value)


def sum_rows(block: int) -> Any:
    """Intrinsic: fp64 sums of `block` columns of a bag, and the range of their exponents."""

    def codegen(context, builder, signature, args):
        walk = Walk(context, builder, signature, args, block)
        # Integers, not floats: a maximum of bit patterns orders magnitudes, NaN and infinity above
        # all, and takes one instruction for all lanes.
        high = walk.variable(walk.int, 0)
        low = walk.variable(walk.int, 0xFFFFFFFF)
        sums = [walk.variable(walk.f64, 0.0) for _ in range(block // walk.lanes)]
        umax, umin = (f"llvm.{name}.v{walk.lanes}i32" for name in ("umax", "umin"))

        def body(i: int, term: ir.Value) -> None:
            bits = builder.bitcast(term, walk.int)
            bits = builder.add(bits, bits)  # the sign falls off; the exponent is the top byte
            builder.store(call(builder, umax, walk.int, builder.load(high), bits), high)
            # a zero becomes the largest
            bits = builder.sub(bits, ir.Constant(walk.int, [1] * walk.lanes))
            builder.store(call(builder, umin, walk.int, builder.load(low), bits), low)
            # fp64: sums of fp32 terms of near exponents are exact in it, so they have no order.
            walk.add(sums[i], builder.fpext(term, walk.f64))

        walk.each(body)
        walk.store(sums, data(context, builder, signature, args, 3), 0)
        most = walk.reduce("umax", high)
        least = walk.reduce("umin", low)
        return builder.or_(builder.shl(builder.zext(most, I64), I64(32)), builder.zext(least, I64))

    @intrinsic
    def sums_and_range(typingctx, terms, bag, column, out):
        """out[:block] (f64) = sums of columns column .. column + block of the terms of a bag.

        Returns (largest bits << 32 | smallest bits), bits without sign, shifted left by one; zeros
        count as largest in the minimum.
        """
        return types.int64(terms, bag, types.int64, out), codegen

    return sums_and_range


def plain_rows(block: int) -> Any:
    """Intrinsic: the sums of `sum_rows` alone; weighted only if `QUIET`."""

    def codegen(context, builder, signature, args):
        walk = Walk(context, builder, signature, args, block)
        sums = [walk.variable(walk.f64, 0.0) for _ in range(block // walk.lanes)]

        def body(i: int, term: ir.Value) -> None:
            walk.add(sums[i], builder.fpext(term, walk.f64))

        # fp32 products must not raise the flag that tells of inexact sums (`simd/flags.py`)
        if QUIET:
            with builder.if_then(walk.weighted):
                walk.loop(body, True, quiet_product)
            with builder.if_then(builder.not_(walk.weighted)):
                walk.loop(body, False)
        else:
            walk.loop(body, False)
        walk.store(sums, data(context, builder, signature, args, 3), 0)
        return context.get_dummy_value()

    @intrinsic
    def plain_sums(typingctx, terms, bag, column, out):
        """out[:block] (f64) = sums of columns column .. column + block of the terms of a bag."""
        return types.void(terms, bag, types.int64, out), codegen

    return plain_sums


def cut_rows(block: int) -> Any:
    """Intrinsic: sums of the parts of the terms on a grid, and of what the grid leaves of them."""

    def codegen(context, builder, signature, args):
        walk = Walk(context, builder, signature, args, block)
        sigma = splat(builder, args[3], walk.lanes)
        parts, rests = (
            [walk.variable(walk.f64, 0.0) for _ in range(block // walk.lanes)] for _ in range(2)
        )

        def body(i: int, term: ir.Value) -> None:
            x = builder.fpext(term, walk.f64)
            # Rump's splitting: sigma rounds x to its grid, and both differences are exact.
            part = builder.fsub(builder.fadd(x, sigma), sigma)
            rest = builder.fsub(x, part)
            finite = builder.fcmp_ordered("ord", rest, rest)  # inf - inf: the part holds it all
            walk.add(parts[i], part)
            walk.add(
                rests[i], builder.select(finite, rest, ir.Constant(walk.f64, [0.0] * walk.lanes))
            )

        walk.each(body)
        out = data(context, builder, signature, args, 4)
        walk.store(parts, out, 0)
        walk.store(rests, out, block)
        return context.get_dummy_value()

    @intrinsic
    def cut_sums(typingctx, terms, bag, column, sigma, out):
        """out[:block] (f64) = sums of q = (x + sigma) - sigma, out[block : 2 * block] of x - q."""
        return types.void(terms, bag, types.int64, types.float64, out), codegen

    return cut_sums


def compensated_rows(block: int) -> Any:
    """Intrinsic: unweighted sums in two floats each, rounded; only if `QUIET`."""

    def codegen(context, builder, signature, args):
        walk = Walk(context, builder, signature, args, block)
        start = splat(builder, args[3], walk.lanes)
        vectors = range(block // walk.lanes)
        high, low = ([walk.variable(walk.f32, 0.0) for _ in vectors] for _ in "ab")
        for slot in high:
            builder.store(start, slot)
        # A 1 that LLVM does not know, or it would make additions of multiply-adds: Zen has units of
        # their own for those, so that two of the four operations run beside the other two.
        identity = ir.FunctionType(F32, [F32])
        one = splat(builder, builder.asm(identity, "", "=x,0", [F32(1.0)], False), walk.lanes)

        def plus(x: ir.Value, y: ir.Value) -> ir.Value:
            return call(builder, f"llvm.fma.v{walk.lanes}f32", walk.f32, x, one, y)

        def body(i: int, term: ir.Value) -> None:
            # `rest` is what is lost of the term, if both differences are exact
            old = builder.load(high[i])
            new = quiet_sum(builder, old, term)
            rest = plus(builder.fneg(builder.fsub(new, old)), term)
            builder.store(new, high[i])
            builder.store(plus(rest, builder.load(low[i])), low[i])

        walk.loop(body, False)
        out, peaks = (data(context, builder, signature, args, q) for q in (4, 5))
        walk.round(list(zip(high, low)), start, out, peaks)
        return context.get_dummy_value()

    @intrinsic
    def compensated_sums(typingctx, terms, bag, column, start, out, peaks):
        """out[:block] (f32) = rounded sums of columns column .. column + block of the terms of a
        bag: right where no flag was set and all are finite.

        start : f32, what sums begin with; the nearer to the largest of them, the rarer the flag.
        peaks : u32[16], maxima of the bits of the sums, without sign, shifted left by one; kept up.
        """
        return types.void(terms, bag, types.int64, types.float32, out, peaks), codegen

    return compensated_sums


# As many columns at once as the registers hold, and half of that.
LONG, SHORT = (128, 64) if WIDE else (32, 16)

sum_rows_long = sum_rows(LONG)
sum_rows_short = sum_rows(SHORT)
sum_rows_16 = sum_rows(16)
sum_rows_4 = sum_rows(4)
sum_rows_1 = sum_rows(1)
plain_rows_long = plain_rows(LONG)
plain_rows_short = plain_rows(SHORT)
plain_rows_16 = plain_rows(16)
plain_rows_1 = plain_rows(1)
compensated_rows_long = compensated_rows(LONG)
compensated_rows_short = compensated_rows(SHORT)
compensated_rows_16 = compensated_rows(16)
cut_rows_16 = cut_rows(16)
cut_rows_1 = cut_rows(1)


@inlined
def bare(array):
    """All of a 1-D array as a `view`: a loop that hands bare arrays to its functions counts no
    references.
    """
    return view(array, 0, array.size)


@intrinsic
def view(typingctx, array, start, size):
    """array[start : start + size] of a contiguous 1-D array, without a reference count.

    A Numba slice counts references atomically, which costs more than a row's arithmetic and
    serialises threads. The view must not outlive the array.
    """

    def codegen(context, builder, signature, args):
        kind = signature.return_type
        source = context.make_array(signature.args[0])(context, builder, args[0])
        found = context.make_array(kind)(context, builder)
        itemsize = context.get_constant(
            types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype))
        )
        first = builder.gep(source.data, [args[1]])
        # no meminfo: Numba counts no references to an array that nobody owns
        populate_array(
            found, data=first, shape=[args[2]], strides=[itemsize], itemsize=itemsize, meminfo=None
        )
        return found._getvalue()

    return types.Array(array.dtype, 1, "C")(array, types.int64, types.int64), codegen
