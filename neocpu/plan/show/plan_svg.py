"""What does a plan look like? Ranks by phase, memories by tier, and traffic, in one SVG file.

top      a bar for each rank, its parts the phases of a step; above 64 ranks one for each node,
         its slowest rank; below them what every plan takes, dense part and latency. The dashed
         line is the whole step: ranks wait for the slowest in every phase, so it lies above the
         highest bar.
middle   bytes of each memory that holds any, with the line of a rank's capacity
bottom   bytes that ranks (or nodes) send each other in a step, and what bounds a step
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core import svg
from neocpu.core.types import Ints
from neocpu.core.units import bytes_text, count_text, seconds_text
from neocpu.plan.cost.traffic.collectives import total
from neocpu.plan.cost.traffic.demand import MeanDemand, sample_cuts
from neocpu.plan.cost.traffic.step import StepShape, step_traffic
from neocpu.plan.cost.work import Floats
from neocpu.plan.machines.machine import MEMORIES
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.question import PlanQuestion, any_plan
from neocpu.plan.search.resources import bounding

# Bars and cells that are drawn one for each rank; of more ranks, one for each node.
MOST_RANKS = 64
# Rows of the heat map; of more nodes several share one.
MOST_CELLS = 64
WIDTH = 1180.0
LEFT = 92.0
PLOT = 900.0
LEGEND = 1012.0
MOST_BAR = 64.0
LOAD_HEIGHT = 250.0
MEMORY_HEIGHT = 84.0
HEAT_SIZE = 420.0
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


def plan_svg(question: PlanQuestion, answer: Answer, title: str, leaves: int) -> str:
    """The picture of a plan as SVG text.

    leaves : of the batch tree; as many as there are ranks are used at least.
    """
    bars = _bars(answer)
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
    body = svg.headings(heading, summary)
    body += _loads(answer, bars, 104.0)
    top = 104.0 + LOAD_HEIGHT + 78.0
    used = [m for m in range(len(MEMORIES)) if answer.memory[:, m].any()]
    for memory in used:
        last = memory == used[-1]
        body += _memory(answer, bars, memory, top, memory == used[0], last)
        top += MEMORY_HEIGHT + 26.0
    top += 62.0
    body += _traffic(answer, top, leaves)
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


def _loads(answer: Answer, bars: Bars, top: float) -> Iterator[str]:
    """Stacked bars of what every plan takes and of phases."""
    phases = answer.model.phases
    fixed = answer.model.fixed_seconds
    step = answer.seconds
    values = svg.ticks(max(step, fixed + float(bars.seconds.sum(axis=1).max())))
    whose = "each rank" if bars.kind == "rank" else "the slowest rank of each node"
    yield svg.text(LEFT, top - 16, f"seconds of {whose} in a step, by phase", 13, bold=True)
    yield from _axis(top, LOAD_HEIGHT, values, [seconds_text(value) for value in values])
    bottom = top + LOAD_HEIGHT
    for index, name in enumerate(bars.names):
        left, width = _bar(index, len(bars.names))
        y = bottom - LOAD_HEIGHT * fixed / values[-1]
        if fixed:
            tip = f"{FIXED}: {seconds_text(fixed)}"
            yield svg.box(left, y, width, bottom - y, svg.PALE, tip)
        for number, seconds in enumerate(bars.seconds[index].tolist()):
            size = LOAD_HEIGHT * seconds / values[-1]
            # thinner than any screen shows
            if size < 0.02:
                continue
            y -= size
            tip = f"{bars.kind} {name}, {phases[number]}: {seconds_text(seconds)}"
            colour = _colour(phases, number)
            yield svg.box(left, y, width, size, colour, tip)
    yield from _names(bars, bottom)
    mean = fixed + float(answer.loads.sum(axis=1).mean())
    yield from _level(bottom - LOAD_HEIGHT * step / values[-1], svg.INK, "6 4")
    yield from _level(bottom - LOAD_HEIGHT * mean / values[-1], svg.QUIET, "2 3")
    y = top + 4
    for number in range(len(phases) - 1, -1, -1):
        if bars.seconds[:, number].any():
            yield svg.box(LEGEND, y, 13, 13, _colour(phases, number))
            yield svg.text(LEGEND + 20, y + 11, phases[number])
            y += 20
    if fixed:
        yield svg.box(LEGEND, y, 13, 13, svg.PALE)
        yield svg.text(LEGEND + 20, y + 11, FIXED)
        yield svg.text(LEGEND + 20, y + 26, f"(any plan): {seconds_text(fixed)}")
        y += 36
    y += 8
    for dashes, colour, words in (
        ("6 4", svg.INK, f"step: {seconds_text(step)}"),
        ("2 3", svg.QUIET, f"mean rank: {seconds_text(mean)}"),
    ):
        yield svg.line(LEGEND, y, LEGEND + 16, y, colour, dashes)
        yield svg.text(LEGEND + 20, y + 4, words)
        y += 20


def _short(size: float) -> str:
    """Bytes without needless zeros: '300 MB'."""
    number, _, unit = bytes_text(int(size)).partition(" ")
    return f"{float(number):.3g} {unit}"


def _bar(index: int, count: int) -> tuple[float, float]:
    """(left edge, width) of a bar."""
    slot = PLOT / count
    width = min(0.8 * slot, MOST_BAR)
    return LEFT + slot * (index + 0.5) - width / 2, width


def _level(y: float, colour: str, dashes: str) -> Iterator[str]:
    yield svg.line(LEFT, y, LEFT + PLOT, y, colour, dashes)


def _memory(
    answer: Answer, bars: Bars, memory: int, top: float, first: bool, last: bool
) -> Iterator[str]:
    """Bars of one memory, and the line of its capacity."""
    name = MEMORIES[memory]
    size = bars.bytes[:, memory]
    capacity = float(answer.capacity[memory])
    # a capacity far above what is used would flatten the bars
    near = 0 < capacity <= 4 * size.max()
    values = svg.ticks(max(float(size.max()), capacity if near else 0.0), 3)
    if first:
        whose = "each rank" if bars.kind == "rank" else "the fullest rank of each node"
        yield svg.text(LEFT, top - 16, f"bytes of {whose}, by memory", 13, bold=True)
    yield from _axis(top, MEMORY_HEIGHT, values, [_short(value) for value in values])
    bottom = top + MEMORY_HEIGHT
    for index, amount in enumerate(size.tolist()):
        high = MEMORY_HEIGHT * amount / values[-1]
        if high >= 0.02:
            tip = f"{bars.kind} {bars.names[index]}, {name}: {bytes_text(int(amount))}"
            x, width = _bar(index, len(bars.names))
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


# ---- traffic ----


def traffic_matrix(answer: Answer, leaves: int) -> Floats:
    """Expected bytes of a step by sender and receiver, f64[ranks, ranks] (`cost/traffic`)."""
    ranks = answer.layout.ranks
    # with fewer leaves than ranks some would have no samples, and nothing to send
    while leaves < ranks:
        leaves *= 2
    batch = answer.work.batch
    shape = StepShape(
        batch=batch,
        leaves=leaves,
        parameters=answer.work.dense.parameters,
        route=answer.layout.route,
        unique_rows=answer.work.unique_rows,
        wires=answer.work.wires.specs,
    )
    tables = answer.plan.tables
    work = answer.work
    demand = MeanDemand(tables, work.pooling, sample_cuts(ranks, batch, leaves), work.distinct)
    matrix: Floats = total(step_traffic(answer.plan, shape, demand), ranks).astype(np.float64)
    return matrix


def _grouped(answer: Answer, matrix: Floats) -> tuple[Floats, str]:
    """The matrix by rank, by node, or by several nodes; and what a row is."""
    layout = answer.layout
    if layout.ranks <= MOST_RANKS:
        # what stays on a rank would outshine all that travels
        np.fill_diagonal(matrix, 0.0)
        return matrix, "rank"
    together = -(-layout.nodes // MOST_CELLS)
    step = layout.ranks_per_node * together
    heads: Ints = np.arange(0, layout.ranks, step)
    by_sender = np.add.reduceat(matrix, heads, axis=0)
    grouped: Floats = np.add.reduceat(by_sender, heads, axis=1)
    return grouped, "node" if together == 1 else f"group of {together} nodes"


def _traffic(answer: Answer, top: float, leaves: int) -> Iterator[str]:
    """Who sends how many bytes to whom."""
    matrix, kind = _grouped(answer, traffic_matrix(answer, leaves))
    count = len(matrix)
    cell = HEAT_SIZE / count
    most = float(matrix.max()) or 1.0
    yield svg.text(LEFT, top - 16, f"bytes from {kind} to {kind} in a step", 13, bold=True)
    yield '<g shape-rendering="crispEdges">'
    yield svg.box(LEFT, top, HEAT_SIZE, HEAT_SIZE, svg.shade(0.0))
    for row in range(count):
        for column in range(count):
            size = float(matrix[row, column])
            if size:
                x = LEFT + column * cell
                y = top + row * cell
                tip = ""
                if count <= MOST_RANKS // 2:
                    tip = f"{kind} {row} to {column}: {bytes_text(int(size))}"
                # cells overlap a little, or renderers show hairs between them
                yield svg.box(x, y, cell + 0.05, cell + 0.05, svg.shade(size / most), tip)
    yield "</g>"
    per_node = answer.layout.ranks_per_node
    if kind == "rank" and 1 < per_node < count:
        for edge in range(per_node, count, per_node):
            at = edge * cell
            yield svg.line(LEFT + at, top, LEFT + at, top + HEAT_SIZE, "#ffffff")
            yield svg.line(LEFT, top + at, LEFT + HEAT_SIZE, top + at, "#ffffff")
    step = svg.label_step(count, cell)
    for index in range(0, count, step):
        at = cell * (index + 0.5)
        label = str(index)
        yield svg.text(LEFT + at, top + HEAT_SIZE + 16, label, 11, svg.QUIET, "middle")
        yield svg.text(LEFT - 8, top + at + 4, label, 11, svg.QUIET, "end")
    middle = HEAT_SIZE / 2
    yield svg.text(LEFT + middle, top + HEAT_SIZE + 36, f"to {kind}", 12, svg.QUIET, "middle")
    yield svg.text(LEFT - 44, top + middle, f"from {kind}", 12, svg.QUIET, "middle", turned=True)
    x = LEFT + HEAT_SIZE + 24
    for tint in range(40):
        y = top + 160 * (1 - (tint + 1) / 40)
        yield svg.box(x, y, 14, 4.1, svg.shade(tint / 39))
    for level in (0.0, 0.5, 1.0):
        yield svg.text(x + 20, top + 160 * (1 - level) + 4, _short(level * most), 11)
    if kind != "rank":
        yield svg.text(x, top + 188, "the diagonal is", 11, svg.QUIET)
        inside = "inside the node" if kind == "node" else "inside the group"
        yield svg.text(x, top + 202, inside, 11, svg.QUIET)
    elif 1 < per_node < count:
        yield svg.text(x, top + 188, "white lines:", 11, svg.QUIET)
        yield svg.text(x, top + 202, "nodes", 11, svg.QUIET)


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
