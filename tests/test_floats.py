"""Is a process that flushes subnormals noticed and mended?"""

import ctypes
import platform
import sys

import pytest

from neocpu.core.errors import EnvironmentProblem
from neocpu.core.floats import keep_subnormals, require_subnormals, subnormals_are_kept

FLUSH = 0x8040  # flush-to-zero and denormals-are-zero, in MXCSR
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="sets the flag where glibc on x86-64 keeps it",
)


def test_flushing_is_noticed_and_mended() -> None:
    libm = ctypes.CDLL("libm.so.6")
    before = ctypes.create_string_buffer(32)
    flushing = ctypes.create_string_buffer(32)
    libm.fegetenv(before)
    libm.fegetenv(flushing)
    mode = int.from_bytes(flushing.raw[28:32], "little") | FLUSH
    flushing[28:32] = mode.to_bytes(4, "little")
    try:
        assert subnormals_are_kept()
        libm.fesetenv(flushing)
        assert not subnormals_are_kept()
        with pytest.raises(EnvironmentProblem, match="ffast-math"):
            require_subnormals()
        keep_subnormals()
        assert subnormals_are_kept()
    finally:
        libm.fesetenv(before)
