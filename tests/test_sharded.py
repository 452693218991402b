"""Is an embedding spread over ranks the one on a single rank, bit for bit, for every plan, route, rule and batch?

Plans on 1 to 8 ranks, refusals, and all of it over MPI: `spmd_exchange.py`, run by `test_spmd.py`.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spmd_exchange import OPTIMIZERS, PLANS, Case, digest, global_batch, plan_of, samples_of, train, unsharded

from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.embedding.specs import TableSpec
from neocpu.parallel.comm import Comm, SingleComm
from neocpu.parallel.plan import place
from neocpu.parallel.routes import ROUTES
from neocpu.parallel.sharded import ShardedEmbedding
from neocpu.parallel.threads import run_threads
from neocpu.trees import rank_samples

PROFILE = settings(deadline=None, derandomize=True, max_examples=30)

answer = lru_cache(maxsize=None)(unsharded)


def expect(case: Case, ranks: int) -> None:
    alone = replace(case, plan="table_wise", route="direct", ranks_per_node=1)
    found = run_threads(ranks, lambda comm: digest(comm, case, *train(comm, case)))
    assert set(found) == {answer(alone)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("plan", ["row_wise", "column_wise", "data_parallel", "grid_shard", "mixed"])
def test_every_optimizer(optimizer: str, plan: str) -> None:
    expect(Case(plan=plan, optimizer=optimizer, steps=3), 3)


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
        first_column=data.draw(st.sampled_from([0, 16])),
    )
    expect(case, data.draw(st.integers(1, 6)))


def test_a_coming_batch_may_be_distributed_early() -> None:
    case = Case(plan="mixed", steps=3)

    def body(comm: Comm) -> None:
        lo, hi = rank_samples(comm.rank, comm.size, case.batch, case.leaves)
        outs = []
        for early in (False, True):
            embedding = ShardedEmbedding(plan_of(case, comm.size), comm, SparseOptimizer(), 0, case.leaves)
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
    embedding = ShardedEmbedding(place(tables, ["table_wise"], 1), SingleComm(), SparseOptimizer(), 0, 4)
    kjt, _ = global_batch(Case(tables=tables, batch=2), 1)
    with pytest.raises(ValueError, match="expected C-contiguous"):
        embedding.forward(kjt, 2).finish(np.zeros((2, 5), np.float32))
    embedding.backward(np.zeros((2, 4), np.float32), 1)
    with pytest.raises(RuntimeError, match="without a forward"):
        embedding.backward(np.zeros((2, 4), np.float32), 1)
