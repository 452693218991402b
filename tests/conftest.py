"""What do all tests share? Fixtures, reproducible examples, workers, and a report of what was
skipped.
"""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import pytest

from neocpu.core.errors import EnvironmentProblem
from neocpu.parallel.transport.launch import find_mpiexec
from neocpu.train.before import companion
from tests import skips, workers
from tests.small_run import write_log


def pytest_report_header() -> str:
    """MPI and thread count in the head of the report."""
    try:
        mpiexec = str(find_mpiexec())
    except EnvironmentProblem:
        mpiexec = "none (tests under MPI are skipped)"
    return (
        f"mpiexec: {mpiexec}; numba {numba.__version__}, {numba.config.NUMBA_NUM_THREADS} threads"
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Workers for `-n auto`: several for the whole suite, none where files are named."""
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    return workers.count() if whole else 0


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> workers.GroupScheduling:
    """The groups of `workers.py` stay on one worker each."""
    return workers.GroupScheduling(config, log)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes name no test: what gzip packs holds the second, and workers must collect alike."""
    return argname if isinstance(val, bytes) else None


def pytest_configure(config: pytest.Config) -> None:
    """What workers of xdist have from the process that starts them."""
    gc.set_threshold(50_000)  # while modules are imported, hardly anything is garbage
    # threads of BLAS spin after each small product: of networks, that was two thirds of the time
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS and not config.option.markexpr
    # not beside the sources where that is unwanted, but some two hundred processes import the same
    if sys.dont_write_bytecode and config.pluginmanager.hasplugin("cacheprovider"):
        sys.pycache_prefix = str(config.cache.mkdir("bytecode"))
        sys.dont_write_bytecode = False
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    from tests import draws  # hypothesis, whose bytecode is kept from here on

    draws.load()
    # one sample, also past midnight
    os.environ.setdefault(workers.SAMPLED_DAY, workers.today() if whole else "")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m quick` imports quick files only: all of them take five seconds in each worker."""
    if config.option.markexpr != "quick" or not collection_path.match("test_*.py"):
        return None
    return collection_path.stem.removeprefix("test_") not in workers.QUICK or None


@pytest.hookimpl(tryfirst=True)  # before `-m quick` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Which worker, which order, what is quick, and which long covers this day leaves out."""
    workers.mark(items)
    # a worker is always told what to run
    if config.args_source is not pytest.Config.ArgsSource.ARGS or hasattr(config, "workerinput"):
        workers.arrange(items)
    left = workers.left_out(items)
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
        items[:] = [item for item in items if item.nodeid not in left]


def pytest_collection_finish() -> None:
    """Look for garbage in what tests make alone: modules and tests stay to the end, and among them
    a whole look takes a second.
    """
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was skipped, and how it is run."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("skipped")
        for line in skips.section(skipped):
            terminalreporter.line(line)


@pytest.fixture(scope="session", autouse=True)
def own_copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Converted copies of logs are those of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEOCPU_DATA_CACHE", str(tmp_path_factory.mktemp("copies")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_second_compiler() -> Iterator[None]:
    """Runs of this process compile alone: all cores are busy with other tests, and mostly there is
    nothing to compile. `test_warmup.py` starts the second process on its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(companion, "available", lambda: {0})
        yield


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of `small_run.py`."""
    return write_log(tmp_path_factory.mktemp("log") / "log.h5")


@pytest.fixture(scope="session")
def mpiexec() -> Path:
    """What starts ranks; tests that use it are skipped where there is none."""
    try:
        return find_mpiexec()
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
