"""When does each task of each rank start and end? Events, in the order of time.

A task runs on the ranks of one queue. What it waits for is done at another time on every rank, so
times are vectors over the ranks. Tasks of one kind are local: they start on each rank as soon as
what they wait for is done there. Exchanges are events of all ranks together:

    arrival[r]     rank r has all that the exchange needs
    start          the last rank has arrived: max over arrival
    finish         the work of the slowest rank is done

Exchanges that run at the same time share the links: one that takes the part u of a link while it
runs alone goes on at the rate 1 / max(1, sum of u) of the slowest of its links. Nothing that is not
known yet can start before the next finish, so every event is final once it is handled.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from neocpu.core.stages import EXCHANGE, Stage
from neocpu.plan.cost.work import Floats


class Work(NamedTuple):
    """What a stage costs on an idle machine.

    seconds : f64[ranks], of each rank alone. uses : of an exchange, the part of each link class's
    bandwidth that it takes while it runs alone, 0 to 1.
    """

    seconds: Floats
    uses: Mapping[str, float] = {}


@dataclass(frozen=True)
class Task:
    """A stage of one batch. waits : numbers of the tasks that must be done before."""

    stage: Stage
    batch: int
    work: Work
    waits: tuple[int, ...]

    @property
    def name(self) -> str:
        """The stage's."""
        return self.stage.name

    @property
    def exchange(self) -> bool:
        """Do all ranks take part together?"""
        return self.stage.kind == EXCHANGE


class Stretch(NamedTuple):
    """A time during which an exchange ran at one rate."""

    start: float
    finish: float
    rate: float


@dataclass
class Timeline:
    """Times of all tasks, f64[tasks, ranks] in seconds from 0.

    arrival : what the task waits for is done. start : of its work; for exchanges the same on all
    ranks. stretches : of exchanges that shared links, by task number.
    """

    tasks: tuple[Task, ...]
    arrival: Floats
    start: Floats
    finish: Floats
    stretches: dict[int, list[Stretch]] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Ranks."""
        return self.finish.shape[1]

    def batch_end(self, batch: int) -> float:
        """When the last task of a batch is done on the last rank."""
        numbers = [number for number, task in enumerate(self.tasks) if task.batch == batch]
        return float(self.finish[numbers].max())


def unrolled(stages: Sequence[Stage], works: Mapping[str, Work], batches: int) -> tuple[Task, ...]:
    """The tasks of so many batches, in the order of batches and of the schedule.

    A stage that works without time on all ranks stays, and takes none.
    """
    number = {
        (stage.name, batch): batch * len(stages) + position
        for batch in range(batches)
        for position, stage in enumerate(stages)
    }
    tasks: list[Task] = []
    last_of_queue: dict[str, int] = {}
    for batch in range(batches):
        for stage in stages:
            waits = {number[name, batch] for name in stage.needs}
            waits |= {
                number[name, batch - distance]
                for name, distance in stage.earlier
                if batch >= distance
            }
            if stage.queue in last_of_queue:
                # a queue is one stream: its tasks run in the order in which they were put there
                waits.add(last_of_queue[stage.queue])
            last_of_queue[stage.queue] = len(tasks)
            tasks.append(Task(stage, batch, works[stage.name], tuple(sorted(waits))))
    return tuple(tasks)


def run(tasks: Sequence[Task], ranks: int) -> Timeline:
    """The times of all tasks.

    Raises ValueError where tasks wait for each other in a circle.
    """
    return _Run(tasks, ranks).timeline()


class _Run:
    """The state of a simulation: what is done, what waits, and the exchanges under way."""

    def __init__(self, tasks: Sequence[Task], ranks: int) -> None:
        shape = (len(tasks), ranks)
        self.line = Timeline(tuple(tasks), np.zeros(shape), np.zeros(shape), np.zeros(shape))
        self.missing = [len(task.waits) for task in tasks]
        self.followers: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for earlier in task.waits:
                self.followers[earlier].append(number)
        self.done = 0
        self.now = 0.0
        # exchanges whose start is known, by start
        self.pending: list[tuple[float, int]] = []
        # number -> seconds of work left, alone on the machine
        self.active: dict[int, float] = {}

    def timeline(self) -> Timeline:
        """Handle all events."""
        self._release([number for number, count in enumerate(self.missing) if not count])
        while self.pending or self.active:
            rates = self._rates()
            finishes = {n: self.now + left / rates[n] for n, left in self.active.items()}
            finish = min(finishes.values(), default=np.inf)
            start = self.pending[0][0] if self.pending else np.inf
            # rates hold until the next exchange starts or ends, whichever is first
            self._advance(min(start, finish), rates)
            # starts before ends: an exchange that begins at this moment already shares the links
            if start <= finish:
                _, number = heapq.heappop(self.pending)
                self.active[number] = float(self.line.tasks[number].work.seconds.max())
                continue
            # all that end at this moment leave the links together
            ended = sorted(n for n, time in finishes.items() if time <= finish)
            for number in ended:
                del self.active[number]
                self.line.finish[number] = finish
            self._complete(ended)
        if self.done < len(self.line.tasks):
            stuck = [task.name for task, count in zip(self.line.tasks, self.missing) if count]
            raise ValueError(f"stages wait for each other: {', '.join(dict.fromkeys(stuck))}")
        return self.line

    def _rates(self) -> dict[int, float]:
        """Rate of each exchange under way; 1 where it has its links for itself."""
        load: dict[str, float] = {}
        tasks = self.line.tasks
        for number in self.active:
            for link, share in tasks[number].work.uses.items():
                load[link] = load.get(link, 0.0) + share
        return {
            number: 1.0
            / max(
                [1.0, *(load[link] for link, share in tasks[number].work.uses.items() if share > 0)]
            )
            for number in self.active
        }

    def _advance(self, time: float, rates: Mapping[int, float]) -> None:
        """Let the exchanges under way work until `time`."""
        for number, rate in rates.items():
            if time > self.now:
                left = self.active[number] - (time - self.now) * rate
                # rounding may take a little more than is left
                self.active[number] = max(0.0, left)
                stretches = self.line.stretches.setdefault(number, [])
                # one stretch for as long as the rate holds, whatever else starts and ends meanwhile
                if stretches and stretches[-1].rate == rate:
                    stretches[-1] = stretches[-1]._replace(finish=time)
                else:
                    stretches.append(Stretch(self.now, time, rate))
        self.now = max(self.now, time)

    def _complete(self, numbers: list[int]) -> None:
        """Note tasks as done, and release those that waited for them alone."""
        ready = []
        self.done += len(numbers)
        for number in numbers:
            for follower in self.followers[number]:
                self.missing[follower] -= 1
                if not self.missing[follower]:
                    ready.append(follower)
        self._release(ready)

    def _release(self, numbers: list[int]) -> None:
        """Times of tasks that wait for nothing any more: local ones are done, exchanges start."""
        line = self.line
        local = []
        for number in numbers:
            task = line.tasks[number]
            if task.waits:
                line.arrival[number] = line.finish[list(task.waits)].max(axis=0)
            if task.exchange:
                start = float(line.arrival[number].max())
                line.start[number] = start
                heapq.heappush(self.pending, (start, number))
                continue
            line.start[number] = line.arrival[number]
            line.finish[number] = line.arrival[number] + task.work.seconds
            local.append(number)
        if local:
            self._complete(local)
