"""Does `neocpu doctor` see what is wrong and say what to do?"""

import hashlib
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from neocpu.cli import doctor as file
from neocpu.cli.doctor import (
    Check,
    check_cpu,
    check_folders,
    check_machine,
    check_mpi,
    check_pages,
    check_threads,
    doctor,
    try_mpi,
)
from neocpu.cli.screen import doctor_host
from neocpu.core import cores
from neocpu.core.errors import EnvironmentProblem
from neocpu.kernels.compile import cache as kernel_cache
from neocpu.kernels.compile import threads as kernel_threads
from neocpu.parallel.transport import launch
from neocpu.parallel.transport.comm import SingleComm
from neocpu.plan.machines import machine_file

ALONE = SingleComm()


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*launch.SIZES, "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_every_topic_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "try_mpi", lambda mpiexec: Check("MPI", "ok", "two ranks met"))
    result = CliRunner().invoke(doctor)
    for topic in (
        "MPI",
        "cores per rank",
        "threading layer",
        "FMA",
        "huge pages",
        "kernel cache",
        "disk",
        "memory",
        "machine file",
    ):
        assert (
            sum(line[7:].startswith(topic.ljust(18)) for line in result.output.splitlines()) == 1
        ), topic
    assert result.exit_code in (0, 1)


def test_real_ranks_meet(mpiexec: Path) -> None:
    check = try_mpi(mpiexec)
    assert check.state == "ok", check
    assert "two ranks met" in check.finding


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mpiexec"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("echo '<1|Other MPI>'; echo '<1|Other MPI>'", "is not the launcher of Other MPI"),
        ("echo 'no slots' >&2; exit 3", "no slots"),
        ("exit 3", "exit status 3"),
        ("sleep 30", "timed out"),
    ],
)
def test_a_wrong_mpi_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, finding: str
) -> None:
    path = script(tmp_path, text)
    monkeypatch.setattr(launch, "find_mpiexec", lambda: path)
    check = try_mpi(path, seconds=2)
    assert check.state == "bad"
    assert finding in check.finding
    assert check.advice


def test_without_mpi_one_rank_can_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise EnvironmentProblem('`pip install "neocpu[mpi]"`')

    monkeypatch.setattr(file, "find_mpiexec", missing)
    (check,) = check_mpi(ALONE, 1)
    assert (check.state, check.advice) == ("warn", '`pip install "neocpu[mpi]"`')


def test_threads_and_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert next(check_threads(ALONE, 1)).state == "ok"
    assert next(check_threads(ALONE, 10_000)).state == "warn"
    monkeypatch.setattr(kernel_threads, "threading_layer", lambda: "workqueue")
    assert list(check_threads(ALONE, 1))[1].state == "warn"


def test_fma(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, flags, state in (
        ("x86_64", {"fma", "avx2"}, "ok"),
        ("x86_64", {"sse2"}, "bad"),
        ("aarch64", {"asimd"}, "ok"),
        ("x86_64", None, "ok"),
    ):
        monkeypatch.setattr(file.platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(file, "cpu_flags", lambda flags=flags: flags)
        assert next(check_cpu(ALONE, 1)).state == state


def test_a_cache_that_cannot_be_written_is_bad(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("NEOCPU_CACHE_DIR", str(tmp_path / "file"))
    cache, disk = check_folders(ALONE, 1)
    assert cache.state == "bad"
    assert "NEOCPU_CACHE_DIR" in cache.advice
    assert disk.topic == "disk"


def test_a_read_only_cache_is_told_with_the_kernels_that_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setenv("NEOCPU_CACHE_DIR", str(tmp_path))
    assert next(check_folders(ALONE, 1)).state == "ok"
    kernel_file = kernel_cache.cache_folder() / "loss.bce-0.nbc"
    kernel_file.write_bytes(kernel_cache.MAGIC + hashlib.sha256(b"").digest())
    (kernel_cache.cache_folder() / "damaged.nbc").touch()
    check = next(check_folders(ALONE, 1))
    assert check.state == "warn"
    assert "1 kernels" in check.finding
    assert "1 files cannot be used, for example damaged.nbc" in check.finding
    monkeypatch.setattr(kernel_cache, "write", refuse)
    check = next(check_folders(ALONE, 1))
    assert check.state == "warn"
    assert "1 kernels" in check.finding and "cannot be written" in check.finding


def test_a_cache_that_others_can_write_is_bad(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NEOCPU_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o777)
    check = next(check_folders(ALONE, 1))
    assert check.state == "bad"
    assert f"{tmp_path}: everybody can write to it" in check.finding
    assert "NEOCPU_CACHE_DIR" in check.advice


def test_huge_pages_are_asked_for() -> None:
    assert next(check_pages(ALONE, 1)).topic == "huge pages"


def test_the_machine_file_is_shown_with_its_age(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NEOCPU_CACHE_DIR", str(tmp_path))
    (check,) = check_machine(ALONE, 1)
    assert (check.state, check.finding) == ("ok", "none; `neocpu calibrate` measures this machine")
    path = machine_file.this_machine_path()
    machine_file.save(path, machine_file.text(machine_file.load("fat-tree")))
    os.utime(path, (time.time() - 3 * 86400 - 60, time.time() - 3 * 86400 - 60))
    (check,) = check_machine(ALONE, 1)
    assert check.state == "ok"
    assert check.finding.startswith(f"{path}, 3 day(s) old: products 14,000 GFLOP/s, lookups")
    path.write_text("nodes = 0")
    (check,) = check_machine(ALONE, 1)
    assert check.state == "warn"
    assert "nodes: 0 is too small" in check.finding and "neocpu calibrate" in check.advice


@pytest.mark.parametrize(
    ("host_cores", "quota", "threads", "state", "advice"),
    [
        ([{0, 1, 2, 3}], 99.0, 4, "ok", ""),
        ([{0, 1, 2, 3}], 99.0, 8, "warn", "use 4 thread(s) per rank"),
        ([{0, 1, 2, 3}] * 2, 2.0, 2, "warn", "use 1 thread(s) per rank"),
        ([{0, 1}] * 3, 99.0, 1, "warn", "start 2 rank(s) on this host"),
        ([{0}, {1}], 99.0, 1, "warn", "mpiexec --bind-to none"),
    ],
)
def test_what_to_do_about_cores(
    monkeypatch: pytest.MonkeyPatch,
    host_cores: list[set[int]],
    quota: float,
    threads: int,
    state: str,
    advice: str,
) -> None:
    monkeypatch.setattr(file, "_cores_of_ranks", lambda comm: host_cores)
    monkeypatch.setattr(file, "core_quota", lambda: quota)
    monkeypatch.setattr(file.os, "cpu_count", lambda: 4)
    check = next(check_threads(ALONE, threads))
    assert check.state == state and advice in check.advice


def test_variables_that_ask_for_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_THREAD_LIMIT", raising=False)
    assert not list(file.check_requested_threads(4, "4", 4))
    (check,) = file.check_requested_threads(64, "64", 4)
    assert "NUMBA_NUM_THREADS=64" in check.finding and "unset" in check.advice
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    (check,) = file.check_requested_threads(4, "", 4)
    assert "OMP_THREAD_LIMIT=1" in check.finding


def test_fewer_cores_than_the_slurm_job_has_for_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_THREAD_LIMIT", raising=False)
    monkeypatch.setattr(file, "available", lambda: {3})
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    assert not list(file.check_requested_threads(1, "", 4))
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    (check,) = file.check_requested_threads(1, "", 4)
    assert "may use 1 core(s)" in check.advice and "srun --cpus-per-task=8" in check.advice


def test_the_worst_that_ranks_of_a_host_found_and_other_versions_are_told() -> None:
    fine = {"topic": "disk", "state": "ok", "finding": "much"}
    little = {"topic": "disk", "state": "warn", "finding": "little"}
    messages = [["a", "1", [fine]], ["a", "1", [little]], ["b", "2", [fine]]]
    first, second = file.summed_up(messages)
    assert first == ("a", "1", [Check("disk", "warn", "little")])
    assert [check.state for check in second[2]] == ["ok", "bad"]
    assert "not those of rank 0: 2" in second[2][1].finding


def test_shared_memory_and_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = doctor_host.shutil.disk_usage("/")
    for total, free, inside, advice in (
        (64 << 20, 64 << 20, True, "--shm-size"),
        (64 << 20, 64 << 20, False, "remount"),
        (8 << 30, 1 << 20, False, "remove what"),
        (8 << 30, 8 << 30, False, ""),
    ):
        size = usage._replace(total=total, free=free)
        monkeypatch.setattr(doctor_host.shutil, "disk_usage", lambda path, size=size: size)
        monkeypatch.setattr(doctor_host, "in_container", lambda inside=inside: inside)
        (check,) = doctor_host.check_shared_memory(ALONE, 1)
        assert advice in check.advice and bool(advice) == (check.state == "warn")
    unlimited = doctor_host.resource.RLIM_INFINITY
    (tmp_path / "overcommit").write_text("2\n")
    for space, files, mode, advice in (
        (1 << 30, 1024, "none", "ulimit -v unlimited"),
        (unlimited, 1024, "overcommit", "vm.overcommit_memory=0"),
        (unlimited, 64, "none", "ulimit -n"),
        (unlimited, 1024, "none", ""),
    ):
        limits = {doctor_host.resource.RLIMIT_AS: space, doctor_host.resource.RLIMIT_NOFILE: files}
        monkeypatch.setattr(
            doctor_host.resource, "getrlimit", lambda name, limits=limits: (limits[name], 0)
        )
        monkeypatch.setattr(doctor_host, "OVERCOMMIT", tmp_path / mode)
        (check,) = doctor_host.check_limits(ALONE, 1)
        assert advice in check.advice and bool(advice) == (check.state == "warn")


def test_limits_of_jobs_and_containers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cores, "GROUPS", tmp_path)
    monkeypatch.setattr(cores, "MEMBERSHIP", tmp_path / "membership")
    assert cores.core_quota() == cores.memory_left() == cores.memory_limit() == float("inf")

    def write(folder: str, **files: str) -> None:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / folder / name.replace("__", ".")).write_text(text + "\n")

    write(".", membership="0::/job/step")
    write("job", cpu__max="150000 100000", memory__max="3000", memory__current="1000")
    write("job", memory__stat="anon 900\ninactive_file 100")
    write("job/step", cpu__max="max 100000", memory__max="max", memory__current="1000")
    assert (cores.core_quota(), cores.memory_left(), cores.memory_limit()) == (1.5, 2100, 3000)
    # the lower one of two limits, or the only one, and which of them kills
    write("job/step", memory__high="1700")
    assert (cores.memory_left(), cores.memory_limit()) == (700, 1700)
    assert cores.memory_limit(cores.KILLING) == 3000
    write("job/step", memory__high="max")
    write(".", membership="4:memory:/job\n1:cpu,cpuacct:/job")
    write("memory/job", memory__limit_in_bytes="500", memory__usage_in_bytes="600")
    write("memory", memory__limit_in_bytes=str(2**63 - 4096), memory__usage_in_bytes="600")
    write("cpu,cpuacct/job", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert (cores.core_quota(), cores.memory_left()) == (float("inf"), 0)
    write("cpu,cpuacct/job", cpu__cfs_quota_us="50000")
    assert cores.core_quota() == 0.5


def test_processes_that_limits_have_ended_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cores, "GROUPS", tmp_path)
    monkeypatch.setattr(cores, "MEMBERSHIP", tmp_path / "membership")
    assert cores.memory_kills() == 0
    for membership, folder, limit, used, counts in (
        ("0::/job", "job", "memory.max", "memory.current", "memory.events"),
        ("0::/job2", "job2", "memory.max", "memory.current", "memory.events.local"),
        (
            "4:memory:/job",
            "memory/job",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "memory.oom_control",
        ),
    ):
        (tmp_path / "membership").write_text(f"{membership}\n")
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / limit).write_text("3000\n")
        (tmp_path / folder / used).write_text("1000\n")
        assert cores.memory_kills() == 0
        # of version 2 the first two, of version 1 the last two
        (tmp_path / folder / counts).write_text("max 5\noom 2\nunder_oom 1\noom_kill 2\n")
        assert cores.memory_kills() == 2


def test_want_of_memory_of_the_whole_host_is_no_limit_of_a_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cores, "GROUPS", tmp_path)
    monkeypatch.setattr(cores, "MEMBERSHIP", tmp_path / "membership")
    (tmp_path / "membership").write_text("0::/job\n")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "memory.max").write_text("3000\n")
    (tmp_path / "job" / "memory.current").write_text("1000\n")
    # as Linux 6.1 wrote it where the host's own killer had taken a process of the group
    (tmp_path / "job" / "memory.events").write_text("high 0\nmax 0\noom 0\noom_kill 1\n")
    assert cores.memory_kills() == 0


def test_machines_that_were_copied_are_two_hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = []
    for boot in ("one", "other", "one"):
        (tmp_path / boot).write_text(f"{boot}\n")
        monkeypatch.setattr(cores, "BOOT", tmp_path / boot)
        keys.append(cores.host_key())
    # name, /dev/shm and process numbers are the same in all three
    assert keys[0] == keys[2] != keys[1]
    monkeypatch.setattr(cores, "BOOT", tmp_path / "none")
    assert cores.host_key() and launch.host_name()
