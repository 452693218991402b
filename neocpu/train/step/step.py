"""What happens in one training step on one rank? The picture in docs/design.md §1, top to bottom.

    E[b, C]   columns 0:d0 bottom MLP, then the pooled vector of each key          forward
    dE[b, C]  its gradient                                                          backward

Each stage of `core/stages.py` is a method here; `pipeline.py` calls them in the order, and
ahead of their time, as the kind of pipelining says.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neocpu.core.stages import DIRECTIONS, NONE_AHEAD, STEP
from neocpu.core.trees import leaf_cuts, rank_samples
from neocpu.core.types import Floats
from neocpu.parallel.embeddings.protocol import Embedding
from neocpu.parallel.exchange.dense_reduction import LeafReduction, dense_reduction
from neocpu.parallel.exchange.wires import Wire
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.started import Started, Waitable
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.train.model.arrays import Buffer, NodeGradient
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.mlp import LOSS
from neocpu.train.step.dense_updates import BUCKETS, Clip, DenseUpdates
from neocpu.train.step.node_gradients import node_gradient
from neocpu.train.step.pipeline import Steps, StepWork, Work
from neocpu.train.step.scales import Scales
from neocpu.train.step.soundness import Soundness
from neocpu.train.step.turn import BatchLike, DenseGradient, HeldActivations, Outcome, Turn

if TYPE_CHECKING:
    from neocpu.train.step.dynamic_kinds import DynamicKinds
    from neocpu.train.step.tower_gradients import TowerGradients


@dataclass
class Bucket:
    """Dense parameters whose gradients are summed together: a slice of the flat array."""

    parameters: slice
    reduction: LeafReduction


@dataclass(frozen=True)
class StepOptions:
    """How a step is pipelined, and what its dense gradients go through.

    pipeline : a name of `core.stages.PIPELINES`.
    bucket_bytes : of dense gradients, fewer are not worth sums of their own.
    wire : of the dense gradients (None: fp32).
    clip_norm : of the gradient of all dense parameters, at most (0: any).
    skips : a step whose numbers are not sound is left out; else it ends the run.
    """

    pipeline: str = "off"
    bucket_bytes: int = 0
    wire: Wire | None = None
    clip_norm: float = 0.0
    skips: bool = False


class TrainStep:
    """One rank's training step: forward, loss, backward, updates.

    towers : where the model's towers run on their nodes. dynamic : the tables whose rows move
    (None: there is none).

    Attributes: buckets, the dense parameters by the backward stages that end with their gradients;
    soundness, the checks of its numbers; vectors, the memory of E; activations, what keeps those of
    a step to a budget (None: nothing does).
    """

    def __init__(
        self,
        model: Dlrm,
        embedding: Embedding[Any],
        optimizer: DenseOptimizer,
        options: StepOptions = StepOptions(),
        towers: "TowerGradients | None" = None,
        dynamic: "DynamicKinds | None" = None,
    ) -> None:
        self.model = model
        self.embedding = embedding
        self.optimizer = optimizer
        comm = embedding.env.comm
        self.comm = comm
        self.leaves = embedding.env.leaves
        self.pipeline = options.pipeline
        self.towers = towers
        self.dynamic = dynamic
        self._wire = options.wire
        self.soundness = Soundness(model, embedding, optimizer, towers, dynamic, options.skips)
        clip = Clip.of(model.layout.parameter_sizes(), options.clip_norm, towers)
        self._updates = DenseUpdates(optimizer, self.soundness, clip)
        self._scales = Scales(model.precision, comm.queue("dense"), self.leaves)
        self._buffers = Buffers()
        self.vectors = Buffer(model.columns)
        self._E = self.vectors.matrix(0)
        self.activations: HeldActivations | None = None
        self._coming: list[Turn] = []  # whose rows are being brought up
        self.buckets = self._make_buckets(options.bucket_bytes)
        self._nodes = {
            node: np.empty(model.flat.size, np.float32)
            for node in self.buckets["lower"].reduction.nodes[comm.rank]
        }
        self._views = {node: model.layout.views(flat) for node, flat in self._nodes.items()}
        self._node_gradients: list[NodeGradient] = []
        # MPI moves bytes when it is called: the model polls after each layer's product
        if comm.size > 1:
            model.between.act = comm.poll

    def work(self) -> Mapping[str, Work[Turn]]:
        """What each stage does."""
        return {
            "input": self._start_input,
            "index": self._index,
            "prefetch": self._prefetch,
            "lookup": self._look_up,
            "output": self._send_pooled,
            "bottom_forward": self._begin_forward,
            "top_forward": self._forward_top,
            "upper_backward": self._backward_upper,
            "upper_sums": lambda turn: self._sum(turn, "upper"),
            "lower_backward": self._backward_lower,
            "gradient": self._send_gradients,
            "merge": self._merge,
            "replicas": self._sum_replicas,
            "bottom_backward": self._backward_bottom,
            "lower_sums": lambda turn: self._sum(turn, "lower"),
            "update": self._update,
            "apply": self._apply,
            "upper_update": lambda turn: self._update_dense(turn, "upper"),
            "lower_update": lambda turn: self._update_dense(turn, "lower"),
            "upper_directions": lambda turn: self._updates.send(turn, "upper"),
            "lower_directions": lambda turn: self._updates.send(turn, "lower"),
            "upper_step": lambda turn: self._updates.finish(turn, "upper"),
            "lower_step": lambda turn: self._updates.finish(turn, "lower"),
        }

    def _make_buckets(self, least: int) -> dict[str, Bucket]:
        """Two where sums overlap with the backward pass, as in a recorded DLRM; else one.

        Parameters of interactions and towers stand behind the top layers and end with the lower
        ones, so a model with any has one bucket. least : bytes of a bucket.
        """
        layout = self.model.layout
        end = self.model.shared
        cut = end
        large = self.model.flat[layout.upper].nbytes >= least
        # a sum costs an exchange: small buckets are not worth one of their own
        if self.pipeline == "full" and large and layout.in_two_buckets:
            cut = layout.upper.start
        cuts = {"upper": slice(cut, end), "lower": slice(0, cut)}
        # all ranks must call in one order; a queue of its own frees it from that of other exchanges
        queue = self.comm.queue("dense")
        return {
            name: Bucket(cut, dense_reduction(queue, cut.stop - cut.start, self.leaves, self._wire))
            for name, cut in cuts.items()
        }

    # ---- batches ----

    def __call__(self, batch: BatchLike, step: int) -> Outcome:
        """Train on one batch, nothing ahead. Collective.

        step : of the optimizers, counted from 1.

        Raises IndexRangeError: a row number outside its table, on every rank; TrainingError: a
        number that is not sound (`soundness.py`).
        """
        return self.over(iter([batch]), step).next()[1]

    def over(
        self, batches: Iterator[BatchLike], step: int, ahead: Mapping[str, int] = NONE_AHEAD
    ) -> Steps:
        """Steps over batches, from this step on; ahead : of `core.stages.pipelined`."""
        # what an earlier pipeline had under way was dropped with it
        self._coming = []
        if self.activations is not None:
            self.activations.end()
        comm = self.comm
        order = (*STEP, *DIRECTIONS) if self._updates.in_blocks else STEP
        between = self.model.between
        work = StepWork(self.pipeline, order, self.work(), self.dynamic, comm.span, between)
        return Steps(work, batches, step, ahead)

    def forward(self, batch: BatchLike) -> Floats:
        """Logits f32[b] of this rank's samples. Collective."""
        turn = Turn(batch, 0)
        self._start_input(turn)
        self._look_up(turn)
        self._send_pooled(turn)
        self._forward_bottom(turn)
        return self._logits(turn)

    # ---- stages ----

    def _start_input(self, turn: Turn) -> Waitable:
        sparse = turn.batch.sparse
        if self.dynamic is not None:
            # rows of the tables that move are those of this moment, so segments end before moves
            sparse = self.dynamic.translate(sparse)
        turn.input = self.embedding.start(sparse, turn.batch.samples)
        return turn.input

    def _index(self, turn: Turn) -> None:
        assert turn.input is not None
        self.embedding.know(turn.input)

    def _prefetch(self, turn: Turn) -> None:
        self._coming.append(turn)
        # a checkpoint has perhaps undone what was planned for the batches before
        for coming in self._coming:
            assert coming.input is not None
            self.embedding.prefetch(coming.input)

    def _look_up(self, turn: Turn) -> None:
        assert turn.input is not None
        self._coming = [coming for coming in self._coming if coming is not turn]
        turn.lookup = self.embedding.lookup(turn.input)

    def _send_pooled(self, turn: Turn) -> Waitable:
        assert turn.lookup is not None
        turn.lookup.send()
        return turn.lookup

    def _begin_forward(self, turn: Turn) -> None:
        if self.activations is not None:
            self.activations.begin()
        self._forward_bottom(turn)

    def _forward_bottom(self, turn: Turn) -> None:
        self._scales.begin(turn)
        # E f32[b, columns] of the batch whose turn it is
        self._E = self.vectors.matrix(turn.batch.labels.size)
        self.model.forward_bottom(turn.batch.dense, self._E)

    def _logits(self, turn: Turn) -> Floats:
        assert turn.lookup is not None
        return self.model.forward_top(self._E, turn.lookup.finish(self._E))

    def _forward_top(self, turn: Turn) -> None:
        self._logits(turn)
        batch = turn.batch
        weights = getattr(batch, "weights", None)
        prediction, loss = self.model.loss_gradient(batch.labels, batch.samples, weights)
        # what has left memory cannot be looked at
        here = self.activations is None or self.activations.holds(self.vectors)
        E = self._E if here else None
        # before the backward pass: no weight has met it yet
        self.soundness.losses(turn, loss, E)
        for head, labels in self.model.with_heads(getattr(batch, "head_labels", None)):
            losses = head.loss_gradient(labels, batch.samples, weights)[1]
            self.soundness.losses(turn, losses, E)
        self.model.between(LOSS)
        turn.outcome = Outcome(prediction, batch.labels, loss)

    def node_gradients(self, samples: int) -> list[NodeGradient]:
        """Where the weight gradients of a global batch go: a sum for each aligned node of this
        rank's leaves.
        """
        cuts = leaf_cuts(samples, self.leaves)
        first, _ = rank_samples(self.comm.rank, self.comm.size, samples, self.leaves)
        return [
            node_gradient(
                np.array(cuts[lo : lo + size + 1], np.int64) - first,
                views,
                self.model.precision.unscale,
                self._wire,
                self._buffers,
            )
            for (lo, size), views in self._views.items()
        ]

    def _backward_upper(self, turn: Turn) -> None:
        self._node_gradients = self.node_gradients(turn.batch.samples)
        self.model.backward_upper(self._node_gradients)

    def _backward_lower(self, turn: Turn) -> None:
        turn.gradient = self.model.backward_lower()
        self.soundness.pooled(turn)

    def _send_gradients(self, turn: Turn) -> Waitable:
        assert turn.gradient is not None
        # keys whose tables do not pool have gradients by lookup, not by bag
        terms = self.model.row_terms
        turn.update = self.embedding.start_backward(turn.gradient, turn.step, terms)
        return turn.update

    def _merge(self, turn: Turn) -> None:
        assert turn.update is not None
        turn.update.merge_replicas()

    def _sum_replicas(self, turn: Turn) -> Waitable | None:
        assert turn.update is not None
        return turn.update.start_replicas()

    def _backward_bottom(self, turn: Turn) -> None:
        self.model.backward_bottom(self._node_gradients)
        self._scales.send(turn)

    def _sum(self, turn: Turn, name: str) -> Waitable | None:
        bucket = self.buckets[name]
        # a model in one bucket has nothing to sum early
        if bucket.parameters.start == bucket.parameters.stop:
            return None
        self.soundness.spoil(turn, [flat[bucket.parameters] for flat in self._nodes.values()])
        turn.sums[name] = self.start_sum(bucket)
        return turn.sums[name]

    def start_sum(self, bucket: Bucket) -> Started[Floats]:
        """Begin to add the gradients of a bucket's parameters over all ranks."""
        gradients = {node: flat[bucket.parameters] for node, flat in self._nodes.items()}
        return bucket.reduction.start(gradients)

    def _update(self, turn: Turn) -> None:
        assert turn.update is not None and turn.outcome is not None and turn.gradient is not None
        # the first to write: what ranks agree on is known before
        if self.soundness.skips and self.soundness.agree(turn, self._gradients(turn, *BUCKETS)):
            turn.outcome = replace(turn.outcome, fault=turn.fault, scaled=turn.scaled)
            return
        if self.dynamic is not None:
            self.dynamic.note(turn.batch.sparse, turn.gradient)
        turn.update.update_shards()

    def _apply(self, turn: Turn) -> None:
        assert turn.update is not None
        if turn.fault:
            self.embedding.tbe.settle()
            return
        turn.update.update_replicas()

    def _gradients(self, turn: Turn, *names: str) -> list[DenseGradient]:
        """Sums over all ranks of the parameters of some buckets; towers come with the lower one."""
        gradients = [
            DenseGradient(self.buckets[name].parameters.start, turn.sums[name].wait())
            for name in names
            if name in turn.sums
        ]
        if "lower" in names and self.towers is not None:
            if turn.tower_sums is None:
                turn.tower_sums = self.towers.reduce(turn.batch.samples)
            gradients += turn.tower_sums
        return gradients

    def _update_dense(self, turn: Turn, name: str) -> None:
        self._updates.begin(turn, name, self._gradients)
        if name == "lower":
            self._scales.end(turn)
