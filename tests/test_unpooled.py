"""Does every lookup without pooling get its row, and the row all of its gradients, to the bit?

One digest over ranks, plans, routes, wires, memories, rules and kinds of tables; duplicates, empty
bags, pruned lookups, the last rows of tables; gradients for rows that name themselves.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from spmd_exchange import (
    NARROW,
    Case,
    digest,
    global_batch,
    plan_of,
    samples_of,
    spread_exponents,
)

from neocpu.core.errors import IndexRangeError
from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.parallel.embeddings.mixed import MixedEmbedding
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.exchange.wire_formats import WireSpec, WireSpecs
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.embedding.lookups import KeyLookups, RowTerms
from neocpu.tables.embedding.tiered import MemoryPlan
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec, bags

TABLES = (
    TableSpec("items", 40, 12, ("history", "item"), "none"),  # two keys of one table
    TableSpec("mean", 31, 20, ("user",), "mean"),
    TableSpec("few", 3, 8, ("kinds",), "none", True),  # fewer rows than ranks; weights
    TableSpec("sums", 17, 7, ("tags", "user"), "sum"),
    TableSpec("one", 1, 4, ("same",), "none"),
)
ALL = tuple(replace(table, pooling="none") for table in TABLES[:3])


def embedding_of(comm: Comm, case: Case, distinct: frozenset[int], folder) -> MixedEmbedding:
    memory = None
    if case.placements:
        places = tuple(case.placements[t % len(case.placements)] for t in range(len(case.tables)))
        memory = MemoryPlan(
            placements=places, policy=case.policy, folder=folder, prefetch=case.prefetch
        )
    env = ShardingEnv(
        plan_of(case, comm.size),
        comm,
        SparseOptimizer(case.optimizer, learning_rate=0.05, max_gradient=case.max_gradient),
        case.seed,
        case.leaves,
        case.first_column,
        case.route,
        memory=memory,
        unique_rows=case.unique_rows,
        wires=case.wires,
    )
    return MixedEmbedding(env, distinct)


def term(case: Case, step: int, key: int, lookups: np.ndarray) -> np.ndarray:
    """The gradient of each lookup of a key, by its number in the global batch."""
    spec = case.tables[bags(case.tables)[key].table]
    total = int(global_batch(case, step)[0].lengths[key].sum())
    rng = np.random.default_rng([case.seed, step, key])
    gradient = rng.standard_normal((total, spec.dim)).astype(np.float32)
    gradient *= np.float32(2) ** rng.integers(-60, 3, gradient.shape).astype(np.float32)
    return gradient[lookups]


def train(
    comm: Comm, case: Case, distinct: frozenset[int] = frozenset(), folder=None
) -> tuple[list[np.ndarray], MixedEmbedding]:
    """E and rows of every step, key by key, of this rank; and its tables afterwards."""
    embedding = embedding_of(comm, case, distinct, folder)
    spread_exponents(embedding, case)
    lo, hi = rank_samples(comm.rank, comm.size, case.batch, case.leaves)
    outputs = []
    coming = []
    for step in range(1, case.steps + 1):
        for later in range(step + len(coming), min(step + case.prefetch, case.steps) + 1):
            kjt = samples_of(global_batch(case, later)[0], lo, hi)
            coming.append(embedding.start(kjt, case.batch))
            if case.prefetch:
                embedding.know(coming[-1])
                embedding.prefetch(coming[-1])
        kjt, gradient = global_batch(case, step)
        lookup = embedding.lookup(coming.pop(0))
        lookup.send()
        E = np.zeros((hi - lo, embedding.columns), np.float32)
        key_lookups = lookup.finish(E)
        outputs.append(E)
        terms = []
        for key, lookups in zip(embedding.unpooled, key_lookups):
            values = lookups.values if lookups.lines is None else lookups.values[lookups.lines]
            outputs.append(values.copy())
            first = int(kjt.offsets[key * case.batch + lo] - kjt.offsets[key * case.batch])
            key_term = term(case, step, key, first + np.arange(lookups.rows.size))
            rows = lookups.rows if key in distinct else None
            terms.append(RowTerms(key_term, rows))
        dE = np.ascontiguousarray(gradient[lo:hi, : embedding.columns])
        update = embedding.start_backward(dE, step, terms)
        update.merge_replicas()
        replicas = update.start_replicas()
        update.wait()
        update.update_shards()
        if replicas is not None:
            replicas.wait()
        update.update_replicas()
    return outputs, embedding


@cache
def answer(case: Case) -> str:
    alone = replace(case, plan="table_wise", route="direct", unique_rows="off", placements=())
    comm = SingleComm()
    return digest(comm, alone, *train(comm, alone))


def expect(case: Case, ranks: int, distinct: frozenset[int] = frozenset(), folder=None) -> None:
    digests = run_threads(
        ranks, lambda comm: digest(comm, case, *train(comm, case, distinct, folder))
    )
    assert set(digests) == {answer(replace(case, prefetch=0))}


BASE = Case(tables=TABLES)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("plan", ["table_wise", "row_wise", "data_parallel", "mixed", "mixed2"])
def test_one_digest_for_every_plan(plan: str, ranks: int) -> None:
    expect(replace(BASE, plan=plan), ranks)


@pytest.mark.parametrize("plan", ["column_wise", "grid_shard"])
@pytest.mark.parametrize("route", ["reduce_scatter", "two_level"])
def test_columns_routes_and_unique_rows(plan: str, route: str) -> None:
    expect(replace(BASE, plan=plan, route=route, unique_rows="on"), 4)


def test_other_rules_clipped_gradients_and_wires() -> None:
    for optimizer in ("adam", "exact_sgd"):
        expect(replace(BASE, plan="mixed", optimizer=optimizer, max_gradient=1e-3), 3)
    wires = WireSpecs(WireSpec("fp16"), WireSpec("bf16"))
    expect(replace(BASE, plan="mixed", wires=wires, wild=False), 3)


def test_narrow_rows() -> None:
    tables = tuple(
        replace(table, pooling="none", weighted=False) if t % 2 == 0 else table
        for t, table in enumerate(NARROW)
    )
    expect(replace(BASE, tables=tables, plan="mixed"), 3)


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_batches_smaller_than_the_ranks(batch: int) -> None:
    expect(replace(BASE, batch=batch, plan="mixed"), 4)


def test_no_lookups_at_all() -> None:
    expect(replace(BASE, lookups=0, plan="mixed"), 3)


def test_every_table_without_pooling() -> None:
    for ranks in (1, 3):
        expect(replace(BASE, tables=ALL, plan="mixed"), ranks)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_rows_in_several_memories(prefetch: int, tmp_path) -> None:
    tall = tuple(replace(table, rows=9 * table.rows) for table in TABLES)
    case = replace(
        BASE,
        tables=tall,
        plan="mixed",
        steps=4,
        placements=("ddr", "hbm_over_ddr", "hbm_over_ddr_over_ssd"),
        prefetch=prefetch,
    )
    expect(case, 3, folder=tmp_path)


@pytest.mark.parametrize("plan", ["table_wise", "row_wise", "data_parallel", "mixed"])
def test_rows_looked_up_once_take_the_same_gradients(plan: str, tmp_path) -> None:
    expect(replace(BASE, plan=plan), 3, frozenset({0, 6}))
    tiers = replace(BASE, plan=plan, placements=("hbm_over_ddr",), steps=3)
    expect(tiers, 2, frozenset({0, 6}), tmp_path)


def test_rows_are_those_of_the_table_and_gradients_add_up() -> None:
    """Against whole arrays: lookups of row -1 give zeros and train nothing."""
    tables = (TableSpec("items", 5, 4, ("history",), "none", True), TableSpec("p", 3, 4, ("user",)))
    plan = plan_of(Case(tables=tables), 1)
    rule = SparseOptimizer("exact_sgd", 0.5)
    embedding = MixedEmbedding(ShardingEnv(plan, SingleComm(), rule, 3, 1))
    rows = np.array([4, -1, 0, 4, 4])
    weights = np.array([1, 1, 2, 0.5, 1, 1, 1], np.float32)
    kjt = KJT(
        ("history", "user"),
        np.array([[3, 0, 2], [1, 0, 1]], np.int32),
        np.concatenate([rows, [2, 0]]),
        weights,
    )
    weights = weights[:5, None]
    lookup = embedding.lookup(embedding.start(kjt, 3))
    lookup.send()
    E = np.zeros((3, embedding.columns), np.float32)
    (history,) = lookup.finish(E)
    assert isinstance(history, KeyLookups) and history.offsets.tolist() == [0, 3, 3, 5]
    table = embedding.tbe.values(0, np.arange(5))["weight"].copy()
    expected = np.where(rows[:, None] >= 0, table[rows] * weights, 0)
    np.testing.assert_array_equal(history.values, expected)
    gradient = np.arange(20, dtype=np.float32).reshape(5, 4)
    update = embedding.start_backward(np.zeros_like(E), 1, [RowTerms(gradient)])
    update.merge_replicas()
    update.start_replicas()
    update.update_shards()
    update.update_replicas()
    merged = np.zeros_like(table)
    np.add.at(merged, rows[rows >= 0], (gradient * weights)[rows >= 0])
    expected = table - np.float32(0.5) * merged
    np.testing.assert_array_equal(embedding.tbe.values(0, np.arange(5))["weight"], expected)


def test_a_row_outside_its_table_is_refused_on_every_rank() -> None:
    def body(comm: Comm) -> str:
        embedding = embedding_of(comm, BASE, frozenset(), None)
        lo, hi = rank_samples(comm.rank, comm.size, BASE.batch, BASE.leaves)
        kjt = samples_of(global_batch(BASE, 1)[0], lo, hi)
        wrong = kjt.values.copy()
        if comm.rank == 1:
            wrong[0] = 40
        with pytest.raises(IndexRangeError) as error:
            embedding.start(replace(kjt, values=wrong), BASE.batch).wait()
        embedding.start(kjt, BASE.batch).wait()
        return str(error.value)

    messages = run_threads(3, body)
    assert all(
        "table 'items'" in message and "row 40 is outside" in message for message in messages
    )
