"""Edits of a finished HDF5 file, as no damage makes them: with h5py, and sealed anew."""

import os
from collections.abc import Callable
from pathlib import Path

import h5py

from neocpu.hdf5 import seal


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
