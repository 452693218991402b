"""Which rectangles may a table be cut into at all? Ranges of sizes, with the least that they cost.

A plan may cut a table into any rectangles, of which the candidates are a few. For a bound of all
plans a table's rectangles are grouped by their sizes into *ranges*: rows from h to h', columns from
w to w'. Let a range cost at least e(p) seconds in phase p for each cell, and a rectangle of it at
least q(p). The table's rectangles hold each of its n cells once, so they cost at least a mean of
n e(p), each range weighted by its part of the cells, and the dearest costs at least the same mean
of q(p). A mean is at least the least of what is averaged, so a bound that takes for each table the
least over its ranges holds for every cut.

Within a range a cell costs least, and a rectangle too, at one of the four corners, phase by phase:
ranges end where a rate's curve bends, where a rectangle becomes the whole table, and at powers of
two. Tables that are no large part of a rank's share have few ranges, large ones many.

The public models (`plan/cost/models.py`) price a rectangle that lacks rows at a(w) seconds for each
cell and b for each of its columns; b is one number for those of at most X rows, the part of one
rank of a node, by schemes of nodes (*low* ones), another for all others (*tall* ones). A column of
H rows that is cut has at least two rectangles, so it costs at least a H + 2 b with the least a of
its widths where all are of a kind, as two of H/2 rows do: their ranges end at H/2, since a larger
one costs more and takes more bytes. Where all are low it costs a H + b H/X: ranges of low ones end
at X. Where some are tall it costs at least as much as one of X rows and one of H - X, which is a
range of its own.

Where rows are not alike (`plan/cost/row_curves.py`) a range is one of lookups, not of rows: from
h/H to h'/H of those of a table of H rows. Everything above holds for lookups as for cells, and rows
and their bytes add up to the table's in any case. A rectangle's rows may then be few or many, so it
costs at least what it would with those at which rates are best.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.sharding.plan import allowed_schemes
from neocpu.parallel.sharding.schemes import COLUMN_STEP
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.models import NODE_SCHEMES
from neocpu.plan.cost.seconds import CostModel, StepSeconds
from neocpu.plan.cost.work import ROW_SPLIT, Flags, Floats, Workload, whole_rectangles
from neocpu.plan.search.cuts import FINEST
from neocpu.plan.search.options import CODES, Options
from neocpu.plan.tiers.limits import bytes_of, with_variants
from neocpu.tables.specs.specs import TableSpec, TableSpecs

ANY_ROWS = ("row_wise", "table_row_wise", "grid_shard")
ANY_COLUMNS = ("column_wise", "table_column_wise", "grid_shard")
# Columns at which ranges end; models have steps there.
POWERS = (8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
# Schemes by which models other than our own price a rectangle.
CUT = tuple(name for name in CODES if name != "data_parallel")


class CutRanges(NamedTuple):
    """CutRanges of the tables, those of a table side by side, [n] each.

    start : i64[tables + 1], first range of each table. table : of each range. seconds : least of
    all rectangles of the table, f64[n, phases] as `Options.piece_seconds`. peak : least of one
    rectangle, alike; whole_peak : of all phases, f64[n]. bytes, peak_bytes : alike, f64[n,
    memories].
    """

    start: Ints
    table: Ints
    seconds: Floats
    peak: Floats
    whole_peak: Floats
    bytes: Floats
    peak_bytes: Floats


def ranges_of(
    tables: TableSpecs,
    schemes: Sequence[str],
    layout: Layout,
    model: CostModel,
    work: Workload,
    options: Options,
) -> CutRanges:
    """The ranges of all tables; options : their candidates, whose placements they have."""
    columns = _kinds(tables, schemes, layout, model, work, options)
    table = columns[:, 0].astype(np.int64)
    code = columns[:, 1].astype(np.int64)
    variant = columns[:, 6].astype(np.int64)
    copied = code == CODES["data_parallel"]
    curved = np.array([spec.name in work.curves for spec in tables], bool)[table]
    curved &= ~copied & (columns[:, 2] < options.table_rows[table])
    cells = options.table_rows[table] * options.table_dim[table].astype(np.float64)
    sides = [(row, col) for row in (2, 3) for col in (4, 5)]
    sizes = [(columns[:, row], columns[:, col]) for row, col in sides]
    # a copy on each rank, or as many rectangles as hold all cells
    times = [
        np.where(copied, layout.ranks, cells / (rows * width))[:, None] for rows, width in sizes
    ]

    def priced(rows: Floats, width: Floats) -> tuple[Floats, Floats]:
        return _corner(tables, model, work, options, table, code, (rows, width), variant, curved)

    corners = [priced(*size) for size in sizes]
    seconds = np.stack([corner[0] * count for corner, count in zip(corners, times)]).min(axis=0)
    size = np.stack([corner[1] * count for corner, count in zip(corners, times)]).min(axis=0)
    peak = np.stack([corner[0] for corner in corners]).min(axis=0)
    # a low rectangle and a tall one in each column
    pair = columns[:, 7] > 0
    if pair.any():
        tall = np.where(pair, columns[:, 7], columns[:, 2])
        strips = [(options.table_dim[table] / columns[:, col])[:, None] for col in (4, 5)]
        both = [
            [low + high for low, high in zip(corner, priced(tall, columns[:, col]))]
            for corner, col in zip(corners[:2], (4, 5))
        ]
        two = [
            np.stack([each[i] * count for each, count in zip(both, strips)]).min(axis=0)
            for i in (0, 1)
        ]
        seconds = np.where(pair[:, None], two[0], seconds)
        size = np.where(pair[:, None], two[1], size)
    if model.synchronised:
        seconds, peak = seconds[:, options.active], peak[:, options.active]
    else:
        seconds, peak = seconds.sum(axis=1, keepdims=True), peak.sum(axis=1, keepdims=True)
    return CutRanges(
        start=np.searchsorted(table, np.arange(len(tables) + 1)),
        table=table,
        seconds=seconds,
        peak=peak,
        whole_peak=peak.sum(axis=1),
        bytes=size,
        # rows of few or many bytes may have such a part of the lookups
        peak_bytes=np.stack([corner[1] for corner in corners]).min(axis=0) * ~curved[:, None],
    )


def _kinds(
    tables: TableSpecs,
    schemes: Sequence[str],
    layout: Layout,
    model: CostModel,
    work: Workload,
    options: Options,
) -> Floats:
    """(table, scheme, least and most rows, least and most columns, variant, rows of a tall
    rectangle in each column, or 0) of all ranges, f64[n, 8].
    """
    ours = isinstance(model, StepSeconds)
    shares = _shares(options, layout)
    kinds: list[tuple[int, int, float, float, float, float, int, float]] = []
    for number, (spec, scheme) in enumerate(zip(tables, schemes)):
        candidates = slice(int(options.start[number]), int(options.start[number + 1]))
        boxes = list(_boxes(spec, scheme, float(shares[number]), _bends(model, spec, work)))
        coded = [(CODES["grid_shard"], *box, 0.0) for box in boxes]
        if not ours:
            per_node = min(layout.ranks_per_node, layout.ranks)
            # of curved tables lookups are no measure of rows
            low = spec.rows if spec.name in work.curves else np.ceil(spec.rows / per_node)
            coded = list(_of_schemes(boxes, float(spec.rows), float(low)))
        whole = (float(spec.rows), float(spec.rows), float(spec.dim), float(spec.dim))
        copies = CODES["data_parallel"] in options.scheme[candidates]
        for variant in np.unique(options.variant[candidates]).tolist():
            kinds += [(number, *box, variant, tall) for *box, tall in coded]
            if copies:
                kinds.append((number, CODES["data_parallel"], *whole, variant, 0.0))
    return np.array(kinds, np.float64).reshape(-1, 8)


def _of_schemes(
    boxes: Sequence[tuple[float, float, float, float]], rows: float, low: float
) -> Iterator[tuple[int, float, float, float, float, float]]:
    """(scheme, box, rows of a tall rectangle) of the public models; low : rows of the largest low
    rectangle.
    """
    half = rows / 2.0
    for least, most, left, right in boxes:
        for name in CUT:
            code = CODES[name]
            if not ROW_SPLIT[code]:
                if least == rows:
                    yield code, least, most, left, right, 0.0
                continue
            if most == rows:
                continue
            tallest = min(half, low) if name in NODE_SCHEMES else half
            if least <= tallest:
                yield code, least, min(most, tallest), left, right, 0.0
            if tallest < half and least <= low <= most:
                yield code, low, low, left, right, rows - low


def _shares(options: Options, layout: Layout) -> Floats:
    """What each table takes of a rank's share of the work, f64[tables]."""
    least = np.minimum.reduceat(options.seconds.sum(axis=1), options.start[:-1])
    return least * layout.ranks / max(float(least.sum()), 1e-300)


def _bends(model: CostModel, spec: TableSpec, work: Workload) -> tuple[list[float], list[float]]:
    """(rows, columns) at which a rate's curve bends."""
    if not isinstance(model, StepSeconds):
        return [], []
    machine = model.machine
    per_number, per_row = work.state_floats
    number = spec.lookup_bytes + 4.0 * per_number
    rows = [float(rates.rows) for rates in machine.embeddings]
    read = {size / spec.lookup_bytes for rates in machine.embeddings for size in rates.row_bytes}
    moved = {
        (size - 4.0 * per_row) / number for rates in machine.moves for size in rates.record_bytes
    }
    return rows, sorted(read | moved)


def _boxes(
    spec: TableSpec, choice: str, share: float, bends: tuple[list[float], list[float]]
) -> Iterator[tuple[float, float, float, float]]:
    """(least rows, most rows, least columns, most columns) of the ranges of a table."""
    if choice == "data_parallel":
        return
    schemes = allowed_schemes(choice)
    rows = [(float(spec.rows), float(spec.rows))]
    columns = [(float(spec.dim), float(spec.dim))]
    if any(name in ANY_ROWS for name in schemes) and spec.rows > 1:
        deep = int(np.log2(max(FINEST * share, 1.0)))
        halves = [spec.rows / 2.0**power for power in range(1, deep + 1)]
        rows += _steps(1, spec.rows - 1, [*bends[0], *halves])
    # the columns of a cut end at multiples of a step
    widest = (spec.dim - 1) // COLUMN_STEP * COLUMN_STEP
    if any(name in ANY_COLUMNS for name in schemes) and widest and not spec.unfit(cut=True):
        narrowest = min(COLUMN_STEP, spec.dim % COLUMN_STEP or COLUMN_STEP)
        columns += _steps(narrowest, widest, [*bends[1], *POWERS])
    for low, high in rows:
        for left, right in columns:
            yield low, high, left, right


def _steps(low: int, high: int, bends: Sequence[float]) -> list[tuple[float, float]]:
    """Ranges [a, b] of whole numbers that cover low to high and end on both sides of bends."""
    sides = {float(side) for bend in bends for side in (np.floor(bend), np.ceil(bend))}
    edges = sorted({float(low), float(high)} | {side for side in sides if low < side < high})
    return list(pairwise(edges)) or [(float(low), float(high))]


def _corner(
    tables: TableSpecs,
    model: CostModel,
    work: Workload,
    options: Options,
    table: Ints,
    code: Ints,
    size: tuple[Floats, Floats],
    variant: Ints,
    curved: Flags,
) -> tuple[Floats, Floats]:
    """(seconds f64[n, phases], bytes f64[n, memories]) of one rectangle each, of a size (rows,
    columns); seconds of curved ones bool[n] with any rows that have as many lookups.
    """
    rectangles = whole_rectangles(table, code, *size)
    rectangles = with_variants(rectangles, options.variants, variant)
    seconds = model.seconds(rectangles)
    bends = {row for spec in tables for row in _bends(model, spec, work)[0]}
    for height in (1.0, *sorted(bends), np.inf) if curved.any() else ():
        most = np.minimum(height, options.table_rows[table] - 1.0)
        rows = np.where(curved, most, rectangles.rows)
        # hot rows repeat, so few of the lookups' rows need be distinct
        density = rectangles.rows / rows
        few = rectangles._replace(rows=rows, density=density, distinct_density=np.zeros(rows.size))
        seconds = np.where(curved[:, None], np.minimum(seconds, model.seconds(few)), seconds)
    return seconds, bytes_of(tables, rectangles, options.variants, variant, work)
