"""How long does a collective take by an algorithm? Rounds on links: latency + bytes / bandwidth.

An algorithm is a list of rounds. In each, a rank sends parts of its buffer over one or more link
classes at the same time; a round takes the latency and bytes of the slowest of them. With W ranks,
L of them on each of N nodes, latencies a and bandwidths B of the links, and a buffer of m bytes:

    alltoall    pairwise      (L-1) (a_in + m/W/B_in) + (W-L) (a_out + m/W/B_out)
                ring          (W-1) rounds in which m/2 (on average) moves on to the next rank
                tree          Bruck: log2 L rounds inside, log2 N rounds between, m/2 each
                hierarchical  (L-1) rounds of m/L inside, then (N-1) rounds of m/N between
    allreduce   pairwise      slices to owners and back: twice the pairwise alltoall
                ring          2 (W-1) rounds of m/W
                tree          up and down: 2 log2 L rounds inside, 2 log2 N between, of m
                hierarchical  (L-1) of m/L inside, 2 (N-1) of m/L/N between, (L-1) of m/L inside

There are as many rings as ranks on a node, each of which leaves the node by another NIC, so a NIC
carries 1/L of what the rings carry. Bandwidths are the peaks of the links: an algorithm is at best
that fast. What a machine achieves are its curves, the algorithm "measured".

What leaves a rack or a spine shares the uplinks of all nodes below it, which are oversubscribed:
o bytes-times as slow as the NICs together. In an exchange of all with all, the part of it that
leaves is that of the ranks elsewhere; rings and trees leave by one node of each. Where switches are
rails, those of other places on a node are elsewhere too; all algorithms but pairwise go between
equal places.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from neocpu.plan.cost.links import Layout
    from neocpu.plan.machines.fabric import FabricLevel
    from neocpu.plan.machines.machine import Machine

MEASURED = "measured"
# the one of the closed forms that takes least at the size of an exchange
BEST = "best"
FORMS = ("pairwise", "ring", "tree", "hierarchical")
ALGORITHMS = (MEASURED, *FORMS, BEST)
INSIDE = "inside_node"
BETWEEN = "between_nodes"


class LinkCost(NamedTuple):
    """A link class of a rank."""

    latency_s: float
    byte_seconds: float


@dataclass(frozen=True)
class Rounds:
    """So many rounds, in each of which shares of the buffer go over links at the same time.

    to : between nodes, do ranks send to all others, to those of equal place, or to a neighbour?
    """

    count: int
    shares: Mapping[str, float]
    to: Literal["all", "places", "neighbour"] = "all"


class Price(NamedTuple):
    """Of a collective: seconds = latency + bytes of the buffer x byte_seconds.

    uses : seconds per byte that each link class is busy, at most byte_seconds.
    """

    latency: float
    byte_seconds: float
    uses: Mapping[str, float]


class Network:
    """The links that the ranks of a run have."""

    def __init__(self, machine: "Machine", layout: "Layout") -> None:
        self.ranks = layout.ranks
        self.per_node = min(layout.ranks_per_node, layout.ranks)
        self.nodes = layout.nodes
        self.links = {name: _link(machine, name) for name in (INSIDE, BETWEEN)}
        # seconds per byte that leaves a node of the uplinks that it may take, by level
        self.uplinks: dict[str, dict[str, float]] = {"all": {}, "places": {}, "neighbour": {}}
        self.uplink_latency = {"all": 0.0, "places": 0.0, "neighbour": 0.0}
        for level in ("rack", "spine"):
            switch: FabricLevel = getattr(machine, level)
            slower = switch.oversubscription * self.links[BETWEEN].byte_seconds
            shares = {
                "all": switch.leaving(self.nodes, self.per_node),
                "places": switch.leaving(self.nodes, self.per_node, equal_places=True),
            }
            # one of the nodes below sends over the uplinks of them all
            shares["neighbour"] = float(shares["places"] > 0) / max(switch.nodes, 1)
            for to, share in shares.items():
                # nothing leaves a switch that has all below it
                if share:
                    self.uplinks[to][level] = slower * share
                    self.uplink_latency[to] += switch.latency_s

    def price(self, operation: str, algorithm: str, size: float = 0.0) -> Price:
        """Of "alltoall" or "allreduce" by one of ALGORITHMS but "measured"; 0 on one rank.

        size : bytes of the buffer, by which the best is chosen.
        """
        if algorithm == BEST:
            prices = [self.price(operation, form) for form in FORMS]
            return min(prices, key=lambda price: price.latency + size * price.byte_seconds)
        return self.priced(ROUNDS[operation, algorithm](self))

    def priced(self, rounds: Sequence[Rounds]) -> Price:
        """The price of some rounds, one after the other."""
        latency = 0.0
        byte_seconds = 0.0
        uses: dict[str, float] = {}
        for group in rounds:
            busy = {
                name: share * self.links[name].byte_seconds for name, share in group.shares.items()
            }
            start = max((self.links[name].latency_s for name in group.shares), default=0.0)
            if group.shares.get(BETWEEN):
                uplinks = self.uplinks[group.to]
                busy |= {name: group.shares[BETWEEN] * cost for name, cost in uplinks.items()}
                # a round takes as long as its farthest message
                start += self.uplink_latency[group.to]
            latency += group.count * start
            byte_seconds += group.count * max(busy.values(), default=0.0)
            for name, seconds in busy.items():
                uses[name] = uses.get(name, 0.0) + group.count * seconds
        return Price(latency, byte_seconds, uses)


def _link(machine: "Machine", name: str) -> LinkCost:
    peak = getattr(machine, name)
    bandwidth = peak.bandwidth_bytes_per_s
    return LinkCost(peak.latency_s, 1.0 / bandwidth if bandwidth else math.inf)


def _levels(count: int) -> int:
    """Rounds of a binary tree over so many."""
    return math.ceil(math.log2(count)) if count > 1 else 0


def _kept(*rounds: Rounds) -> list[Rounds]:
    return [group for group in rounds if group.count > 0]


def _pairwise_alltoall(net: Network) -> list[Rounds]:
    return _kept(
        Rounds(net.per_node - 1, {INSIDE: 1 / net.ranks}),
        Rounds(net.ranks - net.per_node, {BETWEEN: 1 / net.ranks}),
    )


def _rings(net: Network, count: int, share: float) -> list[Rounds]:
    """Rounds in which a share of the buffer moves on along rings through all ranks."""
    if net.nodes == 1:
        return _kept(Rounds(count, {INSIDE: share}))
    shares = {BETWEEN: share / net.per_node}
    # of L rings one step in L leaves the node
    if net.per_node > 1:
        shares[INSIDE] = share * (net.per_node - 1) / net.per_node
    return _kept(Rounds(count, shares, to="neighbour"))


def _ring_alltoall(net: Network) -> list[Rounds]:
    return _rings(net, net.ranks - 1, 0.5)


def _tree_alltoall(net: Network) -> list[Rounds]:
    return _kept(
        Rounds(_levels(net.per_node), {INSIDE: 0.5}),
        Rounds(_levels(net.nodes), {BETWEEN: 0.5}, to="places"),
    )


def _hierarchical_alltoall(net: Network) -> list[Rounds]:
    return _kept(
        Rounds(net.per_node - 1, {INSIDE: 1 / net.per_node}),
        Rounds(net.nodes - 1, {BETWEEN: 1 / net.nodes}, to="places"),
    )


def _pairwise_allreduce(net: Network) -> list[Rounds]:
    return 2 * _pairwise_alltoall(net)


def _ring_allreduce(net: Network) -> list[Rounds]:
    return _rings(net, 2 * (net.ranks - 1), 1 / net.ranks)


def _tree_allreduce(net: Network) -> list[Rounds]:
    return _kept(
        Rounds(2 * _levels(net.per_node), {INSIDE: 1.0}),
        Rounds(2 * _levels(net.nodes), {BETWEEN: 1.0}, to="neighbour"),
    )


def _hierarchical_allreduce(net: Network) -> list[Rounds]:
    share = 1 / net.per_node
    return _kept(
        Rounds(2 * (net.per_node - 1), {INSIDE: share}),
        Rounds(2 * (net.nodes - 1), {BETWEEN: share / net.nodes}, to="neighbour"),
    )


ROUNDS = {
    ("alltoall", "pairwise"): _pairwise_alltoall,
    ("alltoall", "ring"): _ring_alltoall,
    ("alltoall", "tree"): _tree_alltoall,
    ("alltoall", "hierarchical"): _hierarchical_alltoall,
    ("allreduce", "pairwise"): _pairwise_allreduce,
    ("allreduce", "ring"): _ring_allreduce,
    ("allreduce", "tree"): _tree_allreduce,
    ("allreduce", "hierarchical"): _hierarchical_allreduce,
}
