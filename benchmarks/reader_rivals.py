"""How fast do other programs turn a raw log of Criteo's form into batches? Beside `readers.py`.

    python -m benchmarks.reader_rivals torch LOG SECONDS      samples a second: of CPU, by the wall

Needs nothing of neocpu, so that it runs in an interpreter that has the other program.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

DENSE = 13
CATEGORIES = [f"C{i}" for i in range(1, 27)]
ROWS = 100_000  # of a table
BATCH = 2048
WORKERS = 4  # of the DataLoader
RIVALS = {
    "polars": "polars, all cores",
    "pyarrow": "pyarrow, all cores",
    "torch": f"torch DataLoader, {WORKERS} workers",
}


class Speed(NamedTuple):
    """Samples for each second of CPU time, and by the wall's clock."""

    cpu: float
    wall: float


class Stopwatch:
    """Time since its start, by the wall and by the processors, of this process and its children."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._cpu = _cpu_seconds()

    def speed(self, samples: int) -> Speed:
        """Samples for each second of both."""
        cpu = _cpu_seconds() - self._cpu
        return Speed(samples / cpu, samples / (time.perf_counter() - self._started))


def _cpu_seconds() -> float:
    """CPU time of this process and of those that it started and that still run."""
    seconds = time.process_time()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def by_polars(path: Path) -> Iterator[int]:
    """Batches of arrays by polars, on all cores."""
    import polars as pl

    names = ["label", *(f"I{i}" for i in range(1, DENSE + 1)), *CATEGORIES]
    log = pl.scan_csv(
        path,
        separator="\t",
        has_header=False,
        new_columns=names,
        schema_overrides=dict.fromkeys(CATEGORIES, pl.String),
    )
    numbers = pl.col(names[1 : DENSE + 1]).fill_null(0).clip(0).log1p().cast(pl.Float32)
    codes = pl.col(CATEGORIES).fill_null("0").str.to_integer(base=16) % ROWS
    for frame in log.select("label", numbers, codes).collect_batches(chunk_size=BATCH):
        frame.select(names[1 : DENSE + 1]).to_numpy()
        yield frame.select(CATEGORIES).to_numpy().shape[0]


def by_pyarrow(path: Path) -> Iterator[int]:
    """Batches of arrays by pyarrow, whose categories stay texts: it parses no hexadecimal."""
    import pyarrow as pa
    from pyarrow import csv

    names = ["label", *(f"I{i}" for i in range(1, DENSE + 1)), *CATEGORIES]
    types = {name: pa.string() if name in CATEGORIES else pa.int64() for name in names}
    reader = csv.open_csv(
        path,
        csv.ReadOptions(column_names=names),
        csv.ParseOptions(delimiter="\t"),
        csv.ConvertOptions(column_types=types),
    )
    for batch in reader:
        numbers = [batch.column(name).fill_null(0).to_numpy() for name in names[1 : DENSE + 1]]
        np.log1p(np.maximum(np.stack(numbers, axis=1), 0)).astype(np.float32)
        yield batch.num_rows


def by_torch(path: Path) -> Iterator[int]:
    """Batches of tensors by a DataLoader, whose workers parse every so many-th batch of lines."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Batches(IterableDataset):
        def __iter__(self) -> Iterator[tuple[object, object, object]]:
            worker = get_worker_info()
            with open(path) as file:
                for number in itertools.count():
                    lines = list(itertools.islice(file, BATCH))
                    if not lines:
                        return
                    if number % worker.num_workers != worker.id:
                        continue
                    rows = [line.rstrip("\n").split("\t") for line in lines]
                    numbers = [[int(text or 0) for text in row[1 : DENSE + 1]] for row in rows]
                    codes = [[int(text or "0", 16) for text in row[DENSE + 1 :]] for row in rows]
                    yield (
                        torch.tensor([float(row[0]) for row in rows]),
                        torch.tensor(numbers, dtype=torch.float32).clamp(min=0).log1p(),
                        torch.tensor(codes) % ROWS,
                    )

    for labels, _, _ in DataLoader(Batches(), batch_size=None, num_workers=WORKERS):
        yield len(labels)


def speed(batches: Callable[[Path], Iterator[int]], path: Path, seconds: float) -> Speed:
    """Speed behind the first batch, for so long at most."""
    rows = batches(path)
    next(rows)
    watch = Stopwatch()
    until = time.perf_counter() + seconds
    samples = 0
    for count in rows:
        samples += count
        if time.perf_counter() > until:
            break
    return watch.speed(samples)


if __name__ == "__main__":
    programs = {"polars": by_polars, "pyarrow": by_pyarrow, "torch": by_torch}
    print(json.dumps(speed(programs[sys.argv[1]], Path(sys.argv[2]), float(sys.argv[3]))))
