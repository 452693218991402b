"""Where are activations while they are away? In memory beside the budget, or in a file.

The file has no name from the start, so nothing is left of it when the run was killed.
"""

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Protocol

import numpy as np

from neocpu.core.errors import StorageError
from neocpu.core.types import Floats
from neocpu.plan.activations.schedule import Speed
from neocpu.tables.storage.device import Device

PIECE = 4 << 20  # bytes of a measurement


class Away(Protocol):
    """Keeps copies of arrays by number."""

    def write(self, number: int, array: Floats) -> None:
        """Keep what an array holds."""

    def read(self, number: int, array: Floats) -> None:
        """Give it back."""

    def close(self) -> None:
        """Nothing is kept any more."""


# makes one for arrays of so many bytes, by number
MakeAway = Callable[[Mapping[int, int]], Away]


class InMemory:
    """Copies in memory that is not part of the budget.

    sizes : bytes of each array, at most. device : how fast the memory is.
    """

    def __init__(self, sizes: Mapping[int, int], device: Device) -> None:
        self._device = device
        self._copies = {number: np.empty(size // 4, np.float32) for number, size in sizes.items()}

    def write(self, number: int, array: Floats) -> None:
        begun = self._device.begin()
        self._copies[number][: array.size] = array.reshape(-1)
        self._device.pay(begun, 1, array.nbytes)

    def read(self, number: int, array: Floats) -> None:
        begun = self._device.begin()
        array.reshape(-1)[:] = self._copies[number][: array.size]
        self._device.pay(begun, 1, array.nbytes)

    def close(self) -> None:
        self._copies.clear()


class InFile:
    """Copies in a file of a folder. Arguments as of `InMemory`.

    Raises StorageError where the folder cannot be written, or is full.
    """

    def __init__(self, sizes: Mapping[int, int], device: Device, folder: Path) -> None:
        self._folder = folder
        self._device = device
        self._places = dict(zip(sizes, accumulate(sizes.values(), initial=0)))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file, name = tempfile.mkstemp(dir=folder, prefix=".activations-")
            os.unlink(name)
            # before the first step, not in the middle of it
            if sum(sizes.values()) > shutil.disk_usage(folder).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._fault(error) from error

    def _fault(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self._folder}: activations cannot be kept there: {error.strerror}; choose another "
            'memory.folder, or memory.activations_in = "ddr"'
        )

    def write(self, number: int, array: Floats) -> None:
        self._move(os.pwritev, number, array)

    def read(self, number: int, array: Floats) -> None:
        self._move(os.preadv, number, array)

    def _move(
        self, move: Callable[[int, list[memoryview], int], int], number: int, array: Floats
    ) -> None:
        begun = self._device.begin()
        data = array.reshape(-1).view(np.uint8).data
        done = 0
        try:
            # a call moves 2 GiB at most
            while done < len(data):
                done += move(self._file, [data[done:]], self._places[number] + done)
        except OSError as error:
            raise self._fault(error) from error
        self._device.pay(begun, 1, len(data))

    def close(self) -> None:
        os.close(self._file)


def measured(make: MakeAway) -> Speed:
    """How fast arrays go there and come back."""
    away = make({0: PIECE})
    array = np.zeros(PIECE // 4, np.float32)
    try:
        # the first time pages are mapped
        for _ in range(2):
            times = [time.perf_counter()]
            for move in (away.write, away.read):
                move(0, array)
                times.append(time.perf_counter())
    finally:
        away.close()
    return Speed(*(PIECE / max(end - begin, 1e-9) for begin, end in pairwise(times)))
