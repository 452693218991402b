"""What do charts show, and where on the picture? Geometry only; templates draw it as SVG."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from neocpu.core.svg import ticks
from neocpu.serve.report.runs import Run

WIDTH = 480.0
HEIGHT = 260.0
LEFT = 58.0
RIGHT = 24.0
TOP = 12.0
BOTTOM = 40.0
MOST_POINTS = 400  # of a curve; more are thinned out
COLOURS = 8  # of runs; more runs start over

# metric -> its title and what it says
CURVES = {
    "logloss": (
        "Logloss",
        "-log of the probability given to what happened; lower is better",
    ),
    "mse": ("Mean squared error", "of the predicted number; lower is better"),
    "ne": ("Normalised entropy", "logloss ÷ that of always predicting the mean; below 1 is learnt"),
    "auc": ("AUC", "chance that a click is ranked above a non-click; higher is better"),
    "calibration": ("Calibration", "predicted clicks ÷ clicks; 1 is right"),
    "samples_per_second": ("Samples a second", "of all ranks, since the line before"),
    "learning_rate": ("Learning rate", "of the tables"),
}


@dataclass(frozen=True)
class Tick:
    """A mark of an axis: where, and its label."""

    at: float
    label: str


@dataclass(frozen=True)
class Series:
    """One curve: SVG points, marks with what a pointer on them is told, colour and kind."""

    run: str
    split: str
    colour: int
    points: str
    marks: list[tuple[float, float, str]]


@dataclass(frozen=True)
class Chart:
    """A chart with axes; `x_ticks`, `y_ticks` are placed on the picture."""

    name: str
    title: str
    meaning: str
    x_label: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    series: list[Series]
    diagonal: bool = False


def curves(runs: Sequence[Run]) -> list[Chart]:
    """The curves of all metrics that were measured, over samples."""
    charts = [_curve(name, runs) for name in CURVES]
    return [chart for chart in charts if chart is not None]


def _curve(name: str, runs: Sequence[Run]) -> Chart | None:
    """The chart of one metric; None where nobody measured it."""
    curves = {
        (number, split): points
        for number, run in enumerate(runs)
        for split in ("train", "valid", "progressive", "test")
        if (points := _points(run, split, name))
    }
    if not curves:
        return None
    values = [value for points in curves.values() for _, value in points]
    most = max(samples for points in curves.values() for samples, _ in points)
    x_values = ticks(most)
    y_values = _range(values, name)
    x_at = _scale(0.0, x_values[-1], LEFT, WIDTH - RIGHT)
    y_at = _scale(y_values[0], y_values[-1], HEIGHT - BOTTOM, TOP)
    series = []
    for (number, split), points in curves.items():
        positions = [(x_at(samples), y_at(value)) for samples, value in points]
        run = runs[number].name
        tips = [f"{run}, {split}: {short(y)} at {count(x)} samples" for x, y in points]
        marks = [(x, y, tip) for (x, y), tip in zip(positions, tips)]
        series.append(
            Series(
                run=run,
                split=split,
                colour=number % COLOURS + 1,
                points=" ".join(f"{x:.1f},{y:.1f}" for x, y in positions),
                marks=marks,
            )
        )
    title, meaning = CURVES[name]
    return Chart(
        name=name,
        title=title,
        meaning=meaning,
        x_label="samples",
        x_ticks=[Tick(x_at(value), count(value)) for value in x_values],
        y_ticks=[Tick(y_at(value), short(value)) for value in y_values],
        series=series,
    )


def _points(run: Run, split: str, name: str) -> list[tuple[float, float]]:
    """(samples, value) of a curve, thinned out where there are very many."""
    points = [
        (float(line["samples"]), float(line[name]))
        for line in run.lines
        if line["split"] == split
        and isinstance(line.get(name), int | float)
        # a run that diverged noted NaN, which is no coordinate
        and math.isfinite(line[name])
    ]
    step = -(-len(points) // MOST_POINTS) or 1
    # the last point is the result, and always stays
    return points[:-1:step] + points[-1:]


def _range(values: Sequence[float], name: str) -> list[float]:
    """Ticks of a vertical axis: from 0 for a speed or a rate, else close around the values."""
    low = min(values)
    high = max(values)
    if name in ("samples_per_second", "learning_rate"):
        return ticks(high)
    # an axis needs a length even where all values are equal
    spread = high - low or abs(high) or 1.0
    step = ticks(spread, 4)[1]
    lowest = math.floor(low / step)
    highest = max(math.ceil(high / step), lowest + 1)
    return [step * number for number in range(lowest, highest + 1)]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Where a value lies between two ends of a picture."""
    # one value alone would divide by 0
    size = (high - low) or 1.0
    return lambda value: start + (end - start) * (value - low) / size


def calibration(runs: Sequence[Run]) -> Chart | None:
    """Predicted against measured click rates by bins, on logarithmic axes."""
    splits = [(number, run, *_bins(run)) for number, run in enumerate(runs)]
    splits = [entry for entry in splits if entry[3]]
    rates = [
        rate
        for *_, bins in splits
        for row in bins
        for rate in (row["predicted"], row["label"])
        if rate > 0
    ]
    if not rates:
        return None
    decade = max(math.floor(math.log10(min(rates))), -5)
    at = _scale(decade, 0.0, LEFT, WIDTH - RIGHT)
    up = _scale(decade, 0.0, HEIGHT - BOTTOM, TOP)

    def log(rate: float) -> float:
        return math.log10(max(rate, 10.0**decade))

    series = []
    for number, run, split, bins in splits:
        marks = []
        for row in bins:
            tip = (
                f"{run.name}, {split}: {row['samples']:,} samples predicted at "
                f"{100 * row['predicted']:.3g} %, of which {100 * row['label']:.3g} % clicked"
            )
            marks.append((at(log(row["predicted"])), up(log(row["label"])), tip))
        # 0 has no logarithm: such bins are marked at the edge, off the line
        clicked = [mark for mark, row in zip(marks, bins) if row["label"] > 0]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in clicked)
        series.append(Series(run.name, split, number % COLOURS + 1, line, marks))
    levels = range(decade, 1)
    return Chart(
        name="reliability",
        title="Calibration by prediction",
        meaning="clicks among samples of one predicted probability; on the diagonal is right",
        x_label="predicted probability",
        x_ticks=[Tick(at(level), percent(10.0**level)) for level in levels],
        y_ticks=[Tick(up(level), percent(10.0**level)) for level in levels],
        series=series,
        diagonal=True,
    )


def _bins(run: Run) -> tuple[str, list[Mapping[str, float]]]:
    """The split that was measured last, and its bins that are whole."""
    by_split = run.summary.get("reliability")
    if not isinstance(by_split, Mapping):
        return "", []
    for split in ("test", "valid"):
        bins = by_split.get(split) or []
        whole = [
            row
            for row in bins
            if isinstance(row, Mapping) and {"samples", "predicted", "label"} <= row.keys()
        ]
        if whole:
            return split, whole
    return "", []


def count(value: float) -> str:
    """A number of things: "12,800", "1.5 M"."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == ' k' else size):.4g}{unit}"
    return f"{value:,.4g}" if value < 1e3 else f"{value:,.0f}"


def short(value: float) -> str:
    """A measured number with few digits."""
    return count(value) if abs(value) >= 1e4 else f"{value:.4g}"


def percent(rate: float) -> str:
    """A rate as a percentage."""
    return f"{100 * rate:g} %"
