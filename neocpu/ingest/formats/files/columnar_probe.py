"""Does polars come to an end with a Parquet or Arrow file? Tried in a process of its own.

A damaged page can say that it has 2**61 values. Polars then asks for their memory, and its process
ends at once, which no `except` sees. So all columns are read once in another process, some rows
after others; whoever reads the file afterwards does what has been seen to work.

The file is also a program: `python columnar_probe.py FILE` exits with 0 where polars reads the
file, or raises an error that can be caught and said by the reader itself.
"""

import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import polars as pl

STREAM = b"\xff\xff\xff\xff"  # begins a message of an Arrow stream
SLAB = 1 << 18  # rows that polars reads at a time


def scan(path: Path) -> pl.LazyFrame:
    """A Parquet file, an Arrow file or an Arrow stream, by its first bytes.

    A stream has no index of its rows, so it is held in memory. Raises what polars raises.
    """
    with open(path, "rb") as file:
        start = file.read(6)
    if start == b"ARROW1":
        return pl.scan_ipc(path)
    return pl.read_ipc_stream(path).lazy() if start[:4] == STREAM else pl.scan_parquet(path)


def trouble(path: Path) -> str:
    """Why a file cannot be read in this process; "" if polars survives it, with or without error.

    A file is tried again only where its size or its time of change is another one.
    """
    try:
        status = path.stat()
    except OSError:
        return ""  # whoever opens it says what is wrong
    return _tried(path.resolve(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _tried(path: Path, size: int, changed: int) -> str:
    """The trouble with the file of this size that was changed at this time."""
    from neocpu.tables.hdf5.probe import environment  # not for the program below

    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__, str(path)],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=environment(),
        )
    except OSError:
        return ""  # no process can be started
    return f"polars ends with it (exit status {done.returncode})" if done.returncode else ""


def read_all(path: Path) -> None:
    """Read every column once, and forget it. Raises what polars raises."""
    frame = scan(path)
    rows = frame.select(pl.len()).collect().item()
    for first in range(0, rows, SLAB):
        frame.slice(first, SLAB).collect()


def main() -> None:
    """Read the file that is named; errors that can be caught are none here."""
    try:
        read_all(Path(sys.argv[1]))
    except Exception:  # noqa: BLE001 (the reader meets it too, and says it)
        return
    except pl.exceptions.PanicException:
        return


if __name__ == "__main__":
    main()
