"""How much memory has a rank, and in which ways can a table's rows lie in it?

A *variant* is a placement of `tables/tiers/placement.py` with the share of the rows that its caches
hold. What it costs follows from its share and from the memory below (`plan/cost/seconds.py`): rows
that the fast memory lacks are moved in every step, so a table whose bytes are demanded often is
worth more fast memory than another (MTrainS, 2023: bandwidth demand per byte).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Flags, Floats
from neocpu.plan.machines.machine import MEMORIES, Machine
from neocpu.plan.machines.unequal import UnequalRanks
from neocpu.tables.tiers.placement import AUTO, LOAD_FACTOR, PLACEMENTS

# Part of the fast memory that is left for activations and the dense part, which are there only, as
# TorchRec's planner leaves it by default (HeuristicalStorageReservation).
RESERVED = 0.15
# Shares of the rows in a cache that the search may choose among; the largest ones stand first.
SHARES = (0.5, LOAD_FACTOR, 0.05, 0.01)


@dataclass(frozen=True)
class Variant:
    """A placement and the share of rows in its caches.

    share, below : as in `work.Rectangles`. whole, cached : parts of the rows that lie in hbm, ddr
    and ssd at home, and in caches. buffers : parts of a step's buffers that do, where they count.
    """

    name: str
    share: float
    below: int
    whole: tuple[float, float, float]
    cached: tuple[float, float, float]
    buffers: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Capacity:
    """Memory of a rank.

    hbm, ddr, ssd : bytes for tables (0: no limit). total : for tables in all memories together
    (0: no limit). memories : that there are. placements : of each table, or one for all; "auto":
    the search chooses. buffers : does what a step holds for tables besides their rows count too
    (`cost.capacity.buffer_bytes`), in the fast memory? unequal : ranks that have a part of it.
    taken : bytes of hbm, ddr and ssd that other jobs hold, of each rank (none: 0).
    """

    hbm: int = 0
    ddr: int = 0
    ssd: int = 0
    total: int = 0
    memories: tuple[str, ...] = MEMORIES
    placements: tuple[str, ...] = ("hbm",)
    buffers: bool = False
    unequal: tuple[UnequalRanks, ...] = ()
    taken: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def of_machine(
        cls,
        machine: Machine,
        placements: tuple[str, ...] = (AUTO,),
        reserved: float = RESERVED,
    ) -> "Capacity":
        """What a machine's memories leave for tables and buffers.

        reserved : part of the fast memory that is not for them.
        """
        sizes: dict[str, Any] = {}
        for name in MEMORIES:
            memory = getattr(machine, name)
            # a memory that ranks of a node share is divided among them
            size = machine.share(memory.capacity_bytes, memory)
            sizes[name] = int(size * (1.0 - reserved) if name == machine.fast else size)
        memories = tuple(name for name in MEMORIES if sizes[name])
        return cls(
            **sizes,
            memories=memories,
            placements=placements,
            buffers=True,
            unequal=machine.unequal,
        )

    @property
    def limits(self) -> Floats:
        """f64[4]: bytes of a rank in hbm, ddr, ssd and all together; infinite without a limit."""
        sizes = (self.hbm, self.ddr, self.ssd, self.total)
        return np.array([float(size) if size else np.inf for size in sizes])

    @property
    def bytes(self) -> Ints:
        """i64[3]: as `limits`, 0 without a limit."""
        return np.array([self.hbm, self.ddr, self.ssd], np.int64)

    def variants(self, names: Sequence[str]) -> tuple[tuple[Variant, ...], Flags]:
        """(variants, which each table may have bool[tables, variants]).

        names : of the tables. Where the fast memory has no limit only whole tables are offered.
        """
        placements = self.placements
        if len(placements) == 1:
            placements = placements * len(names)
        kinds = [self._of(name) for name in PLACEMENTS]
        variants = tuple(variant for kind in kinds for variant in kind)
        automatic = {variant.name for variant in self._automatic()}
        allowed = np.array(
            [
                [
                    variant.name == placement or (placement == AUTO and variant.name in automatic)
                    for variant in variants
                ]
                for placement in placements
            ],
            bool,
        ).reshape(len(placements), len(variants))
        used = np.flatnonzero(allowed.any(axis=0))
        chosen = (variants[i] for i in used.tolist())
        if self.buffers:
            fast = (1.0, 0.0, 0.0) if "hbm" in self.memories else (0.0, 1.0, 0.0)
            chosen = (replace(variant, buffers=fast) for variant in chosen)
        return tuple(chosen), allowed[:, used]

    def _automatic(self) -> list[Variant]:
        """Variants among which the search may choose."""
        if "hbm" not in self.memories:
            # rows go below only where the fast memory has a limit
            names = ["ddr", "ddr_over_ssd"] if "ssd" in self.memories and self.ddr else ["ddr"]
        else:
            names = ["hbm"]
            if self.hbm and "ddr" in self.memories:
                names += ["hbm_over_ddr", "ddr"]
            if self.hbm and self.ddr and {"ddr", "ssd"} <= set(self.memories):
                names.append("hbm_over_ddr_over_ssd")
        return [variant for name in names for variant in self._of(name)]

    def _of(self, name: str) -> list[Variant]:
        """The variants of a placement."""
        placement = PLACEMENTS[name]
        home = placement.whole or "ssd"
        whole = tuple(float(memory == home) for memory in MEMORIES)
        fast = "hbm" if "hbm" in self.memories else "ddr"
        below = int(placement.ssd)
        if not placement.caches:
            # Without HBM the DDR is the fast memory.
            share = 0.0 if home == "ddr" and fast == "hbm" else 1.0
            return [_variant(name, share, below, whole, ())]
        return [_variant(name, share, below, whole, placement.caches) for share in SHARES]


def _variant(
    name: str, share: float, below: int, whole: tuple[float, ...], caches: Sequence[str]
) -> Variant:
    cached = tuple(share * (memory in caches) for memory in MEMORIES)
    return Variant(
        name=name,
        share=share,
        below=below,
        whole=(whole[0], whole[1], whole[2]),
        cached=(cached[0], cached[1], cached[2]),
    )
