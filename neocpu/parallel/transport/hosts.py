"""On which hosts does a job run, how many ranks on each, and how is mpiexec told?

Hosts are named as other launchers name them, `a,b` or `a:2,b:4`, or by a file:

    node1:8  or  node1 slots=8      ranks of a host, at most
    node1                           a rank for each time that the host is named
    node1 8 all.q@node1 UNDEFINED   as Grid Engine has it ($PE_HOSTFILE)
    # ...                           nothing
"""

import re
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from neocpu.core.cores import usable_memory
from neocpu.core.errors import ConfigError

RANK_BYTES = 48 << 20  # of memory that a rank takes for itself, before it has any table
MOST_RANKS = 4096  # of a host
# names by which each machine means itself
LOOPBACK = re.compile(r"(?:.*@)?(localhost|127\..*)")
NAME = r"(?:\w[\w.-]*@)?\w[\w.-]*"
LISTED = re.compile(rf"({NAME})(?::(\d+))?")
LINE = re.compile(rf"({NAME})(?::(\d+))?((?:\s+\w[\w-]*\s*=\s*\S+)*)")
GRID_ENGINE = re.compile(rf"({NAME})\s+(\d+)\s+\S+\s+\S+")  # the queue, and processors
PAIR = re.compile(r"(\w[\w-]*)\s*=\s*(\S+)")
# what Open MPI and MPICH may say of a host besides
THEIRS = {"max_slots", "max-slots", "binding", "bindings", "ifname"}
# variables of Open MPI itself, which its ranks are given anyhow
OWN = ("OMPI_", "PMIX_", "PRTE_")


class HostRanks(NamedTuple):
    """A host, and how many ranks it has."""

    name: str
    ranks: int


class Named(NamedTuple):
    """A host as it was named: with a number of ranks, or without."""

    name: str
    ranks: int | None


def listed_hosts(text: str) -> list[Named]:
    """The hosts of `a:2,b:4`. Raises ConfigError for anything else."""
    hosts = []
    for word in text.split(","):
        match = LISTED.fullmatch(word.strip())
        if match is None:
            raise ConfigError(
                f"--hosts {text}: {word.strip()!r} is no host; write names, with numbers of ranks "
                f"or without, as node1:8,node2:8{_slurm(text)}"
            )
        hosts.append(_named(*match.groups()))
    return _joined(hosts, f"--hosts {text}")


def hosts_of_file(path: Path) -> list[Named]:
    """The hosts of a host file of MPICH or Open MPI. Raises ConfigError for anything else."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        if path == Path():
            reason = "it is empty, as $PBS_NODEFILE is outside of a job"
        raise ConfigError(f"--hostfile {path}: cannot be read: {reason}") from error
    hosts = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        host = _of_line(text)
        if host is None:
            raise ConfigError(
                f"--hostfile {path}, line {number}: {text!r} is no host with a number of ranks; "
                f"write a line for each, as `node1:8` or `node1 slots=8`{_slurm(text)}"
            )
        hosts.append(host)
    return _joined(hosts, f"--hostfile {path}")


def _of_line(text: str) -> Named | None:
    """The host of a line of a file; None where it is none, or says what nobody knows."""
    if match := GRID_ENGINE.fullmatch(text):
        return _named(*match.groups())
    match = LINE.fullmatch(text)
    if match is None:
        return None
    # a word that is misspelt would leave the host with one rank
    pairs = {key.lower(): value for key, value in PAIR.findall(match[3])}
    ranks = pairs.pop("slots", None)
    name = f"{pairs.pop('user')}@{match[1]}" if "user" in pairs else match[1]
    if (
        not re.fullmatch(NAME, name)
        or pairs.keys() - THEIRS
        or not (ranks or "0").isdecimal()
        or (ranks and match[2])
    ):
        return None
    return _named(name, ranks or match[2])


def _slurm(text: str) -> str:
    """What to do with a node list of Slurm, if a text may be one."""
    return "; `scontrol show hostnames` makes names of a node list of Slurm" if "[" in text else ""


def _named(name: str, ranks: str | None) -> Named:
    return Named(name, None if ranks is None else int(ranks))


def _joined(hosts: Iterable[Named], source: str) -> list[Named]:
    """Each host once, in the order in which they are first named, its ranks added."""
    times: dict[str, list[int | None]] = {}
    for host in hosts:
        if host.ranks == 0:
            raise ConfigError(f"{source}: {host.name} has 0 ranks; give it one, or leave it out")
        times.setdefault(host.name, []).append(host.ranks)
    if not times:
        raise ConfigError(f"{source}: there is no host in it; write one to a line, as `node1:8`")
    return [
        Named(name, None if ranks == [None] else sum(one or 1 for one in ranks))
        for name, ranks in times.items()
    ]


def ranks_of_hosts(hosts: Sequence[Named], ranks: int | None) -> list[HostRanks]:
    """Ranks of each host, in order; hosts that are left without any are left out.

    ranks : of the job; None: as many as the hosts take. They fill hosts that have numbers one after
        the other (a host without one beside them takes one), and are divided evenly among hosts
        that have none.

    Raises ConfigError where they do not fit.
    """
    if ranks is not None and all(host.ranks is None for host in hosts):
        if ranks < len(hosts):
            raise ConfigError(
                f"--ranks {ranks} are too few for {len(hosts)} hosts; each needs one, so ask for "
                "more or name fewer hosts"
            )
        few, more = divmod(ranks, len(hosts))
        return [HostRanks(host.name, few + int(place < more)) for place, host in enumerate(hosts)]
    room = [HostRanks(host.name, host.ranks or 1) for host in hosts]
    most = sum(host.ranks for host in room)
    if ranks is None:
        return room
    if ranks > most:
        shown = ",".join(f"{name}:{count}" for name, count in room)
        raise ConfigError(f"--ranks {ranks} are too many: the hosts take {most} ({shown})")
    left = ranks
    filled = []
    for name, count in room:
        filled.append(HostRanks(name, min(count, left)))
        left -= filled[-1].ranks
    return [host for host in filled if host.ranks]


def check_room(ranks: int, hosts: Sequence[HostRanks]) -> None:
    """Raise ConfigError for ranks that would take all memory of a machine while they start.

    hosts : none: all ranks are on this machine.
    """
    own = {"localhost", "127.0.0.1", socket.gethostname()}
    here = sum(host.ranks for host in hosts if host.name.rpartition("@")[2] in own)
    here = here if hosts else ranks
    most = usable_memory() // RANK_BYTES
    hint = "ask for fewer; in --hosts, HOST:8 are eight ranks there, and 8 is no port"
    if here > most:
        raise ConfigError(
            f"{here:,} ranks on this machine take {here * RANK_BYTES / 2**30:.0f} GiB of memory "
            f"before they have any table, and it has room for {most:,}; {hint}"
        )
    for name, count in hosts:
        if count > MOST_RANKS:
            raise ConfigError(f"{count:,} ranks on {name} are more than {MOST_RANKS:,}; {hint}")


def host_words(
    mpiexec: Path, hosts: Sequence[HostRanks], environment: Mapping[str, str]
) -> list[str]:
    """The words by which mpiexec starts ranks on hosts, with the environment of this one.

    MPICH hands the environment on by itself; Open MPI has to be told each name, and not to bind
    ranks to cores.

    Raises ConfigError for "localhost" beside other hosts, to which MPICH would have them connect.
    """
    listed = ",".join(f"{name}:{ranks}" for name, ranks in hosts)
    if not is_open_mpi(mpiexec):
        itself = [name for name, _ in hosts if LOOPBACK.fullmatch(name)]
        if itself and len(itself) < len(hosts):
            raise ConfigError(
                f"{itself[0]} is another machine on each of the hosts; name this one as the others "
                f"reach it, as {socket.gethostname()}"
            )
        return ["-hosts", listed]
    names = [name for name in environment if name.isidentifier() and not name.startswith(OWN)]
    handed_on = [word for name in sorted(names) for word in ("-x", name)]
    return ["--host", listed, "--bind-to", "none", *handed_on]


def is_open_mpi(mpiexec: Path) -> bool:
    """Is this mpiexec Open MPI's?"""
    done = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False)
    return re.search(r"open.?mpi|prrte", done.stdout + done.stderr, re.IGNORECASE) is not None
