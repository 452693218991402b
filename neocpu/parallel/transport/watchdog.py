"""Who notices that a job stands still, and says why? A thread of every rank, which mostly sleeps.

Each rank's watch counts the seconds in which its rank did nothing new (`Pulse`), and writes that to
the page of its host. Work that may take long (reading data, compiling, writing) counts as standing
still only while the process takes neither time of a core nor reads or writes. Where a rank has
stood still for long, its watch looks at all others: those of its host by their page and the
system's word on their processes, those of other hosts by asking them. If nobody has moved since,
the lowest rank that can speak says in one line which collective is waited for, who is not there,
and what those ranks were last seen doing; after `timeout` every rank ends.
"""

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from neocpu.core.types import Tree
from neocpu.parallel.transport.abort import say_for_host
from neocpu.parallel.transport.asking import Host, Listener, ask, own_addresses
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.ends import Ends, host_key
from neocpu.parallel.transport.pulse import Pulse
from neocpu.parallel.transport.rank_page import RankPage, RankState, process_fields, seen_now

STALLED = "neocpu: error: the run has stood still"
ENDED = "neocpu: error: rank "
OVER = "no step, since the run is over"
STATUS = 124  # as of timeout(1)
OFTEN = 0.1  # seconds between two looks, at least
SELDOM = 2.0  # and at most
# a process is at work if it takes so much of a core, or so many bytes a second
AT_WORK = 0.02
BYTES_AT_WORK = 1 << 16
# modules that a debugger brings
DEBUGGERS = ("pydevd", "debugpy")


@dataclass(frozen=True)
class Member:
    """Where a rank runs. key : the same for ranks that share memory and process numbers."""

    rank: int
    host: str
    key: str
    process: int


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
        self._far: list[Host] = []
        # on one host the page says it all, and no port is opened
        if len(self._near) < comm.size:
            self._listener = Listener(self.token, self._near_states)
            self._far = _far_hosts(comm, self.members, self._listener.port)
        self._started = (process_fields(Path("/proc/self")) or [""] * 20)[19]
        self._debugged = sys.gettrace() is not None
        self._still = Stillness(self._pulse, self._period)
        self._asked: dict[int, tuple[float, RankState]] = {}  # newest answers, and when they came
        self._ends = Ends([member.process for member in self._near if member != self._own])
        self._warned = 0.0  # seconds that it had stood still when that was due
        self._spoke = False  # was it this rank that said so?
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    def record(self) -> Tree:
        """Where the ranks are, JSON-able."""
        return {"token": self.token, "ranks": [asdict(member) for member in self.members]}

    def stop(self) -> None:
        """Watch no more."""
        self._ends.close()
        self._thread.join()
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
            if self._rank == 0 and time.monotonic() > calm_until:
                # what other hosts were last seen doing has to be known before they are gone
                self._ask()
                calm_until = time.monotonic() + max(self._warn_after, 10 * self._period)
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
            wait="" if wait is None else _collective(wait[0]),
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
        self._spoke = self._rank == _speaker(states, self._period)
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
        speaks = self._rank == _speaker(states, self._period)
        # the end of the one that speaks ends all ranks that the launcher can reach
        if not speaks and self._ends.wait(2 * self._period + 2.0) is None:
            return
        say_for_host(
            f"neocpu: error: {self._words(states, still)}; ended (parallel.timeout = "
            f"{self._timeout:g}); {self._newest()}"
        )
        # the launcher still has to read what was printed
        time.sleep(0.5)
        os._exit(STATUS)

    def _newest(self) -> str:
        newest = self._pulse.checkpoint
        return f"the newest checkpoint is {newest}" if newest else "there is no checkpoint yet"

    def _say_who_ended(self, process: int) -> None:
        """A rank of this host is no more: the launcher will soon end this one too."""
        rank = next(member.rank for member in self._near if member.process == process)
        state = self._page.read(rank)
        if state is None or state.doing == OVER:
            return
        # not if the rank itself has said why
        say_for_host(
            f"{ENDED}{rank} on {self._own.host} (process {process}) has ended, last seen "
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

    def _ask(self) -> None:
        if self._far:
            now = time.monotonic()
            self._asked |= {state.rank: (now, state) for state in ask(self._far, self.token)}

    def _look(self) -> dict[int, RankState]:
        """What is known now of all ranks that can be seen."""
        begun = time.monotonic()
        self._ask()
        answers = [state for when, state in self._asked.values() if when >= begun]
        return {state.rank: state for state in (*answers, *self._near_states())}

    def _standing(self, states: dict[int, RankState], limit: float) -> float | None:
        """Seconds in which no rank moved that can be seen; None if one did within the limit."""
        awake = [state.still for state in states.values() if _awake(state, self._period)]
        # ranks look at different moments, up to a period apart
        least = min(awake, default=0.0) + self._period
        return self._still.seconds if least >= limit else None

    def _words(self, states: dict[int, RankState], still: float) -> str:
        """What is waited for, and who is not there."""
        waits = Counter(
            (state.wait, state.step) for state in states.values() if state.wait and _awake(state)
        )
        wanted = ""
        if waits:
            (wait, step), _ = waits.most_common(1)[0]
            where = f" of step {step}" if step else " before the first step"
            wanted = f", waiting for {wait}{where}"
        absent = [*self._unreached(states), *_absent(states, waits)]
        if not absent:
            absent = ["all ranks are there, but their messages do not arrive"]
        return f"the run has stood still for {still:.0f} s{wanted}: {'; '.join(absent)}"

    def _unreached(self, states: dict[int, RankState]) -> list[str]:
        """Hosts of which no rank can be seen."""
        lines = []
        for host in dict.fromkeys(member.key for member in self.members):
            members = [member for member in self.members if member.key == host]
            if any(member.rank in states for member in members):
                continue
            ranks = ", ".join(str(member.rank) for member in members)
            line = f"host {members[0].host} (rank {ranks}) does not answer"
            seen = [self._asked[m.rank] for m in members if m.rank in self._asked]
            if seen:
                when, state = seen[0]
                ago = time.monotonic() - when + state.silent
                line += f"; {ago:.0f} s ago its rank {state.rank} was {state.where}"
            lines.append(line)
        return lines


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
        self._work = _work(os.getpid())
        return (
            self._work[0] - seconds > AT_WORK * passed
            or self._work[1] - size > BYTES_AT_WORK * passed
        )


def _work(process: int) -> tuple[float, int]:
    """Seconds of cores, and bytes read and written, of a process and those that it started."""
    folder = Path(f"/proc/{process}")
    if not (stat := process_fields(folder)):
        return time.monotonic(), 0  # another system than Linux: it is always at work
    seconds = sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")
    size = 0
    with suppress(OSError, ValueError):
        lines = (folder / "io").read_text().split()
        size = sum(map(int, lines[1:4:2]))
    with suppress(OSError):
        for thread in (folder / "task").iterdir():
            for child in (thread / "children").read_text().split():
                more_seconds, more_size = _work(int(child))
                seconds += more_seconds
                size += more_size
    return seconds, size


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


def _collective(name: tuple[str, str, str]) -> str:
    """A collective, for people."""
    _, verb, what = name
    return f"{verb} '{what}'" if what else verb


def _awake(state: RankState, period: float = SELDOM) -> bool:
    """Does a rank's watch run?"""
    return state.process_state in ("", "disk") and state.silent < 3 * period + 1.0


def _speaker(states: dict[int, RankState], period: float) -> int:
    """The lowest rank that can speak."""
    ranks = [rank for rank, state in states.items() if _awake(state, period)]
    return min(ranks, default=-1)


def _absent(states: dict[int, RankState], waits: Counter[tuple[str, int]]) -> list[str]:
    """Ranks that can be seen, and do not wait as most do."""
    usual = waits.most_common(1)[0][0] if waits else None
    lines = []
    for _, state in sorted(states.items()):
        who = f"rank {state.rank} on {state.host} (process {state.process})"
        seen = f", last seen {state.where}"
        match state.process_state:
            case "gone":
                lines.append(f"{who} is no more{seen}")
            case "stopped":
                lines.append(f"{who} is stopped{seen}; `kill -CONT {state.process}` there wakes it")
            case "traced":
                lines.append(f"{who} is held by a debugger{seen}")
            case _ if not _awake(state):
                lines.append(f"{who} does not answer for {state.silent:.0f} s{seen}")
            case disk if (state.wait, state.step) != usual:
                why = ", where it waits for a disk" if disk else ""
                lines.append(f"{who} is {state.where} for {state.still:.0f} s{why}")
    return lines


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
