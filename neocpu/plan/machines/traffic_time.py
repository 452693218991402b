"""How long would a machine take for the traffic that a run has counted?

For each collective and class of links, with n calls in which the busiest rank sent b bytes in all:

    same_rank     2 b / bandwidth of the rank's memory: read once, written once
    same_node     n transfer_seconds(collective, "inside_node", ranks of a node, b / n)
    other_node    n transfer_seconds(collective, "between_nodes", all ranks, b / n)

Links of different classes work at the same time, so a collective takes as long as its slowest
class; collectives follow one another, as if nothing else hid them. What a rank sends stands for
what it receives, which is not counted; calls are taken to be of equal size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from neocpu.parallel.transport.throttle import LINKS
from neocpu.plan.machines.machine import Machine


@dataclass(frozen=True)
class VerbTime:
    """A collective of a run on a machine.

    calls : of the rank that called most often. busiest_bytes : in all calls, of the rank that sent
    most, by link class. seconds : of all calls, by link class; infinite where the machine has no
    such link.
    """

    calls: int
    busiest_bytes: dict[str, int]
    seconds: dict[str, float]

    @property
    def total_seconds(self) -> float:
        """Seconds of all calls: those of the slowest link class."""
        return max(self.seconds.values())

    def to_dict(self) -> dict[str, object]:
        """As JSON; seconds are None where the machine has no such link."""
        return {
            "calls": self.calls,
            "seconds": _finite(self.total_seconds),
            **{
                link: {"bytes": self.busiest_bytes[link], "seconds": _finite(self.seconds[link])}
                for link in LINKS
            },
        }


def traffic_time(
    machine: Machine, states: Sequence[Mapping[str, Any]], ranks_per_node: int
) -> dict[str, VerbTime]:
    """Time of each collective on a machine, by its name.

    states : of each rank, what `Traffic.state` says that it sent. ranks_per_node : of the run.
    """
    times = {}
    for verb in sorted({verb for state in states for verb in state}):
        counters = [state[verb] for state in states if verb in state]
        calls = max(count for count, _ in counters)
        busiest = {
            link: max(int(sent[number][1]) for _, sent in counters)
            for number, link in enumerate(LINKS)
        }
        seconds = {
            link: _seconds(machine, verb, link, calls, size, len(states), ranks_per_node)
            for link, size in busiest.items()
        }
        times[verb] = VerbTime(calls, busiest, seconds)
    return times


def _seconds(
    machine: Machine, verb: str, link: str, calls: int, size: int, ranks: int, ranks_per_node: int
) -> float:
    """Seconds of all calls over one class of links; size : bytes of all of them."""
    if not size:
        return 0.0
    if link == "same_rank":
        # messages of a rank to itself never leave its memory
        bandwidth = machine.fast_bytes_per_s
        return 2 * size / bandwidth if bandwidth else float("inf")
    inside = link == "same_node"
    return calls * machine.transfer_seconds(
        verb,
        "inside_node" if inside else "between_nodes",
        min(ranks, ranks_per_node) if inside else ranks,
        size / calls,
    )


def _finite(seconds: float) -> float | None:
    return seconds if isfinite(seconds) else None
