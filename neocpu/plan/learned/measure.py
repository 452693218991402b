"""What do sets of tables, and exchanges, cost here? One job of one or more ranks, timed.

    python -m neocpu.plan.learned.measure FOLDER quick|full

(As `plan/machines/measure`, whose arguments and result these are.) All ranks measure the same
set at a time: lookups and fused update of random tables, after other memory has been written so
that no cache holds their rows. The least of several tries on the slowest rank counts. Exchanges:
every rank starts at its own offset; a rank's seconds go from its start to its end.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np
from numpy.random import Generator

from neocpu.core.types import Bytes, Tell
from neocpu.parallel.sharding.schemes import Shard
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.launch import (
    bind_kernel_threads,
    get_comm,
    prepare_threads,
    run_guarded,
)
from neocpu.plan.cost.work import Floats, TableArrays
from neocpu.plan.learned.features import describe, whole
from neocpu.plan.learned.reuse import histogram
from neocpu.plan.learned.samples import (
    LARGEST_SET,
    Ranges,
    draw_dim_sums,
    draw_offsets,
    draw_pool,
)
from neocpu.tables.embedding.lookups import EntryLayout, Lookups
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.optimizers import SparseOptimizer

SEED = 9
FLUSHED = 64 << 20  # bytes written before a try
SKEW = 3  # of every second table: row = rows x uniform^SKEW
RANGES = Ranges(rows=(10.0, 3e5), pooling=(1.0, 50.0), dims=(4, 8, 16, 32, 64, 128))


@dataclass(frozen=True)
class Sampling:
    """How much is measured: sets and exchanges, samples of a step, tries, and longest offset in s.

    ranges : of the tables.
    """

    sets: int = 700
    exchanges: int = 400
    batch: int = 1024
    tries: int = 4
    offset: float = 0.005
    ranges: Ranges = RANGES


SAMPLINGS = {
    "full": Sampling(),
    "quick": Sampling(sets=40, exchanges=30, batch=256, tries=2, offset=0.001),
}


def measure_sets(comm: Comm, sampling: Sampling) -> dict[str, object]:
    """Features [pieces, FEATURES], starts [sets] and seconds [sets] of random sets. Collective."""
    rng = np.random.default_rng(SEED)
    flushed = np.zeros(FLUSHED, np.uint8)
    features = []
    starts = []
    seconds = []
    count = 0
    for _ in range(sampling.sets):
        tables = int(rng.integers(1, LARGEST_SET + 1))
        described, least = _set_seconds(comm, sampling, tables, rng, flushed)
        features += described.round(6).tolist()
        starts.append(count)
        seconds.append(least)
        count += tables
    return {"features": features, "starts": starts, "seconds": seconds}


def _set_seconds(
    comm: Comm, sampling: Sampling, count: int, rng: Generator, flushed: Bytes
) -> tuple[Floats, float]:
    """(features of a random set, seconds of its lookups and update on the slowest rank)."""
    batch = sampling.batch
    pool = draw_pool(count, batch, rng, sampling.ranges)
    arrays = TableArrays.of(pool.tables, pool.work)
    lookups = arrays.lookups.astype(np.int64)
    rows = []
    reuse = []
    for table, total in zip(pool.tables, lookups.tolist()):
        drawn = rng.random(total) ** (SKEW if rng.random() < 0.5 else 1)
        rows.append((drawn * table.rows).astype(np.int64))
        reuse.append(histogram(rows[-1]))
    bags = np.repeat(lookups // batch, batch)
    batch_lookups = Lookups(
        np.concatenate([[0], np.cumsum(bags)]),
        np.concatenate(rows),
        np.zeros(0, np.float32),
        batch,
    )
    dims = [table.dim for table in pool.tables]
    columns = np.cumsum(dims, dtype=np.int64) - np.array(dims, np.int64)
    layout = EntryLayout(np.arange(count), columns)
    shards = [Shard(t, (0, s.rows), (0, s.dim), 0) for t, s in enumerate(pool.tables)]
    optimizer = SparseOptimizer(name="exact_rowwise_adagrad", learning_rate=0.01)
    store = TableBatchedEmbedding(pool.tables, shards, optimizer, 1)
    out = np.zeros((batch, sum(dims)), np.float32)
    gradient = np.full_like(out, 1e-3)
    best = np.inf
    # The first try compiles, and creates the rows.
    for turn in range(sampling.tries + 1):
        # a step between two batches would have written over the caches as well
        flushed += 1
        comm.barrier()
        begin = time.perf_counter_ns()
        store.forward(layout, batch_lookups, out)
        store.backward(layout, batch_lookups, gradient, turn + 1)
        spent = comm.largest(time.perf_counter_ns() - begin)
        best = min(best, spent * 1e-9) if turn else best
    store.close()
    described = describe(whole(arrays), arrays, batch, np.array(reuse))
    return described, best


def measure_exchanges(comm: Comm, sampling: Sampling) -> dict[str, object]:
    """Dim sums, offsets, and seconds of each rank forward and backward, [exchanges, ranks] each.

    Collective; nothing for a rank alone.
    """
    if comm.size == 1:
        return {}
    rng = np.random.default_rng(SEED + comm.size)
    sums = draw_dim_sums(comm.size, sampling.exchanges, rng, sampling.ranges.dims)
    offsets = draw_offsets(comm.size, sampling.exchanges, rng, sampling.offset)
    forward = []
    backward = []
    for dims, starts in zip(sums, offsets):
        forward.append(_exchange_seconds(comm, sampling, dims, starts))
        backward.append(_exchange_seconds(comm, sampling, dims, np.zeros(comm.size)))
    return {
        "sums": sums.tolist(),
        "offsets": offsets.tolist(),
        "forward": forward,
        "backward": backward,
    }


def _exchange_seconds(comm: Comm, sampling: Sampling, dims: Floats, starts: Floats) -> list[float]:
    """Seconds of each rank in an exchange of pooled vectors, from the fastest of several tries."""
    samples = sampling.batch // comm.size
    block = (4 * samples * dims).astype(np.int64)
    send = np.ones(int(block[comm.rank]) * comm.size, np.uint8)
    recv = np.zeros(int(block.sum()), np.uint8)
    counts = np.full(comm.size, block[comm.rank], np.int64)
    best = np.full(comm.size, np.inf)
    for _ in range(sampling.tries):
        comm.barrier()
        begin = time.perf_counter() + float(starts[comm.rank])
        # busy, since a sleeping rank would wake up late by a part of the offset
        while time.perf_counter() < begin:
            pass
        begin = time.perf_counter()
        comm.alltoallv(send, counts, recv, block)
        spent = np.zeros(comm.size)
        ended = np.array([time.perf_counter() - begin])
        comm.allgatherv(ended, spent, np.ones(comm.size, np.int64))
        # the times of one try belong together: a rank's time depends on when the others came
        best = spent if spent.max() < best.max() else best
    return best.tolist()


def measure(comm: Comm, effort: str, tell: Tell) -> dict[str, object]:
    """All samples of one job, as JSON values. Collective."""
    sampling = SAMPLINGS[effort]
    result: dict[str, object] = {}
    # Once is enough: by two ranks that share the memory, or by one where there is no MPI.
    if comm.size <= 2:
        tell("sets of tables")
        result["sets"] = measure_sets(comm, sampling)
    tell("exchanges")
    result["exchanges"] = measure_exchanges(comm, sampling)
    result["facts"] = {"ranks": comm.size, **_plain(sampling)}
    return result


def _plain(sampling: Sampling) -> dict[str, object]:
    facts = asdict(sampling)
    ranges = facts.pop("ranges")
    return facts | ranges


def main() -> int:
    """One rank of the job; see the module's docstring for its arguments."""
    _, effort = sys.argv[1:]
    comm = get_comm()
    prepare_threads(comm)
    bind_kernel_threads(comm)

    def tell(topic: str) -> None:
        if comm.rank == 0:
            print(topic, flush=True)

    measured = measure(comm, effort, tell)
    if comm.rank == 0:
        print(json.dumps(measured), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_guarded(main))
