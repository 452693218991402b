"""What do the ranks of a host know of each other while they stand still? A page of shared memory.

Each rank's watch writes a record there, now and then. The record of a rank that was stopped or
killed stays, and the system tells the rest of its process. Nothing here can hang on a disk or a
network.
"""

import json
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

RECORD = 1024  # bytes
# seconds without a word after which a job is over that left its page: its ranks write every 2 s
LEFT = 60.0
SAID = ".ended"
STATES = {"T": "stopped", "t": "traced", "D": "disk", "Z": "gone", "X": "gone"}


@dataclass(frozen=True)
class RankState:
    """What is known of a rank.

    host, process : where it runs; started : of the process, in the system's ticks.
    step, doing, wait : as of `Pulse`; wait is the text of the collective, "" where it works.
    still : seconds in which nothing of that changed. at : when that was so, in seconds of the
    host's clock; silent : seconds since then.
    debugged : does a debugger hold it? process_state : "" (it runs), "stopped", "traced", "disk"
    (some thread waits for one), "gone".
    """

    rank: int
    host: str = ""
    process: int = 0
    started: str = ""
    step: int = 0
    doing: str = ""
    wait: str = ""
    still: float = 0.0
    at: float = 0.0
    silent: float = 0.0
    debugged: bool = False
    process_state: str = ""

    @property
    def where(self) -> str:
        """What it was doing, for people."""
        step = f" of step {self.step}" if self.step else ""
        return f"waiting for {self.wait}{step}" if self.wait else f"in {self.doing}{step}"


class RankPage:
    """The records of the ranks of this host, in a file of shared memory named by the job's token.

    Raises OSError where it cannot be made.
    """

    def __init__(self, token: str) -> None:
        self.path = page_path(token)
        for old in self.path.parent.glob("neocpu-*.ranks"):
            with suppress(OSError):
                if time.time() - old.stat().st_mtime > LEFT:
                    remove_page(old)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)

    def write(self, state: RankState) -> None:
        """Put a rank's record there."""
        text = json.dumps(asdict(state))[: RECORD - 1]
        os.pwrite(self._file, text.ljust(RECORD).encode("ascii"), state.rank * RECORD)

    def read(self, rank: int) -> RankState | None:
        """What is known of a rank of this host; None: it wrote nothing yet."""
        return _parsed(os.pread(self._file, RECORD, rank * RECORD))

    def say_for_host(self, text: str) -> None:
        """Print why the job ends, if no other rank of this host did: at once, since the launcher
        may end this process within a millisecond.
        """
        with suppress(OSError):
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            os.close(os.open(self.path.with_suffix(SAID), flags, 0o600))
            os.write(2, f"{text}\n".encode())

    def remove(self) -> None:
        """Close it; its name goes too."""
        os.close(self._file)
        remove_page(self.path)


def page_path(token: str) -> Path:
    """Where the page of a job is, on each host."""
    memory = Path("/dev/shm")
    folder = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    return folder / f"neocpu-{token}.ranks"


def remove_page(path: Path) -> None:
    """Remove a page, and the mark that somebody has spoken."""
    for file in (path, path.with_suffix(SAID)):
        with suppress(OSError):
            file.unlink()


def last_words(token: str, rank: int) -> RankState | None:
    """The record of a rank of this host whose job has ended."""
    with suppress(OSError):
        file = os.open(page_path(token), os.O_RDONLY)
        try:
            return _parsed(os.pread(file, RECORD, rank * RECORD))
        finally:
            os.close(file)
    return None


def _parsed(data: bytes) -> RankState | None:
    """A record; None where there is none, or a part."""
    try:
        facts = json.loads(data.strip(b"\0 "))
        return RankState(**facts)
    except (ValueError, TypeError):
        return None


def seen_now(state: RankState) -> RankState:
    """The record of a rank of this host, with what the system says of its process now."""
    silent = time.monotonic() - state.at
    return replace(state, silent=silent, process_state=_process_state(state))


def _process_state(state: RankState) -> str:
    """As `RankState.process_state`."""
    folder = Path(f"/proc/{state.process}")
    if not Path("/proc/self/stat").exists():  # another system than Linux
        return ""
    main = process_fields(folder)
    if not main or (state.started and main[19] != state.started):
        return "gone"
    letters = [main[0]]
    with suppress(OSError):
        threads = (folder / "task").iterdir()
        letters += [letter[0] for thread in threads if (letter := process_fields(thread))]
    if letters[0] == "D" or "D" in letters:
        return "disk"
    return STATES.get(letters[0], "")


def process_fields(folder: Path) -> list[str]:
    """The fields of a process's or thread's `stat` after its name; none where it is no more."""
    try:
        # the name stands in brackets, and may itself hold brackets and blanks
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def from_answer(facts: object) -> RankState | None:
    """A record that another host sent; None for one that is none."""
    names = {field.name for field in fields(RankState)}
    if not isinstance(facts, dict) or set(facts) != names:
        return None
    return RankState(**facts)
