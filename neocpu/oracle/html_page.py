"""What does a report look like in a browser? `templates/check.html`, filled with maps of errors.

A table of all cases, and for each failed one where it is wrong (a map of |error| / bound, one
picture per output or table) and what explains it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neocpu.core.html import html_page
from neocpu.oracle.operator import Case
from neocpu.oracle.outcome import CheckOutcome, element_text, strong_diagnoses

# |error| / bound beyond which an element has this colour; the first is right.
SCALE = (
    (0.0, "#e8efe9", "right"),
    (1.0, "#f6d98b", "up to 10 bounds"),
    (10.0, "#ee9b4a", "to 1,000"),
    (1e3, "#d1493f", "to a million"),
    (1e6, "#6b1a4a", "beyond, or NaN"),
)
WIDEST = 128  # cells of a map
TALLEST = 64
MOST_PANELS = 6
SMALLEST_CELL = 6  # pixels of a cell, in large maps
LARGEST_CELL = 16  # and in small ones
MAP_WIDTH = 768  # pixels that cells grow to fill
MAP_HEIGHT = 320


@dataclass(frozen=True)
class ErrorMap:
    """A picture of |error| / bound, in cells.

    cell : pixels of a cell's side. runs : (x, y, width, level in SCALE) of neighbours in a row that
        are equally wrong.
    """

    caption: str
    width: int
    height: int
    cell: int
    runs: list[tuple[int, int, int, int]]


def page(check: CheckOutcome) -> str:
    """The whole page as text."""
    return html_page(
        "neocpu.oracle",
        "check.html",
        check=check,
        scale=[(colour, meaning) for _, colour, meaning in SCALE],
        strong_diagnoses=strong_diagnoses,
        element_text=element_text,
        maps=_maps,
    )


def _maps(case: Case, output: str, ratio: NDArray[np.float64]) -> list[ErrorMap]:
    return [_map(title, cells) for title, cells in panels(case, output, ratio)]


def panels(
    case: Case, output: str, ratio: NDArray[np.float64]
) -> list[tuple[str, NDArray[np.float64]]]:
    """Pictures of an output, by title: one per table where it is a flat run of tables, else one.

    ratio : |error| / bound of each element. A picture has the rows of a table, or rows by the
        last axis.
    """
    rows = case.inputs.get("rows")
    dims = case.inputs.get("dims")
    if ratio.ndim == 1 and rows is not None and dims is not None:
        # elements of the tables, or one number per row (states of row-wise rules)
        for widths in (np.asarray(dims), np.ones(rows.size, np.int64)):
            sizes = rows * widths
            if int(sizes.sum()) == ratio.size and ratio.size:
                pieces = np.split(ratio, np.cumsum(sizes)[:-1])
                tables = [
                    piece.reshape(int(h), int(w)) for piece, h, w in zip(pieces, rows, widths)
                ]
                wrong = [(f"{output}, table {t}", x) for t, x in enumerate(tables) if x.any()]
                return wrong[:MOST_PANELS]
    cells = ratio.reshape(-1, ratio.shape[-1]) if ratio.ndim > 1 else ratio.reshape(1, -1)
    return [(output, cells)] if cells.size else []


def _map(title: str, cells: NDArray[np.float64]) -> ErrorMap:
    """A map of which each cell is the worst element that it covers."""
    if cells.shape[0] == 1 and cells.shape[1] > WIDEST:  # a long line is folded
        folded = np.zeros((-(-cells.shape[1] // WIDEST), WIDEST))
        folded.reshape(-1)[: cells.size] = cells
        cells = folded
    small = shrunk(shrunk(cells, TALLEST, 0), WIDEST, 1)
    limits = [lowest for lowest, _, _ in SCALE][1:]
    level = np.digitize(small, limits, right=True)
    # Judged bit for bit, an element within its bound may be wrong, and must not look right.
    level = np.where((small > 0) & (level == 0), 1, level)
    height, width = small.shape
    runs = []
    for y, levels in enumerate(level.tolist()):
        cuts = (np.flatnonzero(np.diff(level[y])) + 1).tolist()
        for start, end in zip([0, *cuts], [*cuts, width]):
            if levels[start]:
                runs.append((start, y, end - start, levels[start]))
    cell = min(LARGEST_CELL, MAP_WIDTH // max(width, 1), MAP_HEIGHT // max(height, 1))
    return ErrorMap(
        caption=f"{title}: {cells.shape[0]} by {cells.shape[1]}",
        width=width,
        height=height,
        cell=max(SMALLEST_CELL, cell),
        runs=runs,
    )


def shrunk(cells: NDArray[np.float64], most: int, axis: int) -> NDArray[np.float64]:
    """At most `most` cells along an axis, each the largest of those it covers."""
    if cells.shape[axis] <= most:
        return cells
    starts = np.arange(most) * cells.shape[axis] // most
    return np.maximum.reduceat(cells, starts, axis)
