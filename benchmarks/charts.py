"""How are measurements drawn? Points and lines on linear or logarithmic axes.

The words of drawing are those of `neocpu/core/svg.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path

from neocpu.core import svg

DOCS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`; marks : values on it, and what is written there."""

    low: float
    high: float
    marks: Sequence[tuple[float, str]]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = log10(low), log10(high), log10(value)
        return (at - low) / (high - low)


@dataclass(frozen=True)
class Axes:
    """A rectangle of a picture with its two axes."""

    left: float
    top: float
    width: float
    height: float
    x: Scale
    y: Scale

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Where two values are in the picture."""
        return (
            self.left + self.width * self.x.share(x),
            self.top + self.height * (1 - self.y.share(y)),
        )

    def frame(self, title: str = "", x: str = "", y: str = "", small: bool = False) -> list[str]:
        """The grid with its numbers, a title, and what the axes are."""
        bottom = self.top + self.height
        size = svg.SMALL if small else svg.LABEL
        parts = [svg.text(self.left, self.top - 10, title, 13, bold=True)] if title else []
        for value, label in self.x.marks:
            at = self.left + self.width * self.x.share(value)
            parts.append(svg.line(at, self.top, at, bottom))
            parts.append(svg.text(at, bottom + 16, label, size, svg.QUIET, "middle"))
        for value, label in self.y.marks:
            at = self.top + self.height * (1 - self.y.share(value))
            parts.append(svg.line(self.left, at, self.left + self.width, at))
            parts.append(svg.text(self.left - 7, at + 4, label, size, svg.QUIET, "end"))
        if x:
            middle = self.left + self.width / 2
            parts.append(svg.text(middle, bottom + 36, x, svg.LABEL, svg.QUIET, "middle"))
        if y:
            at = self.top + self.height / 2
            parts.append(
                svg.text(self.left - 50, at, y, svg.LABEL, svg.QUIET, "middle", turned=True)
            )
        return parts

    def curve(
        self,
        points: Sequence[tuple[float, float]],
        colour: str,
        width: float = 2.0,
        dashes: str = "",
    ) -> str:
        """A line through points of the two axes."""
        return svg.polyline([self.point(*each) for each in points], colour, width, dashes)


def powers(low: float, high: float, exponents: bool = False) -> list[tuple[float, str]]:
    """Marks at the powers of ten between two values."""
    numbers = range(-9, 12)
    return [
        (10.0**n, f"10{str(n).translate(RAISED)}" if exponents else f"{10.0**n:g}")
        for n in numbers
        if low <= 10.0**n <= high
    ]


RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def named(
    places: Mapping[str, tuple[float, float]], avoid: Sequence[tuple[float, float]]
) -> Iterator[str]:
    """Names beside their points: right or left of them, else below or above, with a line to each
    that stands further off; no name is on another, on a point, or on one of those to avoid.
    """
    # boxes that are taken: left, top, right, bottom
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in (*places.values(), *avoid)]
    for name, (x, y) in places.items():
        width = 7.0 * len(name)
        beside = [
            (x + sign * 9, y + down, sign) for down in (0, 14, 28, -14, -28, 42) for sign in (1, -1)
        ]
        for edge, middle, sign in beside:
            left = min(edge, edge + sign * width)
            room = (left, middle - 7, left + width, middle + 7)
            if not any(_overlap(room, other) for other in taken):
                break
        taken.append(room)
        if middle != y:
            yield svg.line(x, y, edge - 2 * sign, middle, svg.QUIET)
        yield svg.text(edge, middle + 4, name, anchor="start" if sign > 0 else "end")


def _overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def rows_of(page: str, header: str) -> Iterator[list[list[str]]]:
    """The cells of each table of a page that begins with these words."""
    for part in (DOCS / page).read_text().split(header)[1:]:
        lines = part.split("\n\n")[0].splitlines()[2:]
        yield [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
