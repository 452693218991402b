"""How does a trace become a picture? Tracks of its ranks below one another, on one scale of time.

Takes the files of `chrome_trace.py`, of a run or of a simulation; traces that are to be compared
are drawn on the same scale.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from neocpu.core import svg
from neocpu.plan.simulation.chrome_trace import Event

WIDTH = 1160
LEFT = 150.0
CHART = 980.0
TOP = 88.0
ROW = 16.0
GAP = 10.0
# Tracks in which nothing is drawn but lines between steps.
STEPS = "steps"
# What is computed in blues and greens, exchanges in warm colours, waiting in grey; by the beginning
# of a name, the first that fits.
COLOURS = {
    "wait": svg.PALE,
    "lookup": svg.BLUE,
    "bottom_forward": svg.SKY,
    "top_forward": svg.SKY,
    "update": svg.GREEN,
    "apply": svg.GREEN,
    "merge": svg.GREEN,
    "upper_update": "#7cc4a1",
    "lower_update": "#7cc4a1",
    "dense_update": "#7cc4a1",
    "input": svg.YELLOW,
    "pooled output": svg.ORANGE,
    "words": svg.ORANGE,
    "pooled gradients": svg.RED,
    "word gradients": svg.RED,
    "dense": svg.PURPLE,
    "replica": "#d98cb3",
    "gathered": "#d98cb3",
}
BACKWARD = "#8fbfe0"
OTHER = "#9c9c9c"
LEGEND = (
    ("lookup", COLOURS["lookup"]),
    ("forward", COLOURS["bottom_forward"]),
    ("backward", BACKWARD),
    ("update of tables", COLOURS["update"]),
    ("of the MLPs", COLOURS["dense_update"]),
    ("waiting", COLOURS["wait"]),
    ("inputs", COLOURS["input"]),
    ("pooled", COLOURS["pooled output"]),
    ("gradients", COLOURS["pooled gradients"]),
    ("dense sums", COLOURS["dense"]),
)


class Panel(NamedTuple):
    """A trace to draw: a title, the content of the file, the ranks, and the first and last step."""

    title: str
    trace: Mapping[str, Any]
    ranks: Sequence[int]
    steps: tuple[int, int]


class _Row(NamedTuple):
    """A track, and the (begin, end, name) of its pieces in the window, in milliseconds."""

    title: str
    pieces: list[tuple[float, float, str]]


def trace_svg(panels: Sequence[Panel], title: str, subtitle: str) -> str:
    """Panels below one another, as SVG text; time runs from the first step that a panel shows."""
    drawn = [(panel, _window(panel)) for panel in panels]
    longest = max(end - begin for _, (begin, end) in drawn)
    elements = [
        *svg.headings(title, subtitle),
        *_legend(),
    ]
    y = TOP + 20
    for panel, window in drawn:
        elements.append(
            svg.text(24, y + 12, f"{panel.title}: {_length(panel):.1f} ms a step", 13, bold=True)
        )
        y += 34
        rows = list(_rows(panel, window))
        bottom = y + sum(ROW if row.title else GAP for row in rows)
        elements.extend(_step_lines(panel, window, longest, y, bottom))
        for row in rows:
            elements.extend(_row(row, window[0], longest, y))
            y += ROW if row.title else GAP
        y += 14
    elements.extend(_axis(longest, y))
    steps = "; ".join(f"{panel.title}: {_length(panel):.1f} ms a step" for panel in panels)
    return svg.document(WIDTH, y + 40, title, f"{subtitle}. {steps}", elements)


def _length(panel: Panel) -> float:
    """Mean milliseconds of the steps shown."""
    begin, end = _window(panel)
    return (end - begin) / (panel.steps[1] - panel.steps[0] + 1)


def _events(panel: Panel) -> Iterator[Event]:
    return (event for event in panel.trace["traceEvents"] if event["ph"] == "X")


def _tracks(panel: Panel, rank: int) -> dict[int, str]:
    """Names of a rank's tracks, by number."""
    return {
        event["tid"]: event["args"]["name"]
        for event in panel.trace["traceEvents"]
        if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] == rank
    }


def _window(panel: Panel) -> tuple[float, float]:
    """Milliseconds from the begin of the first step to the end of the last, of any rank shown.

    Raises ValueError where the trace lacks the steps.
    """
    first, last = (f"step {step}" for step in panel.steps)
    events = [event for event in _events(panel) if event["pid"] in panel.ranks]
    begins = [event["ts"] for event in events if event["name"] == first]
    ends = [event["ts"] + event["dur"] for event in events if event["name"] == last]
    if not begins or not ends:
        raise ValueError(f"the trace has no {first} or no {last} of ranks {list(panel.ranks)}")
    return min(begins) / 1e3, max(ends) / 1e3


def _rows(panel: Panel, window: tuple[float, float]) -> Iterator[_Row]:
    """The tracks of each rank that have any piece in the window; a row without title is a gap."""
    begin, end = window
    for rank in panel.ranks:
        for number, track in _tracks(panel, rank).items():
            pieces = [
                (event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3, event["name"])
                for event in _events(panel)
                if event["pid"] == rank and event["tid"] == number
            ]
            shown = [piece for piece in pieces if piece[1] > begin and piece[0] < end]
            if shown and track != STEPS:
                clipped = [(max(a, begin), min(b, end), name) for a, b, name in shown]
                yield _Row(f"rank {rank}  {track.removeprefix('network: ')}", clipped)
        yield _Row("", [])


def _step_lines(
    panel: Panel, window: tuple[float, float], longest: float, top: float, bottom: float
) -> Iterator[str]:
    """A line where each step of the first rank begins."""
    for event in _events(panel):
        at = event["ts"] / 1e3
        whole = event["pid"] == panel.ranks[0] and event["name"].startswith("step ")
        if whole and window[0] <= at <= window[1]:
            x = LEFT + CHART * (at - window[0]) / longest
            yield svg.line(x, top - 4, x, bottom, colour="#777777", dashes="3 3")
            # what begins at the end of the window has no room for its name
            if at < window[1] - 0.05 * longest:
                yield svg.text(x + 3, top - 6, event["name"], svg.SMALL, svg.QUIET)


def _row(row: _Row, begin: float, longest: float, y: float) -> Iterator[str]:
    """One track."""
    if not row.title:
        return
    yield svg.text(LEFT - 8, y + 11, row.title, svg.SMALL, anchor="end")
    for start, end, name in row.pieces:
        x = LEFT + CHART * (start - begin) / longest
        # a short piece stays visible
        width = max(CHART * (end - start) / longest, 0.3)
        yield svg.box(x, y + 1, width, ROW - 3, colour(name), f"{name}: {end - start:.2f} ms")


def colour(name: str) -> str:
    """Of a stage, an exchange, or a wait."""
    if "backward" in name or name == "dense_gradients":
        return BACKWARD
    return next((value for key, value in COLOURS.items() if name.startswith(key)), OTHER)


def _legend() -> Iterator[str]:
    x = 24.0
    for name, value in LEGEND:
        yield svg.box(x, TOP - 14, 12, 12, value)
        yield svg.text(x + 17, TOP - 4, name, size=11)
        x += 34 + 6.2 * len(name)


def _axis(longest: float, y: float) -> Iterator[str]:
    """Milliseconds."""
    yield svg.line(LEFT, y, LEFT + CHART, y, colour="#777777")
    for tick in svg.ticks(longest, 8):
        if tick <= longest:
            x = LEFT + CHART * tick / longest
            yield svg.line(x, y, x, y + 4, colour="#777777")
            yield svg.text(x, y + 17, f"{tick:g} ms", size=11, anchor="middle")
