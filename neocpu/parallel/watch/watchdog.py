"""Who notices that a job stands still, and says why? A thread of every rank, which mostly sleeps.

Each rank's watch counts the seconds in which its rank did nothing new (`Pulse`), and writes that to
the page of its host. Where a rank has stood still for long, its watch looks at all others: those of
its host by their page and the system's word on their processes, those of other hosts by asking
them. If nobody has moved since, the lowest rank that can speak says in one line which collective is
waited for, who is not there, and what those ranks were last seen doing; after `timeout` every rank
ends.

Work that may take long (reading data, compiling, writing) counts as standing still only while the
process takes neither time of a core nor reads or writes (`Stillness`).
"""

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from neocpu.core.cores import host_key
from neocpu.core.types import Tree
from neocpu.parallel.transport.abort import has_spoken
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.timeline import Pulse
from neocpu.parallel.watch.asking import Host, Listener, Questions, own_addresses
from neocpu.parallel.watch.ends import Ends
from neocpu.parallel.watch.rank_page import RankPage, RankState, process_fields, seen_now
from neocpu.parallel.watch.words import Member, States, collective, describe, is_awake, speaker

# a process is at work if it takes so much of a core, or so many bytes a second
AT_WORK = 0.02
BYTES_AT_WORK = 1 << 16


class Stillness:
    """Counts the seconds in which a rank does nothing new.

    Only seconds in which the watch itself ran count: a process that was stopped, or a machine that
    slept, is not to blame the others.

    Attributes: seconds; longest, of the time before the rank moved last.
    """

    def __init__(self, pulse: Pulse, period: float) -> None:
        self._pulse = pulse
        self._period = period
        self._before: object = None
        self._looked = time.monotonic()
        self._work = (0.0, 0)
        self.seconds = 0.0
        self.longest = 0.0

    def look(self) -> float:
        """Seconds until now."""
        pulse = self._pulse
        now = time.monotonic()
        passed = min(now - self._looked, 2 * self._period)
        self._looked = now
        doing = (pulse.step, pulse.doing, pulse.wait)
        moved = doing != self._before
        self._before = doing
        if pulse.lengthy and pulse.wait is None:
            moved = self._at_work(passed) or moved
        if moved:
            self.longest = self.seconds
            self.seconds = 0.0
        else:
            self.seconds += passed
        return self.seconds

    def _at_work(self, passed: float) -> bool:
        """Did this process, and those that it started, compute, read or write meanwhile?"""
        seconds, size = self._work
        self._work = _work()
        return (
            self._work[0] - seconds > AT_WORK * passed
            or self._work[1] - size > BYTES_AT_WORK * passed
        )


def _work() -> tuple[float, int]:
    """Seconds of cores, and bytes read and written, of this process, but for the calling thread,
    and of those that it started.
    """
    # to the microsecond, where the system's list of processes counts hundredths of a second
    own = time.process_time() - time.thread_time()
    seconds, size = _listed_work(os.getpid())
    return own + seconds, size - _bytes(Path("/proc/thread-self"))


def _bytes(folder: Path) -> int:
    """Read and written by a process or thread; 0 where that cannot be told."""
    with suppress(OSError, ValueError):
        words = (folder / "io").read_text().split()
        return sum(map(int, words[1:4:2]))
    return 0


def _listed_work(process: int, started: bool = False) -> tuple[float, int]:
    """Bytes of a process and those that it started, and the seconds of the latter."""
    folder = Path(f"/proc/{process}")
    stat = process_fields(folder)
    seconds = sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK") if started and stat else 0.0
    size = _bytes(folder)
    with suppress(OSError):
        for thread in (folder / "task").iterdir():
            for child in (thread / "children").read_text().split():
                more_seconds, more_size = _listed_work(int(child), started=True)
                seconds += more_seconds
                size += more_size
    return seconds, size


ERROR = "neocpu: error: "
OVER = "no step, since the run is over"
STATUS = 124  # as of timeout(1)
OFTEN = 0.1  # seconds between two looks, at least
SELDOM = 2.0  # and at most
# modules that a debugger brings
DEBUGGERS = ("pydevd", "debugpy")


class Watchdog:
    """The watch of one rank, from its creation to `stop`; both are for all ranks.

    warn_after, timeout : seconds of standing still after which that is said, and after which ranks
        end; 0: never.

    Attributes: token, of the page; members, all ranks.
    """

    def __init__(self, comm: Comm, warn_after: float, timeout: float) -> None:
        self.token = comm.allgather_bytes(secrets.token_hex(8).encode())[0].decode()
        self._rank = comm.rank
        self._pulse = comm.sent.pulse
        self._warn_after = warn_after
        self._timeout = timeout
        self._limit = min(seconds for seconds in (warn_after, timeout) if seconds) / 2
        self._period = min(max(self._limit / 4, OFTEN), SELDOM)
        self._page = RankPage(self.token)
        self._listener: Listener | None = None
        self.members = _meet(comm)
        self._own = self.members[self._rank]
        self._near = [member for member in self.members if member.key == self._own.key]
        hosts: list[Host] = []
        # on one host the page says it all, and no port is opened
        if len(self._near) < comm.size:
            self._listener = Listener(self.token, self._near_states)
            hosts = _far_hosts(comm, self.members, self._listener.port)
        self._questions = Questions(hosts, self.token)
        self._started = (process_fields(Path("/proc/self")) or [""] * 20)[19]
        self._debugged = sys.gettrace() is not None
        self._still = Stillness(self._pulse, self._period)
        self._ends = Ends([member.process for member in self._near if member != self._own])
        self._warned = 0.0  # seconds that it had stood still when that was due
        self._spoke = False  # was it this rank that said so?
        # also one that stops before its watch looks first is known
        self._page.write(self._state(0.0))
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    def record(self) -> Tree:
        """Where the ranks are, JSON-able."""
        return {"token": self.token, "ranks": [asdict(member) for member in self.members]}

    def stop(self) -> None:
        """Watch no more."""
        self._ends.wake()
        self._thread.join()
        self._ends.close()
        self._pulse.doing = OVER
        self._page.write(self._state(0.0))
        if self._listener is not None:
            self._listener.close()
        self._page.remove()

    # ---- the thread ----

    def _watch(self) -> None:
        calm_until = time.monotonic()
        while (ended := self._ends.wait(self._period)) is not None:
            if ended:
                self._say_who_ended(ended)
            still = self._still.look()
            self._page.write(self._state(still))
            # rank 0 asks in calm times too: what other hosts were last seen doing has to be known
            # before they are gone
            calm = self._rank == 0 and time.monotonic() > calm_until
            if calm or still >= self._limit:
                self._questions.ask()
                calm_until = time.monotonic() + 10 * self._period
            if self._warned > still:
                self._say_that_it_goes_on()
            if self._timeout and still >= self._timeout:
                self._end_if_all_stand()
            elif self._warn_after and still >= self._warn_after and not self._warned:
                self._warn_if_all_stand()

    def _state(self, still: float) -> RankState:
        pulse = self._pulse
        wait = pulse.wait
        return RankState(
            rank=self._rank,
            host=self._own.host,
            process=self._own.process,
            started=self._started,
            step=pulse.step,
            doing=pulse.doing,
            wait="" if wait is None else collective(wait[0]),
            still=still,
            at=time.monotonic(),
            # asked for where it matters only
            debugged=still >= self._limit and (self._debugged or _has_debugger()),
        )

    def _warn_if_all_stand(self) -> None:
        states = self._look()
        still = self._standing(states, self._warn_after)
        if still is None:
            return
        self._warned = still
        self._spoke = self._rank == speaker(states, self._period)
        if self._spoke:
            limit = self._timeout
            end = f"; it ends after {limit:g} s of this (parallel.timeout)" if limit else ""
            _say(f"neocpu: warning: {self._words(states, still)}{end}")

    def _end_if_all_stand(self) -> None:
        """End this rank, with the reason, if no rank moves; not while a debugger holds one."""
        states = self._look()
        still = self._standing(states, self._timeout)
        if still is None or any(state.debugged for state in states.values()):
            return
        speaks = self._rank == speaker(states, self._period)
        # the end of the one that speaks ends all ranks that the launcher can reach
        if not speaks and self._ends.wait(2 * self._period + 2.0) is None:
            return
        self._page.say_for_host(
            f"{ERROR}{self._words(states, still)}; ended (parallel.timeout = "
            f"{self._timeout:g}); {self._newest()}"
        )
        # the launcher still has to read what was printed
        time.sleep(0.5)
        os._exit(STATUS)

    def _newest(self) -> str:
        newest = self._pulse.checkpoint
        if not newest:  # a run that is resumed may have some that it has not come to
            return "no checkpoint has been read or written yet"
        return f"the newest checkpoint is {newest}"

    def _say_who_ended(self, process: int) -> None:
        """A rank of this host is no more: the launcher will soon end this one too."""
        rank = next(member.rank for member in self._near if member.process == process)
        state = self._page.read(rank)
        if state is None or state.doing == OVER or has_spoken():
            return
        self._page.say_for_host(
            f"{ERROR}rank {rank} on {self._own.host} (process {process}) has ended, last seen "
            f"{state.where}; {self._newest()}, go on with --resume"
        )

    def _say_that_it_goes_on(self) -> None:
        if self._spoke:
            _say(f"neocpu: the run goes on; it had stood still for {self._still.longest:.0f} s")
        self._warned = 0.0

    # ---- who is where ----

    def _near_states(self) -> list[RankState]:
        """What is known of the ranks of this host now."""
        states = (self._page.read(member.rank) for member in self._near)
        return [seen_now(state) for state in states if state is not None]

    def _look(self) -> States:
        """What is known now of all ranks that can be seen."""
        seen = (*self._questions.current(), *self._near_states())
        return {state.rank: state for state in seen}

    def _words(self, states: States, still: float) -> str:
        heard = self._questions.heard
        return describe(self.members, states, heard, still, self._period)

    def _standing(self, states: States, limit: float) -> float | None:
        """Seconds in which no rank is known to have moved; None if one did within the limit."""
        # all hosts had the time to answer since then
        if self._questions.complete < time.monotonic() - self._still.seconds:
            return None
        # under load a watch may be late, and a host miss a question: its ranks moved before
        known = {state.rank: state for state in self._questions.last()} | states
        still = [
            state.still if is_awake(state, self._period) else state.silent + state.still
            for state in known.values()
            if state.process_state in ("", "disk")
        ]
        # ranks look at different moments, up to a period apart
        least = min(still, default=0.0) + self._period
        return self._still.seconds if least >= limit else None


def _meet(comm: Comm) -> list[Member]:
    """All ranks. Collective."""
    facts = json.dumps([socket.gethostname(), host_key(), os.getpid()]).encode()
    return [
        Member(rank, *json.loads(data)) for rank, data in enumerate(comm.allgather_bytes(facts))
    ]


def _far_hosts(comm: Comm, members: Sequence[Member], port: int) -> list[Host]:
    """The other hosts. port : where this rank listens. Collective."""
    listed = comm.allgather_bytes(json.dumps([own_addresses(), port]).encode())
    addresses = [json.loads(data) for data in listed]
    own_key = members[comm.rank].key
    hosts = []
    for key in dict.fromkeys(member.key for member in members if member.key != own_key):
        ranks = [member.rank for member in members if member.key == key]
        names = dict.fromkeys(name for rank in ranks for name in addresses[rank][0])
        # an address of every rank, then the next address: one rank may not answer
        pairs = [(name, addresses[rank][1]) for name in names for rank in ranks]
        hosts.append(Host(pairs, frozenset(ranks)))
    return hosts


def _has_debugger() -> bool:
    """Does a debugger hold this process, or its main thread?"""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_globals.get("__name__") == "bdb":
            return True
        frame = frame.f_back
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("TracerPid:"):
                if int(line.split()[1]):
                    return True
                break
    return any(name in sys.modules for name in DEBUGGERS)


def _say(text: str) -> None:
    """One line, where anybody reads."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
