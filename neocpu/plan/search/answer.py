"""What does a planner answer? A plan, its cost, and what each table's alternatives cost."""

from dataclasses import dataclass, field
from functools import cached_property

from neocpu.core.types import Ints
from neocpu.parallel.sharding.plan import Plan
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import CostModel, step_seconds
from neocpu.plan.cost.work import Floats, Rectangles, Workload
from neocpu.plan.tiers.placements import Capacity


@dataclass(frozen=True)
class Alternative:
    """One way to shard one table, the others staying where they are.

    scheme, cut : how it is cut; (rows, columns, how many) of its rectangles, largest first.
    placement : of its rows, as `memory.placement` names it. home : its first rank. seconds : of a
    step with it. missing_bytes : that the fullest rank lacks for it; 0 where it fits.
    """

    scheme: str
    cut: tuple[tuple[int, int, int], ...]
    placement: str
    home: int
    seconds: float
    missing_bytes: int = 0

    @property
    def columns(self) -> int:
        """Columns of the widest rectangle."""
        return max(width for _, width, _ in self.cut)

    @property
    def rectangles(self) -> int:
        """How many there are."""
        return sum(count for _, _, count in self.cut)


@dataclass(frozen=True)
class Answer:
    """A plan and its price.

    model, work, layout : what it was made for. rectangles : of the plan, with the shares of rows
    that fast memory holds. loads : f64[ranks, phases] in s. memory : i64[ranks, 3], bytes in hbm,
    ddr and ssd. placements : by table. bound : seconds that no plan can stay below under this
    model. planner : its name. budget : memory of a rank, and which placements tables may have.
    """

    plan: Plan
    placements: tuple[str, ...]
    model: CostModel
    work: Workload
    layout: Layout
    rectangles: Rectangles
    loads: Floats
    memory: Ints
    bound: float
    planner: str = "search"
    notes: tuple[str, ...] = field(default=())
    budget: Capacity = field(default_factory=Capacity)

    @cached_property
    def seconds(self) -> float:
        """Of a step."""
        return step_seconds(self.model, self.loads)

    @property
    def capacity(self) -> Ints:
        """Bytes of a rank in hbm, ddr and ssd, i64[3], 0 for no limit."""
        return self.budget.bytes

    @property
    def above_bound(self) -> float:
        """By which part the step is longer than the bound: 0.05 for 5 %."""
        return self.seconds / self.bound - 1.0 if self.bound else 0.0
