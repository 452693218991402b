"""How fast are rows gathered and pooled? Exact sums against FBGEMM CPU, torch, and plain C.

Narrow rows (fp16, int8) are looked up by `peers/arrays.py`, against FBGEMM's training and
inference tables.

"One batch" repeats the same lookups, as FBGEMM's own benchmark does; "fresh batches" takes four in
turn, as training does. Before anything is timed, all contenders must agree on the pooled rows to
fp32 rounding.
"""

import argparse
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from benchmarks import narrow, ours, rivals
from benchmarks.harness import THREADS, Contender, main, measure, summarise
from benchmarks.limits import Limit, library
from benchmarks.shapes import Lookup

# The shape for which there are aims.
HEADLINE = Lookup()
# Name, shape, batches that take turns.
CASES = (
    ("lookup, one batch", HEADLINE, 1),
    ("lookup, fresh batches", HEADLINE, 4),
    ("lookup, Zipf 1.05", replace(HEADLINE, zipf=1.05), 4),
    ("lookup, Zipf 1.2", replace(HEADLINE, zipf=1.2), 4),
    ("lookup, D 16", replace(HEADLINE, dim=16), 4),
    ("lookup, D 64", replace(HEADLINE, dim=64), 4),
    ("lookup, D 64, Zipf 1.05", replace(HEADLINE, dim=64, zipf=1.05), 4),
    ("lookup, T 1", replace(HEADLINE, tables=1, samples=16384), 4),
    ("lookup, T 128", replace(HEADLINE, tables=128, samples=128, rows=25_000), 4),
    ("lookup, L 1", replace(HEADLINE, length=1, samples=8192), 4),
    ("lookup, L 100", replace(HEADLINE, length=100, samples=128), 4),
    ("lookup, D 256", replace(HEADLINE, dim=256, rows=50_000), 4),
    ("lookup, D 256, Zipf 1.05", replace(HEADLINE, dim=256, rows=50_000, zipf=1.05), 4),
)
# Name, shape and format of rows that are not fp32.
NARROW = tuple(
    (f"lookup, {precision}, {name}", shape, precision)
    for precision in narrow.FORMATS
    for name, shape in (
        ("uniform", HEADLINE),
        ("Zipf 1.05", replace(HEADLINE, zipf=1.05)),
        ("D 64", replace(HEADLINE, dim=64)),
    )
)
# The cases of --quick.
SMOKE = (("lookup, smoke", Lookup(3, 16, 4, 32, 200), 2),)
NARROW_SMOKE = (("lookup, fp16, smoke", Lookup(3, 16, 4, 32, 200), "fp16"),)
# Lookups of a batch in the grid.
LOOKUPS = 32 * 512 * 20
# Most elements of all tables together in the grid.
ELEMENTS = 32 * 100_000 * 128
# Least ratio of each contender's time to ours that we aim at.
AIMS = {"FBGEMM CPU TBE": 2.0, "torch embedding_bag": 1.0, "C, plain fp32 sums": 0.9}


def agree(name: str, pooled: Any, expected: np.ndarray) -> None:
    """Stop unless pooled rows are as expected, up to fp32 rounding."""
    np.testing.assert_allclose(
        np.asarray(pooled).reshape(expected.shape), expected, rtol=2e-5, atol=1e-5, err_msg=name
    )


def make_contenders(shape: Lookup, count: int, with_rivals: bool) -> list[Contender]:
    """All implementations of the lookup that this machine has."""
    batches = shape.batches(count)
    lookup = ours.NeocpuLookup(shape, batches)
    tables = lookup.tables()
    out = np.zeros((shape.samples, shape.tables * shape.dim), np.float32)
    expected = lookup.forward(0).copy()
    contenders = [
        Contender("neocpu, exact sums", "ours", lookup.forward, n, ours.threads) for n in THREADS
    ]
    if with_rivals and rivals.have("torch", "fbgemm_gpu"):
        fbgemm = rivals.FbgemmLookup(shape, tables, batches)
        torch = rivals.TorchLookup(shape, fbgemm.tables, batches, train=False)
        agree("FBGEMM", fbgemm.forward(0), expected)
        agree("torch", np.concatenate([pooled.numpy() for pooled in torch.forward(0)], 1), expected)
        contenders += [
            Contender("FBGEMM CPU TBE", "rival", fbgemm.forward, n, rivals.threads) for n in THREADS
        ]
        contenders += [
            Contender("torch embedding_bag", "rival", torch.forward, n, rivals.threads)
            for n in THREADS
        ]
    if library(shape.dim) is not None:
        limit = Limit(tables, shape.samples, shape.length)
        for name, wide in (("C, plain fp32 sums", False), ("C, fp64 sums", True)):

            def gather(i: int, wide: bool = wide) -> None:
                limit.gather(batches[i % count], out, wide)

            gather(0)
            agree(name, out, expected)
            contenders += [Contender(name, "limit", gather, n, limit.threads) for n in THREADS]
    return contenders


def make_narrow_contenders(shape: Lookup, precision: str, with_rivals: bool) -> list[Contender]:
    """All implementations of the lookup for rows of that precision."""
    batches = shape.batches(4)
    tables = narrow.Tables.draw(shape, precision)
    lookup = narrow.NeocpuNarrow(tables, batches)
    expected = lookup.forward(0)
    contenders = [
        Contender("neocpu, exact sums", "ours", lookup.forward, n, ours.threads) for n in THREADS
    ]
    if with_rivals and rivals.have("torch", "fbgemm_gpu"):
        for name, training in (("FBGEMM CPU TBE", True), ("FBGEMM CPU inference TBE", False)):
            if training and precision != "fp16":
                continue
            peer = narrow.FbgemmNarrow(tables, batches, training)
            agree(name, peer.forward(0), expected)
            contenders += [
                Contender(name, "rival", peer.forward, n, rivals.threads) for n in THREADS
            ]
    return contenders


def grid() -> list[tuple[str, Lookup, str]]:
    """All combinations of shapes, with samples and rows such that all cases are of one size."""
    cases = []
    for tables, dim, length, zipf, precision in product(
        (1, 26, 104), (16, 64, 128, 256), (1, 20, 100), (0.0, 1.05), ("fp32", *narrow.FORMATS)
    ):
        rows = min(1_000_000, ELEMENTS // tables // dim)
        shape = Lookup(tables, max(1, LOOKUPS // tables // length), length, dim, rows, zipf)
        cases.append(
            (f"lookup, {precision}, T {tables} D {dim} L {length} Zipf {zipf:g}", shape, precision)
        )
    return cases


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All cases."""
    if not options.no_rivals:
        rivals.preload()
    cases = [
        (case, shape, count, "fp32") for case, shape, count in (SMOKE if options.quick else CASES)
    ]
    cases += [
        (case, shape, 4, precision)
        for case, shape, precision in (NARROW_SMOKE if options.quick else NARROW)
    ]
    if getattr(options, "grid", False):
        cases = [(case, shape, 4, precision) for case, shape, precision in grid()]
    records = []
    for case, shape, count, precision in cases:
        if options.case and options.case not in case:
            continue
        if precision == "fp32":
            contenders = make_contenders(shape, count, not options.no_rivals)
        else:
            contenders = make_narrow_contenders(shape, precision, not options.no_rivals)
        measure(contenders, options.rounds)
        description = shape.describe(precision) | {"batches": count}
        records.append(
            summarise(
                case,
                description,
                contenders,
                AIMS if shape == HEADLINE and precision == "fp32" else None,
            )
        )
    return records


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", help="only cases whose name holds this")
    parser.add_argument(
        "--grid", action="store_true", help="the whole product of shapes: hours; set --rounds"
    )


if __name__ == "__main__":
    main(__doc__, benchmark, _options)
