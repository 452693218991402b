"""How does a step scale, in a picture? Samples a second, and what a step consists of, by ranks.

One self-contained SVG file. Left: samples a second against ranks, both logarithmic, beside the line
of perfect scaling from the smallest number of ranks. Right: a bar for each number of ranks, its
height the step, its parts the phases' exposed times.
"""

import math
from collections.abc import Iterator, Sequence

from neocpu.core import svg
from neocpu.plan.simulation.breakdown import PHASES
from neocpu.plan.simulation.report import efficiencies, seconds
from neocpu.plan.simulation.scenario import Simulated

WIDTH = 1120
HEIGHT = 560
# left, top, width and height of the two charts
QPS_BOX = (80.0, 112.0, 380.0, 376.0)
STEP_BOX = (560.0, 112.0, 310.0, 376.0)
LEGEND = (892.0, 112.0)

COMPUTE = ("embedding lookup", "MLPs forward", "MLPs backward", "embedding update", "dense update")
WAITING = "waiting for slower ranks"
# what is computed in blues and greens, exchanges in warm colours, the host in greys
COLOURS = {
    "embedding lookup": svg.BLUE,
    "MLPs forward": svg.SKY,
    "MLPs backward": "#8fbfe0",
    "embedding update": svg.GREEN,
    "dense update": "#7cc4a1",
    "exchange of inputs": svg.YELLOW,
    "exchange of pooled vectors": svg.ORANGE,
    "exchange of pooled gradients": svg.RED,
    "sums of dense gradients": svg.PURPLE,
    "exchange of replicas": "#d98cb3",
    "prefetch": "#6b6b6b",
    "copy to device": "#9c9c9c",
    "readers": "#c4c4c4",
    WAITING: "#e6e6e6",
}
ORDER = (*COMPUTE, *(phase for phase in PHASES if phase not in COMPUTE), WAITING)


def scaling_svg(outcomes: Sequence[Simulated], title: str) -> str:
    """The picture of outcomes at ascending numbers of ranks, as SVG text."""
    first = outcomes[0].scenario
    course = f"pipeline {first.pipeline}, exchanges {first.options.algorithm}"
    subtitle = f"{first.work.batch // first.ranks:,} samples per rank; {course}; simulated"
    elements = [
        *svg.headings(title, subtitle),
        *_qps_chart(outcomes),
        *_step_chart(outcomes),
    ]
    points = (f"{o.scenario.ranks:,} ranks: {o.samples_per_s:,.0f} samples/s" for o in outcomes)
    return svg.document(WIDTH, HEIGHT, title, f"{subtitle}. {'; '.join(points)}", elements)


def _qps_chart(outcomes: Sequence[Simulated]) -> Iterator[str]:
    """Samples a second against ranks."""
    left, top, width, height = QPS_BOX
    ranks = [outcome.scenario.ranks for outcome in outcomes]
    rates = [outcome.samples_per_s for outcome in outcomes]
    ideal = [rates[0] * count / ranks[0] for count in ranks]
    low = math.floor(math.log10(min(rates)))
    high = max(math.ceil(math.log10(max(ideal))), low + 1)
    span = max(math.log2(ranks[-1] / ranks[0]), 1.0)

    def x(count: float) -> float:
        return left + 12 + (width - 24) * math.log2(count / ranks[0]) / span

    def y(rate: float) -> float:
        return top + height * (1 - (math.log10(rate) - low) / (high - low))

    yield svg.text(left, top - 12, "samples a second (QPS), and efficiency", size=13, bold=True)
    for power in range(low, high + 1):
        yield svg.line(left, y(10.0**power), left + width, y(10.0**power))
        yield svg.text(left - 8, y(10.0**power) + 4, _short(10.0**power), anchor="end")
    for count in ranks:
        yield svg.text(x(count), top + height + 20, f"{count:,}", anchor="middle")
    yield svg.text(left + width / 2, top + height + 42, "ranks", size=13, anchor="middle")
    yield svg.polyline([(x(c), y(r)) for c, r in zip(ranks, ideal)], "#999999", dashes="5 5")
    yield svg.text(x(ranks[-1]) - 4, y(ideal[-1]) - 8, "perfect", colour=svg.QUIET, anchor="end")
    yield svg.polyline([(x(c), y(r)) for c, r in zip(ranks, rates)], svg.BLUE)
    for count, rate, efficiency in zip(ranks, rates, efficiencies(outcomes)):
        tip = f"{count:,} ranks: {rate:,.0f} samples/s, {efficiency:.0%} of perfect"
        yield svg.dot(x(count), y(rate), svg.BLUE, tip)
        # right of the line, which rises
        yield svg.text(x(count) + 8, y(rate) + 16, f"{efficiency:.0%}", svg.SMALL, svg.QUIET)


def _step_chart(outcomes: Sequence[Simulated]) -> Iterator[str]:
    """A stacked bar of exposed times for each number of ranks, and the legend."""
    left, top, width, height = STEP_BOX
    stacks = [_stack(outcome) for outcome in outcomes]
    most = max(sum(stack.values()) for stack in stacks)
    # a little above the highest bar, so that it does not touch the top
    ticks = svg.ticks(1.0001 * most)
    limit = ticks[-1]
    yield svg.text(left, top - 12, "a step: exposed time by phase", size=13, bold=True)
    for value in ticks:
        y = top + height * (1 - value / limit)
        yield svg.line(left, y, left + width, y)
        yield svg.text(left - 8, y + 4, seconds(value), anchor="end")
    slot = width / len(outcomes)
    small = svg.LABEL if slot > 42 else 10
    for index, (outcome, stack) in enumerate(zip(outcomes, stacks)):
        y = top + height
        x = left + slot * (index + 0.14)
        for phase in ORDER:
            size = stack.get(phase, 0.0)
            if size <= 0:
                continue
            bar = height * size / limit
            y -= bar
            tip = f"{outcome.scenario.ranks:,} ranks, {phase}: {seconds(size)}"
            yield svg.box(x, y, slot * 0.72, bar, COLOURS[phase], tip)
        label = f"{outcome.scenario.ranks:,}"
        yield svg.text(x + slot * 0.36, top + height + 20, label, size=small, anchor="middle")
    yield svg.text(left + width / 2, top + height + 42, "ranks", size=13, anchor="middle")
    x, y = LEGEND
    shown = [
        phase
        for phase in reversed(ORDER)
        if any(stack.get(phase, 0.0) > 0.003 * sum(stack.values()) for stack in stacks)
    ]
    for phase in shown:
        yield svg.box(x, y, 14, 14, COLOURS[phase])
        yield svg.text(x + 22, y + 12, phase)
        y += 23


def _stack(outcome: Simulated) -> dict[str, float]:
    """Seconds of a step by what they are: exposed phases, and waiting."""
    breakdown = outcome.breakdown
    stack = {share.phase: share.exposed for share in breakdown.shares}
    stack[WAITING] = breakdown.waiting + breakdown.idle
    return stack


def _short(value: float) -> str:
    """1000000 -> 1 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
