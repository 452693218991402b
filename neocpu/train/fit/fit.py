"""How does a fit go from samples to a model?"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from neocpu.core.errors import NeocpuError
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.kernels.records import SparseLines
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.train.fit.columns import DesignColumns, LabelMap, columns_of, labels_of
from neocpu.train.fit.dance import dance
from neocpu.train.fit.design import DesignMatrix, Leaves, order_of
from neocpu.train.fit.fitted import FittedModel, model_of
from neocpu.train.fit.keys import CHOSEN, PENALTIES, FitKeys
from neocpu.train.fit.losses import LOSSES
from neocpu.train.fit.objective import LeafSum
from neocpu.train.fit.progressive import progressive
from neocpu.train.fit.solving import FitState, FitStep, Fitting, Goal

HELD_OUT = 0.1  # of the samples, the last ones, on which a penalty is chosen
SOLVERS: dict[str, Callable[[Fitting, FitState], Iterator[FitStep]]] = {
    "dance": dance,
    "lbfgs": progressive,
}


@dataclass(frozen=True)
class StepFacts:
    """Where a fit is after a step: samples of the sample, its objective and the length of its
    gradient, passes over all samples until now, products or trials of the step.
    """

    step: int
    samples: int
    objective: float
    gradient: float
    passes: float
    trials: int


class Fit:
    """A model that is being fitted to the samples of a dataset. Collective.

    data : the train samples. features : that have columns. keys : with the loss named.
    state : where to go on; None: at the beginning. Attributes: fitted, the model so far; state;
    finished, whether nothing is left to do.

    Raises DataError and ConfigError, on all ranks, for labels or features that do not fit.
    """

    def __init__(
        self,
        data: Dataset,
        features: Sequence[str],
        keys: FitKeys,
        comm: Comm,
        saved: tuple[FittedModel, FitState] | None = None,
    ) -> None:
        self.comm = comm
        self._leaves = Leaves(comm.rank, comm.size, keys.leaves)
        order = order_of(data.rows, keys.seed)
        own = order[self._leaves.positions(data.rows)]
        if saved:
            columns, labels = saved[0].columns, saved[0].labels
            keys = replace(saved[0].keys, most=keys.most)
        else:
            labels = labels_of(data, LOSSES[keys.loss].labels, own, comm)
            if keys.l2 == CHOSEN:
                keys = keys.with_l2(_best_penalty(data, features, keys, labels, comm))
            columns = columns_of(data, features, keys, self._leaves, comm)
        self._fitting = _fitting(data, columns, keys, labels, (comm, self._leaves))
        first = keys.first(data.rows, columns.width)
        start = saved[1] if saved else FitState(self._fitting.start(keys.seed), first)
        self.state = start
        self.fitted = FittedModel(keys, columns, labels, start.weights, data.rows)
        self.finished = False
        self._fitting.spent = start.spent

    def steps(self) -> Iterator[StepFacts]:
        """Take steps until the goal is reached, or as many as the keys allow."""
        keys = self.fitted.keys
        for stage in SOLVERS[keys.method](self._fitting, self.state):
            self.state.spent = self._fitting.spent
            self.fitted = replace(self.fitted, weights=self.state.weights)
            point = stage.point
            yield StepFacts(
                self.state.iterations,
                self.state.samples,
                point.value,
                point.steepness,
                self._fitting.passes,
                stage.trials,
            )
            if self.state.iterations >= keys.most:
                return
        self.finished = True


def fitted(data: Dataset, features: Sequence[str], keys: FitKeys, comm: Comm) -> FittedModel:
    """The model of some samples; arguments, and errors, as of `Fit`. Collective."""
    fit = Fit(data, features, keys, comm)
    deque(fit.steps(), 0)
    return fit.fitted


def compile_kernels(keys: FitKeys, comm: Comm) -> None:
    """Compile the kernels of a fit on rank 0, while the others sleep; then all load them."""
    if comm.rank == 0:
        rows = SparseLines(np.arange(3), np.zeros(2, np.int32), np.ones(0))
        labels = np.array([0.0, 1.0])
        design = DesignMatrix(rows, np.ones((2, 1)), labels, 1, np.array([1, 2]), 2)
        model = model_of(keys, design.width, 2 if LOSSES[keys.loss].coupled else 1)
        goal = Goal(1.0, 0.1)
        alone = Leaves(0, 1, 2)
        fitting = Fitting(model, design, model.penalised(True), goal, SingleComm(), alone)
        steps = SOLVERS[keys.method](fitting, FitState(fitting.start(1), 1))
        deque(islice(steps, 3), 0)
    comm.quiet_barrier()


def _fitting(
    data: Dataset,
    columns: DesignColumns,
    keys: FitKeys,
    labels: LabelMap,
    ranks: tuple[Comm, Leaves],
) -> Fitting:
    """The problem of some samples."""
    comm, leaves = ranks
    error: NeocpuError | None = None
    design: DesignMatrix | None = None
    try:
        design = columns.design(data, leaves, order_of(data.rows, keys.seed), labels)
    except NeocpuError as problem:
        error = problem
    comm.agree(error)
    assert design is not None
    classes = len(labels.values) if LOSSES[keys.loss].coupled else 1
    model = model_of(keys, columns.width, classes)
    assert not isinstance(keys.l2, str)
    goal = Goal(keys.l2 / data.rows, keys.tolerance, keys.pairs)
    return Fitting(model, design, model.penalised(keys.intercepts), goal, comm, leaves)


def _best_penalty(
    data: Dataset, features: Sequence[str], keys: FitKeys, labels: LabelMap, comm: Comm
) -> float:
    """The penalty that predicts the last samples best, fitted to those before. Collective.

    Strongest first: each begins where the one before ended.
    """
    leaves = Leaves(comm.rank, comm.size, keys.leaves)
    held = int(HELD_OUT * data.rows)
    if not held:
        return PENALTIES[0]
    learnt, test = data.part(0, data.rows - held), data.part(data.rows - held, data.rows)
    columns = columns_of(learnt, features, keys, leaves, comm)
    measured = columns.design(test, leaves, np.arange(held, dtype=np.int64), labels)
    fitting = _fitting(learnt, columns, keys.with_l2(PENALTIES[-1]), labels, (comm, leaves))
    first = keys.first(learnt.rows, columns.width)
    state = FitState(fitting.start(keys.seed), first)
    sums = LeafSum(comm, leaves, 1)
    losses = {}
    for penalty in reversed(PENALTIES):
        fitting.goal = replace(fitting.goal, penalty=penalty / learnt.rows)
        for _ in dance(fitting, state):
            if state.iterations >= keys.most:
                break
        loss = fitting.model.tape(measured, state.weights).loss
        sums.out[:] = measured.sums(loss[:, None], sums.nodes)
        losses[penalty] = float(sums.total()[0])
        state.samples = learnt.rows
    return min(reversed(losses), key=losses.__getitem__)
