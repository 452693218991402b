"""What can be done before a batch's turn? Its lookups travel to the ranks that hold the rows, and
the rows to fast memory.

batch   0        1 … prefetch        … known        one more
        at work  rows on their way   lookups here   lookups on their way
"""

from collections import deque
from collections.abc import Iterator

from neocpu.ingest.loader import Batch
from neocpu.parallel.exchange import Input
from neocpu.parallel.sharded import ShardedEmbedding
from neocpu.parallel.started import Started


class Ahead:
    """Batches in their order, each with its lookups under way, where that is of use: some tables
    live in slow memory.

    prefetch : batches whose rows are brought up before their turn. known : batches whose lookups
        are known by then.
    """

    def __init__(
        self, embedding: ShardedEmbedding, batches: Iterator[Batch], prefetch: int, known: int
    ) -> None:
        self._embedding = embedding
        self._batches = batches
        self._prefetch = prefetch
        self._known = max(prefetch, known)
        self._queue: deque[tuple[Batch, Started[Input]]] = deque()
        self._told = 0  # of the queue, known to the tables

    def next(self) -> tuple[Batch, Started[Input] | None]:
        """The next batch, once there is one, and its lookups. Collective; raises IndexRangeError on
        every rank.
        """
        if not self._known:
            return next(self._batches), None
        while (
            len(self._queue) < self._known + 2 and (batch := next(self._batches, None)) is not None
        ):
            self._queue.append((batch, self._embedding.start(batch.sparse, batch.samples)))
        coming = [started for _, started in self._queue]
        for started in coming[self._told : self._known + 1]:
            self._embedding.know(started)
        for started in coming[: self._prefetch + 1]:
            self._embedding.prefetch(started)
        self._told = min(len(coming), self._known + 1) - 1
        return self._queue.popleft()

    def close(self) -> None:
        """Wait for lookups that are under way: nobody asks for them any more."""
        for _, started in self._queue:
            started.wait()
