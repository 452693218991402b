"""Is an embedding spread over ranks the one on a single rank, bit for bit, for every plan, route,
rule and batch?

Plans on 1 to 8 ranks, refusals, and all of it over MPI: `spmd_exchange.py`, run by `test_spmd.py`.
"""

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spmd_exchange import (
    NARROW,
    OPTIMIZERS,
    PLANS,
    TALL,
    Case,
    digest,
    global_batch,
    plan_of,
    samples_of,
    train,
    unsharded,
)

from neocpu.core.trees import rank_samples
from neocpu.parallel.embeddings.sharded import ShardedEmbedding
from neocpu.parallel.exchange.routes import ROUTES
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.exchange.wire_formats import UNIQUE_ROWS
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.sharding.schemes import Shard
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec, bags
from tests.workers import covered

PROFILE = settings(deadline=None, derandomize=True, max_examples=30)

GROUPS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("z", "u", "v"), ("w",)),
    (("*",),),
    (("x", "y"), ("t", "s"), ("z", "u", "v", "w")),
)

answer = lru_cache(maxsize=None)(unsharded)


def expect(case: Case, ranks: int) -> None:
    alone = replace(
        case,
        plan="table_wise",
        shards=(),
        route="direct",
        ranks_per_node=1,
        unique_rows="off",
        groups=(),
        replica_groups=1,
    )
    digests = run_threads(ranks, lambda comm: digest(comm, case, *train(comm, case)))
    assert set(digests) == {answer(alone)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "plan", ["row_wise", "column_wise", "data_parallel", "grid_shard", "mixed"]
)
def test_every_optimizer(optimizer: str, plan: str) -> None:
    expect(Case(plan=plan, optimizer=optimizer, steps=3), 3)


# of several phases, and of several row states
RULES = {
    "partial_rowwise_lamb": {
        "weight_decay_mode": "decoupled",
        "max_norm": 0.5,
        "max_gradient": 1e-3,
    },
    "exact_rowwise_adagrad_with_counter": {"weight_decay_mode": "l2"},
}


@pytest.mark.parametrize("optimizer", covered(RULES, always=("partial_rowwise_lamb",)))
@pytest.mark.parametrize("plan", ["column_wise", "grid_shard", "mixed"])
def test_rules_of_several_phases_and_row_states(plan: str, optimizer: str) -> None:
    expect(Case(plan=plan, optimizer=optimizer, steps=3, **RULES[optimizer]), 3)


REPLICATED = {  # ranks and a case; with as many groups as ranks, each rank holds every table
    "rules of several phases": (
        4,
        Case(optimizer="partial_rowwise_lamb", **RULES["partial_rowwise_lamb"]),
    ),
    "counted lookups": (8, Case(optimizer="adam_with_cowclip")),
    "no row scalars": (4, Case(optimizer="exact_sgd", special=True)),
    "formats": (
        6,
        Case(tables=NARROW, route="reduce_scatter", weight_decay_mode="l2", ranks_per_node=3),
    ),
    "unique rows": (8, Case(unique_rows="on", lookups=30, batch=40, ranks_per_node=1)),
    "repeated bags": (4, Case(groups=GROUPS[0], repeats=0.6)),
    "ranks without samples": (8, Case(batch=1, leaves=2)),
    "no lookups": (4, Case(lookups=0)),
    "a group for each rank": (2, Case(route="two_level")),
}


@pytest.mark.parametrize("name", REPLICATED)
def test_replica_groups(name: str) -> None:
    ranks, case = REPLICATED[name]
    for plan in ("mixed", "mixed2"):
        expect(replace(case, plan=plan, replica_groups=2), ranks)


def test_replica_groups_of_tables_beyond_their_memory() -> None:
    places = ("ddr_over_ssd", "hbm_over_ddr", "hbm_over_ddr_over_ssd", "hbm")
    case = Case(tables=TALL, placements=places, prefetch=1, steps=4, replica_groups=2)
    expect(replace(case, plan="mixed"), 4)


@pytest.mark.parametrize("route", sorted(ROUTES))
@pytest.mark.parametrize(("ranks", "ranks_per_node"), [(2, 1), (4, 2), (5, 2), (5, 3)])
def test_every_route(route: str, ranks: int, ranks_per_node: int) -> None:
    for plan in ("row_wise", "table_row_wise", "grid_shard"):
        expect(Case(plan=plan, route=route, ranks_per_node=ranks_per_node), ranks)


@pytest.mark.parametrize("batch", [0, 1, 2, 7])
def test_batches_smaller_than_the_ranks(batch: int) -> None:
    for plan in ("mixed", "mixed2"):
        expect(Case(plan=plan, batch=batch), 4)


def test_more_ranks_than_leaves() -> None:
    expect(Case(plan="mixed", leaves=2), 5)


def test_empty_bags_everywhere() -> None:
    for plan in ("mixed", "mixed2"):
        expect(Case(plan=plan, lookups=0), 3)


@pytest.mark.parametrize("optimizer", ["exact_sgd", "exact_rowwise_adagrad"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rectangles_that_no_scheme_makes(ranks: int, optimizer: str) -> None:
    """Several pieces of one table on one rank; bands of rows that differ from one band of columns
    to the next.
    """
    tables = (TableSpec("a", 10, 12, ("x", "y"), "mean"), TableSpec("b", 6, 8, ("y",), "sum", True))
    pieces = [
        (0, (0, 4), (0, 4)),
        (0, (4, 10), (0, 4)),
        (0, (0, 7), (4, 12)),
        (0, (7, 10), (4, 8)),
        (0, (7, 10), (8, 12)),
        (1, (0, 2), (0, 8)),
        (1, (2, 6), (0, 4)),
        (1, (2, 6), (4, 8)),
    ]
    shards = tuple(
        Shard(table, rows, cols, i % ranks) for i, (table, rows, cols) in enumerate(pieces)
    )
    for route in sorted(ROUTES):
        expect(Case(tables=tables, shards=shards, optimizer=optimizer, route=route), ranks)


def test_many_lookups() -> None:
    tables = (TableSpec("a", 3000, 32, ("x", "y")), TableSpec("b", 700, 64, ("z",), "mean"))
    for plan in ("row_wise", "column_wise", "data_parallel"):
        expect(Case(plan=plan, tables=tables, batch=150, lookups=25, leaves=16), 4)


@pytest.mark.parametrize("unique_rows", ["on", "auto"])
def test_equal_rows_travel_once(unique_rows: str) -> None:
    for plan in ("mixed", "mixed2"):
        for ranks in (1, 3):
            expect(Case(plan=plan, lookups=30, batch=40, unique_rows=unique_rows), ranks)


@pytest.mark.parametrize("groups", GROUPS)
def test_repeated_bags_are_looked_up_once(groups: tuple[tuple[str, ...], ...]) -> None:
    case = Case(groups=groups, repeats=0.7, batch=19)
    for plan in ("mixed", "mixed2", "row_wise"):
        for ranks in (1, 2, 4):
            expect(replace(case, plan=plan), ranks)
    expect(replace(case, plan="table_wise"), 1)
    two_level = replace(case, plan="mixed", route="two_level", unique_rows="auto")
    expect(replace(two_level, optimizer="partial_rowwise_lamb", max_norm=0.5), 3)
    for batch in (0, 1):
        expect(replace(case, plan="mixed", batch=batch), 3)


@PROFILE
@given(st.data())
def test_random_cases(data: st.DataObject) -> None:
    case = Case(
        plan=data.draw(st.sampled_from(sorted(PLANS))),
        route=data.draw(st.sampled_from(sorted(ROUTES))),
        optimizer=data.draw(st.sampled_from(OPTIMIZERS)),
        batch=data.draw(st.integers(0, 24)),
        leaves=data.draw(st.sampled_from([1, 2, 8, 16])),
        ranks_per_node=data.draw(st.integers(1, 3)),
        seed=data.draw(st.integers(0, 3)),
        lookups=data.draw(st.sampled_from([1, 3, 9])),
        wild=data.draw(st.booleans()),
        special=data.draw(st.booleans()),
        first_column=data.draw(st.sampled_from([0, 16])),
        weight_decay_mode=data.draw(st.sampled_from(["none", "l2", "decoupled"])),
        unique_rows=data.draw(st.sampled_from(UNIQUE_ROWS)),
        groups=data.draw(st.sampled_from([(), *GROUPS])),
        repeats=data.draw(st.sampled_from([0.0, 0.8])),
    )
    expect(case, data.draw(st.integers(1, 6)))


def test_a_coming_batch_may_be_distributed_early() -> None:
    case = Case(plan="mixed", steps=3)

    def body(comm: Comm) -> None:
        lo, hi = rank_samples(comm.rank, comm.size, case.batch, case.leaves)
        outs = []
        for early in (False, True):
            plan = plan_of(case, comm.size)
            env = ShardingEnv(plan, comm, SparseOptimizer(), 0, case.leaves)
            embedding = ShardedEmbedding(env)
            batches = [global_batch(replace(case, first_column=0), step) for step in (1, 2, 3)]
            shares = [samples_of(kjt, lo, hi) for kjt, _ in batches]
            coming = embedding.start(shares[0], case.batch) if early else None
            for step, (kjt, (_, gradient)) in enumerate(zip(shares, batches), 1):
                out = np.empty((hi - lo, embedding.columns), np.float32)
                embedding.forward(coming or kjt, case.batch).finish(out)
                coming = embedding.start(shares[step], case.batch) if early and step < 3 else None
                embedding.backward(np.ascontiguousarray(gradient[lo:hi]), step)
                outs.append(out.tobytes())
        assert outs[:3] == outs[3:]

    run_threads(3, body)


def test_E_of_another_shape_and_backward_without_forward_are_refused() -> None:
    tables = (TableSpec("a", 4, 4, ("x",)),)
    plan = place(tables, ["table_wise"], 1)
    embedding = ShardedEmbedding(ShardingEnv(plan, SingleComm(), SparseOptimizer(), 0, 4))
    kjt, _ = global_batch(Case(tables=tables, batch=2), 1)
    with pytest.raises(ValueError, match="expected C-contiguous"):
        embedding.forward(kjt, 2).finish(np.zeros((2, 5), np.float32))
    embedding.backward(np.zeros((2, 4), np.float32), 1)
    with pytest.raises(RuntimeError, match="without a forward"):
        embedding.backward(np.zeros((2, 4), np.float32), 1)


def exact(terms: list[np.float32]) -> np.float32:
    """The exact sum of fp32 numbers, rounded once to fp32."""
    total = sum((Fraction(float(term)) for term in terms), Fraction(0))
    return nearest(total)


def nearest(x: Fraction) -> np.float32:
    """fp32 nearest to x, ties to even, found by looking at the neighbours of a first guess."""
    guess = np.float32(float(x))
    near = [
        guess,
        np.nextafter(guess, np.float32(np.inf)),
        np.nextafter(guess, np.float32(-np.inf)),
    ]
    best = min(near, key=lambda f: (abs(Fraction(float(f)) - x), int(f.view(np.int32)) & 1))
    return best + np.float32(0)


@pytest.mark.parametrize(
    ("ranks", "plan", "limit"), [(1, "table_wise", 0.0), (1, "table_wise", 0.5), (3, "mixed", 0.5)]
)
def test_it_is_what_the_norm_says(ranks: int, plan: str, limit: float) -> None:
    """E and one step of exact_sgd, computed from docs/arithmetic.md §3 and §5 with fractions."""
    case = Case(plan=plan, optimizer="exact_sgd", steps=2, wild=False, seed=5, max_gradient=limit)
    rate = np.float32(SCHEDULED)

    def body(comm: Comm) -> list[np.ndarray]:
        return train(comm, case)[0]

    rank_outs = run_threads(ranks, body)
    outs = [np.concatenate([out[step] for out in rank_outs]) for step in range(2)]
    before = initial_weights(case)
    for step, out in enumerate(outs, 1):
        kjt, gradient = global_batch(case, step)
        gradient = np.clip(gradient, np.float32(-limit), np.float32(limit)) if limit else gradient
        terms: dict[tuple[int, int], list[np.ndarray]] = {}
        at = case.first_column
        for k, bag in enumerate(bags(case.tables)):
            spec = case.tables[bag.table]
            for s in range(case.batch):
                lo, hi = kjt.offsets[k * case.batch + s : k * case.batch + s + 2]
                rows = kjt.values[lo:hi]
                length = np.float32(hi - lo)
                scale = kjt.weights[lo:hi] if spec.weighted else np.ones(hi - lo, np.float32)
                divisor = length if spec.pooling == "mean" and hi > lo else np.float32(1)
                g = gradient[s, at : at + spec.dim] / divisor
                bag_terms = [before[bag.table][r] * w for r, w in zip(rows, scale) if r >= 0]
                for r, w in zip(rows.tolist(), scale):
                    terms.setdefault((bag.table, r), []).append(g * w)
                pooled = [exact([t[c] for t in bag_terms]) / divisor for c in range(spec.dim)]
                assert out[s, at : at + spec.dim].tolist() == pooled
            at += spec.dim
        for (table, row), sums in terms.items():
            if row >= 0:
                merged = np.array([exact(list(column)) for column in zip(*sums)], np.float32)
                before[table][row] = before[table][row] - rate * merged


SCHEDULED = 0.05 * 0.5  # the first of two warm-up steps


def initial_weights(case: Case) -> list[np.ndarray]:
    """Every table's rows before the first step."""
    shards = [Shard(t, (0, spec.rows), (0, spec.dim), 0) for t, spec in enumerate(case.tables)]
    tbe = TableBatchedEmbedding(case.tables, shards, SparseOptimizer(case.optimizer), case.seed)
    return [tbe.initial(t, np.arange(spec.rows))["weight"] for t, spec in enumerate(case.tables)]
