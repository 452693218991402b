"""Does a run that starts from a trained model have what it learnt, wherever and however it runs?"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sealed_files import sealed_anew

import neocpu
from neocpu.cli import cli
from neocpu.core.errors import CheckpointError, DataError
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import FeatureColumn
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.checkpoint.folder import NOTE, best_or_last
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config import config as configs
from neocpu.train.run.online import OnlineTrainer
from neocpu.train.run.patience import Patience
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.metrics import Metrics
from neocpu.train.watch.results import RunReport, read_json

TOML = """
[data]
train = "{train}"
valid = "{train}"
rows_by = "{rows_by}"
[model]
embedding_dim = 4
bottom = [5, 4]
top = [6, 1]
[optimizer]
sparse = {{ name = "{rule}", learning_rate = 0.05 }}
dense = {{ name = "{rule}", learning_rate = 0.01 }}
[training]
batch_size = 16
leaves = 4
seed = 7
[tables]
a.rows = {rows}
b.rows = 40
"""


def write(path: Path, seed: int, codes: Mapping[str, Sequence[int]], vocabulary: bool) -> Path:
    """A log of 64 samples whose features draw from these codes."""
    draw = np.random.default_rng(seed)
    with DatasetWriter(path, ["x", "y"], [FeatureColumn(name) for name in codes]) as writer:
        writer.append(
            draw.integers(0, 2, 64).astype(np.float32),
            draw.normal(size=(64, 2)).astype(np.float32),
            {name: draw.choice(values, 64).astype(np.uint32) for name, values in codes.items()},
        )
        if vocabulary:
            writer.vocabularies = {
                name: np.array(values, np.uint32) for name, values in codes.items()
            }
    return path


def config(train: Path, *overrides: str, **keys: Any) -> configs.Config:
    keys = {"rows_by": "hash", "rule": "adam", "rows": 30} | keys
    return configs.loads(TOML.format(train=train, **keys), overrides=overrides)


def train(
    settings: configs.Config, out: Path, comm: Comm | None = None, resume: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The summary of a run, and what it told."""
    lines: list[str] = []
    report = RunReport(out, comm.rank if comm else 0, tell=lines.append)
    return Trainer(settings, comm, out, resume=resume, report=report).run(), lines


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days by hash and by vocabulary, and a run over the first of each."""
    folder = tmp_path_factory.mktemp("days")
    first = {"a": range(10), "b": range(20)}
    second = {"a": range(5, 25), "b": range(20), "c": range(9)}
    for name, vocabulary in (("hash", False), ("vocabulary", True)):
        write(folder / f"{name}-1.h5", 1, first, vocabulary)
        write(folder / f"{name}-2.h5", 2, second, vocabulary)
        train(config(folder / f"{name}-1.h5", rows_by=name), folder / name)
    return folder


def next_day(folder: Path, name: str, *overrides: str, **keys: Any) -> configs.Config:
    return config(
        folder / f"{name}-2.h5",
        f"training.init_from={folder / name}",
        *overrides,
        rows_by=name,
        **keys,
    )


def test_the_next_day_begins_with_what_was_learnt(days: Path, tmp_path: Path) -> None:
    """Its first predictions are those of the old model; all ranks and plans end alike."""
    source = neocpu.load(days / "hash" / "checkpoints" / "step-00000004.h5")
    settings = next_day(days, "hash", "optimizer.sparse.learning_rate=0", "training.steps=1")
    frozen, lines = train(settings, tmp_path / "frozen")
    started = neocpu.load(tmp_path / "frozen" / "checkpoints" / "step-00000001.h5")
    for name, table in source.tables.items():
        rows = slice(None)
        assert (table[rows] == started.tables[name][rows]).all(), name
    assert any("starting from" in line and source.digest[:12] in line for line in lines), lines
    assert started.config.training.init_digest == source.digest
    assert started.config.optimizer.sparse.steps_before == 4
    third = next_day(days, "hash", f"training.init_from={tmp_path / 'frozen'}", "training.steps=1")
    train(third, tmp_path / "third")
    later = neocpu.load(tmp_path / "third" / "checkpoints" / "step-00000001.h5")
    assert later.config.optimizer.sparse.steps_before == 4 + 1
    fresh, _ = train(
        next_day(
            days,
            "hash",
            "optimizer.sparse.learning_rate=0",
            "training.steps=1",
            "training.init_state=false",
        ),
        tmp_path / "fresh",
    )
    assert fresh["digest"] != frozen["digest"]

    settings = next_day(days, "hash", "checkpoint.every_steps=2")
    whole, _ = train(settings, tmp_path / "whole")

    def elsewhere(comm: Comm) -> str:
        plan = configs.loads(
            settings.text, overrides=[*settings.overrides, "parallel.plan=row_wise"]
        )
        summary, told = train(plan, tmp_path / f"on-{comm.size}", comm)
        warning = "5 ranks but training.leaves = 4: 1 of them get no samples"
        assert any(warning in line for line in told) == (comm.rank == 0)
        return str(summary["digest"])

    assert set(run_threads(5, elsewhere)) == {whole["digest"]}


def test_going_on_needs_no_source(days: Path, tmp_path: Path) -> None:
    settings = next_day(days, "vocabulary", "checkpoint.every_steps=2")
    whole, _ = train(settings, tmp_path / "run")
    for late in (tmp_path / "run" / "checkpoints").glob("*04.h5"):
        late.unlink()
    gone = next_day(days, "vocabulary", f"training.init_from={tmp_path / 'gone'}")
    again, lines = train(gone, tmp_path / "run", resume=True)
    assert again["digest"] == whole["digest"]
    assert any(line.startswith("resuming from step-00000002") for line in lines)
    with pytest.raises(CheckpointError, match="no such file"):
        train(gone, tmp_path / "other")


def test_a_vocabulary_and_its_table_grow(days: Path, tmp_path: Path) -> None:
    _, lines = train(
        next_day(
            days,
            "vocabulary",
            "tables.c.rows=10",
            "optimizer.sparse.learning_rate=0",
            "tables.a.format=bf16",
            rows=35,
        ),
        tmp_path / "run",
    )
    told = "\n".join(lines)
    assert "vocabulary of a: 15 new codes, 25 in all" in told
    assert "a (30 rows became 35, fp32 became bf16)" in told
    assert "table c, which is new" in told and "columns of top.0.weight" in told
    with CheckpointFile(tmp_path / "run" / "checkpoints" / "step-00000004.h5") as file:
        words = file.vocabularies()
    assert words["a"].tolist() == list(range(25)) and words["c"].tolist() == list(range(9))
    source = neocpu.load(days / "vocabulary" / "checkpoints" / "step-00000004.h5")
    grown = neocpu.load(tmp_path / "run" / "checkpoints" / "step-00000004.h5")
    rows = source.tables["a"].learnt
    assert rows.size and np.abs(source.tables["a"][rows] - grown.tables["a"][rows]).max() < 0.01
    assert set(grown.tables["a"].learnt) >= set(rows)


def test_tables_of_kinds_grow_where_rows_keep_their_places(days: Path, tmp_path: Path) -> None:
    kinds = ('tables.a.kind="qr"', 'tables.b.kind="unified"', "tables.b.shared_rows=15")
    first = days / "vocabulary-1.h5"
    train(config(first, *kinds, rows_by="vocabulary"), tmp_path / "first")
    begin = (f"training.init_from={tmp_path / 'first'}", "optimizer.sparse.learning_rate=0")

    def grown(*overrides: str) -> tuple[str, Any]:
        second = config(
            days / "vocabulary-2.h5", *kinds, *begin, *overrides, rows_by="vocabulary", rows=35
        )
        _, lines = train(second, tmp_path / f"second-{len(overrides)}")
        return "\n".join(lines), neocpu.load(tmp_path / f"second-{len(overrides)}")

    told, model = grown()
    assert "a.quotient (8 rows became 9)" in told and "shared" not in told.partition("afresh")[2]
    source = neocpu.load(tmp_path / "first")
    for name, rows in (("a", np.arange(11)), ("b", np.arange(21))):
        assert (source.tables[name][rows] == model.tables[name][rows]).all(), name
    told, _ = grown("tables.b.shared_rows=16")
    assert "table shared: rows of b have other places in it now" in told


def test_another_rule_starts_its_states_afresh(days: Path, tmp_path: Path) -> None:
    other = ("optimizer.sparse.name=exact_adagrad", "optimizer.dense.name=adagrad")
    _, lines = train(next_day(days, "hash", *other, "training.steps=1"), tmp_path / "run")
    assert any("optimizer states of tables (adam became exact_adagrad)" in line for line in lines)


def test_what_has_another_shape_or_use_starts_afresh(days: Path, tmp_path: Path) -> None:
    cat = ("model.interaction=cat", "training.steps=1")
    other = ("model.bottom=[6,4]", "tables.a.dim=8", 'tables.b.features=["b","c"]')
    _, lines = train(next_day(days, "hash", *other, *cat), tmp_path / "run")
    told = "\n".join(lines)
    for words in (
        "bottom.0.weight, which had 5 outputs and has 6",
        "bottom.0.bias, which had shape (5,) and has (6,)",
        "table a: its rows had 4 columns and have 8",
        "b (also of c now)",
    ):
        assert words in told
    moved = ('tables.b.features=["c"]', "training.steps=1")
    _, lines = train(next_day(days, "hash", *moved), tmp_path / "moved")
    assert any("table b: it was of b and is of c" in line for line in lines)
    train(next_day(days, "hash", "tables.c.rows=9", "training.steps=1"), tmp_path / "three")
    back = (f"training.init_from={tmp_path / 'three'}", "training.steps=1")
    _, lines = train(config(days / "hash-1.h5", *back), tmp_path / "two")
    assert "  left behind: table: c" in lines


@pytest.mark.parametrize(
    ("overrides", "keys", "message"),
    [
        (("training.seed=8",), {}, "which decides the row of every value"),
        ((), {"rows": 31}, "rows are chosen by hash"),
        (("training.init_digest=abc",), {}, "training.init_digest is abc"),
        (("data.rows_by=vocabulary",), {}, "its rows were chosen by hash"),
    ],
)
def test_what_would_mix_rows_up_is_refused(
    days: Path, tmp_path: Path, overrides: tuple[str, ...], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        train(next_day(days, "hash", *overrides, **keys), tmp_path / "run")


def test_a_run_without_progress_ends_well_and_keeps_its_best(days: Path, tmp_path: Path) -> None:
    """Rates that are too high: the loss of the valid split turns after a few steps."""
    sets = ("training.epochs=9", "eval.every_steps=2", "training.patience=2", "checkpoint.keep=1")
    rates = ("optimizer.sparse.learning_rate=0.5", "optimizer.dense.learning_rate=0.2")
    settings = config(days / "hash-2.h5", *sets, *rates, f"data.valid={days / 'hash-1.h5'}")
    whole, lines = train(settings, tmp_path / "whole")
    assert whole["steps"] < 36 and any("ended early: 2 measurements" in line for line in lines)
    note = read_json(tmp_path / "whole" / "checkpoints" / NOTE)
    best = best_or_last(tmp_path / "whole")
    assert best.name == note["file"] == f"step-{whole['steps'] - 4:08d}.h5"
    written = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    measured = [json.loads(line) for line in written]
    valid = [line["logloss"] for line in measured if line["split"] == "valid"]
    assert note["value"] == min(valid) == valid[-3]

    stopped = configs.loads(settings.text, overrides=[*settings.overrides, "training.steps=5"])
    train(stopped, tmp_path / "again")
    again = run_threads(2, lambda comm: train(settings, tmp_path / "again", comm, resume=True)[0])
    assert again[0]["digest"] == whole["digest"]
    assert read_json(tmp_path / "again" / "checkpoints" / NOTE) == note
    _, lines = train(settings, tmp_path / "again", resume=True)
    assert any("ended early" in line for line in lines)


def test_a_measurement_at_the_end_may_be_the_best_but_does_not_count() -> None:
    patience = Patience(limit=2, metric="logloss")
    patience.measured(2, Metrics(9, logloss=0.5))
    patience.measured(4, Metrics(9, logloss=0.6))
    counted = patience.to_note()
    patience.measured(5, Metrics(9, logloss=0.4), due=False)
    assert patience.best == (0.4, 5)
    assert patience.best_at(5) and not patience.best_at(2)
    assert patience.to_note() == counted and not patience.ended
    patience.measured(6, Metrics(9, logloss=0.5), due=False)
    assert patience.best == (0.5, 2)


def go(
    settings: configs.Config, out: Path, files: Sequence[Path], comm: Comm | None = None, **how: Any
) -> tuple[dict[str, Any], list[str]]:
    """An online run: its summary, and what it told."""
    lines: list[str] = []
    report = RunReport(out, comm.rank if comm else 0, tell=lines.append)
    names = [str(file) for file in files]
    return OnlineTrainer(settings, comm, out, names, report=report, **how).run(), lines


def damage_rows(path: Path, table: str = "a") -> None:
    """Change a byte of the rows of a table of a checkpoint, which its seal leaves to checksums."""
    with CheckpointFile(path) as file:
        rows = file.field(file.number(f"tables/{table}"), "weight")
        data = np.ascontiguousarray(rows[0:4]).tobytes()
    contents = bytearray(path.read_bytes())
    contents[contents.index(data)] ^= 1
    path.write_bytes(contents)


def test_online_each_file_is_measured_and_then_trained_on(days: Path, tmp_path: Path) -> None:
    """In one go, day by day, and stopped in the middle of a file: one digest, equal lines."""
    measured = ("eval.group=a", "eval.at=[3]", "eval.baseline=true")
    settings = config(days / "vocabulary-1.h5", *measured, rows_by="vocabulary", rows=24)
    both = [days / "vocabulary-1.h5", days / "vocabulary-2.h5"]
    whole, lines = go(settings, tmp_path / "whole", both)
    assert any("2 of 15 new codes of a have no row in table a" in line for line in lines), lines
    written = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    lines_of = [line for line in map(json.loads, written) if line["split"] == "progressive"]
    assert [line["step"] for line in lines_of] == [0, 4]
    assert lines_of[1]["file"] == str(both[1]) and lines_of[1]["auc"] is not None
    assert lines_of[1]["groups"] > 2 and 0 < lines_of[1]["ndcg@3"] <= 1
    assert "baseline" not in whole  # it would have learnt from one file only
    assert whole["steps"] == 8 and whole["samples"] == 128
    mean = whole["metrics"]["progressive"]["logloss"]
    assert mean == pytest.approx(np.mean([line["logloss"] for line in lines_of]))

    go(settings, tmp_path / "days", both[:1])
    (tmp_path / "model.toml").write_text(settings.text)
    keys = [word for key in settings.overrides for word in ("--set", key)]
    words = ["online", f"{tmp_path}/model.toml", str(both[1]), "--out", f"{tmp_path}/days"]
    done = CliRunner().invoke(cli, [*words, "--resume", *keys], catch_exceptions=False)
    *_, last = summary = done.stdout.splitlines()
    (of_both,) = (line for line in summary if line.startswith("progressive "))
    assert f"logloss {mean:.5f}" in of_both and last == f"digest {whole['digest']}"

    short = configs.loads(settings.text, overrides=[*settings.overrides, "training.steps=6"])
    go(short, tmp_path / "cut", both)
    with pytest.raises(DataError, match="the run stopped in its middle, after 2 of 4 steps"):
        go(settings, tmp_path / "cut", both[:1], resume=True)
    with pytest.raises(CheckpointError, match="go on with `neocpu online`"):
        train(settings, tmp_path / "cut", resume=True)
    # the checkpoint before the damaged one has fewer codes, and knows fewer files
    shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
    damage_rows(tmp_path / "damaged" / "checkpoints" / "step-00000008.h5")
    again, lines = go(settings, tmp_path / "damaged", both, resume=True)
    assert any("resuming from step-00000004" in line for line in lines), lines
    assert again["digest"] == whole["digest"]
    # from the middle of a file, by readers, which are there for one file after the other
    read = configs.loads(settings.text, overrides=[*settings.overrides, "readers.count=1"])
    cut = run_threads(2, lambda comm: go(read, tmp_path / "cut", both, comm, resume=True))
    assert cut[0][0]["digest"] == whole["digest"]
    assert any("was trained on already" in line for line in cut[0][1])


def test_a_checkpoint_without_vocabularies_needs_the_data_it_was_trained_on(
    days: Path, tmp_path: Path
) -> None:
    """As those of neocpu 0.1.0, which noted the hashes of vocabularies alone."""
    shutil.copytree(days / "vocabulary", tmp_path / "old")
    old = tmp_path / "old" / "checkpoints" / "step-00000004.h5"
    with sealed_anew(old) as file:
        for name in [name for name in file if "vocabular" in name]:
            del file[name]
    with CheckpointFile(old) as file:
        assert not file.vocabularies()
    settings = next_day(days, "vocabulary", f"training.init_from={old}", rows=35)
    known, lines = train(settings, tmp_path / "known")
    assert any("vocabulary of a: 15 new codes" in line for line in lines)
    whole, _ = train(next_day(days, "vocabulary", rows=35), tmp_path / "whole")
    assert known["digest"] == whole["digest"]
    first = days / "vocabulary-1.h5"
    moved = first.rename(tmp_path / "moved.h5")
    try:
        with pytest.raises(CheckpointError, match=r"set\s+data\.vocabulary to the dataset"):
            train(settings, tmp_path / "unknown")
    finally:
        moved.rename(first)


def test_towers_and_narrow_rows_below_caches_go_on(days: Path, tmp_path: Path) -> None:
    sets = (
        "model.towers={one=['a'], two=['b']}",
        "tables.a.format=int8",
        "tables.b.format=fp16",
        "memory.placement=hbm_over_ddr",
        "memory.cache_format=fp32",
    )
    train(config(days / "hash-1.h5", *sets), tmp_path / "first")
    settings = config(days / "hash-2.h5", *sets, f"training.init_from={tmp_path / 'first'}")
    whole, lines = train(settings, tmp_path / "whole")
    assert any("2 tables, " in line for line in lines), lines
    assert not any("starting afresh" in line for line in lines), lines

    def elsewhere(comm: Comm) -> str:
        plan = "parallel.plan=table_wise"
        again = configs.loads(settings.text, overrides=[*settings.overrides, plan])
        return str(train(again, tmp_path / "ranks", comm)[0]["digest"])

    assert set(run_threads(2, elsewhere)) == {whole["digest"]}
