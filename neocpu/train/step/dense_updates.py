"""How do the dense parameters take a step? From the sums of their gradients, bucket by bucket.

update        gradients, clipped ──► the step, or directions of this rank's blocks
directions    to all ranks                  where ranks share the blocks (`directions.py`)
step          along them
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neocpu.parallel.transport.started import Waitable
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.train.step.directions import Directions
from neocpu.train.step.soundness import Soundness
from neocpu.train.step.turn import DenseGradient, Turn

if TYPE_CHECKING:
    from neocpu.train.step.gradient_norm import GradientClip
    from neocpu.train.step.tower_gradients import TowerGradients

BUCKETS = ("upper", "lower")
Sums = Callable[..., list[DenseGradient]]  # of a turn and the names of buckets


@dataclass(frozen=True)
class _All:
    """Exchanges that are waited for together."""

    exchanges: Sequence[Waitable]

    def wait(self) -> None:
        for exchange in self.exchanges:
            exchange.wait()


@dataclass(frozen=True)
class Clip:
    """A limit for the norm of all dense gradients, those of other nodes' towers included."""

    clip: "GradientClip"
    towers: "TowerGradients | None"

    @classmethod
    def of(
        cls, sizes: Mapping[str, int], limit: float, towers: "TowerGradients | None"
    ) -> "Clip | None":
        """The clip of parameters of these sizes; None without a limit."""
        if not limit:
            return None
        from neocpu.train.step.gradient_norm import GradientClip

        return cls(GradientClip([*sizes.values()], limit), towers)

    def scaled(self, gradients: Sequence[DenseGradient]) -> Iterable[DenseGradient]:
        """The gradients of all parameters, scaled where their norm exceeds the limit."""
        return self.clip.scaled(gradients, None if self.towers is None else self.towers.share)


class DenseUpdates:
    """The updates of one rank's dense parameters."""

    def __init__(self, optimizer: DenseOptimizer, soundness: Soundness, clip: Clip | None) -> None:
        self._optimizer = optimizer
        # whose ranks share the work
        self._directions = optimizer if isinstance(optimizer, Directions) else None
        self._soundness = soundness
        self._clip = clip

    @property
    def in_blocks(self) -> bool:
        """Whether an update goes on with directions and a step along them."""
        return self._directions is not None

    def begin(self, turn: Turn, name: str, sums: Sums) -> None:
        """Update the parameters of a bucket, or find directions for it; sums : over all ranks, of
        the gradients of some buckets.
        """
        if turn.fault:
            return
        updated: Iterable[DenseGradient]
        if self._clip is None:
            updated = gradients = sums(turn, name)
        elif name == "upper":
            return  # a norm needs the sums of all parameters, and the lower ones come last
        else:
            gradients = sums(turn, *BUCKETS)
            updated = self._clip.scaled(gradients)
        self._soundness.gradients(turn, gradients)
        act = self._optimizer.step if self._directions is None else self._directions.begin
        for each in updated:
            act(each.gradient, turn.step, each.span)
        if self._directions is None:
            self._soundness.states(turn, gradients)
        else:
            turn.begun[name] = gradients

    def send(self, turn: Turn, name: str) -> Waitable | None:
        """Start to gather the directions of a bucket."""
        assert self._directions is not None
        sent = [
            exchange
            for each in turn.begun.get(name, ())
            if (exchange := self._directions.send(turn.step, each.span)) is not None
        ]
        return _All(sent) if sent else None

    def finish(self, turn: Turn, name: str) -> None:
        """Take the steps of a bucket, whose directions have arrived."""
        assert self._directions is not None
        gradients = turn.begun.get(name, [])
        for each in gradients:
            self._directions.finish(turn.step, each.span)
        self._soundness.states(turn, gradients)
