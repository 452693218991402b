"""How many seconds do exchanges of pooled vectors take, a byte and a call, on a machine's links?

A message to all ranks goes in part to ranks of its node, in part to other nodes, at the same time;
what leaves a rack or a spine may share narrower uplinks. Rates are those at the size of message
that is usual in a step, so that bytes of rectangles can be added.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from neocpu.core.errors import ConfigError
from neocpu.parallel.sharding.plan import ranks_of_group

if TYPE_CHECKING:
    from neocpu.plan.machines.machine import Machine


LINKS = ("inside_node", "between_nodes")


@dataclass(frozen=True)
class Layout:
    """Ranks of a run: how many, how many on a node, and the route of partial sums.

    replica_groups : groups of so many ranks that a run has, each with a copy of every table.
    groups_per_node : of them, 1 where a group has whole nodes.
    """

    ranks: int
    ranks_per_node: int
    route: str = "direct"
    replica_groups: int = 1
    groups_per_node: int = 1

    @staticmethod
    def of_run(ranks: int, ranks_per_node: int, route: str, groups: int) -> "Layout":
        """The layout of one of so many replica groups. Raises PlanError as `ranks_of_group`."""
        node_ranks = min(ranks_per_node, ranks)
        group_ranks = ranks_of_group(ranks, node_ranks, groups)
        in_node = min(node_ranks, group_ranks)
        return Layout(group_ranks, in_node, route, groups, node_ranks // in_node)

    @property
    def nodes(self) -> int:
        """Nodes, the last of which may have fewer ranks."""
        return -(-self.ranks // self.ranks_per_node)

    @property
    def everybody(self) -> "Layout":
        """The ranks of all groups, as one."""
        per_node = self.ranks_per_node * self.groups_per_node
        return Layout(self.ranks * self.replica_groups, per_node, self.route)

    @property
    def copies(self) -> "Layout":
        """The ranks that hold the same rectangles, one of each group."""
        return Layout(self.replica_groups, self.groups_per_node)


class LinkSeconds:
    """Seconds of exchanges among ranks.

    machine, layout : links, and ranks on them. message_bytes : that a rank sends in an exchange.

    Raises ConfigError, when first asked, for ranks that the machine does not connect.
    """

    def __init__(self, machine: "Machine", layout: Layout, message_bytes: float) -> None:
        self.machine = machine
        self.layout = layout
        self.message_bytes = message_bytes

    @cached_property
    def shares(self) -> tuple[float, float]:
        """Parts of a message to all ranks that go to the same node and to other nodes."""
        ranks = self.layout.ranks
        # a rank's message to itself crosses no link
        neighbours = min(self.layout.ranks_per_node, ranks)
        return (neighbours - 1) / ranks, (ranks - neighbours) / ranks

    @cached_property
    def by_link(self) -> dict[str, tuple[float, float]]:
        """(latency, seconds per byte) of an alltoallv by link class, at such messages."""
        inside, between = self.shares
        link_seconds = {}
        for link, share in zip(LINKS, (inside, between)):
            if not share:
                link_seconds[link] = (0.0, 0.0)
                continue
            size = max(self.message_bytes * share, 1.0)
            group = self.layout.ranks
            if link == "inside_node":
                group = min(self.layout.ranks_per_node, group)
            # two sizes around the usual one give the slope there, which stands for seconds per byte
            small_seconds = self.machine.transfer_seconds("alltoallv", link, group, size / 2)
            large_seconds = self.machine.transfer_seconds("alltoallv", link, group, 2 * size)
            if large_seconds == float("inf"):
                raise _no_link(self.machine, link, self.layout)
            # A curve may be flat where latency rules: then nothing of it hangs on bytes.
            slope = max(0.0, (large_seconds - small_seconds) / (1.5 * size))
            # what is left at size 0 is the latency; a curve that bends upwards would make it
            # negative
            link_seconds[link] = (max(0.0, small_seconds - slope * size / 2), slope)
        return link_seconds

    def _oversubscribed(self, equal_places: bool) -> float:
        """How many times longer bytes between nodes take because uplinks are narrower.

        equal_places : of what goes between ranks of equal place on their nodes.
        """
        nodes = self.layout.nodes
        per_node = min(self.layout.ranks_per_node, self.layout.ranks)
        levels = (self.machine.rack, self.machine.spine)
        # uplinks carry what leaves the switch, as a part of all that leaves a node
        leaving = (level.leaving(nodes, per_node, equal_places) for level in levels)
        return max(1.0, *(x * level.oversubscription for x, level in zip(leaving, levels)))

    @cached_property
    def byte_seconds(self) -> dict[str, float]:
        """Seconds per byte: "all", to all ranks alike; "inside" and "between" one link each, and
        "places" between ranks of equal place.
        """
        inside, between = self.shares
        inside_byte, between_byte = (self.by_link[name][1] for name in LINKS)
        anywhere = between_byte * self._oversubscribed(equal_places=False)
        return {
            # both links work at the same time
            "all": max(inside * inside_byte, between * anywhere),
            "inside": inside_byte,
            "between": anywhere,
            "places": between_byte * self._oversubscribed(equal_places=True),
        }

    @cached_property
    def between_copies(self) -> tuple[float, float]:
        """(latency, seconds per byte) of an exchange among the copies of a rectangle."""
        among = LinkSeconds(self.machine, self.layout.copies, self.message_bytes)
        inside, between = among.shares
        inside_byte, between_byte = (among.by_link[name][1] for name in LINKS)
        # copies are as far apart as groups are: uplinks carry their bytes as those of all ranks
        everybody = LinkSeconds(self.machine, self.layout.everybody, self.message_bytes)
        narrower = everybody._oversubscribed(equal_places=self.layout.groups_per_node == 1)
        return among.latency_seconds, max(inside * inside_byte, between * between_byte * narrower)

    @cached_property
    def latency_seconds(self) -> float:
        """Of one exchange of all ranks."""
        return max(latency for latency, _ in self.by_link.values())

    def partial_byte_seconds(self) -> float:
        """Seconds of a holder per byte of a row-split rectangle's block [samples, columns]."""
        cost = self.byte_seconds
        nodes = self.layout.nodes
        per_node = min(self.layout.ranks_per_node, self.layout.ranks)
        if self.layout.route == "reduce_scatter":
            return cost["between" if nodes > 1 else "inside"]
        if self.layout.route == "two_level" and nodes > 1:
            # what crosses was summed over the node before, and each of its ranks sends 1/L of it
            in_node = (per_node - 1) / per_node * cost["inside"]
            return in_node + (nodes - 1) / nodes / per_node * cost["places"]
        return cost["all"]


def _no_link(machine: "Machine", link: str, layout: Layout) -> ConfigError:
    """The error for ranks that a machine does not connect."""
    where = "ranks of one node" if link == "inside_node" else "nodes"
    return ConfigError(
        f"machine {machine.name}: it has no link between {where} ({link}), which {layout.ranks} "
        f"ranks, {layout.ranks_per_node} on a node, would need; plan for another "
        "parallel.ranks_per_node (--ranks-per-node), or give the machine this link"
    )
