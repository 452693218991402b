"""Is what is said of a plan true, does what is said to help help, and is the picture whole?"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from neocpu.cli import run
from neocpu.cli.plan import plan as command
from neocpu.core import svg
from neocpu.core.errors import ConfigError, PlanError
from neocpu.core.units import bytes_text, count_text, seconds_text
from neocpu.parallel.sharding.plan import place
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import loads_of, step_seconds
from neocpu.plan.cost.work import DenseWork, Workload, rectangles_of
from neocpu.plan.files.plan_file import loads
from neocpu.plan.machines import machine_file
from neocpu.plan.machines.machine import ComputePeak, LinkPeak, Machine, MemoryPeak
from neocpu.plan.machines.scaling import scaled
from neocpu.plan.search.question import PlanQuestion
from neocpu.plan.search.resources import bounding
from neocpu.plan.search.trials import Trials, is_same, of_answer
from neocpu.plan.show.explain import Explainer
from neocpu.plan.show.heat_svg import Scale, traffic_matrix
from neocpu.plan.show.plan_svg import plan_svg
from neocpu.plan.show.remedies import missing_bytes, remedies, remedy_lines
from neocpu.plan.show.turning import turning_points
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.before.machine_plans import question_of
from neocpu.train.config import config as configs

TINY = "data/models/tiny.toml"
MACHINE = Machine(
    name="toy",
    nodes=2,
    ranks_per_node=2,
    hbm=MemoryPeak(10**8, 1e12),
    ddr=MemoryPeak(10**9, 5e10, shared="node"),
    host_device=LinkPeak(3e10),
    inside_node=LinkPeak(3e11, 1e-6),
    between_nodes=LinkPeak(2e10, 5e-6),
    compute=ComputePeak(fp32_flops_per_s=1e13),
)
SHAPES = ((10**5, 64), (5000, 64), (30, 64), (40_000, 128), (700, 16))
TABLES = tuple(TableSpec(f"t{i}", rows, dim, (f"f{i}",)) for i, (rows, dim) in enumerate(SHAPES))
QUESTION = PlanQuestion(
    tables=TABLES,
    work=Workload(
        batch=4096,
        pooling={"t0": 20.0},
        dense=DenseWork(((13, 512), (512, 64), (1000, 1))),
    ),
    layout=Layout(4, 2),
    machine=MACHINE,
)
ANSWER = QUESTION.answer()


# ---- trials ----


def test_a_trial_costs_what_the_plan_with_it_costs() -> None:
    """Every way of a table that has a plan of its own is priced as that plan is."""
    trials = Trials(ANSWER, QUESTION.capacity)
    model = QUESTION.model
    kept = of_answer(trials, 3)
    others = [shard for shard in ANSWER.plan.shards if shard.table != 3]
    checked = set()
    for trial in trials.of_table(3):
        scheme = trial.alternative.scheme
        if trial.alternative.placement != "hbm" or "column" in scheme or "grid" in scheme:
            continue
        alone = place(TABLES, [*ANSWER.plan.schemes[:3], scheme, ANSWER.plan.schemes[4]], 4, 2)
        shards = [shard for shard in alone.shards if shard.table == 3]
        if trial.alternative.rectangles != len(shards):
            # blocks on a few ranks are no plan of the scheme alone
            continue
        if scheme == "table_wise":
            shards = [replace(shards[0], rank=trial.alternative.home)]
        if scheme == "table_row_wise":
            node = trial.alternative.home // 2
            shards = [replace(s, rank=2 * node + s.rank % 2) for s in shards]
        schemes = list(ANSWER.plan.schemes)
        schemes[3] = scheme
        plan = replace(
            ANSWER.plan, shards=tuple(sorted([*others, *shards])), schemes=tuple(schemes)
        ).check()
        loads = loads_of(model, rectangles_of(plan), 4)
        assert trial.alternative.seconds == pytest.approx(step_seconds(model, loads), rel=1e-12)
        assert trial.phases == pytest.approx(loads.max(axis=0), rel=1e-9)
        checked.add(scheme)
    assert {"table_wise", "row_wise", "data_parallel", "table_row_wise"} <= checked
    same = next(t for t in trials.of_table(3) if is_same(t, kept))
    assert same.alternative.seconds <= ANSWER.seconds * (1 + 1e-9)


def test_the_others_of_a_table_and_its_own_make_the_whole() -> None:
    trials = Trials(ANSWER, QUESTION.capacity)
    seconds, size = trials._others(-1)
    assert seconds == pytest.approx(ANSWER.loads) and np.allclose(size[:, :3], ANSWER.memory)


def test_a_turning_point_is_one() -> None:
    """Above the number of lookups that is named the other way wins, below it does not."""
    trials = Trials(ANSWER, QUESTION.capacity)
    lines = {name: list(turning_points(QUESTION, trials, i)) for i, name in enumerate("abcde")}
    assert ["above" in line for line in lines["a"]] == [True, False]
    for table, line in ((i, line) for i, name in enumerate(lines) for line in lines[name]):
        if "lookups a bag" in line:
            ways = [way for way in trials.of_schemes(table) if way.fits]
            threshold = float(line.split(" lookups")[0].split()[-1])
            for factor, wins in ((1.3, True), (1 / 1.3, False)):
                pooling = dict(QUESTION.work.pooling)
                pooling[f"t{table}"] = threshold * (factor if "above" in line else 1 / factor)
                model = replace(QUESTION, work=replace(QUESTION.work, pooling=pooling)).model
                best = trials.repriced(table, ways, model)[0]
                assert is_same(best, of_answer(trials, table)) != wins, line


def test_the_other_tables_cost_what_another_machine_takes_for_them() -> None:
    trials = Trials(ANSWER, QUESTION.capacity)
    table = 2
    ways = trials.of_schemes(table)
    slow = replace(QUESTION, machine=scaled(QUESTION.machine, "hbm.bandwidth", 0.1)).model
    alone = {way.candidate: way.phases.sum() for way in trials.repriced(table, ways, slow)}
    together = trials.repriced(table, ways, slow, slow)
    assert all(way.phases.sum() > alone[way.candidate] for way in together)


# ---- text ----


def test_the_overview_says_what_the_answer_has() -> None:
    text = "\n".join(Explainer(QUESTION, ANSWER).overview())
    assert "5 tables on 4 rank(s) of toy, 2 node(s) of 2; 4,096 samples a step" in text
    assert seconds_text(ANSWER.seconds) in text and "of what any plan could reach" in text
    assert text.count("why: ") == len(TABLES)
    for phase in ("input", "output", "dense forward", "latency"):
        assert f"\n{phase}" in text
    assert sum(bounding(ANSWER).values()) == pytest.approx(ANSWER.seconds)
    whole = "\n".join(Explainer(QUESTION, ANSWER).overview(verbose=True))
    assert len(whole) >= len(text)


def test_a_table_is_explained_in_full() -> None:
    text = "\n".join(Explainer(QUESTION, ANSWER).table("t0"))
    assert text.startswith("t0: 100,000 rows x 64, fp32, 1 feature(s), 20 lookups a bag")
    assert text.count("<- kept") == 1 and "what would change it:" in text
    for scheme in ("table_wise", "row_wise", "data_parallel", "table_row_wise"):
        assert scheme in text


def test_public_cost_models_are_explained_too() -> None:
    config = configs.load(TINY)
    machine = machine_file.load("zionex")
    for name in ("legacy", "first", "torchrec"):
        question = question_of(config, machine, 4, cost_model=name)
        text = "\n".join(Explainer(question, question.answer()).overview())
        assert f"cost model {name}" in text
    with pytest.raises(ConfigError, match="--planner: 'magic' is unknown; choose one of"):
        question_of(config, machine, 4, planner="magic")
    pinned = configs.load(TINY, ["memory.placement=ddr_over_ssd"])
    with pytest.raises(PlanError, match="needs ssd, which zionex lacks"):
        question_of(pinned, machine, 4).answer()


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0"), (0.0123456, "12.3 ms"), (2.0, "2 s"), (3e-7, "300 ns"), (0.99999, "1 s")],
)
def test_seconds_as_text(number: float, text: str) -> None:
    assert seconds_text(number) == text


def test_numbers_as_text() -> None:
    assert [count_text(n) for n in (12.0, 5161234.0, 1234.0)] == ["12", "5.16 M", "1,234"]
    assert bytes_text(48_187_500_000_000) == "48.19 TB"


# ---- what does not fit ----


def too_small(hbm: int = 23 * 10**6) -> PlanQuestion:
    """Whole tables in HBM that are too large for it, with optimizer state for every number."""
    small = replace(MACHINE, hbm=MemoryPeak(hbm, 1e12))
    work = replace(QUESTION.work, state_floats=(1, 0))
    return replace(QUESTION, machine=small, work=work, placements=("hbm",))


def test_remedies_fit_and_the_cheapest_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    question = too_small()
    with pytest.raises(PlanError):
        question.answer()
    assert missing_bytes(question) > 0
    found = remedies(question)
    assert len(found) == 3
    assert [r.rank_seconds for r in found] == sorted(r.rank_seconds for r in found)
    for remedy in found:
        room = remedy.answer.capacity
        assert (remedy.answer.memory[:, 0] <= room[0]).all()
    # what does not help alone saves ranks
    *_, more = words = [remedy.words for remedy in remedies(too_small(12 * 10**6))]
    monkeypatch.setattr("neocpu.plan.show.remedies.remedies", lambda question: found)
    missing, *lines = remedy_lines(question)
    assert missing.startswith("it does not fit: ") and f"{missing_bytes(question):,}" in missing
    assert [line.split(": fits, a step takes ")[0] for line in lines] == [
        f"  {remedy.words}" for remedy in found
    ]
    assert more == "12 ranks on 6 node(s)"
    assert "10 ranks on 5 node(s), with rows in fp16 (model.embedding_format)" in words


# ---- the picture ----


def elements(text: str, kind: str) -> Iterator[ElementTree.Element]:
    return ElementTree.fromstring(text).iter(f"{{http://www.w3.org/2000/svg}}{kind}")


@pytest.mark.parametrize("ranks", [1, 4, 128])
@pytest.mark.parametrize("compared", [False, True])
def test_the_picture_is_whole(ranks: int, compared: bool) -> None:
    question = replace(QUESTION, layout=Layout(ranks, min(ranks, 2)))
    answer = question.answer()
    present = replace(question, spec="table_wise").answer() if compared else None
    text = plan_svg(question, answer, "a <model> & more", 16, present)
    assert next(elements(text, "title")).text == f"a <model> & more on {ranks} ranks of toy"
    assert "What bounds it" in (next(elements(text, "desc")).text or "")
    for bound in (0.0, answer.bound, float("inf")) if ranks == 4 else ():  # 0: none is known
        drawn = plan_svg(question, replace(answer, bound=bound), "a plan", 16)
        assert ("takes at least" in drawn) == (bound == answer.bound)
    words = [element.text for element in elements(text, "text")]
    kind = "rank" if ranks <= 64 else "node"
    assert kind in words and f"to {kind}" in words
    assert ("what bounds a step" in words) is not compared
    assert any(word.endswith("under the plan in use") for word in words if word) is compared
    if present is not None:
        assert f"in use: {seconds_text(present.seconds)}" in words
    assert "<script" not in text and "href" not in text
    for box in elements(text, "rect"):
        assert float(box.attrib["width"]) >= 0 and float(box.attrib["height"]) >= 0
    (picture,) = elements(text, "svg")
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    for element in (*elements(text, "rect"), *elements(text, "text"), *elements(text, "line")):
        for key, value in element.attrib.items():
            if key[0] in "xy":
                assert 0 <= float(value) <= (width if key[0] == "x" else height), element.attrib
    height_of = {element.text: float(element.attrib["y"]) for element in elements(text, "text")}
    for above, below in (("white lines:", "nodes"), ("the diagonal is", "inside the node")):
        if above in height_of:
            assert 0 < height_of[below] - height_of[above] < 20


def test_traffic_is_that_of_a_step() -> None:
    matrix = traffic_matrix(ANSWER, 1)
    assert matrix.shape == (4, 4) and (matrix >= 0).all() and matrix.sum() > 0


def test_shades_go_from_the_least_that_is_sent_to_the_most() -> None:
    scale = Scale([np.array([[0.0, 5.0], [7.0, 0.0]]), np.array([[0.0, 9.0], [6.0, 0.0]])])
    assert scale.shade(5.0) == svg.shade(0.0) and scale.shade(9.0) == svg.shade(1.0)
    assert scale.shade(7.0) == svg.shade(0.5) and scale.at(0.5) == 7.0
    assert Scale([np.zeros((2, 2))]).most == 0.0
    assert Scale([np.full((2, 2), 3.0)]).shade(3.0) == svg.shade(1.0)


def test_ticks_are_round_and_reach_the_top() -> None:
    for most in (0.0, 1.0, 0.0123, 7.7, 1e9):
        values = svg.ticks(most)
        assert values[0] == 0 and values[-1] >= most and 2 <= len(values) <= 8
    assert svg.label_step(1000, 1.0) == 50 and svg.label_step(4, 200.0) == 1


# ---- the command ----


def test_the_command_explains_draws_and_writes(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    picture = tmp_path / "plan.svg"
    line = [TINY, "--machine", "zionex", "--ranks", "4", "--out", str(out), "--svg", str(picture)]
    result = CliRunner().invoke(command, line)
    assert result.exit_code == 0, result.output
    assert "critical path" in result.output and "runner-up" in result.output
    note = loads(out.read_text()).made_for
    assert (note.machine, note.planner, note.cost_model) == ("zionex", "search", "neo")
    ElementTree.fromstring(picture.read_text())
    priced = [TINY, "--machine", "zionex", "--ranks", "4", "--set", f"parallel.plan={out}"]
    result = CliRunner().invoke(command, [*priced, "--explain", "C1"])
    assert result.exit_code == 0 and "what would change it:" in result.output
    with pytest.raises(ConfigError, match="the config has no table 'C99'"):
        run(["plan", *priced, "--explain", "C99"])
    with pytest.raises(ConfigError, match="--explain needs --machine"):
        run(["plan", TINY, "--explain", "C1"])
    with pytest.raises(ConfigError, match=r"plan\.svg exists; --force replaces it"):
        run(["plan", TINY, "--machine", "zionex", "--svg", str(picture)])


def test_what_does_not_fit_is_told_with_remedies(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["plan", "data/models/mlperf-like.toml", "--machine", "zionex", "--ranks", "8"]
    huge = ["--set", "tables.C1.rows=9_000_000_000", "--set", "memory.placement=auto"]
    with pytest.raises(PlanError):
        run([*line, *huge])
    shown = capsys.readouterr().out
    assert shown.startswith("it does not fit: ") and "fits, a step takes" in shown


def test_a_memory_that_a_machine_lacks_is_to_be_bought(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PlanError, match="needs ssd, which zion lacks"):
        run(["plan", "neo-f", "--machine", "zion"])
    shown = capsys.readouterr().out
    assert "zion has no ssd, and all tables take 24.19 TB: 1.51 TB on each of 16 node(s)" in shown
    assert "(memory.placement = auto): fits, a step takes" in shown


def test_what_is_reserved_is_not_for_tables() -> None:
    line = [TINY, "--machine", "zionex", "--ranks", "4", "--reserve"]
    shown = CliRunner().invoke(command, [*line, "0.9"]).output
    assert "a rank has 4.00 GB hbm for tables" in shown
    assert "a rank has 40.00 GB hbm" in CliRunner().invoke(command, [*line, "0"]).output
    alone = CliRunner().invoke(command, [TINY, "--reserve", "0"])
    assert "--reserve needs --machine" in alone.output
