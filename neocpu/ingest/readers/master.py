"""Who reads which split? A thread of rank 0 for each reader hands them out, one after the other.

A split is handed out as soon as it is at most `ahead` splits beyond the one that the slowest
trainer works on: that alone bounds the memory of all queues, and as the oldest split is always out,
nobody can wait for somebody who waits for him. A reader says when every trainer has its pieces. If
its connection ends before that, the split goes to another reader; if it takes longer than
`slow_after` seconds and another reader has nothing to do, that one reads it too, and whichever
comes first counts.
"""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from neocpu.core.types import JsonObject
from neocpu.ingest.readers.frames import Connections, receive, send
from neocpu.ingest.readers.pieces import Split


@dataclass
class ReaderState:
    """What one reader has done. seconds : in which it worked, up to its last split."""

    number: int
    name: str
    samples: int = 0
    splits: int = 0
    seconds: float = 0.0
    lost: bool = False


@dataclass
class _Out:
    """A split that was handed out: to which readers, and when last."""

    split: Split
    since: float
    readers: set[int] = field(default_factory=set)


class Master:
    """Hands out the splits of a run until `close`.

    listener : where readers and trainers connect. splits : in their order, each with notes on new
    files; they may come slowly.
    readers, trainers : how many will come. ahead, slow_after : keys of `[readers]`.

    Attribute: readers, the state of each one so far.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        splits: Iterator[tuple[Split, Sequence[JsonObject]]],
        sizes: tuple[int, int],
        ahead: int,
        slow_after: float,
    ) -> None:
        self._splits = splits
        self._expected, trainers = sizes
        self._ahead = ahead
        self._slow_after = slow_after
        self.readers: dict[int, ReaderState] = {}
        self._news: list[str] = []
        self._changed = threading.Condition()
        self._taken = dict.fromkeys(range(trainers), -1)  # newest split that each trainer took
        self._trainers: list[socket.socket] = []
        self._waiting: list[Split] = []
        self._out: dict[int, _Out] = {}
        self._log: list[JsonObject] = []  # files that became known with splits, in their order
        self._said: JsonObject | None = None  # what ends the run, for trainers that come later
        self._all_cut = False
        self._closed = False
        self._connections = Connections(listener, token, self._greet)
        threading.Thread(target=self._cut, name="splits", daemon=True).start()

    def close(self) -> None:
        """Hand out no more; every connection ends."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._connections.close()

    def settle(self, seconds: float) -> None:
        """Wait until readers have answered for all splits, where there will be no more.

        A trainer has the last batch before the reader has said that it is done with its split.
        """
        with self._changed:
            if self._all_cut:
                # a lost reader's split waits for another one, though its batches have come
                self._changed.wait_for(
                    lambda: self._closed or not (self._out or self._waiting), seconds
                )

    # ---- splits ----

    def _cut(self) -> None:
        """Take splits from their source as they are needed."""
        number = -1
        try:
            for split, notes in self._splits:
                number = split.number
                with self._changed:
                    while not (self._is_near(number) or self._closed):
                        self._changed.wait()
                    if self._closed:
                        return
                    self._log += notes
                    self._waiting.append(split)
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - of a source; nobody else can tell of it
            self._say({"error": str(error), "split": number + 1})
            return
        with self._changed:
            self._all_cut = True
            self._changed.notify_all()
        self._say({"end": number + 1})

    def _is_near(self, number: int) -> bool:
        return number <= min(self._taken.values()) + self._ahead

    def _next(self, reader: ReaderState) -> Split | None:
        """The split that a reader shall read; None once there will be none."""
        with self._changed:
            while not self._closed:
                if self._waiting:
                    self._waiting.sort()
                    split = self._waiting.pop(0)
                    out = self._out.setdefault(split.number, _Out(split, 0.0))
                elif (late := self._late(reader)) is not None:
                    out = late
                    slow = ", ".join(self.readers[n].name for n in sorted(out.readers))
                    self._news.append(
                        f"warning: {slow} has worked for {self._slow_after:g} s on a split, which "
                        f"{reader.name} reads too"
                    )
                elif self._all_cut and not self._out:
                    return None
                else:
                    self._changed.wait(self._slow_after)
                    continue
                out.since = time.monotonic()
                out.readers.add(reader.number)
                return out.split
        return None

    def _late(self, reader: ReaderState) -> _Out | None:
        """The oldest split that others take too long for."""
        limit = time.monotonic() - self._slow_after
        late = [o for o in self._out.values() if o.since < limit and reader.number not in o.readers]
        return min(late, key=lambda out: out.split.number, default=None)

    # ---- connections ----

    def _greet(self, connection: socket.socket) -> None:
        frame = receive(connection)
        if frame is None:
            return
        if "ended" in frame.note:
            self._ended(frame.note["ended"], frame.note["name"])
        elif "reader" in frame.note:
            state = ReaderState(frame.note["reader"], frame.note["name"])
            with self._changed:
                self.readers[state.number] = state
            self._serve(connection, state)
        else:
            self._listen(connection)

    def _listen(self, connection: socket.socket) -> None:
        """Hear which splits a trainer has taken, and tell it how the run ends."""
        with self._changed:
            self._trainers.append(connection)
            said = self._said
        if said is not None:
            with suppress(OSError):
                send(connection, said)
        while (frame := receive(connection)) is not None:
            with self._changed:
                self._taken[frame.note["trainer"]] = frame.note["taken"]
                self._changed.notify_all()

    def _serve(self, connection: socket.socket, reader: ReaderState) -> None:
        known = 0
        while (split := self._next(reader)) is not None:
            with self._changed:
                files = self._log[known:]
                known = len(self._log)
            answer = None
            with suppress(OSError):
                send(connection, {"split": split, "files": files})
                answer = receive(connection)
            # a frame that could not be sent has no answer either
            if answer is None:
                self._lose(reader, split)
                return
            if "error" in answer.note:
                if split.number not in self._out:  # another one has read it, and its file may go
                    self._lose(reader, split)
                    return
                self._say({"error": answer.note["error"], "split": split.number})
                return
            with self._changed:
                self._out.pop(split.number, None)
                reader.samples += split.last - split.first
                reader.splits += 1
                reader.seconds += answer.note["seconds"]
                self._changed.notify_all()
        with suppress(OSError):
            send(connection, {"end": True})

    def _lose(self, reader: ReaderState, split: Split | None) -> None:
        """A reader ended: another one reads its split; where there is none, the run ends."""
        with self._changed:
            if self._closed:
                return
            reader.lost = True
            out = self._out.get(split.number) if split is not None else None
            if out is not None:
                out.readers.discard(reader.number)
                if not out.readers:
                    del self._out[out.split.number]
                    self._waiting.append(out.split)
            lost = sum(state.lost for state in self.readers.values())
            self._news.append(f"warning: {reader.name} ended; others read its splits")
            self._changed.notify_all()
        if lost == self._expected:
            self._say({"error": f"all readers ended, the last was {reader.name}", "split": 0})

    def _ended(self, number: int, name: str) -> None:
        """A reader ended; told only where it ended before it could connect."""
        with self._changed:
            known = number in self.readers
            state = self.readers.setdefault(number, ReaderState(number, name))
        if not known:
            self._lose(state, None)

    def told(self) -> list[str]:
        """What is to be told of readers since the last call."""
        with self._changed:
            news = self._news
            self._news = []
        return news

    def _say(self, note: JsonObject) -> None:
        """Tell all trainers how the run ends; the first word counts."""
        with self._changed:
            # an error of a split counts although the last split is known
            if self._said is not None and "error" in self._said:
                return
            self._said = note
            trainers = [*self._trainers]
        for connection in trainers:
            with suppress(OSError):
                send(connection, note)
