"""Does a run on a table carry its schema along, and are data that do not serve refused at once?"""

import json

import pytest

from neocpu.cli import run
from neocpu.core.errors import CheckpointError, ConfigError, DataError
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.formats.table import read_tree
from neocpu.parallel.transport.comm import SingleComm
from neocpu.train.before.datasets import open_paths, open_splits
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config.config import load, loads
from neocpu.train.state.identity import refuse_other_data, with_numbers, with_schema

CONFIG = """
[data]
train = "train.csv"
valid = "valid.csv"
format = "table"
{schema}
[model]
embedding_dim = 2
bottom = [4, 2]
top = [4, 1]
[training]
batch_size = 8
steps = 2
[tables]
site.rows = 10
income.rows = 6
id.rows = 10
"""
SCHEMA = """
[[label]]
column = "stars"
threshold = 4
[[label]]
column = "stars"
name = "raw"
kind = "number"
[[dense]]
columns = ["age"]
transform = "standard"
[[category]]
columns = ["site"]
[[category]]
columns = ["id"]
kind = "int"
[[category]]
columns = ["income"]
kind = "bucket"
buckets = 4
"""
ROWS = [f'{i % 6},{20 + i},"s {i % 3}",{i % 5 or ""},{i * 37 % 100}\n' for i in range(24)]


@pytest.fixture
def folder(tmp_path):
    """A config with its logs and its schema, all paths relative to it."""
    header = "stars,age,site,id,income\n"
    (tmp_path / "train.csv").write_text(header + "".join(ROWS))
    (tmp_path / "valid.csv").write_text(header + "".join(ROWS[3:9]))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "config.toml").write_text(CONFIG.format(schema='schema = "schema.toml"'))
    inline = SCHEMA.replace("[[", "[[data.schema.")
    (tmp_path / "inline.toml").write_text(CONFIG.format(schema=inline))
    return tmp_path


def opened(path, *overrides):
    config = load(path, overrides)
    return open_splits(config, SingleComm(), path.parent, lambda line: None)


def test_a_checkpoint_holds_its_schema(folder, tmp_path_factory, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    run(["train", "config.toml", "--out", "run"])
    checkpoint = next((folder / "run" / "checkpoints").iterdir())
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    valid = (folder / "valid.csv").rename(elsewhere / "valid.csv")
    (folder / "schema.toml").unlink()
    monkeypatch.chdir(elsewhere)
    with CheckpointFile(checkpoint) as file:
        tree = file.config().data.schema
        digest = file.digest
    ages = [20 + i for i in range(24)]
    assert tree["dense"][0]["fitted"]["age"][0] == sum(ages) / 24
    assert len(tree["category"][2]["fitted"]["income"]) == 3
    capsys.readouterr()
    run(["eval", str(checkpoint), "valid.csv", "--json"])
    metrics = json.loads(capsys.readouterr().out)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    measured = next(line for line in map(json.loads, reversed(lines)) if line["split"] == "valid")
    assert metrics["logloss"] == measured["logloss"]
    lines = [line.partition(",")[2] for line in valid.read_text().splitlines()]
    (elsewhere / "test.csv").write_text("\n".join(lines) + "\n")
    run(["predict", str(checkpoint), "test.csv", "--out", "a.csv", "--unlabelled"])
    run(["predict", str(checkpoint), "valid.csv", "--out", "b.csv"])
    assert (elsewhere / "a.csv").read_text() == (elsewhere / "b.csv").read_text()
    # the same run by the schema inside the config
    valid.rename(folder / "valid.csv")
    run(["train", str(folder / "inline.toml"), "--out", "run"])
    with CheckpointFile(next((elsewhere / "run" / "checkpoints").iterdir())) as file:
        assert file.digest == digest


def test_splits_share_the_numbers_of_the_train_data(folder):
    splits = opened(folder / "config.toml")
    train, valid = (splits.datasets[name] for name in ("train", "valid"))
    assert train.schema == valid.schema and train.schema["dense"][0]["fitted"]
    assert opened(folder / "inline.toml").datasets["valid"].paths[0].exists()
    (folder / "valid.csv").unlink()
    again = opened(folder / "config.toml", f"data.valid={json.dumps(str(valid.paths[0]))}")
    assert again.datasets["valid"].rows == 6


def test_an_online_run_keeps_the_numbers_of_its_first_file(folder, monkeypatch):
    config = load(folder / "config.toml")
    sources = {"train 1": ("valid.csv",), "train 2": ("train.csv",), "valid": ("valid.csv",)}
    monkeypatch.chdir(folder)
    for _ in range(2):  # converted, and found again
        splits = open_paths(config, SingleComm(), folder, lambda line: None, sources)
        first, *others = (data.schema for data in splits.datasets.values())
        assert all(schema == first for schema in others) and first["dense"][0]["fitted"]


def test_labels_that_the_loss_does_not_take_are_refused(folder):
    assert opened(folder / "config.toml").datasets["train"].label_range() == (0, 1)
    message = r"data.train: labels are from 0 to 5, but model.loss = .bce. .*threshold"
    with pytest.raises(DataError, match=message):
        opened(folder / "config.toml", "data.label=raw")
    splits = opened(folder / "config.toml", "data.label=raw", "model.loss=mse")
    assert splits.datasets["train"].label_range() == (0, 5)
    with pytest.raises(DataError, match="no label 'x'; its labels are stars, raw"):
        opened(folder / "config.toml", "data.label=x")
    assert load(folder / "config.toml", ["data.label=raw"]).header()["data"]["label"] == "raw"
    assert "label" not in load(folder / "config.toml").header()["data"]


def test_schemas_of_a_config_are_checked_with_it(folder):
    text = (folder / "inline.toml").read_text()
    with pytest.raises(ConfigError, match=r"data\.schema, dense 1: transform = 'std'"):
        loads(text.replace("standard", "std"))
    with pytest.raises(ConfigError, match=r"data\.schema: expected a text in quotes, got 3"):
        loads(CONFIG.format(schema="schema = 3"))
    (folder / "schema.toml").unlink()
    with pytest.raises(ConfigError, match=r"schema\.toml: cannot be read: No such file"):
        opened(folder / "config.toml")


def test_a_converted_file_knows_its_schema(folder):
    paths = [folder / "schema.toml", folder / "train.csv", folder / "out.h5"]
    run(["data", "convert", "table", *map(str, paths)])
    assert Dataset(paths[2]).schema["version"] == 2
    valid = [paths[0], folder / "valid.csv", folder / "valid.h5"]
    run(["data", "convert", "table", *map(str, valid), "--fitted", str(paths[2])])
    assert Dataset(valid[2]).schema == Dataset(paths[2]).schema


def test_schemas_of_checkpoints(folder):
    path = folder / "config.toml"
    config = load(path)
    description = {"splits": {}, "vocabularies": {}}
    old = with_schema(config, description, ())
    assert old.data.schema["version"] == 1 and old.data.schema["dense"] == read_tree(
        folder / "schema.toml"
    ).get("dense")
    assert with_schema(config, {}, ()) is config
    tree = opened(path).datasets["train"].schema
    new = description | {"schema": tree}
    assert with_schema(config, new, ()).data.schema == tree
    assert with_schema(config, new, ["data.schema=x.toml"]) is config
    # what the next day's run takes over
    filled = with_numbers(config, new).data.schema
    assert filled["dense"][0]["fitted"] == tree["dense"][0]["fitted"]
    assert with_numbers(config, description) is config
    other = json.loads(json.dumps(tree))
    other["category"][2]["fitted"]["income"][0] -= 1
    for before, now, message in (
        (tree, tree, ""),
        (tree, other, "income was read in another way"),
        (None, tree, "write version = 1 into its schema"),
    ):
        pair = [description | ({"schema": each} if each else {}) for each in (before, now)]
        if not message:
            refuse_other_data(path, *pair, "train")
            continue
        with pytest.raises(CheckpointError, match=message):
            refuse_other_data(path, *pair, "train")
