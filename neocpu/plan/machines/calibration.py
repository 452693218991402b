"""How does what was measured become a machine? Jobs of 1, 2, 4 ranks, their curves in one file."""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeVar

from neocpu import __version__
from neocpu.core.cores import available, usable_memory
from neocpu.core.errors import ConfigError, EnvironmentProblem
from neocpu.parallel.transport.hosts import HostRanks
from neocpu.parallel.transport.launch import core_quota, find_mpiexec, launched, mpiexec_command
from neocpu.plan.machines import machine_file
from neocpu.plan.machines.machine import (
    COLUMNS,
    EMBEDDING_WORK,
    ComputePeak,
    EmbeddingRates,
    LinkPeak,
    Machine,
    MemoryPeak,
    MoveRates,
    PhaseCosts,
    ProductRates,
    TransferRates,
)

JOB = "neocpu.plan.machines.measure"
RANKS = (2, 4)  # of the jobs under mpiexec
FIRST_LIMIT = 600.0  # seconds of the job that compiles kernels
LIMIT = 300.0  # seconds of each other job
PATIENCE = 5.0  # seconds from asking a job to end until it is killed
TOPICS = 5  # that a job tells
Curved = TypeVar("Curved", ProductRates, EmbeddingRates, TransferRates, MoveRates)
# tell(ranks of the job, topic)
Tell = Callable[[int, str], None]


@dataclass(frozen=True)
class Measured:
    """What one job measured: the fields of its curves by kind, as JSON has them, and facts."""

    curves: Mapping[str, Any]
    facts: dict[str, float]

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return int(self.facts["ranks"])


def calibrate(
    effort: str = "full",
    ranks: Sequence[int] = RANKS,
    folder: Path | None = None,
    tell: Tell = lambda ranks, topic: None,
    hosts: Sequence[HostRanks] = (),
) -> str:
    """Measure this machine, and the links between hosts; the text of its file.

    effort : "full" or "quick". ranks : of the jobs under mpiexec, besides a job of one; none where
        there is no MPI. folder : on the disk that plays the SSD (None: the current one). hosts :
        whose links are measured, like this one, with equal numbers of ranks; none: one node.

    Raises ConfigError inside an MPI job, and for a folder or hosts that cannot be used,
    EnvironmentProblem for a job that failed or took too long.
    """
    folder = folder or Path()
    each = {host.ranks for host in hosts}
    if len(each) > 1 or len(hosts) == 1:
        raise ConfigError(
            "links are measured between two hosts or more with equal numbers of ranks, as "
            "--hosts node1:8,node2:8"
        )
    jobs = run_jobs(effort, (1, *ranks, *each), folder, tell)
    disk = shutil.disk_usage(folder).free
    machine = assemble(jobs, usable_memory(), disk, _cores())
    if hosts:
        total = sum(host.ranks for host in hosts)
        links = _job(total, "full", folder, LIMIT, tell, hosts=hosts)  # seconds, and noisy ones
        machine = with_links(machine, links, len(hosts))
    return _text(machine, jobs, hosts)


def run_jobs(
    effort: str, ranks: Sequence[int], folder: Path, tell: Tell, module: str = JOB
) -> list[Measured]:
    """What jobs of so many ranks measured, one rank alone where there is no MPI.

    module : of the job, with the arguments of `measure`. Errors as of `calibrate`.
    """
    # ranks of a job cannot start jobs of their own with every MPI
    if launched():
        raise ConfigError("calibrate starts its ranks itself; run it without mpiexec or srun")
    try:
        # in the folder itself, because its disk is what is measured
        scratch = tempfile.mkdtemp(prefix=".neocpu-calibrate-", dir=folder)
    except OSError as error:
        raise ConfigError(
            f"{folder}: no file can be written there ({error.strerror}); choose another --folder, "
            "on the disk that would play the SSD"
        ) from error
    try:
        jobs: list[Measured] = []
        # one rank first: it compiles the kernels that the others load
        for count in sorted(set(ranks)) if _has_mpi() else (1,):
            limit = LIMIT if jobs else FIRST_LIMIT
            jobs.append(_job(count, effort, Path(scratch), limit, tell, module))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return jobs


def _has_mpi() -> bool:
    try:
        find_mpiexec()
    except EnvironmentProblem:
        return False
    return True


def _job(
    ranks: int,
    effort: str,
    scratch: Path,
    limit: float,
    tell: Tell,
    module: str = JOB,
    hosts: Sequence[HostRanks] = (),
) -> Measured:
    """Run one job to its end, or kill it after `limit` seconds."""
    arguments = ["-m", module, str(scratch), effort]
    command = [sys.executable, *arguments]
    environment = dict(os.environ)
    if ranks > 1:
        command, environment = mpiexec_command(ranks, arguments, hosts)
    # into a file: a pipe that nobody reads would block a job that says much
    with tempfile.TemporaryFile() as errors:
        return _result(command, environment, errors, ranks, limit, tell)


def _result(
    command: Sequence[str],
    environment: Mapping[str, str],
    errors: IO[bytes],
    ranks: int,
    limit: float,
    tell: Tell,
) -> Measured:
    """What a job prints at last."""
    job = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        # a group of its own, so that a signal reaches mpiexec with all its ranks
        start_new_session=True,
    )
    assert job.stdout is not None
    lines = job.stdout
    result = ""

    def listen() -> None:
        nonlocal result
        for line in lines:
            if line.startswith("{"):
                result = line
            else:
                tell(ranks, line.strip())

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    title = f"the measurement on {ranks} rank(s)"
    try:
        status = job.wait(limit)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentProblem(
            f"{title} did not end within {limit:.0f} s and was stopped; `neocpu doctor` looks for "
            "what may be wrong, and --ranks chooses other numbers of ranks"
        ) from error
    finally:
        _end(job)
        listener.join(PATIENCE)
        lines.close()
    if status or not result:
        errors.seek(0)
        complaints = errors.read().decode(errors="replace").strip().splitlines()
        why = complaints[-1] if complaints else f"exit status {status}"
        raise EnvironmentProblem(f"{title} failed: {why}")
    measured = json.loads(result)
    facts = measured.pop("facts")
    return Measured(measured, facts)


def _end(job: "subprocess.Popen[str]") -> None:
    """End a job that still runs, and all its ranks; politely first, as mpiexec passes it on."""
    if job.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(job.pid, number)
        with suppress(subprocess.TimeoutExpired):
            # mpiexec needs a moment to end its ranks before it is killed itself
            job.wait(PATIENCE)


# ---- the machine ----


def assemble(jobs: Sequence[Measured], memory: int, disk: int, cores: int) -> Machine:
    """The machine whose ranks jobs measured; peaks are the best rates that were achieved.

    memory, disk : bytes of this host. cores : that may be used; the machine has as many ranks as
        the largest job without two ranks on a core.
    """
    # ranks that shared a core measured their competition, not the machine
    fitting = [job.ranks for job in jobs if job.ranks <= cores]
    ranks = max(fitting, default=1)
    machine = Machine(
        name=machine_file.THIS_MACHINE,
        origin=f"measured {datetime.now(UTC):%Y-%m-%d} by neocpu {__version__}: {cpu_name()}",
        nodes=1,
        ranks_per_node=ranks,
        products=_collect(ProductRates, jobs, "products"),
        embeddings=_collect(EmbeddingRates, jobs, "embeddings"),
        transfers=_collect(TransferRates, jobs, "transfers"),
        moves=_collect(MoveRates, jobs, "moves"),
        phases=tuple(PhaseCosts(**costs) for job in jobs for costs in job.curves.get("phases", ())),
    )
    copies = [t for t in machine.transfers if t.operation == "copy"]
    reads = [m for m in machine.moves if (m.memory, m.operation) == ("ssd", "read")]
    copy = next(t for t in copies if t.ranks == ranks)
    exchanges = [t for t in machine.transfers if t.operation == "alltoallv"]
    inside = LinkPeak()
    if ranks > 1:
        exchange = next(t for t in exchanges if t.ranks == ranks)
        inside = LinkPeak(
            max(max(t.bytes_per_s) for t in exchanges),
            _rounded(exchange.message_bytes[0] / exchange.bytes_per_s[0]),
        )
    products = [p for p in machine.products if p.ranks == ranks]
    largest = next(job for job in jobs if job.ranks == ranks)
    return replace(
        machine,
        hbm=MemoryPeak(
            capacity_bytes=memory,
            # a copy reads and writes each byte
            bandwidth_bytes_per_s=_rounded(max(2 * t.ranks * t.bytes_per_s[-1] for t in copies)),
            shared="node",
        ),
        ssd=MemoryPeak(
            capacity_bytes=disk,
            bandwidth_bytes_per_s=_rounded(max(m.ranks * max(m.bytes_per_s) for m in reads)),
            operations_per_s=_rounded(
                max(m.ranks * m.bytes_per_s[-1] / m.record_bytes[-1] for m in reads)
            ),
            latency_s=_rounded(jobs[0].facts["ssd_latency_s"]),
            shared="node",
        ),
        host_device=LinkPeak(
            max(copy.bytes_per_s), _rounded(copy.message_bytes[0] / copy.bytes_per_s[0])
        ),
        inside_node=inside,
        compute=ComputePeak(
            launch_s=_rounded(largest.facts["launch_s"]),
            fp32_flops_per_s=max(max(p.flops_per_s) for p in products),
        ),
    )


def with_links(machine: Machine, links: Measured, nodes: int) -> Machine:
    """The machine as one of so many nodes, whose links a job on hosts measured."""
    curves = _collect(TransferRates, [links], "transfers")
    exchange = next(curve for curve in curves if curve.operation == "alltoallv")
    return replace(
        machine,
        nodes=nodes,
        ranks_per_node=links.ranks // nodes,
        transfers=(*machine.transfers, *curves),
        between_nodes=LinkPeak(
            max(exchange.bytes_per_s),
            _rounded(exchange.message_bytes[0] / exchange.bytes_per_s[0]),
        ),
    )


def _collect(kind: type[Curved], jobs: Sequence[Measured], name: str) -> tuple[Curved, ...]:
    """The curves of one kind from all jobs, their rates rounded."""
    sizes, rates = COLUMNS[kind]
    curves = []
    for job in jobs:
        for curve in job.curves[name]:
            columns = {sizes: tuple(curve[sizes]), rates: tuple(map(_rounded, curve[rates]))}
            curves.append(kind(**(curve | columns)))
    return tuple(curves)


def _rounded(value: float) -> float:
    """Four digits, which is more than a measurement has."""
    return float(f"{value:.4g}")


def _text(machine: Machine, jobs: Sequence[Measured], hosts: Sequence[HostRanks]) -> str:
    """The file of a machine that was measured. Raises ConfigError if it could not be read again."""
    threads = ", ".join(f"{job.ranks} of {job.facts['threads']:.0f} thread(s)" for job in jobs)
    heading = [
        "This machine, as `neocpu calibrate` measured it: least times of several tries, each the",
        f"slowest rank's. Ranks that ran together: {threads}.",
        "Peaks are the best rates achieved. docs/zionex.md of neocpu describes the format.",
    ]
    notes = {
        "hbm": "DRAM plays HBM and DDR",
        "hbm.capacity_bytes": "all memory of this host",
        "hbm.bandwidth_bytes_per_s": "large copies of all ranks, each byte read and written",
        "ddr": "in the same memory as hbm; [[moves]] tell what moving rows costs",
        "ssd.capacity_bytes": "was free on its disk",
        "ssd.operations_per_s": "records of the largest size, which share no page",
        "ssd.latency_s": "one record that is not in the page cache",
        "host_device": "copies in memory",
        "inside_node": "alltoallv between processes",
        "between_nodes": f"{len(hosts)} hosts, all ranks at work" if hosts else "not measured",
    }
    text = machine_file.text(machine, heading, notes)
    # read back, so that no file is written that a run could not read
    machine_file.loads(text, machine_file.THIS_MACHINE)
    return text


# ---- this host ----


def _cores() -> int:
    """Cores that ranks may use, at most what the container's share of time amounts to."""
    return max(1, int(min(len(available()), core_quota())))


def cpu_name() -> str:
    """The processor's name as Linux tells it, else its architecture."""
    try:
        match = re.search(
            r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
    except OSError:
        match = None
    name = match.group(1).strip() if match else platform.machine()
    return f"{name}, {_cores()} core(s)"


# ---- what a person wants to see ----


def figures(machine: Machine) -> list[tuple[str, str]]:
    """(what, how much) of the main figures of a machine, of one rank while all ranks work."""
    rows = max((rates.rows for rates in machine.embeddings), default=1_000_000)
    side = int(max((p.smallest_side[-1] for p in machine.products), default=1024))
    shown = [("products", f"{_short(machine.product_flops_per_s(side, side, side) / 1e9)} GFLOP/s")]
    for work in EMBEDDING_WORK:
        rate = machine.embedding_bytes_per_s(work, rows, 512)
        shown.append((f"{work}s of 512-byte rows", f"{_short(rate / 1e9)} GB/s"))
    for link, ranks, where in (
        ("inside_node", machine.ranks_per_node, "inside a node"),
        ("between_nodes", machine.ranks, "between nodes"),
    ):
        if getattr(machine, link).bandwidth_bytes_per_s and ranks > 1:
            seconds = machine.transfer_seconds("alltoallv", link, ranks, 1 << 20)
            shown.append((f"1 MiB alltoallv {where}", f"{_short(seconds * 1e6)} us"))
    if machine.ssd.capacity_bytes:
        records = 1000 / float(machine.move_seconds("ssd", "read", 1000, 512))
        shown.append(("512-byte records from SSD", f"{_short(records / 1e6)} M/s"))
    return shown


def _short(value: float) -> str:
    """Three digits, and no exponent: 14,000."""
    return f"{float(f'{value:.3g}'):,.12g}"
