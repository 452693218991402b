"""How did a job end whose ranks were killed? The process that started mpiexec outlives it.

Ranks that are killed say nothing, and what the launcher then prints are its own internals. So
`supervise` stays mpiexec's parent: it hands on what ranks print, keeps the launcher's own lines
back, passes signals on, and returns an `Ending`. If this process is killed, so is mpiexec.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self, TextIO

from neocpu.core.cores import end_with_parent, host_key, memory_kills
from neocpu.parallel.transport.abort import Handler
from neocpu.parallel.watch.ends import Ends
from neocpu.parallel.watch.watchdog import ERROR
from neocpu.parallel.watch.words import STALLED

STOPS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT")
    if hasattr(signal, name)
]
# seconds that a launcher has to end once ranks said that the run stands still: it waits for ever
# for a host that it cannot reach
GRACE = 5.0

RULE = re.compile(r"[=-]{60,}$")
# lines of MPICH, Intel MPI, Hydra
LINES = re.compile(
    r"=   (BAD TERMINATION|KILLED BY|RANK \d|PID \d|EXIT CODE|CLEANING UP|YOU CAN IGNORE)"
    r"|YOUR APPLICATION TERMINATED WITH"
    r"|This typically refers to a problem with your application"
    r"|Please see the FAQ page for debugging"
    r"|\[(mpiexec|proxy:[\d:]+)@"
    r"|Abort\(\d+\) on node .*application called MPI_Abort"
)
# paragraphs of Open MPI, between two rules
PARAGRAPHS = re.compile(
    r"noticed that process rank|MPI_ABORT was invoked|non-zero (exit code|status)|Primary job"
    r"|lost communication|daemon.*(lost|failed|died)",
    re.DOTALL,
)
KILLED = (
    re.compile(
        r"process rank (?P<rank>\d+) with PID (?P<process>\d+) on\s+node (?P<host>\S+) exited\s+on"
        r"\s+signal (?P<signal>\d+)"
    ),
    re.compile(
        r"(RANK (?P<rank>\d+) )?PID (?P<process>\d+) RUNNING AT (?P<host>\S+).*"
        r"(\(signal |KILLED BY SIGNAL: )(?P<signal>\d+)",
        re.DOTALL,
    ),
)
# what a rank says of another one of its host, before it is ended itself
SEEN = re.compile(
    ERROR + r"rank (?P<rank>\d+) on (?P<host>.*) \(process (?P<process>\d+)\) has ended"
)
LOST = re.compile(
    r"assert \(!closed\) failed|lost communication|daemon|Launch proxy failed", re.DOTALL
)
# what ranks say of how they ended
SAID = re.compile(r"neocpu: (error: |stopped by |interrupted)")
# what MPICH and its kin, and Open MPI, say of ranks that cannot meet
UNMET = re.compile(r"Fatal error in (internal_|P?MPI_)Init|looks like MPI_INIT failed")
# of a host whose link went away while MPICH started ranks there
UNREACHED = re.compile(r'unable to connect from "(?P<host>[^"]+)" to')
# of MPICH, where a variable says how long a job may take
TIMED_OUT = re.compile(r"APPLICATION TIMED OUT, TIMEOUT = (?P<seconds>\d+)s")


@dataclass
class Ending:
    """How a job ended.

    status : of mpiexec, as shells count it; of the rank, where one was killed. signal : that killed
    a rank (0: none did), whose `process` and `host` are what the launcher calls them, and `rank`,
    where it tells it. lost : a host, or what the launcher had running there, is gone. first : rank,
    host and process of the rank of this host that ended before all others. stalled : ranks ended
    themselves, since the run stood still. starved : the system killed a process, as a limit on this
    one's control groups left no memory. stopped : how often this process was asked to end it. unmet
    : MPI's library could not start a rank, which it says itself. limit : seconds after which
    mpiexec ended it (0: it did not). unwritten : why not all lines could be written to stdout. said
    : ranks told how they ended. talk : the launcher's lines.
    """

    status: int = 0
    signal: int = 0
    process: int = 0
    host: str = ""
    rank: int | None = None
    lost: bool = False
    first: tuple[int, str, int] | None = None
    stalled: bool = False
    starved: bool = False
    stopped: int = 0
    unmet: bool = False
    limit: int = 0
    unwritten: str = ""
    said: bool = False
    talk: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Take from the launcher's lines what they say."""
        text = "".join(self.talk)
        for pattern in KILLED:
            if match := pattern.search(text):
                facts = match.groupdict()
                self.signal = int(facts["signal"])
                self.process = int(facts["process"])
                self.host = facts["host"]
                self.rank = None if facts["rank"] is None else int(facts["rank"])
                break
        else:
            self.lost = bool(LOST.search(text))
            if match := TIMED_OUT.search(text):
                self.limit = int(match["seconds"])
            if match := UNREACHED.search(text):
                self.host = match["host"]
        if self.signal and not self.unmet:
            self.status = 128 + self.signal  # MPICH's has the signal alone
        # MPICH's launcher names any of the ranks, which it has killed itself but for one
        if self.signal and self.first:
            self.rank, self.host, self.process = self.first
        elif self.signal and (match := SEEN.search(text)):
            self.rank = int(match["rank"])
            self.host = match["host"]
            self.process = int(match["process"])

    @property
    def wanted(self) -> bool:
        """Did it end as it was asked to? A rank that is killed while it writes the checkpoint of a
        good end did not, unless somebody asked again.
        """
        by_signal = self.signal and self.signal not in STOPS
        return self.stopped > 1 or (self.stopped == 1 and not (by_signal or self.stalled))

    @property
    def explained(self) -> bool:
        """Do we know as much as the launcher's lines tell?"""
        aborted = any("MPI_Abort" in line or "MPI_ABORT" in line for line in self.talk)
        return not self.status or aborted or bool(self.signal) or self.lost or self.stalled


class Stops:
    """Signals that ask a job to end, during the block: mpiexec is sent them, and so the ranks.

    count : how many came. number : the first (0: none). Between two lives of a job `wait` ends.
    """

    def __init__(self) -> None:
        self.count = 0
        self.number = 0
        self._mpiexec: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in STOPS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self.count += 1
        self.number = self.number or number
        self._send(number)

    def _send(self, number: int) -> None:
        # MPICH's mpiexec passes SIGUSR1 on, but ends of SIGUSR2, and the ranks with it
        number = signal.SIGUSR1 if number == signal.SIGUSR2 else number
        if self._mpiexec is not None:
            with suppress(ProcessLookupError):
                self._mpiexec.send_signal(number)

    def pass_to(self, mpiexec: "subprocess.Popen[bytes] | None") -> None:
        """From now on this process is sent them, and what came before; None: nobody is."""
        self._mpiexec = mpiexec
        if self.number:
            self._send(self.number)

    def wait(self, seconds: float) -> None:
        """Wait so long, or until one comes."""
        end = time.monotonic() + seconds
        # the handler runs in this thread, in which an event's lock could wait for itself
        while not self.count and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))


class Talk:
    """Tells a launcher's lines from those of ranks, on one stream."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending
        self._paragraph: list[str] = []  # it began with a rule; whose it is, is seen at its end
        self._blank: list[str] = []  # may belong to the launcher's next line

    def ranks_lines(self, line: str) -> list[str]:
        """What is to be handed on, now that this line has come."""
        text = line.rstrip("\r\n")
        if self._paragraph:
            self._paragraph.append(line)
            ended = RULE.match(text) or len(self._paragraph) > 60
            return self._end_paragraph() if ended else []
        if RULE.match(text) and text[0] == "-":
            self._paragraph = [line]
            return []
        if SEEN.match(text) or RULE.match(text) or LINES.match(text):
            self._ending.talk.append(line)
            self._blank = []
            return []
        if not text:
            self._blank.append(line)
            return []
        lines = [*self._blank, line]
        self._blank = []
        return lines

    def rest(self) -> list[str]:
        """What is left at the end of the stream."""
        return self._end_paragraph() if self._paragraph else []

    def _end_paragraph(self) -> list[str]:
        paragraph = self._paragraph
        self._paragraph = []
        if PARAGRAPHS.search("".join(paragraph)):
            self._ending.talk += paragraph
            return []
        lines = [*self._blank, *paragraph]
        self._blank = []
        return lines


def supervise(
    command: Sequence[str], environment: Mapping[str, str], record: Path, stops: Stops
) -> Ending:
    """Run mpiexec to its end; its lines that say no more than the `Ending` does are not shown.

    record : the file in which rank 0 writes where the ranks are (`Watchdog.record`).
    """
    record.unlink(missing_ok=True)
    ending = Ending()
    # what was printed here comes before what ranks print
    sys.stdout.flush()
    sys.stderr.flush()
    mpiexec = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a group of its own: a terminal's Ctrl-C reaches it once, through this process; MPICH's
        # takes a second one within moments as the wish to end at once
        process_group=0,
        preexec_fn=end_with_parent,  # noqa: PLW1509  (no thread runs here yet)
    )
    kills = memory_kills()
    stops.pass_to(mpiexec)
    try:
        relays = [
            threading.Thread(target=_relay, args=(stream, out, ending, mpiexec), daemon=True)
            for stream, out in ((mpiexec.stdout, sys.stdout), (mpiexec.stderr, sys.stderr))
        ]
        looks = threading.Thread(
            target=_look_for_first, args=(record, ending, mpiexec), daemon=True
        )
        for thread in (*relays, looks):
            thread.start()
        status = mpiexec.wait()
        for relay in relays:
            relay.join(2.0)  # a process that was left behind may keep the pipe open
    finally:
        stops.pass_to(None)
    ending.stopped = stops.count
    ending.starved = memory_kills() > kills
    ending.status = status if status >= 0 else 128 - status
    ending.read()
    if status < 0 and not ending.signal:  # mpiexec itself was killed, or the one rank
        ending.signal, ending.process, ending.host = -status, mpiexec.pid, socket.gethostname()
    if not ending.explained:
        _write(sys.stderr, "".join(ending.talk))
    if ending.unwritten and not ending.status:
        where = f"the summary is in {record.parent}"
        _write(sys.stderr, f"neocpu: stdout cannot be written ({ending.unwritten}); {where}\n")
    return ending


def _look_for_first(record: Path, ending: Ending, mpiexec: "subprocess.Popen[bytes]") -> None:
    """See which rank of this host is the first to end."""
    key = host_key()
    while not record.exists():  # until the ranks know each other
        if mpiexec.returncode is not None:
            return
        time.sleep(0.2)
    with suppress(OSError, ValueError):
        ranks = {
            rank["process"]: rank
            for rank in json.loads(record.read_text(encoding="utf-8"))["ranks"]
            if rank["key"] == key
        }
        ends = Ends(list(ranks))
        while not (process := ends.wait(60.0)):
            pass
        ends.close()
        ending.first = (ranks[process]["rank"], ranks[process]["host"], process)


def _relay(
    stream: IO[bytes], out: TextIO, ending: Ending, mpiexec: "subprocess.Popen[bytes]"
) -> None:
    """Hand on a stream's lines, but the launcher's."""
    talk = Talk(ending)
    with stream:
        for data in stream:
            line = data.decode(errors="replace")
            ending.said |= SAID.match(line) is not None
            ending.unmet |= UNMET.search(line) is not None
            if line.startswith(ERROR + STALLED):
                if ending.stalled:  # a rank of every host says so, each by its own clock
                    continue
                ending.stalled = True
                end = threading.Timer(GRACE, _end, (mpiexec,))
                end.daemon = True
                end.start()
            unwritten = _write(out, "".join(talk.ranks_lines(line)))
            if out is sys.stdout:
                ending.unwritten = ending.unwritten or unwritten
    _write(out, "".join(talk.rest()))


def _end(mpiexec: "subprocess.Popen[bytes]") -> None:
    """End a launcher that waits for a host that it cannot reach."""
    with suppress(ProcessLookupError, PermissionError):
        if mpiexec.poll() is None:
            os.killpg(mpiexec.pid, signal.SIGKILL)


def _write(out: TextIO, text: str) -> str:
    """Write as far as anybody reads; ranks must never wait for a pipe that nobody empties.

    Returns why it could not be written; "": it was.
    """
    encoding = out.encoding or "utf-8"
    try:
        if text:
            out.write(text.encode(encoding, "backslashreplace").decode(encoding))
            out.flush()
    except OSError as error:
        return error.strerror or str(error)
    except ValueError:  # it was closed
        return "it is closed"
    return ""
