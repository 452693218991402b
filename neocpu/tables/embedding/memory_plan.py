"""Where do the tables of a run live, and how much memory does each shard get? What the config says
of memory, as a rank uses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neocpu.core.policies import DEFAULT
from neocpu.tables.embedding.lookups import Rectangle
from neocpu.tables.specs.specs import TableSpecs
from neocpu.tables.tiers.placement import PLACEMENTS, PlacedShard, Room, make_room

if TYPE_CHECKING:
    from neocpu.tables.storage.sharing import Ticket


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Where the tables of a run live (`config.MemoryConfig`); built by name.

    placements : name of each table's placement (`tables/tiers/placement.py`).
    hbm, ddr, ssd : budgets of a rank in bytes, `ssd` for its file (0: no limit).
    policy : of the caches.
    folder : for SSD files, which last as long as the run.
    demands : bytes that a step moves per byte of each table, if any placement was chosen by it.
    ddr_bandwidth, ssd_bandwidth, ssd_iops : speeds of slower devices to imitate (0: as fast as this
        machine), in bytes and operations per second.
    prefetch : batches whose rows are brought up before their turn.
    share : weight of a rank among those of all jobs that share `folder` (0: it is this job's own).
    job : name of this one among them.
    """

    placements: tuple[str, ...]
    hbm: int = 0
    ddr: int = 0
    policy: str = DEFAULT
    folder: Path | None = None
    demands: tuple[float, ...] = ()
    ddr_bandwidth: float = 0.0
    ssd_bandwidth: float = 0.0
    ssd_iops: float = 0.0
    prefetch: int = 0
    ssd: int = 0
    share: float = 0.0
    job: str = ""

    def ticket(self, file: str) -> "Ticket | None":
        """The place of the rank with this file among those that share the folder, if any do.

        Raises StorageError where there is no room for it.
        """
        if not self.share:
            return None
        from neocpu.tables.storage.sharing import Claim, Ticket  # few jobs share a device

        assert self.folder is not None
        disk = self.ssd if self.over_ssd else 0
        return Ticket(self.folder, self.job, file, Claim(self.share, disk, self.hbm + self.ddr))

    def rooms(
        self, tables: TableSpecs, shards: Sequence[Rectangle], state_floats: tuple[int, int]
    ) -> list[Room]:
        """Room of every shard of a rank.

        state_floats : optimizer floats per element and per row.

        Raises TrainingError if a budget is too small.
        """
        placed_shards = []
        for shard in shards:
            table = tables[shard.table]
            width = shard.cols[1] - shard.cols[0]
            placed_shards.append(
                PlacedShard(
                    table=table.name,
                    rows=shard.rows[1] - shard.rows[0],
                    # budgets count lines, which may hold wider rows than there are at home
                    row_bytes=table.cached.row_bytes(width, state_floats),
                    placement=self.placements[shard.table],
                    narrow=table.row_bytes(width, state_floats) if table.cache_format else 0,
                )
            )
        return make_room(placed_shards, self.hbm, self.ddr)

    @property
    def over_ssd(self) -> bool:
        """Is any table over SSD?"""
        return any(PLACEMENTS[name].ssd for name in self.placements)

    @property
    def plain(self) -> bool:
        """Are all tables whole in memory?"""
        return not any(PLACEMENTS[name].caches for name in self.placements)
