"""How do lookups reach the shards and pooled rows come back? Through one engine that knows only
rectangles.

    input_dist     lookups to the shards that hold their rows          (input_dist.py)
    output_dist    pooled vectors home, and their gradients back       (output_dist.py)

Every plan is the same to it: `entries.py` lists which key meets which shard. Samples are spread as
the leaves of the batch are (`trees.rank_samples`), so the blocks of all ranks, one below the other,
are the global batch. Lookups travel on a queue of their own (`Comm.queue`), so that those of coming
batches may be on their way during a step.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from neocpu.core.jagged import KJT, InverseKJT
from neocpu.core.trees import rank_samples
from neocpu.parallel.exchange.input_dist import Input, InputDist
from neocpu.parallel.exchange.output_dist import Output, OutputDist
from neocpu.parallel.exchange.repeated_bags import ExchangeOptions, RepeatedBags
from neocpu.parallel.exchange.shapes import Shape
from neocpu.parallel.exchange.shipment import Spill
from neocpu.parallel.exchange.wires import EXACT, WireSet
from neocpu.parallel.sharding.entries import Ints, entries_of_ranks, key_columns
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.started import Started
from neocpu.tables.embedding.distinct_bags import expand
from neocpu.tables.specs.feature_groups import Groups
from neocpu.tables.specs.specs import bags

Floats = NDArray[np.float32]


class Exchange:
    """The exchanges of one rank for one plan, any batch size; all ranks call its methods in the
    same order.

    Parameters
    ----------
    plan, comm, leaves : who holds which rectangle, the ranks, and how samples are spread over them.
    first_column : columns of E before the first pooled vector.
    row_scalars : numbers per row that the sparse optimizer needs of the whole row (`entries.py`).
    route : a name in `routes.ROUTES`, for the words of row-split tables.
    unique_rows : whether equal rows asked of one shard travel once, a name in
        `message_sizes.UNIQUE_ROWS`.
    wires : of pooled vectors and their gradients.
    cuts : batch size -> i64[W+1], first sample of each rank and the end (None: as the leaves are
        spread over the ranks).
    groups : keys whose repeated bags travel once (`embedding.feature_groups.key_groups`).

    Attributes: alone, does this one rank hold every table whole, so that lookups are used where
    they are and rows land where they belong? ranks, entries of all ranks; my_entries, of this one;
    repeated, the parts of the batch, None without groups.
    """

    def __init__(
        self,
        plan: Plan,
        comm: Comm,
        leaves: int,
        first_column: int,
        row_scalars: int,
        route: str = "direct",
        unique_rows: str = "off",
        wires: WireSet = EXACT,
        cuts: Callable[[int], Ints] | None = None,
        groups: Groups = (),
    ) -> None:
        self.plan = plan
        self.comm = comm
        self.leaves = leaves
        self._cuts = cuts or self._leaf_cuts
        self.bags = bags(plan.tables)
        self.columns = int(key_columns(plan.tables, first_column)[-1])
        self.ranks = entries_of_ranks(plan, first_column, row_scalars)
        self.my_entries = self.ranks[comm.rank]
        self.mean_columns = self._find_mean_columns(first_column)
        self.alone = (
            comm.size == 1
            and len(self.my_entries.travel) == len(self.bags) == self.my_entries.cuts[1]
        )
        self.input = InputDist(plan, comm.queue("input"), self.ranks, self.alone, unique_rows)
        self.output = OutputDist(plan, comm, self.ranks, route, wires)
        self.repeated: RepeatedBags | None = None
        if groups:
            options = ExchangeOptions(plan, comm, route, unique_rows, wires, self.alone)
            self.repeated = RepeatedBags(options, self.ranks, groups, first_column)
        self._shapes: dict[int, Shape] = {}

    def shape(self, batch: int) -> Shape:
        """Counts and jobs for a global batch of this many samples, computed once."""
        if batch not in self._shapes:
            # a data set ends in one odd batch; only tests use many sizes
            if len(self._shapes) > 64:
                self._shapes.clear()
            self._shapes[batch] = Shape(
                self.ranks, self.comm.rank, self._cuts(batch), self.columns, self.input.heads
            )
        return self._shapes[batch]

    def _leaf_cuts(self, batch: int) -> Ints:
        ranks = self.comm.size
        first = [rank_samples(rank, ranks, batch, self.leaves)[0] for rank in range(ranks)]
        return np.array([*first, batch], np.int64)

    def _find_mean_columns(self, first_column: int) -> tuple[Ints, Ints, Ints] | None:
        """(key, first column in E, width) of the keys that pool by MEAN; None if there are none."""
        columns = key_columns(self.plan.tables, first_column)
        keys = [
            key
            for key, bag in enumerate(self.bags)
            if self.plan.tables[bag.table].pooling == "mean"
        ]
        if not keys:
            return None
        return np.array(keys, np.int64), columns[keys], np.diff(columns)[keys]

    def start_input(self, batch: KJT | InverseKJT, samples: int) -> Started[Input]:
        """Send the lookups of this rank's samples of a global batch to the shards that hold their
        rows; see `InputDist.start`.
        """
        if self.repeated is not None:
            return self.repeated.start(batch, self.shape(samples))
        kjt = expand(batch) if isinstance(batch, InverseKJT) else batch
        return self.input.start(kjt, self.shape(samples))

    def release(self, batch_input: Input) -> None:
        """Its memory is free for a coming input."""
        if self.repeated is not None:
            self.repeated.release(batch_input)
        else:
            self.input.release(batch_input)

    def start_output(
        self, shape: Shape, whole: Floats, words: NDArray[np.float64], spill: Spill
    ) -> Output:
        """Send pooled rows home; see `OutputDist.start_output`."""
        return self.output.start_output(shape, whole, words, spill)

    def start_gradients(self, shape: Shape, gradient: Floats) -> Started[tuple[Floats, Floats]]:
        """Send gradients of pooled rows to the shards; see `OutputDist.start_gradients`."""
        return self.output.start_gradients(shape, gradient)
