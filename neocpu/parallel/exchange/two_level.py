"""How can ranks of several nodes exchange with fewer messages between nodes? Inside the node first.

    rank of node n -> the rank of node n that has the destination's place      (inside the node)
               that rank -> the destination, with the runs of its whole node   (between nodes)

Between G ranks on H nodes of L each, G (H-1) messages cross instead of G (G-L), with the same
bytes. The data flow is that of SPTT (DMT, Luo et al.: peers of equal place exchange). Bytes are
only moved, so the bits are those of the direct exchange.

A rank that relays has to know how many bytes the ranks of its node send to whom: they tell it in a
small exchange inside the node, unless the caller knows the counts of all ranks (`table`).
"""

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from neocpu.core.types import Bytes, Elements, Ints
from neocpu.parallel.transport.buffers import (
    Buffers,
    Counts,
    as_bytes,
    check_exchange,
    check_gather,
)
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.mail import Mail
from neocpu.parallel.transport.started import Request, Steps


class Places:
    """Who relays for whom: rank d is served, in each node, by the rank of its own place.

    A node with fewer ranks serves in turns: place modulo its ranks.

    Attributes:
    members : ranks of each node, ascending.
    host, place : of this rank: its node's position in `members`, its own in the node.
    servers : i64[nodes, ranks], the rank of each node that relays what goes to (or comes from) d.
    peers : ranks of this rank's node, ascending.
    served : for each of `peers`, the ranks that it serves, ascending.
    runs : are nodes runs of consecutive ranks? even : have all as many ranks?
    """

    def __init__(self, nodes: Counts, rank: int) -> None:
        members = [np.flatnonzero(nodes == node) for node in np.unique(nodes)]
        places = np.empty(nodes.size, np.int64)
        for ranks in members:
            places[ranks] = np.arange(ranks.size)
        self.members = members
        self.servers: Ints = np.stack([ranks[places % ranks.size] for ranks in members])
        here = int(np.searchsorted(np.unique(nodes), nodes[rank]))
        self.host = here
        self.peers = members[here]
        self.served = [np.flatnonzero(self.servers[here] == peer) for peer in self.peers]
        self.place = int(places[rank])
        self.runs = bool((np.diff(nodes) >= 0).all())
        self.even = len({ranks.size for ranks in members}) == 1

    @property
    def clients(self) -> Ints:
        """Ranks that this one serves."""
        return self.served[self.place]

    @cached_property
    def order(self) -> Ints:
        """All ranks, in the order in which their runs are handed to the peers."""
        return np.concatenate(self.served)

    @cached_property
    def firsts(self) -> Ints:
        """Where each peer's ranks begin in `order`."""
        sizes = [ranks.size for ranks in self.served]
        return np.cumsum([0, *sizes[:-1]])

    def by_server(self, rank: int, sizes: Ints) -> tuple[Ints, list[Ints]]:
        """What arrives at this rank: (size by server i64[ranks], sources in order of arrival).

        rank : this one. sizes : i64[ranks], of what each source sends to it.
        """
        servers = self.servers[:, rank]
        by_server = np.zeros(sizes.size, np.int64)
        by_server[servers] = [int(sizes[ranks].sum()) for ranks in self.members]
        return by_server, [self.members[node] for node in np.argsort(servers, kind="stable")]


class Relay:
    """An exchange that goes through stages, each awaited before the next begins.

    The first stage is under way at once. Later ones begin in the order in which exchanges were
    started, whatever the order in which they are awaited, so that all ranks agree on it.
    """

    def __init__(self, comm: "TwoLevelComm", steps: Steps[None], stages: int) -> None:
        self._comm = comm
        self._steps = steps
        self._ahead = stages - 1  # stages that have not begun
        self._request: Request | None = next(steps)

    def wait(self) -> None:
        """Drive this exchange to its end, and those started before it into their last stages."""
        self._comm.push(self)
        while self._request is not None:
            self.advance()

    def test(self) -> bool:
        """Go on without waiting, in the same order; is it over?"""
        if not self._comm.pushed(self):
            return False
        while self._request is not None and self._request.test():
            self.advance()
        return self._request is None

    def push(self) -> None:
        """Drive it into its last stage."""
        while self._ahead:
            self.advance()

    def pushed(self) -> bool:
        """Go on without waiting towards its last stage; is it there?"""
        while self._ahead and self._request is not None and self._request.test():
            self.advance()
        return not self._ahead

    def advance(self) -> None:
        """Wait for the stage under way and begin the next."""
        if self._request is None:
            return
        self._request.wait()
        self._request = next(self._steps, None)
        self._ahead = self._ahead - 1 if self._request is not None else 0


class TwoLevelComm(Comm):
    """The ranks of `direct`, whose exchanges go through the ranks of their nodes first.

    `start_alltoallv` and `start_allgatherv` take the two-level way, small verbs beside the training
    path the direct one. Traffic counts the messages of both stages, not the exchanges they belong
    to. Made by `two_level`.

    Attributes: direct, the comm underneath; places; inside, a comm of the ranks of this node;
    between, one of all ranks, for messages between nodes.
    """

    def __init__(self, direct: Comm) -> None:
        super().__init__(direct.rank, direct.size, direct.nodes, direct.sent)
        self.world_ranks = direct.world_ranks
        self.direct = direct
        self.places = Places(self.nodes, self.rank)
        self.inside = direct.split(int(self.nodes[self.rank]), self.rank)
        # counts are told when an exchange starts, while others may be at any stage inside
        self._tellers = self.inside.queue("relay counts")
        self.between = direct.queue("between nodes")
        # gathers go between nodes first, so they have queues of their own
        self._gathers_between = direct.queue("gathers between nodes")
        self._gathers_inside = self.inside.queue("gathers")
        self._relays: list[Relay] = []  # not yet in their last stage, in order of start
        self._idle: list[Buffers] = []  # of relays that are over
        self.count_as(direct.queue_name)

    def count_as(self, queue: str) -> None:
        """Count the messages of both stages under the name of a queue."""
        super().count_as(queue)
        self.inside.count_as(queue)
        self.between.count_as(queue)
        self._gathers_between.count_as(queue)

    # ---- exchanges ----

    def start_alltoallv(
        self,
        send: Elements,
        send_counts: ArrayLike,
        recv: Elements,
        recv_counts: ArrayLike,
        what: str = "",
        table: ArrayLike | None = None,
    ) -> Request:
        """`Comm.start_alltoallv` in two stages, or in three where the counts of others are not
        known.

        table : i64[size, size], counts of all ranks [sender, receiver], on all ranks or none.
        """
        sends, recvs = check_exchange(self.size, send, send_counts, recv, recv_counts)
        known = None if table is None else np.asarray(table, np.int64) * send.itemsize
        steps = self._relay(
            as_bytes(send),
            sends * send.itemsize,
            as_bytes(recv),
            recvs * recv.itemsize,
            what,
            known,
        )
        return self.relay(steps, 3 if table is None else 2)

    def relay(self, steps: Steps[None], stages: int) -> Relay:
        """Begin an exchange of so many stages: a generator that yields each stage's request."""
        relay = Relay(self, steps, stages)
        self._relays.append(relay)
        return relay

    def push(self, last: Relay | None = None) -> None:
        """Drive exchanges into their last stages, in order of start: all, or up to `last`."""
        if last is not None and last not in self._relays:
            return
        while self._relays:
            relay = self._relays[0]
            relay.push()
            self._relays.pop(0)
            if relay is last:
                return

    def pushed(self, last: Relay) -> bool:
        """Let exchanges up to `last` go on without waiting; are they in their last stages?"""
        while last in self._relays:
            if not self._relays[0].pushed():
                return False
            self._relays.pop(0)
        return True

    def _relay(
        self, send: Bytes, sends: Ints, recv: Bytes, recvs: Ints, what: str, table: Ints | None
    ) -> Steps[None]:
        """The stages of an exchange of bytes."""
        places = self.places
        if table is None:
            relayed = yield from self._share_counts(sends[places.order])
        else:
            relayed = table[np.ix_(places.peers, places.clients)]
        buffers = self._idle.pop() if self._idle else Buffers()
        # what a peer relays for this rank must be one message: runs by peer, then by receiver
        outgoing = buffers.take("outgoing", send.size, np.uint8)
        starts = np.cumsum(sends) - sends
        _gather_runs(send, starts[places.order], sends[places.order], outgoing)
        at_server = buffers.take("at server", int(relayed.sum()), np.uint8)
        yield self.inside.start_alltoallv(
            outgoing,
            # reduceat cannot sum nothing; each peer serves itself at least
            np.add.reduceat(sends[places.order], places.firsts),
            at_server,
            relayed.sum(axis=1),
            what=what,
        )
        onward = buffers.take("onward", at_server.size, np.uint8)
        # came sender by sender, goes receiver by receiver
        starts = (np.cumsum(relayed) - relayed.reshape(-1)).reshape(relayed.shape)
        _gather_runs(at_server, starts.T.reshape(-1), relayed.T.reshape(-1), onward)
        onward_counts = np.zeros(self.size, np.int64)
        onward_counts[places.clients] = relayed.sum(axis=0)
        arriving, sources = places.by_server(self.rank, recvs)
        # messages arrive node by node, which is rank by rank where nodes are runs of ranks
        arrived = recv if places.runs else buffers.take("arrived", recv.size, np.uint8)
        yield self.between.start_alltoallv(onward, onward_counts, arrived, arriving, what=what)
        if not places.runs:
            _scatter_runs(arrived, np.concatenate(sources), recvs, recv)
        self._idle.append(buffers)

    def _share_counts(self, counts: Ints) -> Steps[Ints]:
        """Bytes that each peer sends to each rank that this one serves: i64[peers, served]."""
        places = self.places
        clients = places.clients.size
        relayed = np.empty((places.peers.size, clients), np.int64)
        yield self._tellers.start_alltoallv(
            np.ascontiguousarray(counts),
            [ranks.size for ranks in places.served],
            relayed.reshape(-1),
            np.full(places.peers.size, clients, np.int64),
            what="relay counts",
        )
        return relayed

    def start_allgatherv(
        self, send: Elements, recv: Elements, counts: ArrayLike, what: str = ""
    ) -> Request:
        """`Comm.start_allgatherv`: to one rank of each node, which hands it on to its node."""
        sizes = check_gather(self.rank, send, recv, counts) * send.itemsize
        return self.relay(self._gather_steps(as_bytes(send), as_bytes(recv), sizes, what), 2)

    def _gather_steps(self, send: Bytes, recv: Bytes, sizes: Ints, what: str) -> Steps[None]:
        """The stages of a gather of bytes; sizes : of every rank's."""
        places = self.places
        copies = np.zeros(self.size, np.int64)
        copies[places.servers[:, self.rank]] = send.size
        arriving = np.zeros(self.size, np.int64)
        arriving[places.clients] = sizes[places.clients]
        served = np.empty(int(arriving.sum()), np.uint8)
        # one copy for each node, whatever its number of ranks: they share it inside
        outgoing = np.tile(send, len(places.servers))
        yield self._gathers_between.start_alltoallv(outgoing, copies, served, arriving, what=what)
        in_order = len(places.peers) == 1
        gathered = recv if in_order else np.empty(recv.size, np.uint8)
        yield self._gathers_inside.start_allgatherv(
            served, gathered, [int(sizes[ranks].sum()) for ranks in places.served], what=what
        )
        if not in_order:
            _scatter_runs(gathered, places.order, sizes, recv)

    # ---- as the comm underneath ----

    def _exchange(
        self, send: Elements, send_counts: Counts, recv: Elements, recv_counts: Counts
    ) -> Request:
        self.push()
        return self.direct._exchange(send, send_counts, recv, recv_counts)

    def _start_gather(self, send: Elements, recv: Elements, counts: Counts) -> Request:
        # calls underneath have one order too: exchanges under way make theirs before this one
        self.push()
        return self.direct._start_gather(send, recv, counts)

    def barrier(self) -> None:
        """Return once every rank has called."""
        self.push()
        self.direct.barrier()

    def quiet_barrier(self) -> None:
        """Like `barrier`, but asleep."""
        self.push()
        self.direct.quiet_barrier()

    def split(self, color: int, key: int = 0) -> Comm:
        """Comm of the ranks that gave the same color; two-level where they are on several nodes."""
        self.push()
        return two_level(self.direct.split(color, key))

    def mail(self) -> Mail:
        """Letters go directly."""
        return self.direct.mail()

    def abort(self, status: int) -> None:
        """End the whole job."""
        self.direct.abort(status)


def two_level(comm: Comm) -> Comm:
    """`comm` with two-level exchanges; itself where it is on one node, or no node has two ranks.

    Collective.
    """
    sizes = np.unique(comm.nodes, return_counts=True)[1]
    if sizes.size == 1 or sizes.max() == 1 or isinstance(comm, TwoLevelComm):
        return comm
    return comm.kept("two levels", lambda: TwoLevelComm(comm))


def _gather_runs(source: Bytes, starts: Ints, sizes: Ints, target: Bytes) -> None:
    """Runs of `source`, one after the other, into `target`."""
    runs = [source[lo : lo + n] for lo, n in zip(starts.tolist(), sizes.tolist()) if n]
    if runs:
        np.concatenate(runs, out=target)


def _scatter_runs(source: Bytes, ranks: Ints, sizes: Ints, target: Bytes) -> None:
    """Runs of `source`, of these ranks, to their places in rank order. sizes : of each rank."""
    starts = np.cumsum(sizes) - sizes
    at = 0
    for rank in ranks.tolist():
        size = int(sizes[rank])
        lo = int(starts[rank])
        target[lo : lo + size] = source[at : at + size]
        at += size
