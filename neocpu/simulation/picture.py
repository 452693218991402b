"""How does a step scale, in a picture? Samples a second, and what a step consists of, by ranks.

One self-contained SVG file. Left: samples a second against ranks, both logarithmic, beside the line
of perfect scaling from the smallest number of ranks. Right: a bar for each number of ranks, its
height the step, its parts the phases' exposed times.
"""

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from neocpu.simulation.breakdown import PHASES
from neocpu.simulation.report import efficiencies, seconds
from neocpu.simulation.scenario import Simulated

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
    "embedding lookup": "#1f5a99",
    "MLPs forward": "#4a90c4",
    "MLPs backward": "#8fbfe0",
    "embedding update": "#2b7a5b",
    "dense update": "#7cc4a1",
    "exchange of inputs": "#f2c14e",
    "exchange of pooled vectors": "#e07b39",
    "exchange of pooled gradients": "#b8432f",
    "sums of dense gradients": "#8a4f9e",
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
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    font = 'font-family="Helvetica, Arial, sans-serif"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(40, 36, title, size=20, weight="bold"),
        _text(40, 60, subtitle, size=13, colour="#555"),
        *_qps_chart(outcomes),
        *_step_chart(outcomes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


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

    yield _text(left, top - 12, "samples a second (QPS), and efficiency", size=13, weight="bold")
    for power in range(low, high + 1):
        yield _line(left, y(10.0**power), left + width, y(10.0**power), "#ddd")
        yield _text(left - 8, y(10.0**power) + 4, _short(10.0**power), anchor="end")
    for count in ranks:
        yield _text(x(count), top + height + 20, f"{count:,}", anchor="middle")
    yield _text(left + width / 2, top + height + 42, "ranks", size=13, anchor="middle")
    yield _polyline([(x(c), y(r)) for c, r in zip(ranks, ideal)], "#999", dashed=True)
    yield _text(x(ranks[-1]) - 4, y(ideal[-1]) - 8, "perfect", colour="#777", anchor="end")
    yield _polyline([(x(c), y(r)) for c, r in zip(ranks, rates)], COLOURS["embedding lookup"])
    for count, rate, part in zip(ranks, rates, efficiencies(outcomes)):
        tip = f"{count:,} ranks: {rate:,.0f} samples/s, {part:.0%} of perfect"
        yield (
            f'<circle cx="{x(count):.1f}" cy="{y(rate):.1f}" r="4" '
            f'fill="{COLOURS["embedding lookup"]}"><title>{tip}</title></circle>'
        )
        yield _text(x(count) + 2, y(rate) + 20, f"{part:.0%}", anchor="middle", colour="#333")


def _step_chart(outcomes: Sequence[Simulated]) -> Iterator[str]:
    """A stacked bar of exposed times for each number of ranks, and the legend."""
    left, top, width, height = STEP_BOX
    stacks = [_stack(outcome) for outcome in outcomes]
    most = max(sum(stack.values()) for stack in stacks)
    tick = _tick(most)
    limit = tick * math.ceil(most / tick * 1.0001)
    yield _text(left, top - 12, "a step: exposed time by phase", size=13, weight="bold")
    for number in range(round(limit / tick) + 1):
        y = top + height * (1 - number * tick / limit)
        yield _line(left, y, left + width, y, "#ddd")
        yield _text(left - 8, y + 4, seconds(number * tick), anchor="end")
    slot = width / len(outcomes)
    small = 12 if slot > 36 else 9
    for place, (outcome, stack) in enumerate(zip(outcomes, stacks)):
        y = top + height
        x = left + slot * (place + 0.14)
        for phase in ORDER:
            size = stack.get(phase, 0.0)
            if size <= 0:
                continue
            bar = height * size / limit
            y -= bar
            tip = f"{outcome.scenario.ranks:,} ranks, {phase}: {seconds(size)}"
            yield (
                f'<rect x="{x:.1f}" y="{y:.2f}" width="{slot * 0.72:.1f}" height="{bar:.2f}" '
                f'fill="{COLOURS[phase]}"><title>{tip}</title></rect>'
            )
        label = f"{outcome.scenario.ranks:,}"
        yield _text(x + slot * 0.36, top + height + 20, label, size=small, anchor="middle")
    yield _text(left + width / 2, top + height + 42, "ranks", size=13, anchor="middle")
    x, y = LEGEND
    shown = [
        phase
        for phase in reversed(ORDER)
        if any(stack.get(phase, 0.0) > 0.003 * sum(stack.values()) for stack in stacks)
    ]
    for phase in shown:
        yield f'<rect x="{x}" y="{y}" width="14" height="14" fill="{COLOURS[phase]}"/>'
        yield _text(x + 22, y + 12, phase)
        y += 23


def _stack(outcome: Simulated) -> dict[str, float]:
    """Seconds of a step by what they are: exposed phases, and waiting."""
    parts = outcome.breakdown
    stack = {share.phase: share.exposed for share in parts.shares}
    stack[WAITING] = parts.waiting + parts.idle
    return stack


def _tick(most: float) -> float:
    """A round distance between lines, so that there are four to eight."""
    size = 10.0 ** math.floor(math.log10(most)) if most > 0 else 1.0
    return next(size * part for part in (0.1, 0.2, 0.25, 0.5, 1, 2) if most / (size * part) <= 8)


def _short(value: float) -> str:
    """1000000 -> 1 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _text(
    x: float,
    y: float,
    text: str,
    size: int = 12,
    colour: str = "#222",
    anchor: str = "start",
    weight: str = "normal",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _polyline(points: Sequence[tuple[float, float]], colour: str, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 5"' if dashed else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
