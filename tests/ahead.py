"""How does the whole suite use a second core? A second process compiles ahead what its last tests
need.

Half of the suite's time is compiling kernels, one after the other, into a cache on the disk. So the
tests that compile most stand last, and meanwhile a process of the lowest priority runs the very
same tests, from the first of them on, and throws their results away: what counts is the cache, and
what the suite itself then finds. It is started for the whole suite only, and not where its marker
says that the cache is full already.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from neocpu import cores
from neocpu.kernels._cache import cache_folder
from neocpu.kernels._key import source_digest

AHEAD = "NEOCPU_TESTS_AHEAD"  # set in the second process
TESTS = Path(__file__).resolve().parent
LAST = (
    "test_formats.py",
    "test_narrow.py",
    "test_lookup.py",
    "test_codecs_rows.py",
    "test_tbe.py",
    "test_update.py",
    "test_sharded.py",
    "test_benchmarks.py",
    "test_promise.py",
)
AFTER = (
    "test_preflight.py",
    "test_tiers.py",
    "test_oracle_cases.py",
)  # need kernels that those above compile: not compiled ahead, but last
# the rest of it starts ranks, and compiles little
CHOSEN = {"test_promise.py": "::test_one_digest_without_avx512"}


def marker() -> Path:
    """Exists once the second process has run to its end with these kernels."""
    return cache_folder() / f"tests-ahead-{source_digest()}"


def sort_last(items: list[Any]) -> None:
    """Put the tests of the files above last, in their order."""
    place = {name: number for number, name in enumerate(LAST + AFTER)}
    items.sort(key=lambda item: place.get(item.path.name, -1))


def start(items: list[Any]) -> "subprocess.Popen[bytes] | None":
    """Begin to compile ahead if there is something to gain; `stop` ends it."""
    whole = {*LAST} <= {item.path.name for item in items}
    if not whole or AHEAD in os.environ or len(cores.available()) < 2 or marker().exists():
        return None
    files = [f"{TESTS / name}{CHOSEN.get(name, '')}" for name in LAST]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    return subprocess.Popen(
        command,
        cwd=TESTS.parent,
        env={**os.environ, AHEAD: "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def stop(process: "subprocess.Popen[bytes] | None") -> None:
    """End the second process and the ranks that it started."""
    if process is None:
        return
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
