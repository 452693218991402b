"""Where does the time of a step go? Serialised against exposed time, per phase.

The paper's breakdown. Serialised is what a phase takes alone; exposed is what it adds to a step:
the time in which a rank waits for it while nothing is computed. Where several phases are under way
at once, a moment counts for each by the rate at which it goes on, so exposed is never more than
serialised. All times are means over the ranks; together they are the step:

    computed + exposed + waiting (for slower ranks) + idle (nothing under way) = step
"""

from dataclasses import dataclass

import numpy as np

from neocpu.core.stages import QUEUES
from neocpu.plan.cost.work import Floats
from neocpu.plan.simulation.engine import Task, Timeline

# Phases of the breakdown, as the paper has them, and their stages.
PHASES = {
    "readers": ("read",),
    "copy to device": ("copy",),
    "exchange of inputs": ("input",),
    "prefetch": ("index", "prefetch"),
    "embedding lookup": ("lookup",),
    "exchange of pooled vectors": ("output",),
    "MLPs forward": ("bottom_forward", "top_forward"),
    "MLPs backward": ("upper_backward", "lower_backward", "bottom_backward"),
    "exchange of pooled gradients": ("gradient",),
    "sums of dense gradients": ("upper_sums", "lower_sums"),
    "embedding update": ("merge", "update", "apply"),
    "exchange of replicas": ("replicas",),
    "dense update": ("upper_update", "lower_update", "upper_step", "lower_step"),
    "gathered directions": ("upper_directions", "lower_directions"),
}
PHASE_OF = {stage: phase for phase, stages in PHASES.items() for stage in stages}


@dataclass(frozen=True)
class PhaseTime:
    """A phase's seconds in a step. busiest : serialised, on the rank where it is most."""

    phase: str
    serialised: float
    exposed: float
    busiest: float


@dataclass(frozen=True)
class Breakdown:
    """A step in the steady state.

    step : seconds. waiting : for slower ranks. idle : nothing under way. busy : seconds of each
    queue on its busiest rank. links : seconds that each link class would be busy at its peak.
    path : seconds of each phase on the longest path to the end.
    """

    step: float
    shares: tuple[PhaseTime, ...]
    waiting: float
    idle: float
    busy: dict[str, float]
    links: dict[str, float]
    path: dict[str, float]


def breakdown(line: Timeline, first: int, last: int) -> Breakdown:
    """Of the steps first + 1 .. last of a timeline, as one mean step."""
    begin = line.batch_end(first)
    end = line.batch_end(last)
    steps = last - first
    exposed, waiting, idle = _exposed(line, begin, end)
    tasks = [task for task in line.tasks if task.batch == last]
    serialised = dict.fromkeys(PHASES, 0.0)
    busiest = dict.fromkeys(PHASES, 0.0)
    for task in tasks:
        phase = PHASE_OF[task.name]
        serialised[phase] += _alone(task)
        busiest[phase] += float(task.work.seconds.max())
    return Breakdown(
        step=(end - begin) / steps,
        shares=tuple(
            PhaseTime(phase, serialised[phase], exposed[phase] / steps, busiest[phase])
            for phase in PHASES
            if any(PHASE_OF[task.name] == phase for task in tasks)
        ),
        waiting=waiting / steps,
        idle=idle / steps,
        busy=_busy(tasks),
        links=_links(tasks),
        path={phase: seconds / steps for phase, seconds in _path(line, begin, last).items()},
    )


def _alone(task: Task) -> float:
    """Seconds of a task alone, mean over ranks; an exchange takes what its slowest rank takes."""
    seconds = task.work.seconds
    return float(seconds.max() if task.exchange else seconds.mean())


def _busy(tasks: list[Task]) -> dict[str, float]:
    """Seconds of each queue in a step, on its busiest rank."""
    busy: dict[str, Floats] = {}
    for task in tasks:
        seconds = task.work.seconds
        if task.exchange:
            # all ranks are in an exchange until its slowest is done
            seconds = np.full_like(seconds, seconds.max())
        busy[task.stage.queue] = busy.get(task.stage.queue, 0.0) + seconds
    return {QUEUES[queue]: float(seconds.max()) for queue, seconds in busy.items()}


def _links(tasks: list[Task]) -> dict[str, float]:
    """Seconds of each link class in a step, were it used at its peak."""
    links: dict[str, float] = {}
    for task in tasks:
        longest = float(task.work.seconds.max())
        for link, share in task.work.uses.items():
            links[link] = links.get(link, 0.0) + share * longest
    return links


def _exposed(line: Timeline, begin: float, end: float) -> tuple[dict[str, float], float, float]:
    """(exposed seconds by phase, waiting, idle) between two times, means over the ranks."""
    numbers = [
        number
        for number in range(len(line.tasks))
        if line.finish[number].max() > begin and line.arrival[number].min() < end
    ]
    stretches = {number: line.stretches.get(number, []) for number in numbers}
    common = [begin, end, *(stretch.start for runs in stretches.values() for stretch in runs)]
    edges = [line.arrival[numbers], line.start[numbers], line.finish[numbers]]
    edges.append(np.repeat(np.array(common)[:, None], line.ranks, axis=1))
    # between two borders nothing starts or ends on a rank, so the middle of a span stands for it
    borders = np.sort(np.clip(np.concatenate(edges), begin, end), axis=0)
    spans = np.diff(borders, axis=0)
    middles = borders[:-1] + spans / 2
    computing = np.zeros(spans.shape, bool)
    waited = np.zeros(spans.shape, bool)
    rates: dict[int, Floats] = {}
    for number in numbers:
        task = line.tasks[number]
        under_way = (line.start[number] <= middles) & (middles < line.finish[number])
        if task.stage.queue == "compute":
            computing |= under_way
            continue
        rates[number] = under_way.astype(float)
        if task.exchange:
            waited |= (line.arrival[number] <= middles) & (middles < line.start[number])
            for stretch in stretches[number]:
                during = (stretch.start <= middles) & (middles < stretch.finish)
                rates[number][during] = stretch.rate
    total = np.zeros(spans.shape)
    for rate in rates.values():
        total += rate
    ranks = line.ranks
    open_spans = np.where(computing, 0.0, spans)
    exposed = dict.fromkeys(PHASES, 0.0)
    for number, rate in rates.items():
        # a moment is shared out whole, unless all that is under way crawls
        moments = open_spans * rate / np.maximum(total, 1.0)
        exposed[PHASE_OF[line.tasks[number].name]] += float(moments.sum()) / ranks
    for number in numbers:
        task = line.tasks[number]
        if task.stage.queue == "compute":
            inside = np.minimum(line.finish[number], end) - np.maximum(line.start[number], begin)
            exposed[PHASE_OF[task.name]] += float(np.maximum(inside, 0.0).sum()) / ranks
    # what crawls leaves part of the moment to waiting or to idleness
    left = open_spans * np.maximum(0.0, 1.0 - total)
    waiting = float(left[waited].sum()) / ranks
    idle = float(left[~waited].sum()) / ranks
    return exposed, waiting, idle


def _path(line: Timeline, begin: float, last: int) -> dict[str, float]:
    """Seconds of each phase on the longest path that ends with a batch, from a time on."""
    numbers = [number for number, task in enumerate(line.tasks) if task.batch == last]
    number = max(numbers, key=lambda n: float(line.finish[n].max()))
    rank = int(line.finish[number].argmax())
    seconds = dict.fromkeys(PHASES, 0.0)
    while True:
        task = line.tasks[number]
        if task.exchange:
            # the path goes on at the rank for which the exchange waited
            rank = int(line.arrival[number].argmax())
        finish = float(line.finish[number, rank])
        start = max(begin, float(line.start[number, rank]))
        seconds[PHASE_OF[task.name]] += max(0.0, finish - start)
        if start <= begin or not task.waits:
            return seconds
        number = max(task.waits, key=lambda n: float(line.finish[n, rank]))
