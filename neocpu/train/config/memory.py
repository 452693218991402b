"""Which memory do tables and activations live in, as a config says it?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from neocpu.core.policies import DEFAULT, POLICIES
from neocpu.core.records import Limits
from neocpu.parallel.sharding.plan import PlanSpec
from neocpu.tables.specs.specs import TableSpecs
from neocpu.tables.tiers.placement import PLACEMENTS
from neocpu.train.model.precision.keys import FP32, PrecisionKeys

AUTO = "auto"  # a placement that is chosen


def unplanned(apart: bool, tables: TableSpecs, precision: PrecisionKeys) -> str:
    """Why nobody knows the activations of a model before its steps ("": they are known).

    apart : is it a search, or do towers run on their nodes?
    """
    if apart:
        return "a search, and towers on their nodes, have arrays of their own"
    if any(table.pooling == "none" for table in tables):
        return 'tables of pooling "none" give as many rows as a batch happens to have'
    exact = precision.format == FP32
    return "" if exact else "model.precision rounds copies of them, which stay; set it to fp32"


@dataclass(frozen=True)
class MemoryConfig:
    """Which memory tables live in (docs/memory.md).

    It changes the bits only of tables whose caches are wider than their rows.

    placement : a name for all tables, or a table of shell patterns: `{ "C3" = "ddr_over_ssd" }`;
        "auto": chosen under the budgets.
    hbm, ddr, ssd : bytes of each rank for rows with their states, and of its SSD file (0: no
        limit).
    policy : which row leaves a cache that is full; the name of a published system also gives keys
        below that nobody names (docs/memory.md).
    folder : where the SSD files are, which last as long as the run ("": beside the results).
    share : weight of this job among those of a host that share `folder`, one device: each rank has
        its part of the speeds below, and the bytes above are its own (0: no other job uses it).
    cache_format : format of the numbers in caches, for all tables or by patterns ("": that of their
        rows).
    ddr_bandwidth, ssd_bandwidth, ssd_iops : bytes and operations a second of slower devices than
        this machine has, below HBM and for SSD files (0: as fast as it is).
    prefetch : batches whose rows are brought up before their turn.
    lookahead : batches that policies know which look ahead.
    warm : whether the most frequent rows of the train data are in the caches before the first step.
    warm_share : of the lines of caches, that are warmed.
    activations : bytes of each rank for what a step keeps from its forward to its backward pass;
        what is idle leaves for other memory, or is computed again (0: no limit). No bit changes.
    activations_in : where they are meanwhile: "ddr", memory that does not count, or "ssd", a file
        in `folder`.
    check : whether a run is refused that, by an estimate, needs more memory than its hosts have
        (false: it is told, and started).
    """

    placement: PlanSpec = "hbm"
    hbm: int = 0
    ddr: int = 0
    ssd: int = 0
    policy: Annotated[str, Limits(tuple(POLICIES))] = DEFAULT
    folder: str = ""
    share: float = 0.0
    cache_format: PlanSpec = ""
    ddr_bandwidth: float = 0.0
    ssd_bandwidth: float = 0.0
    ssd_iops: float = 0.0
    prefetch: int = 1
    lookahead: int = 8
    warm: bool = False
    warm_share: float = 1.0
    activations: int = 0
    activations_in: Annotated[str, Limits(("ddr", "ssd"))] = "ddr"
    check: bool = True

    def faults(
        self, placements: Sequence[str], rows_by: str, unplanned: str
    ) -> Iterator[tuple[str, str]]:
        """(key, why) of what is wrong; placements : of all tables. rows_by : `data.rows_by`.

        unplanned : why nobody knows the activations before the steps (`unplanned`).
        """
        if self.activations and unplanned:
            yield "activations", unplanned
        if not 0 < self.warm_share <= 1:
            yield "warm_share", f"{self.warm_share} must be above 0, and 1 at most"
        if self.share and not self.folder:
            yield "share", "it is the weight among jobs that share memory.folder: set that too"
        over_ssd = any(name == AUTO or PLACEMENTS[name].ssd for name in placements)
        if self.share and over_ssd and not self.ssd:
            yield "share", "jobs that share a disk reserve their bytes of it: set memory.ssd too"
        # those that are chosen may be caches
        cached = any(name == AUTO or PLACEMENTS[name].caches for name in placements)
        yield from POLICIES[self.policy].faults(self, cached, rows_by)

    def header(self) -> dict[str, object]:
        """What decides which rows are in a cache at a time."""
        # of keys that move rows; speeds and folders do not
        names = "placement", "hbm", "ddr", "policy", "cache_format", "prefetch", "lookahead", "warm"
        header = {name: getattr(self, name) for name in names}
        # left out where it is not set, so that digests of older configs stay
        return header | ({"warm_share": self.warm_share} if self.warm_share != 1 else {})

    def held(self, activations: int) -> int:
        """Bytes of memory that activations take of so many; what is in other memory counts, too."""
        limited = self.activations and self.activations_in == "ssd"
        return min(activations, self.activations) if limited else activations
