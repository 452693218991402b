"""Do kernels stay inside their arrays? With pages that nobody may touch behind every table, and
with every index checked.

`NUMBA_BOUNDSCHECK=1 pytest -m quick` checks the indices of all kernels, in minutes, as they are
compiled anew; a test here those of the kernels that lay out lookups.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from promise_cases import FAMILIES, MAIN, write_data

from neocpu.tables.storage.arena import Arena
from tests.jobs import ran

READ = """
import sys
import numpy as np
from neocpu.tables.storage.arena import Arena
size = sum(Arena.space(count, kind) for count, kind in ((1001, "f4"), (7, "f8")))
arena = Arena(size)
first = arena.take(1001, "f4")
second = arena.take(7, "f8")
assert first.size == 1001 and not first.any() and first.ctypes.data % 64 == 0
first[:] = 1
assert not second.any()
beyond = np.lib.stride_tricks.as_strided(first, (1001 + 16,))
print("inside", flush=True)
sys.exit(int(beyond[-1]))
"""

OUTSIDE = """
import numpy as np
from numba import prange
from neocpu.kernels.compile.jit import parallel_kernel

@parallel_kernel
def fill(array, count):
    for i in prange(count):
        array[i] = i

array = np.zeros(4)
fill(array, 4)
assert array.tolist() == [0, 1, 2, 3]
fill(array, 5)
"""


def run(*arguments: str, guarded: bool) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NEOCPU_GUARD_PAGES": str(int(guarded))}
    return ran([sys.executable, *arguments], env=environment, timeout=300)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are guarded by mprotect of Linux")
def test_a_read_behind_a_table_ends_the_process() -> None:
    assert run("-c", READ, guarded=False).returncode == 0
    done = run("-c", READ, guarded=True)
    assert done.stdout == "inside\n", done.stderr
    assert done.returncode == -signal.SIGSEGV


@pytest.mark.skipif(sys.platform != "linux", reason="pages are guarded by mprotect of Linux")
def test_a_run_touches_nothing_behind_its_tables(tmp_path: Path) -> None:
    write_data(tmp_path)
    (tmp_path / "job.toml").write_text(FAMILIES[MAIN].toml(tmp_path))
    digests = []
    for guarded in (False, True):
        out = tmp_path / str(guarded)
        sets = ("memory.placement=hbm_over_ddr", "memory.policy=lfu")
        options = [part for each in sets for part in ("--set", each)]
        arguments = ("-m", "neocpu", "train", str(tmp_path / "job.toml"), "--out", str(out))
        done = run(*arguments, *options, guarded=guarded)
        assert done.returncode == 0, done.stderr
        digests.append(next(line for line in done.stdout.splitlines() if "digest" in line))
    assert digests[0] == digests[1]


def test_regions_of_an_arena_do_not_overlap() -> None:
    sizes = [(5, "f4"), (0, "u1"), (64, "u1"), (3, "f8")]
    arena = Arena(sum(Arena.space(*size) for size in sizes))
    regions = [arena.take(*size) for size in sizes]
    for number, region in enumerate(regions):
        region[:] = number + 1
    assert [set(region.tolist()) for region in regions] == [{1}, set(), {3}, {4}]
    assert all(region.ctypes.data % 64 == 0 for region in regions)
    assert np.all(regions[3] == 4)


def test_indices_are_checked_in_parallel_loops_too() -> None:
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1"}
    command = [sys.executable, "-c", OUTSIDE]
    done = ran(command, env=environment, timeout=300)
    assert done.returncode == 1
    assert "IndexError: index is out of bounds" in done.stderr


def test_kernels_that_lay_out_lookups_stay_inside_their_arrays() -> None:
    folder = Path(__file__).parent
    files = [str(folder / f"test_{name}.py") for name in ("jagged", "jagged_layout", "segments")]
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *files]
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1"}
    done = ran(command, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout
