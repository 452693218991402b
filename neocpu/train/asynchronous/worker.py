"""What does a thread that trains do in a step? The forward and backward pass of its own samples.

    look_up      bags to the servers of their tables  ->  pooled vectors
    update_rows  gradients of these vectors           ->  (rows are updated)
    update_dense gradients of dense parameters        ->  the parameters after their update

The threads of a rank share its copy of the dense parameters, and write what servers answer into it
without locks (Hogwild, Niu et al. 2011): a thread may compute with some parameters from before
another's step and some from after it. A number of 4 bytes is never half of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.errors import TrainingError
from neocpu.core.jagged import KJT
from neocpu.core.trees import leaf_cuts, rank_samples
from neocpu.core.types import Floats
from neocpu.ingest.loader import Batch
from neocpu.parallel.rpc.agent import RpcAgent
from neocpu.parallel.rpc.futures import Future
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.train.asynchronous.roles import Keys, RankRoles
from neocpu.train.model.arrays import NodeGradient
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.step.soundness import sound
from neocpu.train.step.turn import Outcome

ADVICE = "lower optimizer.dense.learning_rate or optimizer.sparse.learning_rate"


@dataclass(frozen=True)
class Wiring:
    """What the workers of a rank share: who serves what.

    servers : keys of each server of tables. slices : (server, its dense parameters).
    """

    roles: RankRoles
    leaves: int
    servers: Sequence[Keys]
    slices: Sequence[tuple[int, slice]]


class Worker:
    """One thread that trains.

    number : among all workers. model : its dense part, whose parameters other threads may share.
    dense : what trains these here (None: servers do).

    Attribute: bytes, of arrays that it sent and received.
    """

    def __init__(
        self, number: int, wiring: Wiring, model: Dlrm, dense: DenseOptimizer | None
    ) -> None:
        self.bytes = 0
        self._number = number
        self._wiring = wiring
        self._model = model
        self._dense = dense
        self._nodes = wiring.roles.nodes_of(number, wiring.leaves)
        self._gradients = np.zeros((len(self._nodes), model.flat.size), np.float32)
        self._views = [model.layout.views(flat) for flat in self._gradients]

    def step(self, agent: RpcAgent, batch: Batch, step: int) -> Outcome:
        """Train on this worker's samples of a global batch.

        Raises TrainingError for numbers that are not finite, RpcError where a server fails.
        """
        model = self._model
        E = np.empty((batch.labels.size, model.columns), np.float32)
        coming = self._look_up(agent, batch)
        model.forward_bottom(batch.dense, E)
        for server, future in zip(self._wiring.servers, coming):
            E[:, self._columns(server)] = self._received(future)
        model.forward_top(E)
        outcome = self._loss(batch, step)
        nodes = self._node_gradients(batch.samples)
        model.backward_upper(nodes)
        gradient = model.backward_lower()
        if not sound(gradient):
            raise TrainingError(
                f"step {step}: the gradient of pooled vectors is 2^63 or more; {ADVICE}"
            )
        updates = self._call(
            agent,
            "update_rows",
            step,
            [
                (server.rank, np.ascontiguousarray(gradient[:, self._columns(server)]))
                for server in self._wiring.servers
            ],
        )
        model.backward_bottom(nodes)
        self._train_dense(agent, step)
        for update in updates:
            update.wait()
        return outcome

    @staticmethod
    def _columns(server: Keys) -> slice | np.ndarray:
        return server.columns if server.span is None else server.span

    def _look_up(self, agent: RpcAgent, batch: Batch) -> list[Future]:
        assert isinstance(batch.sparse, KJT)
        futures = []
        for server in self._wiring.servers:
            bags = of_keys(batch.sparse, server.numbers)
            arrays = (bags.lengths, bags.values, bags.weights)
            self.bytes += sum(array.nbytes for array in arrays if array is not None)
            futures.append(agent.rpc_async(server.rank, "look_up", self._number, *arrays))
        return futures

    def _loss(self, batch: Batch, step: int) -> Outcome:
        model = self._model
        prediction, loss = model.loss_gradient(batch.labels, batch.samples, batch.weights)
        losses = [loss]
        for head, labels in model.with_heads(batch.head_labels):
            losses.append(head.loss_gradient(labels, batch.samples, batch.weights)[1])
        for each in losses:
            finite = np.isfinite(each)
            if not finite.all():
                sample = batch.first + int(np.argmin(finite))
                raise TrainingError(
                    f"step {step}: the loss of sample {sample} of epoch {batch.epoch} is "
                    f"{each[np.argmin(finite)]}; look for extreme values in it, or {ADVICE}"
                )
        return Outcome(prediction, batch.labels, loss)

    def _node_gradients(self, samples: int) -> list[NodeGradient]:
        leaves = self._wiring.leaves
        cuts = leaf_cuts(samples, leaves)
        first, _ = rank_samples(self._number, self._wiring.roles.workers, samples, leaves)
        return [
            NodeGradient(np.array(cuts[lo : lo + size + 1], np.int64) - first, views)
            for (lo, size), views in zip(self._nodes, self._views)
        ]

    def _train_dense(self, agent: RpcAgent, step: int) -> None:
        """The dense half of a step: on the servers, or here and now and then with the centre."""
        flat = self._model.flat
        if self._dense is None:
            gradients = [
                (rank, np.ascontiguousarray(self._gradients[:, span]))
                for rank, span in self._wiring.slices
            ]
            answers = self._call(agent, "update_dense", step, gradients)
            for (_, span), answer in zip(self._wiring.slices, answers):
                flat[span] = self._received(answer)
            return
        if self._nodes:
            self._dense.step(self._gradients.sum(axis=0), step)
        if step % self._wiring.roles.keys.elastic_every == 0:
            own = [(rank, flat[span].copy()) for rank, span in self._wiring.slices]
            answers = self._call(agent, "elastic", step, own)
            for (_, span), answer in zip(self._wiring.slices, answers):
                flat[span] -= self._received(answer)

    def _call(
        self, agent: RpcAgent, name: str, step: int, arrays: Sequence[tuple[int, Floats]]
    ) -> list[Future]:
        """Call a function of several servers with an array each."""
        self.bytes += sum(array.nbytes for _, array in arrays)
        return [agent.rpc_async(rank, name, self._number, step, array) for rank, array in arrays]

    def _received(self, future: Future) -> Floats:
        """The array that a server answered."""
        array = future.wait()
        assert isinstance(array, np.ndarray)
        self.bytes += array.nbytes
        return array


def of_keys(kjt: KJT, numbers: Sequence[int]) -> KJT:
    """The bags of some keys of a batch."""
    b = kjt.samples
    spans = [slice(kjt.offsets[i * b], kjt.offsets[(i + 1) * b]) for i in numbers]
    weights = None
    if kjt.weights is not None:
        weights = np.concatenate([kjt.weights[span] for span in spans])
    return KJT(
        tuple(kjt.keys[number] for number in numbers),
        kjt.lengths[list(numbers)],
        np.concatenate([kjt.values[span] for span in spans]),
        weights,
    )
