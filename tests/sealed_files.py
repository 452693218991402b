"""How does a test change a file that has a seal? With plain h5py, and then without it, or anew."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py

from neocpu.tables.hdf5 import seal
from neocpu.tables.hdf5.draft import SEALED


@contextlib.contextmanager
def as_older(path: Path) -> Iterator[h5py.File]:
    """A file open for changes; afterwards it has no seal, as files of older versions."""
    with h5py.File(path, "r+") as file:
        file.attrs.pop(SEALED, None)
        yield file


@contextlib.contextmanager
def sealed_anew(path: Path) -> Iterator[h5py.File]:
    """A file open for changes; afterwards it has a seal over all of it that goes with them."""
    with h5py.File(path, "r+") as file:
        yield file
    seal.write(path, path.stat().st_size, [])


def edit(path: Path, change: Callable[[h5py.File], None], *, reseal: bool = True) -> None:
    """Let `change` edit a file; if it was sealed and `reseal`, seal it anew, leaving out the same
    bytes as before.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        before = seal.find(handle)
    finally:
        os.close(handle)
    with h5py.File(path, "r+", locking=False) as file:
        change(file)
        file.flush()
        size = file.id.get_filesize()
    if before is not None:
        # HDF5 may leave the old seal behind its own end.
        os.truncate(path, size)
        if reseal:
            kept = [(first, count) for first, count in before.left_out if first + count <= size]
            seal.write(path, size, kept)
