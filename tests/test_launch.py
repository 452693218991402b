"""Is a launch recognised, are cores shared, and does a failing or stopped job end everywhere with
one message?
"""

import errno
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from neocpu.core.cores import available
from neocpu.core.errors import ConfigError, DataError, EnvironmentProblem, Stopped
from neocpu.parallel.transport import abort as guard
from neocpu.parallel.transport import launch, stale
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.hosts import is_open_mpi
from neocpu.parallel.transport.launch import (
    StopSignal,
    find_mpiexec,
    get_comm,
    launched_ranks,
    mpiexec_command,
    own_cores,
    prepare_threads,
    run_guarded,
    share_of_cores,
)
from neocpu.parallel.transport.stale import PREFIXES, check_launch
from tests.jobs import ran, started


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No launcher's variables in the environment."""
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    return monkeypatch


def test_launchers_are_recognised(alone: pytest.MonkeyPatch) -> None:
    assert launched_ranks() == 1
    alone.setenv("PMIX_RANK", "0")
    assert launched_ranks() == 0  # only MPI knows
    alone.setenv("OMPI_COMM_WORLD_SIZE", "3")
    assert launched_ranks() == 3
    alone.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert launched_ranks() == 3
    alone.setenv("PMI_SIZE", "nonsense")
    assert launched_ranks() == 3


def test_alone_the_comm_is_single(alone: pytest.MonkeyPatch) -> None:
    assert isinstance(get_comm(), SingleComm)
    assert get_comm(ranks=1).size == 1
    with pytest.raises(ConfigError, match="4 rank"):
        get_comm(ranks=4)


def test_mpiexec_beside_the_interpreter_wins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for place in ("venv", "path"):
        (tmp_path / place).mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    with pytest.raises(EnvironmentProblem, match=r'pip install "neocpu\[mpi\]"'):
        find_mpiexec()
    for place in ("path", "venv"):
        mpiexec = tmp_path / place / "mpiexec"
        mpiexec.write_text("#!/bin/sh\n")
        mpiexec.chmod(0o755)
        assert find_mpiexec() == mpiexec
    command, environment = mpiexec_command(3, ["-m", "neocpu"])
    assert command == [
        str(tmp_path / "venv" / "mpiexec"),
        "-n",
        "3",
        str(tmp_path / "venv" / "python"),
        "-m",
        "neocpu",
    ]
    assert environment["PRTE_MCA_rmaps_default_mapping_policy"] == ":oversubscribe"
    if os.geteuid() == 0:
        assert (
            environment["OMPI_ALLOW_RUN_AS_ROOT"]
            == environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]
            == "1"
        )


def test_cores_are_divided_among_those_who_may_use_them() -> None:
    unbound = set(range(8))
    inf = float("inf")
    assert share_of_cores(unbound, inf, []) == 8
    assert share_of_cores(unbound, inf, [unbound] * 3) == 2
    # bound by the launcher: its own cores
    assert share_of_cores({4, 5, 6, 7}, inf, [{0, 1, 2, 3}]) == 4
    assert share_of_cores({0, 1}, inf, [{0, 1}] * 7) == 1
    # a container with 4 cores' time for 2 ranks
    assert share_of_cores(set(range(64)), 4.0, [set(range(64))]) == 2
    assert share_of_cores(set(range(3)), inf, [set(range(3))] * 2) == 1


def test_threads_are_written_for_numba_unless_the_user_did(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os; from neocpu.parallel.transport.launch import *; c = get_comm();"
        "print(prepare_threads(c, {0}), os.environ['NUMBA_NUM_THREADS'])"
    )

    def told(threads: str, **extra: str) -> str:
        environment = {k: v for k, v in os.environ.items() if k != "NUMBA_NUM_THREADS"} | extra
        run = ran([sys.executable, "-c", code.format(threads)], env=environment, timeout=60)
        assert run.returncode == 0, run.stderr
        return run.stdout.strip()

    share = share_of_cores(available(), launch.core_quota(), [])
    assert told("None") == f"{share} {share}"
    assert told("None", NUMBA_NUM_THREADS="5") == "5 5"
    assert told("3", NUMBA_NUM_THREADS="5") == "3 3"
    import numba

    monkeypatch.setenv("NUMBA_NUM_THREADS", "1000")
    assert prepare_threads(SingleComm()) == numba.config.NUMBA_NUM_THREADS
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)


def test_a_core_for_each_kernel_thread_only_where_every_core_is_used_once() -> None:
    eight = set(range(8))
    four = {4, 5, 6, 7}
    assert own_cores(0, eight, {}, 8) == list(range(8))
    assert own_cores(0, eight, {}, 4) == []  # cores are left over: the system places threads better
    assert own_cores(5, eight, {3: eight}, 4) == [4, 5, 6, 7]
    assert own_cores(3, eight, {5: eight}, 4) == [0, 1, 2, 3]
    assert own_cores(1, four, {0: {0, 1, 2, 3}}, 4) == [4, 5, 6, 7]  # bound by the launcher
    assert own_cores(1, four, {0: eight}, 4) == []
    assert own_cores(0, {0, 1}, {1: {0, 1}}, 1) == []
    assert own_cores(0, {0, 1}, {1: {0, 1}}, 2) == []  # oversubscribed


def test_threads_with_cores_of_their_own_spin_and_others_sleep() -> None:
    code = """
import json, os, sys
from neocpu.parallel.transport import launch, stale

def show():
    print(*(os.environ.get(name, "-") for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")))

for threads, others, extra in json.loads(sys.argv[1]):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        os.environ.pop(name, None)
    os.environ.update(extra)
    launch._cores_on_this_host = lambda comm: ({0, 1}, {1: {0, 1}} if others else {})
    launch.prepare_threads(launch.get_comm(), threads)
    show()
import neocpu.kernels.compile.jit
show()
"""
    free = {k: v for k, v in os.environ.items() if k not in launch.PLACED | {"GOMP_SPINCOUNT"}}

    cases = [
        (2, 0, {}),
        (2, 1, {}),
        (2, 0, {"OMP_WAIT_POLICY": "ACTIVE"}),
        (2, 0, {"GOMP_SPINCOUNT": "7"}),
        (1, 0, {}),
    ]
    command = [sys.executable, "-c", code, json.dumps(cases)]
    run = ran(command, env=free, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        f"{launch.SPIN} -",
        "- PASSIVE",  # oversubscribed
        "- ACTIVE",
        "7 -",
        "- -",
        "2000 -",  # a core is left over
    ]


def test_bound_threads_leave_the_others_free() -> None:
    code = """
import os, threading
from neocpu.parallel.transport import launch, stale
comm = launch.get_comm()
launch.prepare_threads(comm, len(launch.cores.available()))
from neocpu.core.cores import available, roam
from neocpu.ingest.read_ahead import read_ahead
from neocpu.kernels.compile.threads import threading_layer
before = {int(task) for task in os.listdir("/proc/self/task")}
bound = launch.bind_kernel_threads(comm)
workers = sorted(int(task) for task in os.listdir("/proc/self/task") if int(task) not in before)
places = [os.sched_getaffinity(task) for task in [os.getpid(), *workers]]
assert bound == (threading_layer() == "omp" and len(available()) > 1), (bound, threading_layer())
if bound:
    assert sorted(places, key=sorted) == [{core} for core in sorted(available())], places
assert list(read_ahead((os.sched_getaffinity(0) for _ in range(1)), 1)) == [available()]
roam()
assert os.sched_getaffinity(0) == available()
"""
    environment = {
        k: v for k, v in os.environ.items() if k not in ("NUMBA_NUM_THREADS", "OMP_PROC_BIND")
    }
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system does not bind threads to cores")
    run = ran([sys.executable, "-c", code], env=environment, timeout=60)
    assert run.returncode == 0, run.stderr


# ---- a launcher that is no more ----


def test_connections_that_are_not_there_are_told(alone: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        server.listen()
        uri = f"x.0;tcp4://127.0.0.1:{port}"
        check_launch({"PMI_FD": str(server.fileno()), "PMIX_SERVER_URI2": uri})
        descriptor = str(server.fileno())
    with pytest.raises(EnvironmentProblem, match=rf"PMI_FD={descriptor} is no open .*-u PMI_FD"):
        check_launch({"PMI_FD": descriptor})
    if Path("/proc/net/tcp").exists():
        with pytest.raises(EnvironmentProblem, match="no launcher listens there; start ranks"):
            check_launch({"PMIX_SERVER_URI2": uri})
    alone.setenv("PMI_SIZE", "4")
    alone.setenv("PMI_FD", descriptor)
    alone.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")  # a setting, which stays
    with pytest.raises(EnvironmentProblem, match="env -u PMI_FD -u PMI_SIZE neocpu"):
        get_comm()


def test_a_start_of_mpi_that_never_returns_is_ended_with_a_message() -> None:
    code = (
        "import ctypes; from neocpu.parallel.transport.stale import started_in_time\n"
        "with started_in_time({}):\n    pass\n"
        "with started_in_time({'NEOCPU_MPI_START': '0.5', 'PMI_SIZE': '4'}):\n"
        "    ctypes.PyDLL(None).sleep(60)"  # as MPI: nothing else of Python runs meanwhile
    )
    began = time.monotonic()
    done = ran([sys.executable, "-c", code], timeout=50)
    assert time.monotonic() - began < 30
    assert done.returncode == -signal.SIGTERM
    assert done.stderr.startswith("neocpu: error: MPI has not started within 0.5 s; start ranks")
    assert "env -u PMI_SIZE neocpu" in done.stderr and done.stderr.count("\n") == 1


# ---- the guard, alone ----


def test_users_errors_have_no_traceback_and_their_own_status(
    alone: pytest.MonkeyPatch, capsys
) -> None:
    def wrong() -> int:
        raise ConfigError("no key 'modle.bottom'")

    assert run_guarded(wrong) == 2
    assert capsys.readouterr().err == "neocpu: error: no key 'modle.bottom'\n"
    assert run_guarded(lambda: None) == 0
    assert run_guarded(lambda: 7) == 7


def test_messages_of_several_lines_become_one(alone: pytest.MonkeyPatch, capsys) -> None:
    def wrong() -> int:
        raise DataError("unable to open file\n  (file signature\n  not found)\n")

    assert run_guarded(wrong) == 1
    text = "neocpu: error: unable to open file (file signature not found)\n"
    assert capsys.readouterr().err == text


def test_a_stream_that_was_closed_does_not_change_the_exit_status(
    alone: pytest.MonkeyPatch,
) -> None:
    def wrong() -> int:
        raise ConfigError("no key")

    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        alone.setattr(sys, "stderr", stream)
        assert run_guarded(wrong) == 2


def test_what_the_machine_lacks_is_no_bug(alone: pytest.MonkeyPatch, capsys) -> None:
    def too_many() -> int:
        raise OSError(errno.EMFILE, "Too many open files", "/data/a.h5")

    assert run_guarded(too_many) == 1
    words = capsys.readouterr().err
    assert words.startswith("neocpu: error: /data/a.h5: Too many open files; raise the limit")
    assert words.count("\n") == 1


def test_who_can_open_no_file_still_speaks(alone: pytest.MonkeyPatch, capsys) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    def main() -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    alone.setattr(guard.tempfile, "gettempdir", nowhere)
    ended: list[int] = []
    assert guard.guard(main, ended.append) == 1 and ended == [1]
    assert capsys.readouterr().err.startswith("neocpu: error: Too many open files; raise the limit")


def test_bugs_have_a_traceback(alone: pytest.MonkeyPatch, capsys) -> None:
    def bug() -> int:
        return 1 // 0

    def leave() -> int:
        raise SystemExit(5)

    def interrupt() -> int:
        raise KeyboardInterrupt

    assert run_guarded(bug) == 1
    words = capsys.readouterr().err
    assert "return 1 // 0" in words
    assert "neocpu: unexpected ZeroDivisionError" in words
    assert run_guarded(leave) == 5
    assert run_guarded(interrupt) == 130


def test_one_of_many_speaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(guard.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(guard, "_job", guard._Job())
    ended: list[int] = []

    def wrong() -> int:
        raise DataError("line 3")

    for rank in range(3):
        guard.join_job("token", rank, ended.append)
        assert run_guarded(wrong) == 1
    assert capsys.readouterr().err == "neocpu: error: line 3\n"
    assert ended == [1, 1, 1]


def test_rank_0_says_that_a_signal_stopped_the_ranks_of_all_hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    monkeypatch.setattr(guard, "_job", guard._Job())

    def leave() -> int:
        raise Stopped(signal.SIGTERM, "stopped by signal 15")

    for rank in (1, 2, 0, 3):
        host = tmp_path / str(rank % 2)
        host.mkdir(exist_ok=True)
        monkeypatch.setattr(guard.tempfile, "gettempdir", lambda host=host: str(host))
        guard.join_job("token", rank, lambda status: None)
        assert run_guarded(leave) == 143
        assert guard.has_spoken()
    assert capsys.readouterr().err == "neocpu: stopped by signal 15\n"


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Exception]:
    """Errors of MPI, in a process of no job yet that waits for others for a moment only."""
    monkeypatch.setattr(guard.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(guard, "_job", guard._Job())
    monkeypatch.setattr(guard, "PATIENCE", 0.1)
    return type("Exception", (RuntimeError,), {"__module__": "mpi4py.MPI"})


def test_a_rank_that_mpi_cannot_go_on_with_lets_others_speak(
    lost: type[Exception], tmp_path: Path, capsys
) -> None:
    def wrong() -> int:
        raise lost("see the status")

    guard.join_job("token", 1, lambda status: None)
    (tmp_path / "neocpu-token.said").write_text("done")
    assert run_guarded(wrong) == 1
    assert not capsys.readouterr().err
    guard.join_job("another", 1, lambda status: None)
    begun = time.monotonic()
    assert run_guarded(wrong) == 1
    assert "on rank 1: see the status" in capsys.readouterr().err
    assert time.monotonic() - begun >= 0.1  # in which the launcher ends it, if it can


def test_a_rank_that_mpi_cannot_reach_is_told_in_one_line(lost: type[Exception], capsys) -> None:
    """As where the node of another rank is lost, and nobody there can say so."""

    def wrong() -> int:
        raise lost("Other MPI error, error stack:\nMPID_Isend(61): \nOFI call failed (no route)")

    guard.join_job("token", 1, lambda status: None)
    assert run_guarded(wrong) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("neocpu: error: rank 1 cannot reach another one (OFI call failed (no ro")


def test_a_second_command_of_a_shell_with_stale_variables_speaks_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    monkeypatch.setattr(guard.tempfile, "gettempdir", lambda: str(tmp_path))

    def wrong() -> int:
        raise DataError("alone")

    for seconds in (0, 60):  # the second command starts a minute later
        monkeypatch.setattr(guard, "_STARTED", time.time() + seconds)
        assert guard.guard(wrong, lambda status: None) == 1
        assert capsys.readouterr().err == "neocpu: error: alone\n"


def test_what_is_of_one_machine_is_told_with_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    monkeypatch.setattr(guard.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(guard.socket, "gethostname", lambda: "node3")
    unreadable = ConfigError("m.toml: cannot read the config")
    unreadable.__cause__ = FileNotFoundError()
    agreed = EnvironmentProblem("lacks memory")
    agreed.spoken_by = None  # type: ignore[attr-defined]

    def words(error: Exception, abort: Callable[[int], None] | None) -> str:
        def main() -> int:
            raise error

        for marker in tmp_path.iterdir():
            marker.unlink()
        guard.guard(main, abort)
        return capsys.readouterr().err

    def abort(status: int) -> None: ...

    assert words(unreadable, abort) == "neocpu: error: m.toml: cannot read the config (on node3)\n"
    assert words(EnvironmentProblem("lacks it"), abort).endswith("lacks it (on node3)\n")
    assert words(EnvironmentProblem("lacks it"), None).endswith("lacks it\n")
    for all_have_it in (ConfigError("m.toml: no key"), agreed):
        assert "node3" not in words(all_have_it, abort)


def test_signals_become_a_number() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        assert stop.number == 0
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 5
        while not stop.number and time.monotonic() < deadline:
            time.sleep(0.01)
        assert stop.number == signal.SIGTERM
        # a moment later: the same Ctrl-C told twice, as it were
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        assert stop.number == signal.SIGTERM
        stop._when -= 2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    assert signal.getsignal(signal.SIGTERM) == before


# ---- real jobs ----

JOB = """
import os, sys, time
from neocpu.core.errors import ConfigError, DataError, NeocpuError
from neocpu.parallel.transport.launch import StopSignal, get_comm, run_guarded
way = sys.argv[1]

def main():
    rank = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")
    if way == "all early" or (way == "one early" and rank == "1"):
        raise ConfigError("early")
    comm = get_comm(ranks=2 if way == "count" else None)
    if way == "one" and comm.rank == 2:
        raise DataError("bad")
    if way == "bug" and comm.rank == 1:
        raise KeyError("bug")
    if way == "agree":
        comm.agree(DataError(f"agreed on {comm.rank}") if comm.rank else None)
    if way == "stop":
        with StopSignal() as stop:
            comm.barrier()
            if comm.rank == 0:
                print("ready", flush=True)
            while not comm.largest(stop.number):
                time.sleep(0.05)
        stopped = NeocpuError("stopped by a signal")
        stopped.exit_status = 143
        raise stopped
    comm.barrier()

sys.exit(run_guarded(main))
"""


def job(tmp_path: Path, way: str, ranks: int = 3) -> subprocess.Popen:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    command, environment = mpiexec_command(ranks, [str(script), way])
    return started(command, env=environment)


@pytest.mark.usefixtures("mpiexec")
@pytest.mark.parametrize(
    ("way", "status", "message"),
    [
        ("all early", 2, "neocpu: error: early"),
        ("one early", 2, "neocpu: error: early"),
        ("count", 2, "neocpu: error: 2 rank(s) were asked for, but 3 run"),
        ("one", 1, "neocpu: error: bad"),
        ("agree", 1, "neocpu: error: agreed on 1"),
        ("bug", 1, "neocpu: unexpected KeyError on rank 1"),
    ],
)
def test_a_failing_rank_ends_the_job_with_one_message(
    tmp_path: Path, way: str, status: int, message: str
) -> None:
    running = job(tmp_path, way)
    try:
        _, words = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == status, words
    assert words.count("neocpu: ") == 1, words
    assert message in words
    assert ("Traceback" in words) == (way == "bug")


@pytest.mark.usefixtures("mpiexec")
def test_local_ranks_start_whatever_a_scheduler_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("SLURM_JOB_ID", "3"),
        ("SLURM_JOBID", "3"),
        ("SLURM_NODELIST", "node[1-2]"),
        ("SLURM_JOB_NODELIST", "node[1-2]"),
        ("SLURM_NNODES", "2"),
        ("SLURM_TASKS_PER_NODE", "2(x2)"),
        ("PBS_NODEFILE", "/nowhere"),
        # of Kubernetes' MPI operator, and of sites whose mpiexec goes through their scheduler
        ("HYDRA_HOST_FILE", "/nowhere"),
        ("PRTE_MCA_prte_default_hostfile", "/nowhere"),
        ("HYDRA_LAUNCHER", "slurm"),
        ("HYDRA_RMK", "pbs"),
        ("HYDRA_IFACE", "ib0"),
    ):
        monkeypatch.setenv(name, value)
    running = job(tmp_path, "start", ranks=2)
    try:
        _, words = running.communicate(timeout=30)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, words


@pytest.mark.usefixtures("mpiexec")
def test_a_signal_to_mpiexec_reaches_the_ranks(tmp_path: Path) -> None:
    told = ran([str(find_mpiexec()), "--version"], timeout=60).stdout
    number = signal.SIGUSR1 if "Open MPI" in told or "prte" in told.lower() else signal.SIGTERM
    running = job(tmp_path, "stop")
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(number)
        _, words = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 143, words
    assert words.count("neocpu: stopped by a signal\n") == words.count("neocpu: ") == 1


LONG_MESSAGE = """
import os
import numpy as np
from neocpu.parallel.transport.launch import get_comm

comm = get_comm(windows="off")
there = np.array([0, 8 << 20][:: 1 - 2 * comm.rank], np.int64)
into = np.empty(8 << 20, np.uint8)
comm.alltoallv(np.full(8 << 20, comm.rank, np.uint8), there, into, there)
assert (into == 1 - comm.rank).all()
assert os.environ["MPIR_CVAR_CH4_CMA_ENABLE"] == "0"
"""


@pytest.mark.usefixtures("mpiexec")
@pytest.mark.parametrize("own", [["--user"], ["--pid", "--fork", "--mount-proc"]], ids=" ".join)
def test_ranks_in_containers_of_their_own_send_long_messages(own: list[str]) -> None:
    command, environment = mpiexec_command(2, ["-c", LONG_MESSAGE])
    if is_open_mpi(find_mpiexec()):
        pytest.skip("Open MPI finds out by itself")
    users = [] if os.geteuid() == 0 or own == ["--user"] else ["--user", "--map-root-user"]
    box = ["unshare", *users, *own]
    if shutil.which("unshare") is None or ran([*box, "true"]).returncode:
        pytest.skip(f"this system allows no namespaces (`{' '.join(box)}`)")
    command[3:3] = box
    done = ran(command, env=environment, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("refused", "users", "reads"),
    [
        ((), "0 1000 1", True),
        ((1,), "0 0 4294967295", True),  # as Slurm's launcher is root's
        ((1,), "0 1000 1", False),
        ((os.getpid(),), "0 0 4294967295", False),
    ],
    ids=["same container", "other user", "other container", "filter"],
)
def test_who_may_read_other_ranks(
    alone: pytest.MonkeyPatch, refused: tuple[int, ...], users: str, reads: bool
) -> None:
    alone.setattr(stale, "_launcher", lambda: stale._Process(1, "mpiexec", 0, ""))
    alone.setattr(stale, "_may_read", lambda process: process not in refused)
    alone.setattr(Path, "read_text", lambda path: users)
    assert stale._reads_others() is reads


def test_nobody_watches_ranks_whose_parent_is_a_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "from neocpu.parallel.transport.stale import _parent_launches; print(_parent_launches())"
    for name, launches in (("hydra_pmi_proxy", True), ("bash-of-a-user", False)):
        program = tmp_path / name  # its children see this name
        program.symlink_to(shutil.which("bash") or "/bin/bash")
        done = ran([str(program), "-c", f"{sys.executable} -c '{body}'; true"], check=True)
        assert done.stdout.strip() == str(launches)


def test_ranks_end_with_their_launcher_and_not_with_its_parent(tmp_path: Path) -> None:
    """A rank whose launcher is an orphan itself runs on, and ends when the launcher is killed."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("this system does not show processes")
    rank = tmp_path / "rank.py"
    rank.write_text(
        "import os, time\n"
        "from neocpu.parallel.transport import stale\n"
        "stale.EVERY = 0.02\n"
        "assert stale.end_with_launcher()\n"
        "print(os.getpid(), os.getppid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    launcher = tmp_path / "prterun"  # its children see this name
    launcher.symlink_to(shutil.which("bash") or "/bin/bash")
    running = subprocess.Popen(
        ["sh", "-c", f"{launcher} -c '{sys.executable} {rank}; true' & exec sleep 0.5"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    number, parent = map(int, running.stdout.readline().split())
    try:
        running.wait(timeout=60)  # the parent of the launcher
        time.sleep(0.2)
        assert stale._look(number) is not None
        os.kill(parent, signal.SIGKILL)
        assert running.stdout.read() == ""  # the end of the rank, which had it open
    finally:
        running.stdout.close()
        if stale._look(number) is not None:
            os.kill(number, signal.SIGKILL)
