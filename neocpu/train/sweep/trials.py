"""How does a sweep survive a crash? Its folder says which trials there are and how each ended.

    OUT/sweep.json      what the trials have in common, and the settings of each
    OUT/trial-0007/     the run of a trial: run.json once it is finished, checkpoints before
    OUT/results.json    all trials, best first; and as results.csv

A trial with a run.json, or one that failed, is not run again; one that was cut off goes on from its
newest checkpoint.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from neocpu.core.errors import TrainingError, told_as
from neocpu.core.records import toml_text
from neocpu.core.types import JsonObject, Tree
from neocpu.train.sweep.space import Point
from neocpu.train.watch.results import write_json

STATE = "sweep.json"
SPLITS = ("valid", "test", "train")  # the first one that was measured decides
LOSSES = ("logloss", "mse")


@dataclass
class SweepTrial:
    """One trial: its number from 1, its settings, and how it ended.

    error : why it failed (""). split : on which `metrics` were measured. steps, seconds : taken.
    """

    number: int
    settings: Point
    error: str = ""
    split: str = ""
    metrics: dict[str, float | None] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"trial-{self.number:04d}"

    @property
    def ended(self) -> bool:
        """Is it finished, or did it fail?"""
        return bool(self.metrics or self.error)

    @property
    def loss(self) -> float:
        """What trials are sorted by; infinite where there is none."""
        values = (self.metrics.get(name) for name in LOSSES)
        return next((value for value in values if value is not None), float("inf"))

    @property
    def overrides(self) -> list[str]:
        """Its settings as overrides of a config."""
        return [f"{key}={toml_text(value)}" for key, value in self.settings.items()]

    def take_summary(self, summary: JsonObject) -> None:
        """Note what its run.json says."""
        measured: JsonObject = summary["metrics"]
        self.split = next((name for name in SPLITS if name in measured), "")
        self.metrics = dict(measured.get(self.split, {}))
        self.steps = summary["steps"]
        self.seconds = summary["seconds"]
        self.error = "" if self.loss < float("inf") else "no loss was measured"


class SweepFolder:
    """The trials of a folder; it is made if it is not there.

    common : what all have in common, a JSON object.

    Raises TrainingError where the folder holds trials of something else.
    """

    def __init__(self, folder: Path, common: Tree) -> None:
        self.folder = folder
        # as it comes back from the file: tuples become lists, keys texts
        self._common = json.loads(json.dumps(common))
        self.all: list[SweepTrial] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            state = folder / STATE
            if state.exists():
                self._read(json.loads(state.read_text(encoding="utf-8")))
        except OSError as error:
            raise TrainingError(f"{folder}: cannot be used: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise TrainingError(
                f"{folder / STATE}: damaged ({error}); remove the folder"
            ) from error

    def _read(self, state: JsonObject) -> None:
        if state["common"] != self._common:
            changed = [key for key in self._common if state["common"].get(key) != self._common[key]]
            raise TrainingError(
                f"{self.folder} has trials of another sweep ({', '.join(changed)} differ); go on "
                "with the same config and --set, or choose another --out"
            )
        self.all = [SweepTrial(**trial) for trial in state["trials"]]
        for trial in self.all:
            summary = self.folder / trial.name / "run.json"
            if not trial.ended and summary.exists():  # killed between the two files
                trial.take_summary(json.loads(summary.read_text(encoding="utf-8")))

    def of(self, points: Sequence[Point]) -> list[SweepTrial]:
        """The trials with these settings, those that are new among them."""
        chosen = []
        for point in points:
            # by its settings, so that a sweep may grow: more values, more draws
            trial = next((trial for trial in self.all if trial.settings == point), None)
            if trial is None:
                trial = SweepTrial(len(self.all) + 1, dict(point))
                self.all.append(trial)
            chosen.append(trial)
        return chosen

    def save(self) -> None:
        """Write the state and the results. Raises TrainingError on a full disk."""
        trials = [asdict(trial) for trial in self.all]
        ranked = [{"trial": trial.name, **asdict(trial)} for trial in best_first(self.all)]
        with told_as(TrainingError, self.folder):
            write_json(self.folder / STATE, {"common": self._common, "trials": trials})
            write_json(self.folder / "results.json", ranked)
            (self.folder / "results.csv").write_text(as_csv(self.all), encoding="utf-8")


def best_first(trials: Sequence[SweepTrial]) -> list[SweepTrial]:
    """Trials by their loss; those that failed last."""
    # the number last, so that equal losses keep one order
    return sorted(trials, key=lambda trial: (bool(trial.error), trial.loss, trial.number))


def columns(trials: Sequence[SweepTrial]) -> list[str]:
    """Keys of the settings, in their order."""
    return list(dict.fromkeys(key for trial in trials for key in trial.settings))


def metric_names(trials: Sequence[SweepTrial]) -> list[str]:
    """Metrics that any trial has, but the number of samples."""
    names = (name for trial in trials for name, value in trial.metrics.items() if value is not None)
    return [name for name in dict.fromkeys(names) if name != "samples"]


def as_csv(trials: Sequence[SweepTrial]) -> str:
    """All trials as a table, best first."""
    keys = columns(trials)
    metrics = metric_names(trials)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "split", *metrics, *keys, "steps", "seconds", "error"])
    for trial in best_first(trials):
        measured = [trial.metrics.get(name, "") for name in metrics]
        settings = [_as_text(trial.settings.get(key, "")) for key in keys]
        ending = [trial.steps, round(trial.seconds, 3), trial.error]
        writer.writerow([trial.name, trial.split, *measured, *settings, *ending])
    return text.getvalue()


def as_lines(trials: Sequence[SweepTrial]) -> list[str]:
    """The same for a screen: fewer metrics, and keys by their last names where these differ."""
    keys = columns(trials)
    names = [key.rpartition(".")[2] for key in keys]
    titles = [name if names.count(name) == 1 else key for name, key in zip(names, keys)]
    shown = [name for name in metric_names(trials) if name in (*LOSSES, "ne", "auc")]
    rows = [["trial", "split", *shown, *titles, "seconds"]]
    for trial in best_first(trials):
        settings = [_as_text(trial.settings.get(key, "")) for key in keys]
        if trial.error:
            rows.append([trial.name, "failed", *([""] * len(shown)), *settings, ""])
        elif trial.ended:
            measured = [f"{trial.metrics[name]:.5f}" for name in shown]
            seconds = f"{trial.seconds:.1f}"
            rows.append([trial.name, trial.split, *measured, *settings, seconds])
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    failed = [trial for trial in trials if trial.error]
    return [*lines, *(f"{trial.name} failed: {trial.error}" for trial in failed)]


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else toml_text(value)
