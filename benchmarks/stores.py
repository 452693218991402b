"""Which stores of records by number are measured? RocksDB, LMDB and h5py, by their fastest calls.

Each has `read(rows) -> u8[n, record]` and `change(rows)` (read, add 1 to every byte, write), for
rows i64[n], distinct, and `drop()`, after which the page cache holds nothing of it. None of them
has to reach the disk: no log, no sync.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Bytes = NDArray[np.uint8]
# Rows of one write while a store is filled.
PIECE = 20_000


def forget(path: Path) -> None:
    """Drop the pages of a file, or of all files in a folder, from the page cache."""
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def key(row: int) -> bytes:
    """A row's key: eight bytes in the order of rows."""
    return row.to_bytes(8, "big")


class Rocks:
    """RocksDB by rocksdict: multi-get, and write batches without a log.

    No compression, bloom filters, and a cache for all rows.
    """

    def __init__(self, folder: Path, rows: Rows, records: Bytes) -> None:
        import rocksdict

        self._folder = folder / "rocks"
        self._modules = rocksdict
        self._options = options = rocksdict.Options(raw_mode=True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.optimize_for_point_lookup(2 * records.nbytes >> 20)
        self._write = rocksdict.WriteOptions()
        self._write.disable_wal = True
        self._open()
        for low in range(0, rows.size, PIECE):
            self._put(rows[low : low + PIECE], records[low : low + PIECE])
        self._db.flush()
        self._db.compact_range(None, None)

    def _open(self) -> None:
        self._db = self._modules.Rdict(str(self._folder), self._options)

    def _put(self, rows: Rows, records: Bytes) -> None:
        batch = self._modules.WriteBatch(raw_mode=True)
        text = records.tobytes()
        size = records.shape[1]
        for i, row in enumerate(rows.tolist()):
            batch.put(key(row), text[i * size : (i + 1) * size])
        self._db.write(batch, self._write)

    def read(self, rows: Rows) -> Bytes:
        """Records of rows."""
        text = b"".join(self._db.get([key(row) for row in rows.tolist()]))
        return np.frombuffer(text, np.uint8).reshape(rows.size, -1)

    def change(self, rows: Rows) -> None:
        """Read, modify, write."""
        self._put(rows, self.read(rows) + np.uint8(1))

    def drop(self) -> None:
        """Empty its caches and the page cache."""
        self._db.flush()
        self._db.close()
        forget(self._folder)
        self._open()


class Lmdb:
    """LMDB: read in place and written through its map, one transaction per batch, no sync."""

    def __init__(self, folder: Path, rows: Rows, records: Bytes) -> None:
        self._path = folder / "lmdb"
        self._size = 4 * records.nbytes + (1 << 26)
        self._open()
        order = np.argsort(rows, kind="stable")
        for low in range(0, rows.size, PIECE):
            self._put(rows[order[low : low + PIECE]], records[order[low : low + PIECE]])

    def _open(self) -> None:
        import lmdb

        self._db = lmdb.open(
            str(self._path),
            map_size=self._size,
            writemap=True,
            sync=False,
            metasync=False,
            readahead=False,
        )

    def _put(self, rows: Rows, records: Bytes) -> None:
        text = records.tobytes()
        size = records.shape[1]
        with self._db.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(
                [(key(row), text[i * size : (i + 1) * size]) for i, row in enumerate(rows.tolist())]
            )

    def read(self, rows: Rows) -> Bytes:
        """Records of rows."""
        with self._db.begin(buffers=True) as transaction:
            text = b"".join([transaction.get(key(row)) for row in rows.tolist()])
        return np.frombuffer(text, np.uint8).reshape(rows.size, -1)

    def change(self, rows: Rows) -> None:
        """Read, modify, write."""
        self._put(rows, self.read(rows) + np.uint8(1))

    def drop(self) -> None:
        """Close and reopen it, as mapped pages cannot be dropped."""
        self._db.sync(True)
        self._db.close()
        forget(self._path)
        self._open()


class H5py:
    """A contiguous HDF5 dataset, by h5py's fancy index, which must ascend."""

    def __init__(self, folder: Path, rows: Rows, records: Bytes) -> None:
        import h5py

        self._path = folder / "dense.h5"
        self._rows = np.sort(rows)
        order = np.argsort(rows, kind="stable")
        with h5py.File(self._path, "w") as file:
            file["records"] = records[order]
        self._open()

    def _open(self) -> None:
        import h5py

        self._file: Any = h5py.File(self._path, "r+")

    def _places(self, rows: Rows) -> Rows:
        return np.searchsorted(self._rows, rows)

    def read(self, rows: Rows) -> Bytes:
        """Records of rows."""
        places = self._places(rows)
        order = np.argsort(places, kind="stable")
        out = np.empty((rows.size, self._file["records"].shape[1]), np.uint8)
        out[order] = self._file["records"][places[order]]
        return out

    def change(self, rows: Rows) -> None:
        """Read, modify, write."""
        places = np.sort(self._places(rows))
        self._file["records"][places] = self._file["records"][places] + np.uint8(1)

    def drop(self) -> None:
        """Write it back, then empty the page cache."""
        self._file.close()
        forget(self._path)
        self._open()
