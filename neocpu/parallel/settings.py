"""Which keys of a config say how tables are spread, and how ranks exchange?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from neocpu.core.errors import ConfigError
from neocpu.core.records import Limits
from neocpu.parallel.exchange.wire_formats import UNIQUE_ROWS
from neocpu.parallel.sharding.pins import check_pins, choose_pins
from neocpu.parallel.sharding.plan import PlanSpec, choose_schemes, is_plan_file
from neocpu.parallel.transport.throttle import LinkNumbers
from neocpu.tables.specs.specs import TableSpecs

# those of `parallel.routes`, which cannot be imported here: it needs Numba
ROUTE_NAMES = ("direct", "reduce_scatter", "two_level")
# ways of `parallel.two_level`: between any two ranks, or through the ranks of a node first
ALLTOALL_NAMES = ("direct", "two_level")
SHARED_WINDOWS = ("auto", "on", "off")


@dataclass(frozen=True)
class ParallelConfig:
    """How tables are spread; never changes a bit.

    plan : a scheme for all tables, "auto", a table of shell patterns: `{ "C*" = "row_wise" }`, or
    the path of a plan file that ends in .json (docs/planner.md). Of several schemes,
    "row_wise, table_wise", the planner takes the one that suits a table best.
    pins : ranks that tables may be on, by shell patterns: `{ "C*" = "0-3, 8" }`; others may be on
    any (docs/planner.md).
    replica_groups : groups of equally many ranks, each of which holds a copy of every table, spread
    over its ranks: lookups and vectors travel inside a group, gradients between copies
    (docs/communication.md).
    ranks_per_node : ranks that count as one node (0: those of each real host).
    route : how sums of row-split tables travel. memory : bytes for tables on each rank (0: no
    limit).
    alltoall : how exchanges travel: "direct" from rank to rank, or "two_level", inside each node
        first and then between ranks of equal place (docs/communication.md).
    shared_windows : do ranks of a host exchange through shared memory: "on", "off", or "auto", with
        messages of sizes at which that is quicker (docs/communication.md).
    machine : the machine that is planned for, and on which the run's traffic is reckoned in seconds
    when it ends: a preset's name, a path, or "this-machine" ("": a generic one, and nothing is
    reckoned).
    planner : which planner chooses for "auto": "greedy" counts bytes, "search" seconds on the
    machine (docs/planner.md).
    link_bandwidth, link_latency : speed of a slower network than the real one, bytes a second of
    each direction and seconds for each message (0: no limit), for all links or by class:
    `{ same_node = 1e9, other_node = 1e8 }` (docs/communication.md).
    unique_rows : do equal rows that a rank asks of one shard travel once, "off", "on" or "auto":
    where that is fewer bytes (docs/communication.md).
    warn_after : seconds after which rank 0 says so where all ranks stand still: which collective is
    waited for, which ranks are not there, and what they did last (0: never). timeout : seconds
    after which all ranks end then, unless a debugger holds one (0: never) (docs/cluster.md).
    towers : are the tables of each tower on one node, and its module there? Without towers, only
    the tables: pooled vectors then travel between ranks of equal place (docs/communication.md).
    """

    plan: PlanSpec = "auto"
    pins: Mapping[str, str] = field(default_factory=dict)
    replica_groups: Annotated[int, Limits(least=1)] = 1
    ranks_per_node: int = 0
    route: Annotated[str, Limits(ROUTE_NAMES)] = "direct"
    alltoall: Annotated[str, Limits(ALLTOALL_NAMES)] = "direct"
    shared_windows: Annotated[str, Limits(SHARED_WINDOWS)] = "auto"
    machine: str = ""
    planner: str = "greedy"
    memory: int = 0
    link_bandwidth: LinkNumbers = 0.0
    link_latency: LinkNumbers = 0.0
    unique_rows: Annotated[str, Limits(UNIQUE_ROWS)] = "off"
    towers: bool = False
    warn_after: float = 30.0
    timeout: float = 600.0

    def check_choices(self, tables: TableSpecs) -> None:
        """Raise ConfigError for schemes and pins that are none, or contradict each other."""
        pins = choose_pins(tables, self.pins)
        if pins and self.towers:
            raise ConfigError(
                "parallel.pins: towers decide where tables are; leave one of both out"
            )
        if self.replica_groups > 1 and self.towers:
            raise ConfigError(
                "parallel.replica_groups: towers keep each table on one node; leave one of both out"
            )
        if not is_plan_file(self.plan):
            check_pins(tables, choose_schemes(tables, self.plan), pins)
