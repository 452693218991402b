"""What do all tests share? Reproducible examples, a second process that compiles ahead, and a line
that says which MPI.
"""

import os
from pathlib import Path

import numba
import pytest

from neocpu.errors import EnvironmentProblem
from neocpu.parallel.launch import find_mpiexec
from tests import ahead, draws
from tests.small_run import write_log

draws.load()
if ahead.AHEAD in os.environ:
    os.nice(19)


def pytest_report_header() -> str:
    """MPI and thread count in the head of the report."""
    try:
        mpiexec = str(find_mpiexec())
    except EnvironmentProblem:
        mpiexec = "none (tests under MPI are skipped)"
    return (
        f"mpiexec: {mpiexec}; numba {numba.__version__}, {numba.config.NUMBA_NUM_THREADS} threads"
    )


SECOND = pytest.StashKey["subprocess.Popen[bytes] | None"]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What compiles most comes last."""
    ahead.sort_last(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin to compile ahead."""
    if not session.config.option.collectonly:
        session.config.stash[SECOND] = ahead.start(session.items)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End what was begun; remember that the cache is full."""
    ahead.stop(session.config.stash.get(SECOND, None))
    if ahead.AHEAD in os.environ and exitstatus == 0:
        ahead.marker().touch()


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of `small_run.py`."""
    return write_log(tmp_path_factory.mktemp("log") / "log.h5")
