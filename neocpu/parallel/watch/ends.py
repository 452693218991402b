"""Which process of this host was the first to end? The system tells whoever waits for that.

A launcher ends all ranks within a millisecond of the first, and then names any of them.
"""

import os
import select
from collections.abc import Sequence
from contextlib import suppress


class Ends:
    """Waits for the ends of processes, without asking again and again where the system can tell.

    processes : of this host.
    """

    def __init__(self, processes: Sequence[int]) -> None:
        self._poll = select.epoll()
        self._wake, self._waker = os.pipe()
        self._poll.register(self._wake, select.EPOLLIN)
        self._of_file: dict[int, int] = {}
        with suppress(AttributeError, OSError):  # another system, or one without pidfd_open
            for process in processes:
                file = os.pidfd_open(process)
                self._of_file[file] = process
                self._poll.register(file, select.EPOLLIN)

    def wait(self, seconds: float) -> int | None:
        """The number of a process that has ended, each once, in order; 0: none; None: woken."""
        ended = [file for file, _ in self._poll.poll(seconds)]
        if self._wake in ended:
            return None
        if not ended:
            return 0
        # the system lists them in the order of their ends, however late anybody asks
        process = self._of_file.pop(ended[0])
        self._poll.unregister(ended[0])
        os.close(ended[0])
        return process

    def wake(self) -> None:
        """Let whoever waits return."""
        os.write(self._waker, b" ")

    def close(self) -> None:
        """Nobody waits any more."""
        self._poll.close()
        for file in (self._wake, self._waker, *self._of_file):
            os.close(file)
