"""Does this process do IEEE-754 arithmetic? Not if a library makes it flush subnormals to zero.

Shared libraries that were linked with `-ffast-math` tell the processor to do so when they are
loaded, and every thread that starts later inherits it. The bits of a run would then depend on what
else was imported, so a run checks first.
"""

import contextlib
import ctypes

import numpy as np

from neocpu.core.errors import EnvironmentProblem

DEFAULT = ctypes.c_void_p(-1)  # FE_DFL_ENV of glibc and musl


def subnormals_are_kept() -> bool:
    """Whether this thread computes with subnormal numbers."""
    # a product, since a subnormal that is only copied stays what it is
    return bool(np.float32(2.0**-140) * np.float32(1.0) != 0)


def keep_subnormals() -> None:
    """Make this thread, and those that it starts from now on, keep subnormals.

    Raises EnvironmentProblem where that fails.
    """
    if subnormals_are_kept():
        return
    with contextlib.suppress(OSError, AttributeError):
        # the default environment has the flags of flushing cleared
        ctypes.CDLL(None).fesetenv(DEFAULT)
    require_subnormals()


def require_subnormals() -> None:
    """Raise EnvironmentProblem if this thread flushes subnormal numbers to zero."""
    if not subnormals_are_kept():
        raise EnvironmentProblem(
            "a library that was loaded into this process (one linked with -ffast-math) makes the "
            "processor flush subnormal numbers to zero, so results would not be the canonical "
            "ones; run in a process that does not load it"
        )
