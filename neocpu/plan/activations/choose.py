"""Which activations leave memory, and which are computed again, so that a step keeps to a budget?

The greedy choice of mu-TWO (Purandare et al., MLSys 2023): while the simulated step takes more than
the budget, of the activations that have memory and are idle at its peak,

    s   the one that is idle for the longest time    overhead: its copies, less the operations that
                                                     run meanwhile, also those of another model
    r   the one of most bytes a second of computing it again     overhead: these seconds

the one of less overhead is made absent, and the step is simulated again. Then single choices change
as long as that makes the step shorter within the budget.

Where several models share memory, their operations run in one of three orders:

    one after the other       A forward  A backward  B forward  B backward
    forward passes first      A forward  B forward   A backward B backward
    one within the other      A forward  B forward   B backward A backward

While B runs, arrays of A that have left memory are on their way. Each order has a schedule within
the budget, and the one that delays steps least is taken.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from neocpu.core.errors import TrainingError
from neocpu.core.units import bytes_text
from neocpu.plan.activations.graph import Activation, StepGraph, clock, longest_gap, merged
from neocpu.plan.activations.schedule import (
    REMAKE,
    STALL,
    SWAP,
    ActivationSchedule,
    Speed,
    simulate,
)

# Choices that are simulated at last: all of them for a DLRM; deep models would take minutes.
LOOKS = 5000


def too_small(least: int, budget: int) -> TrainingError:
    """The error of a budget that is less than that."""
    error = TrainingError(
        f"memory.activations: a step of a rank needs {bytes_text(least)} for its activations even "
        f"with all away that are idle, more than the {bytes_text(budget)} that there are; raise "
        "it, or train on smaller batches or more ranks"
    )
    error.least = least
    return error


def choose(graph: StepGraph, budget: int, speed: Speed) -> ActivationSchedule:
    """The schedule of a step within a budget of bytes.

    Raises TrainingError, whose `least` is the least that is possible.
    """
    schedule = simulate(graph, {}, speed)
    while schedule.size > budget:
        chosen = _published(schedule, speed)
        if chosen is None:
            schedule = least(graph, speed)
            break
        schedule = simulate(graph, {**schedule.choices, chosen.name: chosen.how}, speed)
    if schedule.size > budget:
        raise too_small(schedule.size, budget)
    return _improved(schedule, budget, speed)


def least(graph: StepGraph, speed: Speed) -> ActivationSchedule:
    """The schedule of least memory: all that is idle is away, and operations wait for it."""
    return simulate(graph, {x.name: STALL for x in graph.activations if x.moves}, speed)


class _Candidate(NamedTuple):
    """An activation that could be absent: how, and the seconds that it costs."""

    name: str
    how: str
    overhead: float


def _published(schedule: ActivationSchedule, speed: Speed) -> _Candidate | None:
    """s or r, whichever costs less, of the activations that have memory at the peak and are idle
    then; None where there is none.
    """
    graph = schedule.graph
    at = schedule.live.index(schedule.peak)
    times = clock(graph)
    idle: dict[Activation, float] = {}
    remade: dict[Activation, float] = {}
    for activation, absence in zip(graph.activations, schedule.absences):
        gap = longest_gap(activation.first, activation.uses, times)
        if gap is None or not gap.before < at < gap.after:
            continue
        if activation.moves and (absence is None or absence.how == SWAP):
            idle[activation] = times[gap.after] - times[gap.before + 1]
        if activation.remake is not None and absence is None:
            remade[activation] = activation.bytes / max(activation.remake, 1e-12)
    candidates = []
    if idle:
        moved = max(idle, key=lambda x: idle[x])
        candidates.append(_move(schedule, moved, at, idle[moved], speed))
    if remade:
        again = max(remade, key=lambda x: remade[x])
        candidates.append(_Candidate(again.name, REMAKE, again.remake or 0.0))
    return min(candidates, key=lambda x: x.overhead, default=None)


def _move(
    schedule: ActivationSchedule, activation: Activation, at: int, idle: float, speed: Speed
) -> _Candidate:
    """The copy of an activation that takes its memory at an operation: hidden, if it can be."""
    copies = activation.bytes / speed.out + activation.bytes / speed.back
    choices = schedule.choices
    if activation.name not in choices:
        hidden = simulate(schedule.graph, {**choices, activation.name: SWAP}, speed)
        if hidden.live[at] < schedule.live[at]:
            return _Candidate(activation.name, SWAP, max(0.0, copies - idle))
    return _Candidate(activation.name, STALL, copies)


def _improved(schedule: ActivationSchedule, budget: int, speed: Speed) -> ActivationSchedule:
    """A schedule that no single other choice makes shorter within the budget, as far as `LOOKS`
    choices show.
    """
    looks = 0
    shorter: ActivationSchedule | None = schedule
    while shorter is not None:
        schedule = shorter
        shorter = None
        for choices in _neighbours(schedule):
            looks += 1
            other = simulate(schedule.graph, choices, speed)
            # places take the longest to find
            if _cost(other) < _cost(schedule) and other.size <= budget:
                shorter = other
                break
            if looks >= LOOKS:
                break
    return schedule


def _cost(schedule: ActivationSchedule) -> tuple[float, int]:
    """Seconds, then bytes that move."""
    return schedule.overhead, schedule.moved


def _neighbours(schedule: ActivationSchedule) -> Iterator[dict[str, str]]:
    """Choices that differ for one activation, or that one leaves for another."""
    choices = schedule.choices
    for activation in schedule.graph.activations:
        ways = (SWAP, STALL) if activation.moves else ()
        if activation.remake is not None:
            ways = (*ways, REMAKE)
        without = {name: how for name, how in choices.items() if name != activation.name}
        if activation.name in choices:
            yield without
        for how in ways:
            if choices.get(activation.name) == how:
                continue
            yield {**without, activation.name: how}
            for other in without:
                yield {
                    name: x
                    for name, x in {**without, activation.name: how}.items()
                    if name != other
                }


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
