"""On which of its hosts does a job go on, when some of them failed? On those that answer."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from neocpu.parallel.transport.hosts import HostRanks, Named, ranks_of_hosts
from neocpu.parallel.transport.launch import mpiexec_command

PLACE = re.compile(r"\[[^]]*\] \w+ \([^)]*\): ")  # in MPICH's source, before what it has to say
ANSWER = 20.0  # seconds that a host has to start a process and end it


class HostPool:
    """The hosts of a job that is started again and again.

    hosts : as they were named; none: the ranks are this machine's. ranks : of the job; None: as
        many as the hosts take. least : ranks below which the job does not go on.

    Attributes: left_out, why the job goes on without a host, by its name.

    Raises ConfigError where so many ranks do not fit.
    """

    def __init__(
        self, hosts: Sequence[Named] = (), ranks: int | None = None, least: int = 1
    ) -> None:
        placed = ranks_of_hosts(hosts, ranks) if hosts else []
        share = dict(placed)
        # a host without a number of its own keeps its share, however many hosts are left
        self._hosts = [Named(name, most or share.get(name, 1)) for name, most in hosts]
        self._most = sum(share.values())
        self._least = least
        self.left_out: dict[str, str] = {}

    def placed(self) -> list[HostRanks]:
        """The ranks of each host that is left. They fill the hosts in order, as in the beginning;
        a host that had none of them may stand in for another one.
        """
        left = [host for host in self._hosts if host.name not in self.left_out]
        room = sum(host.ranks or 1 for host in left)
        return ranks_of_hosts(left, min(self._most, room)) if left else []

    def shortage(self) -> str:
        """Why the job cannot go on with the hosts that are left; "": it can."""
        count = sum(host.ranks for host in self.placed())
        if not self._hosts or count >= self._least:
            return ""
        return f"{self.losses()}; {count} ranks are left and the job needs {self._least}"

    def losses(self) -> str:
        """The hosts that were left out, and why."""
        return "; ".join(f"{name} is left out ({why})" for name, why in self.left_out.items())

    def look(self) -> None:
        """Ask all hosts for a sign of life, as mpiexec would start ranks there; one that was left
        out and answers is back.
        """
        processes = [(host.name, _ask(host.name)) for host in self._hosts]
        end = time.monotonic() + ANSWER
        self.left_out = {
            name: reason for name, process in processes if (reason := _silence(process, end))
        }


def _ask(name: str) -> "subprocess.Popen[str]":
    """Start a process on a host, which ends at once."""
    command, environment = mpiexec_command(1, ["-c", "pass"], [HostRanks(name, 1)])
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,
    )


def _silence(process: "subprocess.Popen[str]", end: float) -> str:
    """Why a host that was asked counts as failed; "": it has answered.

    end : on the monotonic clock, until when it is waited for.
    """
    try:
        # one that has ended meanwhile is still to be read
        _, errors = process.communicate(timeout=max(end - time.monotonic(), 0.5))
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"no answer within {ANSWER:.0f} s"
    finally:
        # not read to its end: what mpiexec started may hold it open
        if process.stderr is not None:
            process.stderr.close()
    if not process.returncode:
        return ""
    lines = [PLACE.sub("", line) for line in errors.splitlines() if line.strip()]
    return f"no process can be started there: {lines[0] if lines else process.returncode}"
