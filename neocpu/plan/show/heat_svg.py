"""Who sends how many bytes to whom in a step of a plan? Heat maps, drawn to one scale."""

from collections.abc import Iterator, Sequence

import numpy as np

from neocpu.core import svg
from neocpu.core.types import Ints
from neocpu.core.units import bytes_text
from neocpu.plan.cost.traffic.collectives import total
from neocpu.plan.cost.traffic.demand import MeanDemand, sample_cuts
from neocpu.plan.cost.traffic.step import StepShape, step_traffic
from neocpu.plan.cost.work import Floats
from neocpu.plan.search.answer import Answer

# Bars and cells that are drawn one for each rank; of more ranks, one for each node.
MOST_RANKS = 64
# Rows of the heat map; of more nodes several share one.
MOST_CELLS = 64
HEAT_SIZE = 420.0


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
    demand = MeanDemand(
        tables, work.pooling, sample_cuts(ranks, batch, leaves), work.distinct, work.curves
    )
    return total(step_traffic(answer.plan, shape, demand), ranks).astype(np.float64)


def grouped(answer: Answer, matrix: Floats) -> tuple[Floats, str]:
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


def short_bytes(size: float) -> str:
    """Bytes without needless zeros: '300 MB'."""
    number, _, unit = bytes_text(int(size)).partition(" ")
    return f"{float(number):.3g} {unit}"


class Scale:
    """Shades of bytes, from the least that a pair sends to the most; of matrices f64[n, n]."""

    def __init__(self, matrices: Sequence[Floats]) -> None:
        sent = np.concatenate([matrix[matrix > 0] for matrix in matrices])
        self.least = float(sent.min(initial=np.inf)) if sent.size else 0.0
        self.most = float(sent.max(initial=0.0))

    def shade(self, size: float) -> str:
        """The colour of so many bytes."""
        # of equal bytes all cells are dark: there is something
        apart = self.most - self.least
        return svg.shade((size - self.least) / apart if apart > 0 else 1.0)

    def at(self, share: float) -> float:
        """Bytes at a part of the scale."""
        return self.least + share * (self.most - self.least)


def heat_map(
    matrix: Floats, kind: str, per_node: int, scale: Scale, left: float, top: float
) -> Iterator[str]:
    """A matrix f64[n, n] of bytes by sender and receiver, its upper left corner at (left, top).

    kind : what a row is. per_node : ranks of a node, which lines part.
    """
    count = len(matrix)
    cell = HEAT_SIZE / count
    yield '<g shape-rendering="crispEdges">'
    yield svg.box(left, top, HEAT_SIZE, HEAT_SIZE, "#ffffff")
    for row, column in np.argwhere(matrix > 0).tolist():
        size = float(matrix[row, column])
        tip = ""
        if count <= MOST_RANKS // 2:
            tip = f"{kind} {row} to {column}: {bytes_text(int(size))}"
        # cells overlap a little, or renderers show hairs between them
        x = left + column * cell
        yield svg.box(x, top + row * cell, cell + 0.05, cell + 0.05, scale.shade(size), tip)
    yield "</g>"
    if kind == "rank" and per_node > 1:
        for edge in range(per_node, count, per_node):
            at = edge * cell
            yield svg.line(left + at, top, left + at, top + HEAT_SIZE, "#ffffff")
            yield svg.line(left, top + at, left + HEAT_SIZE, top + at, "#ffffff")
    for index in range(0, count, svg.label_step(count, cell)):
        at = cell * (index + 0.5)
        label = str(index)
        yield svg.text(left + at, top + HEAT_SIZE + 16, label, 11, svg.QUIET, "middle")
        yield svg.text(left - 8, top + at + 4, label, 11, svg.QUIET, "end")
    middle = HEAT_SIZE / 2
    yield svg.text(left + middle, top + HEAT_SIZE + 36, f"to {kind}", 12, svg.QUIET, "middle")
    yield svg.text(left - 44, top + middle, f"from {kind}", 12, svg.QUIET, "middle", turned=True)


def heat_legend(scale: Scale, kind: str, nodes: bool, x: float, top: float) -> Iterator[str]:
    """What the shades of a heat map mean; nodes : are there lines between them?"""
    for tint in range(40):
        y = top + 160 * (1 - (tint + 1) / 40)
        yield svg.box(x, y, 14, 4.1, svg.shade(tint / 39))
    for level in (0.0, 0.5, 1.0):
        words = short_bytes(scale.at(level))
        yield svg.text(x + 20, top + 160 * (1 - level) + 4, words, 11)
    yield svg.text(x, top + 182, "white: nothing", 11, svg.QUIET)
    if kind != "rank":
        yield svg.text(x, top + 202, "the diagonal is", 11, svg.QUIET)
        inside = "inside the node" if kind == "node" else "inside the group"
        yield svg.text(x, top + 216, inside, 11, svg.QUIET)
    elif nodes:
        yield svg.text(x, top + 202, "white lines:", 11, svg.QUIET)
        yield svg.text(x, top + 216, "nodes", 11, svg.QUIET)
