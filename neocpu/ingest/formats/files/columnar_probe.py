"""Does polars come to an end with a Parquet or Arrow file? Tried in a process of its own.

A damaged page can say that it has 2**61 values. Polars then asks for their memory, and its process
ends at once, which no `except` sees. So all columns are read once in another process, some rows
after others; whoever reads the file afterwards does what has been seen to work.

The file is also a program: `python columnar_probe.py` takes paths from its input, and answers each
one that polars reads, or for which it raises an error that the reader itself can catch and say.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
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
    with _one_at_a_time:
        return _tried(path.resolve(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _tried(path: Path, size: int, changed: int) -> str:
    """The trouble with the file of this size that was changed at this time."""
    try:
        process = _process()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{json.dumps(str(path))}\n")
        process.stdin.flush()
        answered = process.stdout.readline()
    except OSError:
        return ""  # no process can be started
    if answered:
        return str(json.loads(answered))
    return f"polars ends with it (exit status {_ended()})"


_processes: dict[int, subprocess.Popen[str]] = {}  # of this process, by its number
_one_at_a_time = threading.Lock()


def _process() -> subprocess.Popen[str]:
    """The process that tries files, one after another: a log may have thousands of them."""
    from neocpu.tables.hdf5.probe import environment  # not for the program below

    # a fork must not talk into the pipes of the process that it came from
    process = _processes.get(os.getpid())
    if process is not None and process.poll() is not None:
        _ended()
        process = None
    if process is None:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        _processes[os.getpid()] = process
    return process


def _ended() -> int:
    """The status of the process that has come to its end, whose pipes are closed."""
    process = _processes.pop(os.getpid())
    with contextlib.suppress(BrokenPipeError), process:
        pass
    return process.wait()


@atexit.register
def _end() -> None:
    """End the process; it would see that nobody asks any more, but a moment later."""
    if (process := _processes.get(os.getpid())) is not None:
        process.kill()
        _ended()


def read_all(path: Path) -> None:
    """Read every column once, and forget it. Raises what polars raises."""
    frame = scan(path)
    rows = frame.select(pl.len()).collect().item()
    for first in range(0, rows, SLAB):
        frame.slice(first, SLAB).collect()


def main() -> None:
    """Read the files that are named, one a line, and say what cannot be; errors are none here."""
    for line in sys.stdin:
        answer = ""
        try:
            read_all(Path(json.loads(line)))
        except pl.exceptions.PanicException as panic:  # which would also print where it is from
            answer = f"polars does not read it ({str(panic)[:200]})"
        except Exception:  # noqa: BLE001  (the reader says it)
            pass
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
