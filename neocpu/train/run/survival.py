"""What becomes of a run whose ranks were killed? It is told in one line, and goes on if it shall.

This is what the process does that started mpiexec (`parallel/watch/supervisor.py`). A run that
was killed, that stood still, or that lost a host, goes on from its newest sound checkpoint, as
often as it may, without the hosts that failed. What a person has to mend first (a wrong config,
damaged data, a full disk) ends it, and so does a signal that asks it to stop.
"""

import json
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from neocpu.core.cores import KILLING, memory_limit
from neocpu.core.errors import CheckpointError
from neocpu.core.types import JsonObject, Tell
from neocpu.parallel.watch.host_pool import HostPool
from neocpu.parallel.watch.rank_page import last_words, page_path, remove_page
from neocpu.parallel.watch.supervisor import Ending, Stops
from neocpu.parallel.watch.watchdog import STATUS
from neocpu.train.checkpoint.folder import FOLDER
from neocpu.train.run.folder import RESTARTS
from neocpu.train.watch.results import RANKS, read_json

# seconds until a run goes on: twice as many after each end without a newer checkpoint
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 300.0


@dataclass(frozen=True)
class Survivor:
    """A run that others are to outlive.

    out : its folder of results. start : runs mpiexec to its end, on the ranks that `pool` places;
    with True from the newest checkpoint. again : the command with which a person goes on. tell :
    shows one line. pool : the hosts. stops : signals, as `start` knows them.
    """

    out: Path
    start: Callable[[bool], Ending]
    again: str
    tell: Tell
    pool: HostPool = field(default_factory=HostPool)
    stops: Stops = field(default_factory=Stops)

    def run(self, resume: bool, restarts: int) -> int:
        """Exit status of the run, after `restarts` restarts at most."""
        # also while none of its lives is under way
        with self.stops:
            return self._run(resume, restarts)

    def _run(self, resume: bool, restarts: int) -> int:
        pause = FIRST_PAUSE
        before = _newest(self.out)
        for left in range(restarts, -1, -1):
            ending = self.start(resume)
            losses = self.pool.losses()
            reason = self._reason(ending, look=bool(left))
            if ending.wanted and ending.status and not ending.said:
                return self._stop()  # ranks that have just been started die of a signal
            if not reason or ending.wanted:
                return ending.status
            newest = _newest(self.out)
            if not left or ending.stopped:
                return self._give_up(ending, reason, newest)
            pause = FIRST_PAUSE if newest != before else min(2 * pause, LONGEST_PAUSE)
            before = newest
            self.tell(
                f"neocpu: {reason}; {_from_where(newest)}: the run goes on in {pause:g} s, restart "
                f"{restarts - left + 1} of {restarts}"
            )
            self.stops.wait(pause)
            if not self.stops.count:
                self.pool.look()
            if self.stops.count:
                return self._stop()
            if shortage := self.pool.shortage():
                return self._give_up(ending, shortage, newest)
            if self.pool.losses() != losses:
                self.tell(f"neocpu: {self.pool.losses() or 'all hosts answer again'}")
            self._note(reason, newest, pause)
            resume = True
        raise AssertionError("the last life returns")

    def _give_up(self, ending: Ending, reason: str, newest: Path | None) -> int:
        """Say why the run does not go on; its exit status."""
        self.tell(f"neocpu: error: {reason}; {_go_on(newest)}: {self.again}")
        return STATUS if ending.stalled else ending.status

    def _stop(self) -> int:
        """Say that a signal ended the run where no rank could; its exit status."""
        self.tell(
            f"neocpu: stopped by signal {self.stops.number}; {_go_on(_newest(self.out))}: "
            f"{self.again}"
        )
        return 128 + self.stops.number

    def _reason(self, ending: Ending, look: bool = False) -> str:
        """Why a run ended that nobody asked to, in words; "": ranks have said so themselves.

        look : where the launcher's words say nothing, ask whether the hosts are still there?
        """
        record = read_json(self.out / RANKS)
        token = str(record.get("token", ""))
        try:
            if ending.stalled:
                return "the run stood still and was ended (parallel.timeout)"
            # where one rank was not started, the launcher kills the others
            if ending.unmet and not ending.lost:
                return (
                    "the MPI library could not start the ranks, and says why above "
                    "(`neocpu doctor --ranks 2` tries it alone)"
                )
            if ending.limit:
                return f"mpiexec ended it after {ending.limit} s, as MPIEXEC_TIMEOUT says; unset it"
            if ending.signal:
                return _killed(ending, record, token)
            if ending.lost:
                return self._lost(ending, record)
            if look and not (ending.explained or ending.stopped):
                self.pool.look()
                return self.pool.losses()
            return ""
        finally:
            remove_page(page_path(token))

    def _lost(self, ending: Ending, record: JsonObject) -> str:
        """Which host is gone; where all answer, it was only what ran on one of them.

        MPICH's launcher ends with the same words if a rank of another host is killed.
        """
        self.pool.look()
        if gone := self.pool.left_out:
            return "; ".join(f"host {name} is lost ({why})" for name, why in gone.items())
        if placed := self.pool.placed():
            return (
                "a rank, or mpiexec's server beside it, was killed on one of "
                f"{', '.join(host.name for host in placed)}, which all answer (if nobody did, it "
                "was the system for want of memory: see `dmesg` there)"
            )
        hosts = {str(rank["host"]) for rank in record.get("ranks", [])}
        others = ", ".join(sorted(hosts - {socket.gethostname()})) or ending.host
        return f"mpiexec has lost a host or its server there ({others or 'unknown'})"

    def _note(self, reason: str, newest: Path | None, pause: float) -> None:
        """Add a line to the restarts of the folder."""
        facts: dict[str, object] = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "reason": reason,
            "checkpoint": newest.name if newest else None,
            "pause": pause,
        }
        if hosts := self.pool.placed():
            facts["ranks"] = sum(host.ranks for host in hosts)
            facts["left_out"] = self.pool.left_out
        with suppress(OSError), open(self.out / RESTARTS, "a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")


def _killed(ending: Ending, record: JsonObject, token: str) -> str:
    """Which rank was killed, by what, and where it was."""
    rank = ending.rank
    for entry in record.get("ranks", []):
        if entry["process"] == ending.process and _same(entry["host"], ending.host):
            rank = entry["rank"]
    try:
        name = signal.Signals(ending.signal).name
    except ValueError:
        name = f"signal {ending.signal}"
    who = f"process {ending.process} on {ending.host}"
    if rank is not None:
        who = f"rank {rank} on {ending.host} (process {ending.process})"
    text = f"{who} was killed by {name}"
    state = last_words(token, rank) if rank is not None and token else None
    if state is not None:
        text += f", last seen {state.where}"
    if ending.starved:
        from neocpu.train.before.preflight import human

        limit = human(memory_limit(KILLING))
        text += f"; the system did it, as all {limit} that this job or container may use were taken"
    elif ending.signal == signal.SIGKILL:
        text += " (if nobody did, it was the system for want of memory: see `dmesg`"
        text += ", or its limit of CPU time: `ulimit -t`)" if _has_cpu_limit() else ")"
    elif ending.signal == signal.SIGXCPU:
        text += " (its limit of CPU time is used up: `ulimit -t`)"
    # of the second, MPICH while it starts ranks
    elif ending.signal == signal.SIGBUS or (ending.signal == signal.SIGSEGV and not record):
        text += " (is /dev/shm full? see `df /dev/shm`; containers have what --shm-size says)"
    return text


def _has_cpu_limit() -> bool:
    """Does the system kill processes of this one that take too much CPU time?"""
    return resource.getrlimit(resource.RLIMIT_CPU)[1] != resource.RLIM_INFINITY


def _same(host: str, other: str) -> bool:
    """Are these names of one host, maybe one of them with its domain?"""
    return host.partition(".")[0] == other.partition(".")[0]


def _from_where(newest: Path | None) -> str:
    """From which checkpoint a run goes on, in words."""
    return f"the newest sound checkpoint is {newest}" if newest else "no checkpoint"


def _go_on(newest: Path | None) -> str:
    """The same, before the command that does."""
    return f"{_from_where(newest)}; {'go on' if newest else 'start again'} with"


def _newest(out: Path) -> Path | None:
    """The newest checkpoint that can be opened."""
    from neocpu.parallel.transport.comm import SingleComm
    from neocpu.train.checkpoint import latest

    with suppress(CheckpointError):
        path = latest(out, SingleComm())
        # as the user named the folder
        return None if path is None else out / FOLDER / path.name
    return None
