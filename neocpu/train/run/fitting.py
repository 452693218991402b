"""How does `neocpu fit` go from a config, or a log, to a fitted model?

DIR/fit.h5      the model, and while it is being fitted what its solver needs to go on
DIR/fit.json    what was fitted, how it is measured, and its digest
DIR/fit.jsonl   a line for each step
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import ConfigError, DataError, TrainingError, listed, told_as
from neocpu.core.floats import keep_subnormals
from neocpu.core.types import JsonObject, Tell
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.settings import ReadersConfig
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.environment import check_kernels
from neocpu.parallel.transport.launch import StopSignal
from neocpu.train.advice.labels import weight_overrides
from neocpu.train.advice.write import Wishes, draft, target_of
from neocpu.train.before.alike import refuse_other_ranks
from neocpu.train.before.datasets import Splits, open_splits
from neocpu.train.before.fit_room import check_fit
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.fit.columns import classes_of
from neocpu.train.fit.fit import Fit, StepFacts, compile_kernels
from neocpu.train.fit.fitted import FittedModel, SavedFit, load, save
from neocpu.train.fit.keys import FILE, FitKeys
from neocpu.train.run.evaluate import Grouping, Scores, rankings_of
from neocpu.train.run.folder import RunLock
from neocpu.train.step.schedule import stopped
from neocpu.train.watch.metrics import Metrics, compute, mean_of
from neocpu.train.watch.results import silent, write_json

SUMMARY = "fit.json"
STEPS = "fit.jsonl"
SAVE_SECONDS = 30.0  # from one checkpoint to the next
LOOKED_AT = 10_000  # samples whose labels may look like classes
CLASSES = 20  # distinct whole numbers that do, at most; classes in a line
LINE_SECONDS = 1.0  # from one line on the screen to the next
LOSS_OF = {"bce": "logistic", "mse": "squares"}  # of a config's `model.loss`
MEASURED = ("valid", "test")


def folder_of(source: str | Path) -> Path:
    """Where a fit's results go whose folder nobody named."""
    return target_of([source], "fits").with_suffix("")


def named(keys: FitKeys, config: Config, classes: Sequence[str] = ()) -> FitKeys:
    """The keys with a loss: their own, that of classes, or the config's."""
    if keys.loss:
        return keys
    if classes:
        return replace(keys, loss="softmax" if len(classes) > 2 else "logistic")
    return replace(keys, loss=LOSS_OF[config.model.loss])


def features_of(config: Config) -> list[str]:
    """Features that the config's tables look up, each once."""
    return list(dict.fromkeys(name for table in config.tables for name in table.features))


class FitRun:
    """One fit in a folder of results; collective.

    resume : go on from the folder's fit.h5, or begin and say so. tell : is given lines, on rank 0.
    """

    def __init__(
        self,
        config: Config,
        keys: FitKeys,
        comm: Comm,
        out: Path,
        *,
        resume: bool = False,
        tell: Tell = silent,
    ) -> None:
        # a fit holds its samples in memory: nobody reads ahead for it
        self.config = replace(config, readers=ReadersConfig())
        self._guessed = not keys.loss
        self.keys = keys
        self.comm = comm
        self.out = Path(out)
        self.resume = resume
        self._tell = tell if comm.rank == 0 else silent
        self._steps: list[JsonObject] = []
        self._data: JsonObject = {}
        self._saved = self._told = time.monotonic()
        self._begun = self._saved

    def run(self) -> JsonObject:
        """Fit, measure and write; the summary. Raises Stopped where a signal ended it."""
        keep_subnormals()
        check_kernels()
        with StopSignal() as stop, RunLock(self.out, self.comm, resume=self.resume):
            refuse_other_ranks(self.comm, self.config)
            splits = open_splits(self.config, self.comm, self.out, self._tell)
            self._data = splits.description()
            classes = classes_of(splits.datasets["train"])
            self.keys = named(self.keys, self.config, classes)
            if self.keys.patience and not splits.has("valid"):
                raise ConfigError(
                    "patience is for the loss of a valid part; name one in data.valid or data.split"
                )
            saved = self._open() if self.resume else None
            fit = Fit(
                splits.datasets["train"],
                features_of(self.config),
                self.keys,
                self.comm,
                (saved.fitted, saved.state) if saved else None,
                self.config.data.sample_weight,
                partial(check_fit, self.comm),
                splits.datasets.get("valid"),
            )
            for name in MEASURED:
                if splits.has(name):
                    # before hours of fitting
                    known_labels(fit.fitted, splits.datasets[name], self.comm)
            if self._guessed:
                self._tell_classes(splits.datasets["train"])
            if classes := fit.fitted.labels.classes:
                last = f"; {classes[1]} is 1" * (self.keys.loss != "softmax")
                self._tell(f"classes: {listed(classes, CLASSES)}{last}")
            columns = fit.fitted.columns
            self._tell(
                f"{fit.fitted.samples:,} samples, {columns.width:,} columns, "
                f"{fit.fitted.weights.size:,} parameters"
            )
            compile_kernels(self.keys, self.comm)
            self._solve(fit, stop)
            return self._finish(fit, splits)

    def _tell_classes(self, data: Dataset) -> None:
        """Say where numbers that are fitted look like classes."""
        if self.keys.loss != "squares" or self.comm.rank:
            return
        seen = np.unique(data.take(np.arange(min(data.rows, LOOKED_AT)), ()).labels)
        if seen.size <= CLASSES and (seen == np.rint(seen)).all():
            values = ", ".join(f"{value:g}" for value in seen)
            self._tell(
                f"note: the labels {values} are fitted as numbers; --loss softmax fits classes"
            )

    def _open(self) -> SavedFit | None:
        """The folder's fit, if there is one. Raises TrainingError for one of other keys, data or
        columns, CheckpointError for one that is damaged.
        """
        found = self.comm.on_first_rank((self.out / FILE).exists)
        if not found:
            self._tell(f"{self.out}: nothing to go on with; it begins")
            return None
        saved = load(self.out / FILE)
        before, now = saved.fitted.keys.header(), self.keys.header()
        if self.keys.l2 == "auto":
            now["l2"] = before["l2"]
        before |= self._begun_with(saved.notes["data"], saved.fitted.columns.features)
        now |= self._begun_with(self._data, features_of(self.config))
        before["sample_weight"] = saved.notes.get("weight", "")
        now["sample_weight"] = self.config.data.sample_weight
        if differing := [name for name in {**before, **now} if now.get(name) != before.get(name)]:
            raise TrainingError(
                f"{self.out / FILE}: it was begun with another {', '.join(differing)}; go on with "
                "the same, or choose another --out"
            )
        return saved

    @staticmethod
    def _begun_with(data: JsonObject, features: Sequence[str]) -> JsonObject:
        """What a fit is begun with beside its keys, by the words of messages."""
        train = data.get("splits", {}).get("train", {})
        samples = [train.get(name) for name in ("rows", "fingerprint")]
        codes = [data.get(name) for name in ("schema", "vocabularies")]
        return {"features": list(features), "train data": samples + codes}

    def _solve(self, fit: Fit, stop: StopSignal) -> None:
        for facts in fit.steps():
            self._note(facts)
            asked = self.comm.largest(stop.number, what="stop signal")
            now = time.monotonic()
            due = self.comm.rank == 0 and now - self._saved >= SAVE_SECONDS
            if asked or due:
                self._save(fit, done=False)
            if asked:
                raise stopped(asked, facts.step)
        if fit.state.waited and fit.state.waited == self.keys.patience:
            waited = f"{fit.state.waited} steps"
            self._tell(f"it ended, as the valid part gained nothing in {waited}; the best is kept")
        if not fit.finished:
            self._tell(f"note: it ended after {self.keys.most:,} steps, before its tolerance")

    def _note(self, facts: StepFacts) -> None:
        """A line of a step, for the file and now and then for the screen."""
        now = time.monotonic()
        line = {name: value for name, value in asdict(facts).items() if value is not None}
        self._steps.append({**line, "seconds": now - self._begun})
        if now - self._told >= LINE_SECONDS:
            self._told = now
            self._tell(step_line(self._steps[-1]))

    def _save(self, fit: Fit, done: bool) -> None:
        """Write the fit, and the lines of its steps; rank 0 does."""
        self._saved = time.monotonic()
        if self.comm.rank:
            return
        config = self.config
        notes = {
            "config": config.text,
            "source": config.source,
            "overrides": [*config.overrides, *config.absolute],
            "folder": config.folder,
            "data": self._data,
            "weight": config.data.sample_weight,
        }
        with told_as(TrainingError, self.out):
            save(self.out / FILE, fit.fitted, fit.state, notes, done)
            lines = "".join(json.dumps(line) + "\n" for line in self._steps)
            (self.out / STEPS).write_text(lines, encoding="utf-8")

    def _finish(self, fit: Fit, splits: Splits) -> JsonObject:
        """Measure, write and sum up."""
        if self._steps:
            self._tell(step_line(self._steps[-1]))
        seconds = time.monotonic() - self._begun
        fitted = fit.fitted
        metrics = {
            name: measured(fitted, splits.datasets[name], self.comm).to_dict()
            for name in MEASURED
            if splits.has(name)
        }
        summary = {
            "model": fitted.name,
            "method": fitted.keys.method,
            "samples": fitted.samples,
            "columns": fitted.columns.width,
            "parameters": fitted.weights.size,
            "keys": fitted.keys.header(),
            "steps": fit.state.iterations,
            "finished": fit.finished,
            "last": self._steps[-1] if self._steps else None,
            "seconds": seconds,
            "ranks": self.comm.size,
            "metrics": metrics,
            "digest": fitted.digest(),
        }
        self._save(fit, done=fit.finished)
        if self.comm.rank == 0:
            write_json(self.out / SUMMARY, summary)
        return summary


def step_line(line: JsonObject) -> str:
    """Where a fit is, in one line."""
    valid = f"valid {line['valid']:.7f}, " if "valid" in line else ""
    return (
        f"step {line['step']}: {line['samples']:,} samples, objective {line['objective']:.7f}, "
        f"{valid}gradient {line['gradient']:.2e}, {line['passes']:.1f} passes, "
        f"{line['seconds']:.1f} s"
    )


def measured(
    fitted: FittedModel, data: Dataset, comm: Comm, grouping: Grouping | None = None
) -> Metrics:
    """Metrics of a fitted model on data. Collective: each rank predicts its share.

    grouping : of samples that are ranked among one another, by their predictions.
    """
    fitted.columns.check(data)
    labels = known_labels(fitted, data, comm)
    first, last = _share(data, comm)
    samples = np.arange(first, last, dtype=np.int64)
    predictions = fitted.predict(data, first, last)
    loss = fitted.keys.loss
    if loss == "squares":
        metrics = compute(predictions, labels, "mse", comm)
    elif loss == "softmax":
        right = (predictions == labels).astype(np.float64)
        metrics = Metrics(data.rows, accuracy=mean_of(right, comm))
    else:
        if loss == "logistic":
            metrics = compute(predictions, labels, "bce", comm)
        else:
            right = ((predictions > 0) == (labels > 0)).astype(np.float64)
            metrics = Metrics(data.rows, accuracy=mean_of(right, comm))
    if grouping is None:
        return metrics
    scores = {"": Scores(predictions, labels, samples)}
    return replace(metrics, ranking=rankings_of(comm, scores, grouping)[""])


def _share(data: Dataset, comm: Comm) -> tuple[int, int]:
    """This rank's samples of data, and the one behind them."""
    return data.rows * comm.rank // comm.size, data.rows * (comm.rank + 1) // comm.size


def known_labels(fitted: FittedModel, data: Dataset, comm: Comm) -> NDArray[np.float32]:
    """Labels f32[n] of this rank's share of data: of a loss of two classes 0 and 1.

    Raises DataError, on all ranks, for data without labels, and for a label of clicks, or a text,
    that training did not have. Collective.
    """
    labels = np.empty(0, np.float32)
    with comm.agreeing():
        if not data.labelled:
            raise DataError(f"{data.name}: has no labels; `neocpu predict` scores it")
        fitted.labels.check(data)
        labels = data.take(np.arange(*_share(data, comm), dtype=np.int64), ()).labels
        softmax = fitted.keys.loss == "softmax"
        if fitted.labels.classes or not softmax:
            numbers = fitted.labels.of(labels, data)
            labels = labels if softmax else numbers.astype(np.float32)
    return labels


def config_of(
    data: Sequence[str],
    test: Sequence[str],
    overrides: Sequence[str],
    comm: Comm,
    *,
    label: str = "",
    positive: Sequence[str] = (),
    weight: str = "",
    loss: str = "",
) -> Config:
    """A config's, or the one that `neocpu init` would write for a log, unwritten. Collective.

    data : a config (`.toml`), or a log. test : files to measure on; none: the log's last fifth is.
    label, positive : as of `init`. weight : column of numbers, how often each row counts. loss :
    that is fitted, softmax to any texts of a label; others, but squares, to two of which none says
    yes. Raises DataError and ConfigError.
    """
    if any(path.endswith(".toml") for path in data):
        if len(data) > 1 or label or positive or weight or test:
            raise ConfigError("a config stands alone: it names its data, labels and test files")
        return configs.load(data[0], overrides)
    target = Path(data[0]).parent / "fit.toml"
    left_out = [weight] if weight else []
    classes = {"softmax": "all", "squares": ""}.get(loss, "some")
    wishes = Wishes(label=label, positive=positive, test=test, left_out=left_out, classes=classes)
    text = comm.on_first_rank(lambda: draft(data, target, wishes).text)
    if weight:
        schema = configs.loads(text, data[0]).data.schema
        if not isinstance(schema, Mapping):
            raise ConfigError(f"weight {weight}: the columns of this log are known; none is it")
        overrides = [*weight_overrides(schema, weight), *overrides]
    return configs.loads(text, data[0], overrides, target.parent)
