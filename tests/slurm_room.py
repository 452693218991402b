"""How is neocpu tried on Slurm? On a cluster of two nodes, both on this machine.

    python -m tests.slurm_room [LINE ...]     # a cluster until its input ends: Ctrl-D

LINE is one more of its configuration, as SlurmdTimeout=20. Where the system allows it, each node
has a name and shared memory of its own.

Needs Slurm and MUNGE (`apt-get install slurm-wlm munge`), and no configuration of theirs: the
cluster has its own key, ports and state in a temporary folder. One process starts the daemons and
ends when its input does, so the cluster also goes when the test that holds the input is killed.
Slurm's jobs are nobody's children. What belongs to the cluster is known by the path of its
configuration, which all its daemons, jobs and ranks have in their environment.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from neocpu.parallel.transport.launch import mpiexec_command

ROOT = Path(__file__).resolve().parent.parent
INSTALL = "apt-get install slurm-wlm munge"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
NODES = ("one", "two")
# by name, that of a slurmd is its node's
DAEMONS = {"slurmctld": ("slurmctld", "-D")} | {
    node: ("slurmd", "-D", "-N", node) for node in NODES
}
# the first process of a node, in namespaces of its own
NODE = """
mount -t tmpfs tmpfs /dev/shm
mount --bind {folder}/addresses /etc/hosts
hostname {node}
echo $$ > {folder}/{node}.new
mv {folder}/{node}.new {folder}/{node}.first
exec sleep infinity
"""
CORES = 4  # of a node; Slurm is told so, whatever the machine has
PATIENCE = 30.0  # seconds for nodes to be idle
CONFIG_FILE = "slurm.conf"
MARK = "NEOCPU_SLURM_ROOM"  # set for the daemons
SECONDS = 300.0  # for a command, and for a job to change its state
# TmpFS: PMIx makes folders there that are named after jobs only
CONFIG = """\
ClusterName=neocpu
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
TmpFS={folder}/%n/tmp
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=pmi2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
KillWait=10
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cores}
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cores}
PartitionName=all Nodes=one,two Default=YES State=UP
"""
# as pip would have installed it
NEOCPU = """#!/bin/sh
exec {python} -m neocpu "$@"
"""


class Slurm:
    """A running cluster, by the path of its configuration.

    firsts : the first process of each node, by its name; {}: the system allows none.
    """

    def __init__(self, config: Path) -> None:
        self.config = config
        self.folder = config.parent
        self.firsts = firsts(self.folder)
        # no variables of a scheduler or launcher that the tests themselves run under
        _, environment = mpiexec_command(1, [])
        programs = os.pathsep.join([str(self.folder), environment["PATH"]])
        python = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
        self.environment = environment | {
            "PATH": programs,
            "PYTHONPATH": python,
            "SLURM_CONF": str(config),
            "NUMBA_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            # addresses of UCX are lines that Slurm's PMI now and then cuts in two
            "MPIR_CVAR_CH4_NETMOD": "ofi",
        }
        if not self.firsts:  # both nodes see one /dev/shm: sockets only
            self.environment["MPIR_CVAR_NOLOCAL"] = "1"

    def run(self, *command: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run a command as a user who is logged in to the cluster, in a folder."""
        return subprocess.run(
            command,
            cwd=folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def tell(self, *command: str, folder: Path = ROOT) -> str:
        """What a command of Slurm answers; AssertionError with what it complains of."""
        done = self.run(*command, folder=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """Of a job, such as "RUNNING"; the queue forgets it after some minutes."""
        facts = self.tell("scontrol", "--oneliner", "show", "job", job).split()
        return next(fact for fact in facts if fact.startswith("JobState=")).partition("=")[2]

    def wait(self, job: str, *states: str, seconds: float = SECONDS) -> str:
        """The first of these states that the job has; TimeoutError with the one that it has."""
        deadline = time.monotonic() + seconds
        while (state := self.state(job)) not in states:
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {job} is {state}, not {' or '.join(states)}")
            time.sleep(0.2)
        return state

    def daemon(self, name: str) -> int:
        """The process of one of `DAEMONS`; 0: it does not run."""
        command = [word.encode() for word in DAEMONS[name]]
        for number, _ in members(str(self.config)):
            with suppress(OSError):
                words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
                if words[: len(command)] == command:
                    return number
        return 0

    def ranks(self, job: str) -> dict[int, int]:
        """Processes of a job's ranks of Python, by rank."""
        return {
            int(facts["SLURM_PROCID"]): number
            for number, facts in members(self.environment["SLURM_CONF"])
            if facts.get("SLURM_JOB_ID") == job and "PMI_RANK" in facts
        }


@contextmanager
def cluster(*lines: str) -> Iterator[Slurm]:
    """Two idle nodes of 4 cores. OSError with the reason where Slurm is missing or cannot start.

    lines : more of the configuration.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "tests.slurm_room", *lines],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as room:
        assert room.stdin is not None and room.stdout is not None
        answer = room.stdout.readline().strip()
        if not answer.startswith("/"):
            raise OSError(answer)
        yield Slurm(Path(answer))
        room.stdin.close()


def members(config: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(number, environment) of every process that belongs to a cluster."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        # of other users, and of processes that have just ended, nothing is read
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            facts = {name: value for name, _, value in (word.partition("=") for word in words)}
            # a shell that only names the configuration is the user's own
            belongs = MARK in facts or "SLURM_JOB_ID" in facts
            if facts.get("SLURM_CONF") == config and belongs:
                yield int(path.parent.name), facts


def start(folder: Path, command: Sequence[str], node: str = "") -> "subprocess.Popen[bytes]":
    """Start a process that belongs to the cluster, maybe on one of its nodes."""
    if node in (there := firsts(folder)):
        command = ["nsenter", "--uts", "--mount", "--target", str(there[node]), *command]
    variables = {"PATH": _search(), "SLURM_CONF": str(folder / CONFIG_FILE), MARK: "1"}
    with (folder / "daemons.log").open("a") as log:
        return subprocess.Popen(
            command,
            env=os.environ | variables,
            stdout=log,
            stderr=log,
            start_new_session=True,  # what asks others of a group to end is not for it
        )


def firsts(folder: Path) -> dict[str, int]:
    """The first process of each node that has one."""
    return {path.stem: int(path.read_text()) for path in folder.glob("*.first")}


def _search() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def main() -> None:
    """Start a cluster, print the path of its configuration, and end it when the input ends."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_search()) is None]
    if missing:
        print(f"no Slurm: {' and '.join(missing)} missing, {INSTALL}")
        return
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    config = folder / CONFIG_FILE
    try:
        reason = _start(folder, sys.argv[1:])
        print(f"no Slurm: {reason}" if reason else config, flush=True)
        if not reason:
            sys.stdin.read()
    finally:
        _end(config)
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, lines: Sequence[str]) -> str:
    """Start the daemons; why they did not get ready, or "". lines : more of the configuration."""
    folder.chmod(0o755)  # MUNGE wants its socket to be reached by all users
    for name in ("state", *(f"{node}/tmp" for node in NODES)):
        (folder / name).mkdir(parents=True)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    (folder / "neocpu").write_text(NEOCPU.format(python=sys.executable))
    (folder / "neocpu").chmod(0o755)
    facts = {"host": socket.gethostname().partition(".")[0], "user": pwd.getpwuid(os.getuid())[0]}
    text = CONFIG.format(folder=folder, ports=_free_ports(3), cores=CORES, **facts)
    (folder / CONFIG_FILE).write_text("\n".join([text.rstrip(), *lines, ""]))
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "seed", "log", "pid")]
    # --force: a key outside of /etc is warned of
    start(folder, ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge])
    _make_nodes(folder)
    for name, command in DAEMONS.items():
        start(folder, command, name)
    deadline = time.monotonic() + PATIENCE
    ask = ["sinfo", "--noheader", "--Node", "--format=%T"]
    while time.monotonic() < deadline:
        done = subprocess.run(
            ask,
            env=os.environ | {"SLURM_CONF": str(folder / CONFIG_FILE)},
            capture_output=True,
            text=True,
        )
        if done.stdout.split() == ["idle"] * len(NODES):
            return ""
        time.sleep(0.1)
    said = (folder / "daemons.log").read_text()
    return " ".join(said.split())[-400:] or f"nodes are not idle in {PATIENCE:g} s"


def _make_nodes(folder: Path) -> None:
    """Give nodes namespaces of their own, where that is allowed."""
    lines = [Path("/etc/hosts").read_text(), f"127.0.0.1 {' '.join(NODES)}\n"]
    (folder / "addresses").write_text("".join(lines))
    for node in NODES if os.geteuid() == 0 else ():
        script = NODE.format(node=node, folder=folder)
        first = start(folder, ["unshare", "--uts", "--mount", "sh", "-e", "-c", script])
        while first.poll() is None and node not in firsts(folder):
            time.sleep(0.02)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _end(config: Path) -> None:
    """Kill all that belongs to the cluster, also what a process starts before it is killed."""
    while numbers := [number for number, _ in members(str(config))]:
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        with suppress(ChildProcessError):  # ended children keep their environment until asked for
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)


if __name__ == "__main__":
    main()
