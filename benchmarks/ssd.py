"""How fast are records of an SSD file read and changed? Against RocksDB, LMDB, h5py and preadv.

A million records of 512 bytes, each read at a random row, in batches. In the page cache: ours
through its map, rivals by their fastest calls; "change" reads a record, adds 1 to its bytes and
writes it, with a commit of ours after 50 batches, when as many records were changed as there are
(not timed; none of the rivals has to reach the disk). Out of it: every file is dropped from the
page cache before each batch. The limit is `preadv` of the same records in a copy of the file, by
16 threads, without an index; a changed record is written to another place, as ours never changes
records in place.
"""

import argparse
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import ours, rivals, stores
from benchmarks.harness import THREADS, Contender, main, measure, summarise

# Bytes of a record.
RECORD = 512
# Threads that read at a time.
DEPTH = 16
# Calls from one commit to the next.
COMMIT = 50
# Aims of the two cases, by contender.
IN_CACHE = {"RocksDB, multi-get": 20.0, "LMDB": 10.0}
OUT_OF_IT = {"16 threads of preadv": 0.8}
Rows = NDArray[np.int64]


class NeocpuFile:
    """RowFile with all rows in one table of 10^10, filled in random order."""

    def __init__(self, folder: Path, rows: Rows, records: NDArray[np.uint8], batch: int) -> None:
        ours.wait_as_in_training()
        from neocpu.tables.storage.row_file import RowFile, RowTable

        self.file = RowFile.create(folder / "rows.h5", [RowTable("t", 10**10, RECORD)])
        for low in range(0, rows.size, stores.PIECE):
            self.file.write(0, rows[low : low + stores.PIECE], records[low : low + stores.PIECE])
        self._out = np.empty((batch, RECORD), np.uint8)
        self._epoch = 0
        self.commit(0)

    def resize(self, batch: int) -> None:
        """Set the records of a batch from now on."""
        self._out = np.empty((batch, RECORD), np.uint8)

    def commit(self, call: int) -> None:
        """Commit in every fiftieth call."""
        if call % COMMIT == 0:
            self._epoch += 1
            self.file.commit(self._epoch)

    def read(self, rows: Rows) -> NDArray[np.uint8]:
        """Records of rows."""
        self.file.read(0, rows, self._out)
        return self._out

    def change(self, rows: Rows) -> None:
        """Read, modify, write."""
        self.read(rows)
        np.add(self._out, 1, out=self._out)
        self.file.write(0, rows, self._out)

    def drop(self) -> None:
        """Empty the page cache."""
        self.file.drop_pages()


class Raw:
    """`preadv` of records at given places of a file, by threads that share the batch."""

    def __init__(self, path: Path, batch: int, places: Rows) -> None:
        self._places = places
        self._rng = np.random.default_rng(9)
        self._path = path
        self._file = os.open(path, os.O_RDWR)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
        self._out = np.empty((batch, RECORD), np.uint8)
        self._pool = ThreadPoolExecutor(DEPTH)

    def _each(self, places: Rows, change: bool) -> None:
        source_places = np.sort(places).tolist()
        view = memoryview(self._out.reshape(-1))
        target_places = (
            np.sort(self._rng.choice(self._places, len(source_places), replace=False)).tolist()
            if change
            else []
        )

        def part(low: int, high: int) -> None:
            for i in range(low, high):
                record = view[i * RECORD : (i + 1) * RECORD]
                os.preadv(self._file, [record], source_places[i])
                if change:
                    os.pwrite(self._file, record, target_places[i])

        ends = [len(source_places) * i // DEPTH for i in range(DEPTH + 1)]
        list(self._pool.map(part, ends[:-1], ends[1:]))

    def read(self, places: Rows) -> None:
        """Read."""
        self._each(places, False)

    def change(self, places: Rows) -> None:
        """Read, and write elsewhere."""
        self._each(places, True)

    def drop(self) -> None:
        """Empty the page cache."""
        stores.forget(self._path)


def batches(rows: Rows, batch: int) -> list[Rows]:
    """Random batches of distinct rows that exist."""
    rng = np.random.default_rng(7)
    return [np.ascontiguousarray(rng.choice(rows, batch, replace=False)) for _ in range(16)]


def make_rivals(
    folder: Path, rows: Rows, records: NDArray[np.uint8], with_rivals: bool
) -> dict[str, Any]:
    """The rivals that are installed, holding all records."""
    filled: dict[str, Any] = {"h5py, fancy index": stores.H5py(folder, rows, records)}
    if with_rivals and rivals.have("rocksdict"):
        filled["RocksDB, multi-get"] = stores.Rocks(folder, rows, records)
    if with_rivals and rivals.have("lmdb"):
        filled["LMDB"] = stores.Lmdb(folder, rows, records)
    return filled


def cached(
    verb: str,
    row_file: NeocpuFile,
    rival_stores: dict[str, Any],
    row_batches: list[Rows],
    rounds: int,
) -> dict[str, Any]:
    """Reads or changes in the page cache."""

    def run_on(store: Any) -> Any:
        return lambda i: getattr(store, verb)(row_batches[i % len(row_batches)])

    contenders = [
        Contender(
            "neocpu, RowFile",
            "ours",
            run_on(row_file),
            n,
            ours.threads,
            row_file.commit if verb == "change" else None,
        )
        for n in THREADS
    ]
    contenders += [Contender(name, "rival", run_on(store)) for name, store in rival_stores.items()]
    measure(contenders, rounds, warmup=1)
    return record(f"SSD, {verb}, in the page cache", row_batches, contenders, IN_CACHE)


def cold(
    verb: str,
    row_file: NeocpuFile,
    rival_stores: dict[str, Any],
    row_batches: list[Rows],
    raw: Raw,
    rounds: int,
) -> dict[str, Any]:
    """Reads or changes of records that are not in the page cache."""

    def contender(name: str, side: str, store: Any, inputs: list[Rows], threads: int) -> Contender:
        def prepare(call: int) -> None:
            if store is row_file and verb == "change":
                row_file.commit(call)
            store.drop()

        return Contender(
            name,
            side,
            lambda i: getattr(store, verb)(inputs[i % len(inputs)]),
            threads,
            prepare=prepare,
        )

    ours.threads(THREADS[-1])
    contenders = [contender("neocpu, RowFile", "ours", row_file, row_batches, DEPTH)]
    contenders.append(
        contender("16 threads of preadv", "limit", raw, places(row_file, row_batches), DEPTH)
    )
    contenders += [
        contender(name, "rival", store, row_batches, 1) for name, store in rival_stores.items()
    ]
    measure(contenders, rounds, warmup=1, settle=0, least=0)
    return record(f"SSD, {verb}, out of the page cache", row_batches, contenders, OUT_OF_IT)


def places(row_file: NeocpuFile, row_batches: list[Rows]) -> list[Rows]:
    """Where in the file the records of each batch are."""
    return [row_file.file.places(0, rows) for rows in row_batches]


def record(
    case: str, row_batches: list[Rows], contenders: list[Contender], targets: dict[str, float]
) -> dict[str, Any]:
    """The record of a case, with rates."""
    shape = {"records of a batch": row_batches[0].size, "bytes": RECORD}
    speeds = [
        f"{c.name} ({c.threads}) {row_batches[0].size / c.median / 1e6:.3f}" for c in contenders
    ]
    return summarise(case, shape, contenders, targets) | {
        "notes": [f"Million records per second: {'; '.join(speeds)}."]
    }


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Reads and changes, in the page cache and out of it."""
    count = 3_000 if options.quick else 1_000_000
    rng = np.random.default_rng(5)
    rows = np.unique(rng.integers(0, 10**10, count))
    rng.shuffle(rows)
    row_bytes = rng.integers(0, 256, (rows.size, RECORD), np.uint8)
    cached_batch = 500 if options.quick else 20_000
    cold_batch = 200 if options.quick else 4_000
    records = []
    with tempfile.TemporaryDirectory(dir=getattr(options, "folder", None)) as name:
        folder = Path(name)
        row_file = NeocpuFile(folder, rows, row_bytes, cached_batch)
        rival_stores = make_rivals(folder, rows, row_bytes, not options.no_rivals)
        row_batches = batches(rows, cached_batch)
        for low in range(0, rows.size - cached_batch + 1, cached_batch):
            # First touch.
            for store in (row_file, *rival_stores.values()):
                store.read(rows[low : low + cached_batch])
        for store in rival_stores.values():
            np.testing.assert_array_equal(store.read(row_batches[0]), row_file.read(row_batches[0]))
        records += [
            cached(verb, row_file, rival_stores, row_batches, options.rounds)
            for verb in ("read", "change")
        ]
        row_file.resize(cold_batch)
        shutil.copyfile(folder / "rows.h5", folder / "copy.h5")
        row_batches = batches(rows, cold_batch)
        raw = Raw(folder / "copy.h5", cold_batch, row_file.file.places(0, rows))
        records += [
            cold(verb, row_file, rival_stores, row_batches, raw, min(options.rounds, 5))
            for verb in ("read", "change")
        ]
        row_file.file.close()
    return records


def arguments(parser: argparse.ArgumentParser) -> None:
    """Where to put the files."""
    parser.add_argument(
        "--folder", type=Path, help="where to make 2 GB of files (default: the temporary folder)"
    )


if __name__ == "__main__":
    main(__doc__, benchmark, arguments)
