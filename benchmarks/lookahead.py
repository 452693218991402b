"""Which published cache suits which log? All policies side by side: what they find, what comes too
late, how long steps wait, what moves, and how fast they train.

Four logs, two real ones (in the folder NEOCPU_TEST_DATA) and two drawn ones: Zipf's law, and Zipf's
law whose popular rows change every 64 batches. Each log is one table of all its columns, whose rows
are numbered by falling frequency, in batches of 64 samples; D is 16. Rows are in a file that is as
slow as an SSD of 500 MB/s and 200,000 records a second, with a cache in memory of a fifth and of
half of the rows. A step is the lookup, exact backward and update of a batch; sides take
turns over whole logs, and times are medians.

Of the rows that batches ask for: `hit`, those that were in the cache when the batch was planned;
`late`, those that were not in memory when its turn came. Belady's bound: the most hits of any cache
of that many lines that knows the future, and brings rows only when their batch is planned.
`peak`: the most rows that the cache held, in % of its lines. `moved`: between memory and file.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import cache, ours
from benchmarks.harness import main
from neocpu.core.policies import POLICIES
from neocpu.parallel.sharding.schemes import Shard
from neocpu.tables.embedding.lookups import EntryLayout, Lookups
from neocpu.tables.embedding.tiered import MemoryPlan, TieredEmbedding
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec
from neocpu.tables.storage.row_tools import remove
from neocpu.tables.tiers.placement import LINE_BYTES, SCRATCH, sets_for
from neocpu.train.config.memory import MemoryConfig

SAMPLES = 64
DIM = 16
RANKS = 8  # among which a batch is dealt, to count rows that one of them has alone
ROW = 4 * DIM + 4  # bytes, with its sum of squares
SHARES = (0.2, 0.5)
SLOW = {"ssd_bandwidth": 500e6, "ssd_iops": 200e3}
NO_WEIGHTS = np.empty(0, np.float32)


@dataclass(frozen=True)
class Played:
    """A log that was trained through one policy: shares of the rows asked for, and times.

    seconds : of all steps. waited : of these, for rows. moved : bytes to and from the file.
    """

    hit: float
    late: float
    peak: float
    seconds: float
    waited: float
    moved: int


def drifting(samples: int, columns: int = 26, rows: int = 300_000) -> NDArray[np.int64]:
    """Rows by Zipf's law whose popular rows are others every 64 batches."""
    log = cache.zipf(samples, columns, rows)
    era = np.arange(samples) // (64 * SAMPLES)
    # by a stride that shares no factor with the rows
    return (log + era[:, None] * 104_729) % rows


def logs(quick: bool) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Names and rows i64[samples, columns], numbered by falling frequency."""
    for name, log in cache.logs(quick):
        yield name, by_frequency(log)
    yield (
        "Zipf 1.05, other popular rows every 64 batches",
        by_frequency(drifting(2000 if quick else 40_000)),
    )


def by_frequency(log: NDArray[np.int64]) -> NDArray[np.int64]:
    """The log with rows numbered by falling frequency, equal ones as they were."""
    _, where, counts = np.unique(log, return_inverse=True, return_counts=True)
    rank = np.empty(counts.size, np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(counts.size)
    return rank[where].reshape(log.shape)


def settings(policy: str) -> MemoryConfig:
    """What a policy's name stands for in a config."""
    return MemoryConfig(**{"policy": policy, **POLICIES[policy].keys})


def play(memory: MemoryConfig, log: NDArray[np.int64], lines: int, folder: Path) -> Played:
    """Train a log, each batch once."""
    policy = memory.policy
    rows = int(log.max()) + 1
    budget = (lines + lines // SCRATCH) * (ROW + LINE_BYTES)
    plan = MemoryPlan(
        placements=("ddr_over_ssd",),
        ddr=budget,
        policy=policy,
        prefetch=memory.prefetch,
        folder=folder,
        **SLOW,
    )
    table = TableSpec("all", rows, DIM, ("f",))
    shards = [Shard(0, (0, rows), (0, DIM), 0)]
    tbe = TieredEmbedding([table], shards, SparseOptimizer(learning_rate=0.01), 1, plan)
    layout = EntryLayout(np.zeros(1, np.int64), np.zeros(1, np.int64))
    if memory.warm:
        tbe.warm(0, np.arange(min(rows, lines)), memory.warm_share)
    batches = []
    for at in range(0, len(log), SAMPLES):
        part = log[at : at + SAMPLES]
        offsets = np.arange(0, part.size + 1, part.shape[1])
        batches.append(Lookups(offsets, part.reshape(-1).copy(), NO_WEIGHTS, len(part)))
    known = memory.lookahead if POLICIES[policy].next_use else 0
    known = max(known, memory.prefetch)
    out = np.empty((SAMPLES, DIM), np.float32)
    gradient = np.random.default_rng(1).standard_normal(out.shape).astype(np.float32)
    told = 0
    begun = time.perf_counter()
    for step, batch in enumerate(batches):
        while told < min(step + known + 1, len(batches)) and known:
            tbe.know(layout, batches[told])
            told += 1
        for later in batches[step : step + memory.prefetch + 1] if memory.prefetch else ():
            tbe.prefetch(later)
        samples = batch.offsets.size - 1
        tbe.forward(layout, batch, out[:samples])
        tbe.backward(layout, batch, gradient[:samples], step + 1)
        tbe.settle()
    seconds = time.perf_counter() - begun
    tbe.flush()  # all that changed goes home, under every policy
    (levels,) = tbe.tiers().values()
    nearest, file = levels
    asked = int(nearest["unique"])
    moved = ROW * (int(file["read"]) + int(file["written"]))
    played = Played(
        hit=1 - int(nearest["unique_misses"]) / asked,
        late=int(nearest["late"]) / asked,
        peak=int(nearest["peak"]) / lines,
        seconds=seconds,
        waited=tbe.stalled,
        moved=moved,
    )
    tbe.close()
    remove(folder / "rank-0.h5")
    return played


def touched_alone(log: NDArray[np.int64]) -> float:
    """Share of the rows of a batch that one rank of `RANKS` alone looks up."""
    alone = asked = 0
    for at in range(0, len(log), SAMPLES):
        parts = np.array_split(log[at : at + SAMPLES], RANKS)
        _, ranks = np.unique(np.concatenate([np.unique(p) for p in parts]), return_counts=True)
        alone += np.count_nonzero(ranks == 1)
        asked += ranks.size
    return alone / asked


def compare(name: str, log: NDArray[np.int64], share: float, rounds: int) -> dict[str, Any]:
    """Record of one log and one size of the cache."""
    rows = int(log.max()) + 1
    lines = 32 * sets_for(rows, share)
    sides = {f"`{policy}`": settings(policy) for policy in POLICIES}
    sides["`lru`, no prefetch"] = MemoryConfig(prefetch=0)
    times: dict[str, list[Played]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for side, memory in sides.items():
                times[side].append(play(memory, log, lines, Path(folder)))
    starts = range(0, len(log), SAMPLES)
    batches = [np.unique(log[at : at + SAMPLES], return_counts=True) for at in starts]
    bound = 1 - cache.belady(lines, batches)
    table = [
        "| policy | hit, % | late, % | peak, % | waited, s | moved, MB | samples/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for side, runs in times.items():
        first = runs[0]
        waited = statistics.median(run.waited for run in runs)
        speed = len(log) / statistics.median(run.seconds for run in runs)
        table.append(
            f"| {side} | {100 * first.hit:.1f} | {100 * first.late:.1f} | "
            f"{100 * first.peak:.0f} | {waited:.2f} | {first.moved / 1e6:.1f} | {speed:,.0f} |"
        )
    table.append(f"| Belady's bound | {100 * bound:.1f} | | | | | |")
    alone = f"{touched_alone(log):.1%} of the rows of a batch are looked up by one rank of {RANKS}."
    shape = {"samples": len(log), "rows": rows, "lines": lines, "D": DIM, "rounds": rounds}
    case = f"caches of published systems, {name}, {share:.0%} of the rows"
    return {
        "case": case,
        "shape": shape,
        "rounds": rounds,
        "rows": [],
        "notes": ["\n".join(table), alone],
    }


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every log and size."""
    ours.threads(1)
    rounds = 1 if options.quick else min(options.rounds, 3)
    return [
        compare(name, log, share, rounds)
        for name, log in logs(options.quick)
        for share in SHARES
        if options.log in name
    ]


def of_one_log(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--log", default="", help="only logs whose names contain this")


if __name__ == "__main__":
    main(__doc__, benchmark, of_one_log)
