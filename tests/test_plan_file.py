"""Does a plan come back from its file, edited or not, and is every fault of a file named?"""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import small_run
from click.testing import CliRunner

from neocpu.cli.plan import plan as command
from neocpu.cli.simulate import simulate
from neocpu.core.errors import ConfigError, NeocpuError, PlanError
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.sharding.schemes import SCHEMES, Shard
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.files import plan_file, torchrec_plan
from neocpu.plan.files.bound_plan import bind
from neocpu.plan.files.plan_file import MadeFor, loads, text
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.before.plans import make_plan, memory_plan
from neocpu.train.config import config as configs
from neocpu.train.run.scoring import without_plan_file
from neocpu.train.run.trainer import Trainer

TABLES = tuple(TableSpec(f"t{i}", 100 + i, 16, (f"f{i}",)) for i in range(len(SCHEMES)))
PLAN = place(TABLES, list(SCHEMES), 4, 2)
VALID = json.loads(text(PLAN))


def edited(*path_and_value: Any) -> str:
    """The valid file with one value set; a value that is a function takes the old one."""
    *path, last, value = path_and_value
    tree = json.loads(json.dumps(VALID))
    inner = tree
    for key in path:
        inner = inner[key]
    inner[last] = value
    return json.dumps(tree)


# ---- there and back ----


def test_a_plan_comes_back_from_its_file() -> None:
    note = MadeFor(machine="zionex", planner="search", batch_size=64, step_seconds=0.25)
    placements = ["hbm", "ddr", *["hbm_over_ddr"] * (len(TABLES) - 2)]
    content = text(PLAN, placements, note)
    file = loads(content)
    assert file.made_for == note and (file.ranks, file.ranks_per_node) == (4, 2)
    bound = bind(file, TABLES, 4)
    assert bound.schemes == PLAN.schemes and bound.placements == tuple(placements)
    shards = {shard for shards in bound.fixed.values() for shard in shards}
    copied = list(SCHEMES).index("data_parallel")
    assert shards == {shard for shard in PLAN.shards if shard.table != copied}
    # readable: a line for each table, and for each rectangle of several
    assert '    {"name": "t0", "rows": 100, "dim": 16, "scheme": "table_wise", "pl' in content
    assert max(map(len, content.splitlines())) < 160


def test_the_plan_that_a_run_leaves_is_read_too() -> None:
    bound = bind(loads(json.dumps(PLAN.to_dict())), TABLES, 4)
    assert bound.schemes == PLAN.schemes
    assert {shard for shards in bound.fixed.values() for shard in shards} == set(PLAN.shards)
    with pytest.raises(ConfigError, match="neither a plan file nor the plan of a run: KeyError"):
        loads('{"ranks": 1, "ranks_per_node": 1, "tables": [{"name": "t0"}]}')


# ---- what is refused ----


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON: Expecting value"),
        ("[" * 10**5, "nested too deeply"),
        (text(PLAN)[:400], "not valid JSON"),
        ("[]", "this is no plan file"),
        ('{"format": "other"}', "this is no plan file"),
        ('{"format": "neocpu plan", "format": 1}', "the key 'format' is there twice"),
        ('{"a\\nb": 1}', r"the key 'a\\nb' has characters"),
        ('{"format": NaN}', "NaN is no number"),
        ('{"format": "neocpu plan", "version": 1, "ranks": 1}', "tables: it is missing"),
        (edited("version", 2), "version: 2 is newer"),
        (edited("ranks", 0), "ranks: 0 is too small"),
        (edited("ranks", (1 << 20) + 1), "ranks: 1048577 is too large"),
        (edited("ranks", 2.5), "ranks: expected a whole number, got 2.5"),
        (edited("ranks_per_node", 5), "ranks_per_node: 5 is more than the 4 rank"),
        (edited("replica_groups", 3), "replica_groups: 3 is no divisor of the 4 rank"),
        (edited("replica_groups", 0), "replica_groups: 0 is too small"),
        (edited("rank", 4), "rank: no such key; did you mean ranks"),
        (edited("made_for", "step_seconds", -1.0), "made_for.step_seconds: -1.0 must be"),
        (edited("tables", {}), "tables: expected a list"),
        (edited("tables", 0, 7), r"tables\[0\]: expected an object, got 7"),
        (edited("tables", 0, "name", ""), r"tables\[0\].name: it is missing"),
        (edited("tables", 0, "name", "t1"), "table 't1' is there twice"),
        (edited("tables", 0, "scheme", "rowwise"), "tables.t0.scheme: 'rowwise' is not allowed"),
        (edited("tables", 0, "placement", "gpu"), "tables.t0.placement: 'gpu' is not allowed"),
        (edited("tables", 0, "shards", []), "tables.t0.shards: no such key"),
        (edited("tables", 0, "rows", True), "tables.t0.rows: expected a whole number, got True"),
        (edited("tables", 0, "rectangles", {}), "tables.t0.rectangles: expected a list"),
        (edited("tables", 0, "rectangles", [[]]), r"rectangles\[0\]: expected an object"),
        (edited("tables", 0, "rectangles", 0, "rank", -1), "expected the number of a rank, got -1"),
        (edited("tables", 0, "rectangles", 0, "rows", [5, 5]), "of which the second is larger"),
        (edited("tables", 0, "rectangles", 0, "cols", [0, 16]), "cols: no such key"),
        (edited("tables", 0, "rectangles", [{"rank": 1}]), r"rectangles\[0\].rows: it is missing"),
    ],
)
def test_a_fault_of_the_file_is_named(content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loads(content, "plan.json")


def rectangle(rank: int, rows: list[int], columns: list[int]) -> dict[str, Any]:
    return {"rank": rank, "rows": rows, "columns": columns}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (edited("tables", 0, "name", "t00"), "the config has no table 't00'; did you mean 't0'"),
        (edited("tables", 0, "rows", 99), "has 99 rows in the plan, and 100 in the config"),
        (edited("tables", 0, "dim", 8), "has 8 dim in the plan, and 16 in the config"),
        (edited("tables", 0, "scheme", "auto"), "is auto but has rectangles"),
        (
            edited("tables", 0, "rectangles", [rectangle(r, [0, 100], [0, 16]) for r in (0, 1)]),
            "is table_wise but is in 2 rectangles",
        ),
        (
            edited("tables", 0, "rectangles", [rectangle(0, [0, 100], [0, 8])]),
            "table_wise but has a rectangle without all columns",
        ),
        (
            edited("tables", 2, "rectangles", [rectangle(0, [0, 50], [0, 16])]),
            "column_wise but has a rectangle without all rows",
        ),
    ],
)
def test_what_does_not_go_with_the_run_is_named(content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bind(loads(content), TABLES, 4)


@pytest.mark.parametrize(
    ("rectangles", "message"),
    [
        ([rectangle(0, [0, 50], [0, 16])], "rows \\[50, 101\\), columns .* are on no rank"),
        (
            [rectangle(0, [0, 60], [0, 16]), rectangle(1, [50, 101], [0, 16])],
            "are held more than once, by ranks \\[0, 1\\]",
        ),
        ([rectangle(4, [0, 101], [0, 16])], r"columns 0 to 16 are on rank 4, outside \[0, 4\)"),
        ([rectangle(0, [0, 102], [0, 16])], "is empty or outside"),
    ],
)
def test_gaps_and_overlaps_are_named(rectangles: list[Any], message: str) -> None:
    file = loads(edited("tables", 1, "rectangles", rectangles), "plan.json")
    with pytest.raises(PlanError, match=f"plan.json: table 't1'.*{message}"):
        bind(file, TABLES, 4)


def test_another_number_of_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is for 4 rank.s. and this run has 3; plan anew with"):
        bind(loads(text(PLAN)), TABLES, 3)


def test_files_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(ConfigError, match="cannot read the plan: No such file"):
        plan_file.read_text(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="it is not UTF-8 text"):
        plan_file.read_text(path)
    monkeypatch.setattr(plan_file, "MOST_BYTES", 0)
    with pytest.raises(ConfigError, match="more than 0 bytes"):
        plan_file.read_text(path)


# ---- runs ----


def test_an_edited_plan_trains_to_the_same_digest(log: Path, tmp_path: Path) -> None:
    """Cut by hand as no scheme does it, and resumed under yet another plan."""
    steps = "training.steps=3"

    def digest(name: str, ranks: int, *overrides: str, resume: bool = False) -> str:
        config = small_run.config_of(log, *overrides)
        out = tmp_path / name
        summaries = run_threads(ranks, lambda c: Trainer(config, c, out, resume=resume).run())
        return str(summaries[0]["digest"])

    whole = digest("whole", 1, steps)
    path = tmp_path / "plan.json"
    tables = small_run.config_of(log).tables
    plan = place(tables, ["row_wise", "table_wise"], 3)
    heights = ((0, 7, 2), (7, 30, 0), (30, 50, 2))  # rank 2 has two rectangles
    uneven = [Shard(0, (low, high), (0, 4), rank) for low, high, rank in heights]
    by_hand = replace(plan, shards=(*uneven, plan.of_table(1)[0]))
    path.write_text(text(by_hand, ["hbm_over_ddr", "ddr"]))
    chosen = f"parallel.plan={path}"
    assert digest("file", 3, steps, chosen) == whole
    saved = json.loads((tmp_path / "file" / "plan.json").read_text())
    assert saved["tables"][0]["shards"] == [
        [2, 0, 7, 0, 4],
        [0, 7, 30, 0, 4],
        [2, 30, 50, 0, 4],
    ]
    digest("resumed", 2, "training.steps=1", "parallel.plan=column_wise")
    assert digest("resumed", 3, steps, chosen, resume=True) == whole
    with pytest.raises(NeocpuError, match=r"is for 3 rank.s. and this run has 2"):
        digest("two", 2, chosen)


def test_replica_groups_train_to_the_same_digest(log: Path, tmp_path: Path) -> None:
    """From a file, by the planner, and resumed under a plan of one group and back."""

    def digest(name: str, ranks: int, *overrides: str, resume: bool = False) -> str:
        config = small_run.config_of(log, "training.steps=3", *overrides)
        out = tmp_path / name
        summaries = run_threads(ranks, lambda c: Trainer(config, c, out, resume=resume).run())
        return str(summaries[0]["digest"])

    whole = digest("whole", 1)
    assert digest("planned", 4, "parallel.replica_groups=2", "parallel.planner=search") == whole
    tables = small_run.config_of(log).tables
    group = place(tables, ["row_wise", "column_wise"], 2)
    path = tmp_path / "plan.json"
    path.write_text(text(group.in_groups(2, 4)))
    chosen = f"parallel.plan={path}"
    assert digest("file", 4, chosen, "parallel.replica_groups=2") == whole
    saved = loads((tmp_path / "file" / "plan.json").read_text())
    assert bind(saved, tables, 4).fixed == bind(loads(path.read_text()), tables, 4).fixed
    digest("resumed", 4, chosen, "training.steps=1")
    digest("resumed", 1, "training.steps=2", resume=True)
    assert digest("resumed", 4, chosen, resume=True) == whole
    # whoever scores plans for ranks of his own
    grouped = small_run.config_of(log, "parallel.replica_groups=2")
    assert without_plan_file(grouped).parallel.replica_groups == 1
    for overrides, message in (
        (["parallel.replica_groups=4"], "the config has 4, and .* has 2"),
        (["checkpoint.parity=1"], "checkpoint.parity knows one copy of each row"),
        (["parallel.memory=10"], r"2 rank\(s\) have 10 each"),
    ):
        with pytest.raises(NeocpuError, match=message):
            make_plan(small_run.config_of(log, chosen, *overrides), SingleComm(), {}, 4)


@pytest.mark.parametrize("planner", ["greedy", "search"])
def test_the_last_node_may_be_smaller(log: Path, planner: str) -> None:
    overrides = ("parallel.ranks_per_node=2", f"parallel.planner={planner}")
    plan = make_plan(small_run.config_of(log, *overrides), SingleComm(), {}, 3)
    assert (plan.ranks, plan.ranks_per_node, plan.replica_groups) == (3, 2, 1)


def test_a_file_may_leave_out_rectangles_and_tables(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    tree = {"format": "neocpu plan", "version": 1, "ranks": 2}
    path.write_text(json.dumps(tree | {"tables": [{"name": "many", "scheme": "row_wise"}]}))
    config = small_run.config_of(log, f"parallel.plan={path}")
    plan = make_plan(config, SingleComm(), {}, 2)
    assert plan.schemes[1] == "row_wise" and len(plan.of_table(1)) == 2
    assert plan.schemes[0] in SCHEMES


def test_placements_of_the_file_count_unless_the_config_names_others(
    log: Path, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    plan = place(small_run.config_of(log).tables, ["table_wise"] * 2, 1)
    path.write_text(text(plan, ["ddr", "hbm_over_ddr"]))

    def placements(*overrides: str) -> tuple[str, ...]:
        config = small_run.config_of(log, f"parallel.plan={path}", *overrides)
        return memory_plan(config, make_plan(config, SingleComm(), {}), {}).placements

    assert placements() == ("ddr", "hbm_over_ddr")
    assert placements("memory.placement=ddr") == ("ddr", "ddr")
    assert placements('memory.placement={ "many" = "hbm" }') == ("ddr", "hbm")
    with pytest.raises(ConfigError, match=r"with memory.cache_format the placement decides bits"):
        placements("memory.cache_format=fp32", "memory.placement={ one = 'hbm' }")


# ---- plans of TorchRec ----


def torchrec_like() -> SimpleNamespace:
    """What TorchRec 1.9 plans for four tables on two ranks, as far as it is looked at."""

    def table(kind: str, kernel: str, *shards: tuple[list[int], list[int], int]) -> Any:
        parts = [
            SimpleNamespace(shard_offsets=at, shard_sizes=size, placement=f"rank:{r}/cuda:{r}")
            for at, size, r in shards
        ]
        spec = SimpleNamespace(shards=parts) if parts else None
        return SimpleNamespace(
            sharding_type=kind, compute_kernel=kernel, ranks=[0, 1], sharding_spec=spec
        )

    whole = table("table_wise", "fused_uvm_caching", ([0, 0], [100, 16], 1))
    # an empty shard, as TorchRec has it where rows are few
    rows = table("row_wise", "fused", ([0, 0], [101, 16], 0), ([101, 0], [0, 16], 1))
    columns = table("column_wise", "fused", ([0, 0], [102, 8], 1), ([0, 8], [102, 8], 0))
    tables = {"t0": whole, "t1": rows, "t2": columns, "t3": table("data_parallel", "dense")}
    return SimpleNamespace(plan={"sparse.ebc": tables})


def test_a_plan_of_torchrec_becomes_ours() -> None:
    content = json.dumps(torchrec_plan.describe(torchrec_like()))
    bound = bind(torchrec_plan.loads(content, "torchrec.json", 2), TABLES[:4], 2)
    assert bound.schemes == ("table_wise", "row_wise", "column_wise", "data_parallel")
    assert bound.placements == ("hbm_over_ddr", "", "", "")
    assert bound.fixed[1] == (Shard(1, (0, 101), (0, 16), 0),)
    assert {(s.cols, s.rank) for s in bound.fixed[2]} == {((0, 8), 1), ((8, 16), 0)}


@pytest.mark.filterwarnings("ignore")
def test_what_torchrec_planned_itself_becomes_ours() -> None:
    pytest.importorskip("torchrec", reason="torchrec is not installed")
    import torch
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints

    configs_of_tables = [
        EmbeddingBagConfig(t.rows, t.dim, name=t.name, feature_names=list(t.features))
        for t in TABLES
    ]
    constraints = {
        table.name: ParameterConstraints(sharding_types=[scheme], min_partition=8)
        for table, scheme in zip(TABLES, SCHEMES)
        if scheme != "table_column_wise"
    }
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=4, local_world_size=2, compute_device="cuda"),
        constraints=constraints,
        batch_size=64,
    )
    collection = EmbeddingBagCollection(tables=configs_of_tables, device=torch.device("meta"))
    sharding_plan = planner.plan(collection, [EmbeddingBagCollectionSharder()])
    content = json.dumps(torchrec_plan.describe(sharding_plan))
    bound = bind(torchrec_plan.loads(content, "torchrec.json", 4), TABLES, 4)
    assert [s for s in bound.schemes if s != "auto"]
    assert all(scheme in (*SCHEMES, "auto") for scheme in bound.schemes)


def of_torchrec(name: str, ranks: list[int], **keys: object) -> str:
    """The description of a plan of one data_parallel table."""
    entry = {"sharding_type": "data_parallel", "compute_kernel": "dense", "ranks": ranks}
    return json.dumps({"format": "torchrec plan", "tables": {name: entry | {"shards": []} | keys}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[" * 10**5, "nested too deeply"),
        ("{}", 'which has "format": "torchrec plan"'),
        ('{"format": "torchrec plan"}', "no plan of TorchRec: 'tables' is missing"),
        (
            '{"format": "torchrec plan", "tables": {"t0": 1}}',
            "table 't0': this is no plan of TorchRec: 'int' object is not",
        ),
        (
            '{"format": "torchrec plan", "tables": {"t0": {"sharding_type": "row_wise"}}}',
            "table 't0': this is no plan of TorchRec: 'shards' is missing",
        ),
        (
            '{"format": "torchrec plan", "tables": {"t0": {"sharding_type": "x", "shards": []}}}',
            "'x' is not allowed",
        ),
        (of_torchrec("t", [0, 1], compute_kernel="fused_fast"), "'t': compute kernel 'fused_fast'"),
        # made for three ranks, and asked for two
        (of_torchrec("t", [0, 1, 2]), "'t': it is on 3 rank.s., the last of which is 2, and"),
        (of_torchrec("t", [1, 2]), "'t': it is on 2 rank.s., the last of which is 2, and"),
    ],
)
def test_faults_of_torchrecs_plans_are_named(content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        torchrec_plan.loads(content, "torchrec.json", 2)


# ---- the command ----


def test_the_command_writes_a_plan_and_reads_it_back(log: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(small_run.CONFIG)
    out = tmp_path / "plan.json"
    line = [str(job), "--ranks", "2", "--out", str(out)]
    result = CliRunner().invoke(command, line)
    assert result.exit_code == 0, result.output
    assert loads(out.read_text()).made_for.batch_size == small_run.BATCH
    with_file = [str(job), "--ranks", "2", "--set", f"parallel.plan={out}"]
    again = CliRunner().invoke(command, with_file)
    assert again.output.splitlines() == result.output.splitlines()[:-1]
    config = configs.load(job, [f"parallel.plan={out}"])
    assert make_plan(config, SingleComm(), {}, 2).schemes
    description = tmp_path / "torchrec.json"
    shard = {"offsets": [0, 0], "sizes": [50, 4], "rank": 1}
    entry = {"sharding_type": "table_wise", "compute_kernel": "fused", "shards": [shard]}
    description.write_text(json.dumps({"format": "torchrec plan", "tables": {"one": entry}}))
    given = CliRunner().invoke(
        command, [str(job), "--ranks", "2", "--from-torchrec", str(description)]
    )
    assert given.exit_code == 0, given.output
    assert given.output.splitlines()[1].split()[:3] == ["one", "table_wise", "1"]
    entry["compute_kernel"] = "key_value"
    description.write_text(json.dumps({"format": "torchrec plan", "tables": {"one": entry}}))
    on_zionex = ["--ranks", "2", "--machine", "zionex", "--from-torchrec", str(description)]
    lacking = CliRunner().invoke(command, [str(job), *on_zionex])
    assert "placement: ddr_over_ssd needs ssd, which zionex lacks" in str(lacking.exception)
    # a plan of TorchRec's 2D parallelism is that of one group
    groups = ["--ranks", "4", "--set", "parallel.replica_groups=2"]
    given = CliRunner().invoke(command, [str(job), *groups, "--from-torchrec", str(description)])
    assert given.output.splitlines()[1].split()[:4] == ["one", "table_wise", "1,", "3"]


def test_what_a_file_leaves_open_is_planned_around_it_and_what_moves_is_told(
    tmp_path: Path,
) -> None:
    job = Path("data/models/tiny.toml")
    out = tmp_path / "plan.json"
    line = [str(job), "--machine", "zionex", "--ranks", "4"]
    assert CliRunner().invoke(command, [*line, "--out", str(out)]).exit_code == 0
    file = json.loads(out.read_text())
    rows, dim = (file["tables"][0][key] for key in ("rows", "dim"))
    rectangle = {"rank": 3, "rows": [0, rows], "columns": [0, dim]}
    pinned = {**file["tables"][0], "scheme": "table_wise", "rectangles": [rectangle]}
    open_file = tmp_path / "open.json"
    open_file.write_text(json.dumps({**file, "tables": [pinned]}))
    after = tmp_path / "after.json"
    again = [*line, "--set", f"parallel.plan={open_file}", "--out", str(after)]
    result = CliRunner().invoke(command, again)
    assert result.exit_code == 0, result.output
    assert "planner search" in result.output
    assert json.loads(after.read_text())["tables"][0]["rectangles"] == [rectangle]
    config = configs.load(job, [f"parallel.plan={open_file}", "parallel.planner=search"])
    assert make_plan(config, SingleComm(), {}, 4).of_table(0)[0].rank == 3
    moving = [*line, "--present", str(after)]
    assert "of the plan in use " in CliRunner().invoke(command, moving).output
    stays = CliRunner().invoke(command, [*moving, "--most-moved", "0"])
    assert "of the plan in use 0 B of 0 table(s) move" in stays.output
    refused = CliRunner().invoke(command, [*line, "--present", str(open_file)])
    assert "must say of each table where it is" in str(refused.exception)
    assert "needs --present" in CliRunner().invoke(command, [*line, "--most-moved", "1"]).output


def test_replica_groups_are_priced_and_written(tmp_path: Path) -> None:
    job = Path("data/models/tiny.toml")
    out = tmp_path / "plan.json"
    line = [str(job), "--machine", "zionex", "--ranks", "8"]
    groups = ["--set", "parallel.replica_groups=2"]
    result = CliRunner().invoke(command, [*line, *groups, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "26 tables on 4 rank(s) of zionex, 1 node(s) of 4; " in result.output
    assert "this is one of 2 replica groups, which hold and do the same" in result.output
    file = loads(out.read_text())
    assert (file.ranks, file.replica_groups, file.ranks_per_node) == (8, 2, 8)
    priced = CliRunner().invoke(command, [*line, "--set", f"parallel.plan={out}"])
    planned, again = (run.output.splitlines()[2] for run in (result, priced))
    assert again.split(" samples")[0] == planned.split(" samples")[0]
    assert make_plan(configs.load(job, [f"parallel.plan={out}"]), SingleComm(), {}, 8).ranks == 8
    for options, why in (
        ([*groups, "--present", str(out)], "--present knows plans of one group"),
        (["--present", str(out)], "it has 2 replica groups, which are not known here"),
        ([*groups, "--cost-model", "torchrec"], "cost model torchrec knows one group"),
        (["--set", "parallel.replica_groups=3"], "no 3 groups of equally many ranks"),
    ):
        refused = CliRunner().invoke(command, [*line, *options])
        assert why in str(refused.exception), refused.output
    step = re.search("a step takes ([^:]*):", planned)
    assert step
    planned_step = f"without overlap its step takes {step[1].replace('µ', 'u')}"
    steps = []
    for override in ("parallel.replica_groups=2", f"parallel.plan={out}"):
        simulated = CliRunner().invoke(simulate, [*line, "--set", override])
        assert "8 ranks on 1 node(s) in 2 replica groups, " in simulated.output
        # a file's plan has no bound, and is not compared with it
        assert planned_step in simulated.output or "plan.json" in override
        steps.append(re.findall("^step .*", simulated.output, re.MULTILINE))
    assert steps[0] == steps[1]
    huge = ["--set", "tables.C1.rows=90_000_000_000"]
    full = CliRunner().invoke(command, [*line, *groups, *huge])
    assert "with fewer of them (parallel.replica_groups) more ranks share a copy" in full.output
