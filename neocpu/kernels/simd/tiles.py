"""How does a matrix product keep the floating-point units busy?

It computes a tile of C in registers from packed panels of A and B. The tile has MR rows and NV
vectors of LANES columns: MR * NV accumulators, each a chain of fused multiply-adds over ascending
k. One step reads a column of the A panel (MR floats, each broadcast) and a row of the B panel (NC
floats):

              B panel [K][NC]
              b0 b1 ... (NV vectors)         tile[i][j] = fma(splat a[i], b[j], tile[i][j])
    A   a0    t  t
    [K] a1    t  t          12 x (2 x 16) on AVX-512: 24 accumulators + 2 + 1 of 32 registers
    [MR]...   t  t           6 x (2 x 8) on AVX2, 8 x (2 x 4) on 32 registers of 128 bits (NEON)

The shape follows the vectors of the processor that LLVM compiles for (NUMBA_CPU_NAME and
NUMBA_CPU_FEATURES override the host's). The bits of the result do not depend on it: in a tile of
any shape every output element is a chain of its own (`docs/arithmetic.md` §1).
"""

from itertools import product
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from neocpu.kernels.simd import (
    F32,
    I64,
    call,
    data,
    fields,
    prefetch_line,
    splat,
    start_and_step,
    vector_pointer,
)


def target() -> tuple[str, str]:
    """LLVM's name and feature string of the processor that Numba compiles for."""
    config: Any = numba.config
    name = config.CPU_NAME
    features = config.CPU_FEATURES
    if features is None:
        features = "" if name else llvm.get_host_cpu_features().flatten()
    return name or llvm.get_host_cpu_name(), features


_PROBE = """
target triple = "{triple}"
define <16 x float> @probe(<16 x float> %a, <16 x float> %b, <16 x float> %c) {{
  %r = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %c)
  ret <16 x float> %r
}}
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
"""


def tile_shape(name: str, features: str) -> tuple[int, int, int]:
    """(MR, NV, LANES) for a processor, from the registers that LLVM uses for a 16-lane FMA."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=name, features=features)
    with llvm.parse_assembly(_PROBE.format(triple=triple)) as module:
        assembly = machine.emit_assembly(module)
    # 24 accumulators, 2 vectors of B and 1 broadcast of A: 27 of 32 registers
    if "zmm" in assembly:
        return 12, 2, 16
    # 12 accumulators, 2 vectors of B and 1 broadcast of A: 15 of 16 registers
    if "ymm" in assembly:
        return 6, 2, 8
    # SSE has 16 registers of four lanes; the rest is NEON, with 32 of them
    return (4, 2, 4) if "xmm" in assembly else (8, 2, 4)


MR, NV, LANES = tile_shape(*target())
NC = NV * LANES
# Otherwise packing by transposed blocks would write beyond its own panel.
assert MR < LANES or MR % LANES == 0


class _Tile:
    """Code of one tile of MR rows and `vectors` vectors of columns.

    LLVM keeps the accumulators in registers.
    """

    def __init__(self, builder, vectors, left, right, steps):
        self.builder = builder
        self.vectors = vectors
        self.left = left
        self.right = right
        self.steps = steps
        self.vector = ir.VectorType(F32, LANES)
        self.cells = list(product(range(MR), range(vectors)))
        # Stack slots, which LLVM turns into registers: a chain that is carried through the loop as
        # a value would need a phi node for each of up to 24 accumulators.
        self.sums = {t: cgutils.alloca_once(builder, self.vector) for t in self.cells}

    def start(self):
        """Start every chain at +0."""
        for t in self.cells:
            self.builder.store(ir.Constant(self.vector, [0.0] * LANES), self.sums[t])

    def _cell(self, base, stride, i, j):
        at = self.builder.add(self.builder.mul(stride, I64(i)), I64(j * LANES))
        return vector_pointer(self.builder, base, at, self.vector)

    def load(self, base, stride):
        """Continue the chains from the values in memory."""
        for i, j in self.cells:
            self.builder.store(
                self.builder.load(self._cell(base, stride, i, j), align=4), self.sums[i, j]
            )

    def add(self, base, stride):
        """Replace each chain by fl(value in memory + chain)."""
        for i, j in self.cells:
            # left + right: the left subtree is in memory, the right one in the registers
            addend = self.builder.load(self._cell(base, stride, i, j), align=4)
            self.builder.store(
                self.builder.fadd(addend, self.builder.load(self.sums[i, j])), self.sums[i, j]
            )

    def store(self, base, stride):
        """Store the chains to memory."""
        for i, j in self.cells:
            self.builder.store(
                self.builder.load(self.sums[i, j]), self._cell(base, stride, i, j), align=4
            )

    def step(self, k, skip=None, gap=None):
        """One fma per chain, of column k of the left panel and row k of the right panel.

        If `gap` (i1) is true, the chains of row `skip` leave the step out.
        """
        b = self.builder
        column, row_start = (
            b.gep(base, [b.mul(k, stride)])
            for base, stride in zip((self.left, self.right), self.steps)
        )
        # align=4: a panel begins at a cache line, but matrices of callers begin anywhere
        row = [
            b.load(vector_pointer(b, row_start, I64(LANES * j), self.vector), align=4)
            for j in range(self.vectors)
        ]
        for i in range(MR):
            # A broadcast from memory costs no shuffle: it is part of the load, or of the fma
            # itself.
            coefficient = splat(b, b.load(b.gep(column, [I64(i)])), LANES)
            for j in range(self.vectors):
                chain = b.load(self.sums[i, j])
                longer = call(b, f"llvm.fma.v{LANES}f32", self.vector, coefficient, row[j], chain)
                # A selection between two finished chains: adding +0 instead would turn a chain of
                # -0 into +0 and a NaN or an infinity in B into a NaN.
                b.store(b.select(gap, chain, longer) if i == skip else longer, self.sums[i, j])

    def run(self, first, last, ahead=None, pace=None):
        """Steps first <= k < last; step k prefetches ahead[k*pace] into the second-level cache."""
        with cgutils.for_range_slice(self.builder, first, last, I64(1)) as (k, _):
            # Into the second level only: the first one is full of the part that is being
            # multiplied.
            if ahead is not None:
                prefetch_line(self.builder, self.builder.gep(ahead, [self.builder.mul(k, pace)]), 2)
            self.step(k)


def _tile(context, builder, signature, args, vectors):
    """The tile of the panels that the arguments begin with: a, left, b, right."""
    left, left_step = start_and_step(context, builder, signature, args, 0)
    right, right_step = start_and_step(context, builder, signature, args, 2)
    return _Tile(builder, vectors, left, right, (left_step, right_step))


def _chains(vectors):
    """Intrinsic: a tile of c, one chain of fused multiply-adds for each element.

    c[into.at + i*into.step + j] = chain over k < count of
                                   fma(a[left.at + k*left.step + i], b[right.at + k*right.step + j])

    left, right, into, ahead : `operands.Position`. Records of numbers, without their arrays: a
    record of arrays would count references to them at every tile.

    The chains start at +0 if `fresh`, else at the values of c. If `below` is not 0, they are added
    to the values `below` elements earlier in c instead, where the sums are stored. Step k
    prefetches b[ahead.at + k*ahead.step].
    """

    @intrinsic
    def chains(typingctx, a, left, b, right, count, c, into, fresh, below, ahead):
        def codegen(context, builder, signature, args):
            _, _, _, _, count, _, _, fresh, below, _ = args
            tile = _tile(context, builder, signature, args, vectors)
            target, step = start_and_step(context, builder, signature, args, 5)
            # asked once for a tile: zeros cost nothing, a tile that continues is loaded
            with builder.if_else(builder.icmp_signed("!=", fresh, I64(0))) as (start, resume):
                with start:
                    tile.start()
                with resume:
                    tile.load(target, step)
            coming, pace = fields(context, builder, signature, args, 9)
            coming = builder.gep(data(context, builder, signature, args, 2), [coming])
            tile.run(I64(0), count, coming, pace)
            # The second leaf of a pair is added to the first one here, straight from the registers:
            # stored and added later, it would cross the memory three times.
            target = builder.gep(target, [builder.neg(below)])
            with builder.if_then(builder.icmp_signed("!=", below, I64(0))):
                tile.add(target, step)
            tile.store(target, step)
            return context.get_dummy_value()

        n = types.int64
        return types.void(a, left, b, right, n, c, into, n, n, ahead), codegen

    return chains


# a tile of NC columns
tile_chains = _chains(NV)
# a tile of LANES columns
slim_chains = _chains(1)


@intrinsic
def gap_chains(typingctx, a, left, b, right, count, at, gap, c, into):
    """`slim_chains` from +0; if `gap` is not 0, the chains of row i leave out step k = at + i.

    The gap leaves out the product of a row and itself.
    """

    def codegen(context, builder, signature, args):
        _, _, _, _, count, at, gap, _, _ = args
        tile = _tile(context, builder, signature, args, 1)
        gap = builder.icmp_signed("!=", gap, I64(0))
        tile.start()
        # The selections stand in MR steps only; the loops before and after are those of a plain
        # tile.
        tile.run(I64(0), at)
        for i in range(MR):
            k = builder.add(at, I64(i))
            with builder.if_then(builder.icmp_signed("<", k, count), likely=True):
                tile.step(k, i, gap)
        tile.run(builder.add(at, I64(MR)), count)
        tile.store(*start_and_step(context, builder, signature, args, 7))
        return context.get_dummy_value()

    n = types.int64
    return types.void(a, left, b, right, n, n, n, c, into), codegen
