"""How does a training step look on two ranks? docs/step.svg.

    python docs/_ext/step_picture.py      # draws it

Each rank has a lane; what both take part in, the exchanges, stands across the lanes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from neocpu.core import svg

STEP = Path(__file__).resolve().parent.parent / "step.svg"
WIDTH = 960.0
HEIGHT = 500.0
TOP = 116.0  # of the exchanges
BOTTOM = 424.0
DATA = "#eef2f7"
ROWS = "#fdf0dc"
DENSE = "#e8f4ea"
EXCHANGE = "#f8e4dc"
FORWARD = svg.INK
BACKWARD = svg.RED
Point = tuple[float, float]


def picture() -> str:
    """The picture as SVG text."""
    title = "One training step on two ranks"
    subtitle = "across both lanes: exchanges between the ranks"
    body = [*svg.headings(title, subtitle), *_legend()]
    body += _box(166, TOP, 104, BOTTOM - TOP, EXCHANGE, "input", "distribution", "", *INPUT)
    body += _box(450, TOP, 116, BOTTOM - TOP, EXCHANGE, "output", "distribution", "", *OUTPUT)
    body += _box(604, 238, 332, 64, EXCHANGE, "sum of dense gradients", "", *TREE)
    for rank, middle in enumerate((176.0, 364.0)):
        body += _lane(rank, middle)
    return svg.document(WIDTH, HEIGHT, title, WORDS, body)


INPUT = ("AllToAll: row", "numbers go to", "the rank that", "holds the row")
OUTPUT = (
    "AllToAll: pooled",
    "rows go to the",
    "sample's rank;",
    "",
    "backward: their",
    "gradients go",
    "to the rows",
)
TREE = ("one tree over the whole batch; then the dense", "optimizer, the same step on every rank")
WORDS = (
    "Each rank reads its part of the batch. The input distribution sends row numbers to the rank "
    "that holds the row; the lookup pools rows; the output distribution sends the pooled rows to "
    "the rank of the sample, where interaction and MLPs lead to the loss. Backward, gradients of "
    "pooled rows take the same way back to the rows, which are updated once each; dense gradients "
    "are summed over all ranks, and every rank takes the same optimizer step."
)


def _legend() -> Iterator[str]:
    for x, colour, dashes, words in (
        (560.0, FORWARD, "", "forward"),
        (670.0, BACKWARD, "5 4", "backward"),
    ):
        yield from _arrow([(x, 52), (x + 34, 52)], colour, dashes)
        yield svg.text(x + 42, 56, words, svg.LABEL, colour)


def _lane(rank: int, middle: float) -> Iterator[str]:
    """The boxes and arrows of one rank, whose forward path runs at this height."""
    outwards = -1.0 if rank == 0 else 1.0  # away from the other rank
    bottom = middle + outwards * 82
    yield svg.text(24, middle - 56 if rank == 0 else middle + 66, f"rank {rank}", 13, bold=True)
    yield from _box(
        18,
        middle - 44,
        116,
        88,
        DATA,
        "batch",
        "",
        "dense[b, 13]",
        "KJT: lengths, rows",
        "labels[b]",
    )
    yield from _box(
        302,
        middle - 44,
        118,
        88,
        ROWS,
        "lookup",
        "",
        "pools rows, exactly",
        "backward: merge,",
        "one step for a row",
    )
    yield from _box(604, middle - 32, 104, 64, DENSE, "interaction", "", "dot products")
    yield from _box(740, middle - 32, 96, 64, DENSE, "top MLP", "", "data-parallel")
    yield from _box(868, middle - 32, 68, 64, DENSE, "loss", "", "bce")
    yield from _box(604, bottom - 20, 104, 40, DENSE, "bottom MLP")
    yield from _arrow([(134, middle), (166, middle)], FORWARD)
    yield from _arrow([(270, middle), (302, middle)], FORWARD)
    for left, right in ((420, 450), (566, 604), (708, 740), (836, 868)):
        yield from _arrow([(left, middle - 10), (right, middle - 10)], FORWARD)
        yield from _arrow([(right, middle + 12), (left, middle + 12)], BACKWARD, "5 4")
    # round the exchanges, which the dense numbers do not take part in
    yield from _arrow([(76, middle + 44 * outwards), (76, bottom), (604, bottom)], FORWARD)
    inner = bottom - 20 * outwards
    outer = middle + 32 * outwards
    yield from _arrow([(636, inner), (636, outer)], FORWARD)
    yield from _arrow([(676, outer), (676, inner)], BACKWARD, "5 4")
    # gradients of the MLPs to their sum
    edge = 238.0 if rank == 0 else 302.0
    yield from _arrow([(788, middle - 32 * outwards), (788, edge)], BACKWARD, "5 4")
    yield from _arrow([(708, bottom), (724, bottom), (724, edge)], BACKWARD, "5 4")


def _box(
    x: float, y: float, width: float, height: float, colour: str, *lines: str
) -> Iterator[str]:
    """A box with lines of text; those before the first empty one are its name."""
    end = lines.index("") if "" in lines else len(lines)
    names, rest = lines[:end], lines[end + 1 :]
    size = f'width="{width:g}" height="{height:g}" rx="6" fill="{colour}" stroke="{svg.QUIET}"'
    yield f'<rect x="{x:g}" y="{y:g}" {size}/>'
    at = y + height / 2 + 4 - 8 * (len(names) + len(rest) - 1)
    for number, words in enumerate((*names, *rest)):
        named = number < len(names)
        style = (13, svg.INK) if named else (svg.SMALL, svg.QUIET)
        yield svg.text(x + width / 2, at + 16 * number, words, *style, "middle", bold=named)


def _arrow(points: Sequence[Point], colour: str, dashes: str = "") -> Iterator[str]:
    """A line through points with a head at its end; its parts are horizontal or vertical."""
    (x0, y0), (x, y) = points[-2:]
    along = ((x > x0) - (x < x0), (y > y0) - (y < y0))
    back = (x - 8 * along[0], y - 8 * along[1])
    yield svg.polyline([*points[:-1], back], colour, 1.5, dashes)
    side = (4 * along[1], 4 * along[0])
    corners = [
        (x, y),
        (back[0] + side[0], back[1] + side[1]),
        (back[0] - side[0], back[1] - side[1]),
    ]
    path = " ".join(f"{u:g},{v:g}" for u, v in corners)
    yield f'<polygon points="{path}" fill="{colour}"/>'


if __name__ == "__main__":
    STEP.write_text(picture())
