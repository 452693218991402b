"""How does a test change a file that has a seal? With plain h5py, and then without it, or anew."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import h5py

from neocpu.hdf5 import seal
from neocpu.hdf5.draft import SEALED


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
