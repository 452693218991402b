"""Does a job on several hosts end as on one, and send over their links what it says?

The hosts are those of `hosts.py`: there is nothing but TCP between them, and no memory that they
share. Where a system does not let us make any, these tests are skipped.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from promise import Launch, committed, disagreements, outcomes
from promise_cases import FAMILIES, MEMORIES, Case, pairwise, product, write_data

from neocpu.kernels.compile.trust import base_folder
from neocpu.parallel.transport.hosts import HostRanks
from neocpu.parallel.transport.launch import mpiexec_command
from neocpu.plan.machines import machine_file
from tests.hosts import Host, Room, room, why_not

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT / "data" / "models" / "tiny.toml"
TRAIN = ROOT / "data" / "tiny-criteo-train.tsv.gz"
README = re.findall(r"^digest (\w{64})$", (ROOT / "README.md").read_text(), re.MULTILINE)[0]
DAYS = 16  # twice those of test_promise.py, which compiles the kernels of the same family then


@pytest.fixture(scope="module", autouse=True)
def possible(mpiexec: Path) -> None:
    """Skips where no hosts can be made, or there is no mpiexec."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def three() -> Iterator[Room]:
    """Three equal hosts."""
    with room([Host()] * 3) as hosts:
        yield hosts


def train(hosts: Room, *words: str, out: Path, **variables: str) -> dict[str, Any]:
    """What run.json says of the README's job; two ranks on each host, unless words say others."""
    command = [sys.executable, "-m", "neocpu", "train", str(TINY), "--out", str(out), *words]
    if "--hostfile" not in words:
        command += ["--hosts", ",".join(hosts.names), "--ranks", str(2 * len(hosts.names))]
    hosts.run(command, variables)
    return json.loads((out / "run.json").read_text())


def test_hosts_end_though_a_process_there_has_lost_its_parent() -> None:
    with room([Host()]) as hosts:
        agent = hosts.environment()["HYDRA_LAUNCHER_EXEC"]
        hosts.run(["sh", "-c", f"{agent} host0 sleep 0.8 & sleep 0.4; kill -9 $!; sleep 0.8"], {})


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.long(name, period=DAYS)) for name in FAMILIES]
)
def test_families_have_their_digests(family: str, three: Room, tmp_path: Path) -> None:
    write_data(tmp_path)
    launch = Launch("host", few_cases(family), {4: 4})
    launch.write(tmp_path)
    main = ["-m", "mpi4py", str(ROOT / "tests" / "promise_main.py"), str(tmp_path), launch.name]
    command, _ = mpiexec_command(4, main, [HostRanks("host0", 2), HostRanks("host1", 2)])
    three.run(command, {"NUMBA_NUM_THREADS": "2"})
    records = outcomes(launch, tmp_path)
    assert len(records) == len(launch.cases)
    assert not disagreements(records, committed())


def few_cases(family: str) -> list[Case]:
    """Runs of a family on two hosts: both ways of exchanging, towers on their nodes, memories."""
    cases = [case for case in pairwise(product((4,), family, MEMORIES)) if case.how != "elsewhere"]
    return cases[::12]


@pytest.mark.long
@pytest.mark.parametrize("alltoall", ["direct", "two_level"])
def test_links_carry_the_bytes_that_a_run_counts(
    alltoall: str, three: Room, tmp_path: Path
) -> None:
    before = [three.sent(number) for number in range(3)]
    summary = train(three, "--set", f"parallel.alltoall={alltoall}", out=tmp_path / "run")
    sent = sum(three.sent(number) for number in range(3)) - sum(before)
    assert summary["digest"] == README
    assert summary["ranks"] == 6 and summary["ranks_per_node"] == 2
    counted = sum(by_link["other_node"]["bytes"] for by_link in summary["traffic"].values())
    # headers of packets, and what the launcher has to say
    assert 1.0 < sent / counted < 1.05


@pytest.mark.long
def test_hosts_differ_in_cores_ranks_cpus_and_disks(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    older = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
    variables = older if platform.machine() in ("x86_64", "AMD64") else {}
    unequal = [Host(cores="0", disks=[disk]), Host(variables=variables, disks=[disk])]
    hostfile = tmp_path / "hosts"
    hostfile.write_text("host0 slots=1\nhost1 slots=3\n")
    rows = disk / "rows"
    levels = ["--set", "memory.placement=hbm_over_ddr_over_ssd", "--set", f"memory.folder={rows}"]
    windows = ["--set", "parallel.shared_windows=on", "--set", "parallel.alltoall=two_level"]
    local = {"NEOCPU_CACHE_DIR": str(disk / "kernels"), "NEOCPU_DATA_CACHE": str(disk / "data")}
    with room(unequal) as hosts:
        for number in (0, 1):  # with what is compiled already, so that it takes no minutes
            hosts.on_host(number, ["cp", "-r", str(base_folder()), str(disk / "kernels")])
        words = ["--hostfile", str(hostfile), *levels, *windows]
        summary = train(hosts, *words, out=tmp_path / "run", **local)
        # each host has made the folder on its own disk, and left nothing there
        left = [hosts.on_host(number, ["ls", "-A", str(rows)]) for number in (0, 1)]
    assert summary["digest"] == README
    assert summary["ranks"] == 4
    assert left == ["", ""]
    assert not rows.exists(), "rows were written to a disk that all hosts see"


@pytest.mark.long
def test_ranks_are_started_by_ssh(tmp_path: Path) -> None:
    """The real one, between the hosts; in the other tests a stand-in for it starts ranks."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if sshd is None:
        pytest.skip("no sshd: apt-get install openssh-server")
    for key in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / key)], check=True
        )
    (tmp_path / "sshd").write_text(
        f"HostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\n"
        "StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n"
    )
    ssh = tmp_path / "ssh"
    ssh.write_text(
        f"#!/bin/sh\nexec ssh -F none -i {tmp_path}/user -o BatchMode=yes "
        f'-o StrictHostKeyChecking=no -o UserKnownHostsFile={tmp_path}/known "$@"\n'
    )
    ssh.chmod(0o755)
    agents = {"HYDRA_LAUNCHER_EXEC": str(ssh), "PRTE_MCA_plm_ssh_agent": str(ssh)}
    with room([Host(disks=[Path("/run")])] * 2) as hosts:
        for number in (0, 1):
            start = f"mkdir /run/sshd; exec {sshd} -f {tmp_path}/sshd -E {tmp_path}/log{number}"
            hosts.on_host(number, ["sh", "-c", start])
        summary = train(hosts, out=tmp_path / "run", **agents)
    assert (summary["digest"], summary["ranks"]) == (README, 4)
    for number in (0, 1):
        assert "Accepted publickey" in (tmp_path / f"log{number}").read_text()


@pytest.mark.long
def test_calibrate_finds_the_rate_of_links(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    words = ["calibrate", "--quick", "--ranks", "2", "--out", str(path), "--folder", str(tmp_path)]
    with room([Host()] * 2, 1e8) as hosts:
        named = ["--hosts", ",".join(f"{name}:2" for name in hosts.names)]
        hosts.run([sys.executable, "-m", "neocpu", *words, *named], {})
    machine = machine_file.load(path)
    assert (machine.nodes, machine.ranks_per_node) == (2, 2)
    # two ranks share a link, and headers of packets are on it
    assert 0.7 < machine.between_nodes.bandwidth_bytes_per_s * 2 * 8 / 1e8 < 1


@pytest.mark.long
def test_hosts_without_a_disk_in_common(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    out = disk / "run"
    local = {"NEOCPU_DATA_CACHE": str(disk / "copies")}

    def run(hosts: Room, names: str, *words: str) -> str:
        command = [sys.executable, "-m", "neocpu", "train", str(TINY), "--out", str(out)]
        return hosts.run([*command, "--hosts", names, *words], local)

    with room([Host(disks=[disk])] * 2) as hosts:
        run(hosts, "host0:2,host1:2", "--set", "training.steps=60")
        assert hosts.on_host(1, ["ls", str(out / "checkpoints")]) == ""
        with pytest.raises(AssertionError, match="on host0 has checkpoints that rank 0 does not"):
            run(hosts, "host1:2,host0:2", "--resume")
        printed = run(hosts, "host0:1,host1:2", "--resume")
        left = hosts.on_host(1, ["ls", "-A", str(out / "checkpoints")])
    assert "resuming from step-00000060.h5" in printed
    assert f"digest {README}" in printed
    assert left == "", "checkpoints that were lent were kept"


@pytest.mark.long
def test_readers_are_on_hosts_that_have_the_log(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    log = logs / TRAIN.name
    shutil.copy(TRAIN, log)
    words = ("--readers", "4", "--set", f"data.train={log}", "--set", "readers.split=1")
    # what a config calls nodes says nothing of hosts
    words += ("--set", "parallel.ranks_per_node=16")
    with room([Host(), Host(), Host(disks=[logs])]) as hosts:
        summary = train(hosts, *words, out=tmp_path / "run")
    assert summary["digest"] == README
    readers = summary["readers"]["by_reader"]
    assert [each["name"] for each in readers] == [f"reader {n} on host{n // 2}" for n in range(4)]
    assert sum(each["samples"] for each in readers) == summary["samples"]


@pytest.mark.long
def test_a_run_goes_on_without_a_host_that_was_killed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["neocpu", "train", str(TINY), "--out", str(out), "--hosts", "host0:2,host1:1,host2:1"]
    words += ["--restarts", "3", "--set", "checkpoint.every_steps=10"]
    with room([Host()] * 3) as hosts:
        run = subprocess.Popen(
            hosts.command([sys.executable, "-m", *words]),
            env=hosts.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while len([*out.glob("checkpoints/step-*.h5")]) < 2:
            assert run.poll() is None, run.communicate()
            time.sleep(0.05)
        hosts.kill(1)
        printed, _ = run.communicate(timeout=900)
    assert run.returncode == 0, printed
    assert f"digest {README}" in printed
    assert "neocpu: host1 is left out (no process can be started there" in printed
    (restart,) = json.loads((out / "run.json").read_text())["restarts"]
    assert restart["ranks"] == 3 and list(restart["left_out"]) == ["host1"]
