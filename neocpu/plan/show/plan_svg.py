"""What does a plan look like? Ranks by phase, memories by tier, and traffic, in one SVG file.

top      a bar for each rank, its parts the phases of a step; above 64 ranks one for each node,
         its slowest rank; below them what every plan takes, dense part and latency. The dashed
         line is the whole step: ranks wait for the slowest in every phase, so it lies above the
         highest bar.
middle   bytes of each memory that holds any, with the line of a rank's capacity
bottom   bytes that ranks (or nodes) send each other in a step, and what bounds a step

With the plan in use beside it, each rank has two bars, that plan's on the left, and the bottom has
the traffic of both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core import svg
from neocpu.core.units import bytes_text, count_text, seconds_text
from neocpu.plan.cost.work import Floats
from neocpu.plan.machines.machine import MEMORIES
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.question import PlanQuestion, any_plan
from neocpu.plan.search.resources import bounding
from neocpu.plan.show.heat_svg import (
    HEAT_SIZE,
    MOST_RANKS,
    Scale,
    grouped,
    heat_legend,
    heat_map,
    short_bytes,
    traffic_matrix,
)

WIDTH = 1180.0
LEFT = 92.0
PLOT = 900.0
LEGEND = 1012.0
MOST_BAR = 64.0
LOAD_HEIGHT = 250.0
MEMORY_HEIGHT = 84.0
COLOURS = {
    "input": svg.YELLOW,
    "lookup": svg.BLUE,
    "output": svg.ORANGE,
    "gradient": svg.RED,
    "update": svg.GREEN,
    "prefetch": "#6b6b6b",
    "replicas": "#c877a5",
}
SPARE = (svg.SKY, "#7cc4a1", svg.PURPLE, "#9c9c9c", "#c2a06b")
FIXED = "dense part, latency"
TIERS = {"hbm": svg.BLUE, "ddr": svg.GREEN, "ssd": "#8a6d3b"}


@dataclass(frozen=True)
class Bars:
    """What each bar shows: seconds f64[bars, phases], bytes f64[bars, memories], their names."""

    names: tuple[str, ...]
    kind: str
    seconds: Floats
    bytes: Floats


def plan_svg(
    question: PlanQuestion, answer: Answer, title: str, leaves: int, present: Answer | None = None
) -> str:
    """The picture of a plan as SVG text.

    leaves : of the batch tree; as many as there are ranks are used at least. present : the plan in
    use, to compare with.
    """
    answers = [answer] if present is None else [present, answer]
    layout = answer.layout
    heading = f"{title} on {layout.ranks} ranks of {question.machine.name}"
    rate = answer.work.batch / answer.seconds if answer.seconds else 0.0
    bound = ""
    if 0 < answer.bound < float("inf"):
        bound = f"; {any_plan(question)} takes at least {seconds_text(answer.bound)}"
    summary = (
        f"{len(answer.plan.tables):,} tables, {answer.work.batch:,} samples a step: "
        f"{seconds_text(answer.seconds)}, {count_text(rate)} samples/s{bound}; planner "
        f"{answer.planner}, cost model {question.cost_model}"
    )
    if present is not None:
        summary += f"; {seconds_text(present.seconds)} under the plan in use"
    body = svg.headings(heading, summary)
    body += _loads(answers, 104.0)
    top = 104.0 + LOAD_HEIGHT + 78.0
    used = [m for m in range(len(MEMORIES)) if any(a.memory[:, m].any() for a in answers)]
    for memory in used:
        last = memory == used[-1]
        body += _memory(answers, memory, top, memory == used[0], last)
        top += MEMORY_HEIGHT + 26.0
    top += 62.0
    body += _traffic(answers, top, leaves)
    if present is None:
        body += _bounds(answer, top)
    height = top + HEAT_SIZE + 74.0
    return svg.document(WIDTH, height, heading, _words(answer, summary), body)


def _words(answer: Answer, summary: str) -> str:
    """The picture in words."""
    slowest = answer.loads.max(axis=0)
    mean = answer.loads.mean(axis=0)
    phases = [
        f"{phase} {seconds_text(float(most))} on the slowest rank, "
        f"{float(most / average):.2f} times the mean"
        for phase, most, average in zip(answer.model.phases, slowest, mean)
        if most > 0
    ]
    fullest = [
        f"{MEMORIES[m]} {bytes_text(int(answer.memory[:, m].max()))} on the fullest rank"
        for m in range(len(MEMORIES))
        if answer.memory[:, m].any()
    ]
    bounds = ", ".join(bounding(answer))
    return f"{summary}. {'; '.join(phases)}. {'; '.join(fullest)}. What bounds it: {bounds}."


def _bars(answer: Answer) -> Bars:
    """Ranks, or the slowest rank and the fullest memory of each node."""
    layout = answer.layout
    if layout.ranks <= MOST_RANKS:
        names = tuple(str(rank) for rank in range(layout.ranks))
        return Bars(names, "rank", answer.loads, answer.memory.astype(np.float64))
    # the slowest rank of a node stands for it, since it is the one that others wait for
    heads = np.arange(0, layout.ranks, layout.ranks_per_node)
    work = answer.loads.sum(axis=1)
    slowest = [
        int(start + work[start : start + layout.ranks_per_node].argmax())
        for start in heads.tolist()
    ]
    return Bars(
        names=tuple(str(node) for node in range(heads.size)),
        kind="node",
        seconds=answer.loads[slowest],
        bytes=np.maximum.reduceat(answer.memory, heads).astype(np.float64),
    )


def _colour(phases: Sequence[str], number: int) -> str:
    return COLOURS.get(phases[number]) or SPARE[number % len(SPARE)]


# ---- bars ----


def _axis(top: float, height: float, values: Sequence[float], labels: Sequence[str]) -> list[str]:
    """Horizontal lines with their labels, from 0 at the bottom."""
    elements = []
    for value, label in zip(values, labels):
        y = top + height * (1 - value / values[-1])
        elements.append(svg.line(LEFT, y, LEFT + PLOT, y))
        elements.append(svg.text(LEFT - 8, y + 4, label, 11, svg.QUIET, "end"))
    return elements


def _names(bars: Bars, y: float) -> Iterator[str]:
    """Numbers below bars, as many as there is room for, and what they count."""
    slot = PLOT / len(bars.names)
    step = svg.label_step(len(bars.names), slot)
    for index in range(0, len(bars.names), step):
        x = LEFT + slot * (index + 0.5)
        yield svg.text(x, y + 16, bars.names[index], 11, svg.QUIET, "middle")
    yield svg.text(LEFT + PLOT / 2, y + 36, bars.kind, 12, svg.QUIET, "middle")


def _loads(answers: Sequence[Answer], top: float) -> Iterator[str]:
    """Stacked bars of what every plan takes and of phases, one for each answer."""
    answer = answers[-1]
    several = [_bars(each) for each in answers]
    phases = answer.model.phases
    fixed = answer.model.fixed_seconds
    highest = max(float(bars.seconds.sum(axis=1).max()) for bars in several)
    values = svg.ticks(max(*(each.seconds for each in answers), fixed + highest))
    bars = several[-1]
    whose = "each rank" if bars.kind == "rank" else "the slowest rank of each node"
    both = "; left the plan in use" if len(answers) > 1 else ""
    yield svg.text(LEFT, top - 16, f"seconds of {whose} in a step, by phase{both}", 13, bold=True)
    yield from _axis(top, LOAD_HEIGHT, values, [seconds_text(value) for value in values])
    bottom = top + LOAD_HEIGHT
    for index in range(len(bars.names)):
        for number, each in enumerate(several):
            left, width = _bar(index, len(bars.names), number, len(several))
            yield from _stack(phases, each, index, fixed, (left, width, bottom), values[-1])
    yield from _names(bars, bottom)
    mean = fixed + float(answer.loads.sum(axis=1).mean())
    levels = [
        ("6 4", svg.INK, "step", answer.seconds),
        ("2 3", svg.QUIET, "mean rank", mean),
        *(("6 4", svg.RED, "in use", each.seconds) for each in answers[:-1]),
    ]
    for dashes, colour, _, seconds in levels:
        yield from _level(bottom - LOAD_HEIGHT * seconds / values[-1], colour, dashes)
    y = top + 4
    for number in range(len(phases) - 1, -1, -1):
        if any(each.seconds[:, number].any() for each in several):
            yield svg.box(LEGEND, y, 13, 13, _colour(phases, number))
            yield svg.text(LEGEND + 20, y + 11, phases[number])
            y += 20
    if fixed:
        yield svg.box(LEGEND, y, 13, 13, svg.PALE)
        yield svg.text(LEGEND + 20, y + 11, FIXED)
        yield svg.text(LEGEND + 20, y + 26, f"(any plan): {seconds_text(fixed)}")
        y += 36
    y += 8
    for dashes, colour, words, seconds in levels:
        yield svg.line(LEGEND, y, LEGEND + 16, y, colour, dashes)
        yield svg.text(LEGEND + 20, y + 4, f"{words}: {seconds_text(seconds)}")
        y += 20


def _stack(
    phases: Sequence[str],
    bars: Bars,
    index: int,
    fixed: float,
    place: tuple[float, float, float],
    highest: float,
) -> Iterator[str]:
    """One bar; place : its left edge, width, bottom. highest : seconds at the top of the axis."""
    left, width, y = place
    parts = [(svg.PALE, FIXED, fixed)]
    for number, seconds in enumerate(bars.seconds[index].tolist()):
        words = f"{bars.kind} {bars.names[index]}, {phases[number]}"
        parts.append((_colour(phases, number), words, seconds))
    for colour, words, seconds in parts:
        size = LOAD_HEIGHT * seconds / highest
        # thinner than any screen shows
        if size >= 0.02:
            y -= size
            yield svg.box(left, y, width, size, colour, f"{words}: {seconds_text(seconds)}")


def _bar(index: int, count: int, number: int, together: int) -> tuple[float, float]:
    """(left edge, width) of a bar, the one of a `number` of several that stand together."""
    slot = PLOT / count
    width = min(0.8 * slot, MOST_BAR)
    left = LEFT + slot * (index + 0.5) - width / 2
    # a little air between those that stand together
    return left + width * number / together, width / together * (1.0 if together == 1 else 0.94)


def _level(y: float, colour: str, dashes: str) -> Iterator[str]:
    yield svg.line(LEFT, y, LEFT + PLOT, y, colour, dashes)


def _memory(
    answers: Sequence[Answer], memory: int, top: float, first: bool, last: bool
) -> Iterator[str]:
    """Bars of one memory, and the line of its capacity."""
    name = MEMORIES[memory]
    several = [_bars(answer) for answer in answers]
    bars = several[-1]
    most = max(float(each.bytes[:, memory].max()) for each in several)
    capacity = float(answers[-1].capacity[memory])
    # a capacity far above what is used would flatten the bars
    near = 0 < capacity <= 4 * most
    values = svg.ticks(max(most, capacity if near else 0.0), 3)
    if first:
        whose = "each rank" if bars.kind == "rank" else "the fullest rank of each node"
        yield svg.text(LEFT, top - 16, f"bytes of {whose}, by memory", 13, bold=True)
    yield from _axis(top, MEMORY_HEIGHT, values, [short_bytes(value) for value in values])
    bottom = top + MEMORY_HEIGHT
    for number, each in enumerate(several):
        for index, amount in enumerate(each.bytes[:, memory].tolist()):
            high = MEMORY_HEIGHT * amount / values[-1]
            if high >= 0.02:
                tip = f"{bars.kind} {bars.names[index]}, {name}: {bytes_text(int(amount))}"
                x, width = _bar(index, len(bars.names), number, len(several))
                yield svg.box(x, bottom - high, width, high, TIERS[name], tip)
    yield svg.box(LEGEND, top + 4, 13, 13, TIERS[name])
    yield svg.text(LEGEND + 20, top + 15, name)
    if near:
        yield from _level(bottom - MEMORY_HEIGHT * capacity / values[-1], svg.RED, "6 4")
    if capacity:
        colour = svg.RED if near else svg.QUIET
        yield svg.text(LEGEND, top + 36, "capacity", 11, colour)
        yield svg.text(LEGEND, top + 50, bytes_text(int(capacity)), 11, colour)
    if last:
        yield from _names(bars, bottom)


def _traffic(answers: Sequence[Answer], top: float, leaves: int) -> Iterator[str]:
    """Who sends how many bytes to whom, under each answer, in one scale."""
    matrices = [grouped(answer, traffic_matrix(answer, leaves)) for answer in answers]
    scale = Scale([matrix for matrix, _ in matrices])
    left = LEFT
    titles = ["", " under the plan in use"][: len(answers)]
    for answer, (matrix, kind), words in zip(answers, matrices, reversed(titles)):
        yield svg.text(
            left, top - 16, f"bytes from {kind} to {kind} in a step{words}", 13, bold=True
        )
        yield from heat_map(matrix, kind, answer.layout.ranks_per_node, scale, left, top)
        left += HEAT_SIZE + 84
    nodes = 1 < answers[-1].layout.ranks_per_node < len(matrices[-1][0])
    yield from heat_legend(scale, matrices[-1][1], nodes, left - 60, top)


def _bounds(answer: Answer, top: float) -> Iterator[str]:
    """Bars of what a step's seconds are spent on."""
    shares = bounding(answer)
    whole = sum(shares.values()) or 1.0
    left = LEFT + HEAT_SIZE + 170
    width = WIDTH - left - 130
    yield svg.text(left, top - 16, "what bounds a step", 13, bold=True)
    y = top + 4
    longest = max(shares.values(), default=1.0)
    for name, seconds in shares.items():
        yield svg.text(left, y + 10, name)
        yield svg.box(left, y + 17, max(width * seconds / longest, 0.5), 14, svg.BLUE)
        share = f"{seconds_text(seconds)}, {100 * seconds / whole:.0f} %"
        yield svg.text(left + width * seconds / longest + 8, y + 29, share, 11, svg.QUIET)
        y += 46
    yield svg.text(left, y + 10, "the slowest rank of each phase,", 11, svg.QUIET)
    yield svg.text(left, y + 24, "dense part and latency among them", 11, svg.QUIET)
