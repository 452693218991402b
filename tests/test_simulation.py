"""Does the simulated step obey the laws of time and links, and agree with the planner?"""

import json
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import reproduction
from neocpu.cli import run as command
from neocpu.core.errors import ConfigError
from neocpu.core.stages import EXCHANGE, PIPELINES, STEP, check, pipelined
from neocpu.parallel.sharding.plan import place
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import step_seconds
from neocpu.plan.cost.work import DenseWork, Wires, Workload
from neocpu.plan.machines.fabric import FabricLevel
from neocpu.plan.machines.machine import LinkPeak, PhaseCosts
from neocpu.plan.machines.machine_file import load, preset_names
from neocpu.plan.machines.scaling import scaled
from neocpu.plan.simulation import collectives
from neocpu.plan.simulation.costs import StageOptions, copy_bytes, copy_seconds, stage_works
from neocpu.plan.simulation.engine import Work, run, unrolled
from neocpu.plan.simulation.planners import placed_with
from neocpu.plan.simulation.scenario import Scenario, placed_by, simulate
from neocpu.plan.simulation.trace import trace_text, traced_ranks
from neocpu.plan.simulation.what_if import changes
from neocpu.tables.specs.directions import ShampooKeys
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.before.machine_plans import question_of
from neocpu.train.before.scenario import Course, LogFacts, scenario_of
from neocpu.train.config import config as configs
from tests import recorded

ZIONEX = load("zionex")
DENSE = DenseWork(((13, 512), (512, 64), (1344, 1024), (1024, 1)), precision="tf32")


def scenario(ranks=16, scheme="table_wise", seed=0, machine=ZIONEX, **changes):
    """A step of 20 tables under one scheme, and where they are."""
    rng = np.random.default_rng(seed)
    tables = tuple(
        TableSpec(f"t{i}", rows=int(rows), dim=64, features=(f"f{i}",))
        for i, rows in enumerate(rng.integers(1000, 1_000_000, 20))
    )
    pooling = {table.name: float(rng.integers(1, 40)) for table in tables}
    work = Workload(batch=512 * ranks, pooling=pooling, dense=DENSE)
    step = Scenario(machine, ranks, tables, work, options=StageOptions(bottom_layers=2))
    step = replace(step, **changes)
    plan = place(tables, [scheme] * len(tables), ranks, machine.ranks_per_node)
    return step, placed_by(step, plan)


def random_works(rng, ranks, links=("nic", "nvlink")):
    """Random seconds for every stage, and random uses of links for exchanges."""
    works = {}
    for stage in STEP:
        uses = {}
        if stage.kind == EXCHANGE:
            uses = {link: float(rng.choice([0.0, 0.3, 1.0])) for link in links}
            uses[links[0]] = max(uses[links[0]], 0.5)
        works[stage.name] = Work(rng.random(ranks) * rng.choice([0.0, 1.0, 5.0]), uses)
    return works


# ---- the engine ----


def test_the_schedule_is_sound():
    for pipeline in PIPELINES:
        check(pipelined(pipeline))
    with pytest.raises(ValueError, match="not above it"):
        check(STEP[::-1])


@pytest.mark.parametrize("seed", range(8))
def test_laws_of_time(seed):
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(1, 9))
    works = random_works(rng, ranks)
    ends = {}
    for pipeline in PIPELINES:
        line = run(unrolled(pipelined(pipeline), works, 5), ranks)
        again = run(unrolled(pipelined(pipeline), works, 5), ranks)
        np.testing.assert_array_equal(line.finish, again.finish)
        assert (line.arrival <= line.start).all() and (line.start <= line.finish).all()
        for number, task in enumerate(line.tasks):
            for earlier in task.waits:
                assert (line.finish[earlier] <= line.arrival[number] + 1e-12).all()
            alone = task.work.seconds.max() if task.exchange else task.work.seconds
            length = line.finish[number] - line.start[number]
            assert (length >= alone - 1e-9).all()
            worked = sum((p.finish - p.start) * p.rate for p in line.stretches.get(number, []))
            if task.exchange:
                assert worked == pytest.approx(alone, abs=1e-9)
        ends[pipeline] = line.batch_end(4)
    serial = sum(work.seconds.max() for work in works.values())
    assert ends["off"] <= 5 * serial + 1e-9
    assert ends["full"] <= ends["off"] + 1e-9 and ends["input"] <= ends["off"] + 1e-9


def test_exchanges_share_a_link_and_the_sum_of_their_work_is_kept():
    stages = [
        STEP[2]._replace(name="a", queue="x", needs=(), earlier=()),
        STEP[2]._replace(name="b", queue="y", needs=(), earlier=()),
    ]
    two = {"a": Work(np.array([1.0, 2.0]), {"nic": 1.0}), "b": Work(np.ones(2), {"nic": 1.0})}
    line = run(unrolled(stages, two, 1), 2)
    # b runs at half its rate until 2 s; a has half of its work done then, and ends at 3 s
    np.testing.assert_allclose(line.finish, [[3.0, 3.0], [2.0, 2.0]])
    apart = two | {"b": Work(np.ones(2), {"nvlink": 1.0})}
    np.testing.assert_allclose(run(unrolled(stages, apart, 1), 2).finish[:, 0], [2.0, 1.0])
    circle = [stages[0]._replace(needs=("b",)), stages[1]._replace(needs=("a",))]
    with pytest.raises(ValueError, match="wait for each other: a, b"):
        run(unrolled(circle, two, 1), 2)


def test_directions_are_gathered_while_others_are_found():
    step, placed = scenario(ranks=16)
    plain = simulate(step, placed)
    # of the layers of DENSE, bottom and top
    shapes = {f"w{i}": (outputs, inputs) for i, (inputs, outputs) in enumerate(DENSE.layers)}
    work = ShampooKeys(every=50).work(shapes)
    dense = replace(DENSE, directions=work)
    step = replace(step, work=replace(step.work, dense=dense))
    seconds = {}
    for pipeline in ("off", "full"):
        shares = simulate(replace(step, pipeline=pipeline), placed).breakdown.shares
        (seconds[pipeline],) = (each for each in shares if each.phase == "gathered directions")
    assert seconds["off"].exposed == pytest.approx(seconds["off"].serialised)
    assert seconds["full"].exposed < seconds["full"].serialised
    assert all(each.phase != "gathered directions" for each in plain.breakdown.shares)


# ---- collectives ----


def network(ranks, per_node, **changes):
    machine = replace(ZIONEX, ranks_per_node=per_node, **changes)
    return collectives.Network(machine, Layout(ranks, per_node))


def test_closed_forms_of_collectives():
    a = ZIONEX.between_nodes.latency_s
    b = 1 / ZIONEX.between_nodes.bandwidth_bytes_per_s
    net = network(16, 1)
    forms = {
        ("alltoall", "pairwise"): (15 * a, 15 / 16 * b),
        ("alltoall", "ring"): (15 * a, 15 / 2 * b),
        ("alltoall", "tree"): (4 * a, 4 / 2 * b),
        ("alltoall", "hierarchical"): (15 * a, 15 / 16 * b),
        ("allreduce", "pairwise"): (30 * a, 30 / 16 * b),
        ("allreduce", "ring"): (30 * a, 30 / 16 * b),
        ("allreduce", "tree"): (8 * a, 8 * b),
        ("allreduce", "hierarchical"): (30 * a, 30 / 16 * b),
    }
    assert set(forms) == set(collectives.ROUNDS)
    for (operation, algorithm), (latency, byte_seconds) in forms.items():
        price = net.price(operation, algorithm)
        assert price.latency == pytest.approx(latency)
        assert price.byte_seconds == pytest.approx(byte_seconds)
        alone = network(1, 1).price(operation, algorithm)
        assert alone.latency == alone.byte_seconds == 0
    # 2 nodes of 4: inside, then between
    a_in = ZIONEX.inside_node.latency_s
    b_in = 1 / ZIONEX.inside_node.bandwidth_bytes_per_s
    price = network(8, 4).price("alltoall", "hierarchical")
    assert price.latency == pytest.approx(3 * a_in + a)
    assert price.byte_seconds == pytest.approx(3 / 4 * b_in + b / 2)
    price = network(8, 4).price("allreduce", "ring")
    assert price.byte_seconds == pytest.approx(14 * max(b_in * 3 / 4, b / 4) / 8)


def test_trees_over_numbers_that_are_no_power_of_two_have_a_level_more():
    a_in = ZIONEX.inside_node.latency_s
    a = ZIONEX.between_nodes.latency_s
    net = network(9, 3)
    assert net.price("alltoall", "tree").latency == pytest.approx(2 * a_in + 2 * a)
    assert net.price("allreduce", "tree").latency == pytest.approx(4 * a_in + 4 * a)
    assert network(5, 1).price("alltoall", "tree").latency == pytest.approx(3 * a)


def test_oversubscribed_uplinks_slow_what_leaves():
    racks = FabricLevel(nodes=4, oversubscription=3.0)
    wide = network(16, 1, rack=replace(racks, oversubscription=1.0)).price("alltoall", "pairwise")
    narrow = network(16, 1, rack=racks).price("alltoall", "pairwise")
    assert wide.byte_seconds == network(16, 1).price("alltoall", "pairwise").byte_seconds
    # 12 of the 15 others are in other racks
    assert narrow.byte_seconds == pytest.approx(3 * 12 / 15 * wide.byte_seconds)
    assert network(4, 1, rack=racks).price("alltoall", "pairwise").byte_seconds < (
        wide.byte_seconds
    )


def test_rails_keep_exchanges_of_equal_places_below_their_switches():
    """16 nodes of 4, 8 nodes on a switch: 7 of the 60 ranks elsewhere are on a rank's own rail."""
    rack = FabricLevel(nodes=8, oversubscription=4.0, rails=True)
    b = 1 / ZIONEX.between_nodes.bandwidth_bytes_per_s
    rails = network(64, 4, rack=rack)
    shared = network(64, 4, rack=replace(rack, rails=False))
    pairwise = rails.price("alltoall", "pairwise").uses["rack"]
    assert pairwise == pytest.approx(60 / 64 * 4 * b * (1 - 7 / 60))
    assert shared.price("alltoall", "pairwise").uses["rack"] == pytest.approx(
        60 / 64 * 4 * b * 8 / 15
    )
    for form in ("hierarchical", "ring", "tree"):
        assert rails.price("alltoall", form) == shared.price("alltoall", form)
    # all nodes below one switch: other places are still beyond it
    above = network(32, 4, rack=rack).price("alltoall", "pairwise").uses["rack"]
    assert above == pytest.approx(28 / 32 * 4 * b * 3 / 4)
    assert "rack" not in network(32, 4, rack=rack).price("alltoall", "hierarchical").uses


# ---- steps ----


def measured_machine():
    """A machine on which phases of our own step were measured, on 4 ranks that have a core each."""
    names = ("input", "lookup", "output", "gradient", "update", "replicas")
    costs = [
        PhaseCosts(name, 1 + 3 * many, call_s=1e-4 * (i + 1), lookup_s=1e-8, number_s=1e-9, curve=1)
        for i, name in enumerate(names)
        for many in (0, 1)
    ]
    return replace(ZIONEX, ranks_per_node=4, phases=tuple(costs))


@pytest.mark.parametrize(
    "machine",
    [ZIONEX, measured_machine(), replace(measured_machine(), between_nodes=LinkPeak())],
    ids=["curves", "phases", "crowded"],
)
@pytest.mark.parametrize("ranks", [1, 8, 16])
def test_a_serial_step_is_the_planners(ranks, machine):
    step, placed = scenario(ranks, pipeline="off", machine=machine)
    outcome = simulate(step, placed)
    copied = copy_seconds(step.model, step.options)
    # ranks wait for each other in exchanges only, the planner's after every phase
    assert outcome.step <= step_seconds(step.model, outcome.loads) + copied + 1e-12
    even = np.broadcast_to(outcome.loads.mean(axis=0), outcome.loads.shape)
    works = stage_works(step.model, even, step.options)
    line = run(unrolled(pipelined("off"), works, 2), ranks)
    planned = step_seconds(step.model, even) + copied
    assert line.batch_end(1) - line.batch_end(0) == pytest.approx(planned)


def test_a_weight_adds_four_bytes_to_its_lookup():
    step, _ = scenario(16)
    tables = tuple(replace(table, weighted=True) for table in step.tables)
    weighted = replace(step, tables=tables)
    lookups = float(step.model.arrays.lookups.sum()) / 16
    more = copy_bytes(weighted.model, step.options) - copy_bytes(step.model, step.options)
    assert more == pytest.approx(4 * lookups)


@pytest.mark.parametrize("scheme", ["table_wise", "row_wise", "data_parallel"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_breakdown_adds_up(scheme, pipeline):
    step, placed = scenario(16, scheme, pipeline=pipeline)
    parts = simulate(step, placed).breakdown
    exposed = sum(share.exposed for share in parts.shares)
    assert exposed + parts.waiting + parts.idle == pytest.approx(parts.step)
    for share in parts.shares:
        assert -1e-12 <= share.exposed <= share.serialised * (1 + 1e-9) + 1e-12
        assert share.serialised <= share.busiest * (1 + 1e-9)
    assert parts.step >= max(parts.busy.values()) * (1 - 1e-9)
    assert parts.step >= max(parts.links.values()) * (1 - 1e-9)
    assert sum(parts.path.values()) <= parts.step * (1 + 1e-9)


def test_more_of_a_machine_is_never_slower_and_pipelining_helps():
    steps = {}
    for pipeline in PIPELINES:
        step, placed = scenario(16, pipeline=pipeline)
        steps[pipeline] = simulate(step, placed).step
        for key in ("nic", "nvlink", "hbm.bandwidth", "compute.tf32_flops", "pcie"):
            slower = replace(step, machine=scaled(ZIONEX, key, 0.5))
            assert simulate(slower, placed).step >= steps[pipeline] * (1 - 1e-9), key
    assert steps["full"] < steps["input"] < steps["off"]


def test_one_rank_exchanges_nothing():
    step, placed = scenario(1)
    for task in simulate(step, placed).timeline.tasks:
        assert not task.exchange or not task.work.seconds.any()


def test_algorithms_wires_readers_and_caches_count():
    step, placed = scenario(16)
    plain = simulate(step, placed)
    for algorithm in collectives.ALGORITHMS:
        options = replace(step.options, algorithm=algorithm)
        assert 0 < simulate(replace(step, options=options), placed).step < 1
    mixed = replace(step, options=replace(step.options, algorithm="pairwise", sums="ring"))
    ring = replace(step, options=replace(step.options, algorithm="ring"))
    tasks = [simulate(step, placed).timeline.tasks for step in (mixed, ring)]
    for mixed_task, ring_task in zip(*tasks):
        if mixed_task.name.endswith("_sums"):
            assert mixed_task.work.uses == ring_task.work.uses
    narrow = replace(step, work=replace(step.work, wires=Wires(forward="fp16", backward="bf16")))
    assert simulate(narrow, placed).step < plain.step
    starved = replace(step, options=replace(step.options, readers=1000.0))
    assert simulate(starved, placed).step == pytest.approx(512 / 1000.0)
    plan = place(step.tables, ["table_wise"] * 20, 16, 8)
    missing = placed_by(replace(step, cache_share=0.1), plan)
    assert simulate(step, missing).step > plain.step
    with pytest.raises(ConfigError, match="choose one of measured, pairwise"):
        replace(step, options=StageOptions(algorithm="gossip"))
    with pytest.raises(ConfigError, match="choose one of off, input, full"):
        replace(step, pipeline="on")


# ---- the command ----

CONFIG = """
[data]
format = "criteo"
[model]
embedding_dim = 16
bottom = [32, 16]
top = [32, 1]
[tables]
"C*".rows = 1000
[training]
batch_size = 1024
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "model.toml"
    tables = "\n".join(f"C{i}.rows = {1000 * i}" for i in range(1, 27))
    path.write_text(CONFIG.replace('"C*".rows = 1000', tables))
    return path


def simulated(capsys, *words):
    """What `neocpu simulate` prints."""
    command(["simulate", *map(str, words)])
    return capsys.readouterr().out


def test_the_command_prints_traces_and_draws(config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("neocpu.plan.simulation.sweep.MOST_RANKS", 32)
    trace = tmp_path / "trace.json"
    picture = tmp_path / "scaling.svg"
    files = ["--trace", trace, "--scaling", picture]
    shown = simulated(capsys, config, "--ranks", 16, "--set", "work.pooling=3", *files)
    assert "QPS" in shown and "exchange of pooled vectors" in shown and "busiest stream" in shown
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == set(range(16))
    slices = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in slices)
    compute = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in slices
        if event["pid"] == 3 and event["tid"] == 2
    )
    assert all(left[1] <= right[0] + 0.01 for left, right in pairwise(compute))
    text = shown + picture.read_text()
    recorded.check("scaling", recorded.lines_of(text.replace(str(tmp_path), "")))
    root = ElementTree.fromstring(picture.read_text())
    assert root.tag.endswith("svg") and "32 ranks" in picture.read_text()


def test_a_trace_of_many_ranks_is_a_sample():
    step, placed = scenario(16)
    line = simulate(step, placed).timeline
    assert traced_ranks(line, 16) == list(range(16))
    assert len(traced_ranks(line, 5)) <= 5
    assert json.loads(trace_text(line, "t", 5))["otherData"]["ranks"].endswith("of 16 ranks")


def test_what_if_keys(config, capsys):
    def qps(*words):
        shown = simulated(capsys, config, "--ranks", 16, "--set", "work.pooling=9", *words)
        line = next(line for line in shown.splitlines() if line.startswith("QPS"))
        return float(line.split()[1].replace(",", ""))

    plain = qps()
    assert qps("--set", "machine.nic=2x") > plain
    assert qps("--set", "machine.ranks_per_node=16") > plain
    assert qps("--set", "wires.forward=fp16", "--set", "wires.backward=bf16") > plain
    assert qps("--set", "work.samples_per_rank=512") > plain
    assert qps("--set", "readers.per_node=8000") == pytest.approx(16000, rel=1e-3)
    for key, why in {
        "machine.warp=2x": "no such quantity",
        "machine.nic=fast": "neither a factor",
        "machine.nic=nanx": "must be a number above 0",
        "machine.nodes=1e999": "at least 0",
        "machine.ranks_per_node=2.5": "not a whole number",
        "machine.rack.nodes=2.5": "not a whole number",
        "machine.spine.oversubscription=0.5": "at least 1",
        "work.pooling=0": "must be at least",
        "work.pooling.C3=0": "work.pooling.C3: 0 must be at least",
        "work.pooling.no_*=3": "work.pooling: no table matches 'no_",
        "wires.forward=fp3": "is not allowed; one of",
        "wires.sideways=fp16": "unknown; choose one of wires.forward",
        "work.lookups=3": "keys of the simulator are work.pooling",
        "cache.share=2": "must be from 0 to 1",
        "work.precision=fp8": "has no units for fp8",
        "training.batch=3": "training.batch",
        'training.sync="off"': "training.sync: what a step costs on parameter servers",
    }.items():
        with pytest.raises(ConfigError, match=why):
            qps("--set", key)
    with pytest.raises(ConfigError, match="is unknown; choose one of"):
        qps("--planner", "chance")


def test_plan_and_simulation_price_the_same_step(config):
    keys = ["work.pooling=7", "work.samples_per_rank=64", "work.precision=tf32", "machine.nic=2x"]
    changed = changes([*keys, "work.pooling.C3=20", "wires.forward=fp16", "wires.partial=fp16"])
    settings = configs.load(config, [*changed.config, "parallel.route=two_level"])
    machine = load("zionex")
    facts = LogFacts({}, {"C3": 50.0}, 13)
    question = question_of(settings, machine, 16, facts=facts, changes=changed)
    step = scenario_of(settings, machine, 16, changed, Course(), facts)
    assert step.work == question.work and step.machine == question.machine
    assert step.work.batch == 16 * 64 and step.work.pooling["C3"] == 20.0
    assert set(step.work.pooling.values()) == {7.0, 20.0}
    assert step.work.dense.precision == "tf32" and step.work.wires.partial == "fp16"
    outcome = simulate(step, placed_with("search")(step))
    assert outcome.planned_step == pytest.approx(question.answer().seconds, rel=1e-9)
    for key in ("cache.share=0", "readers.per_node=9"):
        with pytest.raises(ConfigError, match=f"--set {key.partition('=')[0]}: a plan is priced"):
            question_of(settings, machine, 16, changes=changes([key]))


@pytest.mark.parametrize(
    ("keys", "distinct"),
    [
        ([], {"C3": 50.0}),
        (["work.pooling=7"], {}),
        (["work.pooling.C3=7"], {}),
        (["work.samples_per_rank=64"], {}),
    ],
)
def test_rows_that_a_log_looks_up_are_of_its_own_lookups(config, keys, distinct):
    facts = LogFacts({}, {"C3": 50.0}, 13)
    step = scenario_of(configs.load(config), load("zionex"), 16, changes(keys), Course(), facts)
    assert step.work.distinct == distinct


def test_a_plan_file_is_simulated_as_it_stands(config, tmp_path, capsys):
    plan = tmp_path / "plan.json"
    command(["plan", str(config), "--ranks", "16", "--out", str(plan)])
    capsys.readouterr()
    words = [config, "--set", f"parallel.plan={plan}", "--set", "work.pooling=9"]
    assert f"plan by {plan}" in simulated(capsys, *words, "--ranks", 16)
    with pytest.raises(ConfigError, match="the plan is for 16 rank"):
        simulated(capsys, *words, "--ranks", 8)


@pytest.mark.parametrize("machine", preset_names())
def test_every_preset_is_simulated(config, capsys, machine):
    words = [config, "--machine", machine, "--set", "training.batch_size=65536"]
    assert "samples/s" in simulated(capsys, *words, "--ranks", 24, "--planner", "greedy")


def test_the_smallest_machine(config, capsys, monkeypatch):
    monkeypatch.setattr("neocpu.plan.simulation.sweep.MOST_RANKS", 64)
    words = [config, "--ranks", 8, "--set", "work.pooling=9", "--planner", "size"]
    shown = simulated(capsys, *words, "--target-qps", "1e6")
    assert "are the fewest for 1,000,000 samples/s" in shown
    with pytest.raises(ConfigError, match="are not reached by 64 ranks"):
        simulated(capsys, *words, "--target-qps", "1e15")


# ---- the reproduction table ----


def test_the_reproduction_runs_and_its_memory_rows_are_exact(capsys):
    rows = {row.what: row for row in reproduction.main(["--quick"])}
    shown = capsys.readouterr().out
    for name, expected in (
        ("F: fp32, AdaGrad, TB", 96),
        ("F: fp32, row-wise AdaGrad, TB", 48),
        ("F: fp16, row-wise AdaGrad, TB", 24),
    ):
        assert rows[name].value == expected == rows[name].expected
        assert name in shown
    assert rows["F: software cache against unified memory"].value > 1


def test_the_reproduction_table_has_its_place_in_the_docs(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(reproduction.PAGE.read_text())
    monkeypatch.setattr(reproduction, "PAGE", page)
    reproduction.write("| one |\n")
    reproduction.write("| two |\n")
    assert "| two |" in page.read_text() and "| one |" not in page.read_text()
