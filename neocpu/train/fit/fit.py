"""How does a fit go from samples to a model?"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from neocpu.core.errors import DataError
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.kernels.records import SparseLines
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.train.fit.columns import DesignColumns, LabelMap, columns_of, labels_of
from neocpu.train.fit.dance import dance
from neocpu.train.fit.design import F64, DesignMatrix, Leaves, order_of
from neocpu.train.fit.fitted import FittedModel, model_of
from neocpu.train.fit.keys import CHOSEN, FitKeys
from neocpu.train.fit.layers import LayeredModel
from neocpu.train.fit.losses import LOSSES
from neocpu.train.fit.objective import LeafSum
from neocpu.train.fit.progressive import progressive
from neocpu.train.fit.samples import FitSamples, samples_of
from neocpu.train.fit.solving import FitState, FitStep, Fitting, Goal

HELD_OUT = 0.1  # of the samples, the last ones, on which a penalty is chosen
COARSE = 1e-2  # tolerance of perceptrons of which one is chosen
SOLVERS: dict[str, Callable[[Fitting, FitState], Iterator[FitStep]]] = {
    "dance": dance,
    "lbfgs": progressive,
}


@dataclass(frozen=True)
class StepFacts:
    """Where a fit is after a step: samples of the sample, its objective and the length of its
    gradient, passes over all samples until now, products or trials of the step. valid : the mean
    loss of the valid samples, where a fit is patient.
    """

    step: int
    samples: int
    objective: float
    gradient: float
    passes: float
    trials: int
    valid: float | None = None


class HeldOut:
    """Samples that are not fitted, on which weights are compared. Collective."""

    def __init__(
        self, samples: FitSamples, columns: DesignColumns, labels: LabelMap, comm: Comm
    ) -> None:
        self.samples = samples.count
        self._design = columns.design(samples, labels)
        self._sums = LeafSum(comm, samples.leaves, 1)

    def loss(self, model: LayeredModel, weights: F64) -> float:
        """The sum of their losses, the same bits on any ranks."""
        loss = model.tape(self._design, weights).loss
        self._sums.out[:] = self._design.sums(loss[:, None], self._sums.nodes)
        return float(self._sums.total()[0])


class Fit:
    """A model that is being fitted to the samples of a dataset. Collective.

    data : the train samples. features : that have columns. keys : with the loss named. saved :
    where to go on; None: at the beginning. weight : the label that weighs samples ("": all weigh
    1). valid : samples by whose loss a fit with patience ends. check : is given the keys, the model
    and the number of this rank's samples, on all ranks, before anything has the model's size.
    Attributes: fitted, the model so far; state; finished, whether nothing is left to do.

    Raises DataError and ConfigError, on all ranks, for labels or features that do not fit.
    """

    def __init__(
        self,
        data: Dataset,
        features: Sequence[str],
        keys: FitKeys,
        comm: Comm,
        saved: tuple[FittedModel, FitState] | None = None,
        weight: str = "",
        check: Callable[[FitKeys, LayeredModel, int], None] | None = None,
        valid: Dataset | None = None,
    ) -> None:
        self.comm = comm
        self._valid = valid
        self._weight = weight
        samples = _ordered(data, keys, weight, comm)
        if not samples.count:
            raise DataError(f"{data.name}: all samples weigh 0; there is nothing to fit")
        if saved:
            columns, labels = saved[0].columns, saved[0].labels
            keys = replace(saved[0].keys, most=keys.most)
        else:
            labels = labels_of(samples, LOSSES[keys.loss].labels, comm)
            columns = columns_of(samples, features, keys, comm)
        if check:
            check(keys, model_of(keys, columns.width, labels), samples.own.size)
        if keys.l2 == CHOSEN:
            keys = keys.with_l2(_best_penalty(data, features, keys, labels, comm, weight))
        self._fitting = _fitting(samples, columns, keys, labels, comm)
        first = self._fitting.first(keys)
        start = saved[1] if saved else FitState(self._fitting.start(keys.seed), first)
        self.state = start
        best = start.weights if start.best is None else start.best
        self.fitted = FittedModel(keys, columns, labels, best, samples.count)
        self.finished = False
        self._fitting.spent = start.spent

    def steps(self) -> Iterator[StepFacts]:
        """Take steps until the goal is reached, or the valid samples gain nothing more, or as many
        as the keys allow.
        """
        keys = self.fitted.keys
        held = self._held_out() if keys.patience else None
        state = self.state
        for stage in () if self._impatient else SOLVERS[keys.method](self._fitting, self.state):
            self.state.spent = self._fitting.spent
            loss = held.loss(self._fitting.model, state.weights) if held else None
            if loss is None or state.watch(loss, state.samples == self._fitting.samples):
                self.fitted = replace(self.fitted, weights=state.weights)
            point = stage.point
            yield StepFacts(
                self.state.iterations,
                self.state.samples,
                point.value,
                point.steepness,
                self._fitting.passes,
                stage.trials,
                None if held is None or loss is None else loss / held.samples,
            )
            if self._impatient:
                break
            if self.state.iterations >= keys.most:
                return
        self.finished = True

    @property
    def _impatient(self) -> bool:
        """Did the valid samples gain nothing for as many steps as patience has?"""
        return 0 < self.fitted.keys.patience <= self.state.waited

    def _held_out(self) -> HeldOut:
        """The valid samples. Raises DataError, on all ranks alike."""
        assert self._valid is not None
        fitted = self.fitted
        fitted.columns.check(self._valid)
        order = np.arange(self._valid.rows, dtype=np.int64)
        leaves = Leaves(self.comm.rank, self.comm.size, fitted.keys.leaves)
        samples = samples_of(self._valid, order, self._weight, leaves)
        if not samples.count:
            raise DataError(f"{self._valid.name}: all valid samples weigh 0; patience needs some")
        return HeldOut(samples, fitted.columns, fitted.labels, self.comm)


def fitted(
    data: Dataset, features: Sequence[str], keys: FitKeys, comm: Comm, weight: str = ""
) -> FittedModel:
    """The model of some samples; arguments, and errors, as of `Fit`. Collective."""
    fit = Fit(data, features, keys, comm, weight=weight)
    deque(fit.steps(), 0)
    return fit.fitted


def compile_kernels(keys: FitKeys, comm: Comm) -> None:
    """Compile the kernels of a fit on rank 0, while the others sleep; then all load them."""
    if comm.rank == 0:
        rows = SparseLines(np.arange(3), np.zeros(2, np.int32), np.ones(0))
        labels = np.array([0.0, 1.0])
        design = DesignMatrix(rows, np.ones((2, 1)), labels, 1, np.array([1, 2]), 2)
        model = model_of(keys, design.width, LabelMap((0.0, 1.0)))
        goal = Goal(1.0, 0.1)
        alone = Leaves(0, 1, 2)
        fitting = Fitting(model, design, model.penalised(True), goal, SingleComm(), alone)
        steps = SOLVERS[keys.method](fitting, FitState(fitting.start(1), 1))
        deque(islice(steps, 3), 0)
    comm.quiet_barrier()


def _ordered(data: Dataset, keys: FitKeys, weight: str, comm: Comm) -> FitSamples:
    """Samples in their random order."""
    leaves = Leaves(comm.rank, comm.size, keys.leaves)
    return samples_of(data, order_of(data.rows, keys.seed), weight, leaves)


def _fitting(
    samples: FitSamples, columns: DesignColumns, keys: FitKeys, labels: LabelMap, comm: Comm
) -> Fitting:
    """The problem of some samples."""
    with comm.agreeing():
        design = columns.design(samples, labels)
    model = model_of(keys, columns.width, labels)
    assert not isinstance(keys.l2, str)
    goal = Goal(keys.l2 / samples.count, keys.tolerance, keys.pairs)
    penalised = model.penalised(keys.intercepts)
    return Fitting(model, design, penalised, goal, comm, samples.leaves)


def _best_penalty(
    data: Dataset,
    features: Sequence[str],
    keys: FitKeys,
    labels: LabelMap,
    comm: Comm,
    weight: str,
) -> float:
    """The penalty that predicts the last samples best, fitted to those before. Collective.

    Strongest first: each begins where the one before ended, or where all do if there are hidden
    layers: of these a strong penalty leaves nothing, and there all slopes are 0.
    """
    held = int(HELD_OUT * data.rows)
    learnt = _ordered(data.part(0, data.rows - held), keys, weight, comm)
    last = np.arange(held, dtype=np.int64)
    test = samples_of(data.part(data.rows - held, data.rows), last, weight, learnt.leaves)
    if not (learnt.count and test.count):
        return keys.penalties[0]
    columns = columns_of(learnt, features, keys, comm)
    measured = HeldOut(test, columns, labels, comm)
    if keys.hidden:
        keys = replace(keys, tolerance=max(keys.tolerance, COARSE))
    fitting = _fitting(learnt, columns, keys.with_l2(keys.penalties[-1]), labels, comm)
    state = FitState(fitting.start(keys.seed), fitting.first(keys))
    losses = {}
    for penalty in reversed(keys.penalties):
        if keys.hidden:
            state = FitState(fitting.start(keys.seed), fitting.first(keys))
        fitting.goal = replace(fitting.goal, penalty=penalty / learnt.count)
        for _ in dance(fitting, state):
            if state.iterations >= keys.most:
                break
        losses[penalty] = measured.loss(fitting.model, state.weights)
        state.samples = learnt.count
    return min(reversed(losses), key=losses.__getitem__)
