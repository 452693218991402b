"""How fast are records read from the file that plays the SSD, and changed? Against RocksDB, LMDB,
h5py, and raw reads.

A million records of 512 bytes, each read at a random row, in batches. In the page cache: ours
through its map, rivals by their fastest calls; "change" reads a record, adds 1 to its bytes and
writes it, with a commit of ours after 50 batches, when as many records were changed as there are
(not timed; none of the rivals has to reach the disk). Out of it: every file is dropped from the
page cache before each batch. The limit is `preadv` in a copy of the file, at the very places of the
same records, by 16 threads, without an index; for changes, which ours never makes in place, they
then go to other places.
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

RECORD = 512
DEPTH = 16
COMMIT = 50
IN_CACHE = {"RocksDB, multi-get": 20.0, "LMDB": 10.0}
OUT_OF_IT = {"16 threads of preadv": 0.8}
Rows = NDArray[np.int64]


class Ours:
    """RowFile with all rows in one table of 10^10, filled in random order."""

    def __init__(self, folder: Path, rows: Rows, records: NDArray[np.uint8], batch: int) -> None:
        ours.wait_as_in_training()
        from neocpu.storage.row_file import RowFile, RowTable

        self.file = RowFile.create(
            folder / "rows.h5", [RowTable("t", 10**10, RECORD)], threads=DEPTH
        )
        for low in range(0, rows.size, stores.PIECE):
            self.file.write(0, rows[low : low + stores.PIECE], records[low : low + stores.PIECE])
        self._out = np.empty((batch, RECORD), np.uint8)
        self._epoch = 0
        self.commit(0)

    def resize(self, batch: int) -> None:
        """Batches have that many records from now on."""
        self._out = np.empty((batch, RECORD), np.uint8)

    def commit(self, call: int) -> None:
        """Every fiftieth call."""
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
    """`preadv` of records at random places of a file, by threads that share the batch; changed,
    they go to other places.
    """

    def __init__(self, path: Path, batch: int, places: Rows) -> None:
        self._places = places
        self._rng = np.random.default_rng(9)
        self._path = path
        self._file = os.open(path, os.O_RDWR)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
        self._out = np.empty((batch, RECORD), np.uint8)
        self._pool = ThreadPoolExecutor(DEPTH)

    def _each(self, places: Rows, change: bool) -> None:
        at = np.sort(places).tolist()
        view = memoryview(self._out.reshape(-1))
        to = (
            np.sort(self._rng.choice(self._places, len(at), replace=False)).tolist()
            if change
            else []
        )

        def part(low: int, high: int) -> None:
            for i in range(low, high):
                record = view[i * RECORD : (i + 1) * RECORD]
                os.preadv(self._file, [record], at[i])
                if change:
                    os.pwrite(self._file, record, to[i])

        ends = [len(at) * i // DEPTH for i in range(DEPTH + 1)]
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
    """Distinct rows that exist, at random."""
    rng = np.random.default_rng(7)
    return [np.ascontiguousarray(rng.choice(rows, batch, replace=False)) for _ in range(16)]


def others(
    folder: Path, rows: Rows, records: NDArray[np.uint8], with_rivals: bool
) -> dict[str, Any]:
    """The rivals that are installed, filled."""
    found: dict[str, Any] = {"h5py, fancy index": stores.H5py(folder, rows, records)}
    if with_rivals and rivals.have("rocksdict"):
        found["RocksDB, multi-get"] = stores.Rocks(folder, rows, records)
    if with_rivals and rivals.have("lmdb"):
        found["LMDB"] = stores.Lmdb(folder, rows, records)
    return found


def cached(
    verb: str, mine: Ours, them: dict[str, Any], drawn: list[Rows], rounds: int
) -> dict[str, Any]:
    """Reads or changes in the page cache."""

    def of(store: Any) -> Any:
        return lambda i: getattr(store, verb)(drawn[i % len(drawn)])

    found = [
        Contender(
            "neocpu, RowFile",
            "ours",
            of(mine),
            n,
            ours.threads,
            mine.commit if verb == "change" else None,
        )
        for n in THREADS
    ]
    found += [Contender(name, "rival", of(store)) for name, store in them.items()]
    measure(found, rounds, warmup=1)
    return record(f"SSD, {verb}, in the page cache", drawn, found, IN_CACHE)


def cold(
    verb: str, mine: Ours, them: dict[str, Any], drawn: list[Rows], raw: Raw, rounds: int
) -> dict[str, Any]:
    """Reads or changes of what is not in the page cache."""

    def contender(name: str, side: str, store: Any, inputs: list[Rows], threads: int) -> Contender:
        def prepare(call: int) -> None:
            if store is mine and verb == "change":
                mine.commit(call)
            store.drop()

        return Contender(
            name,
            side,
            lambda i: getattr(store, verb)(inputs[i % len(inputs)]),
            threads,
            prepare=prepare,
        )

    ours.threads(THREADS[-1])
    found = [contender("neocpu, RowFile", "ours", mine, drawn, DEPTH)]
    found.append(contender("16 threads of preadv", "limit", raw, places(mine, drawn), DEPTH))
    found += [contender(name, "rival", store, drawn, 1) for name, store in them.items()]
    measure(found, rounds, warmup=1, settle=0, least=0)
    return record(f"SSD, {verb}, out of the page cache", drawn, found, OUT_OF_IT)


def places(mine: Ours, drawn: list[Rows]) -> list[Rows]:
    """Where in the file the records of these rows are now."""
    return [mine.file.places(0, rows) for rows in drawn]


def record(
    case: str, drawn: list[Rows], found: list[Contender], targets: dict[str, float]
) -> dict[str, Any]:
    """The record of a case, with rates."""
    shape = {"records of a batch": drawn[0].size, "bytes": RECORD}
    speeds = [f"{c.name} ({c.threads}) {drawn[0].size / c.median / 1e6:.3f}" for c in found]
    return summarise(case, shape, found, targets) | {
        "notes": [f"Million records per second: {'; '.join(speeds)}."]
    }


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Reads and changes, in the page cache and out of it."""
    count = 3_000 if options.quick else 1_000_000
    rng = np.random.default_rng(5)
    rows = np.unique(rng.integers(0, 10**10, count))
    rng.shuffle(rows)
    data = rng.integers(0, 256, (rows.size, RECORD), np.uint8)
    hot, few = (500, 200) if options.quick else (20_000, 4_000)
    found = []
    with tempfile.TemporaryDirectory(dir=getattr(options, "folder", None)) as name:
        folder = Path(name)
        mine = Ours(folder, rows, data, hot)
        them = others(folder, rows, data, not options.no_rivals)
        drawn = batches(rows, hot)
        for low in range(0, rows.size - hot + 1, hot):  # first touch
            for store in (mine, *them.values()):
                store.read(rows[low : low + hot])
        for store in them.values():
            np.testing.assert_array_equal(store.read(drawn[0]), mine.read(drawn[0]))
        found += [cached(verb, mine, them, drawn, options.rounds) for verb in ("read", "change")]
        mine.resize(few)
        shutil.copyfile(folder / "rows.h5", folder / "copy.h5")
        drawn = batches(rows, few)
        raw = Raw(folder / "copy.h5", few, mine.file.places(0, rows))
        found += [
            cold(verb, mine, them, drawn, raw, min(options.rounds, 5))
            for verb in ("read", "change")
        ]
        mine.file.close()
    return found


def arguments(parser: argparse.ArgumentParser) -> None:
    """Where to put the files."""
    parser.add_argument(
        "--folder", type=Path, help="where to make 2 GB of files (default: the temporary folder)"
    )


if __name__ == "__main__":
    main(__doc__, benchmark, arguments)
