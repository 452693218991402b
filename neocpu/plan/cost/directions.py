"""How long do directions of dense parameters take that ranks find in blocks and gather?"""

from typing import TYPE_CHECKING

from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.work import DenseWork

if TYPE_CHECKING:
    from neocpu.plan.machines.machine import Machine


def direction_seconds(
    machine: "Machine", node: "Machine", dense: DenseWork, layout: Layout
) -> dict[str, float]:
    """Seconds of a step by name, {} for a model without such directions.

    node : the machine with as many ranks on a node as there are. layout : of all ranks. The rank
    with the most work decides; of roots that are computed in few steps each step has its share.
    """
    work = dense.directions
    if work is None:
        return {}
    busiest = max(
        sum(p.share * node.product_seconds(p.m, p.n, p.k) for p in products)
        for products in work.of_ranks(layout.ranks)
    )
    group = work.group(layout.ranks)
    gathered = work.gathered_bytes * (group - 1) / group
    link = "between_nodes" if group > layout.ranks_per_node else "inside_node"
    exchange = machine.transfer_seconds("allgatherv", link, group, gathered) if gathered else 0.0
    return {"directions": busiest, "directions_exchange": exchange}
