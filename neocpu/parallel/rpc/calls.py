"""Which calls of this rank are not over, and how do they end?"""

import itertools
import time

from neocpu.parallel.rpc.failures import BadMessage, CallTimeout, RemoteError
from neocpu.parallel.rpc.futures import CallUnderway
from neocpu.parallel.rpc.messages import MessageKind, RpcMessage
from neocpu.parallel.rpc.peers import Liveness
from neocpu.parallel.rpc.progress import Progress

FETCH = ".fetch"  # the call that brings the value of a reference


class OpenCalls:
    """The calls of one rank that are under way, by their numbers."""

    def __init__(self, progress: Progress, peers: Liveness) -> None:
        self._progress = progress
        self._peers = peers
        self._numbers = itertools.count(1)
        self._calls: dict[int, CallUnderway] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, to: int, name: str, seconds: float) -> tuple[int, CallUnderway]:
        """A call of a rank; over at once where that is lost."""
        number = next(self._numbers)
        call = CallUnderway(self._progress, to, name, seconds)
        # first entered, then looked at: whoever loses the rank in between ends it
        self._calls[number] = call
        if self._peers.lost(to) and self._calls.pop(number, None) is not None:
            call.fail(self._peers.error(to))
        return number, call

    def give_up(self, number: int) -> None:
        """It could not be sent."""
        self._calls.pop(number, None)

    def take(self, message: RpcMessage) -> None:
        """An answer or a failure came."""
        call = self._calls.get(message.call)
        # a rank answers its own calls only
        if call is not None and call.to != message.source:
            return
        failed = message.kind is MessageKind.FAILURE
        try:
            # also of a call that was given up: references among them have to be deleted
            values = message.values()
            if len(values) != 2:
                raise BadMessage(f"it has {len(values)} values")
        except BadMessage as problem:
            values = ["BadMessage", f"its answer cannot be read: {problem}"]
            failed = True
        if self._calls.pop(message.call, None) is None or call is None:
            return
        if not failed:
            call.finish(values[1])
            return
        error = RemoteError(f"{self._peers.name(call.to)}: {_what(call)} failed: {values[1]}")
        error.rank = call.to
        error.function = call.name
        error.kind = str(values[0])
        call.fail(error)

    def ranks(self) -> set[int]:
        """Ranks that are waited for."""
        return {call.to for call in list(self._calls.values())}

    def expire(self, now: float) -> None:
        """End calls that took too long."""
        for number, call in list(self._calls.items()):
            if now > call.deadline and self._calls.pop(number, None) is not None:
                error = CallTimeout(
                    f"{self._peers.name(call.to)} has not answered {_what(call)} within "
                    f"{call.seconds:g} s; it is there, so give the call more time (timeout=) or "
                    "the rank more threads, unless functions call each other in a circle"
                )
                error.rank = call.to
                call.fail(error)

    def end(self, rank: int) -> None:
        """End the calls of a rank that is lost."""
        for number, call in list(self._calls.items()):
            if call.to == rank and self._calls.pop(number, None) is not None:
                seconds = time.monotonic() - call.began
                awaited = f"{call.name!r}, called {seconds:.1f} s before,"
                call.fail(self._peers.error(rank, awaited))


def _what(call: CallUnderway) -> str:
    """What was called, for messages."""
    return "the function of this reference" if call.name == FETCH else repr(call.name)
