"""Does one step exchange what a recorded step of a real 8-rank DLRM did?

The record: TorchRec on 8 ranks, the 26 tables of MLPerf's DLRMv2 at dim 16, 16 samples a rank, 24
tables table-wise and tables 5 and 16 data-parallel. docs/zionex.md has the comparison as a table.
Rows are cut to 1,000, except of tables that have fewer: element counts do not depend on them.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from real_data import real_data

from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.schemes import Shard
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.cost.cost import lookups_of
from neocpu.plan.cost.work import Workload
from neocpu.plan.search.auto import make_plan
from neocpu.tables.specs.specs import bags
from neocpu.train.before.warmup import MiniBatch
from neocpu.train.config import config as configs
from neocpu.train.step.world import build

RANKS = 8
DIM = 16
MOST_ROWS = 1000
# How the description of a recorded collective begins -> what it is called here.
NAMES = {
    "pooled embeddings fwd": "pooled",
    "kjt splits": "splits",
    "kjt lengths": "lengths",
    "kjt values": "rows",
    "over-arch layers 2-4": "dense upper",
    "pooled embedding grads": "gradients",
    "data-parallel": "replicas",
    "over-arch layer 1": "dense lower",
}
# Our calls that do the work of a recorded one. An allreduce is two, and sparse it is six.
COLLECTIVES = {
    "pooled": ("pooled output",),
    "lengths": ("input lengths",),
    "rows": ("input rows",),
    "dense upper": ("dense slices", "dense gather"),
    "gradients": ("pooled gradients",),
    "replicas": (
        "replica counts",
        "replica rows",
        "replica words",
        "gathered counts",
        "gathered rows",
        "gathered gradients",
    ),
    "dense lower": ("dense slices", "dense gather"),
}


class Call(NamedTuple):
    """A collective of one rank: its name, verb, dtype, and elements sent and received."""

    what: str
    verb: str
    dtype: str
    sent: int
    received: int


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
            'pipeline = "full"',
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


class Recorder:
    """Records the collectives of a comm and its queues, in the order in which they begin."""

    def __init__(self, comm: Comm) -> None:
        self.calls: list[Call] = []
        for queue in (comm, *comm._queues.values()):
            for verb in ("alltoallv", "allgatherv"):
                self._record(queue, verb)

    def _record(self, comm: Comm, verb: str) -> None:
        start: Callable[..., Any] = getattr(comm, f"start_{verb}")

        def recorded(send: Any, *rest: Any, what: str = "", **options: Any) -> Any:
            recv = rest[-2]
            self.calls.append(Call(what, verb, send.dtype.name, send.size, recv.size))
            return start(send, *rest, what=what, **options)

        setattr(comm, f"start_{verb}", recorded)


@pytest.fixture(scope="module")
def calls_of_ranks(golden: Golden) -> list[list[Call]]:
    """The collectives of a second of three pipelined steps, by rank."""
    settings = golden.settings()
    plan = golden.plan(settings)

    # whatever is polled has come by then: the order is that of a network that keeps up
    def arrives(request: Any) -> bool:
        request.wait()
        return True

    def body(comm: Comm) -> list[Call]:
        world = build(settings, comm, plan, golden.trace["config"]["dense_arch"][0])
        batch = golden.samples(comm)
        steps = world.step.over(iter([batch] * 3), 1)
        steps.next()
        recorder = Recorder(comm)
        steps.next()
        calls = list(recorder.calls)
        steps.next()
        return calls

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("neocpu.parallel.transport.threads._Started.test", arrives)
        return run_threads(RANKS, body)


def test_the_model_has_the_recorded_parameters(golden: Golden) -> None:
    from neocpu.train.model.layout import ModelLayout

    model = golden.settings().model
    dims = [DIM] * len(golden.rows)
    layout = ModelLayout(13, dims, model.bottom, model.top, model.interaction, model.diagonal)
    first = golden.collective("over-arch layers 2-4")["n"]
    second = golden.collective("over-arch layer 1")["n"]
    assert layout.parameters == first + second == 621_201


def test_a_step_exchanges_what_the_recorded_one_did(
    golden: Golden, calls_of_ranks: list[list[Call]]
) -> None:
    """Elements of every collective: those of the record."""
    recorded = {name: golden.collective(what) for what, name in NAMES.items()}
    buckets = [recorded["dense upper"]["n"], recorded["dense lower"]["n"]]
    for rank, calls in enumerate(calls_of_ranks):
        expected = [
            Call("pooled output", "alltoallv", "float32", 6144, 6144),
            # a status number to each rank goes before its lengths
            Call("input lengths", "alltoallv", "int32", 384 + RANKS, 384 + RANKS),
            Call(
                "input rows",
                "alltoallv",
                "int64",
                recorded["rows"]["inp"],
                recorded["rows"]["out_by_rank"][rank],
            ),
            Call("pooled gradients", "alltoallv", "float32", 6144, 6144),
        ]
        for size in buckets:
            part = size * (rank + 1) // RANKS - size * rank // RANKS
            expected.append(Call("dense slices", "alltoallv", "float32", size, RANKS * part))
            expected.append(Call("dense gather", "allgatherv", "float32", part, size))
        counted = Counter(calls)
        assert not Counter(expected) - counted, rank
        # what is left belongs to the data-parallel tables: sparse, and so more calls than one
        rest = {call.what: call for call in counted - Counter(expected)}
        assert set(rest) == set(COLLECTIVES["replicas"])
        # every row was looked up, so as many numbers come back as the dense allreduce has
        assert rest["gathered gradients"].received == recorded["replicas"]["n"]
        assert rest["gathered rows"].received == recorded["replicas"]["n"] // DIM
    assert recorded["pooled"]["inp"] == recorded["gradients"]["out"] == 6144
    assert recorded["lengths"]["inp"] == recorded["lengths"]["out"] == 384


def test_collectives_begin_in_the_recorded_order(
    golden: Golden, calls_of_ranks: list[list[Call]]
) -> None:
    """Pooled vectors; inputs of the next batch, before the backward pass; then the gradients."""
    order = [
        NAMES[what]
        for collective in golden.trace["collectives_in_order"]
        for what in NAMES
        if collective["what"].startswith(what)
    ]
    assert len(order) == len(golden.trace["collectives_in_order"]) == 8
    for calls in calls_of_ranks:
        names = [call.what for call in calls]
        sums = [place for place, name in enumerate(names) if name == "dense slices"]
        begins = {
            name: names.index(first[0]) for name, first in COLLECTIVES.items() if name in order
        }
        begins |= {"dense upper": sums[0], "dense lower": sums[1]}
        begins |= {"splits": begins["lengths"]}  # none of ours: they follow from the lengths
        ours = sorted(order, key=lambda name: (begins[name], order.index(name)))
        assert ours == order, names


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
