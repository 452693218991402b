"""How does reading overlap with work? A thread runs an iterator a few items ahead of its consumer.

Only file reading, decompression and serial kernels run there (they release the interpreter's lock);
parallel kernels never do.
"""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

from neocpu.core.cores import roam

T = TypeVar("T")


class _End:
    """The last thing a reader puts into the queue: how its iterator ended."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def read_ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """Yield the items of an iterator that runs on a thread, at most `depth` items ahead.

    Depth 0: no thread. An exception of the iterator is raised here, after the items before it.
    Closing this generator stops and joins the thread.
    """
    if depth <= 0:
        yield from items
        return
    line: queue.Queue[T | _End] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: T | _End) -> bool:
        while not stop.is_set():
            try:
                # With a limit: a consumer that is gone takes nothing, and the thread must still see
                # `stop`.
                line.put(item, timeout=0.05)
                return True
            except queue.Full:
                continue
        return False

    def run() -> None:
        roam()
        try:
            for item in items:
                if not put(item):
                    return
            put(_End())
        except BaseException as error:
            put(_End(error))
        finally:
            if (close := getattr(items, "close", None)) is not None:
                close()

    thread = threading.Thread(target=run, name="neocpu-read-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := line.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
        thread.join()
