"""How do exact words of row-split tables come home, and gradients of their columns go back? By a
route, in groups of columns that the same row shards share; words of a bag are rounded at its home.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Floats, Ints
from neocpu.kernels.numbers.rounding import FurtherWords, WordParts, combine_words
from neocpu.parallel.exchange.routes import ROUTES, WordBlocks
from neocpu.parallel.exchange.shapes import Shape
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.exchange.shipment import (
    GroupLayout,
    Groups,
    Shipment,
    Spill,
    SpilledWords,
    Words,
    ship_further,
)
from neocpu.parallel.sharding.entries import RankEntries, RoutedEntries
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.started import Steps
from neocpu.tables.embedding.lookups import ExtraWords


class ArrivedWords(NamedTuple):
    """What came home: blocks of words, and further words."""

    blocks: WordBlocks
    further: FurtherWords


class RoutedWords:
    """The row-split half of an output distribution, and its transpose.

    ranks : entries of all ranks. buffers : of the distribution.

    Attributes: width, home i64[G], of each group its columns, and the first of them in E.
    """

    def __init__(self, env: ShardingEnv, ranks: Sequence[RankEntries], buffers: Buffers) -> None:
        self._comm = env.comm
        self._per_node = env.plan.ranks_per_node
        self._route = ROUTES[env.route]
        self._wire = env.wire_set.backward
        self._buffers = buffers
        self.width, self.home, groups = _groups([entries.row_split for entries in ranks])
        self._my_groups = groups[env.comm.rank]
        self._held = tuple(tuple(g for entry in rank for g in entry) for rank in groups)
        self._widths = tuple(self.width.tolist())

    def ship(self, shape: Shape, words: Words, spill: Spill) -> Steps[ArrivedWords]:
        """Send first words f64[B, C'] of my entries, and the further ones, to their homes."""
        job = Shipment(self._layout(shape), words, spill, self._buffers)
        blocks = yield from self._route.words(job)
        return ArrivedWords(blocks, (yield from ship_further(job)))

    def spill(self, shape: Shape, extras: ExtraWords, first_entry: int, spill: Spill) -> None:
        """Address the further words of bags (entry, sample of the batch) of some of my entries, the
        first of which is `first_entry` among all of them.
        """
        if extras.bag.size == 0:
            return
        entry, sample = np.divmod(extras.bag, shape.batch)
        rank = np.searchsorted(shape.cuts, sample, side="right") - 1
        # bags with further words are too rare for a kernel
        for m, (k, d, s) in enumerate(
            zip(entry.tolist(), np.asarray(rank).tolist(), sample.tolist())
        ):
            at = int(extras.start[m])
            for group in self._my_groups[first_entry + k]:
                words = extras.words[at : at + self._widths[group]]
                spill.append(SpilledWords(d, group, s - int(shape.cuts[d]), words))
                at += self._widths[group]

    def combine(self, shape: Shape, arrived: ArrivedWords, out: Floats) -> None:
        """Add the words of each bag and write the sum, rounded once, into out f32[b, columns]."""
        words, blocks = arrived.blocks
        if shape.sources is None:  # a route brings the same groups in the same order every time
            shape.sources = shape.combine_sources(blocks, self._widths)
        word_parts = WordParts(words, *shape.sources, self.width, self.home)
        combine_words(word_parts, arrived.further, out)

    def gradients(self, shape: Shape, gradient: Floats) -> Steps[Floats]:
        """Gradients f32[B, C'] of my entries, which routes move and do not change."""
        layout = self._layout(shape)
        if self._wire is None:
            return (yield from self._route.gradients(layout, gradient, self._buffers))
        coded = layout.on(self._wire)
        codes = yield from self._route.gradients(coded, gradient, self._buffers)
        groups = layout.held[self._comm.rank]
        block_shape = (shape.batch, layout.columns(groups))
        numbers: Floats = self._buffers.matrix("part numbers", *block_shape, np.float32)
        coded.decode(codes, numbers, groups)
        return numbers

    def _layout(self, shape: Shape) -> GroupLayout:
        cuts = tuple(shape.cuts.tolist())
        homes = tuple(self.home.tolist())
        return GroupLayout(self._comm, self._per_node, self._held, self._widths, homes, cuts)


def _groups(row_split: list[RoutedEntries]) -> tuple[Ints, Ints, list[list[Groups]]]:
    """Columns that the same row shards share, their widths and the first of them in E, i64[G] each;
    and the groups of all ranks' entries.

    Bands of rows may be cut at other columns than their neighbours, so columns are divided at every
    edge: an entry holds one group or several side by side.
    """
    ranges = {
        span
        for entries in row_split
        for span in zip(entries.home.tolist(), (entries.home + entries.width).tolist())
    }
    edges = sorted({edge for span in ranges for edge in span})
    spans = [(lo, hi) for lo, hi in pairwise(edges) if any(a <= lo and hi <= b for a, b in ranges)]
    homes, ends = np.array(spans, np.int64).reshape(-1, 2).T
    numbers = np.searchsorted(homes, np.array(edges, np.int64))
    number = dict(zip(edges, numbers.tolist()))
    of_range = {(lo, hi): tuple(range(number[lo], number[hi])) for lo, hi in ranges}
    of_ranks = [
        [
            of_range[lo, lo + width]
            for lo, width in zip(entries.home.tolist(), entries.width.tolist())
        ]
        for entries in row_split
    ]
    return np.ascontiguousarray(ends - homes), np.ascontiguousarray(homes), of_ranks
