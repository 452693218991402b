"""What does `neocpu init` take columns for, and does what it writes read them?"""

import datetime
import math
import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from neocpu.cli import run
from neocpu.core.errors import ConfigError
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.formats.frames import parse_frame
from neocpu.ingest.formats.table import table_schema
from neocpu.parallel.transport.comm import SingleComm
from neocpu.train.advice.columns import LogColumn
from neocpu.train.advice.dialect import (
    column_names,
    guess_comment,
    guess_dialect,
    typed_hints,
)
from neocpu.train.advice.labels import guess_label, label_column, rating_threshold
from neocpu.train.advice.names import names_code, names_outcome
from neocpu.train.advice.roles import is_code
from neocpu.train.advice.times import time_form
from neocpu.train.advice.write import ConfigDraft, Wishes, write_config
from neocpu.train.before.datasets import open_splits
from neocpu.train.config import config as configs
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.results import silent
from tests import recorded

ROWS = 300


def drafted(folder: Path, table: Mapping[str, Sequence[object]], **wishes: Any) -> ConfigDraft:
    """What `neocpu init` writes for a CSV of these columns, beside shop, which tells something."""
    path = folder / "log.csv"
    shops = {"shop": [f"s{number % 5}" for number in range(ROWS)]}
    pl.DataFrame({**shops, **table}, strict=False).write_csv(path)
    return write_config([path], folder / "log.toml", Wishes(**wishes))


def column_of(draft: ConfigDraft, name: str) -> LogColumn:
    (column,) = [column for column in draft.columns if column.name == name]
    return column


def train_data(folder: Path) -> Dataset:
    """The train part of the log, read by the config."""
    config = configs.load(folder / "log.toml")
    dataset = open_splits(config, SingleComm(), folder / "cache", silent).datasets["train"]
    assert isinstance(dataset, Dataset)
    return dataset


def clicks(every: int = 3) -> list[int]:
    draw = random.Random(every)
    return [int(draw.randrange(every) == 0) for _ in range(ROWS)]


@pytest.mark.parametrize(
    ("no", "yes", "positive"),
    [
        ("no", "yes", ["yes"]),
        ("N", "Y", ["Y"]),
        ("<=50K", ">50K", [">50K"]),
        ("- 50000.", "50000+.", ["50000+."]),
        ("no-click", "click", ["click"]),
        ("not_installed", "installed", ["installed"]),
        ("negative", "positive", ["positive"]),
        ("red", "blue", ["blue"]),  # neither says yes, and blue is rarer
    ],
)
def test_of_two_texts_the_one_that_says_yes_is_a_click(
    no: str, yes: str, positive: list[str], tmp_path: Path
) -> None:
    answers = [yes if one else no for one in clicks()]
    draft = drafted(tmp_path, {"what": answers}, label="what")
    label = column_of(draft, "what")
    assert (label.kind, list(label.positive)) == ("click", positive)
    labels = train_data(tmp_path).take(np.arange(240), []).labels
    assert labels is not None and labels.tolist() == clicks()[:240]


@pytest.mark.parametrize(("no", "yes"), [("no", "yes"), ("not_installed", "installed")])
def test_a_yes_that_is_frequent_is_still_the_click(no: str, yes: str, tmp_path: Path) -> None:
    draft = drafted(tmp_path, {"sold": [no if one else yes for one in clicks()]}, label="sold")
    assert column_of(draft, "sold").positive == (yes,)


def test_points_and_blanks_do_not_make_other_answers(tmp_path: Path) -> None:
    answers = [(">50K", ">50K.")[i % 2] if one else "<=50K" for i, one in enumerate(clicks())]
    draft = drafted(tmp_path, {"income": answers})
    assert set(column_of(draft, "income").positive) == {">50K", ">50K."}


def test_of_several_texts_the_user_says_which_are_clicks(tmp_path: Path) -> None:
    events = [("view", "cart", "buy")[number * 7 % 3] for number in range(ROWS)]
    with pytest.raises(ConfigError, match="has 3 texts, 'buy', 'cart', 'view'; say which"):
        drafted(tmp_path, {"event": events})
    with pytest.raises(ConfigError, match="never says bought"):
        drafted(tmp_path, {"event": events}, positive=["bought"])
    run(["init", str(tmp_path / "log.csv"), "--positive", "buy", "--out", str(tmp_path)])
    assert train_data(tmp_path).take(np.arange(3), []).labels.tolist() == [0, 0, 1]


def test_labels_of_two_numbers_and_ratings_have_a_threshold(tmp_path: Path) -> None:
    draft = drafted(tmp_path, {"risk": [1 + one for one in clicks()]}, label="risk")
    assert column_of(draft, "risk").threshold == 2
    assert train_data(tmp_path).take(np.arange(240), []).labels.tolist() == clicks()[:240]
    stars = [1 + number * 7 // 5 % 5 for number in range(ROWS)]
    draft = drafted(tmp_path, {"stars": stars})
    assert column_of(draft, "stars").kind == "number"
    assert "  to learn who likes it rather than the number: --threshold 4" in draft.said
    assert "# threshold = 4.0  # instead of kind" in draft.text
    draft = drafted(tmp_path, {"stars": stars}, threshold=4.0)
    assert configs.load(tmp_path / "log.toml").model.loss == "bce"
    labels = train_data(tmp_path).take(np.arange(5), []).labels
    assert labels is not None and labels.tolist() == [int(each > 3) for each in stars[:5]]


def test_a_label_of_large_numbers_is_said(tmp_path: Path) -> None:
    draft = drafted(
        tmp_path, {"year": [1980 + number % 31 for number in range(ROWS)]}, label="year"
    )
    assert any(line.startswith("careful: year is 199") for line in draft.said)
    draft = drafted(tmp_path, {"stars": [1 + number * 7 // 5 % 5 for number in range(ROWS)]})
    assert not any(line.startswith("careful") for line in draft.said)


def test_whole_numbers_that_tell_more_one_by_one_are_categories_as_well(tmp_path: Path) -> None:
    draw = random.Random(8)
    codes = [draw.randint(1, 30) for _ in range(ROWS)]
    sizes = [draw.randint(1, 30) for _ in range(ROWS)]
    click = [int(draw.random() < 0.1 + 0.6 * (x % 3 == 0) + y / 100) for x, y in zip(codes, sizes)]
    draft = drafted(tmp_path, {"click": click, "f1": codes, "f2": sizes})
    assert "numbers that are categories as well: f1" in draft.said
    assert [column_of(draft, name).role for name in ("f1", "f2")] == ["dense", "dense"]
    assert "f1_value" in train_data(tmp_path).features


def test_outcomes_are_left_out_and_taken_back(tmp_path: Path) -> None:
    draw = random.Random(5)
    outcomes = {
        "click": clicks(),
        "conversion": [draw.randrange(2) for _ in range(ROWS)],
        "watchTime": [draw.random() for _ in range(ROWS)],
        "clicks_30d": [draw.randrange(90) for _ in range(ROWS)],
    }
    draft = drafted(tmp_path, outcomes)
    (line,) = [line for line in draft.said if line.startswith("left out: conversion")]
    assert line.endswith("known only afterwards; --dense conversion takes it back")
    assert column_of(draft, "watchTime").role == "left out"
    assert column_of(draft, "clicks_30d").role == "dense"
    draft = drafted(tmp_path, outcomes, dense=["watchTime"], categories=["conversion"])
    assert column_of(draft, "watchTime").role == "dense"
    assert column_of(draft, "conversion").role == "category"


def test_orders_of_the_past_may_tell_who_leaves(tmp_path: Path) -> None:
    draw = random.Random(7)
    churn = clicks(2)
    orders = [draw.randrange(20) - 2 * one for one in churn]
    draft = drafted(tmp_path, {"churn": churn, "orders": orders, "age": orders[::-1]})
    assert column_of(draft, "orders").role == "dense"
    sold = [one if draw.random() < 0.7 else 0 for one in churn]
    draft = drafted(tmp_path, {"label": churn, "purchase": sold, "orders": orders})
    assert "an outcome by its name, and it tells label (AUC 0." in column_of(draft, "purchase").why
    assert column_of(draft, "orders").role == "dense"


@pytest.mark.parametrize("name", ["is_purchase", "dwell_time", "play_duration", "Rating", "order"])
def test_names_of_outcomes(name: str) -> None:
    assert names_outcome(name)


@pytest.mark.parametrize("name", ["user_clicks", "order_id", "price", "share", "like_rate_7d"])
def test_names_of_no_outcomes(name: str) -> None:
    assert not names_outcome(name)


def test_names_of_codes() -> None:
    assert all(map(names_code, ("userId", "User-ID", "itemid", "zip", "site", "movie_ids", "C id")))
    assert not any(map(names_code, ("paid", "bid", "humidity", "width", "price", "valid")))


def test_a_column_that_alone_tells_the_label_is_said(tmp_path: Path) -> None:
    label = clicks(2)
    # one row of a hundred goes against it, so that no value goes with one label only
    after = ["x" if one == (i % 100 > 0) else "y" for i, one in enumerate(label)]
    draft = drafted(tmp_path, {"click": label, "after": after})
    (line,) = [line for line in draft.said if line.startswith("careful: after alone tells click")]
    assert line.endswith("--leave-out after")
    assert not any(line.startswith("careful: shop") for line in draft.said)


TIMES: list[tuple[str, Sequence[object], str]] = [
    ("c3", [881_250_949 + 5003 * i for i in range(ROWS)], "unix"),
    ("c3", [881_250_949_000 + 5_003_000 * i for i in range(ROWS)], "unix_ms"),
    ("timestamp", [1_400_000_000.0 + 61 * i for i in range(ROWS)], "unix"),
    ("when", [f"{1_400_000_000 + 61 * i}.25" for i in range(ROWS)], "unix"),
    ("day", [f"2014{1 + i % 12:02d}{1 + i % 28:02d}" for i in range(ROWS)], "%Y%m%d"),
    ("seen", [f"2014-12-{1 + i % 28:02d} {i % 24:02d}" for i in range(ROWS)], "iso"),
    (
        "seen",
        [f"{1 + i % 28:02d}/{1 + i % 12:02d}/2014 12:30" for i in range(ROWS)],
        "%d/%m/%Y %H:%M",
    ),
    ("seen", [f"{1 + i % 12}/{1 + i % 28}/2014" for i in range(ROWS)], "%m/%d/%Y"),
    (
        "seen",
        [f"{1 + i % 12}/{1 + i % 28}/2019 {1 + i % 12}:30:00 PM" for i in range(ROWS)],
        "%m/%d/%Y %I:%M:%S %p",
    ),
    ("seen", [f"{1 + i % 12:02d} {1 + i % 28}, 2009" for i in range(ROWS)], "%m %d, %Y"),
    ("released", [f"{1 + i % 28:02d}-Jan-1995" for i in range(ROWS)], "%d-%b-%Y"),
    ("hour", [14102100 + i % 24 for i in range(ROWS)], "YYMMDDHH"),
    # names and measures are no times
    ("user_id", [881_250_949 + 5003 * i for i in range(ROWS)], ""),
    ("c3", [881_250_949 * (1 + i % 9) for i in range(ROWS)], ""),
    ("price", [1000 * i for i in range(ROWS)], ""),
    ("version", [f"{i % 3}.{i % 28}.{i % 9}" for i in range(ROWS)], ""),
    ("phone", [f"+41 {i:09d}" for i in range(ROWS)], ""),
]


@pytest.mark.parametrize(("name", "values", "form"), TIMES)
def test_times_are_known_by_name_and_by_values(
    name: str, values: Sequence[object], form: str
) -> None:
    time = time_form(name, pl.Series(name, values, strict=False), names_code(name))
    assert (time.form if time is not None else "") == form


@pytest.mark.parametrize("clock", [" %H:%M", ""])
def test_days_come_first_in_a_log_that_begins_on_days_that_may_be_months(
    clock: str, tmp_path: Path
) -> None:
    first = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    moments = [first + datetime.timedelta(minutes=14 * i) for i in range(5000)]
    form = f"%d/%m/%Y{clock}"
    times = [moment.strftime(form) for moment in moments]
    shops = [f"s{i * i % 9}" for i in range(5000)]
    label = [int(i % 3 == 0) for i in range(5000)]
    draft = drafted(tmp_path, {"click": label, "when": times, "shop": shops})
    assert column_of(draft, "when").time == form
    assert not any("careful: when" in line for line in draft.said)
    # the first days alone fit both: which was assumed is said
    table = {"click": label[:1000], "when": times[:1000], "shop": shops[:1000]}
    draft = drafted(tmp_path, table)
    column = column_of(draft, "when")
    assert (column.time, column.also) == (f"%m/%d/%Y{clock}", form)
    assert f"# when: %m/%d/%Y{clock} is assumed; {form} fits all" in draft.text
    assert f"careful: when is read as %m/%d/%Y{clock}, but {form} fits" in "\n".join(draft.said)


@pytest.mark.parametrize("least", [2**60, 2**62, 2**63, 2**64 - 51])
def test_names_that_fp64_does_not_tell_apart_are_codes(least: int, tmp_path: Path) -> None:
    dtype = pl.Int64 if least < 2**62 else pl.UInt64
    numbers = [least + i * 7 % 51 for i in range(ROWS)]
    table: dict[str, Any] = {"click": clicks(), "number": pl.Series(numbers, dtype=dtype)}
    assert column_of(drafted(tmp_path, table), "number").role == "category"
    assert is_code("number", table["number"], 51)
    assert is_code("number", table["number"].cast(pl.String), 51)


def test_words_among_times_are_missing_ones(tmp_path: Path) -> None:
    times: list[str] = [f"2024-01-{1 + i % 28:02d} 05:00:00" for i in range(ROWS)]
    times[7] = times[90] = "unknown"
    draft = drafted(tmp_path, {"click": clicks(), "seen": times})
    assert column_of(draft, "seen").time == "iso"
    hours = train_data(tmp_path).take(np.arange(ROWS * 8 // 10)).features["seen_hour"].codes
    assert sorted(set(hours.tolist())) == [0, 6] and hours[7] == 0


def test_a_number_among_times_is_no_word_for_a_missing_one(tmp_path: Path) -> None:
    times = [f"2024-01-{1 + i % 28:02d} 05:00:00" for i in range(ROWS)]
    times[7] = "-1"  # which may be a value of other columns
    assert column_of(drafted(tmp_path, {"click": clicks(), "seen": times}), "seen").role != "time"


def test_texts_among_numbers_are_missing_ones(tmp_path: Path) -> None:
    numbers: list[object] = [number / 7 for number in range(ROWS)]
    numbers[5] = numbers[9] = "12 kg"
    draft = drafted(tmp_path, {"click": clicks(), "weight": numbers})
    assert "weight: 2 texts are no numbers and count as missing" in draft.said
    dense = train_data(tmp_path).take(np.arange(10), []).dense
    assert dense[5] == dense[9] == 0 and dense[4] != 0


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([5, 17, 290], "int"),
        ([-5, 0, 12], "int"),
        (["5", "17", "290"], "int"),
        (["007", "017", "290"], "text"),
        (["+5", "17", "290"], "text"),
        (["5", "17", "1234567890123456789012"], "text"),
        (["5", "x", "290"], "text"),
    ],
)
def test_codes_that_are_integers_are_read_as_integers(
    values: list[object], kind: str, tmp_path: Path
) -> None:
    codes = [values[number % 3] for number in range(ROWS)]
    draft = drafted(tmp_path, {"click": clicks(), "user_id": codes})
    assert column_of(draft, "user_id").kind == kind
    train_data(tmp_path)


def test_integers_have_one_code_whatever_they_are_stored_as(tmp_path: Path) -> None:
    codes = [None if number % 7 == 0 else 1000 + number % 40 for number in range(ROWS)]
    table = {"click": clicks(), "user_id": codes}
    drafted(tmp_path, table)
    file = train_data(tmp_path).take(np.arange(ROWS * 8 // 10)).features["user_id"].codes
    schema = table_schema(configs.load(tmp_path / "log.toml").data.schema)
    floats = pl.DataFrame(table).with_columns(
        pl.col("user_id").cast(pl.Float64).fill_null(math.nan), shop=pl.lit("s")
    )
    for frame in (floats, floats.with_columns(pl.col("user_id").fill_nan(None).cast(pl.Int32))):
        assert parse_frame(frame, schema).features["user_id"].codes[: len(file)].tolist() == (
            file.tolist()
        )


def test_a_frame_of_whole_floats_has_integer_codes(tmp_path: Path) -> None:
    codes = pl.Series([None if i % 7 == 0 else float(i % 40) for i in range(ROWS)])
    path = tmp_path / "log.parquet"
    pl.DataFrame({"click": clicks(), "user_id": codes}).write_parquet(path)
    draft = write_config([path], tmp_path / "log.toml", Wishes())
    assert column_of(draft, "user_id").kind == "int"
    assert train_data(tmp_path).rows == 240


def test_numbers_as_text_lists_are_vectors_where_they_are_as_many(tmp_path: Path) -> None:
    draw = random.Random(3)
    vectors = [" ".join(f"{draw.gauss(0, 1):.3f}" for _ in range(3)) for _ in range(ROWS)]
    whole = ["|".join(str(draw.randrange(5)) for _ in range(3)) for _ in range(ROWS)]
    table = {"click": clicks(), "emb": vectors, "tags": whole}
    draft = drafted(tmp_path, table)
    assert (column_of(draft, "emb").width, column_of(draft, "tags").role) == (3, "list")
    draft = drafted(tmp_path, table, dense=["tags"])
    assert (column_of(draft, "tags").width, column_of(draft, "tags").separator) == (3, "|")
    assert train_data(tmp_path).dense_columns == (
        *("emb.0", "emb.1", "emb.2", "tags.0", "tags.1", "tags.2"),
    )
    path = tmp_path / "ragged.parquet"
    ragged = [[0.5] * (1 + number % 2) for number in range(ROWS)]
    pl.DataFrame({"click": clicks(), "tags": ragged}).write_parquet(path)
    with pytest.raises(ConfigError, match="not as many in each row; it cannot be dense"):
        write_config([path], tmp_path / "log.toml", Wishes(dense=["tags"]))


def test_rounded_amounts_are_no_codes(tmp_path: Path) -> None:
    draw = random.Random(4)
    table = {
        "click": clicks(),
        "limit": [10_000 * draw.randint(1, 50) for _ in range(ROWS)],
        "maker": [draw.choice([7_919, 104_729, 1_299_709]) for _ in range(ROWS)],
        "number": [276_700 + draw.randrange(60) for _ in range(ROWS)],
    }
    draft = drafted(tmp_path, table)
    roles = [column_of(draft, name).role for name in ("limit", "maker", "number")]
    assert roles == ["dense", "category", "category"]


def test_a_log_of_numbers_only_learns_what_is_not_in_proportion(tmp_path: Path) -> None:
    draw = np.random.default_rng(6)
    height = draw.normal(172, 9, 1500).round(1)
    age = draw.integers(18, 80, 1500)
    odds = 4 * np.cos((height - 172) / 5) + 2 * (age % 3 == 0) - 1
    click = (draw.random(1500) < 1 / (1 + np.exp(-odds))).astype(int)
    path = tmp_path / "log.csv"
    pl.DataFrame({"height": height, "age": age, "click": click}).write_csv(path)
    draft = write_config([path], tmp_path / "log.toml", Wishes())
    assert "numbers that are categories as well: height, age" in draft.said
    config = configs.load(tmp_path / "log.toml", ["training.epochs=3"])
    assert [table.name for table in config.tables] == ["height_bucket", "age_value"]
    assert config.data.schema["category"][0]["buckets"] == 1500 // 50  # rows of a bucket
    assert config.data.schema["dense"][0]["transform"] == "standard"
    summary = Trainer(config, None, tmp_path / "run").run()
    assert summary["metrics"]["test"]["auc"] > 0.85


def test_numbers_with_texts_among_them_have_no_buckets(tmp_path: Path) -> None:
    heat = [f"{number / 7:.2f}" for number in range(ROWS)]
    heat[5] = "error"  # for which there is no bucket
    path = tmp_path / "log.csv"
    size = [number * 7 % 50 / 2 for number in range(ROWS)]
    pl.DataFrame({"click": clicks(), "heat": heat, "size": size}).write_csv(path)
    draft = write_config([path], tmp_path / "log.toml", Wishes())
    assert "numbers that are categories as well: size" in draft.said
    assert train_data(tmp_path).rows == ROWS * 8 // 10


VECTOR = pl.Array(pl.Float64, 2)
NUMBERS = [number % 9 for number in range(ROWS)]
DAYS = [datetime.date(2024, 1, 1) + datetime.timedelta(days=number) for number in NUMBERS]


@pytest.mark.parametrize(
    ("values", "role"),
    [
        (pl.Series(map(str, NUMBERS)).cast(pl.Categorical), "category"),
        (pl.Series([number > 4 for number in NUMBERS]), "category"),
        (pl.Series([Decimal(number) / 2 for number in NUMBERS]), "dense"),
        (pl.Series([number * 2**60 for number in NUMBERS], dtype=pl.UInt64), "category"),
        (pl.Series([math.inf if number > 7 else number / 2 for number in NUMBERS]), "dense"),
        (pl.Series([math.nan if number > 4 else number / 2 for number in NUMBERS]), "dense"),
        (pl.Series(DAYS), "time"),
        (pl.Series([datetime.timedelta(hours=number) for number in NUMBERS]), "left out"),
        (pl.Series([bytes([number]) for number in NUMBERS]), "left out"),
        (pl.Series([b"s%d" % number for number in NUMBERS]), "category"),
        (pl.Series([None] * ROWS), "left out"),
        (pl.Series([[number, 3] for number in NUMBERS]), "list"),
        (
            pl.Series([[number / 2, 3] for number in NUMBERS], dtype=pl.Array(pl.Float64, 2)),
            "dense",
        ),
        (pl.Series([[[number]] for number in NUMBERS]), "left out"),
    ],
    ids=lambda value: f"{value.dtype}-{value[0]}" if isinstance(value, pl.Series) else "",
)
def test_columns_of_every_type_are_read_or_left_out(
    values: pl.Series, role: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.parquet"
    shops = [f"s{number % 5}" for number in range(ROWS)]
    name = "a b/c"  # as no file may be called
    pl.DataFrame({"click": clicks(), "shop": shops, name: values}).write_parquet(path)
    draft = write_config([path], tmp_path / "log.toml", Wishes())
    assert column_of(draft, name).role == role
    assert train_data(tmp_path).rows == ROWS * 8 // 10


SMALL_LOGS = (
    "a,b",
    "1,2",
    "a,b\n1,2\n3,4",
    "x y,z\n1 2,3\n4 5,6",
    "a;b;c\n1;2;3,5\n4;5;6",
    'a,b\n"x,1",2\n"y",3',
    'a\tb\nx"y\tz\nu\tv',
    "a::b\n1::2\n3::4",
    "a|b\n1|2",
    "a,a\n1,2",
    ",b\n0,2\n1,3",
    "# made by us\n# twice\na,b\n1,2\n3,4",
    "#a,b\n1,2\n3,4",
    "id,when\nnumber,date\n1,2\n3,4",
    "id,when\nnumber,date\n1,x\n3,y",
    "user_id:token\ttags:token_seq\tv:float_seq\tx:float\n1\ta b\t1 2\t3",
)
LABELS: tuple[list[Any], ...] = (
    [0, 1, 0],
    [1, 2, 2],
    [0.0, 1.0],
    [7, 7],
    [3, 9],
    [1, 2, 3],
    [1, 2, 4, 5],
    [0, 5, 10],
    [*range(11)],
    [*range(20)],
    [*range(21)],
    [0.5, 1.5, 2.5],
    ["no", "yes"],
    [" Yes.", "no", "yes"],
    ["<=50K", ">50K"],
    ["-", "50+"],
    ["not_bought", "bought"],
    ["a", "b", "a"],
    ["x", "y", "z"],
    [f"t{i}" for i in range(21)],
    [0, 1, None],
)
TIMES_OF_LOGS: tuple[tuple[str, list[Any]], ...] = (
    ("t", ["2024-01-01", "2024-02-03"]),
    ("t", ["2024-01-01T10:00:00", "2024-02-03 11:30", "n/a"]),
    ("time", [631_152_000, 631_152_001]),
    ("time", [631_151_999, 2_208_988_801]),
    ("n", [1_700_000_000 + 30 * i for i in range(9)]),
    ("n", [1_700_000_000 + 86_400 * i for i in range(9)]),
    ("n", [1_700_000_000_000 + 86_400_000 * i for i in range(9)]),
    ("n", [1_000_000_000 + 10**8 * i for i in range(12)]),
    ("hour", ["14102100", "14103023"]),
    ("n", ["14102100", "14103023"]),
    ("day", ["20240131", "20240201"]),
    ("day", ["20240132", "20240201"]),
    ("day", ["1990010203", "2040123123"]),
    ("t", ["20240131102030", "20240201112131"]),
    ("t", ["31.12.2024", "01.02.2023"]),
    ("t", ["12/31/2024 10:20", "01/02/2023 11:21"]),
    ("t", ["31/12/2024", "01/02/2023"]),
    ("t", ["3 Jan 2024", "14 Feb 2023"]),
    ("t", ["Jan 3, 2024", "Feb 14, 2023"]),
    ("t", ["abc", "def"]),
    ("t", []),
)


def said(look: Callable[..., object], *arguments: Any) -> str:
    """What is returned, or raised, as text."""
    try:
        return str(look(*arguments))
    except ConfigError as error:
        return str(error)


def test_small_logs_look_as_they_did_when_it_was_recorded() -> None:
    entries = []
    for log in SMALL_LOGS:
        lines = log.split("\n")
        comment = said(guess_comment, lines) if len(lines) > 1 else ""
        dialect = guess_dialect(lines)
        entries += [comment, str(dialect), str(column_names(lines, dialect))]
        entries.append(str(typed_hints(lines, dialect)))
    for values in LABELS:
        series = pl.Series("y", values)
        entries += [said(label_column, series), said(rating_threshold, series)]
        entries.append(said(label_column, series, (), 2.0))
        frame = pl.DataFrame({"x": [9] * len(values), "y": values})
        entries += [said(guess_label, frame, header) for header in (True, False)]
    for name, values in TIMES_OF_LOGS:
        series = pl.Series(name, values, pl.String if not values else None)
        entries += [said(time_form, name, series, is_code) for is_code in (True, False)]
    recorded.check("looks at small logs", [(entry, []) for entry in entries])


@pytest.mark.parametrize("levels", [[1, 2], [0, 1, 2], [1, 2, 3, 4, 5]])
def test_without_names_the_one_scale_is_the_label(levels: list[int]) -> None:
    frame = pl.DataFrame({"0": ["u", "v"] * 15, "1": [9, 3, 4] * 10, "2": (levels * 30)[:30]})
    assert guess_label(frame, header=False) == "2"
    with pytest.raises(ConfigError, match="which column is the label"):
        guess_label(frame)
