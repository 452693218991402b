"""How much memory does a step take, and how long, where some activations leave memory or are
computed again?

A schedule says of every activation during which operations it has memory, where in one block of
memory that is, and what is done after each operation:

    after operation i    leave        last read: its memory is free
                         start out    begin to copy it to slower memory, as it is idle now
                         end out      wait for that: its memory is free
                         start in     it has memory again; begin to copy it back
                         end in       wait for that, for the next operation
                         remake       compute it again, for the next operation

One thread copies, one copy after the other, while operations run; the simulator runs its clock
beside that of the operations. An activation has one place at all times, so whoever holds a view of
it may go on using it: places of those that have memory at the same time do not overlap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from neocpu.plan.activations.graph import Gap, StepGraph, clock, longest_gap, room_of

SWAP = "swap"  # out and back while operations run
STALL = "stall"  # the same, but operations wait for it: it is away as long as it can be
REMAKE = "recompute"

Choices = Mapping[str, str]  # of activations that are not kept, by name


class Speed(NamedTuple):
    """Bytes a second to slower memory, and back."""

    out: float
    back: float


@dataclass
class Boundary:
    """What is done after an operation, in this order: numbers of activations."""

    leave: list[int] = field(default_factory=list)
    start_out: list[int] = field(default_factory=list)
    end_out: list[int] = field(default_factory=list)
    start_in: list[int] = field(default_factory=list)
    end_in: list[int] = field(default_factory=list)
    remake: list[int] = field(default_factory=list)


class Absence(NamedTuple):
    """An activation has no memory after operation `out` until operation `back`; it is idle between
    those of `gap`.
    """

    how: str
    gap: Gap
    out: int
    back: int


@dataclass(frozen=True)
class ActivationSchedule:
    """A step as it will run.

    absences : of each activation (None: it stays). masks : bit i, whether it has memory during
    operation i. remade, stalled : seconds that it takes longer than with all in memory.
    """

    graph: StepGraph
    absences: tuple[Absence | None, ...]
    masks: tuple[int, ...]
    boundaries: tuple[Boundary, ...]
    remade: float
    stalled: float

    @cached_property
    def _rooms(self) -> list[int]:
        return [room_of(activation.bytes) for activation in self.graph.activations]

    @cached_property
    def _placed(self) -> tuple[tuple[int, ...], int]:
        return place(self._rooms, self.masks)

    @property
    def places(self) -> tuple[int, ...]:
        """The first byte of each activation."""
        return self._placed[0]

    @property
    def size(self) -> int:
        """Bytes of the block of memory, which gaps between places may make larger than `peak`."""
        return self._placed[1]

    @cached_property
    def live(self) -> tuple[int, ...]:
        """Bytes that have memory during each operation."""
        pairs = [*zip(self._rooms, self.masks)]
        return tuple(
            sum(room for room, mask in pairs if mask >> at & 1)
            for at in range(len(self.graph.operations))
        )

    def has_memory(self, number: int, operation: int) -> bool:
        """Has an activation memory during an operation?"""
        return bool(self.masks[number] >> operation & 1)

    @property
    def peak(self) -> int:
        """Bytes that have memory, at most."""
        return max(self.live, default=0)

    @property
    def overhead(self) -> float:
        """Seconds of a step beyond those of its operations."""
        return self.remade + self.stalled

    @property
    def choices(self) -> dict[str, str]:
        """How activations are absent, by name."""
        pairs = zip(self.graph.activations, self.absences)
        return {activation.name: absence.how for activation, absence in pairs if absence}

    def moves(self, number: int) -> bool:
        """Does an activation leave, and come back?"""
        absence = self.absences[number]
        return absence is not None and absence.how != REMAKE

    @property
    def moved(self) -> int:
        """Bytes that leave in a step, and come back."""
        activations = enumerate(self.graph.activations)
        return sum(x.bytes for number, x in activations if self.moves(number))


def simulate(graph: StepGraph, choices: Choices, speed: Speed) -> ActivationSchedule:
    """The schedule of a step where these activations are absent while they are idle."""
    absences = _absences(graph, choices, speed)
    boundaries = [Boundary() for _ in graph.operations]
    masks = []
    again: dict[str, list[int]] = {}  # operations before which something is computed from it
    for activation, absence in zip(graph.activations, absences):
        if absence is not None and absence.how == REMAKE:
            for source in activation.sources:
                again.setdefault(source, []).append(absence.gap.after)
    for number, (activation, absence) in enumerate(zip(graph.activations, absences)):
        last = max((activation.first, *activation.uses, *again.get(activation.name, ())))
        boundaries[last].leave.append(number)
        mask = _span(activation.first, last)
        if absence is not None:
            mask &= ~_span(absence.out + 1, absence.back - 1)
            _note(boundaries, number, absence)
        masks.append(mask)
    remade = sum(
        activation.remake or 0.0
        for activation, absence in zip(graph.activations, absences)
        if absence and absence.how == REMAKE
    )
    return ActivationSchedule(
        graph=graph,
        absences=absences,
        masks=tuple(masks),
        boundaries=tuple(boundaries),
        remade=remade,
        stalled=_stalled(graph, boundaries, speed),
    )


def place(rooms: Sequence[int], masks: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """First bytes of arrays in one block, and its size: one after the other, each as low as it can
    be beside those that have memory at the same time. Of several orders the best.

    rooms : bytes of each. masks : bit i, whether it has memory during operation i.
    """
    numbers = range(len(rooms))
    orders = (
        sorted(numbers, key=lambda number: -rooms[number]),
        sorted(numbers, key=lambda number: -rooms[number] * masks[number].bit_count()),
        sorted(numbers, key=lambda number: -masks[number].bit_count()),
    )
    return min((_placed(rooms, masks, order) for order in orders), key=lambda result: result[1])


def _placed(
    rooms: Sequence[int], masks: Sequence[int], order: Sequence[int]
) -> tuple[tuple[int, ...], int]:
    """As `place`, in this order."""
    places = [0] * len(rooms)
    placed: list[int] = []
    for number in order:
        beside = [(places[other], rooms[other]) for other in placed if masks[other] & masks[number]]
        at = 0
        for first, room in sorted(beside):
            if first - at >= rooms[number]:
                break
            at = max(at, first + room)
        places[number] = at
        placed.append(number)
    ends = (first + room for first, room in zip(places, rooms))
    return tuple(places), max(ends, default=0)


def _span(first: int, last: int) -> int:
    """Bits first ... last."""
    return ((1 << (last + 1)) - 1) & ~((1 << first) - 1) if last >= first else 0


def _absences(graph: StepGraph, choices: Choices, speed: Speed) -> tuple[Absence | None, ...]:
    """When each activation is absent."""
    times = clock(graph)
    numbers = {activation.name: i for i, activation in enumerate(graph.activations)}
    more: dict[int, set[int]] = {}  # uses by what is computed again
    absences: list[Absence | None] = [None] * len(graph.activations)
    # the last first: what is computed again reads those before it
    for number in range(len(graph.activations) - 1, -1, -1):
        activation = graph.activations[number]
        how = choices.get(activation.name)
        uses = {*activation.uses, *more.get(number, ())}
        gap = longest_gap(activation.first, uses, times) if how else None
        if how is None or gap is None:
            continue
        absences[number] = _absence(how, gap, activation.bytes, times, speed)
        if how == REMAKE:
            for source in activation.sources:
                more.setdefault(numbers[source], set()).add(gap.after)
    return tuple(absences)


def _absence(how: str, gap: Gap, size: int, times: Sequence[float], speed: Speed) -> Absence:
    """As short as operations hide the copies; for the whole gap where they cannot."""
    if how == SWAP:
        out = gap.before
        while out < gap.after and times[out + 1] - times[gap.before + 1] < size / speed.out:
            out += 1
        back = gap.after
        while back > gap.before and times[gap.after] - times[back] < size / speed.back:
            back -= 1
        if out + 1 < back:
            return Absence(how, gap, out, back)
        how = STALL
    return Absence(how, gap, gap.before, gap.after)


def _note(boundaries: Sequence[Boundary], number: int, absence: Absence) -> None:
    """Note what is done for an absence."""
    if absence.how == REMAKE:
        boundaries[absence.out].leave.append(number)
        boundaries[absence.back - 1].remake.append(number)
        return
    boundaries[absence.gap.before].start_out.append(number)
    boundaries[absence.out].end_out.append(number)
    boundaries[absence.back - 1].start_in.append(number)
    boundaries[absence.gap.after - 1].end_in.append(number)


def _stalled(graph: StepGraph, boundaries: Sequence[Boundary], speed: Speed) -> float:
    """Seconds that operations wait for copies."""
    now = free = stalled = 0.0
    ends: dict[int, float] = {}

    def start(number: int, rate: float) -> None:
        nonlocal free
        free = max(free, now) + graph.activations[number].bytes / rate
        ends[number] = free

    def end(number: int) -> None:
        nonlocal now, stalled
        wait = max(0.0, ends[number] - now)
        stalled += wait
        now += wait

    for operation, boundary in zip(graph.operations, boundaries):
        now += operation.seconds
        for number in boundary.start_out:
            start(number, speed.out)
        for number in boundary.end_out:
            end(number)
        for number in boundary.start_in:
            start(number, speed.back)
        for number in boundary.end_in:
            end(number)
        now += sum(graph.activations[number].remake or 0.0 for number in boundary.remake)
    return stalled
