"""When is it no use to go on? After `training.patience` measurements of the valid split in a row
without a better loss. The best of them keeps its checkpoint.

Metrics are equal to the last bit on any ranks and plan, so all of them end after the same step. A
checkpoint holds the count (in /run/data), so that a run that goes on does too.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from neocpu.train.checkpoint.folder import FOLDER
from neocpu.train.watch.metrics import Metrics

NOTE = "patience"  # in the description of the data


@dataclass
class Patience:
    """The count of a run: `worse` measurements since the best one, of `value` after step `step`.

    limit : measurements without a better one after which the run ends; 0: never. metric :
    "logloss" or "mse". keeps : does the checkpoint of the best one stay, also without a limit?
    """

    limit: int
    metric: str
    keeps: bool = False
    value: float | None = None
    step: int = 0
    worse: int = 0
    _last: tuple[float, int] | None = None

    @property
    def watches(self) -> bool:
        """Is there a best checkpoint, which stays?"""
        return bool(self.limit) or self.keeps

    def measured(self, step: int, metrics: Metrics, due: bool = True) -> None:
        """Take in a measurement of the valid split.

        due : it is one of those every `eval.every_steps`. Another, at the end of a run, may be the
        best but does not count, since a longer run would not make it.
        """
        value = getattr(metrics, self.metric)
        better = value is not None and (self.value is None or value < self.value)
        if not due:
            # apart from the count: a run that goes on counts as one that did not end here
            self._last = (value, step) if better else None
            return
        if better:
            self.value = value
            self.step = step
        self.worse = 0 if better else self.worse + 1

    @property
    def best(self) -> tuple[float | None, int]:
        """The best loss and its step."""
        return self._last or (self.value, self.step)

    def best_at(self, step: int) -> bool:
        """Whether the best measurement was after this step, and its checkpoint is to be kept."""
        value, best_step = self.best
        return self.watches and value is not None and best_step == step

    @property
    def ended(self) -> bool:
        """Whether there were so many measurements without a better one."""
        return bool(self.limit) and self.worse >= self.limit

    def text(self) -> str:
        """Why the run ends, for people."""
        count = f"ended early: {self.worse} measurements of the valid split without"
        if self.value is None:
            return f"{count} a {self.metric}"
        return (
            f"{count} a better {self.metric} than {self.value:.5f} after step {self.step} "
            f"(training.patience = {self.limit}); that checkpoint is kept"
        )

    def to_note(self) -> dict[str, object]:
        """The count, JSON-able."""
        return {"value": self.value, "step": self.step, "worse": self.worse}

    def resume(self, note: object) -> None:
        """Go on with the count of a checkpoint, where it has one."""
        match note:
            case {"value": float() | None as value, "step": int(step), "worse": int(worse)}:
                self.value = value
                self.step = step
                self.worse = worse

    def note_best(self, out: Path) -> None:
        """Let the folder of results say which checkpoint is the best, once it is there."""
        value, step = self.best
        name = f"step-{step:08d}.h5"
        if not (out / FOLDER / name).is_file():
            return
        from neocpu.train.checkpoint.folder import write_note

        facts = {"file": name, "step": step, "metric": self.metric, "value": value}
        with suppress(OSError):  # a full disk ends no run; the newest checkpoint is there
            write_note(out, facts)
