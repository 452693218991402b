"""How do lookups reach the shards and pooled rows come back? Through one engine that knows only
rectangles.

    input_dist     lookups to the shards that hold their rows          (input_dist.py)
    output_dist    pooled vectors home, and their gradients back       (output_dist.py)

Every plan is the same to it: `entries.py` lists which key meets which shard. Samples are spread as
the leaves of the batch are (`trees.rank_samples`), so the blocks of all ranks, one below the other,
are the global batch. Lookups travel on a queue of their own (`Comm.queue`), so that those of coming
batches may be on their way during a step.

A wire rounds vectors that do not travel too (`HomeRounding`), so a pooled vector and its gradient
are the same numbers under every plan (`docs/arithmetic.md` §13).
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from neocpu.core.jagged import KJT, InverseKJT
from neocpu.core.types import Floats, Ints
from neocpu.parallel.exchange.input_dist import Input
from neocpu.parallel.exchange.key_set import KeySet
from neocpu.parallel.exchange.output_dist import Output, PooledRows, ShardGradients
from neocpu.parallel.exchange.shapes import Shape
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.exchange.wires import Rounding
from neocpu.parallel.sharding.entries import entries_of_ranks, key_columns
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.started import Started
from neocpu.tables.specs.specs import bags

if TYPE_CHECKING:
    from neocpu.parallel.exchange.repeated_bags import RepeatedBags

MOST_SHAPES = 64


class MeanColumns(NamedTuple):
    """Keys that pool by MEAN, first columns in E, and widths: i64[n] each."""

    key: Ints
    column: Ints
    width: Ints


class Exchange:
    """The exchanges of one rank for one plan, any batch size; all ranks call its methods in the
    same order.

    row_scalars : numbers per row that the sparse optimizer needs of the whole row (`entries.py`).

    Attributes: alone, does this one rank hold every table whole, so that lookups are used where
    they are and rows land where they belong? ranks, entries of all ranks; all_keys, the exchanges
    of all keys together; repeated, those of groups whose bags stand once, None without groups.
    """

    def __init__(self, env: ShardingEnv, row_scalars: int) -> None:
        self.env = env
        self.bags = bags(env.plan.tables)
        self.columns = int(key_columns(env.plan.tables, env.first_column)[-1])
        self.ranks = entries_of_ranks(env.plan, env.first_column, row_scalars)
        self.my_entries = self.ranks[env.comm.rank]
        self.mean_columns = self._find_mean_columns()
        # alone, lookups are used in place and pooled into E: nothing is copied for messages
        whole_tables = self.my_entries.spans.whole.stop
        travelling = len(self.my_entries.travel)
        self.alone = env.comm.size == 1 and travelling == len(self.bags) == whole_tables
        self.all_keys = KeySet(env, self.ranks, self.alone)
        self.repeated = self._repeated_bags() if env.groups else None
        self._shapes: dict[int, Shape] = {}

    def shape(self, batch: int) -> Shape:
        """Counts and jobs for a global batch of this many samples, computed once."""
        if batch not in self._shapes:
            # a data set ends in one odd batch; only tests use many sizes
            if len(self._shapes) > MOST_SHAPES:
                self._shapes.clear()
            cuts = self.env.sample_cuts(batch)
            heads = self.all_keys.input.heads
            self._shapes[batch] = Shape(self.ranks, self.env.comm.rank, cuts, self.columns, heads)
        return self._shapes[batch]

    def _repeated_bags(self) -> "RepeatedBags":
        """The exchanges of groups whose bags stand once."""
        from neocpu.parallel.exchange.repeated_bags import RepeatedBags

        return RepeatedBags(self.env, self.ranks, self.alone)

    def _find_mean_columns(self) -> MeanColumns | None:
        """Those of the keys that pool by MEAN; None if there are none."""
        tables = self.env.plan.tables
        columns = key_columns(tables, self.env.first_column)
        keys = [key for key, bag in enumerate(self.bags) if tables[bag.table].pooling == "mean"]
        if not keys:
            return None
        return MeanColumns(np.array(keys, np.int64), columns[keys], np.diff(columns)[keys])

    def start_input(self, batch: KJT | InverseKJT, samples: int) -> Started[Input]:
        """Send the lookups of this rank's samples of a global batch to the shards that hold their
        rows; see `InputDist.start`.
        """
        if self.repeated is not None:
            return self.repeated.start(batch, self.shape(samples))
        if isinstance(batch, InverseKJT):
            from neocpu.tables.embedding.distinct_bags import expand

            batch = expand(batch)
        return self.all_keys.input.start(batch, self.shape(samples))

    def release(self, batch_input: Input) -> None:
        """Its memory is free for a coming input."""
        if self.repeated is not None:
            self.repeated.release(batch_input)
        else:
            self.all_keys.input.release(batch_input)

    def start_output(self, shape: Shape, pooled: PooledRows) -> Output:
        """Send pooled rows home; see `OutputDist.start_output`."""
        return self.all_keys.output.start_output(shape, pooled)

    def start_gradients(self, shape: Shape, gradient: Floats) -> Started[ShardGradients]:
        """Send gradients of pooled rows to the shards; see `OutputDist.start_gradients`."""
        return self.all_keys.output.start_gradients(shape, gradient)


class HomeRounding:
    """The columns that are rounded at the sample's home: those of replicated tables, of row-split
    ones, whose exact words travel, and all where one rank holds everything.

    exchange : of all keys.
    """

    def __init__(self, exchange: Exchange) -> None:
        env = exchange.env
        copies = exchange.my_entries.copies
        homes = copies.home
        widths = copies.width
        if exchange.alone:
            columns = key_columns(env.plan.tables, env.first_column)
            homes = columns[:-1]
            widths = np.diff(columns)
        self._gradients: Rounding | None = None
        self._pooled: Rounding | None = None
        self._buffers = Buffers()
        wires = env.wire_set
        if wires.backward is not None:
            self._gradients = Rounding(wires.backward, homes, widths, exchange.columns)
        if wires.forward is not None:
            routed = exchange.all_keys.output.routed
            if routed is not None:
                # sums of row-split tables travel as exact words, their gradients as codes
                homes = np.concatenate([homes, routed.home])
                widths = np.concatenate([widths, routed.width])
            self._pooled = Rounding(wires.forward, homes, widths, exchange.columns)

    def pooled(self, E: Floats) -> None:
        """Round pooled vectors in place."""
        if self._pooled is not None:
            self._pooled(E, E)

    def gradient(self, gradient: Floats) -> Floats:
        """The gradient of columns that do not travel, as the wire leaves it; others undefined."""
        if self._gradients is None:
            return gradient
        rounded = self._buffers.matrix("gradient", gradient.shape[0], gradient.shape[1], np.float32)
        self._gradients(gradient, rounded)
        return rounded
