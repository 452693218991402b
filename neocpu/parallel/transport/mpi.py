"""How do the verbs become MPI calls? Here, and letters in `mpi_mail.py`; only these have mpi4py.

Everything travels as bytes from and into the caller's arrays: nothing is pickled, every dtype is
the same to MPI. MPI 4 has 64-bit counts and one collective call does it; an older MPI gets messages
of at most `CHUNK` bytes instead, which both sides cut alike. Importing this file starts MPI.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import mpi4py
import numpy as np
from numpy.typing import NDArray

from neocpu.core import cores
from neocpu.core.errors import EnvironmentProblem
from neocpu.core.types import Elements
from neocpu.parallel.transport.buffers import Counts, as_bytes
from neocpu.parallel.transport.comm import Comm, nodes_of
from neocpu.parallel.transport.mail import Mail
from neocpu.parallel.transport.near import CROWD, NearExchanges, Runs, runs_of
from neocpu.parallel.transport.sent import Traffic
from neocpu.parallel.transport.started import Later, Request
from neocpu.parallel.transport.windows import Windows, segment_bytes, shared_room

mpi4py.rc.thread_level = "multiple"  # a thread may look for letters while another exchanges
# windows are shared memory: Open MPI need not look for network cards, and complain of none
os.environ.setdefault("OMPI_MCA_osc", "^ucx")

try:
    from mpi4py import MPI
    from mpi4py.typing import BufSpec

    from neocpu.parallel.transport.mpi_mail import MpiMail
except (ImportError, RuntimeError) as error:
    raise EnvironmentProblem(
        f'no MPI library could be loaded ({error}); `pip install "neocpu[mpi]"` brings one, '
        "and on a cluster `module load` the site's MPI first"
    ) from error

# Bytes of a message to an MPI whose counts have 32 bits, at most.
CHUNK = 1 << 30
# Seconds between two questions whether messages have come, for each rank that shares a core: at
# first, and at most. So asking takes a few hundredths of the cores.
FIRST_SLEEP = 20e-6
LAST_SLEEP = 4e-3
LARGE_COUNTS = MPI.Get_version() >= (4, 0)
# Shared memory of a host that must be free for windows of all its ranks, in such windows: a run
# opens them for several queues, and memory that is touched beyond the room ends the process.
MOST_OF_ROOM = 4
_TAG = 77
_NEVER = 78  # tag of no message


class _Started:
    """MPI requests under way, and the arrays that must live until they are done."""

    def __init__(self, requests: Sequence[MPI.Request], arrays: tuple[Elements, ...]) -> None:
        self._requests = list(requests)
        self._arrays = arrays

    def wait(self) -> None:
        MPI.Request.Waitall(self._requests)
        self._requests = []

    def test(self) -> bool:
        if self._requests and self._ask():
            self._requests = []
        return not self._requests

    def _ask(self) -> bool:
        return MPI.Request.Testall(self._requests)


class _Asleep(_Started):
    """Requests of a rank that sleeps while it waits, so that it takes no core from others.

    crowd : ranks that share a core.
    """

    def __init__(
        self,
        requests: Sequence[MPI.Request],
        arrays: tuple[Elements, ...],
        comm: MPI.Comm,
        crowd: float,
    ) -> None:
        super().__init__(requests, arrays)
        self._comm = comm
        self._crowd = crowd

    def wait(self) -> None:
        """Ask and sleep in turn. Each sleep takes a quarter of the wait so far: a short exchange is
        asked about often, and a long wait for a rank at work seldom.
        """
        start = time.perf_counter()
        while not self._ask():
            waited = time.perf_counter() - start
            time.sleep(min(max(waited / 4, FIRST_SLEEP * self._crowd), LAST_SLEEP * self._crowd))
        self._requests = []

    def _ask(self) -> bool:
        """Are the requests done? MPICH takes in one message each time it is asked anything."""
        for _ in range(self._comm.Get_size()):
            self._comm.Iprobe(MPI.ANY_SOURCE, _NEVER)
        return MPI.Request.Testall(self._requests)


class _Post:
    """`Post` of one communicator, whose messages are cut into at most `chunk` bytes."""

    def __init__(self, comm: MPI.Comm, chunk: int) -> None:
        self._comm = comm
        self._chunk = chunk

    def send(self, view: NDArray[np.uint8], rank: int, tag: int = _TAG) -> list[MPI.Request]:
        return [self._comm.Isend(chunk, rank, tag) for chunk in self._chunks(view)]

    def receive(self, view: NDArray[np.uint8], rank: int, tag: int = _TAG) -> list[MPI.Request]:
        return [self._comm.Irecv(chunk, rank, tag) for chunk in self._chunks(view)]

    def done(self, requests: Sequence[MPI.Request]) -> bool:
        return MPI.Request.Testall(requests)

    def wait(self, requests: Sequence[MPI.Request]) -> None:
        if requests:
            MPI.Request.Waitall(requests)

    def push(self) -> None:
        self._comm.Iprobe(MPI.ANY_SOURCE, _NEVER)

    def _chunks(self, view: NDArray[np.uint8]) -> Iterator[BufSpec]:
        for lo in range(0, view.size, self._chunk):
            chunk = view[lo : lo + self._chunk]
            yield [chunk, chunk.size, MPI.BYTE]


class MpiComm(Comm):
    """One rank of an MPI communicator.

    world : the communicator; None is a private copy of COMM_WORLD.
    ranks_per_node : nodes are runs of this many ranks; None: the real hosts (ranks that can share
        memory).
    chunked : send point-to-point messages even if MPI has 64-bit counts (None: only if it has not).
    windows : exchange through shared memory with ranks of the same host (`near.py`), where there
        are any and hosts have room for it: all messages, none, or (None) those that are quicker so.
    crowd : ranks that share a core, where those that wait sleep; 0: MPI waits in its own way, which
        keeps a core busy; None: 0, unless many share one.
    """

    def __init__(
        self,
        world: MPI.Comm | None = None,
        ranks_per_node: int | None = None,
        *,
        nodes: Counts | None = None,
        sent: Traffic | None = None,
        chunked: bool | None = None,
        chunk: int = CHUNK,
        crowd: float | None = None,
        windows: bool | None = None,
    ) -> None:
        # a copy: messages of other code in this process that uses MPI cannot match ours
        self._comm = MPI.COMM_WORLD.Dup() if world is None else world
        self.processes = self._comm.Get_size() > 1
        rank = self._comm.Get_rank()
        size = self._comm.Get_size()
        if nodes is None:
            nodes = nodes_of(size, ranks_per_node) if ranks_per_node else _hosts(self._comm)
        super().__init__(rank, size, nodes, sent)
        self._crowd = _crowd(self._comm) if crowd is None else crowd
        # MPI's own collectives move messages in rounds, and each would wait for a sleeping rank.
        self._chunked = not LARGE_COUNTS or self._crowd > 0 if chunked is None else chunked
        self._chunk = chunk
        self._post = _Post(self._comm, chunk)
        self._use_windows = windows
        self._near = None if windows is False else self._open_windows()

    def _exchange(
        self, send: Elements, send_counts: Counts, recv: Elements, recv_counts: Counts
    ) -> Request:
        out = as_bytes(send)
        sends = send_counts * send.itemsize
        into = as_bytes(recv)
        recvs = recv_counts * recv.itemsize
        if self._near is not None:
            return self._near.start(runs_of(out, sends), runs_of(into, recvs))
        if self._chunked:
            return self._start_messages(out, sends, np.cumsum(sends) - sends, into, recvs)
        request = self._comm.Ialltoallv(
            [out, (sends, np.cumsum(sends) - sends), MPI.BYTE],
            [into, (recvs, np.cumsum(recvs) - recvs), MPI.BYTE],
        )
        return _Started([request], (out, into, sends, recvs))

    def _start_gather(self, send: Elements, recv: Elements, counts: Counts) -> Request:
        out = as_bytes(send)
        into = as_bytes(recv)
        sizes = counts * recv.itemsize
        if self._near is not None:
            everybody = Runs(out, [0] * self.size, [out.size] * self.size)
            return self._near.start(everybody, runs_of(into, sizes))
        starts = np.cumsum(sizes) - sizes
        if self._crowd:
            return Later(lambda: self._gather_in_rounds(out, into, sizes))
        if self._chunked:
            sends = np.full(self.size, out.size, np.int64)
            return self._start_messages(out, sends, np.zeros(self.size, np.int64), into, sizes)
        request = self._comm.Iallgatherv(
            [out, out.size, MPI.BYTE], [into, (sizes, starts), MPI.BYTE]
        )
        return _Started([request], (out, into, sizes, starts))

    def _gather_in_rounds(
        self, out: NDArray[np.uint8], into: NDArray[np.uint8], sizes: Counts
    ) -> None:
        """All-gather in log2(ranks) rounds, each with one message out and one in (Bruck's).

        Blocks of the ranks from this one on, around the ring, stand one after the other; each round
        doubles them.
        """
        order = (np.arange(self.size) + self.rank) % self.size
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[order])])
        blocks = np.empty(into.size, np.uint8)
        blocks[: out.size] = out
        known = 1
        while known < self.size:
            more = min(known, self.size - known)
            arriving = blocks[ends[known] : ends[known + more]]
            leaving = blocks[: ends[more]]
            requests = self._post.receive(arriving, (self.rank + known) % self.size)
            requests += self._post.send(leaving, (self.rank - known) % self.size)
            self._under_way(requests, (leaving, arriving)).wait()
            known += more
        starts = np.cumsum(sizes) - sizes
        for turn, rank in enumerate(order.tolist()):
            into[starts[rank] : starts[rank] + sizes[rank]] = blocks[ends[turn] : ends[turn + 1]]

    def _start_messages(
        self,
        out: NDArray[np.uint8],
        sends: Counts,
        starts: Counts,
        into: NDArray[np.uint8],
        recvs: Counts,
    ) -> Request:
        """The exchange as point-to-point messages, matched by order of posting: all ranks exchange
        in one order.
        """
        requests = []
        at = np.cumsum(recvs) - recvs
        # each rank begins with itself and goes round, so that not all begin with rank 0
        turns = np.arange(self.size)
        sources = (self.rank - turns) % self.size
        for source in sources[recvs[sources] > 0].tolist():
            view = into[at[source] : at[source] + recvs[source]]
            requests += self._post.receive(view, source)
        targets = (self.rank + turns) % self.size
        for target in targets[sends[targets] > 0].tolist():
            view = out[starts[target] : starts[target] + sends[target]]
            requests += self._post.send(view, target)
        return self._under_way(requests, (out, into))

    def _under_way(self, requests: Sequence[MPI.Request], arrays: tuple[Elements, ...]) -> Request:
        if self._crowd:
            return _Asleep(requests, arrays, self._comm, self._crowd)
        return _Started(requests, arrays)

    def _open_windows(self) -> NearExchanges[MPI.Request] | None:
        """Exchanges through the windows of hosts; None where no host has two ranks of this comm, or
        one has no room. Collective.
        """
        host = MPI.Intracomm(self._comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank))
        ranks = host.Get_size()
        size = segment_bytes(ranks)
        # all hosts or none: both ends of a message have to agree on how it travels
        facts = np.array([shared_room() >= MOST_OF_ROOM * size * ranks, ranks == 1], np.int64)
        self._comm.Allreduce(MPI.IN_PLACE, [facts, MPI.INT64_T], MPI.MIN)
        room_everywhere, alone_everywhere = facts.tolist()
        if not room_everywhere or alone_everywhere:
            host.Free()
            return None
        window = MPI.Win.Allocate_shared(size, 1, comm=host)
        memories = [
            np.frombuffer(cast(Any, window.Shared_query(host_rank)[0]), np.uint8, size)
            for host_rank in range(ranks)
        ]
        # MPI allows loads, stores and `Sync` under a lock only: one for the window's whole life
        window.Lock_all(MPI.MODE_NOCHECK)
        window.Sync()
        members = np.empty(ranks, np.int64)
        host.Allgather([np.array([self.rank], np.int64), MPI.INT64_T], [members, MPI.INT64_T])
        crowd = np.array([ranks / len(cores.available())])
        self._comm.Allreduce(MPI.IN_PLACE, [crowd, MPI.DOUBLE], MPI.MAX)
        windows = Windows(memories, host.Get_rank(), window.Sync)
        host.Free()  # the window has its own
        near = NearExchanges(windows, members.tolist(), self.rank, float(crowd[0]), self._post)
        # asked for by the user: every message, not only those of sizes at which it is quicker
        if self._use_windows:
            near.through_windows = range(1, sys.maxsize)
        return near

    def barrier(self) -> None:
        """Return once every rank has called."""
        if self._near is not None:
            one = np.ones(self.size, np.int64)
            everybody = np.empty(self.size, np.uint8)
            self._start_gather(np.zeros(1, np.uint8), everybody, one).wait()
        elif self._crowd:
            self.quiet_barrier()
        else:
            with self.sent.pulse.waiting("barrier"):
                self._comm.Barrier()

    def quiet_barrier(self) -> None:
        """Return once every rank has called; asks and sleeps in turn, so that waiting takes no core
        from workers.
        """
        request = self._comm.Ibarrier()
        pause = 0.0005
        with self.sent.pulse.waiting("barrier"):
            while not request.Test():
                time.sleep(pause)
                pause = min(2 * pause, 0.05)

    def split(self, color: int, key: int = 0) -> Comm:
        """Comm of the ranks that gave the same color, ordered by (key, rank)."""
        group = self._comm.Split(color, key)
        members = np.empty(group.Get_size(), np.int64)
        group.Allgather([np.array([self.rank], np.int64), MPI.INT64_T], [members, MPI.INT64_T])
        comm = MpiComm(
            group,
            nodes=self.nodes[members],
            sent=self.sent,
            chunked=self._chunked,
            chunk=self._chunk,
            crowd=self._crowd,
            windows=self._use_windows,
        )
        comm.world_ranks = self.world_ranks[members]
        return comm

    def mail(self) -> Mail:
        """Letter boxes of these ranks over a communicator of their own. Collective."""
        return MpiMail(self._comm.Dup())

    def abort(self, status: int) -> None:
        """End all ranks of the job with this exit status."""
        MPI.COMM_WORLD.Abort(status)
        os._exit(status)


def _crowd(comm: MPI.Comm) -> float:
    """Ranks that share a core on the fullest host, where they are CROWD or more; otherwise 0.

    The same on all ranks, which must agree on how messages travel.
    """
    host = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    ranks_per_core = np.array([host.Get_size() / len(cores.available())])
    host.Free()
    comm.Allreduce(MPI.IN_PLACE, [ranks_per_core, MPI.DOUBLE], MPI.MAX)
    crowd = float(ranks_per_core[0])
    return crowd if crowd >= CROWD else 0.0


def _hosts(comm: MPI.Comm) -> Counts:
    """Node of each rank: hosts, numbered by their first rank."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    first_rank = np.array([comm.Get_rank()], np.int64)
    host.Bcast([first_rank, MPI.INT64_T], 0)
    host.Free()
    firsts = np.empty(comm.Get_size(), np.int64)
    comm.Allgather([first_rank, MPI.INT64_T], [firsts, MPI.INT64_T])
    return np.unique(firsts, return_inverse=True)[1].astype(np.int64)


def world_size() -> int:
    """Ranks that MPI says it started together."""
    return MPI.COMM_WORLD.Get_size()


def library() -> str:
    """First line of MPI's own description, e.g. "MPICH Version: 5.0.2"."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))} (MPI {'.'.join(map(str, MPI.Get_version()))})"


def running() -> bool:
    """Is MPI usable now (started and not yet finalized)?"""
    return MPI.Is_initialized() and not MPI.Is_finalized()


def abort_world(status: int) -> None:
    """End all ranks of the job with this exit status, if there are others and MPI still runs."""
    if running() and world_size() > 1:
        MPI.COMM_WORLD.Abort(status)
