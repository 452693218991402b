"""Which activations leave memory, and which are computed again, so that a step keeps to a budget?

The greedy choice of mu-TWO (Purandare et al., MLSys 2023): while the simulated step takes more than
the budget, of the activations that have memory and are idle at its peak,

    s   the one that is idle for the longest time    overhead: its copies, less the operations that
                                                     run meanwhile, also those of another model
    r   the one of most bytes a second of computing it again     overhead: these seconds

the one of less overhead is made absent, and the step is simulated again. Then single choices change
as long as that makes the step shorter within the budget.
"""

from collections.abc import Iterator
from typing import NamedTuple

from neocpu.core.errors import TrainingError
from neocpu.core.units import bytes_text
from neocpu.plan.activations.graph import Activation, StepGraph, clock, longest_gap
from neocpu.plan.activations.schedule import (
    REMAKE,
    STALL,
    SWAP,
    ActivationSchedule,
    Speed,
    simulate,
)


def choose(graph: StepGraph, budget: int, speed: Speed) -> ActivationSchedule:
    """The schedule of a step within a budget of bytes.

    Raises TrainingError that names the least that is possible.
    """
    schedule = simulate(graph, {}, speed)
    while schedule.size > budget:
        candidates = [*_candidates(schedule, speed)]
        if not candidates:
            schedule = least(graph, speed)
            break
        chosen = _published(candidates)
        schedule = simulate(graph, {**schedule.choices, chosen.name: chosen.how}, speed)
    if schedule.size > budget:
        raise TrainingError(
            f"memory.activations: a step of this rank needs {bytes_text(schedule.size)} for its "
            f"activations even with all away that are idle, more than the {bytes_text(budget)} "
            "that there are; raise it, or train on smaller batches or more ranks"
        )
    return _improved(schedule, budget, speed)


def least(graph: StepGraph, speed: Speed) -> ActivationSchedule:
    """The schedule of least memory: all that is idle is away, and operations wait for it."""
    return simulate(graph, {x.name: STALL for x in graph.activations if x.moves}, speed)


class _Candidate(NamedTuple):
    """An activation that could be absent: how, and the seconds that it costs.

    worth : seconds that it is idle, or bytes a second of computing it again.
    """

    name: str
    how: str
    overhead: float
    worth: float


def _published(candidates: list[_Candidate]) -> _Candidate:
    """s or r, whichever costs less."""
    kinds = ([x for x in candidates if (x.how == REMAKE) == remade] for remade in (False, True))
    best = [max(kind, key=lambda x: x.worth) for kind in kinds if kind]
    return min(best, key=lambda x: x.overhead)


def _candidates(schedule: ActivationSchedule, speed: Speed) -> Iterator[_Candidate]:
    """Activations that have memory at the peak of a schedule, and are idle then."""
    graph = schedule.graph
    at = schedule.live.index(schedule.peak)
    times = clock(graph)
    for activation, absence in zip(graph.activations, schedule.absences):
        gap = longest_gap(activation.first, activation.uses, times)
        if gap is None or not gap.before < at < gap.after:
            continue
        idle = times[gap.after] - times[gap.before + 1]
        if activation.moves and (absence is None or (absence.how == SWAP)):
            yield _move(schedule, activation, at, idle, speed)
        if activation.remake is not None and absence is None:
            worth = activation.bytes / max(activation.remake, 1e-12)
            yield _Candidate(activation.name, REMAKE, activation.remake, worth)


def _move(
    schedule: ActivationSchedule, activation: Activation, at: int, idle: float, speed: Speed
) -> _Candidate:
    """The copy of an activation that takes its memory at an operation: hidden, if it can be."""
    copies = activation.bytes / speed.out + activation.bytes / speed.back
    choices = schedule.choices
    if activation.name not in choices:
        hidden = simulate(schedule.graph, {**choices, activation.name: SWAP}, speed)
        if hidden.live[at] < schedule.live[at]:
            return _Candidate(activation.name, SWAP, max(0.0, copies - idle), idle)
    return _Candidate(activation.name, STALL, copies, idle)


def _improved(schedule: ActivationSchedule, budget: int, speed: Speed) -> ActivationSchedule:
    """A schedule that no single other choice makes shorter within the budget."""
    better: ActivationSchedule | None = schedule
    while better is not None:
        schedule = better
        others = (simulate(schedule.graph, x, speed) for x in _neighbours(schedule))
        shorter = (x for x in others if x.size <= budget and _cost(x) < _cost(schedule))
        better = min(shorter, key=_cost, default=None)
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
