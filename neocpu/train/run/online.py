"""How does a run train on file after file, as they come? Each is measured first, then trained on.

The measurement before training ("progressive") is of samples that the model has never seen, so it
says how good the model is in service. Each file is one pass; a batch never holds samples of two.
Where rows are chosen by a vocabulary, codes that are new in a file get the next free rows of their
table before it is trained on, as long as there are any.

A checkpoint notes the files so far (their sizes and fingerprints, not their contents), so that a
run goes on with the files that are still to come, and in the middle of one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.core.errors import ConfigError, DataError
from neocpu.core.types import JsonObject, Tell
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.vocabulary import fit_vocabularies
from neocpu.ingest.loader import Batch, Loader
from neocpu.parallel.transport.comm import Comm
from neocpu.train.before.beginning import Beginning, Vocabularies, grow
from neocpu.train.before.datasets import Splits, open_paths
from neocpu.train.config.config import Config
from neocpu.train.run.evaluate import evaluate, grouping_of
from neocpu.train.run.recovery import Recovery
from neocpu.train.run.trainer import Trainer
from neocpu.train.state.identity import HISTORY, fingerprint
from neocpu.train.step.schedule import BatchSchedule
from neocpu.train.step.world import World
from neocpu.train.watch.metrics import Metrics

SPLIT = "progressive"


@dataclass
class TrainFile:
    """A file of the run.

    name : as it was given. rows, fingerprint : of its samples. start, steps : the step before its
    first one, and how many it has. metrics : measured before training on it. dataset : None where
    it was trained on and is needed no more. measuring_vocabularies, training_vocabularies : by
    which rows are chosen when it is measured, and when it is trained on (None: by hash).
    """

    name: str
    rows: int
    fingerprint: str
    start: int
    steps: int
    metrics: dict[str, float | None] | None = None
    dataset: Dataset | None = None
    measuring_vocabularies: Vocabularies | None = None
    training_vocabularies: Vocabularies | None = None

    @property
    def end(self) -> int:
        """The step after which the file is done."""
        return self.start + self.steps

    def note(self) -> dict[str, object]:
        """What a checkpoint notes of it, JSON-able."""
        names = ("name", "rows", "fingerprint", "start", "steps", "metrics")
        return {name: getattr(self, name) for name in names}


def known_files(history: Sequence[JsonObject], step: int) -> list[TrainFile]:
    """The files that a run had begun at a step. Raises DataError where the notes are damaged."""
    try:
        files = [TrainFile(**note) for note in history]
        return [file for file in files if file.start < step]
    except TypeError as error:
        raise DataError(f"the checkpoint's notes of the files are damaged: {error}") from error


def join(
    known: list[TrainFile], named: Sequence[tuple[str, Dataset]], step: int, batch: int, tell: Tell
) -> list[TrainFile]:
    """All files of a run: those that were begun at `step`, then those that are new.

    named : files of the command line. batch : samples of a step.

    Raises DataError where the file in whose middle the run stopped is not among them.
    """
    files = list(known)
    # files are known by their samples: they may have been moved or renamed meanwhile
    done = [file for file in files if file.end <= step]
    halves = [file for file in files if file.end > step]
    for name, data in named:
        sha = fingerprint(data)
        same = next(
            (f for f in (*done, *halves) if (f.rows, f.fingerprint) == (data.rows, sha)), None
        )
        if same in done:
            done.remove(same)
            tell(f"{name}: was trained on already, and is left out")
        elif same is not None:
            halves.remove(same)
            same.dataset = data
        else:
            # steps and schedules of rates go on from file to file
            start = files[-1].end if files else 0
            # a batch holds samples of one file only, so each file ends with a partial one
            steps = -(-data.rows // batch)
            files.append(TrainFile(name, data.rows, sha, start, steps, dataset=data))
    if halves:
        raise DataError(
            f"{halves[0].name}: the run stopped in its middle, after {step - halves[0].start} of "
            f"{halves[0].steps} steps; give this file again, before those that follow"
        )
    return files


class OnlineSplits(Splits):
    """The files of an online run, beside its valid and test data."""

    whole = False

    def __init__(
        self, config: Config, comm: Comm, datasets: dict[str, Dataset], files: list[TrainFile]
    ) -> None:
        super().__init__(config, comm, datasets)
        self.files = files

    def description(self) -> dict[str, Any]:
        """What a checkpoint notes of the data: no train split, but the files."""
        description = super().description()
        # the train data of a resumed run are other files, and may be
        del description["splits"]["train"]
        return {**description, HISTORY: [file.note() for file in self.files]}

    def touchable_rows(self, samples: int) -> dict[str, int]:
        """Rows of each table that training on all files can touch, at most."""
        most = {table.name: 0 for table in self.config.tables}
        for file in self.files:
            if file.dataset is not None:
                one = Splits(self.config, self.comm, {"train": file.dataset})
                for name, rows in one.touchable_rows(file.rows).items():
                    most[name] += rows
        return {table.name: min(table.rows, most[table.name]) for table in self.config.tables}

    def choose_rows(self, beginning: Beginning, tell: Tell) -> None:
        """Which vocabulary chooses rows in which file: codes are added from file to file."""
        if self.config.data.rows_by != "vocabulary":
            return
        vocabularies = beginning.vocabularies
        for file in self.files:
            if file.dataset is None:
                continue
            file.measuring_vocabularies = vocabularies or None
            if file.start >= beginning.step:
                vocabularies = self._grown(vocabularies, file, tell)
            file.measuring_vocabularies = file.measuring_vocabularies or vocabularies
            file.training_vocabularies = vocabularies
        first = next((file for file in self.files if file.dataset is not None), None)
        self.use_vocabularies((first.measuring_vocabularies if first else vocabularies) or {})

    def _grown(self, vocabularies: Vocabularies, file: TrainFile, tell: Tell) -> Vocabularies:
        """The vocabularies with the new codes of a file, as far as tables have rows for them."""
        assert file.dataset is not None
        words: Vocabularies = dict(file.dataset.vocabularies)
        if not words and self.config.data.min_count:
            words = dict(fit_vocabularies(file.dataset, self.config.data.min_count))
        if not vocabularies:
            return dict(self.vocabularies or words)
        grown = grow(vocabularies, words)
        for table in self.config.model_tables:
            for feature in table.features:
                codes = grown.get(feature, np.empty(0, np.uint64))
                old = vocabularies[feature].size if feature in vocabularies else 0
                room = max(table.rows - 1, old)
                if codes.size > room:
                    tell(
                        f"{file.name}: {codes.size - room:,} of {codes.size - old:,} new codes of "
                        f"{feature} have no row in table {table.name}, and are unknown; more rows: "
                        "start a run with training.init_from and a larger table"
                    )
                    grown[feature] = codes[:room]
        return grown


class OnlineSchedule(BatchSchedule):
    """The batches of all files, one pass over each, in their order.

    read : the batches of a loader, by its passes and steps.
    """

    def __init__(
        self, splits: OnlineSplits, steps: int, read: Callable[[Loader, int, int], BatchSchedule]
    ) -> None:
        self._splits = splits
        self._files = splits.files
        self._read = read
        self._file: BatchSchedule | None = None  # of the file at hand
        rest = [file for file in self._files if file.dataset is not None]
        first = rest[0].dataset if rest else splits.datasets["train"]
        assert first is not None
        vocabularies = rest[0].training_vocabularies if rest else splits.vocabularies
        super().__init__(splits.loader_of(first, False, vocabularies), 1, steps)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        total = self._files[-1].end if self._files else 0
        return min(total, self.steps) if self.steps else total

    def samples_after(self, step: int) -> int:
        """Samples of all ranks in the first `step` steps."""
        size = self.loader.batch_size
        return sum(min(max(step - file.start, 0) * size, file.rows) for file in self._files)

    def batches(self, step: int) -> Iterator[Batch]:
        """This rank's batches after the first `step` steps, to the end of the run."""
        total = self.total_steps
        for number, file in enumerate(self._files):
            if file.end <= step or file.dataset is None:
                continue
            if file.start >= total:
                return
            self.close()
            # the number of the file takes the place of the epoch: every file has its own order
            before = number * file.steps
            last = before + min(total - file.start, file.steps)
            self._file = self._read(self.training_loader(file), number + 1, last)
            yield from self._file.batches(before + max(step - file.start, 0))

    def state(self) -> dict[str, object]:
        """As of the file at hand."""
        return self._file.state() if self._file is not None else {}

    def report(self) -> dict[str, object]:
        """As of the file that was read last. Collective."""
        return self._file.report() if self._file is not None else {}

    def close(self) -> None:
        """No more batches are asked for."""
        if self._file is not None:
            self._file.close()

    def training_loader(self, file: TrainFile) -> Loader:
        """Batches of a file to train on."""
        assert file.dataset is not None
        shuffle = self._splits.config.data.shuffle
        loader = self._splits.loader_of(file.dataset, shuffle, file.training_vocabularies)
        loader.weigh(self._splits.config.data.sample_weight)
        return loader


class OnlineTrainer(Trainer):
    """A run over files as they come; `files` : raw logs or datasets, in their order.

    The other parameters are those of `Trainer`. `data.train` of the config is not read.
    """

    online = True

    def __init__(
        self,
        config: Config,
        comm: Comm | None,
        out: str | Path,
        files: Sequence[str],
        **options: Any,
    ) -> None:
        super().__init__(config, comm, out, **options)
        self._names = list(files)
        self._files: list[TrainFile] = []
        self._splits: OnlineSplits | None = None

    def _open(self, beginning: Beginning) -> Splits:
        """Open the files, and find where in them the run is."""
        config = self.config
        tell = self.report.tell
        if config.data.split:
            raise ConfigError(
                f"{config.source}: data.split: every file is measured before it is trained on; "
                "leave the key out, or --set data.split=[]"
            )
        if not self._names:
            raise ConfigError("no file to train on was given")
        sources: dict[str, tuple[str, ...]] = {
            f"train {n}": (name,) for n, name in enumerate(self._names, 1)
        }
        sources |= {
            name: getattr(config.data, name)
            for name in ("valid", "test")
            if getattr(config.data, name)
        }
        opened = open_paths(config, self.comm, self.out, tell, sources).datasets
        measured: dict[str, Dataset] = {
            name: opened[name] for name in ("valid", "test") if name in opened
        }
        named = [(name, opened[f"train {n}"]) for n, name in enumerate(self._names, 1)]
        known = known_files(beginning.history, beginning.step)
        config = self.config = config.for_samples(named[0][1].rows)  # unless it names a batch size
        batch = config.training.batch_size
        self._files = join(known, named, beginning.step, batch, tell)
        rest = [file.dataset for file in self._files if file.dataset is not None]
        # all files may be done; the run still needs the columns of one
        train = rest[0] if rest else named[0][1]
        splits = OnlineSplits(config, self.comm, {"train": train, **measured}, self._files)
        splits.choose_rows(beginning, tell)
        self._splits = splits
        return splits

    def _schedule(self, splits: Splits) -> BatchSchedule:
        assert isinstance(splits, OnlineSplits)
        # readers of a file meet while steps are under way
        comm = self.comm.queue("readers") if self.config.readers.count else self.comm
        return OnlineSchedule(splits, self.config.training.steps, partial(self._read, comm))

    def _roll_back(self, splits: Splits, schedule: BatchSchedule) -> tuple[World, Recovery]:
        # it may go back into an earlier file, which knows fewer codes
        assert self._recovery is not None and self._splits is not None
        step = self._recovery.begun
        files = [file for file in self._files if file.dataset is not None]
        words = files[0].measuring_vocabularies
        for file in files:
            if file.start < step:
                words = file.training_vocabularies
        if words:
            self._splits.use_vocabularies(words)
        return super()._roll_back(splits, schedule)

    def _before_step(self, world: World, recovery: Recovery) -> None:
        """At the start of a file: a checkpoint, the measurement, and rows for its new codes."""
        number = next((n for n, f in enumerate(self._files) if f.start == self.steps_taken), None)
        if number is None or self._files[number].dataset is None:
            return
        file = self._files[number]
        every = self.config.checkpoint.every_files
        if number and every and number % every == 0:
            recovery.save(self.steps_taken)
        assert self._splits is not None and file.dataset is not None
        loader = self._splits.loader_of(file.dataset, False, file.measuring_vocabularies)
        # before the rows of its new codes are known: as a model in use would meet them
        grouping = grouping_of(self.config.eval, loader.dataset)
        metrics = evaluate(world, loader.batches(0, 0), grouping=grouping)
        file_note = {"file": file.name}
        self.report.metrics(self.steps_taken, self.samples, SPLIT, metrics, file_note)
        # checkpoints note it: the summary of a resumed run covers files of earlier runs
        file.metrics = metrics.to_dict()
        if file.training_vocabularies:
            self._splits.use_vocabularies(file.training_vocabularies)
            recovery.use_vocabularies(file.training_vocabularies)
        # after the measurement, so that a checkpoint of this file holds its metrics
        recovery.note(HISTORY, [each.note() for each in self._files])

    def _measure(self, world: World, splits: Splits, names: tuple[str, ...]) -> dict[str, Metrics]:
        """The metrics; at the end also those before training, over all files."""
        metrics = super()._measure(world, splits, names)
        if "test" not in names:
            return metrics
        overall = mean_metrics([file.metrics for file in self._files if file.metrics])
        return {**metrics, SPLIT: overall} if overall else metrics


def mean_metrics(measured: Sequence[JsonObject]) -> Metrics | None:
    """Means over files, weighted by their samples; None where nothing was measured.

    Of AUC too: pairs of samples of different files are not compared.
    """
    samples = sum(each["samples"] for each in measured)
    if not samples:
        return None
    means: dict[str, Any] = {}
    for name in (spec.name for spec in fields(Metrics) if spec.name != "samples"):
        parts = [(each["samples"], each[name]) for each in measured if each.get(name) is not None]
        if parts:
            weight = sum(count for count, _ in parts)
            means[name] = sum(count * value for count, value in parts) / weight
    return replace(Metrics(samples), **means)
