"""Does a trained model predict the same from Python as on the command line, whatever holds the
data?
"""

import bz2
import gzip
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import neocpu
from neocpu.core.errors import CheckpointError, DataError
from neocpu.serve.scoring.model import Model
from neocpu.serve.scoring.score_file import ScoreFile
from neocpu.serve.scoring.values import ValueMap
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config import config
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.ranking import ranking
from tests.jobs import invoke, ran
from tests.small_run import config_of, write_log

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
CRITEO = """
[model]
embedding_dim = 4
bottom = [4]
top = [1]
[tables]
C1.rows = 40
C6.rows = 30
C9.rows = 10
shared = { rows = 50, features = ["C2", "C3"] }
[optimizer.sparse]
learning_rate = 0.1
[optimizer.dense]
learning_rate = 0.1
[training]
batch_size = 64
"""
SHOP = """
[data]
format = "table"
rows_by = "vocabulary"
min_count = 1
[model]
embedding_dim = 4
bottom = [4]
top = [1]
[tables]
shop.rows = 10
code.rows = 20
level.rows = 10
tags.rows = 10
[training]
batch_size = 16
[optimizer.sparse]
learning_rate = 0.1
"""
SCHEMA = """
[label]
column = "sold"
[[dense]]
columns = ["price"]
kind = "float"
transform = "standard"
[[category]]
columns = ["price"]
name = "level"
kind = "bucket"
buckets = 4
[[category]]
columns = ["shop"]
[[category]]
columns = ["code"]
kind = "int"
[[category]]
columns = ["tags"]
separator = "|"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Criteo logs with labels and without, and a run of some steps over them."""
    folder = tmp_path_factory.mktemp("scoring")
    with gzip.open(ROOT / "data" / "tiny-criteo-train.tsv.gz", "rt") as file:
        lines = [next(file) for _ in range(300)]
    (folder / "train.tsv").write_text("".join(lines[:200]))
    (folder / "test.tsv").write_text("".join(lines[200:]))
    (folder / "unlabelled.tsv").write_text("".join(x.partition("\t")[2] for x in lines[200:]))
    settings = config.loads(CRITEO, overrides=[f'data.train="{folder}/train.tsv"'])
    Trainer(settings, None, folder / "run").run()
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return neocpu.load(folder / "run")


@pytest.fixture(scope="module")
def frame(folder: Path) -> pl.DataFrame:
    """The test log as a frame, integers as such."""
    texts = dict.fromkeys(COLUMNS[14:], pl.String)
    return pl.read_csv(
        folder / "test.tsv",
        separator="\t",
        has_header=False,
        new_columns=COLUMNS,
        schema_overrides=texts,
    )


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pl.DataFrame]:
    """A table with a vocabulary and lists of tags, and a run over it."""
    folder = tmp_path_factory.mktemp("shop")
    frame = pl.DataFrame(
        {
            "sold": [i % 3 == 0 for i in range(60)],
            "price": [0.5 * i for i in range(60)],
            "shop": [f"shop {i % 4}" for i in range(60)],
            "code": [100 + i % 7 for i in range(60)],
            "tags": ["|".join(["new", "red", "big"][: i % 4]) or None for i in range(60)],
        }
    )
    frame.with_columns(pl.col("sold").cast(pl.Int8)).write_csv(folder / "train.csv")
    (folder / "schema.toml").write_text(SCHEMA)
    overrides = [
        f'data.train="{folder}/train.csv"',
        f'data.schema="{folder}/schema.toml"',
    ]
    Trainer(config.loads(SHOP, overrides=overrides), None, folder / "run").run()
    return folder, frame.with_columns(pl.col("sold").cast(pl.Int8))


def scores(path: Path) -> np.ndarray:
    lines = path.read_text().splitlines()[1:]
    return np.array([np.float32(line.rsplit(",", 1)[1]) for line in lines])


def test_a_model_predicts_what_the_command_does(
    model: Model, folder: Path, frame: pl.DataFrame
) -> None:
    invoke("predict", folder / "run", folder / "test.tsv", "--out", folder / "test.csv")
    expected = scores(folder / "test.csv")
    assert expected.size == 100 and np.unique(expected).size > 50
    tables: list[Any] = [
        folder / "test.tsv",
        str(folder / "unlabelled.tsv"),
        frame,
        frame.drop("label").lazy(),
        frame.reverse()[::-1].to_arrow(),
        {name: frame[name].to_list() for name in reversed(COLUMNS)},
        {name: frame[name].to_numpy() for name in model.values.schema.used},
    ]
    for data in tables:
        prediction = model.predict(data)
        assert prediction.dtype == np.float32
        np.testing.assert_array_equal(prediction, expected)
    both = model.predict([folder / "test.tsv", folder / "test.tsv"])
    np.testing.assert_array_equal(both, np.concatenate([expected, expected]))
    np.testing.assert_array_equal(model.predict(frame[7:8]), expected[7:8])
    assert model.predict(frame[:0]).size == 0


def test_pandas(model: Model, frame: pl.DataFrame) -> None:
    pandas = pytest.importorskip("pandas")
    data = pandas.DataFrame({name: frame[name].to_list() for name in COLUMNS})
    np.testing.assert_array_equal(model.predict(data), model.predict(frame))


def test_a_model_measures_what_the_command_does(
    model: Model, folder: Path, frame: pl.DataFrame
) -> None:
    metrics = model.evaluate(frame)
    assert metrics == model.evaluate(folder / "test.tsv") and metrics["samples"] == 100
    shown = invoke("eval", folder / "run", folder / "test.tsv").output
    assert f"{metrics['logloss']:.6f}" in shown
    with pytest.raises(DataError, match="has no labels"):
        model.evaluate(frame.drop("label"))


def test_rows_are_ranked_by_any_column(shop: tuple[Path, pl.DataFrame]) -> None:
    folder, frame = shop
    log = frame.with_columns(request=pl.Series([f"r{i // 6}" for i in range(60)]))
    log.write_csv(folder / "ranked.csv")
    model = neocpu.load(folder / "run")
    for group, count in (("shop", 4), ("request", 10)):
        metrics = model.evaluate(log, group=group, at=(1, 3))
        codes = log[group].rank("dense").to_numpy().astype(np.int64)
        expected = ranking(model.predict(log), log["sold"].to_numpy().astype("f4"), codes, (1, 3))
        assert metrics == model.evaluate(log) | expected
        assert metrics["groups"] == count
        assert metrics == model.evaluate(folder / "ranked.csv", group=group, at=(1, 3))
        line = ["eval", folder / "run", folder / "ranked.csv", "--group", group, "--at", "1,3"]
        shown = json.loads(invoke(*line, "--baseline", "--json").stdout)
        assert shown.pop("baseline")["metrics"]["auc"] > 0.5
        assert shown == metrics
    # the group of the config, with other ks than its own
    line = ["eval", folder / "run", folder / "ranked.csv", "--set", "eval.group='shop'", "--at"]
    shown = json.loads(invoke(*line, "1,3", "--json").stdout)
    assert shown == model.evaluate(log, group="shop", at=(1, 3))
    assert "ndcg@10" in model.evaluate(log, group="shop")
    (folder / "parts").mkdir()
    shutil.copy(folder / "ranked.csv", folder / "parts")
    line = ["predict", folder / "run", folder / "parts", "--force", "--out"]
    with pytest.raises(DataError, match="is read by the same command"):
        invoke(*line, folder / "parts" / "ranked.csv")
    with pytest.raises(DataError, match="tags holds lists"):
        model.evaluate(log, group="tags")
    with pytest.raises(DataError, match="no column 'colour'"):
        model.evaluate(log, group="colour")


def test_what_is_wrong_with_a_table_is_said_at_once(model: Model, frame: pl.DataFrame) -> None:
    with pytest.raises(DataError, match=r"(?s)'I3', 'C9' are missing; they have"):
        model.predict(frame.drop("I3", "C9"))
    with pytest.raises(DataError, match=r"(?s)row 0, column C1: 'xyz'.*and 90 more rows"):
        model.predict(frame.with_columns(C1=pl.lit("xyz")))
    with pytest.raises(DataError, match="int is no table"):
        model.predict(7)


def test_rows_of_values(model: Model, folder: Path) -> None:
    table = model.tables["C1"]
    lines = (folder / "train.tsv").read_text().splitlines()
    values = [line.split("\t")[14] for line in lines]
    rows = table.rows_of(values)
    assert set(rows.tolist()) == set(table.learnt.tolist())
    assert table.rows_of(values[0]) == rows[0] == table.rows_of(int(values[0], 16))
    assert table.rows_of(np.array(values[:4]).reshape(2, 2)).shape == (2, 2)
    np.testing.assert_array_equal(table.vectors(values[:3]), table[rows[:3]])
    with pytest.raises(DataError, match="features C2, C3; say which"):
        model.tables["shared"].rows_of("17")
    first = model.tables["shared"].rows_of(values, "C2")
    assert (first != model.tables["shared"].rows_of(values, "C3")).any()
    with pytest.raises(DataError, match="'C4'; it has C2, C3"):
        model.tables["shared"].rows_of("17", "C4")
    with pytest.raises(DataError, match="hexadecimal"):
        table.rows_of("shoes")


def test_neighbours(model: Model, folder: Path) -> None:
    table = model.tables["C1"]
    row = int(table.learnt[0])
    best = table.neighbours(row=row, k=3)
    vectors = table[table.learnt]
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(table[row])
    cosines = (vectors * table[row]).sum(axis=1) / lengths
    order = np.argsort(-cosines, kind="stable")[1:4]
    assert [neighbour.row for neighbour in best] == table.learnt[order].tolist()
    assert [neighbour.score for neighbour in best] == pytest.approx(cosines[order].tolist())
    assert best[0].value is None  # a hash has no inverse
    values = [line.split("\t")[14] for line in (folder / "train.tsv").read_text().splitlines()]
    named = table.neighbours(values[0], 2, metric="dot", among=values)
    assert {neighbour.value for neighbour in named} <= set(values)
    assert named[0].score >= named[1].score
    untrained = next(row for row in range(40) if row not in table.learnt)
    with pytest.raises(DataError, match=f"row {untrained} was never trained"):
        table.neighbours(row=untrained)
    with pytest.raises(DataError, match="choose one of cosine, dot"):
        table.neighbours(row=row, metric="l2")
    with pytest.raises(DataError, match="neighbours of what"):
        table.neighbours()


def test_a_vocabulary_is_that_of_the_train_data(shop: tuple[Path, pl.DataFrame]) -> None:
    folder, frame = shop
    model = neocpu.load(folder / "run")
    expected = model.predict(folder / "train.csv")
    np.testing.assert_array_equal(model.predict(frame), expected)
    lists = frame.with_columns(pl.col("tags").str.split("|"))
    np.testing.assert_array_equal(model.predict(lists), expected)
    assert model.tables["code"].rows_of([100, 999])[1] == 0
    best = model.tables["code"].neighbours(100, 3)
    assert {neighbour.value for neighbour in best} < set(range(101, 107))
    assert model.tables["tags"].rows_of(["new", "red", "big"]).tolist() == [1, 2, 3]
    frame[:20].drop("sold").write_csv(folder / "new.csv")
    keys = ["--with", "shop", "--with", "code"]
    arguments = [folder / "run", folder / "new.csv", *keys]
    invoke("predict", *arguments, "--out", folder / "new.parquet")
    packed = folder / "new.csv.bz2"
    packed.write_bytes(bz2.compress((folder / "new.csv").read_bytes()))
    objects = folder / "new.jsonl"
    frame[:20].drop("sold").write_ndjson(objects)
    for other in (packed, objects):
        invoke(
            "predict", folder / "run", other, *keys, "--force", "--out", folder / "other.parquet"
        )
        assert pl.read_parquet(folder / "other.parquet").equals(
            pl.read_parquet(folder / "new.parquet")
        )
    written = pl.read_parquet(folder / "new.parquet")
    assert written.columns == ["row", "shop", "code", "prediction"]
    assert written["prediction"].dtype == pl.Float32
    np.testing.assert_array_equal(written["prediction"].to_numpy(), expected[:20])
    assert written["shop"].to_list() == frame["shop"].to_list()[:20]
    invoke("predict", *arguments, "--out", folder / "new.csv.csv")
    np.testing.assert_array_equal(scores(folder / "new.csv.csv"), expected[:20])
    with pytest.raises(DataError, match="has no column 'colour'"):
        invoke("predict", *arguments, "--with", "colour", "--out", folder / "x.csv")

    # a checkpoint of neocpu 0.1.0 has no vocabularies: they are those of the train data
    with CheckpointFile(model.path) as file:
        data = file.data()
    older = ValueMap(model.path, model.config, data)
    assert older.vocabularies.keys() == model.values.vocabularies.keys()
    for path in older._vocabulary_files():
        path.unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="its rows are by a vocabulary"):
        ValueMap(model.path, model.config, data).rows(model.config.tables[0], "shop", ["shop 1"])
    np.testing.assert_array_equal(neocpu.load(folder / "run").predict(frame), expected)


def test_unlabelled_logs_are_told_from_their_columns(folder: Path) -> None:
    for name in ("test.tsv", "unlabelled.tsv"):
        out = folder / f"{name}.npy"
        invoke("predict", folder / "run", folder / name, "--out", out)
    labelled, unlabelled = (np.load(folder / f"{name}.tsv.npy") for name in ("test", "unlabelled"))
    assert labelled.dtype == np.float32
    np.testing.assert_array_equal(labelled, unlabelled)


def test_a_model_of_converted_files_knows_codes(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.h5")
    Trainer(config_of(log, "training.steps=2"), None, tmp_path / "run").run()
    model = neocpu.load(tmp_path / "run" / "checkpoints")
    assert model.predict(log).size == 150
    assert model.tables["one"].rows_of([3, 3]).tolist() == [model.tables["one"].rows_of(3)] * 2
    with pytest.raises(DataError, match="whole numbers"):
        model.tables["one"].rows_of("three")
    with pytest.raises(DataError, match=r"many, one are no columns of a log .*SCHEMA\.toml"):
        model.predict({"one": [1]})


def test_a_folder_without_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in it"):
        neocpu.load(tmp_path)


def test_loading_is_light(folder: Path) -> None:
    script = (
        "import sys, neocpu; neocpu.load(sys.argv[1]).tables['C1'][[0]]; "
        "print({'numba', 'mpi4py', 'polars'} & set(sys.modules))"
    )
    done = ran([sys.executable, "-c", script, str(folder / "run")], check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["s.xlsx", "s.csv.gz", "s.JSON"])
def test_names_of_other_formats_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"predictions are written as CSV, \.parquet or \.npy"):
        ScoreFile(tmp_path / name)
    assert not [*tmp_path.iterdir()]
