"""Which keys are looked up together, and where do they find their columns?

All keys of the batch; or, where repeated bags of some stand once (`repeated_bags.py`), those of one
group: its batch has samples of its own.
"""

from collections.abc import Sequence
from itertools import pairwise

from neocpu.parallel.exchange.input_dist import Input, InputDist
from neocpu.parallel.exchange.output_dist import OutputDist
from neocpu.parallel.sharding.entries import Ints, RankEntries, RoutedEntries
from neocpu.parallel.transport.buffers import Buffers
from neocpu.tables.embedding.tbe import EntryLayout, Lookups

Pairs = list[tuple[EntryLayout, Lookups]]


class KeyPart:
    """The exchanges of some keys, and the layouts of their lookups.

    ranks : their entries of all ranks; me : this rank. input, output : their distributions.
    alone : are lookups used where they are?

    Attributes: classes, of the four classes of entries in the blocks that travel; home, of
    travelling entries in E; copies, of replicated tables in E; buffers, of this part alone.
    """

    def __init__(
        self,
        ranks: Sequence[RankEntries],
        me: int,
        input_dist: InputDist,
        output_dist: OutputDist,
        alone: bool,
    ) -> None:
        self.entries = ranks[me]
        self.input = input_dist
        self.output = output_dist
        self.alone = alone
        self.buffers = Buffers()
        entries = self.entries
        blocks = [
            (entries.whole, 0),
            (entries.whole, 0),
            (entries.parts, entries.cuts[2]),
            (entries.parts, entries.cuts[2]),
        ]
        spans = list(pairwise(entries.cuts))
        self.classes = [
            _layout(block, lo - at, hi - at, block.column)
            for (block, at), (lo, hi) in zip(blocks, spans)
        ]
        self.home = _layout(entries.travel, 0, len(entries.travel), entries.travel.home)
        self.copies = _layout(entries.copies, 0, len(entries.copies), entries.copies.home)

    def lookups(self, batch_input: Input) -> Pairs:
        """The lookups of a batch in this rank's shards, with their layouts."""
        if self.alone:
            pairs = [(self.home, batch_input.classes[0])]
        else:
            pairs = [*zip(self.classes, batch_input.classes), (self.copies, batch_input.copies)]
        return [(layout, lookups) for layout, lookups in pairs if lookups is not None]


def _layout(entries: RoutedEntries, lo: int, hi: int, column: Ints) -> EntryLayout:
    return EntryLayout(entries.shard[lo:hi], column[lo:hi])
