"""What is measured while a run trains, and where is it written?

Between measurements a line on the last batches, which costs next to nothing (`train_log.py`); every
`eval.every_steps` steps and at the end these batches in full, and the splits.
"""

from collections.abc import Callable

from neocpu.core.types import Tree
from neocpu.parallel.transport.comm import Comm
from neocpu.train.before.datasets import Splits
from neocpu.train.config.config import Config
from neocpu.train.run.evaluate import grouping_of, metrics_of, score
from neocpu.train.run.patience import Patience
from neocpu.train.step.turn import Outcome
from neocpu.train.step.world import World
from neocpu.train.watch.metrics import Metrics, Window
from neocpu.train.watch.reliability import deciles, reliability
from neocpu.train.watch.results import RunReport
from neocpu.train.watch.step_watch import StepClock
from neocpu.train.watch.train_log import TrainLog

WINDOW = 100  # batches that training metrics look back on


class Measurements:
    """The measurements of a run.

    Attributes: log, of lines in between; patience, the count of measurements that got no better;
    calibration, by split, of its newest measurement; notes, what else the summary has; reading,
    says how the reading of batches gets on (`BatchSchedule.state`).
    """

    def __init__(self, config: Config, comm: Comm, report: RunReport, clock: StepClock) -> None:
        self._config = config
        self._comm = comm
        self._report = report
        loss = config.model.loss
        metric = "mse" if loss == "mse" else "logloss"
        self.patience = Patience(config.training.patience, metric, config.checkpoint.keep_best)
        self.calibration: dict[str, dict[str, object]] = {"reliability": {}, "deciles": {}}
        self.notes: dict[str, object] = {}
        self.log = TrainLog(config.training.log_every, loss, WINDOW, clock)
        self.reading: Callable[[], dict[str, object]] = dict
        self._window = Window(WINDOW)
        self._measured: tuple[int, dict[str, Metrics]] = (-1, {})  # last step, and its metrics

    @property
    def told(self) -> dict[str, object]:
        """What the summary has of them, beside metrics."""
        return {**self.calibration, **self.notes}

    def add(self, outcome: Outcome, step: int) -> None:
        """Remember this rank's part of the batch of a step."""
        self._window.add(outcome.prediction, outcome.labels, outcome.loss)
        self.log.add(outcome, step)

    def forget(self) -> None:
        """The run takes steps again: what was remembered of them counts no more."""
        self._window = Window(WINDOW)
        self._measured = (-1, {})
        self.log.forget()
        self._report.take_again()

    def log_training(self, step: int, samples: int, world: World) -> None:
        """A line of metrics.jsonl on the last training batches. Collective."""
        metrics = self.log.metrics(self._comm)
        if spike := self.log.spike():
            self._report.tell(f"warning: {spike}")
        pace = self.log.pace(step) | world.step.soundness.norms() | world.dense.counts()
        pace |= self.reading()
        self._report.note(self._pace_text(step, pace))
        self._report.metrics(step, samples, "train", metrics, pace, shown=False)

    def _pace_text(self, step: int, pace: dict[str, object]) -> str:
        """How this rank gets on, for its log."""
        waited = sum(self._comm.sent.waited.values())
        return (
            f"step {step}: {pace['seconds']:.3f} s of steps so far; exchanges waited {waited:.3f} s"
        )

    def measure(
        self, step: int, samples: int, world: World, splits: Splits, names: tuple[str, ...]
    ) -> dict[str, Metrics]:
        """Metrics of the last training batches and of the named splits, also to metrics.jsonl.

        step, samples : taken so far. Collective.
        """
        measured_step, known = self._measured
        if measured_step != step:
            known = {}
        metrics = dict(known)
        loss = self._config.model.loss
        # before what is scored takes the model's buffers
        norms = world.step.soundness.norms() | world.dense.counts()
        if not metrics:
            metrics["train"] = self._window.metrics(loss, self._comm)
        for name in names:
            if splits.has(name) and name not in metrics:
                scores = score(world, splits.loader(name).batches(0, 0))
                grouping = grouping_of(self._config.eval, splits.datasets[name])
                for head, measured in metrics_of(world, scores, grouping).items():
                    metrics[f"{name}:{head}" if head else name] = measured
                p, y, _ = scores[""]
                self.calibration["reliability"][name] = reliability(p, y, loss, self._comm)
                self.calibration["deciles"][name] = deciles(p, y, loss, self._comm)
        pace = self.log.pace(step)
        self._report.note(f"measured {', '.join(metrics)}; {self._pace_text(step, pace)}")
        for name in [name for name in metrics if name not in known]:
            extra: Tree | None = pace | norms if name == "train" else None
            self._report.metrics(step, samples, name, metrics[name], extra)
        if "valid" in metrics and "valid" not in known:
            every = self._config.eval.every_steps
            due = bool(every) and step % every == 0
            self.patience.measured(step, metrics["valid"], due)
        # the summary asks again after the last step; a split is scored once
        self._measured = (step, metrics)
        return metrics
