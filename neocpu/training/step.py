"""What happens in one training step on one rank? The picture in docs/design.md §1, top to bottom.

    E[b, C]   columns 0:d0 bottom MLP, then the pooled vector of each key          forward
    dE[b, C]  its gradient                                                          backward

The exchange of pooled rows is started before the bottom MLP and awaited after it; the dense
gradients are on their way while the tables are updated.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.optimizers import DenseOptimizer
from neocpu.errors import TrainingError
from neocpu.jagged import KJT, InverseKJT
from neocpu.model.dlrm import Dlrm
from neocpu.parallel.comm import Comm
from neocpu.parallel.dense_reduction import DenseReduction
from neocpu.parallel.input_dist import Input
from neocpu.parallel.sharded import ShardedEmbedding
from neocpu.parallel.started import Started
from neocpu.trees import leaf_cuts, rank_samples


class BatchLike(Protocol):
    """This rank's b samples of a global batch of B."""

    @property
    def dense(self) -> NDArray[np.float32]:
        """f32[b, dense features]."""

    @property
    def sparse(self) -> KJT | InverseKJT:
        """Bags of the samples."""

    @property
    def labels(self) -> NDArray[np.float32]:
        """f32[b]."""

    @property
    def samples(self) -> int:
        """B of the global batch."""


@dataclass(frozen=True)
class Outcome:
    """Predictions f32[b], labels f32[b] and per-sample losses f32[b] of this rank's samples."""

    prediction: NDArray[np.float32]
    labels: NDArray[np.float32]
    loss: NDArray[np.float32]


class TrainStep:
    """One rank's training step: forward, loss, backward, updates."""

    def __init__(
        self,
        model: Dlrm,
        embedding: ShardedEmbedding,
        optimizer: DenseOptimizer,
        comm: Comm,
        leaves: int,
    ) -> None:
        self.model = model
        self.embedding = embedding
        self.optimizer = optimizer
        self.comm = comm
        self.leaves = leaves
        self._reduction = DenseReduction(comm.queue("dense"), model.flat.size, leaves)
        self._E = np.empty((0, model.columns), np.float32)
        self._nodes = {
            node: np.empty(model.flat.size, np.float32) for node in self._reduction.nodes[comm.rank]
        }

    def forward(
        self, batch: BatchLike, lookups: Started[Input] | None = None
    ) -> NDArray[np.float32]:
        """Logits f32[b] of this rank's samples. Collective.

        lookups : those of the batch, if they were started before its turn.
        """
        samples = batch.labels.size
        if len(self._E) < samples:
            self._E = np.empty((samples, self.model.columns), np.float32)
        E = self._E[:samples]
        pooled = self.embedding.forward(lookups or batch.sparse, batch.samples)
        self.model.forward_bottom(batch.dense, E)
        pooled.finish(E)
        return self.model.forward_top(E)

    def __call__(
        self, batch: BatchLike, step: int, lookups: Started[Input] | None = None
    ) -> Outcome:
        """Train on one batch. Collective.

        step : of the optimizers, counted from 1. lookups : as for `forward`.

        Raises
        ------
        IndexRangeError : a row number outside its table, on every rank.
        TrainingError : a loss that is not finite.
        """
        self.forward(batch, lookups)
        prediction, loss = self.model.loss_gradient(batch.labels, batch.samples)
        self._refuse_nonfinite(loss, batch, step)
        dE = self.model.backward()
        reduction = self._reduction.start(self._dense_gradients(batch.samples))
        self.embedding.backward(dE, step)
        self.optimizer.step(reduction.wait(), step)
        return Outcome(prediction, batch.labels, loss)

    def _dense_gradients(self, samples: int) -> dict[tuple[int, int], NDArray[np.float32]]:
        """Gradient of all dense parameters for each aligned node of this rank's leaves."""
        cuts = leaf_cuts(samples, self.leaves)
        first, _ = rank_samples(self.comm.rank, self.comm.size, samples, self.leaves)
        for (lo, size), gradient in self._nodes.items():
            node_cuts = np.array(cuts[lo : lo + size + 1], np.int64) - first
            self.model.weight_gradient_node(node_cuts, gradient)
        return self._nodes

    def _refuse_nonfinite(self, loss: NDArray[np.float32], batch: BatchLike, step: int) -> None:
        """Raise TrainingError for the first sample of this rank whose loss is not finite."""
        finite = np.isfinite(loss)
        if finite.all():
            return
        sample = int(np.argmin(finite))
        first, _ = rank_samples(self.comm.rank, self.comm.size, batch.samples, self.leaves)
        finite_inputs = np.isfinite(batch.dense[sample]).all() and np.isfinite(batch.labels[sample])
        raise TrainingError(
            f"step {step}: the loss of sample {first + sample} of the batch is {loss[sample]} "
            f"(its inputs are {'finite' if finite_inputs else 'not finite'}); lower "
            "optimizer.dense.learning_rate or optimizer.sparse.learning_rate, or resume from an "
            "earlier checkpoint"
        )
