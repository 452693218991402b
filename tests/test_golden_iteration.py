"""Does one step exchange what a recorded step of a real 8-rank DLRM did?

The record: TorchRec on 8 ranks, the 26 tables of MLPerf's DLRMv2 at dim 16, 16 samples a rank, 24
tables table-wise and tables 5 and 16 data-parallel. docs/zionex.md has the comparison as a table.
Rows are cut to 1,000, except of tables that have fewer: element counts do not depend on them.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from real_data import real_data

from neocpu import config as configs
from neocpu.embedding.specs import bags
from neocpu.jagged import KJT
from neocpu.parallel.comm import Comm
from neocpu.parallel.plan import Plan
from neocpu.parallel.sharding import Shard
from neocpu.parallel.threads import run_threads
from neocpu.planner.auto import make_plan
from neocpu.planner.cost import lookups_of
from neocpu.planner.work import Workload
from neocpu.training.warmup import MiniBatch
from neocpu.training.world import build
from neocpu.trees import rank_samples

RANKS = 8
DIM = 16
MOST_ROWS = 1000
# (collective, what, elements sent, elements received) of one rank
Call = tuple[str, str, int, int]


@dataclass(frozen=True)
class Golden:
    """The recorded step, and the tables that it was of."""

    trace: dict[str, Any]
    rows: list[int]
    hotness: list[int]

    @property
    def batch(self) -> int:
        """Samples of all ranks."""
        return RANKS * int(self.trace["config"]["local_batch"])

    def collective(self, what: str) -> dict[str, Any]:
        """The recorded collective whose description begins so."""
        matches = [c for c in self.trace["collectives_in_order"] if c["what"].startswith(what)]
        assert len(matches) == 1
        return dict(matches[0])

    def settings(self) -> configs.Config:
        """The config of the same model."""
        dense = self.trace["config"]["dense_arch"]
        over = self.trace["config"]["over_arch"]
        lines = [
            "[model]",
            f"embedding_dim = {DIM}",
            f"bottom = {dense[1:]}",
            f"top = {over[1:]}",
            'interaction = "dot"',
            "[training]",
            f"batch_size = {self.batch}",
            "leaves = 8",
            "[tables]",
            *(f"t{t}.rows = {min(rows, MOST_ROWS)}" for t, rows in enumerate(self.rows)),
        ]
        return configs.loads("\n".join(lines))

    def plan(self, settings: configs.Config) -> Plan:
        """The recorded plan."""
        copied = self.trace["data_parallel_tables"]
        homes = {
            table: int(rank)
            for rank, tables in self.trace["plan_table_wise"].items()
            for table in tables
        }
        shards = [
            Shard(t, (0, table.rows), (0, DIM), rank)
            for t, table in enumerate(settings.tables)
            for rank in (range(RANKS) if t in copied else [homes[t]])
        ]
        schemes = ["data_parallel" if t in copied else "table_wise" for t in range(len(self.rows))]
        return Plan(settings.tables, tuple(schemes), tuple(shards), RANKS, RANKS).check()

    def samples(self, comm: Comm) -> MiniBatch:
        """This rank's samples; together they look up every row of the data-parallel tables."""
        first, last = rank_samples(comm.rank, comm.size, self.batch, 8)
        size = last - first
        lengths = np.repeat(np.array(self.hotness, np.int32)[:, None], size, axis=1)
        values = [
            np.arange(hot * size, dtype=np.int64) % min(rows, MOST_ROWS)
            for hot, rows in zip(self.hotness, self.rows)
        ]
        keys = tuple(bag.key for bag in bags(self.settings().tables))
        kjt = KJT(keys, lengths, np.concatenate(values), None)
        dense = np.ones((size, self.trace["config"]["dense_arch"][0]), np.float32)
        return MiniBatch(dense, kjt, np.zeros(size, np.float32), self.batch)


@pytest.fixture(scope="module")
def golden() -> Golden:
    trace = json.loads(real_data("param_dlrm_8rank_decoded.json").read_text())
    tables = json.loads(real_data("table_configs.json").read_text())["mlperf_dlrmv2"]
    return Golden(trace, tables["rows"], tables["multi_hot_sizes"])


def record(comm: Comm) -> list[Call]:
    """A list that every later collective of the comm and its queues is added to."""
    calls: list[Call] = []
    for queue in (comm, *comm._queues.values()):
        _record(queue, calls)
    return calls


def _record(comm: Comm, calls: list[Call]) -> None:
    exchange: Callable[..., Any] = comm._exchange
    gather: Callable[..., Any] = comm._gather

    def recorded_exchange(send: Any, send_counts: Any, recv: Any, recv_counts: Any) -> Any:
        calls.append(("alltoallv", send.dtype.name, send.size, recv.size))
        return exchange(send, send_counts, recv, recv_counts)

    def recorded_gather(send: Any, recv: Any, counts: Any) -> None:
        calls.append(("allgatherv", recv.dtype.name, send.size, recv.size))
        gather(send, recv, counts)

    setattr(comm, "_exchange", recorded_exchange)  # noqa: B010
    setattr(comm, "_gather", recorded_gather)  # noqa: B010


@pytest.fixture(scope="module")
def calls_of_ranks(golden: Golden) -> list[list[Call]]:
    """The collectives of a second step, by rank."""
    settings = golden.settings()
    plan = golden.plan(settings)

    def body(comm: Comm) -> list[Call]:
        world = build(settings, comm, plan, golden.trace["config"]["dense_arch"][0])
        batch = golden.samples(comm)
        world.step(batch, 1)
        calls = record(comm)
        world.step(batch, 2)
        return calls

    return run_threads(RANKS, body)


def test_the_model_has_the_recorded_parameters(golden: Golden) -> None:
    from neocpu.model.layout import ModelLayout

    model = golden.settings().model
    dims = [DIM] * len(golden.rows)
    layout = ModelLayout(13, dims, model.bottom, model.top, model.interaction, model.diagonal)
    first = golden.collective("over-arch layers 2-4")["n"]
    second = golden.collective("over-arch layer 1")["n"]
    assert layout.parameters == first + second == 621_201


def test_a_step_exchanges_what_the_recorded_one_did(
    golden: Golden, calls_of_ranks: list[list[Call]]
) -> None:
    lengths = golden.collective("kjt lengths")
    values = golden.collective("kjt values")
    pooled = golden.collective("pooled embeddings fwd")
    gradients = golden.collective("pooled embedding grads")
    dense = golden.collective("over-arch layers 2-4")["n"]
    dense += golden.collective("over-arch layer 1")["n"]
    copies = golden.collective("data-parallel")["n"]
    for rank, calls in enumerate(calls_of_ranks):
        slice_size = dense * (rank + 1) // RANKS - dense * rank // RANKS
        expected: list[Call] = [
            # a status number to each rank goes before its lengths
            ("alltoallv", "int32", lengths["inp"] + RANKS, lengths["out"] + RANKS),
            ("alltoallv", "int64", values["inp"], values["out_by_rank"][rank]),
            ("alltoallv", "float32", pooled["inp"], pooled["out"]),
            ("alltoallv", "float32", gradients["inp"], gradients["out"]),
            # both allreduces of dense gradients, in the two halves that an allreduce is made of
            ("alltoallv", "float32", dense, RANKS * slice_size),
            ("allgatherv", "float32", slice_size, dense),
        ]
        counted = Counter(calls)
        assert not Counter(expected) - counted, (rank, calls)
        # what is left belongs to the data-parallel tables: sparse, and so more calls than one
        rest = sorted(counted - Counter(expected), key=str)
        assert [call[:2] for call in rest] == [
            ("allgatherv", "float32"),
            ("allgatherv", "int64"),
            ("alltoallv", "float64"),
            *[("alltoallv", "int64")] * len(rest[3:]),
        ]
        # every row was looked up, so as many numbers come back as the dense allreduce has
        assert rest[0][3] == copies
        assert rest[1][3] == copies // DIM


def test_the_planners_own_plan_is_far_better_balanced(golden: Golden) -> None:
    received = golden.collective("kjt values")["out_by_rank"]
    recorded = max(received) / (sum(received) / RANKS)
    assert round(recorded, 2) == 3.92
    settings = golden.settings()
    work = Workload(golden.batch, {f"t{t}": float(h) for t, h in enumerate(golden.hotness)})
    plan = make_plan(settings.tables, "auto", RANKS, work=work)
    lookups = [
        sum(
            lookups_of(plan.tables[s.table], s, RANKS, plan.replicated(s.table), work)
            for s in plan.local(rank)
        )
        for rank in range(RANKS)
    ]
    assert max(lookups) / (sum(lookups) / RANKS) < 1.5
