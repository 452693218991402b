"""Which rates does a larger batch want? Those of the base batch, by a rule.

CowClip's (Zheng et al. 2022, arXiv 2204.06240; code bytedance/LargeBatchCTR), for s = batch size /
base batch size:

    learning rate of tables     as it is
    weight decay of tables      times s
    learning rate of the rest   times sqrt(s), after a warm-up of one epoch

The figures that a config names are those of the base batch; what follows from them is noted in
checkpoints like any key that was chosen for a run.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from neocpu.core.records import Limits
from neocpu.tables.specs.optimizers import SparseOptimizer

NO_SCALING = "none"
SCALING_RULES = (NO_SCALING, "cowclip")
MOST_EPOCHS = 10**6
SECTION = "optimizer.scaling."
WARMUP = "optimizer.dense.schedule.warmup_steps"


@dataclass(frozen=True)
class BatchScaling:
    """How rates follow from those of a base batch.

    rule : "none": they are as they are given; "cowclip": weight decay of tables times s, learning
        rate of dense parameters times sqrt(s), s = training.batch_size / base_batch_size.
    base_batch_size : for which learning rates and weight decay are given.
    warmup_epochs : epochs in which the rate of dense parameters grows from 0, also parts of one.
    """

    rule: Annotated[str, Limits(SCALING_RULES)] = NO_SCALING
    base_batch_size: int = 0
    warmup_epochs: float = 1.0

    def faults(self, dense: SparseOptimizer) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with it) of values that do not go together."""
        if self.rule == NO_SCALING:
            if self.base_batch_size:
                yield "rule", "it is not set, so base_batch_size is void; choose cowclip"
            return
        if not self.base_batch_size:
            yield "base_batch_size", f"the rule {self.rule} needs the batch of the given rates"
        if self.warmup_epochs > MOST_EPOCHS:
            yield "warmup_epochs", f"{self.warmup_epochs:g} is too large; at most {MOST_EPOCHS:,}"
        if self.warmup_epochs and dense.schedule.warmup_steps:
            why = f"{WARMUP} is set too; leave it out, or set warmup_epochs = 0"
            yield "warmup_epochs", why

    def derived(
        self,
        sparse: SparseOptimizer,
        dense: SparseOptimizer,
        batch_size: int,
        samples: int,
    ) -> dict[str, float | str]:
        """Values by key for a run over so many train samples; {} where the rule is none.

        They are in place of the given ones, and the rule is none then.
        """
        if self.rule == NO_SCALING:
            return {}
        s = batch_size / self.base_batch_size
        values: dict[str, float | str] = {
            # what follows is noted in checkpoints: a run that resumes must not scale once more
            f"{SECTION}rule": NO_SCALING,
            f"{SECTION}base_batch_size": 0,
            "optimizer.sparse.weight_decay": sparse.weight_decay * s,
            "optimizer.dense.learning_rate": dense.learning_rate * math.sqrt(s),
        }
        if dense.schedule.end_learning_rate:
            end = dense.schedule.end_learning_rate * math.sqrt(s)
            values["optimizer.dense.schedule.end_learning_rate"] = end
        if self.warmup_epochs:
            values[WARMUP] = round(self.warmup_epochs * -(-samples // batch_size))
        return values


def scaling_text(batch_size: int, values: Mapping[str, object]) -> str:
    """What was derived for a batch size, for people."""
    rates = sorted((key, value) for key, value in values.items() if not key.startswith(SECTION))
    shown = ", ".join(f"{key} = {value:.6g}" for key, value in rates)
    return f"rates for batches of {batch_size:,}: {shown}"
