"""How fast are rows gathered and pooled? Ours (exact sums) against FBGEMM CPU, torch, and C (plain and fp64 sums).

"One batch" repeats the same lookups, as FBGEMM's own benchmark does; "fresh batches" takes four in turn, as training
does. Before anything is timed, all contenders must agree on the pooled rows to fp32 rounding.
"""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import ours, rivals
from benchmarks.harness import THREADS, Contender, main, measure, summarise
from benchmarks.limits import Limit, library
from benchmarks.shapes import Lookup

HEADLINE = Lookup()
CASES = (
    ("lookup, one batch", HEADLINE, 1),
    ("lookup, fresh batches", HEADLINE, 4),
    ("lookup, Zipf 1.05", replace(HEADLINE, zipf=1.05), 4),
    ("lookup, Zipf 1.2", replace(HEADLINE, zipf=1.2), 4),
    ("lookup, D 16", replace(HEADLINE, dim=16), 4),
    ("lookup, D 64", replace(HEADLINE, dim=64), 4),
)
SMOKE = (("lookup, smoke", Lookup(3, 16, 4, 32, 200), 2),)
AIMS = {"FBGEMM CPU TBE": 1.8}


def agree(name: str, theirs: Any, mine: np.ndarray) -> None:
    """Stop unless both pooled the same rows."""
    np.testing.assert_allclose(np.asarray(theirs).reshape(mine.shape), mine, rtol=2e-5, atol=1e-5, err_msg=name)


def contenders(shape: Lookup, count: int, with_rivals: bool) -> list[Contender]:
    """Everybody who can do the lookup on this machine."""
    batches = shape.batches(count)
    mine = ours.OurLookup(shape, batches)
    tables, out = mine.tables(), np.zeros((shape.samples, shape.tables * shape.dim), np.float32)
    expected = mine.forward(0).copy()
    found = [Contender("neocpu, exact sums", "ours", mine.forward, n, ours.threads) for n in THREADS]
    if with_rivals and rivals.have("torch", "fbgemm_gpu"):
        fbgemm = rivals.FbgemmLookup(shape, tables, batches)
        torch = rivals.TorchLookup(shape, fbgemm.tables, batches, train=False)
        agree("FBGEMM", fbgemm.forward(0), expected)
        agree("torch", np.concatenate([pooled.numpy() for pooled in torch.forward(0)], 1), expected)
        found += [Contender("FBGEMM CPU TBE", "rival", fbgemm.forward, n, rivals.threads) for n in THREADS]
        found += [Contender("torch embedding_bag", "rival", torch.forward, n, rivals.threads) for n in THREADS]
    if library(shape.dim) is not None:
        limit = Limit(tables, shape.samples, shape.length)
        for name, wide in (("C, plain fp32 sums", False), ("C, fp64 sums", True)):

            def gather(i: int, wide: bool = wide) -> None:
                limit.gather(batches[i % count], out, wide)

            gather(0)
            agree(name, out, expected)
            found += [Contender(name, "limit", gather, n, limit.threads) for n in THREADS]
    return found


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All cases."""
    if not options.no_rivals:
        rivals.preload()
    records = []
    for case, shape, count in SMOKE if options.quick else CASES:
        if options.case and options.case not in case:
            continue
        found = contenders(shape, count, not options.no_rivals)
        measure(found, options.rounds)
        records.append(
            summarise(case, shape.describe() | {"batches": count}, found, AIMS if shape == HEADLINE else None)
        )
    return records


if __name__ == "__main__":
    main(__doc__, benchmark, lambda parser: parser.add_argument("--case", help="only cases whose name holds this"))
