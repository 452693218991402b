"""By which wires do partial sums of row-split tables travel home, and their gradients back? Three
routes, one result.

Every rank holds fp64 words, a block [B, columns] of its groups for the samples of all ranks; sample
s must end up with the words of all its groups from all ranks. A route moves them and may add on the
way, with TwoSum: what an addition loses is itself a word and travels with the rare further words,
so the sum that the bag's home rounds is always exact.

    direct           every rank to every rank: one hop, most bytes
    reduce_scatter   words for rank d go round the ring d+1, d+2, ..., d and each rank adds its own:
                     neighbours only
    two_level        in each node the rank with d's place collects and adds the node's words for d
                     and sends them to d: one message per node crosses, the rest stays inside
                     (made for table_row_wise; Neo)

Gradients take the same wires backwards. Every route is two generators, forth and back; they yield
the requests that they want to be waited for, so an exchange can be under way while others work. Add
a route by writing one class under `@route`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from neocpu.core.types import Elements, Floats, Ints
from neocpu.parallel.exchange.shipment import GroupLayout, Groups, Shipment, Words
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.started import Steps

Block = Elements  # of gradients: f32, or codes u8


class WordBlocks(NamedTuple):
    """Blocks [b, columns of groups], one after the other, and the groups of each."""

    words: Words
    groups: list[Groups]


class Route(Protocol):
    """Wires of an exchange."""

    @staticmethod
    def words(job: Shipment) -> Steps[WordBlocks]:
        """Bring every rank's words to the homes of their samples."""

    @staticmethod
    def gradients(layout: GroupLayout, gradient: Floats, buffers: Buffers) -> Steps[Block]:
        """dE f32[b, columns of E] -> [B, columns of held[rank]], the samples of all ranks: numbers,
        or codes where the map has a wire.
        """


ROUTES: dict[str, type[Route]] = {}


def route(kind: type[Route]) -> type[Route]:
    """Register a route under its class's name."""
    # so classes of routes are named as `parallel.route` names them
    ROUTES[kind.__name__] = kind
    return kind


def _counts(layout: GroupLayout, sizes: dict[int, int]) -> Ints:
    counts = np.zeros(layout.comm.size, np.int64)
    for rank, size in sizes.items():
        counts[rank] = size
    return counts


@route
class direct:
    """Every rank to every rank."""

    @staticmethod
    def words(job: Shipment) -> Steps[WordBlocks]:
        """Rows of the block for d go to d."""
        layout = job.layout
        me = job.layout.comm.rank
        sends = np.diff(layout.cuts) * job.words.shape[1]
        recvs = np.array(
            [layout.samples(me) * layout.columns(groups) for groups in layout.held], np.int64
        )
        home = job.buffers.take("words", int(recvs.sum()), np.float64)
        # the samples of a rank are a run of rows: nothing has to be packed
        yield layout.comm.start_alltoallv(job.words.reshape(-1), sends, home, recvs, what="words")
        return WordBlocks(home, list(layout.held))

    @staticmethod
    def gradients(layout: GroupLayout, gradient: Floats, buffers: Buffers) -> Steps[Block]:
        """Rank q gets the columns that it holds."""
        me = layout.comm.rank
        sends = np.array(
            [layout.samples(me) * layout.columns(groups) for groups in layout.held], np.int64
        )
        columns = layout.columns(layout.held[me])
        send = buffers.take("part gradients out", int(sends.sum()), layout.dtype)
        out = buffers.matrix("part gradients", layout.cuts[-1], columns, layout.dtype)
        ends = np.cumsum(sends).tolist()
        for groups, end, size in zip(layout.held, ends, sends.tolist()):
            layout.gather(gradient, send[end - size : end], groups)
        yield layout.comm.start_alltoallv(
            send, sends, out.reshape(-1), np.diff(layout.cuts) * columns, what="word gradients"
        )
        return out


@route
class reduce_scatter:
    """A ring, between neighbours only."""

    @staticmethod
    def words(job: Shipment) -> Steps[WordBlocks]:
        """Rank d's words start at d+1 and collect those of every rank on their way round to d."""
        layout = job.layout
        me = job.layout.comm.rank
        ranks = job.layout.comm.size
        block: Words = np.empty((0, 0))
        for hop in range(1, ranks):
            d = (me - hop) % ranks
            total = _collect(job, d, hop, block)
            before = (d - 1) % ranks  # whose words come in from the left
            size = layout.samples(before) * layout.columns(_carried(layout, before, hop))
            block = np.empty(size)
            sends = _counts(layout, {(me + 1) % ranks: total.size})
            recvs = _counts(layout, {(me - 1) % ranks: size})
            yield layout.comm.start_alltoallv(total.reshape(-1), sends, block, recvs, what="words")
        collected = _collect(job, me, ranks, block)
        return WordBlocks(collected.reshape(-1), [_carried(layout, me, ranks)])

    @staticmethod
    def gradients(layout: GroupLayout, gradient: Floats, buffers: Buffers) -> Steps[Block]:
        """The ring backwards: each rank keeps its columns and passes on what the ranks before it
        hold.
        """
        me = layout.comm.rank
        ranks = layout.comm.size
        out = buffers.matrix(
            "part gradients", layout.cuts[-1], layout.columns(layout.held[me]), layout.dtype
        )
        layout.gather(gradient, out[layout.cuts[me] : layout.cuts[me + 1]], layout.held[me])
        have: Groups = ()
        block = np.empty((0, 0), layout.dtype)
        for hop in range(1, ranks):
            # whose gradients go, and come
            d = (me + hop - 1) % ranks
            after = (me + hop) % ranks
            want = _carried(layout, d, ranks - hop)
            send = np.empty((layout.samples(d), layout.columns(want)), layout.dtype)
            if hop == 1:
                layout.gather(gradient, send, want)
            else:
                layout.select(block, have, send, want)
            have = _carried(layout, after, ranks - hop)
            block = np.empty((layout.samples(after), layout.columns(have)), layout.dtype)
            sends = _counts(layout, {(me - 1) % ranks: send.size})
            recvs = _counts(layout, {(me + 1) % ranks: block.size})
            yield layout.comm.start_alltoallv(
                send.reshape(-1), sends, block.reshape(-1), recvs, what="word gradients"
            )
            layout.select(
                block, have, out[layout.cuts[after] : layout.cuts[after + 1]], layout.held[me]
            )
        return out


def _carried(layout: GroupLayout, d: int, hops: int) -> Groups:
    """Groups in rank d's words after so many ranks of the ring."""
    return layout.union([(d + hop) % layout.comm.size for hop in range(1, hops + 1)])


def _collect(job: Shipment, d: int, hop: int, block: Words) -> Words:
    """Words for rank d as they leave the rank `hop` places after it: what came in (`block`) and its
    own.
    """
    layout = job.layout
    me = job.layout.comm.rank
    groups = _carried(layout, d, hop)
    total = np.zeros((layout.samples(d), layout.columns(groups)))
    job.add(block, _carried(layout, d, hop - 1), total, groups, [d])
    job.add(job.words[layout.cuts[d] : layout.cuts[d + 1]], layout.held[me], total, groups, [d])
    return total


@route
class two_level:
    """Inside each node first, then between ranks of equal place."""

    @staticmethod
    def words(job: Shipment) -> Steps[WordBlocks]:
        """Collect and add the node's words for the ranks with my place; send each its sum."""
        layout = job.layout
        me = job.layout.comm.rank
        peers = layout.node(me)
        served = {peer: _served(layout, peer) for peer in peers}
        send = np.concatenate(
            [
                job.words[layout.cuts[d] : layout.cuts[d + 1]].reshape(-1)
                for p in peers
                for d in served[p]
            ]
        )
        rows = {peer: sum(layout.samples(d) for d in served[peer]) for peer in peers}
        recvs = _counts(
            layout, {peer: rows[me] * layout.columns(layout.held[peer]) for peer in peers}
        )
        recv = job.buffers.take("words in node", int(recvs.sum()), np.float64)
        yield layout.comm.start_alltoallv(
            send,
            _counts(layout, {p: rows[p] * job.words.shape[1] for p in peers}),
            recv,
            recvs,
            what="words",
        )

        groups = layout.union(peers)
        at = 0
        # from zeros: a rank that has two row shards of a table adds its group twice
        total = np.zeros((rows[me], layout.columns(groups)))
        for peer in peers:
            size = int(recvs[peer])
            job.add(recv[at : at + size], layout.held[peer], total, groups, served[me])
            at += size

        sends = _counts(layout, {d: layout.samples(d) * total.shape[1] for d in served[me]})
        arriving = [layout.union(node) for node in _nodes(layout)]
        servers = [_server(layout, node, me) for node in _nodes(layout)]
        recvs = _counts(
            layout, {s: layout.samples(me) * layout.columns(g) for s, g in zip(servers, arriving)}
        )
        home = job.buffers.take("words", int(recvs.sum()), np.float64)
        yield layout.comm.start_alltoallv(total.reshape(-1), sends, home, recvs, what="words")
        return WordBlocks(home, arriving)

    @staticmethod
    def gradients(layout: GroupLayout, gradient: Floats, buffers: Buffers) -> Steps[Block]:
        """One message to each node; the rank that gets it deals the columns out inside the node."""
        me = layout.comm.rank
        peers = layout.node(me)
        groups = layout.union(layout.node(me))
        served = {peer: _served(layout, peer) for peer in peers}
        rows = {peer: sum(layout.samples(d) for d in served[peer]) for peer in peers}
        blocks = []
        for node in _nodes(layout):
            blocks.append(
                np.empty((layout.samples(me), layout.columns(layout.union(node))), layout.dtype)
            )
            layout.gather(gradient, blocks[-1], layout.union(node))
        sends = _counts(
            layout,
            {_server(layout, node, me): block.size for node, block in zip(_nodes(layout), blocks)},
        )
        # nothing is added on the way back, so codes of a wire are dealt out as they came
        whole = np.empty((rows[me], layout.columns(groups)), layout.dtype)
        recvs = _counts(layout, {d: layout.samples(d) * whole.shape[1] for d in served[me]})
        send = np.concatenate([block.reshape(-1) for block in blocks])
        yield layout.comm.start_alltoallv(
            send, sends, whole.reshape(-1), recvs, what="word gradients"
        )

        dealt = [
            np.empty((rows[me], layout.columns(layout.held[peer])), layout.dtype) for peer in peers
        ]
        for peer, block in zip(peers, dealt):
            layout.select(whole, groups, block, layout.held[peer])
        columns = layout.columns(layout.held[me])
        recv = buffers.matrix("gradients in node", sum(rows.values()), columns, layout.dtype)
        sends = _counts(layout, {peer: block.size for peer, block in zip(peers, dealt)})
        send = np.concatenate([block.reshape(-1) for block in dealt])
        yield layout.comm.start_alltoallv(
            send,
            sends,
            recv.reshape(-1),
            _counts(layout, {p: rows[p] * columns for p in peers}),
            what="word gradients",
        )
        out = buffers.matrix("part gradients", layout.cuts[-1], columns, layout.dtype)
        at = 0
        for d in (d for peer in peers for d in served[peer]):
            out[layout.cuts[d] : layout.cuts[d + 1]] = recv[at : at + layout.samples(d)]
            at += layout.samples(d)
        return out


def _nodes(layout: GroupLayout) -> list[range]:
    return [layout.node(first) for first in range(0, layout.comm.size, layout.ranks_per_node)]


def _server(layout: GroupLayout, node: Sequence[int], d: int) -> int:
    """The rank of a node that has rank d's place (a small last node serves in turns)."""
    return node[d % layout.ranks_per_node % len(node)]


def _served(layout: GroupLayout, rank: int) -> list[int]:
    """Ranks whose words this rank collects in its node."""
    return [d for d in range(layout.comm.size) if _server(layout, layout.node(rank), d) == rank]
