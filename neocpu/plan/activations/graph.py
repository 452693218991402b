"""What does a plan of activations start from? Operations in their order, and the arrays between
them.

    operation    0  1  2  3  4  5
    array x      w  r        r        written by 0, read by 1 and 4: idle for 2 and 3

Operations of several models may be merged into one order (`merged`): then those of one model run
while arrays of another are idle.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

ALIGNED = 64  # bytes that places of arrays are multiples of


class StepOperation(NamedTuple):
    """A piece of a step that runs without a break, and its seconds."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Activation:
    """An array that an operation writes and later ones read.

    first : the operation that writes it. uses : those that read it, ascending. moves : may it
    leave memory and come back? remake : seconds to compute it again (None: it cannot be). sources :
    names of the activations that it is computed from.
    """

    name: str
    bytes: int
    first: int
    uses: tuple[int, ...]
    moves: bool = True
    remake: float | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepGraph:
    """A step; sources of an activation stand before it."""

    operations: tuple[StepOperation, ...]
    activations: tuple[Activation, ...]


class Gap(NamedTuple):
    """The operations between two uses: it is idle after `before` until `after`."""

    before: int
    after: int


def room_of(size: int) -> int:
    """Bytes of memory for an array of so many."""
    return -(-size // ALIGNED) * ALIGNED


def clock(graph: StepGraph) -> list[float]:
    """Seconds before each operation, and those of all at the end."""
    return [0.0, *accumulate(operation.seconds for operation in graph.operations)]


def longest_gap(first: int, uses: Iterable[int], times: Sequence[float]) -> Gap | None:
    """The longest time between two uses of an activation; times : of `clock`."""
    gaps = [Gap(*pair) for pair in pairwise(sorted({first, *uses})) if pair[1] > pair[0] + 1]
    return max(gaps, key=lambda gap: times[gap.after] - times[gap.before + 1], default=None)


def merged(graphs: Sequence[StepGraph], order: Sequence[int]) -> StepGraph:
    """One graph of several models, whose operations follow in `order`: the number of the model of
    each. Names begin with that number.
    """
    places: list[list[int]] = [[] for _ in graphs]
    operations = []
    for at, model in enumerate(order):
        operation = graphs[model].operations[len(places[model])]
        operations.append(operation._replace(name=name_of(model, operation.name)))
        places[model].append(at)
    for graph, taken in zip(graphs, places):
        assert len(taken) == len(graph.operations)
    activations = [
        replace(
            activation,
            name=name_of(model, activation.name),
            first=places[model][activation.first],
            uses=tuple(places[model][use] for use in activation.uses),
            sources=tuple(name_of(model, source) for source in activation.sources),
        )
        for model, graph in enumerate(graphs)
        for activation in graph.activations
    ]
    return StepGraph(tuple(operations), tuple(activations))


def name_of(model: int, name: str) -> str:
    """The name of something of a model among several."""
    return f"{model}: {name}"
