"""Where do messages live between steps? In named arrays that only grow, so that a step touches no
fresh memory.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Elements

Scalar = TypeVar("Scalar", bound=np.generic)


class Buffers:
    """Scratch arrays by name. A second `take` of a name hands out the same memory again."""

    def __init__(self) -> None:
        self._arrays: dict[str, Elements] = {}

    def take(self, name: str, size: int, dtype: type[Scalar] | np.dtype[Scalar]) -> NDArray[Scalar]:
        """Uninitialised flat array of `size` elements; valid until `name` is taken again."""
        array = self._arrays.get(name)
        if array is None or array.size < size or array.dtype != dtype:
            # sizes of messages differ a little from batch to batch: with some room they soon fit
            array = self._arrays[name] = np.empty(size + size // 8, dtype)
        return array[:size]

    def matrix(
        self, name: str, rows: int, columns: int, dtype: type[Scalar] | np.dtype[Scalar]
    ) -> NDArray[Scalar]:
        """Uninitialised C-contiguous array [rows, columns]; valid until `name` is taken again."""
        return self.take(name, rows * columns, dtype).reshape(rows, columns)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(array.nbytes for array in self._arrays.values())


def as_bytes(array: Elements) -> NDArray[np.uint8]:
    """A contiguous 1-D array as the bytes that it is."""
    return array.view(np.uint8) if array.size else np.empty(0, np.uint8)
