"""In which ways can each table be cut and kept? Its candidates, as arrays, with their cost.

A candidate is a way to cut a table (`cuts.py`) and a placement of its rows (`placements.py`).
Everything is priced once, piece by piece: a search only adds up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.sharding.schemes import RankLayout
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import (
    SCHEME_NAMES,
    CostModel,
    StepSeconds,
    slowest_seconds,
    slowness_of,
)
from neocpu.plan.cost.work import Flags, Floats, Workload, on_rows, whole_rectangles
from neocpu.plan.machines.machine import MEMORIES
from neocpu.plan.search.curve_cuts import along_curves
from neocpu.plan.search.cuts import RANK, Cuts, ways_to_cut
from neocpu.plan.tiers.limits import bytes_of, rank_limits, with_variants
from neocpu.plan.tiers.placements import Capacity, Variant
from neocpu.tables.specs.specs import TableSpecs

# Part of the fast memory that tables must leave free for caches to be left out.
ROOMY = 0.5
CODES = {name: code for code, name in enumerate(SCHEME_NAMES)}


@dataclass(frozen=True)
class SearchTask:
    """What a search is asked: where tables may be, and how long their step takes.

    schemes : of each table, or `auto` for any.
    """

    tables: TableSpecs
    schemes: Sequence[str]
    layout: Layout
    model: CostModel
    work: Workload
    capacity: Capacity

    @cached_property
    def limits(self) -> Floats:
        """What each rank may hold (`rank_limits`)."""
        return rank_limits(self.capacity, self.tables, self.work, self.layout.ranks)


class PricedCuts(NamedTuple):
    """Priced candidates in any order: columns [n], and columns of their pieces [pieces], named as
    in `Options`; "owner" is a piece's candidate, "phases" and "bytes" its price.
    """

    columns: dict[str, Ints]
    pieces: dict[str, Any]


class Options(NamedTuple):
    """Options of all tables, the candidates of a table side by side.

    table_rows, table_dim : i64[tables]. start : i64[tables + 1], first candidate of each table.

    Of candidates, [n] each: table, scheme, parts (column blocks), home. first_node, last_node :
    homes that a NODE candidate may have, the last one excluded. variant : its placement, an index
    into `variants`. piece : i64[n + 1], its first piece. rectangles : how many. seconds, bytes : of
    all of them. peak, peak_bytes : of the largest: seconds of all phases f64[n], bytes f64[n,
    memories].

    Of pieces: rows, width, copies (rectangles of this kind). first_row, first_column : of a
    rectangle that stands alone, -1 where it follows from the cut. rank : that a pinned one is on,
    -1 of all others. piece_phases : f64[pieces,
    phases] in s. active : phases that take any time. piece_seconds : what ranks wait for: these
    phases, or the sum f64[pieces, 1] of all where the model is not synchronised. piece_bytes :
    f64[pieces, memories], as of `bytes_of`. crowding, occasional : of the
    model, see `seconds.step_seconds`; occasional f64 by column of piece_seconds. slowness : of
    ranks     (`seconds.slowness_of`); pieces are priced for one of slowness 1.
    """

    table_rows: Ints
    table_dim: Ints
    start: Ints
    table: Ints
    scheme: Ints
    parts: Ints
    home: Ints
    first_node: Ints
    last_node: Ints
    variant: Ints
    variants: tuple[Variant, ...]
    piece: Ints
    rows: Floats
    width: Floats
    first_row: Ints
    first_column: Ints
    rank: Ints
    copies: Ints
    active: Ints
    crowding: float
    occasional: Floats
    piece_phases: Floats
    piece_seconds: Floats
    piece_bytes: Floats
    rectangles: Ints
    seconds: Floats
    bytes: Floats
    peak: Floats
    peak_bytes: Floats
    slowness: Floats | None = None

    def seconds_on(self, ranks: Ints, pieces: Ints) -> Floats:
        """Seconds of pieces on ranks, f64[..., phases] of i64[...] each, which broadcast."""
        seconds = self.piece_seconds[pieces]
        return seconds if self.slowness is None else seconds * self.slowness[ranks][..., None]

    def objective(self, seconds: Floats) -> float:
        """Seconds of a step beside what is fixed; f64[ranks, k] as columns of `piece_seconds`.

        The sum over the phases of the slowest ranks; of a model whose ranks wait once a step there
        is one phase.
        """
        slowest = slowest_seconds(seconds, self.crowding)
        return float((slowest + self.occasional * seconds.any(axis=0)).sum())

    def pieces(self, candidate: int) -> slice:
        """The pieces of a candidate."""
        return slice(int(self.piece[candidate]), int(self.piece[candidate + 1]))

    def is_pinned(self, candidate: int) -> bool:
        """Has each of its rectangles a rank that it stays on?"""
        return bool(self.rank[self.piece[candidate]] >= 0)

    def repeated(self, candidate: int) -> Ints:
        """The piece of each rectangle of a RANK candidate, or of the others from rank to rank."""
        pieces = np.arange(self.piece[candidate], self.piece[candidate + 1])
        return np.repeat(pieces, self.copies[pieces])

    def of_table(self, table: int) -> range:
        """The candidates of a table."""
        return range(int(self.start[table]), int(self.start[table + 1]))

    def placement(self, candidate: int) -> str:
        """Name of its placement, as `memory.placement` has it."""
        return self.variants[int(self.variant[candidate])].name


def options_of(task: SearchTask) -> Options:
    """All candidates of some tables."""
    candidates, variants = priced_candidates(task)
    return assembled(task, variants, candidates)


def priced_candidates(task: SearchTask) -> tuple[PricedCuts, tuple[Variant, ...]]:
    """(the candidates of `options_of`, the variants that they number)."""
    tables, schemes, layout, work = task.tables, task.schemes, task.layout, task.work
    variants, allowed = task.capacity.variants([table.name for table in tables])
    shares = _shares(task, variants, allowed)
    cuts: Sequence[Cuts] = ways_to_cut(tables, schemes, layout, shares, work)
    cuts = along_curves(cuts, tables, schemes, rank_layout(layout), shares, work)
    if layout.nodes > 1 and not isinstance(task.model, StepSeconds):
        # public models take a node's part of the rows for one on that node
        part = np.array([-(-table.rows // layout.ranks_per_node) for table in tables], np.int64)
        cuts = [_tall(cut, part) if cut.home == RANK else cut for cut in cuts]
    allowed = _worth_trying(task, variants, allowed)
    return candidates_of(task, cuts, variants, allowed), variants


def _tall(cuts: Cuts, part: Ints) -> Cuts:
    """Those without grids of blocks that are all of `part` rows of their table at most."""
    if cuts.scheme != "grid_shard":
        return cuts
    return cuts.select(cuts.rows.max(axis=1, initial=0) > part[cuts.table])


def rank_layout(layout: Layout) -> RankLayout:
    """The layout as schemes know it."""
    return RankLayout(layout.ranks, min(layout.ranks_per_node, layout.ranks))


def _shares(task: SearchTask, variants: Sequence[Variant], allowed: Flags) -> Floats:
    """What each table, whole on one rank, takes of a rank's share of the work or of the memory that
    it may fill most, f64[tables].
    """
    table, variant = np.nonzero(allowed)
    whole = whole_rectangles(
        table=table,
        scheme=np.full(table.size, CODES["table_wise"]),
        rows=np.array([spec.rows for spec in task.tables], np.float64)[table],
        width=np.array([spec.dim for spec in task.tables], np.float64)[table],
    )
    whole = with_variants(whole, variants, variant)
    limits = task.limits.max(axis=0)
    filled = (bytes_of(task.tables, whole, variants, variant, task.work) / limits).max(axis=1)
    seconds = task.model.seconds(whole).sum(axis=1)
    heads = np.searchsorted(table, np.arange(len(task.tables)))
    least = np.minimum.reduceat(seconds, heads)
    of_work = least * task.layout.ranks / max(float(least.sum()), 1e-300)
    return np.maximum(of_work, np.maximum.reduceat(filled, heads))


def _worth_trying(task: SearchTask, variants: Sequence[Variant], allowed: Flags) -> Flags:
    """The variants of `allowed` bool[tables, variants] that may be of use.

    Where all tables together leave `ROOMY` of the fast memory free, those that leave as much of a
    rank's are whole in it: nothing is faster.
    """
    if len(variants) == 1:
        return allowed
    memory = MEMORIES.index("hbm" if "hbm" in task.capacity.memories else "ddr")
    room = task.capacity.limits[memory] * (1.0 - ROOMY)
    sizes = np.array(
        [table.rows * table.row_bytes(table.dim, task.work.state_floats) for table in task.tables],
        float,
    )
    if sizes.sum() > room * task.layout.ranks:
        return allowed
    whole = np.array([variant.share == 1.0 for variant in variants])
    small = (sizes <= room) & (allowed & whole).any(axis=1)
    return allowed & (whole | ~small[:, None])


def candidates_of(
    task: SearchTask, cuts: Sequence[Cuts], variants: tuple[Variant, ...], allowed: Flags
) -> PricedCuts:
    """Cuts with the placements that they may have, and their prices: allowed bool[tables,
    variants].
    """
    columns, pieces = _side_by_side(cuts, allowed)
    owner = pieces["owner"]
    variant = columns["variant"][owner]
    rectangles = whole_rectangles(
        table=columns["table"][owner],
        scheme=columns["scheme"][owner],
        rows=pieces["rows"].astype(np.float64),
        width=pieces["width"].astype(np.float64),
    )
    rectangles = on_rows(rectangles, task.tables, task.work, pieces["first_row"])
    rectangles = with_variants(rectangles, variants, variant)
    pieces["phases"] = task.model.seconds(rectangles)
    pieces["bytes"] = bytes_of(task.tables, rectangles, variants, variant, task.work)
    return PricedCuts(columns, pieces)


def joined(first: PricedCuts, second: PricedCuts) -> PricedCuts:
    """The candidates of both."""
    moved = second.pieces | {"owner": second.pieces["owner"] + first.columns["table"].size}
    return PricedCuts(
        {k: np.concatenate([first.columns[k], second.columns[k]]) for k in first.columns},
        {k: np.concatenate([first.pieces[k], moved[k]]) for k in first.pieces},
    )


def assembled(task: SearchTask, variants: tuple[Variant, ...], candidates: PricedCuts) -> Options:
    """Options from priced candidates, those of a table side by side in their order."""
    tables, model = task.tables, task.model
    columns, pieces = _by_table(candidates)
    phases = pieces["phases"]
    # phases in which no candidate takes time are left out: every step of the search sums these
    # columns
    active = np.flatnonzero(phases.any(axis=0))
    seconds = phases.sum(axis=1, keepdims=True)
    crowding = 1.0
    occasional = np.zeros(1)
    if model.synchronised and active.size:
        seconds = np.ascontiguousarray(phases[:, active])
        # public models have neither shared cores nor calls that only some plans make
        crowding = getattr(model, "crowding", 1.0)
        occasional = getattr(model, "occasional_seconds", np.zeros(len(model.phases)))[active]
    size_bytes = pieces["bytes"]
    first_piece = np.searchsorted(pieces["owner"], np.arange(columns["table"].size + 1))
    heads = first_piece[:-1]
    copies = pieces["copies"]
    return Options(
        table_rows=np.array([table.rows for table in tables], np.int64),
        table_dim=np.array([table.dim for table in tables], np.int64),
        start=np.searchsorted(columns["table"], np.arange(len(tables) + 1)),
        variants=variants,
        piece=first_piece,
        rows=pieces["rows"].astype(np.float64),
        width=pieces["width"].astype(np.float64),
        first_row=pieces["first_row"],
        first_column=pieces["first_column"],
        rank=pieces["rank"],
        copies=copies,
        active=active,
        crowding=crowding,
        occasional=occasional,
        piece_phases=phases,
        piece_seconds=seconds,
        piece_bytes=size_bytes,
        rectangles=np.add.reduceat(copies, heads),
        seconds=np.add.reduceat(seconds * copies[:, None], heads),
        bytes=np.add.reduceat(size_bytes * copies[:, None], heads),
        peak=np.maximum.reduceat(seconds.sum(axis=1), heads),
        peak_bytes=np.maximum.reduceat(size_bytes, heads),
        slowness=slowness_of(model),
        **columns,
    )


def _side_by_side(cuts: Sequence[Cuts], allowed: Flags) -> tuple[dict[str, Ints], dict[str, Any]]:
    """(columns of candidates, columns of their pieces), way by way.

    The pieces' column "owner" has the numbers of their candidates.
    """
    columns: dict[str, list[Ints]] = {}
    piece_columns: dict[str, list[Ints]] = {}
    candidates = 0
    for cut in cuts:
        member, variant = np.nonzero(allowed[cut.table])
        size = member.size
        number = candidates + np.arange(size)
        candidates += size
        for name, values in (
            ("table", cut.table[member]),
            ("scheme", np.full(size, CODES[cut.scheme])),
            ("parts", cut.parts[member]),
            ("home", np.full(size, cut.home)),
            ("first_node", np.full(size, cut.nodes[0])),
            ("last_node", np.full(size, cut.nodes[1])),
            ("variant", variant),
        ):
            columns.setdefault(name, []).append(values)
        used, kind = np.nonzero(cut.count[member] > 0)
        nowhere = np.full(used.size, -1)
        first = [nowhere, nowhere] if cut.first is None else cut.first[member[used], kind].T
        for name, values in (
            ("owner", number[used]),
            ("rows", cut.rows[member[used], kind]),
            ("width", cut.width[member[used], kind]),
            ("first_row", first[0]),
            ("first_column", first[1]),
            ("rank", nowhere),
            ("copies", cut.count[member[used], kind]),
        ):
            piece_columns.setdefault(name, []).append(values)
    return (
        {name: np.concatenate(arrays) for name, arrays in columns.items()},
        {name: np.concatenate(arrays) for name, arrays in piece_columns.items()},
    )


def _by_table(candidates: PricedCuts) -> tuple[dict[str, Ints], dict[str, Any]]:
    """The columns in the order of tables; a stable sort keeps the order within a table."""
    by_table = np.argsort(candidates.columns["table"], kind="stable")
    new_number = np.empty(by_table.size, np.int64)
    new_number[by_table] = np.arange(by_table.size)
    owner = new_number[candidates.pieces["owner"]]
    by_owner = np.argsort(owner, kind="stable")
    pieces = candidates.pieces | {"owner": owner}
    return (
        {name: values[by_table] for name, values in candidates.columns.items()},
        {name: values[by_owner] for name, values in pieces.items()},
    )
