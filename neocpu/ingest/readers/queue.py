"""Where do batches wait for their trainer? In a queue of whole splits, in the order of the run."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from neocpu.core.errors import DataError
from neocpu.core.trees import rank_samples
from neocpu.core.types import JsonObject
from neocpu.ingest.loader import Batch, BatchShare, distinct
from neocpu.ingest.readers.frames import Address, Connections, Frame, connect, receive, send
from neocpu.ingest.readers.pieces import joined, unpacked
from neocpu.tables.specs.feature_groups import Groups


@dataclass
class QueueCounts:
    """What became of a trainer's queue.

    splits : taken so far. depth : sum over them of the splits that were there. waited : seconds
    that the trainer waited for one, started : for the first, until which readers start. bytes,
    most_bytes : in the queue now, and at most.
    """

    splits: int = 0
    depth: int = 0
    waited: float = 0.0
    started: float = 0.0
    bytes: int = 0
    most_bytes: int = 0


class BatchQueue:
    """The batches of one trainer, as readers send them to its listener.

    share : of this trainer. keys : of the KJT. groups : keys whose repeated bags stand once.
    Attribute: counts.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        share: BatchShare,
        keys: tuple[str, ...],
        groups: Groups,
    ) -> None:
        self._token = token
        self._share = share
        self._keys = keys
        self._groups = groups
        self.counts = QueueCounts()
        self._changed = threading.Condition()
        self._frames: dict[int, Frame] = {}
        self._next = 0  # split that is taken next
        self._word: JsonObject = {}  # of the master: the number of splits, or an error
        self._master: socket.socket | None = None
        self._connections = Connections(listener, token, self._receive)

    def follow(self, master: Sequence[Address]) -> None:
        """Hear from the master how the run ends, and tell it how far it is.

        Raises DataError where it cannot be reached.
        """
        try:
            self._master = connect(master, self._token)
        except ConnectionError as error:
            raise DataError(
                f"rank 0, which hands out what is read, does not answer ({error}); hosts have to "
                "reach each other by TCP"
            ) from error
        self._connections.add(self._master)
        self._tell(-1)
        threading.Thread(target=self._hear, name="batches", daemon=True).start()

    def batches(self) -> Iterator[Batch]:
        """All batches, in order, the epochs one after the other.

        Raises DataError where readers say so, and where all of them ended.
        """
        pieces: list[Batch] = []
        while (frame := self._take()) is not None:
            for piece in unpacked(frame.note["pieces"], frame.arrays, self._keys):
                pieces.append(piece)
                if sum(one.labels.size for one in pieces) == self._samples(piece.samples):
                    yield distinct(joined(pieces), self._groups)
                    pieces = []

    def _samples(self, samples: int) -> int:
        """Samples of this trainer in a batch."""
        share = self._share
        low, high = rank_samples(share.rank, share.ranks, samples, share.leaves)
        return high - low

    def close(self) -> None:
        """Take no more."""
        self._connections.close()

    def _take(self) -> Frame | None:
        """The pieces of the next split; None behind the last one."""
        number = self._next
        counts = self.counts
        with self._changed:
            started = time.monotonic()
            self._changed.wait_for(lambda: number in self._frames or self._is_over(number))
            seconds = time.monotonic() - started
            if counts.splits:
                counts.waited += seconds
            else:
                counts.started = seconds
            frame = self._frames.pop(number, None)
            if frame is None:
                if "error" in self._word:
                    raise DataError(self._word["error"])
                return None
            counts.splits += 1
            counts.depth += len(self._frames) + 1
            counts.bytes -= _bytes(frame)
            self._next += 1
        self._tell(number)
        return frame

    def _is_over(self, number: int) -> bool:
        word = self._word
        return ("error" in word and number >= word["split"]) or word.get("end") == number

    def _tell(self, number: int) -> None:
        assert self._master is not None
        with suppress(OSError):  # it says why when it ends
            send(self._master, {"trainer": self._share.rank, "taken": number})

    # ---- threads ----

    def _receive(self, connection: socket.socket) -> None:
        """Queue what a reader sends; what another one has sent before is dropped."""
        while (frame := receive(connection)) is not None:
            number = frame.note["split"]
            with self._changed:
                if number < self._next or number in self._frames:
                    continue
                self._frames[number] = frame
                self.counts.bytes += _bytes(frame)
                self.counts.most_bytes = max(self.counts.most_bytes, self.counts.bytes)
                self._changed.notify_all()

    def _hear(self) -> None:
        """Hear how the run ends; a master that is gone ends it too."""
        assert self._master is not None
        lost: JsonObject = {"error": "rank 0, which hands out what is read, has ended", "split": 0}
        while True:
            frame = receive(self._master)
            with self._changed:
                self._word = frame.note if frame is not None else self._word or lost
                self._changed.notify_all()
            if frame is None:
                return


def _bytes(frame: Frame) -> int:
    return sum(array.nbytes for array in frame.arrays)
