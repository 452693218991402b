"""Are the predicted bytes of a training step those that the ranks count, call by call?"""

import time
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.parallel.embeddings.grouped import GroupedEmbedding
from neocpu.parallel.embeddings.sharded import ShardedEmbedding
from neocpu.parallel.exchange.routes import ROUTES
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.exchange.two_level import two_level
from neocpu.parallel.exchange.wire_formats import FP32, WireSpec, WireSpecs
from neocpu.parallel.exchange.wires import Wire
from neocpu.parallel.sharding.plan import Plan, place
from neocpu.parallel.sharding.schemes import SCHEMES, Shard
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.sent import Traffic
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.cost.traffic.collectives import Collective, link_report, total
from neocpu.plan.cost.traffic.demand import CountedDemand, MeanDemand, sample_cuts
from neocpu.plan.cost.traffic.routes import ROUTE_CALLS
from neocpu.plan.cost.traffic.step import StepShape, dense_traffic, step_traffic
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec, bags
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.layout import ModelLayout
from neocpu.train.step.step import StepOptions, TrainStep
from tests.two_level_calls import two_level_step

DENSE_FEATURES = 2
FIRST_COLUMN = 3  # width of the bottom MLP
PLAIN = (
    TableSpec("few", 3, 8, ("x", "y")),  # fewer rows than ranks; two features
    TableSpec("mean", 40, 12, ("y",), "mean"),  # a feature of two tables
    TableSpec("wide", 25, 36, ("z",)),
    TableSpec("both", 31, 20, ("u", "v"), "mean"),
    TableSpec("thin", 9, 1, ("w",)),
    TableSpec("odd", 17, 7, ("t",)),
    TableSpec("one", 1, 4, ("s",), "mean"),
)
WEIGHTED = (*PLAIN[:5], TableSpec("weights", 19, 16, ("t", "r"), "sum", True))
MIXED = (
    "row_wise",
    "data_parallel",
    "grid_shard",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "table_wise",
)
LAMB = SparseOptimizer("partial_rowwise_lamb", learning_rate=0.05, max_norm=0.5)
ADAGRAD = SparseOptimizer("exact_rowwise_adagrad", learning_rate=0.05)
SGD = SparseOptimizer("exact_sgd", learning_rate=0.05)
COUNTER = SparseOptimizer("adam_with_cowclip", learning_rate=0.05)


@dataclass(frozen=True)
class Case:
    """One training step under a plan."""

    schemes: tuple[str, ...]
    ranks: int
    ranks_per_node: int = 8
    route: str = "direct"
    tables: tuple[TableSpec, ...] = PLAIN
    optimizer: SparseOptimizer = ADAGRAD
    batch: int = 11
    leaves: int = 8
    alltoall: str = "direct"
    shards: tuple[Shard, ...] = ()  # of a plan that no scheme makes
    unique_rows: str = "off"
    top: tuple[int, ...] = (1,)
    wires: WireSpecs = FP32
    replica_groups: int = 1

    @property
    def plan(self) -> Plan:
        if self.shards:
            by_hand = ("by_hand",) * len(self.tables)
            return Plan(self.tables, by_hand, self.shards, self.ranks, self.ranks).check()
        schemes = [self.schemes[t % len(self.schemes)] for t in range(len(self.tables))]
        ranks_per_node = min(self.ranks_per_node, self.ranks)
        ranks = self.ranks // self.replica_groups
        of_group = place(self.tables, schemes, ranks, min(ranks_per_node, ranks))
        return of_group.in_groups(self.replica_groups, ranks_per_node)

    @property
    def kjt(self) -> KJT:
        """The global batch; some bags are empty, some lookups pruned."""
        rng = np.random.default_rng(self.batch)
        keys = bags(self.tables)
        lengths = rng.integers(0, 5, (len(keys), self.batch)).astype(np.int32)
        lengths[rng.random(lengths.shape) < 0.3] = 0
        heights = [self.tables[bag.table].rows for bag in keys]
        rows = [rng.integers(-1, h, n) for h, n in zip(heights, lengths.sum(axis=1))]
        values = np.concatenate([np.empty(0, np.int64), *rows])
        weights = rng.integers(1, 9, values.size).astype(np.float32) / 8
        return KJT(tuple(bag.key for bag in keys), lengths, values, weights)


@dataclass(frozen=True)
class Samples:
    """A rank's samples of the batch."""

    dense: np.ndarray
    sparse: KJT
    labels: np.ndarray
    samples: int


def rank_batch(comm: Comm, case: Case) -> Samples:
    kjt = case.kjt
    lo, hi = rank_samples(comm.rank, comm.size, case.batch, case.leaves)
    starts = kjt.offsets[np.arange(len(kjt.keys)) * case.batch + lo]
    ends = kjt.offsets[np.arange(len(kjt.keys)) * case.batch + hi]
    picked = np.concatenate([np.arange(first, last) for first, last in zip(starts, ends)])
    lengths = np.ascontiguousarray(kjt.lengths[:, lo:hi])
    sparse = KJT(kjt.keys, lengths, kjt.values[picked], kjt.weights[picked])
    dense = np.ones((hi - lo, DENSE_FEATURES), np.float32)
    labels = (np.arange(lo, hi) % 2).astype(np.float32)
    return Samples(dense, sparse, labels, case.batch)


class Recorder(Traffic):
    """Traffic that remembers every call: (verb, bytes to each rank)."""

    def __init__(self, ranks: int = 0) -> None:
        super().__init__()
        self.ranks = ranks
        self.log: list[tuple[str, np.ndarray]] = []

    def add(self, verb: str, links: np.ndarray, ranks: np.ndarray, sizes: np.ndarray) -> None:
        # of all ranks, whatever comm the call is made on
        to_all = np.zeros(self.ranks or sizes.size, np.int64)
        to_all[ranks] = sizes
        self.log.append((verb, to_all))
        super().add(verb, links, ranks, sizes)


def train(
    comm: Comm, case: Case, pipeline: str = "off"
) -> tuple[list[tuple[str, np.ndarray]], dict]:
    """One training step; (this rank's calls, the traffic of all ranks)."""
    comm.sent = Recorder(case.ranks)  # before queues share it
    direct = comm
    if case.alltoall == "two_level":
        comm = two_level(comm)
    model = Dlrm(layout_of(case))
    env = ShardingEnv(
        case.plan,
        comm,
        case.optimizer,
        1,
        case.leaves,
        FIRST_COLUMN,
        case.route,
        unique_rows=case.unique_rows,
        wires=case.wires,
    )
    grouped = case.plan.replica_groups > 1
    embedding = GroupedEmbedding(env) if grouped else ShardedEmbedding(env)
    dense = DenseOptimizer(SGD, model.flat)
    wire = Wire.of(case.wires.dense, backward=True)
    step = TrainStep(model, embedding, dense, StepOptions(pipeline, wire=wire))
    step(rank_batch(comm, case), 1)
    log = list(comm.sent.log)
    return log, direct.traffic()


def layout_of(case: Case) -> ModelLayout:
    dims = [case.tables[bag.table].dim for bag in bags(case.tables)]
    return ModelLayout(DENSE_FEATURES, tuple(dims), (FIRST_COLUMN,), case.top, "cat", False, "bce")


def shape_of(case: Case) -> StepShape:
    scalars = tuple(len(phase.of) for phase in case.optimizer.rounds)
    return StepShape(
        batch=case.batch,
        leaves=case.leaves,
        parameters=layout_of(case).parameters,
        route=case.route,
        row_scalars=scalars,
        counts=case.optimizer.rule.counts,
        unique_rows=case.unique_rows,
        wires=case.wires,
    )


def predict(case: Case) -> tuple[Collective, ...]:
    cuts = sample_cuts(case.ranks, case.batch, case.leaves)
    step = shape_of(case)
    calls = step_traffic(case.plan, step, CountedDemand(case.tables, case.kjt, cuts))
    if case.alltoall == "direct":
        return calls
    return two_level_step(calls, step, np.arange(case.ranks) // case.plan.ranks_per_node)


def expect(case: Case) -> None:
    """Every call of every rank sends what is predicted, and sums by verb and link are equal."""
    calls = predict(case)
    ranks_per_node = min(case.ranks_per_node, case.ranks)
    counted = run_threads(case.ranks, partial(train, case=case), ranks_per_node=ranks_per_node)
    assert link_report(calls, np.arange(case.ranks) // ranks_per_node) == counted[0][1], case
    if case.alltoall != "direct":
        return  # stages of calls under way together are made in an order of their own
    for rank, (log, _) in enumerate(counted):
        # ranks without rectangles have no copies to agree with
        own = [call for call in calls if call.source is None or rank in call.source]
        assert [verb for verb, _ in log] == [call.verb for call in own], case
        for (_, sizes), call in zip(log, own):
            predicted = call.matrix(case.ranks)[rank]
            assert np.array_equal(sizes, predicted), (case, call.name, call.hop, rank)


@pytest.mark.parametrize("scheme", [*SCHEMES, "mixed"])
def test_every_scheme(scheme: str) -> None:
    schemes = MIXED if scheme == "mixed" else (scheme,)
    for ranks, ranks_per_node in ((1, 1), (2, 2), (3, 2), (4, 2), (8, 3)):
        expect(Case(schemes, ranks, ranks_per_node))
    expect(Case(schemes, 4, 4, tables=WEIGHTED))


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_every_route(route: str) -> None:
    for ranks, ranks_per_node in ((2, 1), (3, 2), (4, 2), (8, 3)):
        for scheme in ("row_wise", "table_row_wise", "grid_shard"):
            expect(Case((scheme,), ranks, ranks_per_node, route))
        expect(Case(MIXED, ranks, ranks_per_node, route, WEIGHTED))


def test_two_level_exchanges() -> None:
    """Even nodes, an uneven last one, and one rank that serves several places."""
    for ranks, ranks_per_node in ((4, 2), (8, 2), (3, 2), (8, 3), (5, 4)):
        expect(Case(MIXED, ranks, ranks_per_node, "two_level", WEIGHTED, alltoall="two_level"))
        expect(Case(("table_wise",), ranks, ranks_per_node, alltoall="two_level"))
    expect(Case(("column_wise",), 4, 2, optimizer=LAMB, alltoall="two_level"))
    expect(Case(("data_parallel",), 4, 1, alltoall="two_level"))


COMPRESSED = (
    WireSpecs(WireSpec("fp16"), WireSpec("bf16"), WireSpec("bf16")),
    WireSpecs(WireSpec("int8", 4), WireSpec("int4", 4), WireSpec("fp16")),
    WireSpecs(WireSpec("fp8", 4), WireSpec("fp8", 2)),
    WireSpecs(backward=WireSpec("int8", 4)),
)


@pytest.mark.parametrize("wires", COMPRESSED)
def test_compressed_wires(wires: WireSpecs) -> None:
    for route, (ranks, ranks_per_node) in zip(sorted(ROUTES), ((2, 2), (5, 2), (4, 2))):
        expect(Case(MIXED, ranks, ranks_per_node, route, wires=wires))
        expect(Case(MIXED[3:] + MIXED[:3], ranks, ranks_per_node, route, WEIGHTED, wires=wires))


def test_every_route_has_its_prediction() -> None:
    assert set(ROUTE_CALLS) == set(ROUTES)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_replica_groups(ranks: int) -> None:
    for groups in {2, ranks}:
        for scheme in ("row_wise", "table_wise", "column_wise"):
            expect(Case((scheme,), ranks, 2, replica_groups=groups))
        case = Case(MIXED, ranks, 1, "two_level", WEIGHTED, replica_groups=groups)
        expect(replace(case, optimizer=COUNTER, unique_rows="on"))


@pytest.mark.parametrize("scheme", ["column_wise", "grid_shard", "table_column_wise"])
def test_phases_that_read_row_scalars(scheme: str) -> None:
    """None, one number of each row, and two phases of which one reads two."""
    for optimizer in (SGD, ADAGRAD, LAMB):
        expect(Case((scheme,), 3, 2, optimizer=optimizer))
    expect(Case(MIXED, 8, 4, "two_level", optimizer=LAMB))


def test_a_pipelined_step_makes_the_same_calls_in_another_order() -> None:
    """Of its own batch; dense gradients in two buckets."""
    case = Case(MIXED, 4, 2, "two_level", WEIGHTED, top=(5, 3, 1))
    layout = layout_of(case)
    calls = [call for call in predict(case) if not call.name.startswith("dense ")]
    for parameters in (layout.upper.stop - layout.lower.stop, layout.lower.stop):
        calls += dense_traffic(case.ranks, replace(shape_of(case), parameters=parameters))
    for rank, (log, _) in enumerate(
        run_threads(case.ranks, partial(train, case=case, pipeline="full"), ranks_per_node=2)
    ):
        counted = sorted((verb, sizes.tolist()) for verb, sizes in log)
        assert counted == sorted((c.verb, c.matrix(case.ranks)[rank].tolist()) for c in calls)


@pytest.mark.parametrize("batch", [0, 1, 5, 16])
def test_odd_batches(batch: int) -> None:
    for ranks in (2, 3, 4):
        expect(Case(MIXED, ranks, 2, "two_level", WEIGHTED, batch=batch))
    expect(Case(MIXED, 4, 2, "reduce_scatter", batch=batch, leaves=2))  # ranks without samples


@pytest.mark.parametrize("unique_rows", ["on", "auto"])
def test_unique_rows(unique_rows: str) -> None:
    for ranks, ranks_per_node in ((1, 1), (3, 2), (4, 2)):
        for schemes in (("row_wise",), ("table_wise",), MIXED):
            expect(Case(schemes, ranks, ranks_per_node, batch=90, unique_rows=unique_rows))
    expect(Case(MIXED, 4, 2, tables=WEIGHTED, batch=40, unique_rows=unique_rows))
    expect(Case(MIXED, 4, 2, batch=3, leaves=2, unique_rows=unique_rows))


def test_rectangles_that_no_scheme_makes() -> None:
    """Bands of rows that are cut at other columns, and several pieces on one rank."""
    tables = (TableSpec("a", 10, 12, ("x", "y"), "mean"), TableSpec("b", 6, 8, ("y",)))
    shards = (
        Shard(0, (0, 4), (0, 12), 0),
        Shard(0, (4, 10), (0, 4), 0),
        Shard(0, (4, 10), (4, 8), 2),
        Shard(0, (4, 7), (8, 12), 2),
        Shard(0, (7, 10), (8, 12), 1),
        Shard(1, (0, 6), (0, 4), 1),
        Shard(1, (0, 6), (4, 8), 1),
    )
    for route in sorted(ROUTES):
        expect(Case((), 3, 3, route, tables, LAMB, shards=shards))


def test_expected_bytes_are_those_of_many_batches() -> None:
    """Means over batches, where lookups are uniform and all bags have the expected length."""
    lookups = {"few": 2.0, "mean": 3.0, "wide": 1.0}
    case = Case(MIXED[1:4], 4, 2, "two_level", PLAIN[:3], batch=12)
    cuts = sample_cuts(case.ranks, case.batch, case.leaves)
    keys = bags(case.tables)
    specs = [case.tables[bag.table] for bag in keys]
    rng = np.random.default_rng(1)
    sums: dict[str, float] = {}
    batches = 300
    for _ in range(batches):
        lengths = np.array([[int(lookups[spec.name])] * case.batch for spec in specs], np.int32)
        runs = [rng.integers(0, s.rows, n) for s, n in zip(specs, lengths.sum(axis=1))]
        kjt = KJT(tuple(bag.key for bag in keys), lengths, np.concatenate(runs))
        counted = CountedDemand(case.tables, kjt, cuts)
        for call in step_traffic(case.plan, shape_of(case), counted):
            sums[call.name] = sums.get(call.name, 0.0) + call.size.sum() / batches
    demand = MeanDemand(case.tables, lookups, cuts)
    calls = step_traffic(case.plan, shape_of(case), demand)
    assert list(sums) == list(dict.fromkeys(call.name for call in calls))
    for name, size in sums.items():
        assert total(calls, case.ranks, name).sum() == pytest.approx(size, rel=0.01), name


def test_a_thousand_tables_on_128_ranks() -> None:
    """Expected traffic of a plan takes well under a second (0.1 s here)."""
    rng = np.random.default_rng(2)
    tables = tuple(
        TableSpec(f"t{i}", int(rows), int(dim), (f"f{i}",))
        for i, (rows, dim) in enumerate(
            zip(rng.integers(1000, 10**7, 1000), rng.choice([32, 64, 128], 1000))
        )
    )
    schemes = [MIXED[i % len(MIXED)] for i in range(len(tables))]
    plan = place(tables, schemes, 128, 8)
    step = StepShape(65536, 1024, 10**6, "two_level", (1,))
    cuts = sample_cuts(128, step.batch, step.leaves)
    start = time.process_time()
    calls = step_traffic(plan, step, MeanDemand(tables, {}, cuts))
    assert time.process_time() - start < 1.0
    assert total(calls, 128).shape == (128, 128)
