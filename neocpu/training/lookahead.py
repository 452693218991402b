"""What can be done before a batch's turn?

Its lookups travel to the ranks that hold the rows, and the rows to fast memory.

batch   0        1 … prefetch        … known        one more
        at work  rows on their way   lookups here   lookups on their way
"""

from collections import deque
from collections.abc import Iterator

from neocpu.config import MemoryConfig
from neocpu.ingest.loader import Batch
from neocpu.parallel.disaggregated import DisaggregatedEmbedding
from neocpu.parallel.input_dist import Input
from neocpu.parallel.sharded import ShardedEmbedding
from neocpu.parallel.started import Started
from neocpu.reference.policies import POLICIES


class Ahead:
    """Batches in their order, each with its lookups under way.

    That is of use where some tables live in slow memory.
    prefetch : batches whose rows are brought up before their turn. known : batches whose lookups
        have arrived by then. With 0 and 0, batches come as they are.
    """

    def __init__(
        self,
        embedding: ShardedEmbedding | DisaggregatedEmbedding,
        batches: Iterator[Batch],
        prefetch: int,
        known: int,
    ) -> None:
        self._embedding = embedding
        self._batches = batches
        self._prefetch = prefetch
        self._known = max(prefetch, known)
        self._queue: deque[tuple[Batch, Started[Input]]] = deque()
        self._announced = 0  # batches of the queue whose lookups the tables know

    def next(self) -> tuple[Batch, Started[Input] | None]:
        """The next batch, and its lookups (None where nothing is done ahead). Collective.

        There must be a next batch. Raises IndexRangeError on every rank.
        """
        if not self._known:
            return next(self._batches), None
        self._fill()
        lookups = [started for _, started in self._queue]
        for started in lookups[self._announced : self._known + 1]:
            self._embedding.know(started)
        for started in lookups[: self._prefetch + 1]:
            self._embedding.prefetch(started)
        self._announced = min(len(lookups), self._known + 1) - 1
        return self._queue.popleft()

    def _fill(self) -> None:
        """Start the lookups of batches up to one beyond those that must be known."""
        while len(self._queue) < self._known + 2:
            batch = next(self._batches, None)
            if batch is None:
                return
            self._queue.append((batch, self._embedding.start(batch.sparse, batch.samples)))

    def close(self) -> None:
        """Wait for lookups that are under way, of batches that will not be trained on."""
        for _, started in self._queue:
            started.wait()


def look_ahead(
    embedding: ShardedEmbedding | DisaggregatedEmbedding,
    batches: Iterator[Batch],
    memory: MemoryConfig,
) -> Ahead:
    """As far ahead as the config says, where tables live in slow memory; else not at all."""
    if embedding.memory is None or embedding.memory.plain:
        return Ahead(embedding, batches, 0, 0)
    # only a policy that evicts by next use gains from lookups of batches further away
    known = memory.lookahead if POLICIES[memory.policy].next_use else 0
    return Ahead(embedding, batches, memory.prefetch, known)
