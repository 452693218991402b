"""Are measured costs of phases fitted, kept in machine files, and used for a step's seconds?"""

import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.prediction import compare, rank_correlation
from benchmarks.prediction_job import Run
from benchmarks.prediction_models import MODELS, draw_plan
from neocpu.core.errors import ConfigError
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.measured import Amounts, MeasuredPhases
from neocpu.plan.cost.seconds import PHASES, StepSeconds, loads_of, slowest_seconds, step_seconds
from neocpu.plan.cost.work import DenseWork, Workload, rectangles_of
from neocpu.plan.machines import machine_file
from neocpu.plan.machines.machine import (
    PHASES as MEASURED_PHASES,
)
from neocpu.plan.machines.machine import (
    ComputePeak,
    LinkPeak,
    Machine,
    MemoryPeak,
    PhaseCosts,
)
from neocpu.plan.machines.measure import __main__ as job
from neocpu.plan.machines.measure import phase_clock, timing
from neocpu.plan.machines.measure import phases as phase_costs
from neocpu.plan.machines.measure.dense import DENSE_DESIGNS, DenseBench
from neocpu.tables.specs.specs import TableSpec
from tests import recorded

MACHINE = Machine(
    name="measured",
    ranks_per_node=2,
    hbm=MemoryPeak(capacity_bytes=10**10, bandwidth_bytes_per_s=1e12),
    inside_node=LinkPeak(bandwidth_bytes_per_s=1e11, latency_s=1e-6),
    compute=ComputePeak(fp32_flops_per_s=1e13),
    phases=(
        PhaseCosts("input", ranks=2, call_s=1e-3, entry_s=1e-5, bag_s=1e-8, lookup_s=1e-9),
        PhaseCosts("lookup", ranks=2, number_s=2e-10, curve=0.5),
        PhaseCosts("output", ranks=2, number_s=1e-9),
        PhaseCosts("output_words", ranks=2, number_s=3e-9),
        PhaseCosts("update", ranks=2, row_s=1e-8),
        PhaseCosts("update_columns", ranks=2, row_s=5e-8),
        PhaseCosts("replicas", ranks=2, call_s=2e-3, row_s=1e-7),
        PhaseCosts("dense_exchange", ranks=2, call_s=1e-4, row_s=1e-9),
    ),
)
TABLE = TableSpec("t", 1000, 64, ("a", "b"))
WORK = Workload(batch=400, pooling={"t": 5.0}, dense=DenseWork(((10, 20),)))


def phases(scheme: str, ranks: int = 2) -> dict[str, float]:
    model = StepSeconds(MACHINE, [TABLE], WORK, Layout(ranks, ranks))
    plan = place([TABLE], [scheme], ranks)
    loads = loads_of(model, rectangles_of(plan), ranks)
    seconds = model.phase_seconds(loads)
    assert sum(seconds.values()) == pytest.approx(step_seconds(model, loads))
    return seconds


def test_measured_costs_take_the_place_of_rates() -> None:
    whole = phases("table_wise")
    assert whole["input"] == pytest.approx(1e-3 + 2e-5 + 800e-8 + 4000e-9)
    assert whole["lookup"] == pytest.approx(800 * 64 * 2e-10 + 0.5 * 4000 * 256 / 1e12)
    assert whole["output"] == pytest.approx(800 * 64e-9)
    assert whole["gradient"] == 0  # was not measured
    unique = 1000 * (1 - (1 - 1 / 1000) ** 4000)
    assert whole["update"] == pytest.approx(unique * 1e-8)
    assert whole["dense_exchange"] == pytest.approx(1e-4 + 220e-9)
    assert whole["replicas"] == whole["latency"] == 0
    assert phases("row_wise")["output"] == pytest.approx(800 * 64 * 3e-9)
    assert phases("column_wise")["update"] == pytest.approx(unique * 5e-8)


def test_each_amount_has_its_own_seconds() -> None:
    costs = PhaseCosts("update", 2, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
    measured = MeasuredPhases(replace(MACHINE, phases=(costs,)), 2, 2)
    names = ("entry_s", "bag_s", "lookup_s", "number_s", "row_s", "row_number_s", "curve")
    expected = [getattr(costs, name) for name in names]
    assert measured.seconds("update", Amounts(*np.eye(len(names)))).tolist() == expected


def test_copies_of_replica_groups_sum_touched_rows_too() -> None:
    work = replace(WORK, batch=200)
    model = StepSeconds(MACHINE, [TABLE], work, Layout.of_run(2, 2, "direct", 2))
    loads = loads_of(model, rectangles_of(place([TABLE], ["table_wise"], 1)), 1)
    here, anywhere = (1000 * (1 - (1 - 1 / 1000) ** n) for n in (2000, 4000))
    assert model.phase_seconds(loads)["replicas"] == pytest.approx(2e-3 + (here + anywhere) * 1e-7)


def test_copies_sum_touched_rows_and_make_calls_of_their_own() -> None:
    copies = phases("data_parallel")
    touched_here = 1000 * (1 - (1 - 1 / 1000) ** 2000)
    touched_anywhere = 1000 * (1 - (1 - 1 / 1000) ** 4000)
    assert copies["replicas"] == pytest.approx(2e-3 + (touched_here + touched_anywhere) * 1e-7)
    assert copies["output"] == 0
    assert copies["input"] == pytest.approx(1e-3)


def test_a_rank_makes_a_call_for_each_kind_of_its_rectangles() -> None:
    """One of each phase is in what every plan takes; both ranks have parts, rank 0 a table."""
    costs = {
        "lookup": 1e-6,
        "lookup_words": 3e-6,
        "output": 1e-5,
        "output_words": 2e-5,
        "gradient_words": 7e-5,
        "update": 1e-4,
        "update_columns": 4e-4,
    }
    machine = replace(MACHINE, phases=tuple(PhaseCosts(n, 2, call_s=c) for n, c in costs.items()))
    tables = [replace(TABLE, name=f"t{i}", features=(f"f{i}",)) for i in range(4)]

    def loads(*schemes: str) -> list[list[float]]:
        plan = place(tables[: len(schemes)], schemes, 2)
        cost = StepSeconds(machine, tables[: len(schemes)], Workload(batch=400), Layout(2, 2))
        each = loads_of(cost, rectangles_of(plan), 2)
        return each[
            :, [PHASES.index(n) for n in ("lookup", "output", "gradient", "update")]
        ].tolist()

    assert loads("table_wise") == [[0.0] * 4] * 2
    assert loads("row_wise") == [pytest.approx([2e-6, 1e-5, 7e-5, 0.0])] * 2
    assert loads("column_wise") == [pytest.approx([0.0, 0.0, 0.0, 3e-4])] * 2
    mixed = loads("table_wise", "row_wise", "column_wise", "data_parallel")
    assert mixed[0] == pytest.approx([4e-6, 2e-5, 7e-5, 5e-4])
    assert mixed[1] == pytest.approx([4e-6, 2e-5, 7e-5, 4e-4])


def test_ranks_that_share_cores_are_faster_while_others_rest() -> None:
    alone = np.array([[8.0], [0.0], [0.0], [0.0]])
    together = np.full((4, 1), 8.0)
    assert slowest_seconds(alone, crowding=2.0)[0] == 4
    assert slowest_seconds(together, crowding=2.0)[0] == 8
    assert slowest_seconds(alone)[0] == 8
    assert StepSeconds(MACHINE, [TABLE], WORK, Layout(4, 4)).crowding == 2
    bare = replace(MACHINE, phases=())
    assert StepSeconds(bare, [TABLE], WORK, Layout(4, 4)).crowding == 1


def test_a_machine_file_keeps_them() -> None:
    text = machine_file.text(MACHINE)
    assert machine_file.loads(text) == MACHINE
    assert MACHINE.phase_costs("input", 3) == MACHINE.phases[0]
    assert MACHINE.phase_costs("input", 1) == MACHINE.phases[0]
    assert MACHINE.phase_costs("gradient", 2) is None
    for old, new, words in (
        ('phase = "lookup"', 'phase = "input"', "is above already"),
        ('phase = "lookup"', 'phase = "loop"', "'loop' is not allowed"),
        ("number_s = 2e-10", "number_s = -1.0", "at least 0"),
    ):
        with pytest.raises(ConfigError, match=words):
            machine_file.loads(text.replace(old, new, 1))


def test_a_fit_finds_the_costs_in_spite_of_a_few_late_times() -> None:
    rng = np.random.default_rng(1)
    costs = {"call_s": 5e-5, "bag_s": 4e-9, "number_s": 3e-10}
    timed = []
    for i in range(24):
        amounts = [1.0, *(10.0 ** rng.uniform(2, 6, len(phase_costs.COUNTED) - 1)).tolist()]
        seconds = sum(amounts[phase_costs.COUNTED.index(c)] * x for c, x in costs.items())
        timed.append(phase_costs.Timed("output", tuple(amounts), seconds * (9 if i < 4 else 1)))
    fitted = phase_costs.fit("output", timed)
    for name, value in costs.items():
        assert fitted[name] == pytest.approx(value, rel=0.05)


def test_a_job_measures_what_was_recorded_by_a_clock_that_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two ranks on one host, and on two; small workloads of each kind, among them each scheme."""
    calls = threading.local()

    def clock() -> int:
        calls.count = getattr(calls, "count", 0) + 1
        return calls.count**2 * 100_000

    for module in (timing, phase_clock):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter_ns=clock))
    monkeypatch.setattr(phase_clock, "preemptions", lambda: 0)
    monkeypatch.setattr(phase_costs, "SHAPES", ((4, 200, 16, 2, 64), (2, 300, 32, 1, 64)))
    designs = tuple(replace(design, batch=64) for design in DENSE_DESIGNS[:3])
    monkeypatch.setattr(phase_costs, "DENSE_DESIGNS", designs)
    monkeypatch.setattr(phase_clock, "ELSEWHERE", 1 << 10)
    effort = replace(
        timing.EFFORTS["quick"],
        sides=(4, 16),
        samples=32,
        heights=(100, 300),
        copies=(64, 1 << 10),
        messages=(64, 1 << 10),
        record_count=64,
        home_bytes=1 << 16,
        budget=0.0,
        phases=True,
    )
    for per_node in (1, 2):
        measured = run_threads(
            2,
            lambda comm: job.measure(comm, effort, tmp_path, 1, lambda topic: None),
            ranks_per_node=per_node,
        )[0]
        lines = recorded.lines_of(json.dumps(measured, indent=0))
        recorded.check(f"measured with {per_node} rank(s) a host", lines)
    phases = {cost["phase"] for cost in measured["phases"]}
    assert phases == set(MEASURED_PHASES) >= set(PHASES) - {"prefetch"}


def test_a_call_that_lost_its_core_counts_only_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0
    lost = 0
    monkeypatch.setattr(phase_clock, "time", SimpleNamespace(perf_counter_ns=lambda: now))
    monkeypatch.setattr(phase_clock, "preemptions", lambda: lost)
    clock = phase_clock.PhaseClock(SingleComm(), elsewhere=0)

    def work(nanoseconds: int, switches: int) -> None:
        nonlocal now, lost
        now += nanoseconds
        lost += switches

    def run(step: int) -> None:
        # parts of a phase add up
        clock("calm", lambda: work(100, 0))
        clock("calm", lambda: work(100, 0))
        # the 15th step is the first that keeps its core, the others are shorter
        clock("busy", lambda: work(70 if step == 14 else 50, int(step != 14)))

    assert clock.steps(run) == pytest.approx({"calm": 200e-9, "busy": 70e-9})
    clock = phase_clock.PhaseClock(SingleComm(), elsewhere=0)
    never = clock.steps(lambda step: clock("never", lambda: work(90 - step, 1)))
    assert never == pytest.approx({"never": 69e-9})


def test_the_measured_products_are_those_of_a_model() -> None:
    """One rank; forward from the bottom's inputs to the top's logits, backward to the rows."""
    design = replace(DENSE_DESIGNS[0], batch=32)
    bench = DenseBench(design, SingleComm(), MACHINE)
    bench.run(lambda phase, work: work(), 0)
    x = bench._dense
    for number, (weights, bias) in enumerate(zip(bench._weights, bench._biases)):
        if number == len(design.bottom) - 1:
            e = np.hstack([x, bench._E[:, x.shape[1] :]]).reshape(32, -1, x.shape[1])
            below = np.tril_indices(e.shape[1], -1)
            x = np.hstack([x, (e @ e.transpose(0, 2, 1))[:, *below]])
        assert np.allclose(bench._inputs[number], x, atol=1e-4)
        x = x @ weights.T + bias
        if number < len(bench._weights) - 1:
            x = np.maximum(x, 0)
    assert np.allclose(bench._outputs[-1], x, atol=1e-3) and x.min() < 0


@pytest.mark.parametrize(
    ("scheme", "phases"),
    [
        ("table_wise", {"input", "lookup", "output", "gradient", "update"}),
        ("row_wise", {"input", "lookup_words", "output_words", "gradient_words", "update"}),
        ("column_wise", {"input", "lookup", "output", "gradient", "update_columns"}),
        ("data_parallel", {"input", "lookup", "replicas"}),
    ],
)
def test_phases_of_rows_and_columns_are_measured_apart(
    monkeypatch: pytest.MonkeyPatch, scheme: str, phases: set[str]
) -> None:
    monkeypatch.setattr(phase_clock, "STEPS", 2)
    monkeypatch.setattr(phase_clock, "ELSEWHERE", 1 << 10)
    design = phase_costs.Design(scheme, tables=2, rows=50, dim=16, length=1, batch=32)

    def body(comm: Comm) -> set[str]:
        bench = phase_costs.Workbench(design, comm, MACHINE)
        seconds = bench.measure()
        bench.close()
        if comm.rank == 0:
            amounts = [(phase, bench.amounts(phase)) for phase in sorted(seconds)]
            recorded.check(f"amounts of {scheme}", amounts)
        return set(seconds)

    assert run_threads(2, body) == [phases] * 2


def test_machine_files_are_of_the_same_workloads() -> None:
    """Others would make costs that cannot be compared with those of files written before."""
    designs = [(str(design), []) for ranks in (1, 2) for design in phase_costs.designs(ranks)]
    dense = [
        (str(d), [d.columns, d.top_inputs, d.parameters, *sum(d.layers, ())]) for d in DENSE_DESIGNS
    ]
    efforts = [(str(effort), []) for effort in timing.EFFORTS.values()]
    recorded.check("workloads of phases", [*designs, *dense, *efforts])


def test_the_prediction_benchmark_times_a_step_and_its_phases() -> None:
    """Two ranks, a model of two tables; what is predicted has the phases that are timed."""
    model = replace(
        MODELS[0], batch=32, rows=(50, 60), dims=(16, 16), pooling=(1, 2), bottom=(16,), top=(1,)
    )
    record = run_threads(2, lambda comm: Run(model, comm, 3).measure(1))[0]
    cost = StepSeconds(MACHINE, model.tables, model.work, Layout(2, 2))
    loads = loads_of(cost, rectangles_of(draw_plan(model, 2, 3)), 2)
    assert set(record["phases"]) <= set(cost.phase_seconds(loads))
    assert record["step"] > 0
    assert compare([(1.0, 1.1), (2.0, 1.8), (4.0, 5.0)])["error"] == pytest.approx(0.1)
    assert rank_correlation([1.0, 2.0, 4.0], [1.1, 1.8, 5.0]) == pytest.approx(1.0)
