"""Does a lookup cost more in a larger table? The fused backward with row-wise AdaGrad, one table of
10^5 to 10^8 rows; then a whole training step over 26 tables that have as many rows together, all of
them touched before.

D = 16, so that neither arithmetic nor bandwidth hides what a row far away costs. The aim: a lookup
in 10^8 rows (6.4 GB of weights) takes at most 1.3 times as long as in 10^5 rows (which the
third-level cache may hold); so does a sample. What that takes at least is told by the C limit, on
one thread: it divides work by table.
"""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import ours
from benchmarks.harness import CORES, Contender, main, measure, summarise
from benchmarks.limits import Limit, library
from benchmarks.shapes import KAGGLE, Lookup, clicks

SIZES = (10**5, 10**6, 10**7, 10**8)
SMOKE = (10**3, 10**4)
SAMPLES = 16384
LENGTH = 20
DIM = 16
MOST = 1.3


def contender(rows: int, samples: int, first: bool) -> Contender:
    """The backward on a table of so many rows."""
    shape = Lookup(1, samples, LENGTH, DIM, rows)
    batches = shape.batches(4)
    mine = ours.OurLookup(shape, batches)
    grad = np.random.default_rng(1).standard_normal((samples, DIM), np.float32)
    name = f"{rows:,} rows".replace(",", " ")
    run = Contender(
        name, "ours" if first else "note", lambda i: mine.backward(i, grad), CORES, ours.threads
    )
    run.prepare = mine.forward
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
    """Training steps over tables of so many rows together, all touched."""
    model = replace(KAGGLE, equal=rows // 26)
    job = ours.OurDlrm(model, clicks(model, 16, 0.0))
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
    found = [steps(rows, rows == sizes[0]) for rows in sizes]
    measure(found, options.rounds)
    record = summarise(
        "training step by touched rows", KAGGLE.describe() | {"rows": "equal, uniform"}, found
    )
    costs = [f"{c.name} {c.median / KAGGLE.samples * 1e6:.2f}" for c in found]
    return record | {"notes": [f"us per sample: {', '.join(costs)}.", _verdict(found)]}


def _times(found: list[Contender]) -> float:
    """How many times the time of the first the last one takes."""
    return found[-1].median / found[0].median


def _verdict(found: list[Contender]) -> str:
    times = _times(found)
    return (
        f"The largest costs {times:.2f} times the smallest (aim {MOST}: "
        f"{'reached' if times <= MOST else 'MISSED'})."
    )


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All sizes in turn."""
    sizes, samples = (SMOKE, 64) if options.quick else (SIZES, SAMPLES)
    found = [contender(rows, samples, rows == sizes[0]) for rows in sizes]
    limits = [limit(rows, samples) for rows in (sizes[0], sizes[-1])] if library(DIM) else []
    measure(found + limits, options.rounds)
    lookups = samples * LENGTH
    shape = {"T": 1, "B": samples, "L": LENGTH, "D": DIM, "fp32,": "uniform"}
    record = summarise("backward by rows", shape, found + limits)
    costs = [f"{c.name} {c.median / lookups * 1e9:.1f}" for c in found + limits]
    notes = [f"ns per lookup: {'; '.join(costs)}.", _verdict(found)]
    if limits:
        notes.append(f"In plain C the largest costs {_times(limits):.2f} times the smallest.")
    record |= {"notes": notes}
    del found, limits
    return [record, samples_by_rows(options)]


if __name__ == "__main__":
    main(__doc__, benchmark)
