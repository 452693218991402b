"""What does exactness cost? Exact sums against plain fp32 sums in the same kernel, and in C.

One table that stays in the second-level cache, one in the third, and tables in memory; bags of 20,
without and with a weight per lookup. The aims are those of the exact arithmetic: at most so many
times the time of plain sums in the same kernel.
"""

import argparse
from typing import Any

import numpy as np

from benchmarks import ours
from benchmarks.harness import THREADS, Contender, main, measure, summarise
from benchmarks.limits import Limit, library
from benchmarks.plain import plainly
from benchmarks.shapes import Lookup

# Contenders that the cases refer to.
PLAIN = "neocpu, plain fp32 sums"
C_SUMS = "C, plain fp32 sums"
# Where the rows are, shape, and the aim: at most so many times the time of plain sums, without
# and with weights.
CASES = (
    ("in the second-level cache", Lookup(1, 4096, 20, 64, 2_000), 3.0, 3.5),
    ("in the third-level cache", Lookup(1, 8192, 20, 64, 60_000), 1.5, 1.8),
    ("in memory", Lookup(), 1.1, 1.4),
)
# The case of --quick.
SMOKE = (("smoke", Lookup(2, 64, 4, 32, 100), 3.0, 3.5),)


def make_contenders(shape: Lookup, weighted: bool) -> list[Contender]:
    """Ours and the limits, on the same tables."""
    batches = shape.batches(4)
    rng = np.random.default_rng(5)
    weights = rng.random(batches[0].size, np.float32) if weighted else np.zeros(0, np.float32)
    lookup = ours.NeocpuLookup(shape, batches, weights)
    expected = lookup.forward(0).copy()
    plain = plainly(lookup.forward)
    np.testing.assert_allclose(plain(0), expected, rtol=2e-5, atol=1e-5)
    contenders = [
        Contender("neocpu, exact sums", "ours", lookup.forward, n, ours.threads) for n in THREADS
    ]
    contenders += [Contender(PLAIN, "limit", plain, n, ours.threads) for n in THREADS]
    if library(shape.dim) is None:
        return contenders
    out = np.zeros((shape.samples, shape.tables * shape.dim), np.float32)
    limit = Limit(lookup.tables(), shape.samples, shape.length)

    def gather(i: int) -> None:
        if weighted:
            limit.gather_weighted(batches[i % 4], weights, out)
        else:
            limit.gather(batches[i % 4], out)

    gather(0)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=1e-5)
    return contenders + [Contender(C_SUMS, "limit", gather, n, limit.threads) for n in THREADS]


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All cases."""
    records = []
    for place, shape, plain, weighted in SMOKE if options.quick else CASES:
        for name, limit in (("exact sums", plain), ("exact weighted sums", weighted)):
            contenders = make_contenders(shape, name != "exact sums")
            measure(contenders, options.rounds)
            records.append(
                summarise(
                    f"{name}, rows {place}",
                    shape.describe(),
                    contenders,
                    {PLAIN: round(1 / limit, 2)},
                )
            )
    return records


if __name__ == "__main__":
    main(__doc__, benchmark)
