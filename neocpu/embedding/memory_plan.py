"""Where do the tables of a run live, and how much memory does each shard get? What the config says
of memory, as a rank uses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neocpu.embedding.lookups import Rectangle
from neocpu.embedding.specs import TableSpec
from neocpu.reference.policies import DEFAULT
from neocpu.storage import placement
from neocpu.storage.placement import PLACEMENTS, Room, make_room


@dataclass(frozen=True)
class MemoryPlan:
    """Where the tables of a run live (`config.MemoryConfig`).

    placements : of each table, keys of `storage.placement.PLACEMENTS`. hbm, ddr, ssd : budgets of a
    rank in bytes, `ssd` of its file (0: no limit). policy : of the caches. folder : for SSD files,
    which last as long as the run. demands : where placements were chosen automatically, bytes that
    a step reads per byte of each table. ddr_bandwidth, ssd_bandwidth (bytes/s), ssd_iops : speeds
    of slower devices that are imitated (0: as fast as they are). prefetch : batches whose rows are
    brought up before their turn.
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

    def rooms(
        self,
        tables: Sequence[TableSpec],
        shards: Sequence[Rectangle],
        state_floats: tuple[int, int],
    ) -> list[Room]:
        """Room of every shard of a rank; `state_floats`: optimizer floats per element and per row.
        Raises TrainingError.
        """
        shard_rows = []
        for shard in shards:
            table = tables[shard.table]
            lo, hi = shard.cols
            size = table.cached.row_bytes(hi - lo, state_floats)
            narrow = table.row_bytes(hi - lo, state_floats) if table.cache_format else 0
            rows = shard.rows[1] - shard.rows[0]
            where = self.placements[shard.table]
            shard_rows.append(placement.Rows(table.name, rows, size, where, narrow))
        return make_room(shard_rows, self.hbm, self.ddr)

    @property
    def over_ssd(self) -> bool:
        """Is any table over SSD?"""
        return any(PLACEMENTS[name].ssd for name in self.placements)

    @property
    def plain(self) -> bool:
        """Are all tables whole in memory?"""
        return not any(PLACEMENTS[name].caches for name in self.placements)
