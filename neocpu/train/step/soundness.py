"""Are the numbers of a step sound, and where does the first that is not stand?

    losses            finite, sample by sample                        before the backward pass
    pooled gradients  below 2^63 in size, so that squares have room   before a row is updated
    dense gradients   the same, of the sums over all ranks            before a parameter is updated
    states            finite, looked at where a gradient is large     after the update

A step that is not sound ends the run, or nothing of it is written on any rank (`skips`). With a
loss scale that follows from overflows, a gradient that is not finite ends no run, but lowers the
scale. Where steps are left out, ranks must agree before the first row is written, and need no
exchange for it: a rank that met something makes its dense gradients NaN, and the sums over all
ranks, which every rank has alike, show it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neocpu.core.errors import TrainingError
from neocpu.core.jagged import InverseKJT
from neocpu.core.trees import leaf_cuts, rank_leaves, rank_samples
from neocpu.core.types import Floats, Ints
from neocpu.parallel.embeddings.protocol import Embedding
from neocpu.parallel.sharding.entries import key_columns
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.tables.embedding.overflow import RISK, peak
from neocpu.tables.specs.specs import bags
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.step.gradient_norm import GradientNorm, pooled_norm
from neocpu.train.step.turn import BatchLike, DenseGradient, Turn

if TYPE_CHECKING:
    from neocpu.train.step.dynamic_kinds import DynamicKinds
    from neocpu.train.step.tower_gradients import TowerGradients

# the square of a larger number, added to a few of its kind, is infinite in fp32: sums of squares
# would freeze what they divide
LIMIT = 2.0**63
NAMED = 5  # rows of a bag that a message names
ADVICE = (
    "lower optimizer.dense.learning_rate or optimizer.sparse.learning_rate, or resume from an "
    'earlier checkpoint; training.on_nonfinite = "skip" leaves such steps out'
)


def sound(numbers: Floats) -> bool:
    """Whether all are numbers of a size that a rule can square."""
    return peak(numbers) < LIMIT


class Soundness:
    """The checks of one rank's steps.

    The objects are those of the step. goes_on : a step that is not sound is left out on all ranks,
    and its turn says why (`Turn.fault`); else TrainingError ends the run.

    Attribute: skips, may steps be left out? Also where the run does not go on, by a loss scale.
    """

    def __init__(
        self,
        model: Dlrm,
        embedding: Embedding[Any],
        optimizer: DenseOptimizer,
        towers: "TowerGradients | None",
        dynamic: "DynamicKinds | None",
        goes_on: bool,
    ) -> None:
        self.skips = goes_on or model.precision.skips
        self._goes_on = goes_on
        self._model = model
        self._embedding = embedding
        self._optimizer = optimizer
        self._towers = towers
        self._dynamic = dynamic
        env = embedding.env
        # beside the exchanges of batches that are under way
        self._comm = env.comm.queue("soundness") if self.skips else env.comm
        self._tables = env.plan.tables
        self._shards = env.plan.local(env.comm.rank)
        self._keys = bags(env.plan.tables)
        self._columns = key_columns(env.plan.tables, model.first_column)
        self._parameters = model.layout.parameter_sizes()
        self._norm = GradientNorm([*self._parameters.values()])
        self._turn: Turn | None = None  # the last that was taken, and its sums over all ranks
        self._step = 0
        self._summed: list[DenseGradient] = []

    # ---- before anything is written ----

    def losses(self, turn: Turn, losses: Floats, E: Floats | None) -> None:
        """Per-sample losses f32[b]; E : f32[b, columns], that they come of, if it is in memory."""
        finite = np.isfinite(losses)
        if finite.all():
            return
        sample = int(np.argmin(finite))
        batch = turn.batch
        inputs = np.isfinite(batch.dense[sample]).all() and np.isfinite(batch.labels[sample])
        what = (
            f"the loss of {self._sample(batch, sample)} is {losses[sample]} (its inputs are "
            f"{'finite' if inputs else 'not finite'}){self._origin(batch, E, sample)}"
        )
        if not self._goes_on:
            raise _ended(turn, what)
        self._met(turn, what)

    def pooled(self, turn: Turn) -> None:
        """The gradient of E, and those of lookups without pooling."""
        assert turn.gradient is not None
        if not turn.fault and not sound(turn.gradient):
            sample, column = np.argwhere(~(np.abs(turn.gradient) < LIMIT))[0].tolist()
            where = self._vector(turn.batch, sample, column)
            self._met(
                turn,
                f"the gradient of {where} in {self._sample(turn.batch, sample)} is "
                f"{turn.gradient[sample, column]}{_largest(turn.batch, sample)}",
            )
        for key, terms in enumerate(self._model.row_terms):
            if not turn.fault and not sound(terms.gradient):
                self._met(turn, f"a row's gradient of key {key} without pooling is not finite")

    def spoil(self, turn: Turn, nodes: Sequence[Floats]) -> None:
        """Let the sums of dense gradients show that this rank met something."""
        if turn.fault:
            for flat in nodes:
                flat[...] = np.nan

    def agree(self, turn: Turn, gradients: Sequence[DenseGradient]) -> bool:
        """Whether the step is left out, after its sums over all ranks; `turn.fault` then says why.

        Collective. Every rank has the same sums, but for towers of other nodes.
        """
        unsound = not all(sound(gradient) for _, gradient in gradients)
        if self._towers is not None:
            unsound = bool(self._comm.largest(int(unsound), what="soundness"))
        if not unsound:
            return False
        # what a rank met itself says more than the sums, which show only that one did
        met = self._comm.allgather(turn.fault)
        turn.fault = next(filter(None, met), "") or self._of_parameter(gradients)
        turn.scaled = self._model.precision.overflowed()
        if not (turn.scaled or self._goes_on):
            raise _ended(turn, turn.fault)
        return True

    def gradients(self, turn: Turn, gradients: Sequence[DenseGradient]) -> None:
        """The sums over all ranks, where unsound steps end the run."""
        if not self.skips and not all(sound(gradient) for _, gradient in gradients):
            self._met(turn, self._of_parameter(gradients))

    # ---- afterwards ----

    def states(self, turn: Turn, gradients: Sequence[DenseGradient]) -> None:
        """Dense parameters and their states after their update from these gradients.

        Raises TrainingError, whatever the policy: they are written.
        """
        if self._step != turn.step:
            self._step = turn.step
            self._summed = []
        self._summed += gradients
        self._turn = turn
        optimizer = self._optimizer
        for first, gradient in gradients:
            # a look at all states takes longer than the update
            if (largest := peak(gradient)) < RISK:
                continue
            span = slice(first, first + gradient.size)
            arrays = {"value": optimizer.parameters, **optimizer.state}
            for name, array in arrays.items():
                finite = np.isfinite(array[span])
                if not finite.all():
                    parameter = self._parameter(first + int(np.argmin(finite)))
                    raise TrainingError(
                        f"step {turn.step}: {name} of {parameter} is not finite after the update; "
                        f"the largest number of the gradient was {largest:.3g}; {ADVICE}"
                    )

    def norms(self) -> dict[str, float]:
        """Norms of the gradients of the last step, before they were clipped. Collective.

        `gradient_norm` is that of all dense parameters, `pooled_gradient_norm` that of the vectors
        of tables, but where towers run apart.
        """
        turn = self._turn
        if turn is None or turn.gradient is None:
            return {}
        env = self._embedding.env
        share = None if self._towers is None else self._towers.share
        norms = {"gradient_norm": self._norm.of(self._summed, share)}
        if self._towers is None:
            first, _ = rank_samples(env.comm.rank, env.comm.size, turn.batch.samples, env.leaves)
            lo, hi = rank_leaves(env.comm.rank, env.comm.size, env.leaves)
            cuts = [cut - first for cut in leaf_cuts(turn.batch.samples, env.leaves)[lo : hi + 1]]
            vectors = turn.gradient[:, self._model.first_column :]
            norms["pooled_gradient_norm"] = pooled_norm(vectors, cuts, env.comm)
        return norms

    # ---- messages ----

    def _met(self, turn: Turn, what: str) -> None:
        if not self.skips:
            raise _ended(turn, what)
        turn.fault = turn.fault or what

    def _sample(self, batch: BatchLike, sample: int) -> str:
        rank = self._comm.rank
        leaves = self._embedding.env.leaves
        first, _ = rank_samples(rank, self._comm.size, batch.samples, leaves)
        return f"sample {first + sample} of the batch"

    def _of_parameter(self, gradients: Sequence[DenseGradient]) -> str:
        """The first of the sums that is not sound."""
        for first, gradient in gradients:
            wrong = ~(np.abs(gradient) < LIMIT)
            if wrong.any():
                at = int(np.argmax(wrong))
                return f"the gradient of {self._parameter(first + at)} is {gradient[at]}"
        return "the gradient of a tower of another node is not finite"

    def _parameter(self, index: int) -> str:
        """The parameter that has this number of the flat array."""
        ends = np.cumsum([*self._parameters.values()])
        return [*self._parameters][int(np.searchsorted(ends, index, side="right"))]

    def _origin(self, batch: BatchLike, E: Floats | None, sample: int) -> str:
        """Which number of a sample is not finite before all others, as far as this rank knows."""
        dense = batch.dense[sample]
        if not np.isfinite(dense).all():
            column = int(np.argmin(np.isfinite(dense)))
            return f"; dense input {column + 1} is {dense[column]}"
        if E is None:
            return _largest(batch, sample)
        vectors = E[sample, self._model.first_column :]
        if not np.isfinite(vectors).all():
            column = self._model.first_column + int(np.argmin(np.isfinite(vectors)))
            return f"; {self._vector(batch, sample, column)} is {E[sample, column]}"
        return _largest(batch, sample)

    def _vector(self, batch: BatchLike, sample: int, column: int) -> str:
        """The vector that a column of E belongs to, with its table and rows."""
        if column < self._model.first_column:
            return "the bottom MLP's output"
        # where towers run apart, columns are theirs
        if self._embedding.columns != self._columns[-1]:
            return "a tower's vector"
        key = int(np.searchsorted(self._columns, column, side="right")) - 1
        bag = self._keys[key]
        rows = self._rows(batch, sample, key)
        named = self._unsound_rows(bag.table, rows)
        which = f"row {named[0]}" if named.size else f"rows {_listed(rows)}"
        return f"the vector of {bag.feature} (table {self._tables[bag.table].name}, {which})"

    def _rows(self, batch: BatchLike, sample: int, key: int) -> Ints:
        """Rows that a sample looks up by a key."""
        sparse = batch.sparse
        if self._dynamic is not None:
            sparse = self._dynamic.translate(sparse)
        if isinstance(sparse, InverseKJT):
            from neocpu.tables.embedding.distinct_bags import expand  # most runs have none

            sparse = expand(sparse)
        bag = key * sparse.samples + sample
        return np.unique(sparse.values[sparse.offsets[bag] : sparse.offsets[bag + 1]])

    def _unsound_rows(self, table: int, rows: Ints) -> Ints:
        """Those of the rows that this rank holds and that are not finite."""
        for number, shard in enumerate(self._shards):
            lo, hi = shard.rows
            held = rows[(rows >= lo) & (rows < hi)]
            if shard.table != table or not held.size:
                continue
            weights = self._embedding.tbe.values(number, held - lo)["weight"]
            finite = np.isfinite(weights).all(axis=1)
            if not finite.all():
                return held[~finite]
        return np.empty(0, np.int64)


def _ended(turn: Turn, what: str) -> TrainingError:
    return TrainingError(f"step {turn.step}: {what}; {ADVICE}")


def _largest(batch: BatchLike, sample: int) -> str:
    """The largest dense input of a sample, for a message."""
    dense = batch.dense[sample]
    if not dense.size:
        return ""
    column = int(np.argmax(np.abs(dense)))
    return f"; its largest input is {dense[column]:.6g}, dense input {column + 1}"


def _listed(rows: Ints) -> str:
    more = ", ..." if rows.size > NAMED else ""
    return ", ".join(map(str, rows[:NAMED].tolist())) + more
