"""Is an environment in which kernels cannot run told at once, in words?"""

import math
import os
import platform
import resource
import sys
import threading

import pytest

from neocpu.core import cores
from neocpu.core.errors import EnvironmentProblem
from neocpu.kernels.compile import key as kernel_key
from neocpu.kernels.compile import threads as kernel_threads
from neocpu.parallel.transport.abort import guard
from neocpu.parallel.transport.environment import (
    check_addresses,
    check_kernels,
    check_launcher,
    check_threads,
    check_variables,
    tasks_left_out,
)
from tests.jobs import ran

OLD_CPU = """
from neocpu.core.errors import EnvironmentProblem
from neocpu.parallel.transport.environment import check_kernels
try:
    check_kernels()
except EnvironmentProblem as problem:
    print(problem)
"""


def test_usual_variables_pass() -> None:
    check_variables({})
    check_variables(
        {"NUMBA_NUM_THREADS": " 4", "NUMBA_THREADING_LAYER": "omp", "NUMBA_DISABLE_JIT": "0"}
    )


def test_more_threads_than_a_limit_allows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    running: list[threading.Thread] = []

    def limited(thread: threading.Thread) -> None:
        if len(running) == 3:
            raise RuntimeError("can't start new thread")
        running.append(thread)
        start(thread)

    check_threads(8)
    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(EnvironmentProblem, match=r"for 8 threads, .* only 3 \(`ulimit -u`"):
        check_threads(8)
    assert not any(thread.is_alive() for thread in running)


def test_a_limit_on_addresses_that_kernels_do_not_fit_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhaust() -> None:
        raise MemoryError

    limit = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda name: (limit, limit))
    check_addresses()
    assert cores.addresses_left() == math.inf
    assert guard(exhaust) == 1
    assert "neocpu: unexpected MemoryError" in capsys.readouterr().err
    limit = 200 << 20
    assert 0 <= cores.addresses_left() < limit
    with pytest.raises(EnvironmentProblem, match=r"may map \d+ MiB more, .* \(`ulimit -v`, Grid"):
        check_addresses()
    assert guard(exhaust) == 1
    assert capsys.readouterr().err.startswith("neocpu: error: no more memory can be mapped; raise")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other CPUs always have it")
def test_a_rank_alone_in_a_job_of_several_tasks_is_told() -> None:
    assert tasks_left_out(1, {"SLURM_NTASKS": "4"}).startswith(
        "this run is one rank, and its Slurm"
    )
    for ranks, tasks in ((4, "4"), (2, "4"), (1, "1"), (1, "")):
        assert not tasks_left_out(ranks, {"SLURM_NTASKS": tasks})


def test_processes_of_torchrun_are_no_ranks() -> None:
    # of a pod of PyTorchJob, and of a process alone
    for variables in ({"WORLD_SIZE": "2", "RANK": "0"}, {"WORLD_SIZE": "1", "LOCAL_RANK": "0"}):
        check_launcher(variables)
    with pytest.raises(EnvironmentProblem, match=r"2 processes .* --ranks 2, or unset"):
        check_launcher({"WORLD_SIZE": "2", "LOCAL_RANK": "1"})


def test_a_cpu_without_fused_multiply_add_is_told_before_anything_is_compiled() -> None:
    done = ran(
        [sys.executable, "-c", OLD_CPU],
        env={**os.environ, "NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""},
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("this CPU (x86-64-v2) has no fused multiply-add"), done.stderr
    assert done.stdout.count("\n") == 1


def test_this_cpu_has_it() -> None:
    assert kernel_key.has_fma()
    check_kernels()


def test_a_layer_that_is_not_installed_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise ValueError("No threading layer could be loaded.\nHINT:\nIntel TBB is required")

    monkeypatch.setattr(kernel_threads, "threading_layer", missing)
    with pytest.raises(EnvironmentProblem, match=r"loaded\. HINT: Intel TBB .*unset NUMBA_THREAD"):
        check_kernels()
