"""How do letters come late? A mail that holds each back for some looks into the box, drawn from a
seed, and lets letters of different ranks overtake each other; those of one rank stay in order.
"""

import random
from collections import deque
from collections.abc import Sequence

from neocpu.core.types import Bytes
from neocpu.parallel.transport.mail import BadLetter, Letter, LoopMail


class LateMail(LoopMail):
    """A mail whose letters come late. most : looks into the box that a letter is held back for."""

    def __init__(self, mail: LoopMail, seed: int, most: int = 8) -> None:
        super().__init__(mail.rank, mail.size, mail.largest)
        self.pool = mail.pool
        self.asks = mail.asks
        self._mail = mail
        self._draws = random.Random(seed * 1000 + mail.rank)
        self._most = most
        self._boxes: dict[int, deque[tuple[int, Letter | BadLetter]]] = {}
        self._looks = 0

    def send(self, rank: int, head: bytes, bodies: Sequence[Bytes] = ()) -> None:
        self._mail.send(rank, head, bodies)

    def receive(self) -> Letter | BadLetter | None:
        self._looks += 1
        while (letter := self._mail.receive()) is not None:
            due = self._looks + self._draws.randint(0, self._most)
            self._boxes.setdefault(letter.source, deque()).append((due, letter))
        ready = [source for source, box in self._boxes.items() if box and box[0][0] <= self._looks]
        return self._boxes[self._draws.choice(ready)].popleft()[1] if ready else None

    def sent(self) -> bool:
        return self._mail.sent()

    def rest(self, seconds: float) -> None:
        self._mail.rest(min(seconds, 1e-4))

    def close(self) -> None:
        self._mail.close()
