"""How are the C limits called? gcc builds limits.c for one width, ctypes calls it.

Without gcc there are no limits.
"""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import ours
from neocpu.kernels.records import Segments

# Flops of a thread in a step of `Limit.multiply_add`.
MULTIPLY_ADD = 16 * 16 * 2
# The C code.
SOURCE = Path(__file__).with_name("limits.c")
# What -ffast-math allows, one by one: a library linked with -ffast-math itself makes the whole
# process flush subnormals.
FAST = (
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-ffinite-math-only",
)
# Options of the compiler.
FLAGS = ("-O3", "-march=native", *FAST, "-fopenmp", "-shared", "-fPIC")


def _pointers(arrays: list[NDArray[np.float32]]) -> NDArray[np.uintp]:
    return np.array([a.ctypes.data for a in arrays], np.uintp)


def _address(array: NDArray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@cache
def library(dim: int) -> ctypes.CDLL | None:
    """The limits for rows of `dim` columns (a multiple of 16), or None without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or dim % 16:
        return None
    from neocpu.kernels.simd.ahead import NEAR

    folder = tempfile.mkdtemp(prefix="neocpu-limits-")
    target = Path(folder) / f"limits{dim}.so"
    built = subprocess.run(
        [compiler, *FLAGS, f"-DD={dim}", f"-DNEAR={NEAR}", str(SOURCE), "-o", str(target), "-lm"],
        capture_output=True,
        text=True,
    )
    if built.returncode:
        return None
    loaded = ctypes.CDLL(str(target))
    # The library stays mapped without its file.
    shutil.rmtree(folder, ignore_errors=True)
    return loaded


class Limit:
    """The C limits on T tables of f32[E, D] (not copied), bags of exactly L lookups."""

    def __init__(self, tables: list[NDArray[np.float32]], samples: int, length: int) -> None:
        self._library = library(tables[0].shape[1])
        self._tables = _pointers(tables)
        self._keep = tables
        self._sizes = tuple(ctypes.c_long(n) for n in (len(tables), samples, length))

    def threads(self, count: int) -> None:
        """Use `count` threads from now on, pinned as ours are: both use one OpenMP pool."""
        self._call("threads", count)
        ours.place(count)

    def _call(self, name: str, *args: object) -> None:
        assert self._library is not None
        getattr(self._library, name)(*args)

    def gather(self, rows: NDArray[np.int64], out: NDArray[np.float32], wide: bool = False) -> None:
        """out f32[B, T*D] = fp32 sums of each bag's rows; with `wide` fp64 sums rounded once."""
        name = "gather64" if wide else "gather"
        self._call(name, _address(self._tables), _address(rows), *self._sizes, _address(out))

    def gather_weighted(
        self, rows: NDArray[np.int64], weights: NDArray[np.float32], out: NDArray[np.float32]
    ) -> None:
        """out f32[B, T*D] = fp32 sums of each bag's rows times their weights f32[T*B*L]."""
        pointers = (_address(self._tables), _address(rows), _address(weights))
        self._call("gather_weighted", *pointers, *self._sizes, _address(out))

    def read_all(self, x: NDArray[np.float32]) -> None:
        """Read the array f32[n], n a multiple of 64, once."""
        self._call("read_all", _address(x), ctypes.c_long(x.size))

    def multiply_add(self, steps: int) -> None:
        """`steps` times `MULTIPLY_ADD` flops of fused multiply-adds in every thread."""
        self._call("multiply_add", ctypes.c_long(steps))

    def backward(
        self,
        moments: list[NDArray[np.float32]],
        rows: NDArray[np.int64],
        grad: NDArray[np.float32],
        rate: float,
    ) -> None:
        """Row-wise AdaGrad.

        grad f32[B, T*D]: gradient of the pooled rows; moments f32[E]: state of each table.
        """
        pointers = _pointers(moments)
        numbers = (ctypes.c_float(rate), ctypes.c_float(1e-8))
        self._call(
            "backward",
            _address(self._tables),
            _address(pointers),
            _address(rows),
            *self._sizes,
            _address(grad),
            *numbers,
        )

    def update(
        self,
        moments: list[NDArray[np.float32]],
        segments: Segments,
        grad: NDArray[np.float32],
        rate: float,
    ) -> None:
        """Row-wise AdaGrad of lookups that are sorted: merge and update alone.

        segments: of all tables, one shard each; grad f32[:], flat; moments as in `backward`.
        """
        pointers = _pointers(moments)
        self._call(
            "update",
            _address(self._tables),
            _address(pointers),
            _address(segments.first),
            _address(segments.unique),
            _address(segments.starts),
            _address(segments.place),
            self._sizes[0],
            _address(grad),
            ctypes.c_float(rate),
            ctypes.c_float(1e-8),
        )
