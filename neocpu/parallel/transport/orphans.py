"""What becomes of a rank whose launcher was killed? It ends by itself, within a second.

Open MPI's mpiexec leaves its ranks running when it is killed by SIGKILL, and so do other launchers
when their server of one host dies: the ranks would train on, hold the folder of results, and
nobody could reach them. `end_with_launcher` watches the launcher from a thread.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from neocpu.parallel.transport.stale import LAUNCHERS

EVERY = 0.25  # seconds between two looks
GENERATIONS = 8  # a launcher may start a shell, which starts the rank
STATUS = 137  # as of a process that was killed


def end_with_launcher() -> bool:
    """End this process soon after the launcher that started it; false where none is seen."""
    launcher = _launcher()
    if launcher is None:
        return False
    threading.Thread(target=_watch, args=(launcher,), name="launcher", daemon=True).start()
    return True


class _Process(NamedTuple):
    """A running process of this host; `started` tells it from a later one of the same number."""

    number: int
    name: str
    parent: int
    started: str


def _look(number: int) -> _Process | None:
    """A process by its number; None if it has ended. OSError where that cannot be told."""
    try:
        # the name stands in brackets, and may itself hold brackets and blanks
        head, _, tail = Path(f"/proc/{number}/stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = tail.split()
    if fields[0] in ("Z", "X"):  # it has ended, and nobody has asked for its status
        return None
    return _Process(number, head.partition("(")[2], int(fields[1]), fields[19])


def _launcher() -> _Process | None:
    """The nearest of this process's parents and grandparents that starts ranks, by its name."""
    number = os.getppid()
    for _ in range(GENERATIONS):
        try:
            process = _look(number)
        except OSError:
            return None
        if process is None or process.name.startswith(LAUNCHERS):
            return process
        number = process.parent
    return None


def _watch(launcher: _Process) -> None:
    """End this process when the launcher has ended: at once, as all its ranks do.

    The launcher's own parent may end before it (`nohup mpiexec ... &`), which changes nothing.
    """
    running: _Process | None = launcher
    while running is not None and running.started == launcher.started:
        time.sleep(EVERY)
        with suppress(OSError):  # such as too many open files: look again later
            running = _look(launcher.number)
    # not sys.exit, which would end this thread only
    os._exit(STATUS)
