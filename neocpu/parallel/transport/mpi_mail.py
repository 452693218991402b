"""How do letters travel by MPI? The head as one message that says how large the bodies are, each
body as messages of its own, from and into the arrays themselves.

MPI keeps messages of one sender, receiver and tag in order, so the bodies of a letter are the next
messages of their tag after its head. A head is looked at before anything is allocated for it.
"""

import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from mpi4py import MPI

from neocpu.core.errors import EnvironmentProblem
from neocpu.core.types import Bytes
from neocpu.parallel.transport.mail import (
    LARGEST_HEAD,
    LARGEST_LETTER,
    MOST_BODIES,
    BadLetter,
    Letter,
    LoopMail,
)

_HEAD = 79
_BODY = 80
# number of bodies; their sizes, u64 each, follow
_COUNT = struct.Struct("<I")
_SIZE = struct.Struct("<Q")
# Times that MPI is asked: MPICH moves on a little each time, and may see what came only the next.
ASKED = 8
CHUNK = 1 << 30  # bytes of one message, for an MPI whose counts have 32 bits


class _Leaving(NamedTuple):
    """Messages on their way, and the memory that they are read from."""

    requests: list[MPI.Request]
    memory: tuple[object, ...]


class _Arriving(NamedTuple):
    """A letter whose bodies are on their way."""

    letter: Letter
    requests: list[MPI.Request]


class MpiMail(LoopMail):
    """The letter box of one MPI rank. comm : of these ranks, which nobody else uses."""

    asks = True

    def __init__(self, comm: MPI.Comm, largest: int = LARGEST_LETTER) -> None:
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise EnvironmentProblem(
                "letters are read by a thread beside others that use MPI, and this MPI, or whoever "
                "started it, allows one thread at a time; take an MPI built with "
                "MPI_THREAD_MULTIPLE, and start it by importing neocpu before mpi4py"
            )
        super().__init__(comm.Get_rank(), comm.Get_size(), largest)
        self._comm = comm
        # heads and bodies of a letter are messages one after the other, whichever thread sends
        self._lock = threading.Lock()
        self._leaving: deque[_Leaving] = deque()
        # of each source in order: a small letter does not overtake a large one
        self._arriving: dict[int, deque[_Arriving]] = {}
        self._bad: set[int] = set()
        self._status = MPI.Status()

    def _send(self, rank: int, head: bytes, bodies: Sequence[Bytes]) -> None:
        sizes = b"".join(_SIZE.pack(body.size) for body in bodies)
        start = _COUNT.pack(len(bodies)) + sizes + head
        with self._lock:
            requests = [self._comm.Isend([start, len(start), MPI.BYTE], rank, _HEAD)]
            for body in bodies:
                for lo in range(0, body.size, CHUNK):
                    chunk = body[lo : lo + CHUNK]
                    requests.append(self._comm.Isend([chunk, chunk.size, MPI.BYTE], rank, _BODY))
            self._leaving.append(_Leaving(requests, (start, bodies)))

    def _receive(self) -> Letter | BadLetter | None:
        with self._lock:
            self._forget_sent()
            fresh = self._take_head()
            if isinstance(fresh, BadLetter):
                return fresh
            if fresh is not None:
                # nothing older of its source is on its way: it need not wait in a queue
                if not fresh.requests and fresh.letter.source not in self._arriving:
                    return fresh.letter
                self._arriving.setdefault(fresh.letter.source, deque()).append(fresh)
            for source, letters in self._arriving.items():
                if MPI.Request.Testall(letters[0].requests):
                    letter = letters.popleft().letter
                    if not letters:
                        del self._arriving[source]
                    return letter
        return None

    def _take_head(self) -> _Arriving | BadLetter | None:
        """The next letter that begins to come."""
        for _ in range(ASKED):
            message = self._comm.Improbe(MPI.ANY_SOURCE, _HEAD, self._status)
            if message is not None:
                break
        else:
            return None
        source = self._status.Get_source()
        size = self._status.Get_count(MPI.BYTE)
        head = bytearray(min(size, LARGEST_HEAD + _COUNT.size + MOST_BODIES * _SIZE.size))
        if size > len(head):
            self._bad.add(source)
            return BadLetter(source, f"its head has {size} bytes, at most {len(head)} may come")
        message.Recv([head, size, MPI.BYTE])
        if source in self._bad:
            return None
        sizes = self._sizes(head)
        if isinstance(sizes, str):
            self._bad.add(source)
            return BadLetter(source, sizes)
        bodies = [self.pool.take(body) for body in sizes]
        requests = []
        for body in bodies:
            for lo in range(0, body.size, CHUNK):
                chunk = body[lo : lo + CHUNK]
                requests.append(self._comm.Irecv([chunk, chunk.size, MPI.BYTE], source, _BODY))
        start = _COUNT.size + len(sizes) * _SIZE.size
        return _Arriving(Letter(source, bytes(memoryview(head)[start:]), bodies), requests)

    def _sizes(self, head: bytearray) -> list[int] | str:
        """Bytes of the bodies, or why they cannot be."""
        if len(head) < _COUNT.size:
            return f"its head has {len(head)} bytes, too few to say how many arrays follow"
        (count,) = _COUNT.unpack_from(head)
        if count > MOST_BODIES or len(head) < _COUNT.size + count * _SIZE.size:
            return f"it announces {count} arrays in a head of {len(head)} bytes"
        sizes = [_SIZE.unpack_from(head, _COUNT.size + k * _SIZE.size)[0] for k in range(count)]
        if sum(sizes) > self.largest:
            return f"it announces {sum(sizes)} bytes, at most {self.largest} may come"
        return sizes

    def _forget_sent(self) -> None:
        while self._leaving and MPI.Request.Testall(self._leaving[0].requests):
            self._leaving.popleft()

    def sent(self) -> bool:
        """Has all left that was sent from here? Moves it on."""
        with self._lock:
            self._forget_sent()
            return not self._leaving

    def close(self) -> None:
        """Give the communicator back; what is still on its way is given up."""
        with self._lock:
            for letters in self._arriving.values():
                for arriving in letters:
                    for request in arriving.requests:
                        request.Cancel()
            if not self._leaving and not self._arriving:
                self._comm.Free()
