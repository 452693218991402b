"""How do steps keep their activations within a budget? As a schedule says
(`plan/activations/schedule.py`), after each operation.

All arrays lie in one block of memory, at places that no two of them use at a time. Whoever reads
them needs to know nothing: an array is where it always was when its operation comes. Several models
may share a block; their operations then take turns in the order of the schedule (`rounds.py`).

The bytes of arrays that have memory are counted as these are written, freed and brought back: their
largest sum is what the simulator said.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.types import Floats
from neocpu.plan.activations.graph import room_of
from neocpu.plan.activations.schedule import ActivationSchedule
from neocpu.tables.tiers.mover import Job, Mover
from neocpu.train.activations.away import Away
from neocpu.train.model.arrays import Buffer
from neocpu.train.model.mlp import END

if TYPE_CHECKING:
    from neocpu.train.activations.rounds import TrainingRounds


@dataclass(frozen=True)
class Holder:
    """Who has an activation of a schedule: the number of its model, the buffer, and what computes
    it again.
    """

    model: int
    buffer: Buffer
    again: Callable[[], object] | None = None


@dataclass
class Counts:
    """What was done so far.

    live, peak : bytes that have memory, now and at most. moved : bytes that left. remade : arrays
    that were computed again. history : (seconds, live) after each change, where it is wanted.
    """

    live: int = 0
    peak: int = 0
    moved: int = 0
    remade: int = 0
    history: list[tuple[float, int]] | None = None

    def change(self, size: int) -> None:
        """Some bytes have memory from now on, or have it no more."""
        self.live += size
        self.peak = max(self.peak, self.live)
        if self.history is not None:
            self.history.append((time.perf_counter(), self.live))


class ActivationBlock:
    """The memory of the activations of one model, or of several.

    schedule : of a step of each. holders : of its activations. away : where they are while they
    have no memory. models : how many there are. spoil : what is freed is filled with NaN, so that
    whoever reads it shows it.

    Attributes: schedule; counts; mover, whose `stalled` are the seconds that operations waited.
    """

    def __init__(
        self,
        schedule: ActivationSchedule,
        holders: Sequence[Holder],
        away: Away,
        models: int = 1,
        spoil: bool = False,
    ) -> None:
        self.schedule = schedule
        self.counts = Counts()
        self.mover = Mover(ahead=True)
        self._holders = holders
        self._away = away
        self._spoil = spoil
        self._stepping = [False] * models
        self._open = models
        self._at = 0  # the operation that runs, or comes
        self._arrays: dict[int, Floats] = {}  # those that have memory
        self._absent: dict[int, Floats] = {}  # those that are away
        self._jobs: dict[int, Job] = {}
        block = np.empty(schedule.size // 4, np.float32)
        for number, holder in enumerate(holders):
            first = schedule.places[number] // 4
            size = schedule.graph.activations[number].bytes // 4
            holder.buffer.lie(block[first : first + size], partial(self._taken, number))

    def begin(self, model: int, first: int) -> None:
        """A step of a model begins with operation `first` of the schedule."""
        if self._at > first:
            # a round of steps; a model that has ended does not come to its last operations
            self.reach(len(self.schedule.boundaries) - 1)
            self._at = 0
        self.reach(first - 1)
        self._stepping[model] = True

    def end(self, model: int) -> None:
        """A step of a model is over, or given up: none of its arrays has memory."""
        self._stepping[model] = False
        for number, holder in enumerate(self._holders):
            if holder.model == model:
                if (job := self._jobs.pop(number, None)) is not None:
                    self.mover.wait(job)
                self._absent.pop(number, None)
                self._free(number)

    def steps(self, model: int) -> bool:
        """Is a model in a step?"""
        return self._stepping[model]

    def has(self, buffer: Buffer) -> bool:
        """Has the array of a buffer memory?"""
        return any(self._holders[number].buffer is buffer for number in self._arrays)

    def reach(self, operation: int) -> None:
        """An operation is done, and all before it."""
        while self._at <= operation:
            self._pass(self._at)

    def close(self) -> None:
        """A model takes no step any more; the last one ends the thread that copies."""
        self._open -= 1
        if not self._open:
            self.mover.close()
            self._away.close()

    def _pass(self, operation: int) -> None:
        """Do what is done after an operation."""
        boundary = self.schedule.boundaries[operation]
        for number in boundary.leave:
            self._free(number)
        for number in boundary.start_out:
            self._start_out(number)
        for number in boundary.end_out:
            self._end(number)
            self._free(number)
        # what comes now is for the next operation
        self._at = operation + 1
        for number in boundary.start_in:
            self._start_in(number)
        for number in boundary.end_in:
            self._end(number)
        for number in boundary.remake:
            holder = self._holders[number]
            if self._stepping[holder.model] and holder.again is not None:
                holder.again()
                self.counts.remade += 1

    def _taken(self, number: int, array: Floats) -> None:
        """An array is about to be written; outside steps nobody counts them."""
        if number in self._arrays or not self._stepping[self._holders[number].model]:
            return
        name = self.schedule.graph.activations[number].name
        assert self.schedule.has_memory(number, self._at), f"{name} is written too early or late"
        self._arrays[number] = array
        self.counts.change(room_of(array.nbytes))

    def _free(self, number: int) -> None:
        array = self._arrays.pop(number, None)
        if array is None:
            return
        self.counts.change(-room_of(array.nbytes))
        if self._spoil:
            array.fill(np.nan)

    def _start_out(self, number: int) -> None:
        # a model that has ended has none
        if (array := self._arrays.get(number)) is not None:
            self._absent[number] = array
            self._jobs[number] = self.mover.run(partial(self._away.write, number, array))
            self.counts.moved += array.nbytes

    def _start_in(self, number: int) -> None:
        if (array := self._absent.pop(number, None)) is not None:
            self._taken(number, array)
            self._jobs[number] = self.mover.run(partial(self._away.read, number, array))

    def _end(self, number: int) -> None:
        if (job := self._jobs.pop(number, None)) is not None:
            self.mover.wait(job)


class Activations:
    """The activations of one model, in a block of its own or a shared one.

    model : its number there. operations : the places of its operations in the schedule, by name.
    rounds : in which several models take turns.
    """

    def __init__(
        self,
        block: ActivationBlock,
        model: int,
        operations: dict[str, int],
        rounds: "TrainingRounds[dict[str, object]] | None" = None,
    ) -> None:
        self.block = block
        self._model = model
        self._operations = operations
        self._rounds = rounds
        self._first = min(operations.values())
        self._following = dict(pairwise(sorted(operations.values())))

    def begin(self) -> None:
        """A step begins."""
        if self._rounds is not None:
            self._rounds.meet(self._model)
        self.block.begin(self._model, self._first)

    def end(self) -> None:
        """A step is over, or given up."""
        self.block.end(self._model)

    def after(self, work: str) -> None:
        """Some work is done; only that of steps counts, not that of evaluations."""
        operation = self._operations.get(work)
        if operation is None or not self.block.steps(self._model):
            return
        self.block.reach(operation)
        if work == END:
            self.end()
        if self._rounds is not None:
            self._rounds.after(self._model, operation)
            # of models that have ended, operations do not come
            self.block.reach(self._following.get(operation, 0) - 1)

    def holds(self, buffer: Buffer) -> bool:
        """Has the array of a buffer memory?"""
        return self.block.has(buffer)

    def counts(self) -> dict[str, float]:
        """As of `HeldActivations`, of all models of the block."""
        counts = self.block.counts
        return {
            "peak": counts.peak,
            "block": self.block.schedule.size,
            "moved": counts.moved,
            "remade": counts.remade,
            "stall_seconds": self.block.mover.stalled,
        }

    def close(self) -> None:
        """No step follows."""
        self.block.close()
