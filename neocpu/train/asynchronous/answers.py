"""What do calls get that wait for workers, when one of these can not go on?"""

import threading

from neocpu.core.errors import RpcError
from neocpu.parallel.rpc.agent import RpcAgent
from neocpu.parallel.rpc.futures import Future


class LateAnswers:
    """The answers of one rank that wait for workers of any.

    Attribute: agent, set before the first call comes.
    """

    def __init__(self) -> None:
        self.agent: RpcAgent | None = None
        self._lock = threading.Lock()
        self._waiting: list[Future] = []
        self._reason = ""

    def later(self) -> Future:
        """An answer that is not known yet. Raises RpcError once a worker has failed."""
        assert self.agent is not None
        with self._lock:
            if self._reason:
                raise RpcError(self._reason)
            future = self.agent.future("other workers")
            self._waiting = [*(other for other in self._waiting if not other.done()), future]
        return future

    def abort(self, reason: str) -> None:
        """A worker has failed: nobody waits for it any more."""
        with self._lock:
            self._reason = self._reason or reason
            waiting = self._waiting
            self._waiting = []
        for future in waiting:
            future.fail(RpcError(reason))
