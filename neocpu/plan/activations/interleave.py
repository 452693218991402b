"""In which order do the operations of several models run, that share memory?

    one after the other       A forward  A backward  B forward  B backward
    forward passes first      A forward  B forward   A backward B backward
    one within the other      A forward  B forward   B backward A backward

While B runs, arrays of A that have left memory are on their way: more order to choose from than one
model has (mu-TWO, Purandare et al., MLSys 2023). Each order has a schedule within the budget, and
the one that delays steps least is taken.
"""

from collections.abc import Sequence

from neocpu.core.errors import TrainingError
from neocpu.plan.activations.choose import choose
from neocpu.plan.activations.graph import StepGraph, merged
from neocpu.plan.activations.schedule import ActivationSchedule, Speed

ALONE = "one after the other"
FORWARD_FIRST = "forward passes first"
NESTED = "one within the other"
ORDERS = (ALONE, FORWARD_FIRST, NESTED)


def order_of(name: str, operations: Sequence[int], forward: Sequence[int]) -> list[int]:
    """The model of each operation of a round of steps.

    operations : of each model. forward : how many of them are its forward pass.
    """
    models = range(len(operations))
    ahead = [[model] * forward[model] for model in models]
    back = [[model] * (operations[model] - forward[model]) for model in models]
    if name == ALONE:
        pieces = [piece for pair in zip(ahead, back) for piece in pair]
    else:
        pieces = [*ahead, *(back if name == FORWARD_FIRST else reversed(back))]
    return [model for piece in pieces for model in piece]


def interleave(
    graphs: Sequence[StepGraph],
    forward: Sequence[int],
    budget: int,
    speed: Speed,
    orders: Sequence[str] = ORDERS,
) -> tuple[str, ActivationSchedule]:
    """(order, schedule) of a round of steps within a budget of bytes, of least overhead.

    Raises TrainingError, as `choose`, where no order keeps to it.
    """
    operations = [len(graph.operations) for graph in graphs]
    schedules: dict[str, ActivationSchedule] = {}
    error: TrainingError | None = None
    for name in orders:
        graph = merged(graphs, order_of(name, operations, forward))
        try:
            schedules[name] = choose(graph, budget, speed)
        except TrainingError as problem:
            error = error or problem
    if not schedules:
        assert error is not None
        raise error
    best = min(schedules, key=lambda name: (schedules[name].overhead, schedules[name].size))
    return best, schedules[best]
