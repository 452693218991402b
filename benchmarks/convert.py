"""How many rows of a click log are converted per second? On one core, against polars and Python.

Ours reads Criteo TSV (label, 13 integers, 26 hexadecimal categories, gaps), checks every field, and
writes the HDF5 dataset. polars reads the same file, parses the hexadecimals and writes Parquet,
without line numbers in errors or a transform. The Python loop splits lines and calls int(), as
preprocessing scripts do. The limit counts line ends, with NumPy.
"""

import argparse
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ours, rivals
from benchmarks.harness import Contender, main, measure, summarise


def log(path: Path, rows: int, distinct: int = 5_000) -> None:
    """Write a synthetic log of about `rows` rows: `distinct` different lines, repeated."""
    rng = random.Random(5)
    lines = []
    for _ in range(min(rows, distinct)):
        integers = [
            "" if rng.random() < 0.2 else str(int(rng.expovariate(0.02))) for _ in range(13)
        ]
        categories = ["" if rng.random() < 0.1 else f"{rng.getrandbits(32):08x}" for _ in range(26)]
        lines.append("\t".join([str(int(rng.random() < 0.25)), *integers, *categories]) + "\n")
    path.write_text("".join(lines) * max(1, rows // len(lines)))


def polars_convert(source: Path, target: Path) -> None:
    """Read, parse, write Parquet with polars."""
    import polars as pl

    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    kinds = {name: pl.String if name[0] == "C" else pl.Int32 for name in names}
    frame = pl.read_csv(
        source,
        separator="\t",
        has_header=False,
        new_columns=names,
        schema_overrides=list(kinds.values()),
    )
    codes = [
        pl.col(name).fill_null("0").str.to_integer(base=16, dtype=pl.UInt32) for name in names[14:]
    ]
    frame.with_columns(*codes, *[pl.col(name).fill_null(0) for name in names[1:14]]).write_parquet(
        target, compression="uncompressed"
    )


def python_convert(source: Path) -> None:
    """Split and parse every line in plain Python."""
    dense = []
    codes = []
    with source.open() as lines:
        for line in lines:
            fields = line.rstrip("\n").split("\t")
            dense.append([int(field or 0) for field in fields[1:14]])
            codes.append([int(field or "0", 16) for field in fields[14:]])
    np.array(dense, np.float32)
    np.array(codes, np.uint32)


def count_lines(source: Path) -> int:
    """Line ends of a file."""
    return int(np.count_nonzero(np.fromfile(source, np.uint8) == 10))


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One case: a file of 200,000 rows in the page cache."""
    rows = 2_000 if options.quick else 200_000
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "log.tsv"
        log(source, rows)

        def convert(_: int) -> None:
            target = Path(folder) / "ours.h5"
            target.unlink(missing_ok=True)
            ours.convert(source, target)

        contenders = [Contender("neocpu, TSV to HDF5", "ours", convert, 1, ours.threads)]
        if not options.no_rivals and rivals.have("polars"):
            parquet = Path(folder) / "polars.parquet"
            threads = int(os.environ.get("POLARS_MAX_THREADS", "0")) or os.cpu_count() or 1
            contenders.append(
                Contender(
                    "polars, TSV to Parquet",
                    "rival",
                    lambda _: polars_convert(source, parquet),
                    threads,
                )
            )
            contenders.append(
                Contender("Python loop, TSV to arrays", "rival", lambda _: python_convert(source))
            )
        contenders.append(Contender("count line ends", "limit", lambda _: count_lines(source)))
        measure(contenders, min(options.rounds, 5), warmup=1)
        size = source.stat().st_size
    speeds = [f"{c.name.split(',')[0]} {rows / c.median:,.0f} rows/s" for c in contenders]
    record = summarise(
        "convert a Criteo log", {"rows": f"{rows:,}", "MB": f"{size / 1e6:.0f}"}, contenders
    )
    return [record | {"notes": ["; ".join(speeds) + ". Aim: 200,000 rows/s on one core."]}]


if __name__ == "__main__":
    main(__doc__, benchmark)
