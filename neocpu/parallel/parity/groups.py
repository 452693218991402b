"""Which ranks share a parity, and who holds the parity of which rows?

A group of g ranks cuts the rows of each into g - 1 chunks. Chunk j of member i has its parity on
member (i + 1 + j) mod g, so every member holds the parity of one chunk of each other one (ECRM's
rotation, as of RAID-5), and what any one of them had can be made of what the others have:

    g = 3    member 0    member 1    member 2
    rows     a0  a1      b0  b1      c0  c1
    parity   b1 ^ c0     a0 ^ c1     a1 ^ b0

Row r of a shard is in chunk r mod (g - 1), at place r // (g - 1) of the shard's part of the chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.sharding.plan import Plan, shard_bytes
from neocpu.parallel.sharding.schemes import Shard

WORD = 8  # bytes


def groups_of(hosts: Sequence[int], data_ranks: int) -> list[tuple[int, ...]]:
    """Groups of `data_ranks` + 1 ranks or fewer, 2 at least, as far as possible on different hosts.

    One rank alone is in no group; with `data_ranks` 1 and an odd number of ranks, one group has 3.
    hosts : of each rank.
    """
    ranks = len(hosts)
    if ranks < 2:
        return []
    seen: dict[int, int] = {}
    turn = []
    for rank, host in enumerate(hosts):
        turn.append((seen.setdefault(host, 0), host, rank))
        seen[host] += 1
    # the first ranks of all hosts, then the second ones: neighbours are on different hosts
    order = [rank for _, _, rank in sorted(turn)]
    count = min(-(-ranks // (data_ranks + 1)), ranks // 2)
    return [tuple(sorted(map(int, part))) for part in np.array_split(order, count)]


def record_words(plan: Plan, shard: Shard, state_floats: tuple[int, int]) -> int:
    """Words u64 of a row of a shard with its states, and the byte that says that it has changed."""
    row = Shard(shard.table, (0, 1), shard.cols, shard.rank)
    return -(-(shard_bytes(plan.tables[shard.table], row, state_floats) + 1) // WORD)


def parity_bytes(plan: Plan, data_ranks: int, state_floats: tuple[int, int]) -> int:
    """Bytes of the parity that a rank of a plan holds, at most."""
    if plan.ranks < 2:
        return 0
    words = [0] * plan.ranks
    for shard in plan.shards:
        height = shard.rows[1] - shard.rows[0]
        words[shard.rank] += height * record_words(plan, shard, state_floats)
    return WORD * max(words) // min(data_ranks, plan.ranks - 1)


@dataclass(frozen=True)
class RankChunks:
    """How the rows of one rank are cut into chunks.

    members : of the rank's group. words : of a record of each shard. heights : rows of each shard.
    """

    rank: int
    members: tuple[int, ...]
    words: Ints
    heights: Ints

    @classmethod
    def of(
        cls, plan: Plan, rank: int, members: tuple[int, ...], state_floats: tuple[int, int]
    ) -> "RankChunks":
        """The chunks of a rank of a plan."""
        shards = plan.local(rank)
        words = [record_words(plan, shard, state_floats) for shard in shards]
        heights = [shard.rows[1] - shard.rows[0] for shard in shards]
        return cls(rank, members, np.array(words, np.int64), np.array(heights, np.int64))

    @property
    def count(self) -> int:
        """RankChunks of a rank of the group."""
        return len(self.members) - 1

    @property
    def places(self) -> Ints:
        """Records of each shard in a chunk."""
        return -(-self.heights // self.count)

    @property
    def starts(self) -> Ints:
        """First word of each shard in a chunk, and the end: i64[shards + 1]."""
        return np.append(0, np.cumsum(self.places * self.words))

    def holder(self, chunk: int) -> int:
        """The rank that holds the parity of a chunk."""
        return self.members[(self.members.index(self.rank) + 1 + chunk) % len(self.members)]

    def held_by(self, rank: int) -> int:
        """The chunk whose parity another rank of the group holds."""
        at = self.members.index(rank) - self.members.index(self.rank) - 1
        return at % len(self.members)
