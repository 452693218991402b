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

from collections.abc import Generator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Elements
from neocpu.parallel.exchange.shipment import Groups, Map, Shipment, Words
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.started import Request

Floats = NDArray[np.float32]
Block = Elements  # of gradients: f32, or codes u8


class WordBlocks(NamedTuple):
    """Blocks [b, columns of groups], one after the other, and the groups of each."""

    words: Words
    groups: list[Groups]


class Route(Protocol):
    """Wires of an exchange."""

    @staticmethod
    def words(job: Shipment) -> Generator[Request, None, WordBlocks]:
        """Bring every rank's words to the homes of their samples."""

    @staticmethod
    def gradients(m: Map, gradient: Floats, buffers: Buffers) -> Generator[Request, None, Block]:
        """dE f32[b, columns of E] -> [B, columns of held[rank]], the samples of all ranks: numbers,
        or codes where the map has a wire.
        """


ROUTES: dict[str, type[Route]] = {}


def route(kind: type[Route]) -> type[Route]:
    """Register a route under its class's name."""
    ROUTES[kind.__name__] = kind
    return kind


def _counts(m: Map, sizes: dict[int, int]) -> NDArray[np.int64]:
    counts = np.zeros(m.comm.size, np.int64)
    for rank, size in sizes.items():
        counts[rank] = size
    return counts


@route
class direct:
    """Every rank to every rank."""

    @staticmethod
    def words(job: Shipment) -> Generator[Request, None, WordBlocks]:
        """Rows of the block for d go to d."""
        m = job.map
        me = job.map.comm.rank
        sends = np.diff(m.cuts) * job.words.shape[1]
        recvs = np.array([m.samples(me) * m.columns(groups) for groups in m.held], np.int64)
        home = job.buffers.take("words", int(recvs.sum()), np.float64)
        yield m.comm.start_alltoallv(job.words.reshape(-1), sends, home, recvs, what="words")
        return WordBlocks(home, list(m.held))

    @staticmethod
    def gradients(m: Map, gradient: Floats, buffers: Buffers) -> Generator[Request, None, Block]:
        """Rank q gets the columns that it holds."""
        me = m.comm.rank
        sends = np.array([m.samples(me) * m.columns(groups) for groups in m.held], np.int64)
        columns = m.columns(m.held[me])
        send = buffers.take("part gradients out", int(sends.sum()), m.dtype)
        out = buffers.matrix("part gradients", m.cuts[-1], columns, m.dtype)
        ends = np.cumsum(sends).tolist()
        for groups, end, size in zip(m.held, ends, sends.tolist()):
            m.gather(gradient, send[end - size : end], groups)
        yield m.comm.start_alltoallv(
            send, sends, out.reshape(-1), np.diff(m.cuts) * columns, what="word gradients"
        )
        return out


@route
class reduce_scatter:
    """A ring, between neighbours only."""

    @staticmethod
    def words(job: Shipment) -> Generator[Request, None, WordBlocks]:
        """Rank d's words start at d+1 and collect those of every rank on their way round to d."""
        m = job.map
        me = job.map.comm.rank
        ranks = job.map.comm.size
        block: Words = np.empty((0, 0))
        for hop in range(1, ranks):
            d = (me - hop) % ranks
            total = _collect(job, d, hop, block)
            before = (d - 1) % ranks  # whose words come in from the left
            size = m.samples(before) * m.columns(_carried(m, before, hop))
            block = np.empty(size)
            sends = _counts(m, {(me + 1) % ranks: total.size})
            recvs = _counts(m, {(me - 1) % ranks: size})
            yield m.comm.start_alltoallv(total.reshape(-1), sends, block, recvs, what="words")
        collected = _collect(job, me, ranks, block)
        return WordBlocks(collected.reshape(-1), [_carried(m, me, ranks)])

    @staticmethod
    def gradients(m: Map, gradient: Floats, buffers: Buffers) -> Generator[Request, None, Block]:
        """The ring backwards: each rank keeps its columns and passes on what the ranks before it
        hold.
        """
        me = m.comm.rank
        ranks = m.comm.size
        out = buffers.matrix("part gradients", m.cuts[-1], m.columns(m.held[me]), m.dtype)
        m.gather(gradient, out[m.cuts[me] : m.cuts[me + 1]], m.held[me])
        have: Groups = ()
        block = np.empty((0, 0), m.dtype)
        for hop in range(1, ranks):
            # whose gradients go, and come
            d = (me + hop - 1) % ranks
            after = (me + hop) % ranks
            want = _carried(m, d, ranks - hop)
            send = np.empty((m.samples(d), m.columns(want)), m.dtype)
            if hop == 1:
                m.gather(gradient, send, want)
            else:
                m.select(block, have, send, want)
            have = _carried(m, after, ranks - hop)
            block = np.empty((m.samples(after), m.columns(have)), m.dtype)
            sends = _counts(m, {(me - 1) % ranks: send.size})
            recvs = _counts(m, {(me + 1) % ranks: block.size})
            yield m.comm.start_alltoallv(
                send.reshape(-1), sends, block.reshape(-1), recvs, what="word gradients"
            )
            m.select(block, have, out[m.cuts[after] : m.cuts[after + 1]], m.held[me])
        return out


def _carried(m: Map, d: int, hops: int) -> Groups:
    """Groups in rank d's words after so many ranks of the ring."""
    return m.union([(d + hop) % m.comm.size for hop in range(1, hops + 1)])


def _collect(job: Shipment, d: int, hop: int, block: Words) -> Words:
    """Words for rank d as they leave the rank `hop` places after it: what came in (`block`) and its
    own.
    """
    m = job.map
    me = job.map.comm.rank
    groups = _carried(m, d, hop)
    total = np.zeros((m.samples(d), m.columns(groups)))
    job.add(block, _carried(m, d, hop - 1), total, groups, [d])
    job.add(job.words[m.cuts[d] : m.cuts[d + 1]], m.held[me], total, groups, [d])
    return total


@route
class two_level:
    """Inside each node first, then between ranks of equal place."""

    @staticmethod
    def words(job: Shipment) -> Generator[Request, None, WordBlocks]:
        """Collect and add the node's words for the ranks with my place; send each its sum."""
        m = job.map
        me = job.map.comm.rank
        peers = m.node(me)
        served = {peer: _served(m, peer) for peer in peers}
        send = np.concatenate(
            [job.words[m.cuts[d] : m.cuts[d + 1]].reshape(-1) for p in peers for d in served[p]]
        )
        rows = {peer: sum(m.samples(d) for d in served[peer]) for peer in peers}
        recvs = _counts(m, {peer: rows[me] * m.columns(m.held[peer]) for peer in peers})
        recv = job.buffers.take("words in node", int(recvs.sum()), np.float64)
        yield m.comm.start_alltoallv(
            send,
            _counts(m, {p: rows[p] * job.words.shape[1] for p in peers}),
            recv,
            recvs,
            what="words",
        )

        groups = m.union(peers)
        at = 0
        total = np.zeros((rows[me], m.columns(groups)))
        for peer in peers:
            size = int(recvs[peer])
            job.add(recv[at : at + size], m.held[peer], total, groups, served[me])
            at += size

        sends = _counts(m, {d: m.samples(d) * total.shape[1] for d in served[me]})
        arriving = [m.union(node) for node in _nodes(m)]
        servers = [_server(m, node, me) for node in _nodes(m)]
        recvs = _counts(m, {s: m.samples(me) * m.columns(g) for s, g in zip(servers, arriving)})
        home = job.buffers.take("words", int(recvs.sum()), np.float64)
        yield m.comm.start_alltoallv(total.reshape(-1), sends, home, recvs, what="words")
        return WordBlocks(home, arriving)

    @staticmethod
    def gradients(m: Map, gradient: Floats, buffers: Buffers) -> Generator[Request, None, Block]:
        """One message to each node; the rank that gets it deals the columns out inside the node."""
        me = m.comm.rank
        peers = m.node(me)
        groups = m.union(m.node(me))
        served = {peer: _served(m, peer) for peer in peers}
        rows = {peer: sum(m.samples(d) for d in served[peer]) for peer in peers}
        blocks = []
        for node in _nodes(m):
            blocks.append(np.empty((m.samples(me), m.columns(m.union(node))), m.dtype))
            m.gather(gradient, blocks[-1], m.union(node))
        sends = _counts(
            m, {_server(m, node, me): block.size for node, block in zip(_nodes(m), blocks)}
        )
        whole = np.empty((rows[me], m.columns(groups)), m.dtype)
        recvs = _counts(m, {d: m.samples(d) * whole.shape[1] for d in served[me]})
        send = np.concatenate([block.reshape(-1) for block in blocks])
        yield m.comm.start_alltoallv(send, sends, whole.reshape(-1), recvs, what="word gradients")

        dealt = [np.empty((rows[me], m.columns(m.held[peer])), m.dtype) for peer in peers]
        for peer, block in zip(peers, dealt):
            m.select(whole, groups, block, m.held[peer])
        columns = m.columns(m.held[me])
        recv = buffers.matrix("gradients in node", sum(rows.values()), columns, m.dtype)
        sends = _counts(m, {peer: block.size for peer, block in zip(peers, dealt)})
        send = np.concatenate([block.reshape(-1) for block in dealt])
        yield m.comm.start_alltoallv(
            send,
            sends,
            recv.reshape(-1),
            _counts(m, {p: rows[p] * columns for p in peers}),
            what="word gradients",
        )
        out = buffers.matrix("part gradients", m.cuts[-1], columns, m.dtype)
        at = 0
        for d in (d for peer in peers for d in served[peer]):
            out[m.cuts[d] : m.cuts[d + 1]] = recv[at : at + m.samples(d)]
            at += m.samples(d)
        return out


def _nodes(m: Map) -> list[range]:
    return [m.node(first) for first in range(0, m.comm.size, m.ranks_per_node)]


def _server(m: Map, node: Sequence[int], d: int) -> int:
    """The rank of a node that has rank d's place (a small last node serves in turns)."""
    return node[d % m.ranks_per_node % len(node)]


def _served(m: Map, rank: int) -> list[int]:
    """Ranks whose words this rank collects in its node."""
    return [d for d in range(m.comm.size) if _server(m, m.node(rank), d) == rank]
