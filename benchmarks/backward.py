"""How fast is the fused backward with row-wise AdaGrad? Against FBGEMM CPU, torch and C.

Timed: from the gradient of the pooled rows to updated tables (linearise, sort, merge duplicates,
update). The forward runs before each timing, untimed, as in a training step. torch has no row-wise
AdaGrad; its element-wise one stands in.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import ours, rivals
from benchmarks.harness import THREADS, Contender, main, measure, summarise
from benchmarks.limits import Limit, library
from benchmarks.shapes import Lookup

# The shape for which there are aims.
HEADLINE = Lookup()
# Name, shape, batches that take turns.
CASES = (
    ("backward, one batch", HEADLINE, 1),
    ("backward, fresh batches", HEADLINE, 4),
    ("backward, Zipf 1.05", replace(HEADLINE, zipf=1.05), 4),
    ("backward, Zipf 1.2", replace(HEADLINE, zipf=1.2), 4),
    ("backward, D 16", replace(HEADLINE, dim=16), 4),
    ("backward, D 64", replace(HEADLINE, dim=64), 4),
)
# The case of --quick.
SMOKE = (("backward, smoke", Lookup(3, 16, 4, 32, 200), 2),)
# Least ratio of each contender's time to ours that we aim at.
AIMS = {"FBGEMM CPU TBE": 2.4, "C, plain fp32 sums": 0.9}


def limit_contenders(shape: Lookup, batches: list[np.ndarray], grad: np.ndarray) -> list[Contender]:
    """The C limit, on tables of its own."""
    if library(shape.dim) is None:
        return []
    tables = list(np.zeros((shape.tables, shape.rows, shape.dim), np.float32))
    moments = list(np.zeros((shape.tables, shape.rows), np.float32))
    out = np.zeros((shape.samples, shape.tables * shape.dim), np.float32)
    limit = Limit(tables, shape.samples, shape.length)

    def forward(i: int) -> None:
        limit.gather(batches[i % len(batches)], out)

    def backward(i: int) -> None:
        limit.backward(moments, batches[i % len(batches)], grad, ours.RATE)

    return [
        Contender("C, plain fp32 sums", "limit", backward, n, limit.threads, forward)
        for n in THREADS
    ]


def check(
    shape: Lookup, forward: Callable[[int], Any], lookup: ours.NeocpuLookup, expected: np.ndarray
) -> None:
    """Stop unless one update with batch 0 has changed the rival's tables as it has ours."""
    np.testing.assert_allclose(np.asarray(forward(0)), expected, rtol=1e-3, atol=1e-3)


def make_contenders(
    shape: Lookup, count: int, with_rivals: bool, with_torch: bool
) -> list[Contender]:
    """All implementations of the backward that this machine has."""
    batches = shape.batches(count)
    grad = rivals.gradient(shape)
    lookup = ours.NeocpuLookup(shape, batches)

    def backward(i: int) -> None:
        lookup.backward(i, grad)

    contenders = [
        Contender("neocpu, exact sums", "ours", backward, n, ours.threads, lookup.forward)
        for n in THREADS
    ]
    if with_rivals and rivals.have("torch", "fbgemm_gpu"):
        fbgemm = rivals.FbgemmLookup(shape, lookup.tables(), batches)
        fbgemm.forward(0)
        fbgemm.backward(0)
        backward(0)
        check(shape, fbgemm.forward, lookup, lookup.forward(0))
        contenders += [
            Contender("FBGEMM CPU TBE", "rival", fbgemm.backward, n, rivals.threads, fbgemm.forward)
            for n in THREADS
        ]
        if with_torch:
            torch = rivals.TorchLookup(shape, fbgemm.tables, batches, train=True)
            name = "torch sparse, element-wise Adagrad"
            contenders += [
                Contender(name, "rival", torch.backward, n, rivals.threads, torch.forward)
                for n in THREADS
            ]
    return contenders + limit_contenders(shape, batches, grad)


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All cases."""
    if not options.no_rivals:
        rivals.preload()
    records = []
    for case, shape, count in SMOKE if options.quick else CASES:
        if options.case and options.case not in case:
            continue
        contenders = make_contenders(
            shape,
            count,
            not options.no_rivals,
            with_torch=(shape == HEADLINE and count == 1) or options.quick,
        )
        measure(contenders, options.rounds)
        records.append(
            summarise(
                case,
                shape.describe() | {"batches": count},
                contenders,
                AIMS if shape == HEADLINE else None,
            )
        )
    return records


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        lambda parser: parser.add_argument("--case", help="only cases whose name holds this"),
    )
