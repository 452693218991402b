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
from neocpu.plan.cost.seconds import CostModel, StepSeconds
from neocpu.plan.cost.work import Flags, Floats, Workload, whole_rectangles
from neocpu.plan.search.cuts import FINEST
from neocpu.plan.search.options import CODES, Options
from neocpu.plan.tiers.limits import bytes_of, with_variants
from neocpu.tables.specs.specs import TableSpec

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
    tables: Sequence[TableSpec],
    schemes: Sequence[str],
    layout: Layout,
    model: CostModel,
    work: Workload,
    options: Options,
) -> CutRanges:
    """The ranges of all tables; options : their candidates, whose placements they have."""
    columns = _kinds(tables, schemes, _shares(options, layout), model, work, options)
    table = columns[:, 0].astype(np.int64)
    code = columns[:, 1].astype(np.int64)
    variant = columns[:, 6].astype(np.int64)
    copied = code == CODES["data_parallel"]
    curved = np.array([spec.name in work.curves for spec in tables], bool)[table]
    curved &= ~copied & (columns[:, 2] < options.table_rows[table])
    corners = [
        _corner(
            tables,
            model,
            work,
            options,
            table,
            code,
            (columns[:, row], columns[:, col]),
            variant,
            curved,
        )
        for row in (2, 3)
        for col in (4, 5)
    ]
    cells = options.table_rows[table] * options.table_dim[table].astype(np.float64)
    # a copy on each rank, or as many rectangles as hold all cells
    times = [
        np.where(copied, layout.ranks, cells / (columns[:, row] * columns[:, col]))[:, None]
        for row in (2, 3)
        for col in (4, 5)
    ]
    seconds = np.stack([corner[0] * count for corner, count in zip(corners, times)]).min(axis=0)
    peak = np.stack([corner[0] for corner in corners]).min(axis=0)
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
        bytes=np.stack([corner[1] * count for corner, count in zip(corners, times)]).min(axis=0),
        # rows of few or many bytes may have such a part of the lookups
        peak_bytes=np.stack([corner[1] for corner in corners]).min(axis=0) * ~curved[:, None],
    )


def _kinds(
    tables: Sequence[TableSpec],
    schemes: Sequence[str],
    shares: Floats,
    model: CostModel,
    work: Workload,
    options: Options,
) -> Floats:
    """(table, scheme, least and most rows, least and most columns, variant) of all ranges,
    f64[n, 7].
    """
    ours = isinstance(model, StepSeconds)
    codes = [CODES["grid_shard"]] if ours else [CODES[name] for name in CUT]
    kinds: list[tuple[int, int, float, float, float, float, int]] = []
    for number, (spec, scheme) in enumerate(zip(tables, schemes)):
        candidates = slice(int(options.start[number]), int(options.start[number + 1]))
        boxes = list(_boxes(spec, scheme, float(shares[number]), _bends(model, spec, work)))
        whole = (float(spec.rows), float(spec.rows), float(spec.dim), float(spec.dim))
        copies = CODES["data_parallel"] in options.scheme[candidates]
        for variant in np.unique(options.variant[candidates]).tolist():
            kinds += [(number, name, *box, variant) for box in boxes for name in codes]
            if copies:
                kinds.append((number, CODES["data_parallel"], *whole, variant))
    return np.array(kinds, np.float64).reshape(-1, 7)


def _shares(options: Options, layout: Layout) -> Floats:
    """What each table takes of a rank's share of the work, f64[tables]."""
    least = np.minimum.reduceat(options.seconds.sum(axis=1), options.start[:-1])
    shares: Floats = least * layout.ranks / max(float(least.sum()), 1e-300)
    return shares


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
    """CutRanges [a, b] of whole numbers that cover low to high and end on both sides of bends."""
    sides = {float(side) for bend in bends for side in (np.floor(bend), np.ceil(bend))}
    edges = sorted({float(low), float(high)} | {side for side in sides if low < side < high})
    return list(pairwise(edges)) or [(float(low), float(high))]


def _corner(
    tables: Sequence[TableSpec],
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
