"""Do kernels stay inside their arrays? With pages that nobody may touch behind every table."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from promise_cases import FAMILIES, MAIN, write_data

from neocpu.storage.arena import Arena

READ = """
import sys
import numpy as np
from neocpu.storage.arena import Arena
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


def run(*arguments: str, guarded: bool) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NEOCPU_GUARD_PAGES": str(int(guarded))}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300
    )


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
