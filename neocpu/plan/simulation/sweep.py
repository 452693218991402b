"""How does a step scale, and which machine is enough? Scenarios on many numbers of ranks.

Samples per rank stay as they are (weak scaling), each number of ranks gets a plan of its own.
"""

from collections.abc import Callable, Sequence

from neocpu.core.errors import PlanError
from neocpu.plan.simulation.scenario import Placed, Scenario, Simulated, simulate

Planner = Callable[[Scenario], Placed]

# Ranks beyond which nobody looks for a machine.
MOST_RANKS = 4096


def rank_counts(most: int) -> list[int]:
    """Powers of two from 8 to `most`."""
    return [8 << power for power in range(20) if 8 << power <= most]


def sweep(
    scenario: Scenario, planner: Planner, counts: Sequence[int]
) -> tuple[list[Simulated], list[int]]:
    """(outcomes, numbers of ranks on which the tables do not fit), in the order of `counts`."""
    outcomes = []
    unfit = []
    for ranks in counts:
        step = scenario.on(ranks)
        try:
            outcomes.append(simulate(step, planner(step)))
        # too few ranks for the tables: a finding, not a failure
        except PlanError:
            unfit.append(ranks)
    return outcomes, unfit


def smallest(
    scenario: Scenario, planner: Planner, target: float, most: int
) -> tuple[Simulated | None, list[Simulated]]:
    """(the fewest whole nodes that reach `target` samples a second, all that were tried).

    Nodes are doubled until it is reached, then halved in between: it takes QPS for growing with
    nodes. None where `most` ranks do not reach it.
    """
    per_node = scenario.machine.ranks_per_node
    tried: list[Simulated] = []

    def reached(nodes: int) -> Simulated | None:
        outcomes, _ = sweep(scenario, planner, [nodes * per_node])
        tried.extend(outcomes)
        reaches = outcomes and outcomes[0].samples_per_s >= target
        return outcomes[0] if reaches else None

    low = 0
    nodes = 1
    best = reached(nodes)
    while best is None and 2 * nodes * per_node <= most:
        low = nodes
        nodes *= 2
        best = reached(nodes)
    if best is None:
        return None, tried
    while nodes - low > 1:
        middle = (low + nodes) // 2
        outcome = reached(middle)
        if outcome is None:
            low = middle
        else:
            nodes = middle
            best = outcome
    return best, tried
