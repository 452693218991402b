"""What is above the NICs of a machine? Switches that nodes share, and what leaves them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FabricLevel:
    """Switches of one level: nodes below each (0: none), bandwidth down divided by bandwidth up.

    latency_s : added to a message that leaves through the level's uplinks. rails : has each place
    on a node switches of its own, which no rank of another place is on?
    """

    nodes: int = 0
    oversubscription: float = 1.0
    latency_s: float = 0.0
    rails: bool = False

    def leaving(self, nodes: int, per_node: int, equal_places: bool = False) -> float:
        """Part of what a rank sends to all of other nodes that leaves its switch.

        per_node : ranks of each of so many nodes. equal_places : does it send to ranks of its own
        place only?
        """
        below = min(self.nodes, nodes)
        if not self.nodes or nodes == 1:
            return 0.0
        if equal_places or not self.rails:
            return (nodes - below) / (nodes - 1)
        return 1.0 - (below - 1) / ((nodes - 1) * per_node)
