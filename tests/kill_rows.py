"""Does a file of rows survive SIGKILL at any instant? A process writes and commits and is killed;
the next one must find exactly the last commit, or the one under way if its header was written.

    python -m tests.kill_rows --times 300

What is written in an epoch follows from the epoch, so the expected content of every commit is known
without a journal of bytes; the journal (a pipe) says which commit was begun and which had ended.
Each process is forked from this one, which never runs a parallel kernel; it checks everything,
writes on, grows the file, compacts it now and then, and dies.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from neocpu.tables.storage.row_file import RowFile, RowTable
from neocpu.tables.storage.row_io import Access
from neocpu.tables.storage.row_tools import compact, verify

TABLES = (RowTable("A", 4000, 24), RowTable("B", 10**9, 61))
ROUND = 25  # kills of one file
FIRST = 0.001  # seconds


def rows_of(seed: int, epoch: int, table: int) -> list[np.ndarray]:
    """Rows that each write of an epoch writes: growing in number with the epochs, some of them
    twice.
    """
    rng = np.random.default_rng([seed, epoch, table])
    height = min(TABLES[table].rows, 300 + 40 * epoch)
    return [
        np.unique(rng.integers(0, height, rng.integers(1, 200))) for _ in range(rng.integers(1, 4))
    ]


def records_of(rows: np.ndarray, version: np.ndarray, size: int) -> np.ndarray:
    """Bytes u8[n, size] of rows at versions, i64[n]: distinct for all rows, versions, columns."""
    mixed = (
        rows[:, None] * 0x9E3779B1 + version[:, None] * 0x85EBCA77 + np.arange(size) * 0xC2B2AE3D
    ) & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D >> 9 & 255).astype(np.uint8)


def expected(seed: int, epoch: int, table: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows, ascending, and their versions once an epoch is committed."""
    latest: dict[int, int] = {}
    for past in range(1, epoch + 1):
        for number, rows in enumerate(rows_of(seed, past, table)):
            latest |= dict.fromkeys(rows.tolist(), 4 * past + number)
    rows = np.array(sorted(latest), np.int64)
    return rows, np.array([latest[row] for row in rows.tolist()], np.int64)


def check(file: RowFile, seed: int) -> None:
    """Stop unless the content of the file is that of its epoch, exactly."""
    assert file.note == (b"epoch %d" % file.epoch if file.epoch else b""), file.note
    assert not verify(file), verify(file)
    for number, table in enumerate(TABLES):
        rows, versions = expected(seed, file.epoch, number)
        stored_rows = np.concatenate([*file.rows(number), np.zeros(0, np.int64)])
        np.testing.assert_array_equal(stored_rows, rows)
        out = np.zeros((rows.size, table.record), np.uint8)
        assert file.read(number, rows, out).all()
        np.testing.assert_array_equal(out, records_of(rows, versions, table.record))


def live(path: Path, seed: int, journal: int, least: int, most: int, mapped: bool) -> None:
    """One life: check what is there, then write and commit until killed."""
    if not path.exists():
        RowFile.create(path, TABLES, extent=1 << 14).close()
    elif seed % 3 == 0 and least % 4 == 0:
        os.write(journal, b"r 0\n")
        compact(path)
    with ThreadPoolExecutor(1) as pool, RowFile(path, TABLES, access=Access(mapped=mapped)) as file:
        assert least <= file.epoch <= most, f"epoch {file.epoch}, expected {least} to {most}"
        check(file, seed)
        os.write(journal, b"r %d\n" % file.epoch)
        making: Future[None] | None = None

        def make(finish: Callable[[], None], epoch: int) -> None:
            finish()
            os.write(journal, b"e %d\n" % epoch)

        for epoch in range(file.epoch + 1, file.epoch + 1000):
            for number, table in enumerate(TABLES):
                for write, rows in enumerate(rows_of(seed, epoch, number)):
                    versions = np.full(rows.size, 4 * epoch + write)
                    file.write(number, rows, records_of(rows, versions, table.record))
            if making is not None:
                making.result()
            os.write(journal, b"b %d\n" % epoch)
            # while the next rows are written
            making = pool.submit(make, file.seal(epoch, b"epoch %d" % epoch), epoch)


def one_life(
    path: Path, seed: int, least: int, most: int, seconds: float, mapped: bool
) -> tuple[int, int]:
    """Start a writing process, and kill it `seconds` after it is ready.

    Returns (last commit that ended, last commit that began). Raises AssertionError.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            live(path, seed, write_end, least, most, mapped)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write_end)
    text = os.read(read_end, 1 << 16)  # until it is ready, or dead
    if text:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    while part := os.read(read_end, 1 << 16):
        text += part
    os.close(read_end)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status), f"{path}: a life ended by itself: {text[-60:]!r}"
    for line in text.decode().split("\n")[:-1]:
        word, epoch = line.split()
        if word == "e":
            least = int(epoch)
        most = max(most, int(epoch))
    return least, most


def kill(times: int, seed: int, folder: Path) -> str:
    """Kill that many lives; a sentence on what they did."""
    rng = random.Random(seed)
    path = folder
    commits = 0
    least = 0
    most = 0
    for number in range(times):
        if number % ROUND == 0:
            commits = commits + least
            least = 0
            most = 0
            path = folder / f"rows{number}.h5"
        wait = FIRST + rng.random() ** 2 * 0.15
        least, most = one_life(
            path, seed + number // ROUND, least, most, wait, bool(rng.getrandbits(1))
        )
    with RowFile(path, TABLES) as file:
        check(file, seed + (times - 1) // ROUND)
    return f"{times} kills, {commits + least} commits, every file as its last commit left it"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--folder", type=Path, help="where to make the files (default: a temporary folder)"
    )
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(
            kill(options.times, options.seed, Path(folder)), f"({time.monotonic() - start:.0f} s)"
        )


if __name__ == "__main__":
    sys.exit(main())
