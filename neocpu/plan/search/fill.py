"""How do tables fill the ranks when rows may be cut anywhere? Drafts where memory is short.

Equal blocks leave gaps that no other block fits. Here each block of columns, the largest first,
takes the emptiest ranks whole and gives its last rows to the rank where they fit best. A rectangle
ends a block or fills a rank, so there are at most as many as blocks and ranks together, and what
fits all ranks together fits. A rank is full when its memory is, or, as long as that can be had,
when it works for as long as a target.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.sharding.plan import allowed_schemes
from neocpu.parallel.sharding.schemes import COLUMN_STEP, Shard, column_blocks
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.work import Flags, Floats, Rectangles, whole_rectangles
from neocpu.plan.search.cuts import NODE, RANK
from neocpu.plan.search.drafts import PlanDraft, Spread, best_node, spread
from neocpu.plan.search.free_cuts import FreeCut, scheme_of
from neocpu.plan.search.options import CODES, Options, SearchTask
from neocpu.plan.search.partition import TOLERANCE, fits
from neocpu.plan.tiers.limits import TOGETHER, bytes_of, with_variants

# Targets of a rank's seconds, as multiples of what all tables take on all ranks.
TARGETS = (np.inf, 2.0, 1.4, 1.1)
# Part of the rows for which a rank has memory that it must have seconds for.
LEAST = 0.25
# Most tables times ranks for which every number of column blocks is tried with every target.
MOST_THOROUGH = 1e5
# Schemes of the rectangles of a filling.
FREE = {"table_wise", "row_wise", "column_wise", "grid_shard"}
# A block is cut by columns if it is more than this part of a rank's memory.
CUT_ABOVE = 0.25


def cut_anyhow(schemes: Sequence[str]) -> Flags:
    """Tables that may be cut into any rectangles, bool[tables]."""
    return np.array([set(allowed_schemes(choice)) >= FREE for choice in schemes], bool)


class Filling(NamedTuple):
    """A draft in the making.

    choice, node : i64[tables], choices as numbers among the candidates of their table. homes :
    ranks of the rectangles of tables whose candidate stays, where any rank will do. cuts :
    rectangles of the others, by table.
    """

    choice: Ints
    node: Ints
    homes: Mapping[int, Ints]
    cuts: Mapping[int, FreeCut]


class ColumnBlock(NamedTuple):
    """A table's columns [left, right): bytes and seconds of each rectangle of it, and of each row;
    bytes are f64[memories with a limit].
    """

    table: int
    cols: tuple[int, int]
    once_bytes: Floats
    row_bytes: Floats
    once: float
    row_seconds: float


class Filler:
    """Fills the ranks with tables. options : their candidates."""

    def __init__(self, task: SearchTask, options: Options) -> None:
        self.tables = task.tables
        self.free = cut_anyhow(task.schemes)
        self.layout = task.layout
        self.model = task.model
        self.work = task.work
        self.limits = limits = task.limits
        self.options = options
        self.limited = np.isfinite(limits).any(axis=0)
        self.pinned = np.flatnonzero(self.limited) > TOGETHER
        # of unequal ranks in the mean
        self.mean = np.maximum(limits[:, self.limited].mean(axis=0), 1.0)

    def fillings(self, choice: Ints) -> Iterator[Filling]:
        """Drafts that fit, tables placed in the memories of a choice; its copies stay copies."""
        most = max((-(-table.dim // COLUMN_STEP) for table in self.tables), default=1)
        parts = [1 << power for power in range(most.bit_length())]
        targets: Sequence[float] = TARGETS
        if len(self.tables) * self.layout.ranks > MOST_THOROUGH:
            parts = parts[:: max(1, len(parts) - 1)]
            targets = TARGETS[::2]
        for across in parts:
            large_first = self._blocks(choice, across)
            # rows in one memory fill what those in two leave of it, or the other way round
            caches_first = sorted(large_first, key=lambda block: -(block.row_bytes > 0).sum())
            same = all(a is b for a, b in zip(large_first, caches_first))
            for blocks in (large_first,) if same else (caches_first, large_first):
                for target in targets:
                    filling = self._filled(choice, blocks, target)
                    if filling is not None:
                        yield filling
                    elif np.isinf(target):
                        # a target only leaves less room; narrower blocks have smaller buffers
                        break

    def stays(self, choice: Ints) -> Flags:
        """Tables that stay as their candidates have them, bool[tables]."""
        copied: Flags = self.options.scheme[choice] == CODES["data_parallel"]
        return copied | ~self.free

    def _blocks(self, choice: Ints, across: int) -> list[ColumnBlock]:
        """Blocks of columns of the tables that may be cut, the largest first."""
        options = self.options
        movable = np.flatnonzero(~self.stays(choice))
        fill = options.bytes[choice][:, self.limited] / self.mean
        large = fill.max(axis=1, initial=0.0) > CUT_ABOVE
        entries: list[tuple[int, tuple[int, int]]] = []
        for table in movable.tolist():
            spec = self.tables[table]
            cuttable = large[table] and not spec.unfit(cut=True)
            block = self.work.wires.column_block
            parts = min(across, max(spec.dim // block, 1)) if cuttable else 1
            cols = list(column_blocks(spec.dim, parts))
            # a block of columns that share a scale stays whole
            if any(left % block for left, _ in cols):
                cols = [(0, spec.dim)]
            entries += [(table, edges) for edges in cols]
        numbers = np.array([table for table, _ in entries], np.int64)
        rows = np.array([self.tables[table].rows for table in numbers.tolist()], np.float64)
        width = np.array([right - left for _, (left, right) in entries], np.float64)
        # two heights tell what a rectangle takes whatever its rows, and what each row takes
        heights = np.maximum(rows / 2, 1.0), np.maximum(rows / 4, 0.5)
        seconds = [self._seconds(choice, numbers, height, width) for height in heights]
        apart = heights[0] - heights[1]
        slope = np.maximum(seconds[0] - seconds[1], 0.0) / apart
        once = np.maximum(seconds[0] - slope * heights[0], 0.0)
        sizes = [self._bytes(choice, numbers, height, width)[:, self.limited] for height in heights]
        more = np.maximum(sizes[0] - sizes[1], 0.0) / apart[:, None]
        least = np.maximum(sizes[0] - more * heights[0][:, None], 0.0)
        size = least + more * rows[:, None]
        weight = (size / self.mean).max(axis=1, initial=0.0)
        order = np.lexsort((-slope * rows, -weight))
        return [
            ColumnBlock(
                table=entries[i][0],
                cols=entries[i][1],
                once_bytes=least[i],
                row_bytes=more[i],
                once=float(once[i]),
                row_seconds=float(slope[i]),
            )
            for i in order.tolist()
        ]

    def _rectangles(self, choice: Ints, table: Ints, rows: Floats, width: Floats) -> Rectangles:
        scheme = np.where(
            width < self.options.table_dim[table], CODES["grid_shard"], CODES["row_wise"]
        )
        rectangles = whole_rectangles(table, scheme, rows, width)
        variant = self.options.variant[choice[table]]
        return with_variants(rectangles, self.options.variants, variant)

    def _seconds(self, choice: Ints, table: Ints, rows: Floats, width: Floats) -> Floats:
        """Seconds of all phases, f64[n]."""
        return self.model.seconds(self._rectangles(choice, table, rows, width)).sum(axis=1)

    def _bytes(self, choice: Ints, table: Ints, rows: Floats, width: Floats) -> Floats:
        """Bytes by memory, f64[n, memories]."""
        variant = self.options.variant[choice[table]]
        rectangles = self._rectangles(choice, table, rows, width)
        return bytes_of(self.tables, rectangles, self.options.variants, variant, self.work)

    def _filled(self, choice: Ints, blocks: Sequence[ColumnBlock], target: float) -> Filling | None:
        """The ranks filled block by block; None where something does not fit."""
        node = np.zeros(choice.size, np.int64)
        homes: dict[int, Ints] = {}
        stacked = self._stacked(choice, node, homes)
        if stacked is None:
            return None
        load = stacked[0].sum(axis=1)
        room = (self.limits - stacked[1])[:, self.limited]
        rows = [self.tables[block.table].rows for block in blocks]
        work = sum(self._work(block, height) for block, height in zip(blocks, rows))
        most = target * (work + float(load.sum())) / self.layout.ranks
        slowness = self.options.slowness
        slowness = np.ones(self.layout.ranks) if slowness is None else slowness
        shards: dict[int, list[Shard]] = {}
        kept = self._kept_free(blocks)
        for block, height, free in zip(blocks, rows, kept):
            first = 0
            while first < height:
                left = (most - load) / slowness
                count = _rows_for(block, height - first, room - free, left)
                if not count.any():
                    count = _rows_for(block, height - first, room, left)
                rank = _best_rank(count, height - first, load)
                taken = int(min(count[rank], height - first))
                if taken < 1:
                    return None
                edges = (first, first + taken)
                shards.setdefault(block.table, []).append(
                    Shard(block.table, edges, block.cols, rank)
                )
                room[rank] -= block.once_bytes + taken * block.row_bytes
                load[rank] += (block.once + taken * block.row_seconds) * slowness[rank]
                first += taken
        return self._filling(choice, node, homes, shards)

    def _kept_free(self, blocks: Sequence[ColumnBlock]) -> list[Floats]:
        """Bytes of a rank that each block leaves to what the blocks behind it take besides rows,
        f64[memories with a limit] each.
        """
        later = np.zeros(int(self.limited.sum()))
        largest = later
        kept = []
        for block in reversed(blocks):
            # twice the mean, since last rows gather on few ranks
            kept.append(2.0 * (later / self.layout.ranks + largest))
            size = block.once_bytes + self.tables[block.table].rows * block.row_bytes
            ranks = float((size / self.mean).max())
            # a pin takes no room of other tables
            buffers = np.where(self.pinned, 0.0, block.once_bytes)
            later = later + buffers * (1.0 + ranks)
            largest = np.maximum(largest, buffers)
        return kept[::-1]

    def _work(self, block: ColumnBlock, rows: int) -> float:
        """Seconds of a block that fills ranks whole, and has one rectangle more at its end."""
        size = block.once_bytes + rows * block.row_bytes
        ranks = float((size / self.mean).max())
        return block.once * (1.0 + ranks) + block.row_seconds * rows

    def _filling(
        self, choice: Ints, node: Ints, homes: dict[int, Ints], shards: dict[int, list[Shard]]
    ) -> Filling:
        """The filling with whole tables as their own candidates, all others as cuts."""
        options = self.options
        chosen = choice.copy()
        cuts = {}
        for table, rectangles in shards.items():
            variant = int(options.variant[choice[table]])
            if len(rectangles) > 1:
                scheme = scheme_of(self.tables[table], rectangles)
                cuts[table] = FreeCut(scheme, tuple(sorted(rectangles)), variant)
                continue
            chosen[table] = next(
                candidate
                for candidate in options.of_table(table)
                if options.scheme[candidate] == CODES["table_wise"]
                and options.variant[candidate] == variant
            )
            homes[table] = np.array([rectangles[0].rank], np.int64)
        return Filling(chosen - options.start[:-1], node, homes, cuts)

    def _stacked(
        self, choice: Ints, node: Ints, homes: dict[int, Ints]
    ) -> tuple[Floats, Floats] | None:
        """(seconds f64[ranks, phases], bytes f64[ranks, memories]) of tables that stay as their
        candidates have them, None where they do not fit; where they go is noted.
        """
        options = self.options
        seconds = np.zeros((self.layout.ranks, options.piece_seconds.shape[1]))
        size = np.zeros((self.layout.ranks, options.piece_bytes.shape[1]))
        for table in np.flatnonzero(self.stays(choice)).tolist():
            candidate = int(choice[table])
            if options.home[candidate] == RANK:
                rectangles = self._on_emptiest(candidate, size)
                homes[table] = rectangles.ranks
            else:
                if options.home[candidate] == NODE:
                    home = best_node(options, self.layout, self.limits, candidate, seconds, size)
                    if home is None:
                        return None
                    node[table] = home
                rectangles = spread(options, candidate, int(node[table]), self.layout)
            np.add.at(seconds, rectangles.ranks, options.seconds_on(*rectangles))
            np.add.at(size, rectangles.ranks, options.piece_bytes[rectangles.pieces])
        return (seconds, size) if fits(size, self.limits) else None

    def _on_emptiest(self, candidate: int, size: Floats) -> Spread:
        """A candidate's rectangles, one after the other on the rank with most room."""
        pieces = self.options.repeated(candidate)
        limits = self.limits[:, self.limited]
        taken = size[:, self.limited] / limits
        ranks = np.zeros(pieces.size, np.int64)
        for index, piece in enumerate(pieces.tolist()):
            filled = taken + self.options.piece_bytes[piece, self.limited] / limits
            ranks[index] = filled.max(axis=1).argmin()
            taken[ranks[index]] = filled[ranks[index]]
        return Spread(ranks, pieces)


def _rows_for(block: ColumnBlock, rows: int, room: Floats, seconds: Floats) -> Floats:
    """Rows of a block that each rank can take, at most `rows`, f64[ranks].

    room : f64[ranks, memories], bytes. seconds : f64[ranks], left of the target; ranks without any
    take rows only where no rank has some.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        left = room - block.once_bytes
        by_memory = np.where(block.row_bytes > 0, left / block.row_bytes, np.inf)
        by_memory = np.where(left < 0, 0.0, by_memory)
    # rounding must not lose a row that fits exactly
    most = np.floor(by_memory.min(axis=1) * (1.0 + TOLERANCE))
    most = np.clip(most, 0.0, rows)
    in_time = np.floor((seconds - block.once) / max(block.row_seconds, 1e-300))
    in_time = np.clip(in_time, 0.0, most)
    # what is left of a rank's seconds is no use for few rows: each rectangle has its own output
    within: Floats = np.where(in_time >= LEAST * most, in_time, 0.0)
    return within if within.any() else most


def _best_rank(count: Floats, rows: int, load: Floats) -> int:
    """The rank that takes most rows; of those that take all of them the one that has most to do."""
    whole = count >= rows
    if not whole.any():
        return int(count.argmax())
    return int(np.where(whole, load, -np.inf).argmax())


def draft_of_filling(
    filling: Filling,
    candidates: Mapping[int, int],
    options: Options,
    layout: Layout,
    limits: Floats,
) -> PlanDraft:
    """The draft of a filling; candidates : by table, those that its cuts are in the options."""
    choice = options.start[:-1] + filling.choice
    items: list[tuple[int, Ints, Ints]] = []
    for table, cut in filling.cuts.items():
        choice[table] = candidates[table]
        ranks = np.array([shard.rank for shard in cut.shards], np.int64)
        items.append((table, options.repeated(candidates[table]), ranks))
    for table, ranks in filling.homes.items():
        items.append((table, options.repeated(int(choice[table])), ranks))
    return PlanDraft.of_items(options, layout, limits, choice, filling.node, items)
