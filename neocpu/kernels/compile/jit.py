"""Which compile options do kernels get? They are decided here, once.

* `kernel`: one thread. `parallel_kernel`: `prange` loops spread over Numba's threads.
* No `fastmath`: LLVM may not reassociate or contract, which the promise of equal bits rests on
  (`docs/arithmetic.md`).
* `error_model="numpy"`: a division by zero gives inf or NaN as IEEE-754 says, with no branch.
* No entry for C pointers (`no_cfunc_wrapper`): nobody calls a kernel through one, and each would be
  compiled.
* Compiled kernels are kept in a cache on the disk (`compile/cache.py`).
"""

import os
from collections.abc import Callable
from typing import Any

import numba
from numba.core.cpu_options import ParallelOptions
from numba.core.typing.templates import builtin_registry
from numba.extending import register_jitable

from neocpu.kernels.compile.cache import cache_folder, keep
from neocpu.kernels.compile.key import INLINED, cpu_kind
from neocpu.kernels.compile.linking import CALLED

__all__ = ["cache_folder", "called_kernel", "cpu_kind", "inlined", "kernel", "parallel_kernel"]

# GNU OpenMP's threads spin for some 16 ms at a barrier by default. Where anything else wants the
# cores (another rank, a desktop), that costs a time slice per kernel: a training step took ten
# times as long. They may spin for about 0.1 ms, which bridges the gap between two kernels, and
# sleep then; longer where every thread has a core of its own (`parallel/transport/launch.py`). Read
# when Numba loads its threads; yours goes first.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

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
_OPTIONS: Any = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}
_INLINE: Any = {"forceinline": True, "no_cfunc_wrapper": True}


class _Implementations(dict[Any, Any]):
    """What Numba compiled of an inlined function, by types of arguments.

    Numba's keys hold all flags of the caller too, so that the body of a task was compiled for the
    kernel, and again for its parallel region. Only flags that a callee inherits change its code.
    """

    @staticmethod
    def _key(key: Any) -> Any:
        context, args, keywords, flags = key
        inherited = [getattr(flags, name, None) for name in ("nrt", "fastmath", "error_model")]
        return context, args, keywords, repr(inherited)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self._key(key))

    def __setitem__(self, key: Any, implementation: Any) -> None:
        super().__setitem__(self._key(key), implementation)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function for one thread."""
    return keep(numba.njit(**_OPTIONS)(function))


def called_kernel(function: Callable[..., Any]) -> Any:
    """A `kernel` that kernels call as it is, without a copy in each: for large functions of which a
    call costs little.
    """
    setattr(function, CALLED, True)
    return kernel(function)


def parallel_kernel(function: Callable[..., Any]) -> Any:
    """Compile a function whose `prange` loops are spread over Numba's threads.

    With NUMBA_BOUNDSCHECK=1 for one thread: an IndexError in a parallel loop would be lost.
    """
    if getattr(numba.config, "BOUNDSCHECK", None):
        return kernel(function)
    return keep(numba.njit(parallel=_PRANGE, **_OPTIONS)(function))


def inlined(function: Callable[..., Any]) -> Any:
    """Let kernels inline a function.

    For small functions that take arrays and run once per row: as a call, every array would travel
    as seven words.
    """
    setattr(function, INLINED, repr(_INLINE))
    jitable = register_jitable(**_INLINE)(function)
    template = builtin_registry.functions[-1]  # which Numba has just made of it
    template._impl_cache = _Implementations()
    return jitable
