"""Is an embedding spread over ranks the one on a single rank, bit for bit? Bodies on threads and
MPI; see `spmd.py`.
"""

import hashlib
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from spmd import spmd

from neocpu.core.errors import IndexRangeError
from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.kernels.rows import narrow
from neocpu.parallel.embeddings.grouped import GroupedEmbedding
from neocpu.parallel.embeddings.sharded import ShardedEmbedding
from neocpu.parallel.exchange.routes import ROUTES
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.exchange.wire_formats import FP32, WireSpecs
from neocpu.parallel.sharding.plan import Plan, place
from neocpu.parallel.sharding.schemes import SCHEMES, Shard
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.embedding.rounded import rounded
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.embedding.tiered import MemoryPlan
from neocpu.tables.specs.feature_groups import key_groups
from neocpu.tables.specs.optimizers import Schedule, SparseOptimizer
from neocpu.tables.specs.specs import TableSpec, bags

MIXED = (
    "row_wise",
    "data_parallel",
    "grid_shard",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "table_wise",
)
PLANS = {name: (name,) for name in SCHEMES} | {"mixed": MIXED, "mixed2": MIXED[3:] + MIXED[:3]}
SPECIAL = np.array([np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4e38, -3.4e38, -0.0], np.float32)
OPTIMIZERS = ("exact_sgd", "exact_adagrad", "exact_rowwise_adagrad", "adam")
TABLES = (
    TableSpec("few", 3, 8, ("x", "y")),  # fewer rows than ranks; two features
    TableSpec("mean", 40, 12, ("y",), "mean"),  # a feature of two tables
    TableSpec("weights", 25, 16, ("z",), "sum", True),
    TableSpec("both", 31, 20, ("u", "v"), "mean", True),
    TableSpec("thin", 9, 1, ("w",)),
    TableSpec("odd", 17, 7, ("t",)),
    TableSpec("one", 1, 4, ("s",), "mean"),
)
NARROW = (  # the same in several formats
    TableSpec("few", 3, 8, ("x", "y"), format="fp16"),
    TableSpec("mean", 40, 12, ("y",), "mean", format="bf16", rounding="stochastic"),
    TableSpec("weights", 25, 16, ("z",), "sum", True),
    TableSpec("both", 31, 20, ("u", "v"), "mean", True, "fp8_e4m3", "stochastic"),
    TableSpec("thin", 9, 1, ("w",), format="fp8_e4m3"),
    TableSpec("odd", 17, 7, ("t",), format="bf16_split"),
    TableSpec("one", 1, 4, ("s",), "mean", format="bf16"),
)
TALL = tuple(replace(t, rows=9 * t.rows) for t in NARROW)  # more rows than a small cache has


@dataclass(frozen=True)
class Case:
    """One comparison: tables under a plan, a route, an optimizer, a batch size and how wild the
    numbers are.
    """

    plan: str = "table_wise"
    route: str = "direct"
    optimizer: str = "exact_rowwise_adagrad"
    batch: int = 11
    leaves: int = 8
    ranks_per_node: int = 2
    steps: int = 2
    seed: int = 0
    lookups: int = 4  # longest bag
    special: bool = False  # also infinities, NaN, subnormals and numbers whose sums overflow
    wild: bool = True  # gradients and weights over many binades, so that sums need several words
    tables: tuple[TableSpec, ...] = TABLES
    first_column: int = 3
    weight_decay_mode: str = "none"
    max_norm: float = 0.0
    max_gradient: float = 0.0
    shards: tuple[Shard, ...] = ()  # of a plan that no scheme makes
    placements: tuple[str, ...] = ()  # of the tables, in turn; none: all in memory
    policy: str = "lru"
    prefetch: int = 0  # batches whose rows are brought up before their turn
    unique_rows: str = "off"  # do equal rows travel once?
    wires: WireSpecs = FP32
    groups: tuple[tuple[str, ...], ...] = ()  # features whose repeated bags stand once
    replica_groups: int = 1
    repeats: float = 0.0  # probability that a group's bags are those of the sample before


def plan_of(case: Case, ranks: int) -> Plan:
    """The case's plan for so many ranks."""
    if case.shards:
        return Plan(case.tables, ("by_hand",) * len(case.tables), case.shards, ranks, ranks).check()
    names = PLANS[case.plan]
    schemes = [names[t % len(names)] for t in range(len(case.tables))]
    group = ranks // case.replica_groups
    plan = place(case.tables, schemes, group, min(case.ranks_per_node, group))
    return plan.in_groups(case.replica_groups, min(case.ranks_per_node, ranks))


def global_batch(case: Case, step: int) -> tuple[KJT, np.ndarray]:
    """All samples of one step and the gradient of E: the same on every rank."""
    rng = np.random.default_rng([case.seed, step])
    keys = bags(case.tables)
    lengths = rng.integers(0, case.lookups + 1, (len(keys), case.batch)).astype(np.int32)
    lengths[rng.random(lengths.shape) < 0.3] = 0
    total = [int(n) for n in lengths.sum(axis=1)]
    values = [rng.integers(-1, case.tables[k.table].rows, n) for k, n in zip(keys, total)]
    weights = [
        rng.standard_normal(n) if case.tables[k.table].weighted else np.ones(n)
        for k, n in zip(keys, total)
    ]
    columns = case.first_column + sum(case.tables[k.table].dim for k in keys)
    gradient = rng.standard_normal((case.batch, columns)).astype(np.float32)
    if case.wild:
        gradient *= np.float32(2) ** rng.integers(-90, 3, gradient.shape).astype(np.float32)
        gradient[rng.random(gradient.shape) < 0.2] = 0
        repeat = rng.integers(0, max(case.batch, 1), case.batch // 2)
        gradient[: repeat.size] = -gradient[repeat]  # exact cancellation between samples
    if case.special:
        gradient[rng.random(gradient.shape) < 0.05] = 3e38
        chosen = rng.random(gradient.shape) < 0.02
        gradient[chosen] = rng.choice(SPECIAL, int(chosen.sum()))
    repeat_bags(case, rng, lengths, values, weights)
    lookup_arrays = [np.concatenate([np.empty(0), *parts]) for parts in (values, weights)]
    kjt = KJT(
        tuple(k.key for k in keys),
        lengths,
        lookup_arrays[0].astype(np.int64),
        lookup_arrays[1].astype(np.float32),
    )
    return kjt, gradient


def repeat_bags(case: Case, rng: np.random.Generator, lengths, values, weights) -> None:
    """Give samples the bags of the sample before, all keys at once, in place."""
    if not case.repeats:
        return
    source = np.arange(case.batch)
    for s in range(1, case.batch):
        if rng.random() < case.repeats:
            source[s] = source[s - 1]
    for k in range(len(values)):
        ends = np.cumsum(lengths[k])
        spans = [np.arange(ends[s] - lengths[k][s], ends[s]) for s in source]
        taken = np.concatenate([np.empty(0, np.int64), *spans])
        values[k] = values[k][taken]
        weights[k] = weights[k][taken]
        lengths[k] = lengths[k][source]


def samples_of(kjt: KJT, lo: int, hi: int) -> KJT:
    """Samples [lo, hi) of a batch."""
    keys, size = kjt.lengths.shape
    spans = [slice(kjt.offsets[f * size + lo], kjt.offsets[f * size + hi]) for f in range(keys)]
    values = np.concatenate([kjt.values[span] for span in spans])
    weights = None if kjt.weights is None else np.concatenate([kjt.weights[span] for span in spans])
    return KJT(kjt.keys, np.ascontiguousarray(kjt.lengths[:, lo:hi]), values, weights)


def embedding_of(env: ShardingEnv) -> ShardedEmbedding:
    """The tables of a plan, as `train/step/world.py` builds them."""
    return GroupedEmbedding(env) if env.plan.replica_groups > 1 else ShardedEmbedding(env)


def train(comm: Comm, case: Case) -> tuple[list[np.ndarray], ShardedEmbedding]:
    """Steps of this rank: E [b, columns] of each step, and the tables afterwards."""
    optimizer = SparseOptimizer(
        case.optimizer,
        learning_rate=0.05,
        weight_decay=0.01 if case.weight_decay_mode != "none" else 0.0,
        weight_decay_mode=case.weight_decay_mode,
        initial_accumulator_value=0.1,
        schedule=Schedule(warmup_steps=2),
        max_norm=case.max_norm,
        max_gradient=case.max_gradient,
    )
    memory = None
    if case.placements:
        places = tuple(case.placements[t % len(case.placements)] for t in range(len(case.tables)))
        folder = Path(tempfile.mkdtemp(prefix="neocpu-rows-"))
        memory = MemoryPlan(
            placements=places, policy=case.policy, folder=folder, prefetch=case.prefetch
        )
    env = ShardingEnv(
        plan_of(case, comm.size),
        comm,
        optimizer,
        case.seed,
        case.leaves,
        case.first_column,
        case.route,
        memory=memory,
        unique_rows=case.unique_rows,
        wires=case.wires,
        groups=key_groups(case.tables, case.groups),
    )
    embedding = embedding_of(env)
    spread_exponents(embedding, case)
    lo, hi = rank_samples(comm.rank, comm.size, case.batch, case.leaves)
    outputs = []
    coming = []
    for step in range(1, case.steps + 1):
        gradient = global_batch(case, step)[1]
        for later in range(step + len(coming), min(step + case.prefetch, case.steps) + 1):
            coming.append(
                embedding.start(samples_of(global_batch(case, later)[0], lo, hi), case.batch)
            )
            if case.prefetch:
                embedding.know(coming[-1])
                embedding.prefetch(coming[-1])
        out = np.full((hi - lo, embedding.columns), 9, np.float32)
        embedding.forward(coming.pop(0), case.batch).finish(out)
        assert (out[:, : case.first_column] == 9).all(), (
            "columns in front of the tables were touched"
        )
        outputs.append(out)
        own_gradient = np.ascontiguousarray(gradient[lo:hi])
        before = own_gradient.copy()
        embedding.backward(own_gradient, step)
        assert own_gradient.tobytes() == before.tobytes(), "the caller's gradient was modified"
    return outputs, embedding


def spread_exponents(embedding: ShardedEmbedding, case: Case) -> None:
    """Scale rows over many binades, and plant sums whose tie only an exact sum decides."""
    if not case.wild:
        return
    for i, shard in enumerate(embedding.tbe.shards):
        spec = case.tables[shard.table]
        rng = np.random.default_rng([case.seed, 77, shard.table])
        weight = rng.standard_normal((spec.rows, spec.dim)).astype(np.float32)
        weight *= np.float32(2) ** rng.integers(-60, 2, (spec.rows, 1)).astype(np.float32)
        planted = np.array(
            [1, 2**-24, 0.75 * 2**-53, -(2**-60), 2**-60, 0.75 * 2**-53, -1], np.float32
        )
        weight[::2] = np.resize(planted, weight[::2].shape[0])[:, None]
        if case.special:
            chosen = rng.random(weight.shape) < 0.05
            weight[chosen] = rng.choice(SPECIAL, int(chosen.sum()))
        r0, r1 = shard.rows
        c0, c1 = shard.cols
        rows = np.arange(r1 - r0)
        values = embedding.tbe.initial(i, rows)
        values["weight"] = rounded(np.ascontiguousarray(weight[r0:r1, c0:c1]), spec.format, narrow)
        embedding.tbe.load_rows(i, rows, values)


def digest(comm: Comm, case: Case, outputs: list[np.ndarray], embedding: ShardedEmbedding) -> str:
    """SHA-256 over every E and every state tensor of all ranks, whatever the plan: the same on
    every rank.
    """
    plan = embedding.env.plan
    sha = hashlib.sha256()
    embedding.tbe.flush()
    for out in outputs:
        for part in comm.allgather_bytes(canonical(out).tobytes()):
            sha.update(part)
    for number, spec in enumerate(plan.tables):
        whole: dict[str, np.ndarray] = {}
        firsts: dict[tuple[object, ...], bytes] = {}
        for shard in plan.of_table(number):
            own_shards = plan.local(comm.rank)
            state = (
                state_of(embedding.tbe, own_shards.index(shard), shard.shape[0])
                if shard in own_shards
                else {}
            )
            names = max(comm.allgather_bytes(",".join(state).encode())).decode().split(",")
            for name in names:
                data = comm.allgather_bytes(
                    np.ascontiguousarray(state[name]).tobytes() if state else b""
                )[shard.rank]
                values = np.frombuffer(data, np.float32).reshape(shard.shape[0], -1)
                scalar = values.shape[1] != shard.shape[1] or (
                    name == "sum" and "rowwise" in case.optimizer
                )
                full = whole.setdefault(
                    name, np.zeros((spec.rows, 1 if scalar else spec.dim), np.float32)
                )
                cols = slice(0, 1) if scalar else slice(*shard.cols)
                full[slice(*shard.rows), cols] = values
                copies = [data]
                if plan.replicated(number):
                    copies = comm.allgather_bytes(data)
                elif shard.rank >= plan.group_ranks:
                    # groups stand one after the other, and are compared with the first one
                    copies.append(firsts[number, name, shard.rows, shard.cols])
                firsts.setdefault((number, name, shard.rows, shard.cols), data)
                assert case.special or all(d == copies[0] for d in copies)
        for name in sorted(whole):
            sha.update(canonical(whole[name]).tobytes())
    if case.placements:
        embedding.tbe.close()
        shutil.rmtree(embedding.env.memory.folder, ignore_errors=True)
    return sha.hexdigest()


def state_of(tbe: TableBatchedEmbedding, shard: int, height: int) -> dict[str, np.ndarray]:
    """A shard's rows that exist, with their states, among zeros; and which they are."""
    rows = tbe.existing(shard, 0, height)
    states = {"touched": np.zeros(height, np.float32)}
    for name, values in {
        **tbe.values(shard, rows),
        "touched": np.ones(rows.size, np.float32),
    }.items():
        states[name] = np.zeros((height, *values.shape[1:]), np.float32)
        states[name][rows] = values
    return states


def canonical(values: np.ndarray) -> np.ndarray:
    """All NaN alike, as the digest of a run has them (docs/arithmetic.md §3)."""
    return np.where(np.isnan(values), np.float32(np.nan), values)


def unsharded(case: Case) -> str:
    """The digest of the same case on one rank with whole tables."""
    alone = replace(
        case,
        placements=(),
        plan="table_wise",
        shards=(),
        route="direct",
        ranks_per_node=1,
        unique_rows="off",
        groups=(),
        replica_groups=1,
    )
    comm = SingleComm()
    return digest(comm, alone, *train(comm, alone))


def expect(comm: Comm, *cases: Case) -> None:
    """Every case ends with the digest of its unsharded twin, on every rank."""
    for case in cases:
        checksum = digest(comm, case, *train(comm, case))
        answer = comm.allgather_bytes(unsharded(case).encode() if comm.rank == 0 else b"")[
            0
        ].decode()
        assert checksum == answer, f"{case} on {comm.size} ranks"


RANKS = (1, 2, 3, 4, 8)
warm: set[str] = set()


def compile_once(comm: Comm) -> None:
    """Rank 0 compiles these bodies' kernels by a run on two threads; the others sleep."""
    if comm.rank == 0 and not warm:
        for optimizer in OPTIMIZERS:
            case = Case(plan="mixed", optimizer=optimizer, route="two_level", steps=1)
            run_threads(2, lambda other, case=case: train(other, case), in_turn=True)
            warm.add(optimizer)
    comm.quiet_barrier()


@spmd(*RANKS)
def every_plan_is_the_unsharded_one(comm: Comm) -> None:
    compile_once(comm)
    routes = sorted(ROUTES)
    for i, plan in enumerate(PLANS):
        route = routes[(i + comm.size) % len(routes)]
        optimizer = OPTIMIZERS[i % len(OPTIMIZERS)]
        expect(comm, Case(plan=plan, route=route, optimizer=optimizer))


@spmd(2, 4)
def every_optimizer_and_route(comm: Comm) -> None:
    compile_once(comm)
    for optimizer in OPTIMIZERS:
        for route in sorted(ROUTES):
            expect(
                comm,
                Case(
                    plan="mixed",
                    route=route,
                    optimizer=optimizer,
                    ranks_per_node=3,
                    batch=6,
                    seed=1,
                ),
            )


@spmd(3)
def tables_of_any_format(comm: Comm) -> None:
    narrow_case = Case(tables=NARROW, plan="mixed", route="two_level", weight_decay_mode="l2")
    if comm.rank == 0:
        run_threads(2, lambda other: train(other, replace(narrow_case, steps=1)), in_turn=True)
    comm.quiet_barrier()
    expect(comm, narrow_case, replace(narrow_case, plan="mixed2", route="direct"))


@spmd(3)
def tables_beyond_their_memory(comm: Comm) -> None:
    places = ("ddr_over_ssd", "hbm_over_ddr", "hbm_over_ddr_over_ssd", "hbm")
    case = Case(
        tables=TALL,
        plan="mixed",
        route="two_level",
        placements=places,
        batch=40,
        steps=4,
        wild=False,
    )
    if comm.rank == 0:
        run_threads(2, lambda other: digest(other, case, *train(other, case)), in_turn=True)
    comm.quiet_barrier()
    expect(
        comm,
        case,
        replace(case, plan="mixed2", policy="sieve", placements=places[1:] + places[:1], wild=True),
    )


@spmd(2, 4, 8)
def replica_groups_are_the_unsharded_one(comm: Comm) -> None:
    compile_once(comm)
    case = Case(plan="mixed", replica_groups=2, route="two_level")
    if comm.rank == 0:
        run_threads(4, lambda other: train(other, replace(case, steps=1)), in_turn=True)
    comm.quiet_barrier()
    expect(comm, case, replace(case, plan="mixed2", optimizer="adam", ranks_per_node=4))


@spmd(3, 8)
def odd_batches(comm: Comm) -> None:
    compile_once(comm)
    for batch in (0, 1, 5):
        expect(
            comm,
            Case(plan="mixed2", batch=batch, route="two_level"),
            Case(plan="mixed", batch=batch, leaves=2),
        )


@spmd(*RANKS)
def a_bad_lookup_is_refused_by_all(comm: Comm) -> None:
    """One rank has a row outside its table; every rank raises the same words, and the next batch
    works.
    """
    compile_once(comm)
    refuse_everywhere(comm, Case(plan="mixed", batch=13))
    if comm.size % 2 == 0:
        refuse_everywhere(comm, Case(plan="mixed", batch=13, replica_groups=2))


def refuse_everywhere(comm: Comm, case: Case) -> None:
    """The body of `a_bad_lookup_is_refused_by_all`, for one plan."""
    plan = plan_of(case, comm.size)
    env = ShardingEnv(plan, comm, SparseOptimizer(), 0, case.leaves, case.first_column)
    embedding = embedding_of(env)
    lo, hi = rank_samples(comm.rank, comm.size, case.batch, case.leaves)
    kjt, _ = global_batch(case, 1)
    for broken_rank in range(comm.size):
        first, last = rank_samples(broken_rank, comm.size, case.batch, case.leaves)
        broken_samples = samples_of(kjt, first, last)
        own_samples = samples_of(kjt, lo, hi)
        expected = ""
        if broken_samples.values.size:  # break the last lookup of that rank
            bag = int(np.searchsorted(broken_samples.offsets, broken_samples.values.size)) - 1
            key, sample = divmod(bag, last - first)
            spec = case.tables[bags(case.tables)[key].table]
            expected = (
                f"feature {bags(case.tables)[key].feature!r}, table {spec.name!r}, sample "
                f"{first + sample} "
                f"of the batch: row {10**6} is outside [-1, {spec.rows})"
            )
            if comm.rank == broken_rank:
                own_samples = replace(own_samples, values=np.append(own_samples.values[:-1], 10**6))
        assert message(embedding, own_samples, case.batch) == expected
    out = np.empty((hi - lo, embedding.columns), np.float32)
    embedding.forward(samples_of(kjt, lo, hi), case.batch).finish(out)


def message(embedding: ShardedEmbedding, kjt: KJT, batch: int) -> str:
    """What a forward says when it refuses a batch."""
    try:
        embedding.forward(kjt, batch)
    except IndexRangeError as error:
        return str(error)
    return ""
