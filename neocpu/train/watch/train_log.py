"""What is said of training between measurements? A line every some steps, almost for free.

Each batch leaves sums of its losses, predictions and labels; a line adds those of the last batches
of all ranks, and looks for a step whose loss is far above the others. The sums are exact
(`metrics.fixed_point`), so the numbers of a line do not depend on ranks.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.types import Doubles
from neocpu.parallel.transport.comm import Comm
from neocpu.train.config.settings import OptimizerConfig
from neocpu.train.watch.metrics import UNIT, Metrics, entropy, fixed_point
from neocpu.train.watch.step_watch import StepClock

if TYPE_CHECKING:
    from neocpu.train.step.turn import Outcome

EVERY_STEPS = 100  # lines of a run that sets no `training.log_every`, or
EVERY_SECONDS = 30.0  # whichever comes first
SPIKE = 3.0  # times the median loss of the steps before, of which there must be
LEAST_BEFORE = 20


class TrainLog:
    """Decides on rank 0 when a line is due, and sums up what it says.

    every : steps from line to line (`training.log_every`). loss : `model.loss`. window : batches
    that a line looks back on. clock : of the steps.
    """

    def __init__(
        self,
        every: int,
        loss: str,
        window: int,
        clock: StepClock,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every = every
        self._optimizer = OptimizerConfig()
        self._loss = loss
        self._clock = clock
        self._now = now
        # of each batch its step, samples, losses, predictions and labels: of this rank since the
        # last line, and of all ranks before; twice the window, so that every step has some before
        self._sums: deque[Doubles] = deque(maxlen=2 * window)
        self._totals: deque[Doubles] = deque(maxlen=2 * window)
        self._window = window
        self._fresh = 0  # batches of the last line
        self._seconds = 0.0  # and samples of the clock at the last line, for the speed since then
        self._samples = 0
        self._last_step = 0
        self._last_time = now()

    def begin(self, step: int, optimizer: OptimizerConfig) -> None:
        """Steps after this one follow; optimizer : whose learning rates lines tell."""
        self._optimizer = optimizer
        self._restart(step)

    def forget(self) -> None:
        """The batches so far count no more: the run takes their steps again."""
        self._sums.clear()
        self._totals.clear()

    def _restart(self, step: int) -> None:
        """The last line is that of this step."""
        self._last_step = step
        self._last_time = self._now()

    def add(self, outcome: "Outcome", step: int) -> None:
        """Remember this rank's part of the batch of a step."""
        sums = np.empty(5)
        sums[:2] = step, outcome.labels.size
        for i, terms in enumerate((outcome.loss, outcome.prediction, outcome.labels), 2):
            # whole multiples of 2^-24, so that sums over batches and ranks are exact in any order
            sums[i] = fixed_point(terms).sum()
        self._sums.append(sums)

    def due(self, step: int) -> bool:
        """Is a line due after this step, says the clock of this rank?"""
        if step <= self._last_step:
            return False
        if self._every:
            return step % self._every == 0
        # a clock of rank 0, which tells the others (`Trainer._request`): theirs differ
        late = self._now() - self._last_time >= EVERY_SECONDS
        return late or step % EVERY_STEPS == 0

    def metrics(self, comm: Comm) -> Metrics:
        """Of the last batches of all ranks, without AUC and accuracy. Collective."""
        local_sums = np.concatenate([np.empty(0), *self._sums])
        rank_sums = np.empty(local_sums.size * comm.size)
        comm.allgatherv(local_sums, rank_sums, np.full(comm.size, local_sums.size), "log")
        by_batch = rank_sums.reshape(comm.size, -1, 5)
        self._fresh = by_batch.shape[1]
        for batch in range(self._fresh):
            # all ranks took the same steps
            total = by_batch[:, batch].sum(axis=0)
            total[0] = by_batch[0, batch, 0]
            self._totals.append(total)
        self._sums.clear()
        recent = [np.zeros(5), *self._totals][-self._window :]
        _, samples, loss, predicted, labels = np.sum(recent, axis=0).tolist()
        # a diverging run is told by the step that meets it
        if not samples or not np.isfinite(loss + predicted):
            return Metrics(int(samples))
        calibration = predicted / labels if predicted and labels else None
        mean = loss / UNIT / samples
        if self._loss == "mse":
            return Metrics(int(samples), mse=mean, calibration=calibration)
        spread = entropy(labels / UNIT / samples)
        ne = mean / spread if spread else None
        return Metrics(int(samples), logloss=mean, ne=ne, calibration=calibration)

    def spike(self) -> str:
        """The step of the last line whose mean loss was furthest above those before it, for a
        message; "" where none was.
        """
        steps, samples, losses = np.array([*self._totals]).reshape(-1, 5)[:, :3].T
        with np.errstate(over="ignore"):
            means = losses / UNIT / np.maximum(samples, 1)
        worst = ""
        highest = SPIKE
        for at in range(max(means.size - self._fresh, LEAST_BEFORE), means.size):
            usual = float(np.median(means[:at][-self._window :]))
            if means[at] > highest * usual:
                highest = means[at] / usual if usual else np.inf
                worst = (
                    f"the loss of step {steps[at]:.0f} is {means[at]:.5g}, that of the steps "
                    f"before about {usual:.5g}: look for extreme values in its samples, or lower "
                    "the learning rates"
                )
        return worst

    def pace(self, step: int) -> dict[str, object]:
        """Seconds of the steps so far, samples a second since the last line, and learning rates.

        Afterwards the line of this step is written: the next is due later.
        """
        seconds = self._clock.seconds - self._seconds
        samples = self._clock.samples - self._samples
        self._seconds = self._clock.seconds
        self._samples = self._clock.samples
        self._restart(step)
        sparse = self._optimizer.sparse
        dense = self._optimizer.dense
        return {
            "seconds": self._clock.seconds,
            "samples_per_second": samples / seconds if seconds else None,
            "learning_rate": sparse.schedule.value(sparse.learning_rate, step),
            "dense_learning_rate": dense.schedule.value(dense.learning_rate, step),
        }
