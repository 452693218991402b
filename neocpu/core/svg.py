"""How are charts drawn as SVG? Text, lines, boxes and marks as strings, round ticks of an axis, and
one set of sizes and colours, so that all pictures look alike.

They stand on white, which the text needs where a page is dark.
"""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

FONT = "Helvetica, Arial, sans-serif"
INK = "#222222"
QUIET = "#555555"
GRID = "#dddddd"
PALE = "#c9c9c9"
BLUE = "#1f5a99"
SKY = "#4a90c4"
GREEN = "#2b7a5b"
YELLOW = "#f2c14e"
ORANGE = "#e07b39"
RED = "#b8432f"
PURPLE = "#8a4f9e"
LABEL = 12  # size of text
SMALL = 11


def document(width: float, height: float, title: str, description: str, body: Sequence[str]) -> str:
    """A self-contained SVG file without scripts; `description` is its text alternative."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    role = 'role="img" aria-labelledby="title description"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" {role}>',
        # a title and a description, which screen readers read
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="description">{escape(description)}</desc>',
        f'<rect width="{width:g}" height="{height:g}" rx="4" fill="#ffffff"/>',
    ]
    return "\n".join([*head, *body, "</svg>"]) + "\n"


def text(
    x: float,
    y: float,
    words: str,
    size: int = LABEL,
    colour: str = INK,
    anchor: str = "start",
    bold: bool = False,
    turned: bool = False,
) -> str:
    """Words whose anchor is at (x, y); turned : they run upwards."""
    weight = ' font-weight="bold"' if bold else ""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}"{weight}{turn}>{escape(words)}</text>'
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str = GRID, dashes: str = "") -> str:
    """A straight line; dashes : of the stroke, in SVG's words."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashed}/>'
    )


def headings(title: str, subtitle: str) -> list[str]:
    """The first two lines of a picture."""
    return [text(24, 34, title, 20, bold=True), text(24, 56, subtitle, 13, QUIET)]


def polyline(
    points: Sequence[tuple[float, float]], colour: str, width: float = 2.0, dashes: str = ""
) -> str:
    """A line through points."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    stroke = f'stroke="{colour}" stroke-width="{width:g}"{dashed}'
    return f'<polyline points="{path}" fill="none" {stroke}/>'


def dot(x: float, y: float, colour: str, tip: str = "", radius: float = 4.0) -> str:
    """A mark; tip : as of `box`."""
    shape = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"'
    return f"<circle {shape}><title>{escape(tip)}</title></circle>" if tip else f"<circle {shape}/>"


def box(x: float, y: float, width: float, height: float, colour: str, tip: str = "") -> str:
    """A filled box; tip : what a browser shows where the pointer rests on it."""
    shape = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{colour}"'
    return f"<rect {shape}><title>{escape(tip)}</title></rect>" if tip else f"<rect {shape}/>"


def ticks(most: float, count: int = 5) -> list[float]:
    """Round numbers from 0 to the first that is not below `most`, about so many."""
    if not most > 0:
        return [0.0, 1.0]
    size = 10.0 ** math.floor(math.log10(most / count))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if most / (size * factor) <= count)
    # a quotient that should be whole may come out a little above
    return [number * step for number in range(math.ceil(most / step - 1e-9) + 1)]


def shade(share: float) -> str:
    """A colour from the lightest to the darkest, for a share from 0 to 1."""
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in ("#f3f7fb", "#0b3c6f")]
    mixed = [round(a + (b - a) * min(max(share, 0.0), 1.0)) for a, b in zip(*ends)]
    return "#" + "".join(f"{value:02x}" for value in mixed)


def label_step(count: int, spacing: float) -> int:
    """Every how many of so many places, `spacing` apart, a number is written below an axis."""
    digits = len(str(count - 1))
    least = (10.0 + 7.0 * digits) / spacing
    sizes = (factor * 10**power for power in range(9) for factor in (1, 2, 5))
    return next(size for size in sizes if size >= least)
