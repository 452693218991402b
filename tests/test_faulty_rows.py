"""Does every row keep its number and its score, whatever stands in the rows before it?"""

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import neocpu
from neocpu.core.errors import ConfigError, DataError
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.threads import run_threads
from neocpu.serve.scoring.ranks import RunScorer, score_rows
from neocpu.serve.scoring.rows import file_rows
from neocpu.serve.scoring.values import open_values
from neocpu.train.config import config
from neocpu.train.run.trainer import Trainer
from tests.jobs import invoke

ROWS = 60
CONFIG = """
[data]
format = "table"
on_error = "skip"
[data.schema]
session = "user"
[[data.schema.label]]
column = "sold"
[[data.schema.dense]]
columns = ["price"]
kind = "float"
[[data.schema.category]]
columns = ["shop", "user"]
[model]
embedding_dim = 4
bottom = [4]
top = [1]
[tables]
shop.rows = 10
user.rows = 20
[training]
batch_size = 16
[optimizer.sparse]
learning_rate = 0.1
"""


def lines(rows: int = ROWS) -> list[str]:
    """price, shop, sold, user; users take turns, so that sessions are not neighbours."""
    return [f"{0.5 * i},shop {i % 4},{i % 2},user {i % 7}" for i in range(rows)]


def write(path: Path, rows: list[str], bad: dict[int, str] | None = None) -> Path:
    rows = [(bad or {}).get(i, row).format(i) for i, row in enumerate(rows)]
    text = "\n".join(["price,shop,sold,user", *rows]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faulty")
    log = write(folder / "train.csv", lines())
    Trainer(config.loads(CONFIG, overrides=[f'data.train="{log}"']), None, folder / "run").run()
    return folder / "run"


@pytest.fixture(scope="module")
def expected(run: Path) -> np.ndarray:
    """The scores of rows without a fault, one by one."""
    columns = {
        "price": [0.5 * i for i in range(ROWS)],
        "shop": [f"shop {i % 4}" for i in range(60)],
    }
    columns["user"] = [f"user {i % 7}" for i in range(60)]
    model = neocpu.load(run)
    scores = [model.predict(pl.DataFrame(columns)[i : i + 1])[0] for i in range(ROWS)]
    assert np.unique(scores).size == ROWS
    return np.array(scores, np.float32)


def test_a_faulty_row_has_no_score_and_shifts_no_other(
    run: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    bad = {3: "x,shop 3,1,user 3", 4: "shop 0", 20: "12 kg,shop 0,0,user 6", 59: 'a"b c'}
    gone = expected.copy()
    gone[list(bad)] = np.nan
    log = write(tmp_path / "log.csv", lines(), bad)
    more = write(tmp_path / "more.csv.gz", lines(), {0: ""})
    before = sorted(tmp_path.iterdir())
    done = invoke("predict", run, log, more, "--out", tmp_path / "s.csv", "--with", "user")
    assert "115 predictions" in done.stdout
    assert "5 rows have no score" in done.stderr and f"{log}, line 5, column price" in done.stderr
    scores = pl.read_csv(tmp_path / "s.csv", schema_overrides={"prediction": pl.Float32})
    assert scores.columns == ["row", "user", "prediction", "reason"]
    assert scores["row"].to_list() == list(range(2 * ROWS))
    assert scores["user"].to_list()[5:60:7] == ["user 5"] * 8
    both = np.concatenate([gone, expected])
    both[ROWS] = np.nan
    np.testing.assert_array_equal(scores["prediction"].fill_null(np.nan).to_numpy(), both)
    reasons = scores["reason"].to_list()
    assert [row for row, reason in enumerate(reasons) if reason] == [*bad, ROWS]
    assert reasons[59] == f"{log}, line 61 has 1 column, expected 4: 'a\"b c'"
    # the other forms say the same, and nothing stays beside the data
    for name in ("plain.csv", "s.parquet", "s.npy"):
        invoke("predict", run, log, more, "--out", tmp_path / name)
    plain = pl.read_csv(tmp_path / "plain.csv", schema_overrides={"prediction": pl.Float32})
    assert plain.equals(scores.drop("user"))
    assert pl.read_parquet(tmp_path / "s.parquet").equals(plain)
    np.testing.assert_array_equal(np.load(tmp_path / "s.npy"), both)
    written = {tmp_path / name for name in ("s.csv", "plain.csv", "s.parquet", "s.npy")}
    assert {*tmp_path.iterdir()} == {*before} | written
    assert not list(run.glob("*.converted.h5"))


def test_python_gives_a_prediction_for_every_row(
    run: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    frame = pl.DataFrame([line.split(",") for line in lines()], orient="row")
    frame.columns = ["price", "shop", "sold", "user"]
    bad = frame.with_columns(price=frame["price"].replace("3.5", "?"), sold=pl.lit("maybe"))
    gone = expected.copy()
    gone[7] = np.nan
    model = neocpu.load(run)
    bad.write_csv(tmp_path / "bad.csv")
    with pytest.warns(UserWarning, match="1 row has no score: row 7, column price: '\\?' is not a"):
        np.testing.assert_array_equal(model.predict(bad), gone)
    with pytest.warns(UserWarning, match=r"bad\.csv, line 9, column price"):
        np.testing.assert_array_equal(model.predict(tmp_path / "bad.csv"), gone)
    with pytest.warns(UserWarning, match="60 rows have no score") as scored:
        assert np.isnan(model.predict(bad.with_columns(price=pl.lit("?")))).all()
    with pytest.warns(UserWarning, match="1 faulty rows are left out") as warned:
        assert model.evaluate(bad.with_columns(sold=frame["sold"]))["samples"] == ROWS - 1
    assert {warning.filename for warning in warned} == {__file__}, "the line that asked"
    assert {warning.filename for warning in scored} == {__file__}
    strict = neocpu.load(run, ["data.on_error=fail"])
    for data in (bad, tmp_path / "bad.csv"):
        with pytest.raises(DataError, match=r"cannot be used.*column price.*data\.on_error=skip"):
            strict.predict(data)


def test_files_without_rows_have_no_scores(run: Path, expected: np.ndarray, tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", lines())
    text, table = tmp_path / "none.csv", tmp_path / "none.parquet"
    text.write_text("price,shop,user\n")
    pl.read_csv(log).head(0).write_parquet(table)
    model = neocpu.load(run)
    for none in (text, table, pl.read_parquet(table)):
        assert model.predict(none).size == 0
    np.testing.assert_array_equal(model.predict([text, log, table]), expected)
    done = invoke("predict", run, table, text, "--out", tmp_path / "s.csv", "--with", "user")
    assert "0 predictions" in done.stdout
    assert pl.read_csv(tmp_path / "s.csv").columns == ["row", "user", "prediction", "reason"]
    text.write_text("")
    with pytest.raises(DataError, match=r"none\.csv: has no rows"):
        model.predict(text)


@pytest.mark.parametrize("rows", [ROWS, 1])
def test_on_any_number_of_ranks(run: Path, expected: np.ndarray, tmp_path: Path, rows: int) -> None:
    faulty = {0: "x,shop 1,1,user 1"}
    log = write(tmp_path / "log.csv", lines(rows), faulty)
    values = open_values(next((run / "checkpoints").glob("*.h5")))

    def score(comm: Comm) -> tuple[list[float], list[int]]:
        blocks = file_rows([log, log], values)
        scored = list(score_rows(RunScorer(values, comm), comm, blocks))
        return [float(x) for scores, _ in scored for x in scores], [len(why) for _, why in scored]

    first, second = run_threads(2, score)
    wanted = expected[:rows].astype(np.float64)
    wanted[0] = np.nan
    np.testing.assert_array_equal(first[0], np.concatenate([wanted, wanted]))
    assert first[1] == [1, 1] and second == ([], [])


def test_ranks_that_read_other_rows_end_together(run: Path, tmp_path: Path) -> None:
    values = open_values(next((run / "checkpoints").glob("*.h5")))
    logs = [write(tmp_path / f"{n}.csv", lines(10 + n)) for n in range(2)]

    def score(comm: Comm) -> None:
        blocks = file_rows([logs[comm.rank]], values)
        list(score_rows(RunScorer(values, comm), comm, blocks))

    with pytest.raises(DataError, match=r"other rows of the data \(\[10, 11\]\)"):
        run_threads(2, score)


def test_a_log_without_labels_in_its_place(run: Path, expected: np.ndarray, tmp_path: Path) -> None:
    """Labels are not looked at, and a log without a header keeps its columns where they are."""
    headless = ["data.schema.header=false", 'data.schema.columns=["price","shop","sold","user"]']
    log = tmp_path / "log.csv"
    load = partial(neocpu.load, run)
    for rows in (
        lines(),
        [line.replace(",1,user", ",,user") for line in lines()],
        [line.replace(",1,user", ",user").replace(",0,user", ",user") for line in lines()],
    ):
        log.write_text("\n".join(rows) + "\n")
        np.testing.assert_array_equal(load(overrides=headless).predict(log), expected)
    unfitted = ['data.schema.dense=[{columns=["price"],kind="float",transform="standard"}]']
    with pytest.raises(ConfigError, match="takes numbers from the train data"):
        load(overrides=unfitted).predict(log)


def test_the_label_of_the_config_is_measured(tmp_path: Path) -> None:
    """A frame has the metrics of the same rows in a file, of the label that data.label names."""
    log = write(tmp_path / "log.csv", lines())
    labels = """data.schema.label=[{column="sold"}, {column="price", name="dear", threshold=9}]"""
    overrides = [f'data.train="{log}"', labels, "data.label=dear"]
    Trainer(config.loads(CONFIG, overrides=overrides), None, tmp_path / "run").run()
    model = neocpu.load(tmp_path / "run")
    assert model.evaluate(pl.read_csv(log)) == model.evaluate(log)
