"""What does exactness cost? Our pooling (exact sums, rounded once) against the same kernel with
plain fp32 sums, and a C loop.

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

PLAIN = "neocpu, plain fp32 sums"
C = "C, plain fp32 sums"
# where the rows are, shape, at most so many times the time of plain sums: without weights, with
# weights
CASES = (
    ("in the second-level cache", Lookup(1, 4096, 20, 64, 2_000), 3.0, 3.5),
    ("in the third-level cache", Lookup(1, 8192, 20, 64, 60_000), 1.5, 1.8),
    ("in memory", Lookup(), 1.1, 1.4),
)
SMOKE = (("smoke", Lookup(2, 64, 4, 32, 100), 3.0, 3.5),)


def contenders(shape: Lookup, weighted: bool) -> list[Contender]:
    """Ours and the limit, on the same tables."""
    batches = shape.batches(4)
    rng = np.random.default_rng(5)
    weights = rng.random(batches[0].size, np.float32) if weighted else np.zeros(0, np.float32)
    mine = ours.OurLookup(shape, batches, weights)
    expected = mine.forward(0).copy()
    plain = plainly(mine.forward)
    np.testing.assert_allclose(plain(0), expected, rtol=2e-5, atol=1e-5)
    found = [
        Contender("neocpu, exact sums", "ours", mine.forward, n, ours.threads) for n in THREADS
    ]
    found += [Contender(PLAIN, "limit", plain, n, ours.threads) for n in THREADS]
    if library(shape.dim) is None:
        return found
    out = np.zeros((shape.samples, shape.tables * shape.dim), np.float32)
    limit = Limit(mine.tables(), shape.samples, shape.length)

    def gather(i: int) -> None:
        if weighted:
            limit.gather_weighted(batches[i % 4], weights, out)
        else:
            limit.gather(batches[i % 4], out)

    gather(0)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=1e-5)
    return found + [Contender(C, "limit", gather, n, limit.threads) for n in THREADS]


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All cases."""
    records = []
    for where, shape, plain, weighted in SMOKE if options.quick else CASES:
        for name, most in (("exact sums", plain), ("exact weighted sums", weighted)):
            found = contenders(shape, name != "exact sums")
            measure(found, options.rounds)
            records.append(
                summarise(
                    f"{name}, rows {where}", shape.describe(), found, {PLAIN: round(1 / most, 2)}
                )
            )
    return records


if __name__ == "__main__":
    main(__doc__, benchmark)
