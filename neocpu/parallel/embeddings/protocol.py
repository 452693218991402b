"""What does a training step ask of the tables, however they are spread and pooled?

    start ... know ... prefetch      a coming batch: its lookups travel, its rows are brought up
    lookup -> send -> finish         rows are pooled, and their vectors come home
    start_backward -> ...            gradients go to the shards, and rows are updated

All methods are collective: every rank calls them in the same order.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from neocpu.core.jagged import KJT, InverseKJT
from neocpu.core.types import Floats
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.transport.started import Started, Waitable
from neocpu.tables.embedding.tbe import TableBatchedEmbedding

if TYPE_CHECKING:
    from neocpu.tables.embedding.lookups import KeyLookups, RowTerms

# what arrives on this rank of a batch's lookups
Arrived = TypeVar("Arrived")


class LookupUnderWay(Protocol):
    """Rows of a batch: of this rank's shards, then on their way, then at home."""

    def send(self) -> None:
        """Send the pooled rows on their way."""

    def wait(self) -> None:
        """Wait until the rows are here."""

    def finish(self, out: Floats) -> tuple["KeyLookups", ...]:
        """Wait for the rows, and write pooled vectors into the columns of E f32[b, columns],
        C-contiguous, from `first_column` on; the lookups of each key without pooling.

        Call it once, before the next `lookup`. Raises ValueError for E of another shape or dtype.
        """


class UpdateUnderWay(Protocol):
    """The backward pass of a batch's tables: gradients on their way to the shards, and what is done
    with them.

    Call `merge_replicas`, `start_replicas`, `update_shards` and `update_replicas` once each, in
    this order.
    """

    def wait(self) -> None:
        """Wait until the gradients of this rank's shards are here."""

    def merge_replicas(self) -> None:
        """Merge the gradients of this rank's samples, for each replicated table."""

    def start_replicas(self) -> Waitable | None:
        """Begin to add the merged gradients of all ranks; None without replicated tables."""

    def update_shards(self) -> None:
        """Update the rows of this rank's shards."""

    def update_replicas(self) -> None:
        """Update the rows of replicated tables; the backward pass of all tables is over."""


class Embedding(Protocol[Arrived]):
    """The tables of a model, spread over the ranks.

    env : what they were built from. keys : of a batch. columns : of E. tbe : this rank's rows,
    shard i those of `plan.local(rank)[i]`.
    """

    env: ShardingEnv
    keys: tuple[str, ...]
    columns: int
    tbe: TableBatchedEmbedding

    def start(self, kjt: KJT | InverseKJT, batch: int) -> Started[Arrived]:
        """Begin to send the lookups of a coming batch to the shards that hold their rows.

        kjt : bags of this rank's samples of a global batch of `batch`. Any number of batches may be
        on their way.

        Raises IndexRangeError on every rank, from here or from `wait`: a row outside [-1, rows) of
        its table, malformed lengths, other keys or another number of samples.
        """

    def know(self, coming: Started[Arrived]) -> None:
        """Wait for the lookups of a batch; batches become known in the order of their turns, so
        that memories can plan for them. Raises as `start`.
        """

    def prefetch(self, coming: Started[Arrived]) -> None:
        """Begin to bring up the rows of a batch that is known, while others are at work."""

    def lookup(self, coming: Started[Arrived]) -> LookupUnderWay:
        """Look up and pool the rows of a batch in this rank's shards; `send` them then. Raises as
        `start`.
        """

    def forward(self, kjt: KJT | InverseKJT | Started[Arrived], batch: int) -> LookupUnderWay:
        """`start`, if need be, `lookup` and `send` in one: the rows are on their way home when this
        returns. Raises as `start`.
        """
        coming = kjt if isinstance(kjt, Started) else self.start(kjt, batch)
        pooled = self.lookup(coming)
        pooled.send()
        return pooled

    def start_backward(
        self, gradient: Floats, step: int, terms: Sequence["RowTerms"] = ()
    ) -> UpdateUnderWay:
        """Begin to update the rows that the last `lookup` read: the gradient is on its way to the
        shards when this returns.

        gradient : dE f32[b, columns], which is not modified. step : of the optimizer, from 1.
        terms : gradients of the keys without pooling, in their order; none where all keys pool.

        Raises RuntimeError where no lookup waits for its backward pass.
        """

    def backward(self, gradient: Floats, step: int, terms: Sequence["RowTerms"] = ()) -> None:
        """`start_backward` and all that follows, with nothing in between."""
        update = self.start_backward(gradient, step, terms)
        update.merge_replicas()
        update.start_replicas()
        update.update_shards()
        update.update_replicas()
