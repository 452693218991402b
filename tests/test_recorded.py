"""Do plans, simulations, pictures, formats and models say what they said when it was recorded?"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from neocpu.cli import run
from neocpu.core.formats import FORMATS, INFERENCE, SPLIT, WIRES
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.sharding.schemes import SCHEMES
from neocpu.parallel.transport.comm import SingleComm
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.models import COST_MODELS
from neocpu.plan.cost.work import DenseWork, Wires, Workload, rectangles_of
from neocpu.plan.machines.machine_file import load, preset_names
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.before import preflight
from neocpu.train.before.datasets import open_splits
from neocpu.train.config import config as configs
from neocpu.train.watch.results import silent
from tests import recorded

ROOT = Path(__file__).resolve().parent.parent
TINY = "data/models/tiny.toml"
PLANS = {
    "tiny": f"{TINY} --machine zionex --ranks 4 --verbose --explain C1 --explain C5",
    "large": "data/models/mlperf-like.toml --machine zionex --ranks 16 --explain C1",
    "below HBM": "data/models/neo-f.toml --machine fat-tree --ranks 32 --set memory.placement=auto",
    "greedy": f"{TINY} --machine dgx-a100 --planner greedy",
    "legacy": f"{TINY} --machine zion --cost-model legacy",
    "first": f"{TINY} --machine dgx-h100 --cost-model first",
    "torchrec": f"{TINY} --machine fat-tree --ranks 8 --cost-model torchrec",
    "tiers": f"{TINY} --machine zion --ranks 8 --verbose --set memory.placement=auto",
    "histories": "data/models/din.toml --machine zionex --ranks 8 --verbose",
}
CAPACITIES = {
    "tiny": TINY,
    "tiny of bf16": f"{TINY} --set tables.C1.format=bf16 --ranks 2",
    "neo-f": "data/models/neo-f.toml --ranks 128",
    "dhen": "data/models/dhen.toml",
    "criteo": "data/models/criteo-kaggle.toml --ranks 4",
}
MODELS = ("tiny", "dcnv2", "deepfm", "dhen", "din", "mlperf-like", "wide-deep")
SIMULATIONS = {
    "tiny": f"{TINY} --ranks 4",
    "off": f"{TINY} --ranks 16 --pipeline off --algorithm pairwise",
    "input": f"{TINY} --machine dgx-a100 --pipeline input --algorithm ring --sums tree",
    "hierarchical": "data/models/mlperf-like.toml --ranks 32 --algorithm hierarchical",
    "balanced": "data/models/mlperf-like.toml --machine fat-tree --ranks 16 --planner size",
    "target": f"{TINY} --machine zionex --ranks 16 --target-qps 2e6",
    "halved": f"{TINY} --ranks 16 --set machine.nic=0.5x --set cache.share=0.1",
}


def outputs(line: str, capsys: pytest.CaptureFixture[str], files: list[Path]) -> str:
    """What a command says and writes."""
    run(line.split())
    said = capsys.readouterr().out
    return "\n".join([said, *(file.read_text() for file in files)]).replace(
        str(files[0].parent) if files else "", ""
    )


@pytest.fixture(autouse=True, scope="module")
def in_the_repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Plans count the lookups of tiny's log, whether or not another test has converted it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        open_splits(configs.load(TINY), SingleComm(), tmp_path_factory.mktemp("run"), silent)
        yield


@pytest.mark.parametrize("name", PLANS)
def test_plans_for_machines(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    picture = tmp_path / "plan.svg"
    line = f"plan {PLANS[name]} --out {plan} --svg {picture}"
    recorded.check(f"plan {name}", recorded.lines_of(outputs(line, capsys, [plan, picture])))


@pytest.mark.parametrize("name", preset_names())
def test_prices_of_all_rectangles(name: str) -> None:
    """By all cost models, whatever plan is chosen; also of tables that are partly below."""
    machine = load(name)
    node = machine.ranks_per_node
    nodes = (Layout(2 * node, node), Layout(2 * node, node, "two_level"))
    layouts = (*nodes, Layout(node, node), Layout(1, 1))
    tables = [
        TableSpec("narrow", 400_000, 8, ("a",)),
        TableSpec("wide", 3_000, 256, ("b", "c"), "mean", format="fp16"),
        TableSpec("weighted", 90_000, 64, ("d",), weighted=True),
    ]
    dense = DenseWork(((13, 512), (512, 64), (400, 256), (256, 1)), 5, 64)
    wires = Wires("fp16", "bf16", "fp64", "fp32")
    entries: list[recorded.Entry] = []
    for model_name, make in COST_MODELS.items():
        for layout in layouts:
            work = Workload(5000, {"narrow": 20.0, "wide": 3.5}, (1, 1), dense=dense, wires=wires)
            model = make(machine, tables, work, layout)
            phases = [float(model.fixed_seconds)]
            for scheme in SCHEMES:
                plan = place(tables, [scheme] * 3, layout.ranks, layout.ranks_per_node)
                whole = rectangles_of(plan)
                count = whole.table.size
                numbers = np.arange(count)
                cut = whole._replace(share=np.where(numbers % 3, 0.3, 0.0), below=numbers % 2)
                for rectangles in (whole, cut) if machine.ssd.bandwidth_bytes_per_s else (whole,):
                    seconds = model.seconds(rectangles)
                    phases += [x for phase in seconds for x in recorded.summary(phase)]
            entries.append((f"{model_name} {layout}", phases))
    recorded.check(f"prices on {name}", entries)


@pytest.mark.parametrize("name", CAPACITIES)
def test_bytes_of_plans(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"plan {CAPACITIES[name]} --capacity"
    recorded.check(f"capacity {name}", recorded.lines_of(outputs(line, capsys, [])))


@pytest.mark.parametrize("name", SIMULATIONS)
def test_simulated_steps(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = [tmp_path / "trace.json"] if name == "tiny" else []
    traced = "".join(f" --trace {file}" for file in files)
    text = outputs(f"simulate {SIMULATIONS[name]}{traced}", capsys, files)
    recorded.check(f"simulation {name}", recorded.lines_of(text))


def properties(record: object) -> list[str]:
    """What a record works out of its fields."""
    names = (name for name, kind in vars(type(record)).items() if isinstance(kind, property))
    return [f"{name} {getattr(record, name)}" for name in names]


def test_formats_of_rows() -> None:
    """All that other code asks of a format."""
    entries: list[recorded.Entry] = []
    for name, form in {**FORMATS, **SPLIT, **INFERENCE, **WIRES}.items():
        sizes = [form.data_bytes, form.row_bytes, form.row_codes]
        entries.append((name, [size(columns) for columns in (1, 7, 33, 256) for size in sizes]))
        entries.append((f"{name} holds", [form.holds(other) for other in FORMATS.values()]))
        numbers = [] if form.number is None else properties(form.number)
        entries += [(f"{name} {x}", []) for x in (*properties(form), *numbers, form.fault())]
    recorded.check("formats", entries)


@pytest.mark.parametrize("name", MODELS)
def test_tensors_of_models_and_the_room_that_they_need(name: str) -> None:
    config = configs.load(f"data/models/{name}.toml")
    layout = config.layout(13)
    states = config.optimizer.sparse.state_floats
    touched = {table.name: min(table.rows, 5000) for table in config.tables}
    pooling = dict.fromkeys(touched, 3.0)
    entries: list[recorded.Entry] = [(text, []) for text in properties(layout)]
    needs = [
        *preflight.checkpoint_needs(config.tables, states, touched),
        *preflight.row_file_needs(config.tables, states, touched, 2),
    ]
    for ranks in (1, 4):
        plan = place(config.tables, ["row_wise"] * len(config.tables), ranks, 2)
        slots = [3000] * len(plan.local(0))
        needs += preflight.table_needs(plan, 0, states, touched)
        needs += preflight.table_needs(plan, 0, states, touched, slots, 1 << 21, slots)
        rooms = [
            preflight.working_memory(config, plan),
            preflight.row_memory(config, plan, pooling),
        ]
        entries.append((f"{ranks} ranks", [*rooms, preflight.dense_bytes(config, 13)]))
    entries += [(need.table, [need.bytes]) for need in needs]
    recorded.check(f"tensors and room of {name}", entries)
