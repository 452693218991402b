"""What does one call of a communication verb send? Bytes by sender and receiver.

call = Collective("pooled output", "alltoallv", size=...)      i64[W, W], [source, target]
total(calls, "words")                                          of all calls of that name
link_report(calls, nodes)                                      what Comm.traffic() counts
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.transport.throttle import LINKS
from neocpu.plan.cost.traffic.demand import Numbers


@dataclass(frozen=True)
class Collective:
    """One call by all ranks of a communicator.

    name : what it carries. verb : of `parallel/transport/comm.py`, "alltoallv" or "allgatherv".
    size : payload bytes of each message; i64 where counted, f64 where expected.
    source, target : sender and receiver of each message, of shapes that broadcast with `size`;
        None where `size` is a matrix [source, target] of all ranks.
    hop : of a route of several calls, or phase of an optimizer's rule, from 1.
    """

    name: str
    verb: str
    size: Numbers
    source: Ints | None = None
    target: Ints | None = None
    hop: int = 1

    def messages(self) -> tuple[Ints, Ints, Numbers]:
        """(source, target, bytes) of all messages, empty ones among them: [n] each."""
        source = self.source
        target = self.target
        if source is None or target is None:
            ranks = np.arange(len(self.size), dtype=np.int64)
            source = ranks[:, None]
            target = ranks
        flat = np.broadcast_arrays(source, target, self.size)
        return flat[0].reshape(-1), flat[1].reshape(-1), flat[2].reshape(-1)

    def matrix(self, ranks: int) -> Numbers:
        """Bytes by source and target: [ranks, ranks]."""
        if self.source is None:
            return self.size
        source, target, size = self.messages()
        matrix = np.zeros((ranks, ranks), size.dtype)
        # several messages of a call may have one source and target
        np.add.at(matrix, (source, target), size)
        return matrix


def total(calls: Sequence[Collective], ranks: int, name: str = "") -> Numbers:
    """Bytes by source and target, [ranks, ranks], of all calls or of those with this name."""
    chosen = [call for call in calls if name in ("", call.name)]
    matrices = [call.matrix(ranks) for call in chosen]
    return sum(matrices, start=np.zeros((ranks, ranks), np.int64))


def link_table(call: Collective, nodes: Ints) -> Numbers:
    """[link class of `comm.LINKS`, (messages, bytes)] of one call; nodes i64[W]: of each rank."""
    source, target, size = call.messages()
    link = np.where(nodes[source] == nodes[target], 1, 2)
    # a rank's message to itself stays on the rank, whatever its node
    link[source == target] = 0
    table = np.zeros((len(LINKS), 2), size.dtype)
    for number in range(len(LINKS)):
        sizes = size[link == number]
        table[number] = np.count_nonzero(sizes), sizes.sum()
    return table


def link_report(calls: Sequence[Collective], nodes: Ints) -> dict[str, object]:
    """The calls by verb and link class, in the form of `Comm.traffic()`."""
    report: dict[str, object] = {}
    for verb in sorted({call.verb for call in calls}):
        chosen = [call for call in calls if call.verb == verb]
        table = sum(link_table(call, nodes) for call in chosen)
        entry: dict[str, object] = {"calls": len(chosen)}
        for link, (messages, size) in zip(LINKS, np.asarray(table).tolist()):
            entry[link] = {"messages": messages, "bytes": size}
        report[verb] = entry
    return report
