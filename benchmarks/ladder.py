"""What does each rung of the ladder add? NumPy twin, plain Numba, tuned kernel, C limit, roofline.

Five kernels, each a function of one name and one list of arguments in `neocpu/kernels/twins/` (the
twin), `neocpu/kernels/plain/` and `neocpu/kernels/` (the tuned one). Everything runs on one thread.
Before timing, the tuned and the plain kernel must agree to the bit on all of the work, the twin on
its share of it, and C to fp32 rounding. The bound is the greater of two times: that of the bytes
which must move between memory and a core, each once, at the speed at which memory is read in order,
and that of the formula's flops at the speed of fused multiply-adds in registers.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import ours
from benchmarks.harness import Contender, main, measure, ratio, summarise
from benchmarks.ladder_work import MISSING, VECTORS, FullCache, Pairs, Product, Tables, Work
from benchmarks.limits import MULTIPLY_ADD, Limit, library
from benchmarks.roofline import FLOATS, STEPS
from benchmarks.shapes import KAGGLE, Lookup

# The packages that hold the rungs, from the readable to the fast.
TWIN = "neocpu.kernels.twins"
PLAIN = "neocpu.kernels.plain"
TUNED = "neocpu.kernels"
# The shape of lookups and updates.
SHAPE = Lookup(tables=8, dim=64)
# Lines of the software cache, and rows that are looked for.
LINES = 1 << 20
ROWS = 1 << 18
# What the table shows where nothing limits.
NO_LIMIT = "\N{EN DASH}"
# What the rungs add.
EXPLANATION = (
    "The twin is the readable specification in NumPy; plain Numba compiles the textbook's loops; "
    "the tuned kernel adds vectors, blocks that stay in registers, and prefetches. "
    "C shows what a compiler reaches on the same work with fixed widths and sums in any order, and "
    "the bound what memory (or the multiply-add units) would allow."
)


@dataclass(frozen=True)
class Rungs:
    """A kernel on every rung.

    module: its name in all families. shape: the work in words. make(n): one n-th of the work.
    share: the n of the twin's part; its times are multiplied by it.
    """

    name: str
    module: str
    shape: str
    make: Callable[[int], Work]
    share: int

    def kernel(self, family: str) -> Any:
        """The module of a family."""
        return import_module(f"{family}.{self.module}")


def all_rungs(quick: bool) -> list[Rungs]:
    """The kernels that are timed."""
    shape = Lookup(2, 16, 4, 16, 200) if quick else SHAPE
    tables = Tables(shape)
    samples = 64 if quick else KAGGLE.samples
    inputs, outputs = (32, 16) if quick else KAGGLE.bottom[:2]
    dim = KAGGLE.dim
    lines = 1024 if quick else LINES
    count = 512 if quick else ROWS
    bags = f"T {shape.tables}, B {shape.samples}, L {shape.length}, D {shape.dim}, E {shape.rows:,}"
    return [
        Rungs(
            name="pooled lookup, fp32",
            module="rows.lookup",
            shape=bags,
            make=tables.lookup,
            share=16 if quick else 64,
        ),
        Rungs(
            name="merge and update, row-wise AdaGrad",
            module="rows.update",
            shape=f"{bags}, sorted",
            make=tables.update,
            share=16 if quick else 64,
        ),
        Rungs(
            name="layer",
            module="dense.gemm",
            shape=f"B {samples}, {inputs}x{outputs}, ReLU",
            make=Product(samples, inputs, outputs).forward,
            share=32,
        ),
        Rungs(
            name="dot interaction",
            module="dense.interaction",
            shape=f"B {samples}, {VECTORS} vectors, D {dim}",
            make=Pairs(samples, dim).forward,
            share=8,
        ),
        Rungs(
            name="cache probe",
            module="tiers.cache",
            shape=f"{count:,} rows, {MISSING:.0%} missing, {lines:,} lines",
            make=FullCache(lines, count).probe,
            share=1,
        ),
    ]


def written(work: Work, call: Callable[[], Any]) -> list[NDArray[Any]]:
    """What a call writes; the arrays are put back."""
    before = [array.copy() for array in work.results]
    call()
    after = [array.copy() for array in work.results]
    for array, old in zip(work.results, before, strict=True):
        array[...] = old
    return after


def check(rungs: Rungs, full: Work, part: Work) -> None:
    """Stop unless the twin, the plain and the tuned kernel write the same bits, and C the same
    numbers up to fp32 rounding.
    """
    for work, family in ((full, PLAIN), (part, PLAIN), (part, TWIN)):
        tuned = written(work, lambda work=work: work.run(rungs.kernel(TUNED)))
        other = written(work, lambda work=work, f=family: work.run(rungs.kernel(f)))
        for a, b in zip(tuned, other, strict=True):
            np.testing.assert_array_equal(
                a.view(np.uint8), b.view(np.uint8), err_msg=f"{rungs.name}: {family}"
            )
    if full.limit is not None:
        tuned = written(full, lambda: full.run(rungs.kernel(TUNED)))
        for a, b in zip(tuned, written(full, full.limit), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=f"{rungs.name}: C")


@dataclass(frozen=True)
class Times:
    """The contenders of one kernel, and its work."""

    rungs: Rungs
    work: Work
    twin: Contender
    plain: Contender
    tuned: Contender
    limit: Contender | None

    def contenders(self) -> list[Contender]:
        """All of them, from the readable to the fast."""
        rungs = [self.twin, self.plain, self.tuned]
        return rungs if self.limit is None else [*rungs, self.limit]


def limit_threads(count: int) -> None:
    """Let the C limits of all widths use `count` threads: they share one OpenMP pool."""
    Limit([np.zeros((1, SHAPE.dim), np.float32)], 1, 1).threads(count)


def compete(rungs: Rungs) -> Times:
    """The contenders of a kernel, once all have agreed."""
    full = rungs.make(1)
    part = rungs.make(rungs.share)
    check(rungs, full, part)

    def contender(name: str, family: str, work: Work) -> Contender:
        kernel = rungs.kernel(family)
        return Contender(
            f"{rungs.name}: {name}", "note", lambda _: work.run(kernel), 1, ours.threads
        )

    scaled = f"NumPy twin, 1/{rungs.share} of the work, times {rungs.share}"
    limit = None
    if full.limit is not None:
        limit = Contender(f"{rungs.name}: C", "limit", lambda _: full.limit(), 1, limit_threads)
    return Times(
        rungs=rungs,
        work=full,
        twin=contender("NumPy twin" if rungs.share == 1 else scaled, TWIN, part),
        plain=contender("plain Numba", PLAIN, full),
        tuned=contender("tuned", TUNED, full),
        limit=limit,
    )


def roof(quick: bool) -> tuple[Contender, Contender, int] | None:
    """Memory read in order, multiply-adds from registers, and the bytes read; None without C."""
    if library(SHAPE.dim) is None:
        return None
    limit = Limit([np.zeros((1, SHAPE.dim), np.float32)], 1, 1)
    memory = np.ones(FLOATS >> 8 * quick, np.float32)
    return (
        Contender(
            "machine: memory, read", "limit", lambda _: limit.read_all(memory), 1, limit_threads
        ),
        Contender(
            "machine: multiply-add", "limit", lambda _: limit.multiply_add(STEPS), 1, limit_threads
        ),
        memory.nbytes,
    )


def bound(work: Work, machine: tuple[Contender, Contender, int]) -> tuple[float, str]:
    """Least seconds of the work, and what sets them."""
    reading, multiplying, size = machine
    memory = work.bytes * reading.median / size
    arithmetic = work.flops * multiplying.median / (STEPS * MULTIPLY_ADD)
    return max((memory, "memory"), (arithmetic, "multiply-adds"))


def number(value: float) -> str:
    """A number with as many digits as matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def ladder(times: list[Times], machine: tuple[Contender, Contender, int] | None) -> str:
    """The table of all kernels: milliseconds, and how many times that of the tuned kernel."""
    lines = [
        "| kernel | work | NumPy twin | plain Numba | **tuned** | *C* | *bound* |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in times:
        tuned = entry.tuned.median

        def cell(contender: Contender | None, entry: Times = entry) -> str:
            if contender is None:
                return NO_LIMIT
            factor = ratio(contender, entry.tuned)["median"]
            return f"{number(contender.median * 1e3)} ms, {number(factor)}x"

        roof_cell = NO_LIMIT
        if machine is not None:
            seconds, unit = bound(entry.work, machine)
            roof_cell = f"{number(seconds * 1e3)} ms, {number(seconds / tuned)}x, {unit}"
        scaled = "" if entry.rungs.share == 1 else f" (1/{entry.rungs.share}, scaled)"
        cells = (
            entry.rungs.name,
            entry.rungs.shape,
            cell(entry.twin) + scaled,
            cell(entry.plain),
            f"**{number(tuned * 1e3)} ms**",
            cell(entry.limit),
            roof_cell,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All kernels on all rungs, in turn."""
    ours.wait_as_in_training()
    ours.threads(1)
    times = [compete(rungs) for rungs in all_rungs(options.quick)]
    machine = roof(options.quick)
    contenders = [contender for entry in times for contender in entry.contenders()]
    if machine is not None:
        contenders += machine[:2]
    measure(contenders, options.rounds)
    for entry in times:
        entry.twin.seconds = [seconds * entry.rungs.share for seconds in entry.twin.seconds]
    record = summarise("ladder, one thread", {"kernels": len(times)}, contenders)
    return [record | {"notes": [EXPLANATION, ladder(times, machine)]}]


if __name__ == "__main__":
    main(__doc__, benchmark)
