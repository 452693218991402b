"""Which test runs on which worker, in what order, and which tests are the inner loop?

`pytest` without a path spreads the tests over as many processes as there are cores, four at most.
A file stays on one worker, and some files share one:

* Files that need the same kernels stand in a group, or two workers would compile them both. These
  groups come first, the longest at the head, so that all kernels are soon in the cache.
* Whatever starts mpiexec is the last group: its ranks poll while they wait, and by then they find
  the cores free and the kernels compiled.

`pytest tests/test_x.py` runs in one process, where a debugger works; `-n 0` and `-n 4` decide
otherwise.
"""

import pytest

from neocpu import cores

MOST_WORKERS = 4  # more would wait for the longest group, and compile the same kernels at once

# group -> files without "test_", or "file::test" for one test of a file. What stands in no group
# is one of its own; such files run between FIRST and LAST.
FIRST: dict[str, tuple[str, ...]] = {
    "without AVX-512": ("promise::test_one_digest_without_avx512",),
    "runs": ("checkpoint_chain", "training", "examples", "checkpoint_quantized", "placement"),
    "formats": ("spmd::test_on_threads", "narrow_homes", "narrow", "formats", "tiers"),
    "updates": ("tbe", "update", "sharded", "preflight"),
    "lookups": ("lookup", "codecs_rows", "codecs", "pooling", "cache"),
    "benchmarks": ("benchmarks",),
    "toys": ("recipes",),
}
LAST: dict[str, tuple[str, ...]] = {
    "mpiexec": ("spmd", "resume", "launch", "comm", "readme", "cli", "doctor", "promise"),
}

# `pytest -m quick`: under a minute once kernels are compiled, and no mpiexec. Files that take less
# than two seconds of it; those of kernels, formats, plans, config, codecs and the oracle's truth.
QUICK_FILES = """
    blocks cache cache_fbgemm capacity codecs codecs_rows config dense_reduction device elementary
    exchange floats gemm hashing house interaction jagged jagged_layout lock lookup loss metrics
    model narrow optimizers oracle_compare oracle_diagnose oracle_semantics oracle_truth philox
    plan planner pooling presets report rounding row_kernels rule_formulas rules segments sharding
    state tbe threads tokenize touch update vocabulary
"""
QUICK = frozenset(QUICK_FILES.split())

_GROUPS = FIRST | LAST
_PLACES = {name: place for place, name in enumerate([*FIRST, None, *LAST])}


def count() -> int:
    """How many workers this machine is good for; 0: none but this process."""
    workers = min(len(cores.available()), MOST_WORKERS)
    return workers if workers > 1 else 0


def group_of(file: str, test: str) -> str | None:
    """The group of a test, or None where its file stands alone."""
    for name in (f"{file}::{test}", file):
        for group, members in _GROUPS.items():
            if name in members:
                return group
    return None


def arrange(items: list[pytest.Item]) -> None:
    """Mark the tests, and sort them by groups."""
    groups: dict[pytest.Item, str | None] = {}
    for item in items:
        file = item.path.stem.removeprefix("test_")
        groups[item] = group_of(file, item.name.split("[")[0])
        item.add_marker(pytest.mark.xdist_group(groups[item] or file))
        if file in QUICK:
            item.add_marker(pytest.mark.quick)
    items.sort(key=lambda item: _PLACES[groups[item]])
