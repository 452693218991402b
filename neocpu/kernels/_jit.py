"""Which compile options do kernels get, and where do compiled kernels live? Both are decided here,
once.

* `kernel`: one thread. `parallel_kernel`: `prange` loops spread over Numba's threads.
* No `fastmath`: LLVM may not reassociate or contract, which the promise of equal bits rests on
  (`docs/arithmetic.md`).
* `error_model="numpy"`: a division by zero gives inf or NaN as IEEE-754 says, with no branch.
* No entry for C pointers (`no_cfunc_wrapper`): nobody calls a kernel through one, and each would be
  compiled.
* The cache folder is named by the hash of every file in `kernels/`: a cached caller would otherwise
  keep an old callee that lives in another file. Set `NEOCPU_CACHE_DIR` to move it.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import numba
from numba.core.cpu_options import ParallelOptions
from numba.extending import register_jitable


def _source_hash() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(
            path.relative_to(Path(__file__).parent).as_posix().encode()
            + b"\0"
            + path.read_bytes()
            + b"\0"
        )
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """Folder of compiled kernels: one per version of the sources in `kernels/`."""
    base = os.environ.get("NEOCPU_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "neocpu"
    )
    return Path(base) / _source_hash()


# GNU OpenMP's threads spin for some 16 ms at a barrier by default. Where anything else wants the
# cores (another rank, a desktop), that costs a time slice per kernel: a training step took ten
# times as long. They may spin for about 0.1 ms, which bridges the gap between two kernels, and
# sleep then; longer where every thread has a core of its own (`parallel/launch.py`). Read when
# Numba loads its threads; yours goes first.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

numba.config.CACHE_DIR = str(cache_folder())  # type: ignore[attr-defined]

# A kernel is parallel where it says `prange`. Numba would look for more in array expressions, which
# takes compile time.
_AUTOMATIC = (
    "comprehension",
    "reduction",
    "inplace_binop",
    "setitem",
    "numpy",
    "stencil",
    "fusion",
)
# a dictionary would lose its keys at the first kernel
_PRANGE: Any = ParallelOptions(dict.fromkeys(_AUTOMATIC, False))
_OPTIONS: Any = {"cache": True, "error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}

kernel = numba.njit(**_OPTIONS)
parallel_kernel = numba.njit(parallel=_PRANGE, **_OPTIONS)


def cpu_kind() -> tuple[str, str, str]:
    """What compiled code is good for: (target triple, CPU name, features), as the cache
    distinguishes them.
    """
    from numba.core.registry import cpu_target

    triple, name, features = cpu_target.target_context.codegen().magic_tuple()[:3]
    return triple, name, features


# For small functions that take arrays and run once per row: as a call, every array would travel as
# seven words.
inlined = register_jitable(forceinline=True)
