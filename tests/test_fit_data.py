"""What may be fitted from Python, and what is a fit's folder there?"""

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import neocpu
from neocpu.core.errors import CheckpointError, ConfigError, DataError, TrainingError
from neocpu.serve.scoring.fits import FitScorer
from neocpu.train.checkpoint.folder import best_or_last

ROWS = 60


def table():
    """Rows of a site and a price, and whether they were clicked."""
    rng = np.random.default_rng(3)
    return {
        "clicked": rng.integers(0, 2, ROWS),
        "site": rng.choice(list("abcd"), ROWS),
        "price": rng.exponential(size=ROWS).round(3),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a fit, `fit`, and its log in two files, `part-0.csv` and `part-1.csv`."""
    folder = tmp_path_factory.mktemp("data")
    frame = pl.DataFrame(table())
    for part in range(2):
        frame[part * ROWS // 2 :][: ROWS // 2].write_csv(folder / f"part-{part}.csv")
    neocpu.fit(table(), out=folder / "fit", label="clicked")
    return folder


def test_tables_in_memory_and_files_are_one_log(folder, tmp_path):
    parts = [folder / "part-0.csv", str(folder / "part-1.csv")]
    frame = pl.DataFrame(table())
    digest = neocpu.load(folder / "fit").fitted.digest()
    for number, data in enumerate((frame, frame.to_arrow(), parts, folder / "part-*.csv")):
        model = neocpu.fit(data, out=tmp_path / str(number), label="clicked", test=parts[1])
        whole = neocpu.fit(data, out=tmp_path / f"{number}-split", label="clicked")
        assert whole.fitted.digest() == digest != model.fitted.digest()
    pandas = pytest.importorskip("pandas")
    model = neocpu.fit(pandas.DataFrame(table()), out=tmp_path / "pandas", label="clicked")
    assert model.fitted.digest() == digest


def test_folders_of_patterns_have_names(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    neocpu.fit(folder / "part-*.csv", label="clicked")
    assert [path.name for path in Path("fits").iterdir()] == ["part"]


def test_a_table_in_memory_keeps_out_of_other_fits(folder):
    kept = (folder / "fit" / "data.parquet").read_bytes()
    with pytest.raises(TrainingError, match="already has results"):
        neocpu.fit({"clicked": [0, 1], "site": ["a", "b"]}, out=folder / "fit")
    assert (folder / "fit" / "data.parquet").read_bytes() == kept
    again = neocpu.fit(table(), out=folder / "fit", label="clicked", resume=True)
    assert again.fitted.digest() == neocpu.load(folder / "fit").fitted.digest()


@pytest.mark.parametrize("call", [neocpu.fit, neocpu.init])
@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([], "list is no table"),
        ([{"a": 1}], "list is no table"),
        (3, "int is no table"),
        ({"a": [1, 2], "b": [1]}, "these data are no table"),
        ({"a": []}, "has no rows"),
        ("nothing.csv", "cannot be read: No such file"),
        ("nothing-*.csv", "no file fits it"),
    ],
)
def test_what_is_no_log_is_refused(call, data, problem, tmp_path):
    with pytest.raises(DataError, match=problem):
        call(data, out=tmp_path / "out")


@pytest.mark.parametrize(("more", "keys"), [((), {"label": "y"}), (("b.csv",), {})])
def test_a_config_stands_alone(more, keys):
    with pytest.raises(ConfigError, match="a config stands alone"):
        neocpu.fit(["a.toml", *more], **keys)


def test_load_opens_a_fit(folder):
    rows = pl.read_csv(folder / "part-1.csv")
    model = neocpu.load(folder / "fit")
    assert isinstance(model, FitScorer)
    assert model.predict(rows).tobytes() == model.predict(folder / "part-1.csv").tobytes()
    assert model.evaluate(rows) == neocpu.load(folder / "fit" / "fit.h5").evaluate(rows)
    texts = neocpu.load(folder / "fit", ["data.schema.missing=['a']"]).values.schema.missing
    assert texts == ("a",)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "no checkpoint in it"),
        (b"", "not a fit"),
        (b"text", "not a fit"),
        (slice(0, 2000), "truncated"),
        (slice(100, None), "not a fit"),
    ],
)
def test_load_refuses_what_is_no_fit(content, problem, folder, tmp_path):
    if content is not None:
        whole = (folder / "fit" / "fit.h5").read_bytes()
        damaged = whole[content] if isinstance(content, slice) else content
        (tmp_path / "fit.h5").write_bytes(damaged)
    with pytest.raises(CheckpointError, match=problem):
        neocpu.load(tmp_path)


def test_a_folder_with_checkpoints_is_a_run(folder, tmp_path):
    shutil.copytree(folder / "fit", tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000001.h5"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"text")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        neocpu.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "keys", "problem"),
    [
        ({}, {"l2": 2.0}, "another l2"),
        ({"price": np.arange(ROWS)}, {}, "another train data"),
        ({"site": table()["site"][::-1]}, {}, "another train data"),
        ({"site": np.arange(ROWS) / 7}, {}, "another features, train data"),
        ({"clicked": 1 - table()["clicked"]}, {}, "another train data"),
        ({}, {"weight": "price"}, "another train data, sample_weight"),
    ],
)
def test_a_fit_goes_on_with_what_it_was_begun_with(change, keys, problem, folder):
    (folder / "log").mkdir(exist_ok=True)
    path = folder / "log" / "log.parquet"
    pl.DataFrame(table() | change).write_parquet(path)
    known = {"out": folder / "fit", "label": "clicked", "resume": True}
    with pytest.raises(TrainingError, match=f"it was begun with {problem}; go on with the same"):
        neocpu.fit(path, **known, **keys)
    pl.DataFrame(table()).write_parquet(path)
    again = neocpu.fit(path, **known, l2="auto")
    assert again.fitted.digest() == neocpu.load(folder / "fit").fitted.digest()


def test_what_takes_no_fit_says_so(folder, tmp_path):
    with pytest.raises(CheckpointError, match="a fit of `neocpu fit`, which `neocpu predict`"):
        best_or_last(folder / "fit")
    # a folder of logs with the results of a fit in it
    with pytest.raises(DataError, match=r"fit/fit\.h5: an HDF5 file, but not a neocpu dataset"):
        neocpu.fit(folder, out=tmp_path / "out")


def test_a_fit_recommends_as_a_run_does(folder):
    model = neocpu.load(folder / "fit")
    users = pl.DataFrame({"user": ["u", "v"], "price": [0.5, 2.0]})
    items = pl.DataFrame({"item": [1, 2, 3, 4], "site": list("abcd")})
    best = model.recommend(users, items, 2, pl.DataFrame({"user": ["u"], "item": [2]}))
    assert best.columns == ["user", "rank", "item", "prediction"]
    assert best["rank"].to_list() == [1, 2, 1, 2]
    for user, rows in (("u", items.filter(pl.col("item") != 2)), ("v", items)):
        of_user = users.filter(pl.col("user") == user).join(rows, how="cross")
        expected = np.sort(model.predict(of_user))[::-1][:2]
        assert best.filter(pl.col("user") == user)["prediction"].to_numpy() == pytest.approx(
            expected
        )
    again = model.recommend(users, items, exclude=None, k=1, user="user", item="item")
    assert again.height == 2


def test_messages_of_copies_name_their_logs(folder):
    model = neocpu.load(folder / "fit")
    path = folder / "unknown.csv"
    pl.DataFrame(table()).with_columns(clicked=0.5).write_csv(path)
    keys = ["data.schema.label={column='clicked', kind='number'}"]
    other = FitScorer(folder / "fit", [*keys])
    with pytest.raises(DataError, match=f"^{path}: a label is 0.5, but those of the train data"):
        other.evaluate(path)
    assert model.classes == (0.0, 1.0)
