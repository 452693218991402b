"""Are the seconds of a step those of the written formulas, on a machine without curves?"""

from dataclasses import replace

import numpy as np
import pytest

from neocpu.core.errors import ConfigError
from neocpu.parallel.sharding.plan import place
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import PHASES, StepSeconds, loads_of, step_seconds
from neocpu.plan.cost.work import DenseWork, TableArrays, Wires, Workload, rectangles_of
from neocpu.plan.machines.fabric import FabricLevel
from neocpu.plan.machines.machine import (
    ComputePeak,
    LinkPeak,
    Machine,
    MemoryPeak,
)
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.before.first_samples import distinct_codes

MACHINE = Machine(
    name="round numbers",
    hbm=MemoryPeak(capacity_bytes=10**10, bandwidth_bytes_per_s=1e12),
    ddr=MemoryPeak(capacity_bytes=10**11, bandwidth_bytes_per_s=1e10),
    inside_node=LinkPeak(bandwidth_bytes_per_s=1e11, latency_s=1e-6),
    between_nodes=LinkPeak(bandwidth_bytes_per_s=1e10, latency_s=1e-5),
    compute=ComputePeak(fp32_flops_per_s=1e13),
)
TABLE = TableSpec("t", 1000, 64, ("a", "b"))
WORK = Workload(batch=400, pooling={"t": 5.0})
# indices and lengths of 800 bags with 5 lookups each
INPUT_BYTES = 8 * 4000 + 4 * 800


def phases(scheme: str, layout: Layout, work: Workload = WORK) -> dict[str, float]:
    """The slowest rank's seconds of each phase of one table."""
    model = StepSeconds(MACHINE, [TABLE], work, layout)
    plan = place([TABLE], [scheme], layout.ranks, layout.ranks_per_node)
    loads = loads_of(model, rectangles_of(plan), layout.ranks)
    assert step_seconds(model, loads) == pytest.approx(
        model.fixed_seconds + loads.max(axis=0).sum()
    )
    return dict(zip(PHASES, loads.max(axis=0).tolist()))


def test_a_whole_table_sends_to_ranks_of_its_node_and_of_others() -> None:
    seconds = phases("table_wise", Layout(8, 2))
    # six of eight ranks are on other nodes, over the slower link
    assert seconds["input"] == pytest.approx(INPUT_BYTES * 6 / 8 / 1e10)
    assert seconds["lookup"] == pytest.approx(4000 * 256 / 1e12)
    assert seconds["output"] == pytest.approx(800 * 64 * 4 * 6 / 8 / 1e10)
    assert seconds["gradient"] == pytest.approx(seconds["output"])
    assert seconds["update"] == pytest.approx(2 * seconds["lookup"])
    assert seconds["prefetch"] == seconds["replicas"] == 0


def test_one_rank_exchanges_nothing() -> None:
    seconds = phases("table_wise", Layout(1, 1))
    assert seconds["input"] == seconds["output"] == seconds["gradient"] == 0
    assert seconds["lookup"] > 0
    model = StepSeconds(MACHINE, [TABLE], WORK, Layout(1, 1))
    assert model.fixed["latency"] == model.fixed["dense_exchange"] == 0


def test_sums_of_rows_take_the_bytes_of_their_route() -> None:
    direct = phases("row_wise", Layout(8, 2, "direct"))
    ring = phases("row_wise", Layout(8, 2, "reduce_scatter"))
    levels = phases("row_wise", Layout(8, 2, "two_level"))
    block = 800 * 64 * 8
    assert direct["output"] == pytest.approx(block * 6 / 8 / 1e10)
    assert ring["output"] == pytest.approx(block / 1e10)
    assert levels["output"] == pytest.approx(block / 2 / 1e11 + block * 3 / 4 / 2 / 1e10)
    assert direct["lookup"] == pytest.approx(4000 / 8 * 256 / 1e12)


def test_columns_are_looked_up_by_all_lookups() -> None:
    whole = phases("table_wise", Layout(4, 4))
    columns = phases("column_wise", Layout(4, 4))
    assert columns["input"] == pytest.approx(whole["input"])
    assert columns["output"] == pytest.approx(whole["output"] / 4)
    assert columns["lookup"] == pytest.approx(whole["lookup"] / 4)


def test_copies_exchange_sums_of_touched_rows_only() -> None:
    seconds = phases("data_parallel", Layout(4, 4))
    assert seconds["input"] == seconds["output"] == seconds["gradient"] == 0
    assert seconds["lookup"] == pytest.approx(1000 * 256 / 1e12)
    touched_here = 1000 * (1 - (1 - 1 / 1000) ** 1000)
    touched_anywhere = 1000 * (1 - (1 - 1 / 1000) ** 4000)
    sent = 8 * 65 * touched_here + (4 * 64 + 8) * touched_anywhere
    applied = (touched_anywhere - touched_here) * 256 / 0.5e12
    assert seconds["replicas"] == pytest.approx(sent * 3 / 4 / 1e11 + applied)


def test_copies_of_replica_groups_exchange_sums_of_touched_rows() -> None:
    """A group is a node of four ranks, and there are two: each has one copy of a row."""
    layout = Layout.of_run(8, 4, "direct", 2)
    assert layout == Layout(4, 4, "direct", 2, 1) and layout.everybody == Layout(8, 4)
    work = WORK.of_group([TABLE], 2)
    assert work.batch == 200
    seconds = phases("row_wise", layout, work)
    one_group = phases("row_wise", Layout(4, 4), work)
    here = 250 * (1 - (1 - 1 / 1000) ** 2000)
    anywhere = 250 * (1 - (1 - 1 / 1000) ** 4000)
    sent = 8 * 65 * here + (4 * 64 + 8) * anywhere
    applied = (anywhere - here) * 256 / 0.5e12
    assert seconds["replicas"] == pytest.approx(sent / 2 / 1e10 + applied)
    assert {**seconds, "replicas": 0.0} == one_group
    # copies on one node exchange inside it
    near = phases("row_wise", Layout.of_run(8, 8, "direct", 2), work)
    assert near["replicas"] == pytest.approx(sent / 2 / 1e11 + applied)
    # a table on all ranks is summed over all of them
    copied = phases("data_parallel", layout, work)["replicas"]
    assert copied == pytest.approx(phases("data_parallel", Layout(8, 4))["replicas"])
    # measured rows of all samples: fewer are those of half of them
    measured = replace(WORK, distinct={"t": 70.0}).of_group([TABLE], 2)
    assert 69 < measured.distinct["t"] < 70
    fixed = StepSeconds(MACHINE, [TABLE], work, layout).fixed
    # five exchanges inside the node, four between copies
    assert fixed["latency"] == pytest.approx(5 * 1e-6 + 4 * 1e-5)


def test_wires_and_uplinks_count() -> None:
    plain = phases("table_wise", Layout(8, 2))
    narrow = phases("table_wise", Layout(8, 2), replace(WORK, wires=Wires("fp16", "bf16")))
    assert narrow["output"] == pytest.approx(plain["output"] / 2)
    assert narrow["input"] == pytest.approx(plain["input"])
    oversubscribed = replace(MACHINE, rack=FabricLevel(nodes=2, oversubscription=3.0))
    plan = place([TABLE], ["table_wise"], 8, 2)
    model = StepSeconds(oversubscribed, [TABLE], WORK, Layout(8, 2))
    loads = loads_of(model, rectangles_of(plan), 8)
    # four of eight ranks are beyond the rack, whose uplinks are three times as narrow
    assert loads.max(axis=0)[2] == pytest.approx(800 * 64 * 4 * 4 / 8 * 3 / 1e10)
    rails = replace(MACHINE, rack=FabricLevel(nodes=4, oversubscription=3.0, rails=True))
    layout = Layout(8, 2, "two_level")
    seconds = StepSeconds(rails, [TABLE], WORK, layout).links
    # three of the six ranks of other nodes are on other rails; two-level sums keep to theirs
    assert seconds.byte_seconds["between"] == pytest.approx(3 / 2 / 1e10)
    assert seconds.byte_seconds["places"] == pytest.approx(1 / 1e10)


def test_rows_that_are_not_in_fast_memory_are_brought_up() -> None:
    model = StepSeconds(MACHINE, [TABLE], WORK, Layout(1, 1))
    rectangles = rectangles_of(place([TABLE], ["table_wise"], 1))
    whole = model.seconds(rectangles)[0, PHASES.index("prefetch")]
    seconds = [
        model.seconds(rectangles._replace(share=np.array([share])))[0, PHASES.index("prefetch")]
        for share in (0.5, 0.1)
    ]
    assert whole == 0 < seconds[0] < seconds[1]


def test_measured_distinct_rows_replace_uniform_ones() -> None:
    assert TableArrays.of([TABLE], WORK).distinct[0] == pytest.approx(
        1000 * (1 - (1 - 1 / 1000) ** 4000)
    )
    measured = replace(WORK, distinct={"t": 70.0})
    assert TableArrays.of([TABLE], measured).distinct[0] == 70


def test_dense_layers_are_multiplied_three_times() -> None:
    work = replace(WORK, dense=DenseWork(((10, 1000), (1000, 1))))
    model = StepSeconds(MACHINE, [TABLE], work, Layout(4, 4))
    operations = 2 * 100 * (10 * 1000 + 1000)
    assert model.fixed["dense_forward"] == pytest.approx(operations / 1e13)
    assert model.fixed["dense_backward"] == pytest.approx(2 * operations / 1e13)
    parameters = 11 * 1000 + 1001
    half = 4 * parameters * 3 / 4
    assert model.fixed["dense_exchange"] == pytest.approx(2 * (1e-6 + half / 1e11))


def test_ranks_without_a_link_are_refused() -> None:
    lonely = replace(MACHINE, name="servers", inside_node=LinkPeak())
    with pytest.raises(ConfigError, match="servers: it has no link between ranks of one node"):
        assert StepSeconds(lonely, [TABLE], WORK, Layout(8, 2)).links.latency_seconds > 0
    assert StepSeconds(lonely, [TABLE], WORK, Layout(8, 1)).links.latency_seconds > 0


def test_skewed_lookups_touch_fewer_rows() -> None:
    draws = np.random.default_rng(1).zipf(1.2, 8000)
    small = distinct_codes(draws, 1000)
    assert small == np.unique(draws[:1000]).size
    # twice as many lookups as were looked at find new codes, but fewer than the first ones did
    first = np.unique(draws[:4000]).size
    estimate = distinct_codes(draws[:4000], 8000)
    assert first < estimate < 2 * first
    assert estimate == pytest.approx(np.unique(draws).size, rel=0.1)
    assert distinct_codes(np.arange(10), 40) == pytest.approx(40)
    assert distinct_codes(np.zeros(10, np.int64), 40) == 1
    assert distinct_codes(np.zeros(0, np.int64), 0) == 0
    skewed = replace(WORK, distinct={"t": 70.0})
    copies = [phases("data_parallel", Layout(4, 4), work)["replicas"] for work in (skewed, WORK)]
    assert copies[0] < copies[1]
