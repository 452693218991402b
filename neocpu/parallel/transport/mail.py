"""How does one rank send another something that the other did not expect? A letter.

A letter has a head, a few bytes, and bodies, the bytes of arrays. Letters from one rank to another
come in the order in which they were sent; between letters of different ranks there is no order.
Nobody waits: `send` begins, `receive` takes what has come whole. Any thread may call both.

`LoopMail` has letters to oneself, which every mail needs; `OfficeMail` those of threads;
`mpi_mail.py` those of MPI ranks.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Bytes

# Bytes of the head of a letter, at most, and how many bodies it may have.
LARGEST_HEAD = 1 << 24
MOST_BODIES = 1 << 16
# Bytes of all bodies of a letter, unless a mail was told otherwise.
LARGEST_LETTER = 1 << 33
# Smaller bodies are allocated by NumPy, which keeps them; of larger ones the system takes the
# memory back each time, and to touch it anew takes as long as to copy.
POOLED = 1 << 16
POOL = 1 << 28  # bytes that a pool keeps


class Letter(NamedTuple):
    """What came: from which rank, its head, its bodies."""

    source: int
    head: bytes
    bodies: list[Bytes]


class BadLetter(NamedTuple):
    """A rank sent what is no letter, and why it is none; nothing more of it can be read."""

    source: int
    reason: str


class BodyPool:
    """Memory for bodies, which is used again once nobody holds the array that was made of it."""

    def __init__(self, limit: int = POOL) -> None:
        self._blocks: list[Bytes] = []
        self._limit = limit
        self._bytes = 0

    def take(self, size: int) -> Bytes:
        """u8[size], uninitialised."""
        if size < POOLED:
            return np.empty(size, np.uint8)
        block = self._free_block(size)
        if block is None:
            block = np.empty(size, np.uint8)
            if self._bytes + size > self._limit:
                self._drop_free_blocks()
            if self._bytes + size <= self._limit:
                self._bytes += size
                self._blocks.append(block)
        return block[:size]

    def _free_block(self, size: int) -> Bytes | None:
        for block in self._blocks:
            # held by the list, by `block`, and as the argument
            if size <= block.size <= 2 * size and sys.getrefcount(block) == 3:
                return block
        return None

    def _drop_free_blocks(self) -> None:
        """Sizes have changed: blocks that nobody holds make room."""
        self._blocks = [block for block in self._blocks if sys.getrefcount(block) > 3]
        self._bytes = sum(block.size for block in self._blocks)

    def has(self, block: object) -> bool:
        """Is it a block of this pool?"""
        return any(own is block for own in self._blocks)


class LoopMail:
    """The letter box of one rank, for letters to itself.

    rank, size : of the comm that it is of. largest : bytes of a letter's bodies, at most.
    Attributes: pool, of the bodies of what comes; asks, is a letter there only when one asks, so
    that nothing wakes who rests?
    """

    asks = False

    def __init__(self, rank: int, size: int, largest: int = LARGEST_LETTER) -> None:
        self.rank = rank
        self.size = size
        self.largest = largest
        self.pool = BodyPool()
        self._own: deque[Letter] = deque()

    def send(self, rank: int, head: bytes, bodies: Sequence[Bytes] = ()) -> None:
        """Begin to send a letter. Bodies belong to the mail until they have arrived: whoever sends
        changes them no more before an answer has come.
        """
        if rank == self.rank:
            # the receiver may change what it gets
            self._own.append(Letter(rank, head, [self._copy(body) for body in bodies]))
        else:
            self._send(rank, head, bodies)

    def receive(self) -> Letter | BadLetter | None:
        """The next letter that came whole, if there is one."""
        return self._own.popleft() if self._own else self._receive()

    def sent(self) -> bool:
        """Has all left that was sent from here? Moves it on."""
        return True

    def rest(self, seconds: float) -> None:
        """Sleep so long; a letter may wake the sleeper."""
        time.sleep(seconds)

    def close(self) -> None:
        """Free what the mail holds, once all that was sent has been received."""

    def _send(self, rank: int, head: bytes, bodies: Sequence[Bytes]) -> None:
        raise ValueError(f"rank {rank} of {self.size} does not exist")

    def _receive(self) -> Letter | BadLetter | None:
        return None

    def _copy(self, body: Bytes) -> Bytes:
        copy = self.pool.take(body.size)
        copy[:] = body
        return copy


Mail = LoopMail  # what all mails are


class PostOffice:
    """The boxes of ranks that are threads. check : raises where a rank of the world has failed."""

    def __init__(self, size: int, check: Callable[[], None]) -> None:
        self.check = check
        self.boxes: list[deque[Letter]] = [deque() for _ in range(size)]
        self.changed = [threading.Condition() for _ in range(size)]


class OfficeMail(LoopMail):
    """The box of one thread in a post office."""

    def __init__(self, office: PostOffice, rank: int, largest: int = LARGEST_LETTER) -> None:
        super().__init__(rank, len(office.boxes), largest)
        self._office = office

    def _send(self, rank: int, head: bytes, bodies: Sequence[Bytes]) -> None:
        letter = Letter(self.rank, head, [body.copy() for body in bodies])
        with self._office.changed[rank]:
            self._office.boxes[rank].append(letter)
            self._office.changed[rank].notify()

    def _receive(self) -> Letter | None:
        self._office.check()
        box = self._office.boxes[self.rank]
        try:
            return box.popleft()
        except IndexError:
            return None

    def rest(self, seconds: float) -> None:
        """Sleep so long, or until a letter comes."""
        changed = self._office.changed[self.rank]
        with changed:
            if not self._office.boxes[self.rank]:
                changed.wait(seconds)
