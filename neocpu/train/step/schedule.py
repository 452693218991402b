"""Which batches does a run train on, and what ends it before their end?

The position in the data is (epoch, step of the epoch). Both follow from the number of steps taken,
so that number is all that a checkpoint needs. Before each step ranks ask one another whether the
run shall end here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from neocpu.core.errors import Stopped
from neocpu.ingest.loader import Batch, Loader


@dataclass(frozen=True)
class BatchSchedule:
    """The batches of a run.

    It takes `epochs` passes over the train data, or `steps` steps (0: no limit), whichever ends
    first.
    """

    loader: Loader
    epochs: int
    steps: int
    waits: ClassVar[bool] = False  # for data that still come, which end when a signal comes

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        by_epochs = self.epochs * self.loader.steps_per_epoch
        return min(by_epochs, self.steps) if self.steps else by_epochs

    def samples_after(self, step: int) -> int:
        """Samples of all ranks in the first `step` steps; an epoch's last batch may be short."""
        epochs, rest = divmod(step, self.loader.steps_per_epoch)
        per_epoch = self.loader.dataset.rows
        return epochs * per_epoch + min(rest * self.loader.batch_size, per_epoch)

    def batches(self, step: int) -> Iterator[Batch]:
        """This rank's batches after the first `step` steps, to the end of the run."""
        total = self.total_steps
        while step < total:
            epoch, first = divmod(step, self.loader.steps_per_epoch)
            # each epoch has its own order, which its number gives
            yield from islice(self.loader.batches(epoch, first), total - step)
            step += self.loader.steps_per_epoch - first

    def state(self) -> dict[str, object]:
        """How reading gets on, for a line of metrics.jsonl."""
        return {}

    def report(self) -> dict[str, object]:
        """What reading took, for the summary. Collective."""
        return {}

    def wait_no_longer(self) -> None:
        """A signal came: batches end with the data that are there."""

    def close(self) -> None:
        """No more batches are asked for."""


# what ranks tell each other before a step: nothing (0), or the largest of these
LOG_DUE = 1  # rank 0 wants a line on training
SAVE_DUE = 2  # by the clock of rank 0 a checkpoint is due
STOP_ASKED = 3  # a listener of rank 0 asks for a good end
SIGNAL = 4  # times the number of a signal


def stopped(number: int, step: int) -> Stopped:
    """What a run raises that was asked to end; it has written a checkpoint if it took steps."""
    said = f"stopped by signal {number} "
    if not step:
        return Stopped(number, said + "before the first step; nothing is lost, start it again")
    said += f"after step {step}; a checkpoint is written"
    return Stopped(number, said, ", go on with --resume")
