"""Does a lookup cost more in a larger table? Tables of 10^5 to 10^8 rows are compared.

Measured are the fused backward with row-wise AdaGrad on one table, and a whole training step over
26 tables that have as many rows together, all of them touched before.

D = 16, so that neither arithmetic nor bandwidth hides the cost of a cache miss. The aim: a lookup
in 10^8 rows (6.4 GB of weights) takes at most 1.3 times as long as in 10^5 rows (which the
third-level cache may hold), and so does a sample. The C limit shows what the machine needs at
least, on one thread, as it divides work by table.
"""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import ours
from benchmarks.harness import CORES, Contender, main, measure, summarise
from benchmarks.limits import Limit, library
from benchmarks.shapes import KAGGLE, Lookup, clicks

# Rows of the tables.
SIZES = (10**5, 10**6, 10**7, 10**8)
# Rows with --quick.
SMOKE = (10**3, 10**4)
# Samples of a batch.
SAMPLES = 16384
# Lookups of a bag.
LENGTH = 20
# Columns of the table.
DIM = 16
# Aim: most times that the largest table may take of the smallest one's time.
MOST_TIMES = 1.3


def make_contender(rows: int, samples: int, first: bool) -> Contender:
    """Our backward on a table of `rows` rows."""
    shape = Lookup(1, samples, LENGTH, DIM, rows)
    batches = shape.batches(4)
    lookup = ours.NeocpuLookup(shape, batches)
    grad = np.random.default_rng(1).standard_normal((samples, DIM), np.float32)
    name = f"{rows:,} rows".replace(",", " ")
    run = Contender(
        name, "ours" if first else "note", lambda i: lookup.backward(i, grad), CORES, ours.threads
    )
    run.prepare = lookup.forward
    return run


def limit(rows: int, samples: int) -> Contender:
    """The same backward in plain C."""
    shape = Lookup(1, samples, LENGTH, DIM, rows)
    batches = shape.batches(4)
    grad = np.random.default_rng(1).standard_normal((samples, DIM), np.float32)
    table = np.zeros((rows, DIM), np.float32)
    moments = np.zeros(rows, np.float32)
    out = np.empty_like(grad)
    job = Limit([table], samples, LENGTH)
    name = "C, " + f"{rows:,} rows".replace(",", " ")
    run = Contender(
        name,
        "limit",
        lambda i: job.backward([moments], batches[i % 4], grad, ours.RATE),
        1,
        job.threads,
    )
    run.prepare = lambda i: job.gather(batches[i % 4], out)
    return run


def steps(rows: int, first: bool) -> Contender:
    """Training steps over 26 tables of `rows` rows together, all touched before."""
    model = replace(KAGGLE, equal=rows // 26)
    job = ours.NeocpuDlrm(model, clicks(model, 16, 0.0))
    job.touch()
    return Contender(
        f"{rows:,} rows".replace(",", " "),
        "ours" if first else "note",
        job.step,
        CORES,
        ours.threads,
    )


def samples_by_rows(options: argparse.Namespace) -> dict[str, Any]:
    """The steps, all sizes in turn."""
    sizes = SMOKE if options.quick else SIZES
    contenders = [steps(rows, rows == sizes[0]) for rows in sizes]
    measure(contenders, options.rounds)
    record = summarise(
        "training step by touched rows", KAGGLE.describe() | {"rows": "equal, uniform"}, contenders
    )
    costs = [f"{c.name} {c.median / KAGGLE.samples * 1e6:.2f}" for c in contenders]
    return record | {"notes": [f"us per sample: {', '.join(costs)}.", _verdict(contenders)]}


def _times(contenders: list[Contender]) -> float:
    """Time of the last contender, divided by that of the first."""
    return contenders[-1].median / contenders[0].median


def _verdict(contenders: list[Contender]) -> str:
    times = _times(contenders)
    return (
        f"The largest costs {times:.2f} times the smallest (aim {MOST_TIMES}: "
        f"{'reached' if times <= MOST_TIMES else 'MISSED'})."
    )


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All sizes in turn."""
    sizes = SMOKE if options.quick else SIZES
    samples = 64 if options.quick else SAMPLES
    contenders = [make_contender(rows, samples, rows == sizes[0]) for rows in sizes]
    limits = [limit(rows, samples) for rows in (sizes[0], sizes[-1])] if library(DIM) else []
    measure(contenders + limits, options.rounds)
    lookups = samples * LENGTH
    shape = {
        "T": 1,
        "B": samples,
        "L": LENGTH,
        "D": DIM,
        "format": "fp32",
        "distribution": "uniform",
    }
    record = summarise("backward by rows", shape, contenders + limits)
    costs = [f"{c.name} {c.median / lookups * 1e9:.1f}" for c in contenders + limits]
    notes = [f"ns per lookup: {'; '.join(costs)}.", _verdict(contenders)]
    if limits:
        notes.append(f"In plain C the largest costs {_times(limits):.2f} times the smallest.")
    record |= {"notes": notes}
    # The training steps need the memory of the tables.
    del contenders, limits
    return [record, samples_by_rows(options)]


if __name__ == "__main__":
    main(__doc__, benchmark)
