"""What do all tests share? Reproducible examples, and a line that says which MPI they run with."""

import numba
from hypothesis import HealthCheck, settings

from neocpu.errors import EnvironmentProblem
from neocpu.parallel.launch import find_mpiexec

# Examples are the same in every run: ranks draw them independently and must agree. First calls compile: no deadline.
# Machines are shared: how long it takes to draw an example says nothing about the test.
settings.register_profile(
    "neocpu",
    deadline=None,
    derandomize=True,
    max_examples=30,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("neocpu")


def pytest_report_header() -> str:
    """MPI and thread count in the head of the report."""
    try:
        mpiexec = str(find_mpiexec())
    except EnvironmentProblem:
        mpiexec = "none (tests under MPI are skipped)"
    return f"mpiexec: {mpiexec}; numba {numba.__version__}, {numba.config.NUMBA_NUM_THREADS} threads"
