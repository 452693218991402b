"""What does deduplication save on session-like data? Lookups, bytes and time against RecD's model.

    python -m benchmarks.recd                       sessions, on two MPI ranks
    python -m benchmarks.recd --avazu LOG.csv.gz    repeats of a real log, plain and clustered
    python -m benchmarks.recd --storage             bytes of compressed datasets

The model: of B samples in sessions of S whose features stay as they are with probability d from one
sample to the next, B (1 - (S-1)/S d) have distinct bags. A batch has eight tables of features that
change together, twenty lookups each (a user's history), and four whose single lookup differs in
every sample. Times are medians of steps that take turns: embeddings forward and backward, dense
layers left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.parallel.embeddings.sharded import ShardedEmbedding
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.distinct_bags import deduplicate
from neocpu.tables.specs.feature_groups import key_groups
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec, bags

# (samples of a session, probability that a feature stays); those of the reference table
CASES = ((4, 0.9), (16, 0.9), (16, 0.99), (16, 0.5))
SESSIONS = 20_000  # of the log from which an unclustered batch is drawn
BATCH = 2048
LEAVES = 16
HISTORY = 20  # lookups of a bag that may repeat
DIM = 64
TABLES = (
    *(TableSpec(f"history{i}", 100_000, DIM, (f"history{i}",)) for i in range(8)),
    *(TableSpec(f"item{i}", 100_000, DIM, (f"item{i}",)) for i in range(4)),
)
GROUPS = (("history*",),)
INPUT = ("input bags", "input lengths", "input rows")
# what travels once: name -> (groups, unique rows)
WAYS: dict[str, tuple[tuple[tuple[str, ...], ...], str]] = {
    "plain": ((), "off"),
    "unique rows": ((), "auto"),
    "bags": (GROUPS, "off"),
    "both": (GROUPS, "auto"),
}


@dataclass(frozen=True)
class Batches:
    """Some batches of a case, and the factor by which the model says lookups shrink."""

    name: str
    kjts: list[KJT]
    model: float


def sources(rng: np.random.Generator, samples: int, length: int, keep: float) -> NDArray[np.int64]:
    """For each sample of a clustered log, the sample whose bags it has."""
    kept = (rng.random(samples) < keep) & (np.arange(samples) % length > 0)
    return np.maximum.accumulate(np.where(kept, 0, np.arange(samples)))


def batch_of(rng: np.random.Generator, source: NDArray[np.int64]) -> KJT:
    """A batch whose sample i has the history of drawing source[i]."""
    keys = bags(TABLES)
    each = [HISTORY if key.feature.startswith("history") else 1 for key in keys]
    lengths = np.repeat(np.array(each, np.int32)[:, None], source.size, axis=1)
    _, drawing = np.unique(source, return_inverse=True)
    values = []
    for lookups in each:
        # popular rows are popular: squares of uniform numbers
        rows = (rng.random((source.size, lookups)) ** 2 * 100_000).astype(np.int64)
        values.append((rows[drawing] if lookups > 1 else rows).reshape(-1))
    return KJT(tuple(key.key for key in keys), lengths, np.concatenate(values))


def cases(batches: int) -> Iterator[Batches]:
    """Clustered batches of all cases, and batches drawn anywhere in the log of each."""
    for length, keep in CASES:
        for clustered in (True, False):
            rng = np.random.default_rng([length, int(100 * keep)])
            kjts = []
            for _ in range(batches):
                if clustered:
                    source = sources(rng, BATCH, length, keep)
                else:
                    log = sources(rng, SESSIONS * length, length, keep)
                    source = log[rng.permutation(log.size)[:BATCH]]
                kjts.append(batch_of(rng, source))
            name = "clustered" if clustered else "unclustered"
            factor = 1 / (1 - (length - 1) / length * keep)
            yield Batches(f"{length}, {keep:g}, {name}", kjts, factor if clustered else 1.0)


def share_of(kjt: KJT, lo: int, hi: int) -> KJT:
    """Samples [lo, hi) of a batch."""
    starts = kjt.offsets[np.arange(len(kjt.keys)) * kjt.samples + lo]
    ends = kjt.offsets[np.arange(len(kjt.keys)) * kjt.samples + hi]
    values = np.concatenate([kjt.values[a:b] for a, b in zip(starts, ends)])
    return KJT(kjt.keys, np.ascontiguousarray(kjt.lengths[:, lo:hi]), values)


def count_bytes(comm: Comm, sizes: dict[str, int]) -> None:
    """Count the bytes of a comm's exchanges by their names, all links together."""
    start = comm.start_alltoallv

    def counted(send: Any, *counts: Any, what: str = "", **options: Any) -> Any:
        sizes[what] = sizes.get(what, 0) + send.nbytes
        return start(send, *counts, what=what, **options)

    comm.start_alltoallv = counted  # type: ignore[method-assign]


class Job:
    """The embedding of one way on one rank."""

    def __init__(self, comm: Comm, way: str) -> None:
        patterns, unique_rows = WAYS[way]
        self.sizes: dict[str, int] = {}
        self.groups = key_groups(TABLES, patterns)
        plan = place(TABLES, ["table_wise"] * len(TABLES), comm.size)
        for queue in (comm, comm.queue("input")):
            count_bytes(queue, self.sizes)
        env = ShardingEnv(
            plan,
            comm,
            SparseOptimizer("exact_rowwise_adagrad", learning_rate=0.01),
            1,
            LEAVES,
            unique_rows=unique_rows,
            groups=self.groups,
        )
        self.embedding = ShardedEmbedding(env)
        self.steps = 0
        self.seconds: list[float] = []

    def batch(self, kjt: KJT) -> Any:
        """The batch as the loader's thread would give it."""
        return deduplicate(kjt, self.groups) if self.groups else kjt

    def step(self, batch: Any, samples: int, out: Any, gradient: Any) -> None:
        """Forward and backward of one batch."""
        self.steps += 1
        self.embedding.forward(batch, samples).finish(out)
        self.embedding.backward(gradient, self.steps)


def work(rounds: int) -> None:
    """One rank: all cases, the ways in turn; rank 0 prints a JSON list."""
    from benchmarks.ours import mpi_comm, threads

    comm = mpi_comm()
    threads(max(1, (os.cpu_count() or 1) // comm.size))
    lo, hi = rank_samples(comm.rank, comm.size, BATCH, LEAVES)
    columns = DIM * len(bags(TABLES))
    out = np.empty((hi - lo, columns), np.float32)
    gradient = np.random.default_rng(comm.rank).standard_normal(out.shape).astype(np.float32)
    records = []
    for case in cases(4):
        jobs = {way: Job(comm.split(0, comm.rank), way) for way in WAYS}
        shares = [share_of(kjt, lo, hi) for kjt in case.kjts]
        prepared = {way: [job.batch(kjt) for kjt in shares] for way, job in jobs.items()}
        distinct = np.mean([batch.groups[0].first.size for batch in prepared["bags"]])
        for number in range(rounds + 2):
            for way, job in jobs.items():
                batch = prepared[way][number % len(shares)]
                comm.barrier()
                start = time.perf_counter()
                job.step(batch, BATCH, out, gradient)
                comm.barrier()
                if number >= 2:
                    job.seconds.append(time.perf_counter() - start)
        factor = float((hi - lo) / distinct)
        records.append(record_of(case, factor, jobs))
    if comm.rank == 0:
        print(json.dumps(records))


def record_of(case: Batches, factor: float, jobs: dict[str, Job]) -> dict[str, Any]:
    """What was counted and timed on this rank."""
    ways = {}
    for way, job in jobs.items():
        sent = {name: size / job.steps for name, size in job.sizes.items()}
        ways[way] = {
            "input": sum(sent.get(name, 0.0) for name in INPUT),
            "output": sent.get("pooled output", 0.0),
            "gradients": sent.get("pooled gradients", 0.0),
            "ms": 1e3 * statistics.median(job.seconds),
        }
    return {"case": case.name, "model": case.model, "factor": factor, "ways": ways}


def run_sessions(rounds: int, ranks: int) -> None:
    """Print the table of sessions."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    launcher = str(mpiexec) if mpiexec.exists() else "mpiexec"
    command = [launcher, "-n", str(ranks), sys.executable, "-m", "mpi4py", "-m", "benchmarks.recd"]
    command += ["--work", "--rounds", str(rounds)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    records = json.loads(result.stdout.strip().splitlines()[-1])
    print("| S, d, rows | model | bags | input KB | pooled KB | gradients KB | step ms |")
    print("|---|---|---|---|---|---|---|")
    for record in records:
        ways = record["ways"]
        plain = ways["plain"]
        columns = []
        for name, unit in (("input", 1e3), ("output", 1e3), ("gradients", 1e3), ("ms", 1)):
            numbers = [ways[way][name] / unit for way in WAYS]
            if name in ("output", "gradients"):
                numbers = [numbers[0], numbers[2]]
            form = "{:.1f}" if name == "ms" else "{:,.0f}"
            columns.append(" / ".join(form.format(number) for number in numbers))
        assert plain["ms"] > 0
        cells = [record["case"], f"{record['model']:.2f}", f"{record['factor']:.2f}", *columns]
        print("| " + " | ".join(cells) + " |")
    print(f"\ninput and step: {' / '.join(WAYS)}; pooled and gradients: plain / bags")


# ---- a real log ----

AVAZU_GROUPS = {
    "device": ("device_*",),
    "site and app": ("site_*", "app_*"),
    "device, site, app": ("device_*", "site_*", "app_*"),
    "all but C14 to C21": (
        *("hour", "weekday", "C1", "banner_pos"),
        *("device_*", "site_*", "app_*"),
    ),
    "all": ("*",),
}


def run_avazu(log: str, batch: int) -> None:
    """Print how often samples of a batch share bags of groups of Avazu's columns."""
    from neocpu.ingest.dataset.convert import convert
    from neocpu.ingest.dataset.convert_options import ConvertOptions
    from neocpu.ingest.loader import BatchShare, Loader, Reading

    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, options in (
            ("as logged", ConvertOptions(compress="gzip")),
            ("clustered", ConvertOptions(compress="gzip", cluster_by="device_ip")),
        ):
            files[name] = convert([log], Path(folder) / f"{len(files)}.h5", "avazu", options).path
        print("| samples of a batch | " + " | ".join(AVAZU_GROUPS) + " | lookups / rows |")
        print("|---|" + "---|" * (len(AVAZU_GROUPS) + 1))
        for name, run in (("as logged", 0), ("as logged", 1), ("clustered", 0), ("clustered", 64)):
            reading = Reading(seed=1, shuffle=run > 0, shuffle_run=max(run, 1))
            loader = Loader(files[name], _avazu_tables(), BatchShare(batch, leaves=1), reading)
            order = {0: "in order", 1: "shuffled"}.get(run, f"shuffled in runs of {run}")
            cells = _repeats(loader)
            print(f"| {name}, {order} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
        sizes = {name: path.stat().st_size for name, path in files.items()}
        print(f"\nbytes of the dataset with gzip: {sizes}")


def _avazu_tables() -> tuple[TableSpec, ...]:
    from neocpu.ingest.formats.avazu import avazu_schema

    names = [field.name for field in avazu_schema().categories]
    return tuple(TableSpec(name, 1 << 20, 8, (name,)) for name in names)


def _repeats(loader: Any) -> list[float]:
    """Samples by distinct bags of each group, and lookups by rows, over the whole batches."""
    samples = 0
    rows = 0
    lookups = 0
    distinct = np.zeros(len(AVAZU_GROUPS))
    for batch in loader.batches():
        samples += batch.labels.size
        for i, patterns in enumerate(AVAZU_GROUPS.values()):
            groups = key_groups(loader.tables, (patterns,))
            distinct[i] += deduplicate(batch.sparse, groups).groups[0].first.size
        for key in range(len(batch.sparse.keys)):
            span = batch.sparse.offsets[[key * batch.labels.size, (key + 1) * batch.labels.size]]
            values = batch.sparse.values[slice(*span)]
            lookups += values.size
            rows += np.unique(values).size
    return [*(samples / distinct), lookups / rows]


# ---- storage ----


def run_storage(samples: int) -> None:
    """Print the bytes of compressed datasets of sessions, clustered and shuffled."""
    from neocpu.ingest.dataset.writer import DatasetWriter
    from neocpu.ingest.dataset_layout import take_bags
    from neocpu.ingest.synthetic.law import Hotness, SyntheticCriteo
    from neocpu.ingest.synthetic.sessions import Sessions

    print("| S, d | uncompressed | gzip, shuffled | gzip, clustered | factor |")
    print("|---|---|---|---|---|")
    for length, keep in CASES:
        names = [f"C{i}" for i in range(1, 27)]
        sessions = Sessions(length, {"": keep}, (names,))
        log = SyntheticCriteo(1, sessions=sessions, hotness={"": Hotness(5.0, True)})
        sizes = []
        block = log.block(0, samples)
        everything = np.arange(samples)
        shuffled = np.random.default_rng(1).permutation(samples)
        with tempfile.TemporaryDirectory() as folder:
            for rows, compress in (
                (everything, "none"),
                (shuffled, "gzip"),
                (everything, "gzip"),
            ):
                path = Path(folder) / f"{len(sizes)}.h5"
                with DatasetWriter(path, [], log.features, compress=compress) as writer:
                    features = {n: take_bags(b, rows) for n, b in block.categories.items()}
                    writer.append(block.labels[rows], np.empty((samples, 0)), features)
                sizes.append(path.stat().st_size)
        cells = [f"{size / 1e6:.1f} MB" for size in sizes]
        print(f"| {length}, {keep:g} | {' | '.join(cells)} | {sizes[1] / sizes[2]:.2f} |")


def main() -> None:
    """Choose a part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--avazu", help="an Avazu log")
    parser.add_argument("--storage", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1024, help="of the Avazu log")
    parser.add_argument("--samples", type=int, default=200_000, help="of the stored log")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.rounds)
    elif options.avazu:
        run_avazu(options.avazu, options.batch)
    elif options.storage:
        run_storage(options.samples)
    else:
        run_sessions(options.rounds, options.ranks)


if __name__ == "__main__":
    main()
