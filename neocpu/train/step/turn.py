"""What is known of a batch on its way through a training step?"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from neocpu.core.jagged import KJT, InverseKJT
from neocpu.core.types import Floats
from neocpu.parallel.embeddings.protocol import LookupUnderWay, UpdateUnderWay
from neocpu.parallel.transport.started import Started
from neocpu.train.model.arrays import Buffer


class DenseGradient(NamedTuple):
    """Reduced gradient f32[n] of the parameters from element `first` of the flat array on."""

    first: int
    gradient: Floats

    @property
    def span(self) -> slice:
        """These parameters in the flat array."""
        return slice(self.first, self.first + self.gradient.size)


class BatchLike(Protocol):
    """This rank's b samples of a global batch of B.

    It may have `weights` f32[b] of the samples in the loss (None: 1) and `head_labels` f32[heads,
    b], which a model with further heads needs.
    """

    @property
    def dense(self) -> Floats:
        """f32[b, dense features]."""

    @property
    def sparse(self) -> KJT | InverseKJT:
        """Bags of the samples."""

    @property
    def labels(self) -> Floats:
        """f32[b]."""

    @property
    def samples(self) -> int:
        """B of the global batch."""


class HeldActivations(Protocol):
    """What keeps the activations of steps to a budget; the model tells it its work."""

    def begin(self) -> None:
        """A step begins."""

    def end(self) -> None:
        """A step is over, or given up."""

    def holds(self, buffer: Buffer) -> bool:
        """Has the array of a buffer memory?"""

    def counts(self) -> dict[str, float]:
        """What was done so far: bytes "peak", "block" and "moved", arrays "remade",
        "stall_seconds".
        """

    def close(self) -> None:
        """No step follows."""


@dataclass(frozen=True)
class Outcome:
    """Predictions f32[b], labels f32[b] and per-sample losses f32[b] of this rank's samples.

    No weight has touched the losses. fault : why nothing was updated ("": everything was). scaled :
    the loss scale was too large for it, and is smaller now.
    """

    prediction: Floats
    labels: Floats
    loss: Floats
    fault: str = ""
    scaled: bool = False


@dataclass
class Turn:
    """A batch on its way through the stages.

    step : of the optimizers, counted from 1. input, lookup, gradient (dE), update, sums : what its
    stages have made so far; sums by bucket, those of towers that run on their nodes apart. begun :
    by bucket, gradients of dense steps that wait for directions.
    fault : a number that is not sound, where such steps are left out (`soundness.py`). scaled : as
    of `Outcome`. peaks : largest numbers of all ranks (`scales.py`).
    """

    batch: BatchLike
    step: int
    input: Started[Any] | None = None
    lookup: LookupUnderWay | None = None
    gradient: Floats | None = None
    update: UpdateUnderWay | None = None
    sums: dict[str, Started[Floats]] = field(default_factory=dict)
    begun: dict[str, list[DenseGradient]] = field(default_factory=dict)
    tower_sums: list[DenseGradient] | None = None
    fault: str = ""
    scaled: bool = False
    peaks: Started[Floats] | None = None
    outcome: Outcome | None = None
