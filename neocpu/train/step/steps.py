"""In which order are the batches of a run trained on, and what of coming ones is done ahead?"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from neocpu.core.stages import PIPELINES, Stage, pipelined
from neocpu.train.model.mlp import END, BetweenLayers
from neocpu.train.step.pipeline import Pipeline, Span, Work
from neocpu.train.step.turn import BatchLike, Outcome, Turn

if TYPE_CHECKING:
    from neocpu.train.step.dynamic_kinds import DynamicKinds


class StepWork(NamedTuple):
    """What the steps of a rank consist of.

    pipeline : a name of `core.stages.PIPELINES`. order : the stages. stages : what each does.
    dynamic : the tables whose rows move, or None. span : as of `Pipeline`. between : polls, and is
    told that a step ends.
    """

    pipeline: str
    order: Sequence[Stage]
    stages: Mapping[str, Work[Turn]]
    dynamic: "DynamicKinds | None"
    span: Span
    between: BetweenLayers


class Steps:
    """Training steps over batches in their order, with what can be done ahead of them.

    Where rows of tables move, a segment of steps ends with no batch under way.

    ahead : batches by which stages run ahead where the tables need it (`pipeline.py`).
    """

    def __init__(
        self,
        work: StepWork,
        batches: Iterator[BatchLike],
        step: int,
        ahead: Mapping[str, int],
    ) -> None:
        self._work = work
        self._ahead = ahead
        self._turns = (Turn(batch, step + i) for i, batch in enumerate(batches))
        self._pipeline = self._segment(step)

    def _segment(self, step: int) -> Pipeline[Turn]:
        """The steps from this one to the next decision on rows; to the end, if there is none."""
        work = self._work
        turns: Iterator[Turn] = self._turns
        if work.dynamic is not None:
            turns = islice(turns, work.dynamic.steps_left(step))
        return Pipeline(
            pipelined(work.pipeline, work.order, self._ahead),
            work.stages,
            turns,
            {**PIPELINES[work.pipeline], **self._ahead},
            work.span,
            work.between,
        )

    def next(self) -> tuple[BatchLike, Outcome]:
        """Train on the next batch; there must be one. Collective. Raises as `TrainStep`."""
        turn = self._pipeline.step()
        assert turn is not None and turn.outcome is not None
        self._work.between(END)
        dynamic = self._work.dynamic
        if dynamic is not None and dynamic.end_step(turn.step):
            self._pipeline = self._segment(turn.step + 1)
        return turn.batch, turn.outcome

    def close(self) -> None:
        """Wait for the exchanges of batches that will not be trained on. Collective."""
        self._pipeline.close()
