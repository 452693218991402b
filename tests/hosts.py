"""What is different on several hosts? Two to four of them, on this machine.

A host is a network namespace with a link to a switch, its own host name, process numbers, /dev/shm
and System V memory, so that ranks on different ones have nothing but TCP between them, and with
disks of its own where it is told to have some. `with room(...)` makes them; jobs are started from a
fifth place on the switch, as from a login node.

Nothing of it has a name outside, so that rooms of several processes do not meet, and nothing has to
be removed: when the process that made a room ends, in whatever way, the standard input of its first
process does, and the kernel ends all others and takes the links away.
"""

import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NETWORK = "10.99.0."
LOGIN = 254  # the number of the place where jobs are started
PROGRAMS = ("unshare", "nsenter", "ip", "tc", "taskset")
BURST = 2e-4  # seconds of a link's rate that pass at once: a rest must not save up for long
LEAST_BURST = 16 << 10  # bytes
# what stands in for ssh: [options] HOST WORDS...; it does what is in the host's file
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
. "%s/$host"
exec nsenter --target "$first_process" --net --uts --ipc --pid --mount --wd="$PWD" \\
    taskset --cpu-list "$cores" env $variables sh -c "$*"
"""


@dataclass(frozen=True)
class Host:
    """What a host has. cores : those that its ranks may use, as `taskset` has them.

    variables : of its environment, before those of a job. disks : folders that are its own there.
    """

    cores: str = f"0-{(os.cpu_count() or 1) - 1}"
    variables: Mapping[str, str] = field(default_factory=dict)
    disks: Sequence[Path] = ()


class Room:
    """Hosts on one switch, called host0, host1, ...; processes by the numbers that they have here.

    login : of the place where jobs are started. hosts : of the hosts.
    """

    def __init__(self, folder: Path, login: int, hosts: Sequence[int]) -> None:
        self._login = login
        self._hosts = hosts
        self._agent = folder / "agent"
        self.names = [f"host{number}" for number in range(len(hosts))]

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that runs `words` where jobs are started, in the current folder."""
        return _enter(self._login, "--uts", "--ipc", "--pid", "--mount", "--wd=.", *words)

    def environment(self) -> dict[str, str]:
        """That lets MPICH's and Open MPI's mpiexec reach the hosts, and ranks find this code."""
        agent = str(self._agent)
        path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        return os.environ | {
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": agent,
            "PRTE_MCA_plm_ssh_agent": agent,
            "PYTHONPATH": os.pathsep.join(path).rstrip(os.pathsep),
            # ranks share cores, also with those of other hosts
            "OMP_WAIT_POLICY": "PASSIVE",
        }

    def run(
        self, words: Sequence[str], variables: Mapping[str, str], seconds: float = 900.0
    ) -> str:
        """What a command prints that runs where jobs are started. Fails where it does."""
        done = subprocess.run(
            self.command(words),
            env={**self.environment(), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\nexit status {done.returncode}"
        return done.stdout

    def on_host(self, number: int, words: Sequence[str]) -> str:
        """What a command prints on a host."""
        process = self._hosts[number]
        command = _enter(process, "--uts", "--ipc", "--pid", "--mount", "--wd=.", *words)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def kill(self, number: int) -> None:
        """End a host with all that runs there, at once."""
        os.kill(self._hosts[number], signal.SIGKILL)

    def network(self, number: int) -> int:
        """The network of a host, as /proc/PROCESS/ns/net has it."""
        return os.stat(f"/proc/{self._hosts[number]}/ns/net").st_ino

    def link(self, number: int, up: bool) -> None:
        """Take the link of a host away, or give it back."""
        _shell(self._login, f"ip link set link{number} {'up' if up else 'down'}")

    def shape(self, number: int, rate: float) -> None:
        """Give the link of a host another rate, in both directions; 0: as fast as it goes."""
        line = f"replace dev {{}} {_shaping(rate)}" if rate else "del dev {} root"
        _shell(self._login, f"tc qdisc {line.format(f'link{number}')}")
        _shell(self._hosts[number], f"tc qdisc {line.format('eth0')}")

    def sent(self, number: int) -> int:
        """Bytes that a host has sent, as the kernel counts them on its link."""
        return int(self.on_host(number, ["cat", "/sys/class/net/eth0/statistics/tx_bytes"]))


def why_not() -> str:
    """Why this system can make no hosts; "": it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no hosts: {', '.join(missing)} is missing"
    try:
        with room([Host(), Host()], 1e9):
            return ""
    except subprocess.CalledProcessError as error:
        return f"no hosts: this system allows no network namespaces ({error.stderr.strip()})"


@contextmanager
def room(hosts: Sequence[Host], rate: float = 0) -> Iterator[Room]:
    """Hosts, until the block ends.

    rate : bits a second of each link, in each direction; 0: as fast as it goes.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts-")))
        addresses = ["127.0.0.1 localhost", f"{NETWORK}{LOGIN} login"]
        addresses += [f"{NETWORK}{number + 1} host{number}" for number in range(len(hosts))]
        (folder / "addresses").write_text("\n".join([*addresses, ""]))
        agent = folder / "agent"
        agent.write_text(AGENT % folder)
        agent.chmod(agent.stat().st_mode | stat.S_IXUSR)
        users = () if os.geteuid() == 0 else ("--user", "--map-root-user")
        login = stack.enter_context(_place([], users))
        processes = []
        _shell(login, "ip link add switch type bridge; ip link set switch up; ip link set lo up")
        _shell(login, f"ip addr add {NETWORK}{LOGIN}/24 dev switch")
        _furnish(login, "login", folder, [])
        for number, host in enumerate(hosts):
            inside = _enter(login, "--pid", "--mount", "--wd=.")
            process = stack.enter_context(_place(inside))
            processes.append(process)
            _connect(login, process, number, rate)
            _furnish(process, f"host{number}", folder, host.disks)
            variables = " ".join(f"{name}={value}" for name, value in host.variables.items())
            (folder / f"host{number}").write_text(
                f"first_process={_number_inside(process)}\ncores={host.cores}\n"
                f"variables='{variables}'\n"
            )
        yield Room(folder, login, processes)


@contextmanager
def _place(inside: Sequence[str], users: Sequence[str] = ()) -> Iterator[int]:
    """The first process of new namespaces; with it all that was started in them ends.

    inside : the command that enters others first.
    """
    new = ("unshare", *users, "--net", "--uts", "--ipc", "--mount", "--pid", "--fork")
    holder = subprocess.Popen(
        # a shell, which waits for whoever loses its parent here: a host ends once all there have
        [*inside, *new, "--mount-proc", "sh", "-c", "echo; cat; exit"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None and holder.stdout is not None and holder.stderr is not None
    try:
        if holder.stdout.readline() != "\n":
            raise subprocess.CalledProcessError(holder.wait(), new, stderr=holder.stderr.read())
        yield _last_child(holder.pid)
    finally:
        for stream in (holder.stdin, holder.stdout, holder.stderr):
            stream.close()
        holder.wait(60)


def _last_child(process: int) -> int:
    """The youngest of a line of processes that each started one."""
    while children := Path(f"/proc/{process}/task/{process}/children").read_text().split():
        process = int(children[0])
    return process


def _number_inside(process: int) -> str:
    """A host's first process, as the place where jobs are started counts."""
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("NSpid:")]
    return line.split()[-2]


def _enter(process: int, *words: str) -> list[str]:
    """The command that runs words in the network of a process."""
    users = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    return ["nsenter", "--target", str(process), *users, "--net", *words]


def _shell(process: int, line: str, *namespaces: str) -> None:
    """Run a line in the network of a process, and in other namespaces of its."""
    command = _enter(process, *namespaces, "sh", "-e", "-c", line)
    subprocess.run(command, check=True, capture_output=True, text=True)


def _connect(login: int, process: int, number: int, rate: float) -> None:
    """Give a host a link to the switch."""
    shape = _shaping(rate)
    _shell(
        login,
        f"ip link add link{number} type veth peer name eth0 netns {process};"
        f"ip link set link{number} master switch up"
        + (f"; tc qdisc add dev link{number} {shape}" if rate else ""),
    )
    _shell(
        process,
        f"ip addr add {NETWORK}{number + 1}/24 dev eth0; ip link set eth0 up; ip link set lo up"
        + (f"; tc qdisc add dev eth0 {shape}" if rate else ""),
    )


def _shaping(rate: float) -> str:
    """What `tc` calls a link of so many bits a second."""
    burst = max(LEAST_BURST, int(rate / 8 * BURST))
    return f"root tbf rate {rate:.0f}bit burst {burst} latency 50ms"


def _furnish(process: int, name: str, folder: Path, disks: Sequence[Path]) -> None:
    """Give a host its name, the others' addresses, shared memory and disks of its own."""
    mounts = [f"mount -t tmpfs tmpfs '{disk}'" for disk in (Path("/dev/shm"), *disks)]
    line = "; ".join(
        [
            "mount -t sysfs sysfs /sys",  # that shows the links of this network
            f"mount --bind '{folder}/addresses' /etc/hosts",
            f"hostname {name}",
            *mounts,
        ]
    )
    _shell(process, line, "--uts", "--mount")
