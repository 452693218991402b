"""Which keys are looked up together, and where do they find their columns?

All keys of the batch; or, where repeated bags of some stand once (`repeated_bags.py`), those of one
group: its batch has samples of its own.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from neocpu.parallel.exchange.input_dist import Input, InputDist
from neocpu.parallel.exchange.output_dist import OutputDist
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.sharding.entries import ByClass, RankEntries
from neocpu.parallel.transport.buffers import Buffers
from neocpu.tables.embedding.lookups import EntryLayout, Lookups

LaidOut = tuple[EntryLayout, Lookups]


class KeySet:
    """The exchanges of some keys, and the layouts of their lookups.

    ranks : their entries of all ranks. alone : are lookups used where they are?

    Attributes: input, output, their distributions; layouts, of each class of entries in the blocks
    that travel, or in E where nothing does; copies, of replicated tables in E; buffers, of these
    keys alone.
    """

    def __init__(self, env: ShardingEnv, ranks: Sequence[RankEntries], alone: bool) -> None:
        self.ranks = ranks
        self.entries = ranks[env.comm.rank]
        self.alone = alone
        self.input = InputDist(env, ranks, alone)
        self.output = OutputDist(env, ranks)
        self.buffers = Buffers()
        travel = self.entries.travel
        # finished rows and words are two blocks, each with columns from 0 on
        columns = np.concatenate([self.entries.whole.column, self.entries.row_split.column])
        self.layouts = ByClass(
            *(EntryLayout(travel.shard[span], columns[span]) for span in self.entries.spans)
        )
        if alone:
            # one rank holds everything: rows are pooled right into E
            self.layouts = self.layouts._replace(whole=EntryLayout(travel.shard, travel.home))
        self.copies = EntryLayout(self.entries.copies.shard, self.entries.copies.home)

    def lookups(self, batch_input: Input) -> list[LaidOut]:
        """The lookups of a batch in this rank's shards, with their layouts."""
        travelling = zip(self.layouts, batch_input.classes)
        return _present([*travelling, (self.copies, batch_input.copies)])


def _present(pairs: Iterable[tuple[EntryLayout, Lookups | None]]) -> list[LaidOut]:
    return [(layout, lookups) for layout, lookups in pairs if lookups is not None]
