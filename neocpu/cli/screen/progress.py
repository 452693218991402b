"""What does a person see while a run goes on? Where it is, how fast, how long still, and the loss.

    on a terminal                 a bar that moves
    behind mpiexec on a terminal  a line now and then, often at first: bars of several processes
                                  would get mixed up
    in a file or a pipe           a line every half minute

All on stderr, of rank 0 alone.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.cli.screen.terminal import audience
from neocpu.core.units import duration_text
from neocpu.train.watch.results import Advance, Compiled, Listener, RunReport, Watch, unwatched

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.text import Text

    from neocpu.parallel.transport.comm import Comm
    from neocpu.train.watch.rank_log import RankLog

# seconds after the start at which lines are due; then every so many
EARLY = {"relayed": (1.0, 2.0, 5.0, 10.0, 20.0, 30.0), "nobody": ()}
REGULAR = 30.0


class LatestLoss:
    """The loss of the last line of metrics.jsonl, as text; "" before there is one."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self, line: dict[str, object]) -> None:
        """Hear a line: a listener of `RunReport`."""
        for name in ("logloss", "mse"):
            if line["split"] == "train" and line.get(name) is not None:
                self.text = f"loss {line[name]:.5f}"


class Intervals:
    """When are lines due? At first often, if anybody looks, then every half minute."""

    def __init__(self, early: Sequence[float], start: float) -> None:
        self._start = start
        self._early = list(early)

    def due(self, now: float) -> bool:
        """Is a line due at this time? If so, the next one is due later."""
        due = self._early[0] if self._early else REGULAR
        if now - self._start < due:
            return False
        # A long step may pass several due times; one line answers them all.
        while self._early and now - self._start >= self._early[0]:
            self._early.pop(0)
        if not self._early:
            self._start = now
        return True


@contextmanager
def bar(loss: LatestLoss, total: int, done: int) -> Iterator[Advance]:
    """A bar on the terminal: `advance(step, samples)` after each step."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn())
    speed = TextColumn("{task.fields[speed]}")
    # lines printed meanwhile stay above the bar
    console = Console(stderr=True)
    lines = sys.stdout.isatty()
    with Progress(
        *columns, speed, console=console, transient=True, redirect_stdout=lines
    ) as progress:
        task = progress.add_task("steps", total=total, completed=done, speed="")
        samples_done = 0

        def advance(step: int, samples: int) -> None:
            nonlocal samples_done
            samples_done += samples
            elapsed = progress.tasks[task].elapsed or 0.0
            # Over less than a second a rate is noise.
            rate = f"{samples_done / elapsed:,.0f} samples/s" if elapsed > 1 else ""
            progress.update(task, completed=step, speed=f"{rate}  {loss.text}")

        yield advance


@contextmanager
def lines(
    early: Sequence[float],
    loss: LatestLoss,
    total: int,
    done: int,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Advance]:
    """A line on stderr now and then: `advance(step, samples)` after each step."""
    start = clock()
    intervals = Intervals(early, start)
    samples_done = 0

    def advance(step: int, samples: int) -> None:
        nonlocal samples_done
        samples_done += samples
        now = clock()
        if not intervals.due(now):
            return
        elapsed = now - start
        # Of this process's steps only: a run that goes on did not do the others.
        left = elapsed / (step - done) * (total - step)
        parts = [
            f"step {step:,} of {total:,} ({100 * step / total:.0f} %)",
            loss.text,
            f"{samples_done / elapsed:,.0f} samples/s",
            f"{duration_text(left)} left" if step < total else "",
        ]
        say(", ".join(filter(None, parts)))

    yield advance


@contextmanager
def compiling_bar(count: Callable[[], Compiled]) -> Iterator[None]:
    """A line on the terminal that moves while kernels are compiled."""
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn
    from rich.text import Text

    start = time.monotonic()

    # A column, as rich draws the line from a thread of its own while the main thread compiles.
    class Kernels(ProgressColumn):
        """The numbers, asked for again whenever the line is drawn."""

        def render(self, task: "Task") -> "Text":
            return Text(compiling_text(count(), time.monotonic() - start))

    console = Console(stderr=True)
    with Progress(SpinnerColumn(), Kernels(), console=console, transient=True) as progress:
        progress.add_task("kernels", total=None)
        yield


@contextmanager
def compiling_lines(
    early: Sequence[float], count: Callable[[], Compiled], tick: float = 0.5
) -> Iterator[None]:
    """A line on stderr now and then while kernels are compiled."""
    start = time.monotonic()
    intervals = Intervals(early, start)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(tick):
            now = time.monotonic()
            if intervals.due(now):
                say(compiling_text(count(), now - start))

    # The main thread is in the compiler, which does not call back between kernels.
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def compiling_text(compiled: Compiled, elapsed: float) -> str:
    """How far compiling is: "12 of about 70 kernels compiled in 9 s, about 40 s left"."""
    pace = elapsed / compiled.done if compiled.done > 2 else compiled.pace
    left = pace * max(compiled.about - compiled.done, 1)
    return (
        f"{compiled.done} of about {max(compiled.about, compiled.done)} kernels compiled in "
        f"{duration_text(elapsed)}, about {duration_text(left)} left"
    )


def say(text: str) -> None:
    """A line on stderr, if it can still be written."""
    # A closed pipe must not end a run that only wanted to say how far it is.
    with suppress(OSError, ValueError):
        click.echo(text, err=True)


def compiling_shown(rank: int) -> Watch:
    """How to show that kernels are compiled: on rank 0, for whoever looks."""
    if rank:
        return unwatched
    viewer = audience()
    return compiling_bar if viewer == "terminal" else partial(compiling_lines, EARLY[viewer])


def make_report(
    folder: Path,
    rank: int,
    listeners: Sequence[Listener] = (),
    log: "RankLog | None" = None,
) -> RunReport:
    """The report of a run on a command line; listeners, log : as of `RunReport`."""
    if rank:
        return RunReport(folder, rank, log=log)
    loss = LatestLoss()
    viewer = audience()
    shown = partial(bar, loss) if viewer == "terminal" else partial(lines, EARLY[viewer], loss)
    return RunReport(
        folder,
        rank,
        tell=click.echo,
        progress=shown,
        compiling=compiling_shown(rank),
        listeners=(loss, *listeners),
        log=log,
    )


def log_of_rank(folder: Path | None, comm: "Comm") -> "AbstractContextManager[RankLog | None]":
    """The log of this rank while the block lasts; None without a folder. Collective."""
    if folder is None:
        return nullcontext()
    from neocpu.train.watch.rank_log import rank_log

    return rank_log(folder, comm)
