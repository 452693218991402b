"""What does a training step cost if fast memory has room for a tenth of the rows?

It is compared with the same step with all rows in memory.

Steps are those of `dlrm_step`, with at most 100,000 rows a table, drawn by a Zipf law (1.05) that
ends with the table: 48 batches take turns, many times the rows that a cache of a tenth of them
holds, so it misses as in a long run. `prefetch`: how many batches ahead rows are fetched. The slow
SSD is the same file, throttled to 2 GB/s and a million rows a second.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.harness import CORES, Contender, main, measure, summarise
from benchmarks.shapes import KAGGLE, MLPERF, SMALL, Model, clicks, draw_within

# Batches that take turns.
BATCHES = 48
# Most rows of a table.
ROWS = 100_000
# All rows, divided by those in fast memory.
SHARE = 10
# Name of the contender with all rows in memory.
WHOLE = "neocpu, all rows in memory"
# Settings of the slow SSD.
SLOW = {"ssd_bandwidth": 2e9, "ssd_iops": 1e6}
# By placement: the aim, and further settings to compare.
CASES = {
    "hbm_over_ddr": (0.7, {"prefetch 0": {"prefetch": 0}}),
    "ddr_over_ssd": (
        0.5,
        {
            "prefetch 0": {"prefetch": 0},
            "slow SSD": SLOW,
            "slow SSD, prefetch 0": SLOW | {"prefetch": 0},
        },
    ),
}


def job(
    model: Model, batches: list[Any], placement: str, folder: Path, **settings: Any
) -> ours.NeocpuDlrm:
    """The training step under a budget for a tenth of the rows, after one pass over all batches."""
    from neocpu.tables.embedding.tiered import MemoryPlan

    fast = "hbm" if placement.startswith("hbm") else "ddr"
    row = 4 * model.dim + 4 + 34
    budget = {fast: sum(model.rows) // SHARE * row}
    settings = {"prefetch": 1, **settings}
    memory = MemoryPlan(
        placements=(placement,) * len(model.rows), folder=folder, **budget, **settings
    )
    dlrm = ours.NeocpuDlrm(model, batches, memory=memory)
    for i in range(len(batches)):
        dlrm.step(i)
    return dlrm


def case(model: Model, placement: str, rounds: int) -> dict[str, Any]:
    """One model and placement."""
    ours.threads(CORES)
    batches = clicks(model, BATCHES, 1.05, draw_rows=draw_within)
    aim, variants = CASES[placement]
    with tempfile.TemporaryDirectory() as folder:
        jobs = {"neocpu, prefetch 1": job(model, batches, placement, Path(folder) / "0")}
        for i, (name, settings) in enumerate(variants.items(), 1):
            jobs[name] = job(model, batches, placement, Path(folder) / str(i), **settings)
        jobs[WHOLE] = ours.NeocpuDlrm(model, batches)
        sides = ["ours", *["note"] * len(variants), "limit"]
        contenders = [
            Contender(name, side, dlrm.step, CORES, ours.threads)
            for (name, dlrm), side in zip(jobs.items(), sides)
        ]
        measure(contenders, rounds, warmup=3)
        tiers = next(iter(jobs.values())).tables.tbe.tiers().values()
        for dlrm in jobs.values():
            dlrm.tables.tbe.close()
    name = f"training step, {model.name}, {placement}, a tenth of the rows above"
    record = summarise(name, model.describe() | {"Zipf": 1.05}, contenders, {WHOLE: aim})
    unique_rows, missing = (
        sum(levels[0][key] for levels in tiers) for key in ("unique", "unique_misses")
    )
    uncached = sum(levels[0]["conflict_unique_misses"] for levels in tiers)
    notes = [
        (
            f"{missing / unique_rows:.1%} of the rows that batches ask for are missing, "
            f"{uncached / unique_rows:.1%} find no line."
        )
    ]
    return record | {"notes": notes}


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Both models over both placements."""
    models = (
        (replace(SMALL, cap=10_000),)
        if options.quick
        else (replace(KAGGLE, cap=ROWS), replace(MLPERF, cap=ROWS))
    )
    return [case(model, placement, options.rounds) for model in models for placement in CASES]


if __name__ == "__main__":
    main(__doc__, benchmark)
