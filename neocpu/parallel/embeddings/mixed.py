"""How are tables looked up of which some are pooled and others are not? By two embeddings side by
side over the rows of one rank.

    start      counts of lookups -> [pooled: lengths, rows | unpooled: lengths, rows]
    finish(E)  pooled vectors into E; rows of lookups beside it
    backward   dE, and a gradient for each lookup

What is pooled goes through `sharded.py`, the rest through `unpooled.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neocpu.core.jagged import KJT, InverseKJT
from neocpu.core.trees import leaf_cuts, rank_leaves, rank_samples
from neocpu.core.types import Floats, Ints
from neocpu.parallel.embeddings.protocol import Embedding, LookupUnderWay, UpdateUnderWay
from neocpu.parallel.embeddings.sharded import ShardedEmbedding, StartedLookup, StartedUpdate
from neocpu.parallel.embeddings.unpooled import RowsInput, StartedRows, UnpooledEmbedding
from neocpu.parallel.exchange.input_dist import Input, find_refusal, wide_rows
from neocpu.parallel.exchange.repeated_bags import together
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.started import Finished, Started, Steps, Waitable
from neocpu.tables.embedding.distinct_bags import expand
from neocpu.tables.embedding.lookups import KeyLookups, RowTerms
from neocpu.tables.specs.specs import bags


@dataclass(frozen=True)
class MixedInput:
    """The lookups of one batch in place; keys : of each key without pooling, `values` empty."""

    pooled: Input
    rows: RowsInput
    keys: tuple[KeyLookups, ...]


def _numbers(rows: Ints, height: int) -> Ints:
    """The number of each row i64[n] among the distinct ones, ascending; rows of [-1, height)."""
    if height > 8 * rows.size:
        # sorting few lookups is cheaper than a pass over the height of a large table
        return np.unique(rows, return_inverse=True)[1].astype(np.int64)
    seen = np.zeros(height + 1, np.int64)
    seen[rows + 1] = 1
    return (np.cumsum(seen) - 1)[rows + 1]


def plan_of_pooled(plan: Plan) -> Plan:
    """The plan as its pooled tables see it: tables without pooling have no keys."""
    tables = tuple(
        # no keys, but its shards stay: positions among them are those of the TBE that both share
        replace(table, features=(), weighted=False, maps=()) if table.pooling == "none" else table
        for table in plan.tables
    )
    return replace(plan, tables=tables)


class MixedEmbedding(Embedding[MixedInput]):
    """The tables of a model, some of them without pooling.

    distinct : keys without pooling (positions in a batch) that look each row up once per rank;
    their gradients must name rows.

    Attributes: unpooled, positions of the keys without pooling.
    """

    def __init__(self, env: ShardingEnv, distinct: frozenset[int] = frozenset()) -> None:
        self.env = env
        self.bags = bags(env.plan.tables)
        self.keys = tuple(bag.key for bag in self.bags)
        self.tbe = env.rank_tables()
        of_pooled = replace(env, plan=plan_of_pooled(env.plan), groups=())
        self._pooled = ShardedEmbedding(of_pooled, self.tbe)
        self._rows = UnpooledEmbedding(env, self.tbe)
        self.unpooled = self._rows.keys
        self.columns = self._pooled.columns
        self._distinct = distinct
        self._pooled_keys = [k for k in range(len(self.keys)) if k not in set(self.unpooled)]
        self._lookups: tuple[KeyLookups, ...] = ()

    # ---- forward ----

    def start(self, kjt: KJT | InverseKJT, batch: int) -> Started[MixedInput]:
        """Repeated bags travel as often as they are looked up."""
        kjt = wide_rows(expand(kjt) if isinstance(kjt, InverseKJT) else kjt)
        comm = self.env.comm
        lo, hi = rank_samples(comm.rank, comm.size, batch, self.env.leaves)
        error = find_refusal(kjt, self.env.plan.tables, self.bags, hi - lo, lo)
        if error is not None and comm.size == 1:
            raise error
        queue = self._pooled.all_keys.input.comm
        accepted = kjt if error is None else None
        steps = self._steps(accepted, batch, lambda: queue.agree(error))
        return Started(steps, queue.stream)

    def _leaves(self, batch: int) -> Ints:
        """First sample of each of this rank's leaves, and the end, counted from its first one."""
        lo, hi = rank_leaves(self.env.comm.rank, self.env.comm.size, self.env.leaves)
        cuts = np.array(leaf_cuts(batch, self.env.leaves)[lo : hi + 1], np.int64)
        return cuts - cuts[0]

    def _steps(self, kjt: KJT | None, batch: int, agree: Callable[[], None]) -> Steps[MixedInput]:
        leaves = self._leaves(batch)
        keys = (
            None if kjt is None else tuple(self._key_lookups(kjt, k, leaves) for k in self.unpooled)
        )
        rows = None if keys is None else [self._rows_of(lookups) for lookups in keys]
        cuts = yield from self._rows.cuts(rows, agree)
        assert kjt is not None and keys is not None and rows is not None
        shape = self._pooled.exchange.shape(batch)
        pooled = self._pooled.all_keys.input.steps(self._pooled_bags(kjt), shape)
        exchanges: list[Steps[Input | RowsInput]] = [
            pooled,
            self._rows.input(rows, cuts),
        ]
        # side by side: lengths of both are under way before rows of either
        of_pooled, of_rows = yield from together(exchanges)
        assert isinstance(of_pooled, Input) and isinstance(of_rows, RowsInput)
        return MixedInput(of_pooled, of_rows, keys)

    def _key_lookups(self, kjt: KJT, key: int, leaves: Ints) -> KeyLookups:
        """The lookups of a key without pooling, before their rows are there."""
        samples = kjt.samples
        spec = self.env.plan.tables[self.bags[key].table]
        offsets = kjt.offsets[key * samples : (key + 1) * samples + 1]
        span = slice(int(offsets[0]), int(offsets[-1]))
        lines = None
        if key in self._distinct:
            lines = _numbers(kjt.values[span], spec.rows)
        return KeyLookups(
            offsets=offsets - offsets[0],
            rows=kjt.values[span],
            values=np.empty((0, 0), np.float32),
            lines=lines,
            weights=kjt.weights[span] if spec.weighted and kjt.weights is not None else None,
            leaves=leaves,
        )

    def _rows_of(self, lookups: KeyLookups) -> Ints:
        """The rows of a key that are looked up."""
        if lookups.lines is None:
            return lookups.rows
        distinct = np.empty(int(lookups.lines.max(initial=-1)) + 1, np.int64)
        distinct[lookups.lines] = lookups.rows
        return distinct

    def _pooled_bags(self, kjt: KJT) -> KJT:
        """The bags of the pooled keys."""
        samples = kjt.samples
        starts = kjt.offsets[:: max(samples, 1)] if samples else np.zeros(len(self.keys) + 1, int)
        spans = [slice(int(starts[k]), int(starts[k + 1])) for k in self._pooled_keys]
        weights = None
        if kjt.weights is not None:
            weights = np.concatenate([kjt.weights[:0], *(kjt.weights[span] for span in spans)])
        return KJT(
            keys=self._pooled.keys,
            lengths=np.ascontiguousarray(kjt.lengths[self._pooled_keys]),
            values=np.concatenate([kjt.values[:0], *(kjt.values[span] for span in spans)]),
            weights=weights,
        )

    def know(self, coming: Started[MixedInput]) -> None:
        arrived = coming.wait()
        self._pooled.know(Finished(arrived.pooled))
        self._rows.know(arrived.rows)

    def prefetch(self, coming: Started[MixedInput]) -> None:
        arrived = coming.wait()
        self._pooled.prefetch(Finished(arrived.pooled))
        self._rows.prefetch(arrived.rows)

    def lookup(self, coming: Started[MixedInput]) -> "MixedLookup":
        arrived = coming.wait()
        pooled = self._pooled.lookup(Finished(arrived.pooled))
        rows = self._rows.lookup(arrived.rows)
        self._lookups = arrived.keys
        return MixedLookup(pooled, rows, arrived.keys)

    # ---- backward ----

    def start_backward(
        self, gradient: Floats, step: int, terms: Sequence[RowTerms] = ()
    ) -> "MixedUpdate":
        """If any of the terms names its rows, the lookups of all are distributed anew."""
        pooled = self._pooled.start_backward(gradient, step)
        rows = None
        if any(term.rows is not None for term in terms):
            # all keys, since their lookups travel as one set of messages
            rows = [
                lookups.rows if term.rows is None else term.rows
                for term, lookups in zip(terms, self._lookups)
            ]
        gradients = [self._weighted(*pair) for pair in zip(terms, self._lookups)]
        updated = self._rows.start_backward(gradients, step, rows)
        return MixedUpdate(self, pooled, updated)

    def _weighted(self, term: RowTerms, lookups: KeyLookups) -> Floats:
        """The gradient of rows from that of rows times weights."""
        if term.rows is not None or lookups.weights is None:
            return term.gradient
        # the term of a lookup is fl(w·g), made at home (docs/arithmetic.md §3)
        return term.gradient * lookups.weights[:, None]


class MixedLookup(LookupUnderWay):
    """Pooled vectors and rows of a batch."""

    def __init__(
        self, pooled: StartedLookup, rows: StartedRows, keys: tuple[KeyLookups, ...]
    ) -> None:
        self._pooled = pooled
        self._rows = rows
        self._keys = keys

    def send(self) -> None:
        self._pooled.send()
        self._rows.send()

    def wait(self) -> None:
        self._pooled.wait()
        self._rows.wait()

    def finish(self, out: Floats) -> tuple[KeyLookups, ...]:
        self._pooled.finish(out)
        rows = self._rows.finish()
        for lookups, values in zip(self._keys, rows):
            # a line that several lookups share has no one weight: the model multiplies those
            if lookups.weights is not None and lookups.lines is None:
                np.multiply(values, lookups.weights[:, None], out=values)
        return tuple(replace(lookups, values=values) for lookups, values in zip(self._keys, rows))


class MixedUpdate(UpdateUnderWay):
    """The backward pass of tables with and without pooling."""

    def __init__(self, owner: MixedEmbedding, pooled: StartedUpdate, rows: StartedUpdate) -> None:
        self._owner = owner
        self._updates = (pooled, rows)

    def wait(self) -> None:
        for update in self._updates:
            update.wait()

    def merge_replicas(self) -> None:
        for update in self._updates:
            update.merge_replicas()

    def start_replicas(self) -> "MixedReplicas | None":
        started = [update.start_replicas() for update in self._updates]
        under_way = [exchange for exchange in started if exchange is not None]
        return MixedReplicas(under_way) if under_way else None

    def update_shards(self) -> None:
        for update in self._updates:
            update.update_shards()

    def update_replicas(self) -> None:
        for update in self._updates:
            # both work on one TBE, which is settled once, when the last is done
            update.update_replicas(settle=False)
        self._owner.tbe.settle()


class MixedReplicas:
    """Sums of replicated tables under way."""

    def __init__(self, exchanges: Sequence[Waitable]) -> None:
        self._exchanges = exchanges

    def wait(self) -> None:
        """Wait for all of them."""
        for exchange in self._exchanges:
            exchange.wait()
