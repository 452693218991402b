"""Does `neocpu calibrate` measure this machine, end what hangs, and write a file that is read?"""

import os
import re
import signal
import sys
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from neocpu.cli.calibrate import calibrate
from neocpu.core.errors import ConfigError, EnvironmentProblem
from neocpu.parallel.transport import launch
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.hosts import HostRanks
from neocpu.plan.machines import calibration, machine_file
from neocpu.plan.machines.calibration import Measured, assemble
from neocpu.plan.machines.machine import (
    COLUMNS,
    EMBEDDING_WORK,
    MOVES,
    PRODUCTS,
    EmbeddingRates,
    Machine,
    MoveRates,
    ProductRates,
    TransferRates,
)
from neocpu.plan.machines.measure.timing import EFFORTS, Stopwatch


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*launch.SIZES, "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)


def all_rates(machine: Machine) -> list[float]:
    """Every rate of every curve."""
    curves = [*machine.products, *machine.embeddings, *machine.transfers, *machine.moves]
    return [rate for curve in curves for rate in getattr(curve, COLUMNS[type(curve)][1])]


def test_a_quick_calibration_writes_a_machine_whose_rates_are_positive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "here" / "machine.toml"
    told: Counter[int] = Counter()
    monkeypatch.setattr(
        "neocpu.cli.calibrate.progress",
        lambda jobs: nullcontext(lambda ranks, topic: told.update([ranks])),
    )
    result = CliRunner().invoke(
        calibrate, ["--quick", "--ranks", "2", "--out", str(path), "--folder", str(tmp_path)]
    )
    assert result.exit_code == 0, (result.output, result.exception)
    assert f"written to {path}" in result.output
    machine = machine_file.load(path)
    assert min(all_rates(machine)) > 0
    jobs = {1, 2} if calibration._has_mpi() else {1}
    assert told == dict.fromkeys(jobs, calibration.TOPICS)
    heights = EFFORTS["quick"].heights
    for ranks in jobs:
        assert {p.product for p in machine.products if p.ranks == ranks} == set(PRODUCTS)
        embeddings = {(e.work, e.rows) for e in machine.embeddings if e.ranks == ranks}
        assert embeddings == {(work, rows) for work in EMBEDDING_WORK for rows in heights}
        collectives = {t.operation for t in machine.transfers if t.ranks == ranks}
        expected = {"alltoall", "alltoallv", "allgatherv"} if ranks > 1 else set()
        assert collectives == expected | {"copy"}
        moves = {(m.memory, m.operation) for m in machine.moves if m.ranks == ranks}
        assert moves == {(memory, move) for memory in ("ddr", "ssd") for move in MOVES}
    assert machine.compute.launch_s > 0 and machine.compute.fp32_flops_per_s > 0
    assert machine.ssd.latency_s > 0 and machine.hbm.capacity_bytes > 0
    assert list(tmp_path.iterdir()) == [path.parent], "files of the measurement are left"


# ---- jobs that fail ----


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def runs(pid: int) -> bool:
    """Is there a process of this number that is not a zombie?"""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc for processes")
def test_a_job_that_hangs_is_killed_with_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # neither the launcher nor its rank ends when asked to
    hang = f"trap '' TERM; sleep 100 & echo $! > {tmp_path}/pid; wait; wait; sleep 100"
    program = script(tmp_path, hang)
    monkeypatch.setattr(calibration, "mpiexec_command", lambda *_: ([str(program)], None))
    monkeypatch.setattr(calibration, "PATIENCE", 0.5)
    with pytest.raises(EnvironmentProblem, match=r"on 2 rank\(s\) did not end within 1 s"):
        calibration._job(2, "quick", tmp_path, 1.0, lambda ranks, topic: None)
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 20
    while runs(pid) and time.monotonic() < end:
        time.sleep(0.05)
    if runs(pid):
        os.kill(pid, signal.SIGKILL)
        raise AssertionError("a rank survived")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo one >&2; echo no slots >&2; exit 3", "no slots"),
        ("exit 3", "exit status 3"),
        ("", ""),
    ],
)
def test_a_job_that_fails_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    monkeypatch.setattr(sys, "executable", str(script(tmp_path, text)))
    with pytest.raises(EnvironmentProblem, match=rf"on 1 rank\(s\) failed: .*{re.escape(why)}"):
        calibration._job(1, "quick", tmp_path, 60.0, lambda ranks, topic: None)


def test_topics_of_a_job_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = '{"facts": {"ranks": 1}}'
    program = script(tmp_path, f"echo products; echo copies; echo '{result}'")
    monkeypatch.setattr(sys, "executable", str(program))
    told: list[tuple[int, str]] = []
    measured = calibration._job(
        1, "quick", tmp_path, 60.0, lambda ranks, topic: told.append((ranks, topic))
    )
    assert told == [(1, "products"), (1, "copies")]
    assert measured.ranks == 1


def test_it_does_not_run_inside_a_job_or_without_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        machine_file.check_writable(tmp_path / "file" / "machine.toml")
    with pytest.raises(ConfigError, match="choose another --folder"):
        calibration.calibrate(folder=tmp_path / "gone")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(ConfigError, match="run it without mpiexec"):
        calibration.calibrate(folder=tmp_path)


# ---- the machine that is put together ----


def job(ranks: int, speed: float) -> Measured:
    """A job with the same rate everywhere."""
    sizes = (64.0, 1e6)
    rates = (speed, 2 * speed)
    curves = {
        "products": [ProductRates("fp32", product, ranks, sizes, rates) for product in PRODUCTS],
        "embeddings": [EmbeddingRates(work, 100, ranks, sizes, rates) for work in EMBEDDING_WORK],
        "transfers": [TransferRates("copy", "host_device", ranks, sizes, rates)],
        "moves": [
            MoveRates(memory, operation, ranks, sizes, rates)
            for memory in ("ddr", "ssd")
            for operation in MOVES
        ],
    }
    if ranks > 1:
        curves["transfers"].append(TransferRates("alltoallv", "inside_node", ranks, sizes, rates))
    facts = {"ranks": ranks, "threads": 1, "launch_s": 1e-6, "ssd_latency_s": 1e-4}
    return Measured({kind: [asdict(c) for c in some] for kind, some in curves.items()}, facts)


@pytest.mark.parametrize(("cores", "ranks"), [(1, 1), (2, 2), (3, 2), (4, 4), (64, 4)])
def test_the_machine_has_as_many_ranks_as_were_measured_on_cores_of_their_own(
    cores: int, ranks: int
) -> None:
    jobs = [job(1, 8e9), job(2, 4e9), job(4, 1e9)]
    machine = assemble(jobs, memory=1 << 30, disk=1 << 40, cores=cores)
    assert machine_file.loads(machine_file.text(machine)) == machine
    assert machine.ranks == ranks
    assert machine.hbm.capacity_bytes == 1 << 30 and machine.ssd.capacity_bytes == 1 << 40
    assert machine.hbm.bandwidth_bytes_per_s == 2 * 2 * 8e9  # two ranks of half the speed
    assert bool(machine.inside_node.bandwidth_bytes_per_s) == (ranks > 1)
    assert machine.compute.fp32_flops_per_s == 2 * {1: 8e9, 2: 4e9, 4: 1e9}[ranks]
    names = [what for what, _ in calibration.figures(machine)]
    assert ("1 MiB alltoallv inside a node" in names) == (ranks > 1)


def test_without_mpi_the_machine_is_one_rank() -> None:
    machine = assemble([job(1, 8e9)], 1 << 30, 1 << 40, cores=8)
    assert machine_file.loads(machine_file.text(machine)).ranks == 1


@pytest.mark.parametrize("name", machine_file.preset_names())
def test_every_preset_has_figures(name: str) -> None:
    for what, amount in calibration.figures(machine_file.load(name)):
        assert what and "inf" not in amount and "nan" not in amount


def test_a_call_that_must_be_prepared_is_timed_alone() -> None:
    events: list[str] = []
    watch = Stopwatch(SingleComm(), EFFORTS["quick"])
    seconds = watch.least(lambda: events.append("call"), lambda: events.append("prepare"))
    assert seconds > 0
    assert events == ["prepare", "call"] * (len(events) // 2)
    assert len(events) // 2 == 2 + EFFORTS["quick"].tries


# ---- links between hosts ----


def test_links_between_hosts_make_a_machine_of_nodes(tmp_path: Path) -> None:
    here = assemble([job(1, 8e9), job(2, 4e9)], memory=1 << 30, disk=1 << 40, cores=2)
    curve = TransferRates("alltoallv", "between_nodes", 6, (64.0, 1e6), (1e6, 5e6))
    links = Measured({"transfers": [asdict(curve)]}, {"ranks": 6, "threads": 1})
    machine = calibration.with_links(here, links, 3)
    assert machine_file.loads(machine_file.text(machine)) == machine
    assert (machine.nodes, machine.ranks_per_node) == (3, 2)
    assert machine.between_nodes.bandwidth_bytes_per_s == 5e6
    assert machine.between_nodes.latency_s == 64 / 1e6
    assert machine.transfer_seconds("alltoallv", "between_nodes", 6, 1e6) == pytest.approx(0.2)
    assert machine.inside_node == here.inside_node
    for hosts in ([HostRanks("a", 1), HostRanks("b", 2)], [HostRanks("a", 2)]):
        with pytest.raises(ConfigError, match="two hosts or more with equal numbers"):
            calibration.calibrate(folder=tmp_path, hosts=hosts)
