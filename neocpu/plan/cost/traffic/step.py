"""What will a training step send? Every call of every verb, its bytes by sender and receiver.

    step = StepShape(batch, leaves, parameters)
    demand = MeanDemand(plan.tables, pooling, sample_cuts(plan.ranks, batch, leaves))
    calls = step_traffic(plan, step, demand)

With a `CountedDemand` of the step's batch these are, call by call, the bytes that
`parallel/transport/comm.py` counts; with a `MeanDemand` they are expected ones. Calls stand in the
order in which a step makes them that is not pipelined (`core/stages.py`); other steps make the same
calls in another order, those for inputs a step earlier, dense ones for each half of the network.
All go straight from rank to rank. W ranks, K entries of the receiver, b samples of the sender:

    input lengths       i32, a status number and the bags of each entry and sample        [1 + K b]
                        (a number for each shard too, where equal rows travel once)
    input rows          i64, one for each lookup; or unique rows and positions
                        (`parallel/exchange/wire_formats.py`)
    input weights       f32, likewise, if any table is weighted
    pooled output       f32, columns of whole entries for each sample
    words               f64, columns of row-split entries; calls by route (`routes.py`)
    further counts      i64, 2 to each rank: how many words need more than one f64
    pooled gradients    f32, the way back of the pooled output
    word gradients      f32, the way back of words
    replica counts      i64, replicated tables to each rank: rows that follow
    replica rows        i64, rows that the sender's samples touched, to the rank that sums them
    replica words       f64, their gradients
    gathered counts     i64, replicated tables to each rank
    gathered rows       i64, touched rows, from the rank that summed them to all
    gathered gradients  f32, their gradients
    dense slices        f32, P/W parameters of each aligned node of the sender's leaves
    dense gather        f32, finished slices to all
    row scalars         f32, sums over columns of touched rows, for each phase that reads any

Of several replica groups each makes these calls among its ranks, and further ones are in
`groups.py`.

Pooled output, gradients and dense slices are codes where the step has wires
(`parallel/exchange/wire_formats.py`).

Not predicted, because only the numbers themselves decide it: words that do not fit one f64. They
travel in one more call after `further counts`, or as further replica words. Nearly always there are
none.
"""

from dataclasses import dataclass

import numpy as np

from neocpu.core.trees import aligned_nodes, rank_leaves
from neocpu.core.types import Ints
from neocpu.parallel.exchange.wire_formats import FP32, WireSpecs
from neocpu.parallel.sharding.plan import Plan
from neocpu.plan.cost.traffic.collectives import Collective
from neocpu.plan.cost.traffic.demand import Demand, Numbers, sample_cuts
from neocpu.plan.cost.traffic.groups import copies_traffic, refusals, side_by_side
from neocpu.plan.cost.traffic.routes import ROUTE_CALLS, groups_of
from neocpu.plan.cost.traffic.shard_columns import ShardColumns

INDEX = 8  # bytes of a row index, and of a count
LENGTH = 4  # of a bag's length
NUMBER = 4  # of an fp32 number
WORD = 8  # of an fp64 word


@dataclass(frozen=True)
class StepShape:
    """What decides a step's messages besides its plan and its lookups.

    batch : samples of the global batch. leaves : of the batch tree. parameters : dense ones.
    route : of row-split tables, a name in `parallel.routes.ROUTES`.
    row_scalars : numbers per row that each phase of the sparse optimizer reads of the whole row:
        `len(phase.of)` of each phase in `SparseOptimizer.rounds`.
    counts : the sparse optimizer reads how often each row is looked up, so replicas add that up.
    unique_rows : do equal rows travel once, one of `wire_formats.UNIQUE_ROWS`.
    wires : formats of pooled vectors, their gradients and dense gradients.
    """

    batch: int
    leaves: int
    parameters: int = 0
    route: str = "direct"
    row_scalars: tuple[int, ...] = ()
    counts: bool = False
    unique_rows: str = "off"
    wires: WireSpecs = FP32


def step_traffic(plan: Plan, step: StepShape, demand: Demand) -> tuple[Collective, ...]:
    """The calls of one training step, in their order. Raises KeyError for an unknown route."""
    samples = np.diff(sample_cuts(plan.ranks, step.batch, step.leaves))
    replicas = _replicas(plan, demand, step.counts)
    dense = dense_traffic(plan.ranks, step)
    group = plan.group
    rectangles = ShardColumns.of(group)
    scalars = _row_scalars(group, step, demand, rectangles)
    if plan.replica_groups == 1:
        lookups = _lookups(plan, rectangles, samples, step, demand)
        return (*lookups, *replicas, *dense, *scalars)
    ranks = group.ranks
    of_groups = [
        _lookups(
            group,
            rectangles,
            samples[first : first + ranks],
            step,
            demand.of_ranks(first, first + ranks),
        )
        for first in range(0, plan.ranks, ranks)
    ]
    return (
        refusals(plan),
        *side_by_side(of_groups, ranks),
        *replicas,
        *dense,
        *copies_traffic(plan, demand, step.counts),
        *side_by_side([scalars] * plan.replica_groups, ranks),
    )


def _lookups(
    plan: Plan, rectangles: ShardColumns, samples: Ints, step: StepShape, demand: Demand
) -> list[Collective]:
    """The calls that take lookups to rectangles, vectors home and gradients back."""
    # nothing of the embedding leaves the rank, not even to itself
    if _alone(rectangles, step):
        return []
    words: list[Collective] = []
    gradients: list[Collective] = []
    if rectangles.parts.any():
        words_of, gradients_of = ROUTE_CALLS[step.route]
        words = words_of(groups_of(rectangles, samples, plan.ranks_per_node))
        back = step.wires.backward
        # in bytes, since gradients may be codes, which a count of columns does not tell
        gradients = gradients_of(groups_of(rectangles, samples, plan.ranks_per_node, back))
        words.append(_equal("further counts", plan.ranks, 2 * INDEX))
    pooled, pooled_gradients = _whole(rectangles, samples, step.wires)
    lookups = _input(plan, rectangles, samples, demand, step.unique_rows)
    return [*lookups, *pooled, *words, *pooled_gradients, *gradients]


def dense_traffic(ranks: int, step: StepShape) -> list[Collective]:
    """The two calls of the dense reduction: slices to their owners, finished slices to all."""
    if ranks == 1:
        return []
    nodes = [
        sum(1 for _ in aligned_nodes(*rank_leaves(rank, ranks, step.leaves)))
        for rank in range(ranks)
    ]
    widths = np.diff(np.arange(ranks + 1, dtype=np.int64) * step.parameters // ranks)
    sizes = step.wires.dense.bytes(widths)
    slices = np.array(nodes, np.int64)[:, None] * sizes
    finished = np.broadcast_to(sizes[:, None], (ranks, ranks))
    return [
        Collective("dense slices", "alltoallv", slices),
        Collective("dense gather", "allgatherv", finished),
    ]


def _alone(rectangles: ShardColumns, step: StepShape) -> bool:
    """One rank that holds every table whole: lookups are used where they are."""
    cut = rectangles.copies | rectangles.parts
    if any(step.row_scalars):
        cut = cut | rectangles.narrow
    pieces = np.bincount(rectangles.table) if rectangles.table.size else np.zeros(0, np.int64)
    return rectangles.ranks == 1 and not cut.any() and not (pieces > 1).any()


def _equal(name: str, ranks: int, size: int) -> Collective:
    """An alltoallv of equal messages."""
    return Collective(name, "alltoallv", np.full((ranks, ranks), size, np.int64))


def _input(
    plan: Plan, rectangles: ShardColumns, samples: Ints, demand: Demand, unique_rows: str
) -> list[Collective]:
    """The calls of the input distribution."""
    entries = rectangles.sum_by_rank(rectangles.keys, ~rectangles.copies)
    lookups = demand.lookups(rectangles)
    heads = np.ones(plan.ranks, np.int64)
    if unique_rows != "off":
        shards = np.ones(rectangles.table.size, np.int64)
        # each segment tells its unique rows in the head of the lengths, so that both sides agree
        heads += rectangles.sum_by_rank(shards, ~rectangles.copies)
    lengths = LENGTH * (heads + samples[:, None] * entries)
    calls = [
        Collective("input lengths", "alltoallv", lengths),
        Collective("input rows", "alltoallv", INDEX * demand.row_words(rectangles, unique_rows)),
    ]
    if any(table.weighted for table in plan.tables):
        calls.append(Collective("input weights", "alltoallv", NUMBER * lookups))
    return calls


def _whole(
    rectangles: ShardColumns, samples: Ints, wires: WireSpecs
) -> tuple[list[Collective], list[Collective]]:
    """The calls of pooled output and of its gradients."""
    whole = ~rectangles.copies & ~rectangles.parts
    if not whole.any():
        return [], []
    forward, backward = (
        rectangles.sum_by_rank(rectangles.wire_bytes(wire), whole)[:, None] * samples
        for wire in (wires.forward, wires.backward)
    )
    output = Collective("pooled output", "alltoallv", forward)
    # gradients go the way back: senders and receivers change places
    back = np.ascontiguousarray(backward.T)
    return [output], [Collective("pooled gradients", "alltoallv", back)]


def _replicas(plan: Plan, demand: Demand, counted: bool) -> list[Collective]:
    """The calls of replicated tables (`parallel/embeddings/replicas.py`)."""
    tables = [table for table in range(len(plan.tables)) if plan.replicated(table)]
    if not tables:
        return []
    ranks = plan.ranks
    ones = np.ones(len(tables), np.int64)
    # one more column counts how often each row was looked up
    widths = np.array([plan.tables[table].dim + counted for table in tables], np.int64)
    counts = INDEX * len(tables)
    rows = INDEX * demand.replica_rows(tables, ones)
    words = WORD * demand.replica_rows(tables, widths)
    sums = INDEX * demand.replica_sums(tables, ones)
    gradients = NUMBER * demand.replica_sums(tables, widths)
    everywhere = (ranks, ranks)
    return [
        _equal("replica counts", ranks, counts),
        Collective("replica rows", "alltoallv", rows),
        Collective("replica words", "alltoallv", words),
        _equal("gathered counts", ranks, counts),
        Collective("gathered rows", "allgatherv", np.broadcast_to(sums[:, None], everywhere)),
        Collective(
            "gathered gradients", "allgatherv", np.broadcast_to(gradients[:, None], everywhere)
        ),
    ]


def _row_scalars(
    plan: Plan, step: StepShape, demand: Demand, rectangles: ShardColumns
) -> list[Collective]:
    """The calls that share row scalars between rectangles of the same rows
    (`parallel/embeddings/scalars.py`).

    A rectangle sends the maximal aligned nodes of its columns to each that has others.
    """
    if not any(step.row_scalars) or not rectangles.narrow.any():
        return []
    narrow = rectangles.select(np.flatnonzero(rectangles.narrow))
    amounts: Numbers = np.zeros((plan.ranks, plan.ranks), np.int64)
    # pairs are of one table, so they are listed table by table
    order = np.argsort(narrow.table, kind="stable")
    ends = np.flatnonzero(np.diff(narrow.table[order], append=-1)) + 1
    for members in np.split(order, ends[:-1]):
        number = int(narrow.table[members[0]])
        table = narrow.select(members)
        dim = plan.tables[number].dim
        lo = np.maximum(table.lo[:, None], table.lo)
        hi = np.minimum(table.hi[:, None], table.hi)
        others = (table.left[:, None] != table.left) | (table.right[:, None] != table.right)
        source, target = np.nonzero(others & (lo < hi))
        nodes = _column_nodes(table, dim)
        rows = demand.unique(number, lo[source, target], hi[source, target])
        sums = np.bincount(
            table.rank[source] * plan.ranks + table.rank[target],
            nodes[source] * rows,
            plan.ranks**2,
        ).reshape(amounts.shape)
        # not in place: expected rows are f64, which an i64 array would not take
        amounts = amounts + sums.astype(rows.dtype)
    return [
        Collective("row scalars", "alltoallv", NUMBER * scalars * amounts, hop=phase)
        for phase, scalars in enumerate(step.row_scalars, 1)
        if scalars
    ]


def _column_nodes(table: ShardColumns, dim: int) -> Ints:
    """Maximal aligned nodes of the column tree that each rectangle of one table sends: i64[S]."""
    # the tree's leaves are a power of two; the last shard stands for those beyond the table too
    root = 1 << (dim - 1).bit_length()
    spans = np.stack([table.left, np.where(table.right == dim, root, table.right)], axis=1)
    distinct, inverse = np.unique(spans, axis=0, return_inverse=True)
    counts = [sum(1 for _ in aligned_nodes(lo, hi)) for lo, hi in distinct.tolist()]
    return np.array(counts, np.int64)[inverse]
