"""What did each rank of a run do, and when? A file of lines for each, DIR/rank-N.log.

What rank 0 tells, warnings of Python, the phases of the run with their seconds, the pace of the
steps, and the traceback of what ended the rank. Lines are written at once, so that those of a rank
that was killed are there.
"""

import os
import platform
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from neocpu.core.cores import available
from neocpu.core.errors import EnvironmentProblem, told_as
from neocpu.parallel.transport.comm import Comm

FORMAT = "rank-{}.log"


class RankLog:
    """The log of one rank; what a resumed run says is appended.

    Raises EnvironmentProblem for a folder that cannot be written.
    """

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self.path = folder / FORMAT.format(rank)
        self._last = time.perf_counter()
        with told_as(EnvironmentProblem, self.path):
            folder.mkdir(parents=True, exist_ok=True)
            # a descriptor, not a file object: nothing is buffered that a kill would lose
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file: int | None = os.open(self.path, flags, 0o666)
        cores = sorted(available())
        self.note(
            f"rank {rank} of {ranks}, process {os.getpid()} on {platform.node()}, "
            f"{len(cores)} usable cores ({_ranges(cores)}), "
            f"{os.environ.get('NUMBA_NUM_THREADS', 'all')} threads"
        )

    def note(self, text: str) -> None:
        """Add a line, with the time, and seconds since the line before."""
        now = time.perf_counter()
        when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        self._write(f"{when} {now - self._last:+10.3f} s  {text}\n")
        self._last = now

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note Python's warnings, and what ends the block if it fails."""
        shown = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            self.note(f"warning: {filename}:{lineno}: {category.__name__}: {message}")
            shown(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        try:
            yield
            self.note("done")
        # also KeyboardInterrupt and SystemExit: the log is to say what ended the rank
        except BaseException as error:
            self.note(f"ended by {type(error).__name__}: {error}")
            self._write("".join(traceback.format_exception(error)))
            raise
        finally:
            warnings.showwarning = shown

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, text: str) -> None:
        """Write, if it can still be written: a full disk ends no run."""
        if self._file is None:
            return
        try:
            # names of files may be bytes that are no UTF-8
            os.write(self._file, text.encode(errors="replace"))
        except OSError:
            self.close()


def _ranges(cores: list[int]) -> str:
    """Numbers of cores: "0-3,8"."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


@contextmanager
def rank_log(folder: Path, comm: Comm) -> Iterator[RankLog]:
    """The log of this rank while the block lasts. Collective.

    Raises EnvironmentProblem, on every rank, where one cannot write its log.
    """
    log = None
    try:
        # one rank without a log would train while the others stop
        with comm.agreeing():
            log = RankLog(folder, comm.rank, comm.size)
        assert log is not None
        with log.watching():
            yield log
    finally:
        if log is not None:
            log.close()
