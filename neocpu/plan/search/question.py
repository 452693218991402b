"""What is a planner asked? Tables and a workload, on so many ranks of a machine.

A question can be asked again with something changed: more ranks, other rows, a faster link. That is
how explanations and remedies are computed (`explain.py`, `remedies.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from neocpu.core.errors import PlanError
from neocpu.parallel.sharding.plan import AUTO, Plan, PlanSpec
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.models import ModelFactory
from neocpu.plan.cost.seconds import CostModel, StepSeconds
from neocpu.plan.cost.work import Workload
from neocpu.plan.machines.machine import MEMORIES, Machine
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.free_cuts import Pins
from neocpu.plan.search.planners import planner_of
from neocpu.plan.search.pricing import answer_of_plan
from neocpu.plan.tiers.placements import RESERVED, Capacity
from neocpu.tables.specs.specs import TableSpec
from neocpu.tables.tiers.placement import PLACEMENTS


@dataclass(frozen=True)
class PlanQuestion:
    """Tables, a workload, ranks of a machine, and who is asked.

    spec : `parallel.plan`, schemes or `auto`. placements : of each table, or one for all ("auto":
    the planner chooses). planner : a key of PLANNERS. make_model : the cost model. reserved : part
    of the fast memory that is not for tables. fixed : rectangles of tables that stay where they
    are, by number of the table, whose schemes are named. taken : as of `Capacity`.
    """

    tables: tuple[TableSpec, ...]
    work: Workload
    layout: Layout
    machine: Machine
    spec: PlanSpec = AUTO
    placements: tuple[str, ...] = (AUTO,)
    planner: str = "search"
    cost_model: str = "neo"
    make_model: ModelFactory = field(default=StepSeconds)
    reserved: float = RESERVED
    fixed: Pins = field(default_factory=dict)
    taken: tuple[tuple[int, int, int], ...] = ()

    @property
    def model(self) -> CostModel:
        """The cost model, made anew."""
        return self.make_model(self.machine, self.tables, self.work, self.layout)

    @property
    def capacity(self) -> Capacity:
        """What the machine's memories leave for tables."""
        capacity = Capacity.of_machine(self.machine, self.placements, self.reserved)
        return replace(capacity, taken=self.taken)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Memories that placements name and the machine has none of."""
        named = {memory for name in self.placements for memory in _memories(name)}
        return tuple(
            m for m in MEMORIES if m in named and not getattr(self.machine, m).capacity_bytes
        )

    def answer(self) -> Answer:
        """The planner's answer.

        Raises ConfigError for schemes, PlanError for what does not fit or memories that there are
        none of.
        """
        self._refuse_lacking(
            "memory.placement", "let the planner choose: --set memory.placement=auto"
        )
        plan_tables = planner_of(self.planner)
        return plan_tables(
            self.tables,
            self.spec,
            self.layout,
            self.model,
            self.work,
            self.capacity,
            self.fixed,
        )

    def _refuse_lacking(self, key: str, remedy: str) -> None:
        """Raise PlanError for placements in memories that the machine has none of."""
        lacking = self.lacking
        if lacking:
            names = sorted(n for n in set(self.placements) if _memories(n).intersection(lacking))
            raise PlanError(
                f"{key}: {' and '.join(names)} needs {' and '.join(lacking)}, which "
                f"{self.machine.name} lacks; {remedy}"
            )

    def placed_as(self, planned: Sequence[str]) -> "PlanQuestion":
        """The question with the placements of a plan, where it has some ("": as they are here)."""
        placements = self.placements
        if len(placements) == 1:
            placements = placements * len(self.tables)
        planned = planned or ("",) * len(self.tables)
        chosen = tuple(name or default for name, default in zip(planned, placements))
        return replace(self, placements=chosen)

    def price(self, plan: Plan, planner: str = "file") -> Answer:
        """The price of a plan that is given; of several replica groups, of the first one.

        Raises PlanError for placements in memories that there are none of.
        """
        self._refuse_lacking("placement", "change it in the plan, or ask another machine")
        return answer_of_plan(
            plan.group, self.layout, self.model, self.work, self.capacity, AUTO, planner
        )


def _memories(placement: str) -> set[str]:
    """Memories that a placement needs; none for "auto"."""
    if placement == AUTO:
        return set()
    kept = PLACEMENTS[placement]
    return {kept.whole, *kept.caches, "ssd" * kept.ssd}


def any_plan(question: PlanQuestion) -> str:
    """Which plans the bound of its answer holds for."""
    return "any plan" if question.spec == AUTO else "any plan of the schemes named"
