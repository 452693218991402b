"""How do parameters of many ranks learn from one pass? Each owner updates its own, in one call.

A rank registers its parameters by name (`Parameters`); any rank that ran a pass has a
`DistributedOptimizer` of some of them, by their ranks and names. Rules are those of training, with
their numbers (`docs/arithmetic.md` §5). Passes may end at once on many ranks: an owner updates its
parameters for one of them at a time, in the order in which their calls come. That is an order of
time, so that the bits of asynchronous training depend on it; with one trainer they do not.
"""

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from neocpu.core.errors import RpcError
from neocpu.parallel.rpc.agent import RpcAgent
from neocpu.parallel.rpc.forks import integers
from neocpu.parallel.rpc.gradients import GradientContext, PassId
from neocpu.parallel.rpc.operations import BagGradient, EmbeddingParameter, update_table
from neocpu.parallel.rpc.tape import Variable
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.tables.specs.optimizers import SparseOptimizer

STEP = "parameters.step"


class Parameters:
    """The parameters of one rank, by name, and their optimizers. agent : of the rank.

    named : arrays f32, C-contiguous, as `Variable`s, and tables, which have rules of their own.
    optimizer : of the arrays; a rule that is elementwise.
    """

    def __init__(
        self, agent: RpcAgent, named: Mapping[str, Variable], optimizer: SparseOptimizer
    ) -> None:
        self._agent = agent
        self._named = dict(named)
        for name, variable in named.items():
            _check_parameter(name, variable)
        self._dense = {
            name: DenseOptimizer(optimizer, variable.array.reshape(-1))
            for name, variable in named.items()
            if not isinstance(variable, EmbeddingParameter)
        }
        self._steps: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()
        agent.functions.add(STEP, self._step)

    def __getitem__(self, name: str) -> Variable:
        """The parameter of a name."""
        return self._named[name]

    def _step(self, number: object, names: Sequence[str]) -> None:
        """Update parameters from their gradients in a pass; those without one stay."""
        for name in names:
            if name not in self._named:
                raise RpcError(f"rank {self._agent.rank} has no parameter {name!r}")
        context = PassId(*integers(number, 2))
        with self._lock:
            for name in names:
                self._update(name, context)

    def _update(self, name: str, context: PassId) -> None:
        variable = self._named[name]
        gradient = self._agent.gradients.gradient(context, variable)
        if gradient is None:
            return
        self._steps[name] += 1
        if isinstance(variable, EmbeddingParameter):
            assert isinstance(gradient, BagGradient)
            update_table(variable, gradient, self._steps[name])
            return
        assert isinstance(gradient, np.ndarray)
        self._dense[name].step(gradient.reshape(-1), self._steps[name])


def _check_parameter(name: str, variable: object) -> None:
    """Raise RpcError for what a rule cannot update in place."""
    if isinstance(variable, EmbeddingParameter):
        return
    array = variable.array if isinstance(variable, Variable) else None
    if (
        not isinstance(array, np.ndarray)
        or array.dtype != np.float32
        or not array.flags.c_contiguous
    ):
        raise RpcError(
            f"parameter {name!r} has to be a Variable of a float32 array whose numbers lie one "
            "after the other (np.ascontiguousarray)"
        )


class DistributedOptimizer:
    """Updates parameters of many ranks. names : of the parameters, by rank."""

    def __init__(self, agent: RpcAgent, names: Mapping[int, Sequence[str]]) -> None:
        self._agent = agent
        self._names = {rank: list(of_rank) for rank, of_rank in names.items()}

    def step(self, context: GradientContext) -> None:
        """One update of every parameter from a pass whose `backward` is over; one call to each of
        its owners, at once. Raises the first error of an owner.
        """
        number = tuple(context.passed())
        calls = [
            self._agent.call(rank, STEP, (None, number, names))
            for rank, names in self._names.items()
        ]
        for call in calls:
            call.wait()
