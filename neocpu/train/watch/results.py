"""What does a run leave behind for people and programs? Files in its folder, written by rank 0.

    config.json     all keys of the config, and the TOML text they came from
    metrics.jsonl   a line per measurement: step, samples, split, and the metrics
    plan.json       which rank holds which rectangle of which table
    ranks.json      which process on which host each rank is
    run.json        the summary, at the end
    loss.png        the curves of metrics.jsonl, if matplotlib is there

What is shown meanwhile is not decided here: `tell`, `progress` and `compiling` are callbacks of
whoever runs the training.

None of this decides what is learnt, so nothing that goes wrong here (a full disk, a folder that was
removed, a terminal that was closed) ends a run: it is told once, and the run goes on. Only the
callbacks of a caller in Python do.
"""

import contextlib
import errno
import importlib.util
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from neocpu.core.targets import whole_file
from neocpu.core.types import JsonObject, Tell, Tree
from neocpu.parallel.sharding.plan import Plan
from neocpu.train.config.config import Config
from neocpu.train.config.keys import config_record
from neocpu.train.watch.complaints import ValidWatch
from neocpu.train.watch.metrics import Metrics

if TYPE_CHECKING:
    from neocpu.train.watch.rank_log import RankLog

Advance = Callable[[int, int], None]
# (steps in all, steps done) -> advance(step, samples)
Progress = Callable[[int, int], AbstractContextManager[Advance]]


class Compiled(NamedTuple):
    """Kernels that have been compiled so far, about how many there will be in all, and the seconds
    that one was expected to take.
    """

    done: int
    about: int
    pace: float


# shows how many kernels have been compiled, asking the function now and then, while the block lasts
Watch = Callable[[Callable[[], Compiled]], AbstractContextManager[None]]
# hears every line of metrics.jsonl; True asks the run to stop, as if this were its last step
Listener = Callable[[dict[str, object]], object]
# what the curves of the picture are
CURVES = {"train": "mean of the last 100 batches, each before its update"}
MEASURED = "the whole split, at that step"
RANKS = "ranks.json"
PACKAGES = ("neocpu", "numba", "numpy", "mpi4py", "h5py")


def silent(text: str) -> None:
    """Tell nobody."""


@contextmanager
def no_progress(total: int, done: int) -> Iterator[Advance]:
    """Show nothing."""
    yield lambda step, samples: None


@contextmanager
def unwatched(count: Callable[[], Compiled]) -> Iterator[None]:
    """Show nothing."""
    yield


class RunReport:
    """The reporting side of a run; on ranks other than 0 it does nothing.

    tell : shows one line. progress : a context manager that yields `advance(step, samples of that
        step)`. compiling : shows how many kernels have been compiled.
    listeners : each is called on rank 0 with every line of metrics.jsonl, a dict of its own. One
        that returns True ends the run well after this step, on all ranks: it is measured and saved
        as after its last step. One that raises is told, and not called again.
    callbacks : the same of a run of one rank, but what one raises ends the run.
    log : of this rank, on any rank; it gets all that is told, and phases of the run.

    Attributes: stop_asked, did a listener ask for the end of the run? follow, makes the folder
    again where it was renamed or removed, and says so (None: nobody does).
    """

    def __init__(
        self,
        out: Path,
        rank: int,
        *,
        tell: Tell | None = None,
        progress: Progress | None = None,
        compiling: Watch = unwatched,
        listeners: Sequence[Listener] = (),
        callbacks: Sequence[Listener] = (),
        log: "RankLog | None" = None,
    ) -> None:
        self.out = Path(out)
        self.stop_asked = False
        self.compiling = compiling
        self._first = rank == 0
        self._tell = tell or silent if self._first else silent
        self._failed: set[str] = set()  # files of which it was told that they cannot be written
        self._progress = progress or no_progress if self._first else no_progress
        self.follow: Callable[[], str] | None = None
        self._lasting: dict[str, object] = {}  # what the run is, by file
        self._trimmed = False
        self._listeners: list[Listener] = [
            *listeners,
            ValidWatch(lambda text: self.tell(f"note: {text}")),
        ]
        self._callbacks = callbacks
        self._log = log

    def tell(self, text: str) -> None:
        """One line for whoever watches, as long as anybody can."""
        if self._first:
            self.note(text)
        try:
            self._tell(text)
        except (OSError, ValueError):  # a full disk, a pipe or a stream that was closed
            self._tell = silent

    def note(self, text: str) -> None:
        """One line for the log of this rank, if it has one."""
        if self._log is not None:
            self._log.note(text)

    def progress(self, total: int, done: int) -> AbstractContextManager[Advance]:
        """Progress over `total` steps, of which `done` are done."""
        return self._progress(total, done)

    def config(self, config: Config) -> None:
        """Save the config, so that a run can be read before it has ended."""
        if self._first:
            self._write_again("config.json", config_record(config))

    def ranks(self, record: Tree) -> None:
        """Save where the ranks are, for whoever looks after them (`run/survival.py`)."""
        if self._first:
            self._write_again(RANKS, record)

    def plan(
        self, plan: Plan, state_floats: tuple[int, int] = (0, 0), more_lines: Sequence[str] = ()
    ) -> None:
        """Save the plan and show it; then show more lines about the tables."""
        if not self._first:
            return
        self.tell(plan.text(state_floats))
        self._write_again("plan.json", plan.to_dict())
        for line in more_lines:
            self.tell(line)

    def metrics(
        self,
        step: int,
        samples: int,
        split: str,
        metrics: Metrics,
        pace: Tree | None = None,
        shown: bool = True,
    ) -> None:
        """Add one measurement: metrics.jsonl gets a line, and the listeners hear it.

        pace : how fast training is (`TrainLog.pace`), for lines of the split "train". shown : is
        the line told too?

        After a resume, lines that the interrupted run wrote for this step and later go first.
        """
        if not self._first:
            return
        values = metrics.to_dict()
        measured = values.pop("samples")
        line = {"step": step, "samples": samples, "split": split, "measured": measured}
        line |= values | dict(pace or {})
        self._write("metrics.jsonl", lambda path: self._append(path, step, json.dumps(line)))
        if shown:
            defined = {name: value for name, value in values.items() if value is not None}
            numbers = ", ".join(
                f"{name} {value}" if isinstance(value, int) else f"{name} {value:.5f}"
                for name, value in defined.items()
            )
            self.tell(f"step {step}, {split}: {numbers}")
        self._notify(line)

    def _notify(self, line: dict[str, object]) -> None:
        """Call the listeners, of which one that fails is told once and dropped, and callbacks."""
        for listener in tuple(self._listeners):
            try:
                # a dict of its own: a listener may change it
                self.stop_asked |= listener(dict(line)) is True
            except Exception as error:
                self._listeners.remove(listener)
                name = getattr(listener, "__qualname__", type(listener).__qualname__)
                text = " ".join(f"{type(error).__name__}: {error}".split())
                self.tell(f"warning: {name} failed, and hears no more of this run: {text}")
        for callback in self._callbacks:
            self.stop_asked |= callback(dict(line)) is True

    def take_again(self) -> None:
        """Steps that were taken already are taken again: their lines go, as after a resume."""
        self._trimmed = False

    def _write_again(self, name: str, data: object) -> None:
        """Write a file that says what the run is, also into a folder that is made again."""
        self._lasting[name] = data
        self._write(name, lambda path: write_json(path, data))

    def finish(self, summary: dict[str, object]) -> None:
        """Write the summary, and the picture if it can be drawn."""
        if self._first:
            self._write("run.json", lambda path: write_json(path, summary))
            self._write("loss.png", draw)

    def _append(self, path: Path, step: int, line: str) -> None:
        """Add a line to metrics.jsonl, whole or not at all."""
        # a resumed run takes the steps after its checkpoint again
        if not self._trimmed:
            _keep_before(path, step)
            self._trimmed = True
        # one write call for a line, so that a kill leaves whole lines
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            before = os.fstat(file).st_size
            data = f"{line}\n".encode()
            if os.write(file, data) < len(data):
                # a part of a line would spoil the file for all readers
                os.ftruncate(file, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)

    def _write(self, name: str, write: Callable[[Path], None]) -> None:
        """Write a file of the folder, which is made again if it was removed; tell once what fails.

        Whatever is raised is told: what a picture can raise is up to matplotlib's installation.
        """
        try:
            text = "" if self.follow is None else self.follow()
            if not (text or self.out.is_dir()):
                text = f"{self.out} was removed while the run writes to it, and is made again"
            if text:
                self.out.mkdir(parents=True, exist_ok=True)
                self.tell(text)
                for lasting, data in self._lasting.items():
                    write_json(self.out / lasting, data)
            write(self.out / name)
        except Exception as error:
            if name not in self._failed:
                self._failed.add(name)
                reason = error.strerror if isinstance(error, OSError) else None
                text = " ".join(f"{reason or error}".split())
                self.tell(
                    f"warning: {self.out / name} cannot be written: {text or type(error).__name__};"
                    " the run goes on without it"
                )


def _keep_before(path: Path, step: int) -> None:
    """Drop the lines of `step` and later, and a line that was cut off."""
    if not path.exists():
        return
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            if json.loads(line)["step"] < step:
                lines.append(line + "\n")
    _replace(path, "".join(lines))


def write_json(path: Path, data: object) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part."""
    _replace(path, json.dumps(data, indent=2) + "\n")


def read_json(path: Path) -> JsonObject:
    """The object of a JSON file; {} where there is none."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict):
            return data
    return {}


def _replace(path: Path, text: str) -> None:
    """Write a file under another name, then give it its own."""
    with whole_file(path) as draft, open(draft, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        # else a crash of the machine may leave the new name with no bytes
        os.fsync(file.fileno())


def versions() -> dict[str, str]:
    """What ran: Python, the packages that decide results or speed, and the machine."""
    names = {"python": platform.python_version(), "machine": platform.machine()}
    for package in PACKAGES:
        try:
            names[package] = version(package)
        except PackageNotFoundError:
            names[package] = "unknown"
    return names


def draw(picture: Path) -> None:
    """Draw metrics.jsonl beside it, if matplotlib is there and anything was measured."""
    path = picture.with_name("metrics.jsonl")
    if importlib.util.find_spec("matplotlib") is None or not path.exists():
        return
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    name = "mse" if any("mse" in line for line in lines) else "logloss"
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        if line.get(name) is not None:
            curves.setdefault(line["split"], []).append((line["samples"], line[name]))
    if not curves:
        return
    # without pyplot, which would look for a display
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for split, points in curves.items():
        marker = "" if split == "train" and len(points) > 20 else "o"
        label = f"{split}: {CURVES.get(split, MEASURED)}"
        axes.plot(*zip(*points), marker=marker, markersize=3, label=label)
    axes.set_xlabel("samples")
    axes.set_ylabel(name)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=150)
