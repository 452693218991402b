"""What does a person see while a run goes on? Lines of rank 0, and a progress bar on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from neocpu.training.results import RunReport, Watch, unwatched

Advance = Callable[[int, int], None]


@contextmanager
def bar(total: int, done: int) -> Iterator[Advance]:
    """A progress bar on stderr: `advance(step, samples)` after each step."""
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
            rate = f"{samples_done / elapsed:,.0f} samples/s" if elapsed > 1 else ""
            progress.update(task, completed=step, speed=rate)

        yield advance


@contextmanager
def compiling(count: Callable[[], int]) -> Iterator[None]:
    """A line on stderr with the number of kernels compiled so far, which `count` knows."""
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
    from rich.text import Text

    class Kernels(ProgressColumn):
        """The number, asked for again whenever the line is drawn."""

        def render(self, task: Task) -> Text:
            return Text(f"{count()} kernels compiled")

    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(), Kernels(), TimeElapsedColumn(), console=console, transient=True
    ) as progress:
        progress.add_task("kernels", total=None)
        yield


def compiling_on_terminal(rank: int) -> Watch:
    """How to show that kernels are compiled: nothing where nobody looks, and on other ranks."""
    return unwatched if rank or not sys.stderr.isatty() else compiling


def make_report(folder: Path, rank: int) -> RunReport:
    """The report of a run on a command line."""
    if rank:
        return RunReport(folder, rank)
    return RunReport(
        folder,
        rank,
        tell=click.echo,
        progress=bar if sys.stderr.isatty() else None,
        compiling=compiling_on_terminal(rank),
    )
