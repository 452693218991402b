"""What does a run do after a step of which nothing was written, since a number was not finite?

skip       it goes on, until too many steps in a row were left out
roll_back  it goes on from its newest checkpoint with smaller learning rates, so many times; a step
           that fails again is skipped, since no rate helps against a sample that is no number

All ranks left the step out (`step/soundness.py`), so all of them decide alike. A checkpoint notes
by what rates are multiplied, so that a run that goes on does not diverge again.
"""

from dataclasses import replace

from neocpu.core.errors import NeocpuError, TrainingError
from neocpu.core.types import Tell
from neocpu.train.config.config import Config
from neocpu.train.config.settings import ROLL_BACK, OptimizerConfig

MOST_IN_A_ROW = 10  # steps left out: by then it is the model that is not finite, not a sample
MOST_ROLL_BACKS = 10
NOTE = "mishaps"  # in the description of the data


class RollBack(NeocpuError):
    """The run is to go on from its newest checkpoint."""


class Mishaps:
    """What a run met so far.

    tell : is given a line for each.

    Attributes: rate, what learning rates are multiplied by; skipped, steps that were left out.
    """

    def __init__(self, config: Config, tell: Tell) -> None:
        training = config.training
        self.rolls_back = training.on_nonfinite == ROLL_BACK
        self.rate = 1.0
        self.skipped: list[int] = []
        self._factor = training.roll_back_rate
        self._tell = tell
        self._in_a_row = 0
        self._roll_backs = 0
        self._overflows = 0
        self._tried: set[int] = set()  # steps that were rolled back from

    def sound(self) -> None:
        """A step was taken."""
        self._in_a_row = 0

    def overflowed(self, step: int) -> None:
        """The step of this number was left out for its loss scale, which is smaller now."""
        if not self._overflows:
            self._tell(
                f"step {step} is left out: a gradient times the loss scale is too large for its "
                "format, so the scale is lowered; further ones are only counted"
            )
        self._overflows += 1

    def met(self, step: int, fault: str) -> None:
        """The step of this number was left out. Raises RollBack where that is the policy.

        Raises TrainingError where it is of no use to go on.
        """
        if self.rolls_back and step not in self._tried:
            self._tried.add(step)
            self._roll_backs += 1
            self.rate *= self._factor
            if self._roll_backs > MOST_ROLL_BACKS:
                raise TrainingError(
                    f"step {step}: {fault}; the run has rolled back {MOST_ROLL_BACKS} times: lower "
                    "its learning rates, or training.roll_back_rate"
                )
            self._tell(
                f"warning: step {step}: {fault}; going back to the newest checkpoint, with "
                f"learning rates times {self.rate:g}"
            )
            raise RollBack(fault)
        self._in_a_row += 1
        if self._in_a_row > MOST_IN_A_ROW:
            raise TrainingError(
                f"step {step}: {fault}; {MOST_IN_A_ROW} steps before it were skipped too: the "
                "model itself is not finite, resume from an earlier checkpoint with smaller rates"
            )
        self.skipped.append(step)
        self._tell(f"warning: step {step} is skipped: {fault}")

    def scaled(self, optimizer: OptimizerConfig) -> OptimizerConfig:
        """The optimizers with the rates that the run has now."""
        return replace(
            optimizer,
            sparse=optimizer.sparse.scaled(self.rate),
            dense=optimizer.dense.scaled(self.rate),
        )

    def to_note(self) -> dict[str, object]:
        """What a checkpoint notes, JSON-able; {} for a run that met nothing."""
        if not (self._roll_backs or self.skipped):
            return {}
        return {
            "rate": self.rate,
            "roll_backs": self._roll_backs,
            "skipped_steps": list(self.skipped),
        }

    def resume(self, note: object) -> None:
        """Go on from the note of a checkpoint, where it has one; roll-backs since then count."""
        match note:
            case {"rate": float(rate), "roll_backs": int(count), "skipped_steps": list(skipped)}:
                self.rate = min(self.rate, rate)
                self._roll_backs = max(self._roll_backs, count)
                self.skipped = list(skipped)
