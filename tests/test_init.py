"""Does `neocpu init` write a config that trains at once, from any log?"""

import gzip
import random
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import neocpu
from neocpu.cli import run
from neocpu.core.errors import ConfigError, DataError
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.parallel.transport.comm import SingleComm
from neocpu.train.advice.columns import by_role
from neocpu.train.advice.dialect import guess_dialect
from neocpu.train.advice.look import look
from neocpu.train.advice.roles import Roles, columns_of
from neocpu.train.advice.sizes import sizes_of
from neocpu.train.advice.write import Wishes, write_config
from neocpu.train.before.datasets import open_splits
from neocpu.train.config import config as configs
from neocpu.train.config.defaults import batch_of
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.complaints import colliding
from neocpu.train.watch.results import silent
from tests import recorded

CRITEO = Path(__file__).parent.parent / "data" / "tiny-criteo-train.tsv.gz"
ROWS = 400


def clicks(rows=ROWS):
    """A table of clicks with every role: name -> values."""
    draw = random.Random(1)
    shops = [draw.choice(["north, main", "south", "east"]) for _ in range(rows)]
    click = [int(draw.random() < (0.5 if shop == "south" else 0.2)) for shop in shops]
    return {
        "request": [f"r{number:05d}" for number in range(rows)],
        "clicked": click,
        "shop": shops,
        "item_id": [draw.randrange(1000, 1080) for _ in range(rows)],
        "price": [round(draw.random() * 90, 2) for _ in range(rows)],
        "score": [round(draw.gauss(0, 1), 3) for _ in range(rows)],
        "tags": ["|".join(draw.sample("abcdefgh", draw.randint(1, 3))) for _ in range(rows)],
        "paid": ["yes" if one else "no" for one in click],
        "country": ["CH"] * rows,
        "when": [f"2024-01-{1 + number // 20:02d} 0{number % 10}:00:00" for number in range(rows)],
        "age": [draw.choice(["NULL", str(draw.randint(-90, 90))]) for _ in range(rows)],
    }


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "clicks.csv"
    pl.DataFrame(clicks()).write_csv(path)
    return path


def roles_of(path, roles=None):
    found = by_role(columns_of(look([path]), roles or Roles()))
    return {role: [column.name for column in columns] for role, columns in found.items()}


def test_each_column_gets_the_role_that_its_values_show(csv, tmp_path):
    expected = {
        "left out": ["request", "paid", "country"],
        "label": ["clicked"],
        "category": ["shop", "item_id"],
        "dense": ["price", "score", "age"],
        "list": ["tags"],
        "time": ["when"],
    }
    assert roles_of(csv) == expected
    pl.DataFrame(clicks()).write_parquet(tmp_path / "clicks.parquet")
    assert roles_of(tmp_path / "clicks.parquet") == expected
    named = Roles(categories=["price"], left_out=["shop"], dense=["item_id"])
    found = roles_of(csv, named)
    assert found["category"] == ["price"]
    assert found["dense"] == ["item_id", "score", "age"]
    assert "shop" in found["left out"]


@pytest.mark.parametrize(("no", "yes"), [("-1", "1"), ("0.0", "1.0"), ("FALSE", "TRUE")])
def test_words_for_no_and_yes_are_clicks(no, yes, tmp_path):
    path = tmp_path / "a.csv"
    lines = [f"{yes if i % 3 else no},v{i % 7},{i % 11}.0\n" for i in range(ROWS)]
    path.write_text("bought,site/shop.x,price in $\n" + "".join(lines))
    drafted = write_config([path], tmp_path / "a.toml", Wishes())
    assert f"label: bought, its values are {no} and {yes}" in drafted.said
    config = configs.load(tmp_path / "a.toml")
    assert config.model.loss == "bce"
    assert [table.name for table in config.tables] == ["site_shop.x"]  # as a file may be called
    splits = open_splits(config, SingleComm(), tmp_path / "cache", silent)
    clicks = splits.datasets["train"].take(np.arange(3), []).labels
    assert clicks.tolist() == [0, 1, 1]


def test_names_of_whole_numbers_are_categories_and_other_numbers_are_not(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "userId,movieId,rating\n" + "".join(f"{i % 9},{i % 7},{i % 5}\n" for i in range(90))
    )
    assert roles_of(path) == {"category": ["userId", "movieId"], "label": ["rating"]}
    lines = [f"{int(i % 3 == 0)},{i % 50},{i % 7 / 2}\n" for i in range(ROWS)]
    path.write_text("y,film,share\n" + "".join(lines))
    assert roles_of(path) == {"label": ["y"], "dense": ["film", "share"]}


def test_forms_of_other_countries_are_read(tmp_path):
    path = tmp_path / "a.csv"
    lines = [
        f"{i % 2};v{i % 7};{i % 9}.000,50;{1 + i % 28:02d}.03.2024 12:{i % 60:02d}\n"
        for i in range(90)
    ]
    path.write_text("click;item;price;seen\n" + "".join(lines))
    drafted = write_config([path], tmp_path / "a.toml", Wishes())
    said = "\n".join(drafted.said)
    assert "numbers: price" in said
    assert configs.load(tmp_path / "a.toml").data.schema["decimal"] == ","
    assert "times: seen" in said


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{'user': 'a', 'played': True}\n", "Python dicts, not JSON"),
        ("1:\n1488844,3,2005-09-06\n", "sections, under lines as '1:'"),
    ],
)
def test_texts_that_are_no_tables_are_named(text, fault, tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(text * 9)
    with pytest.raises(DataError, match=fault):
        look([path])


def test_lists_in_brackets_are_left_out_and_said(tmp_path):
    path = tmp_path / "a.csv"
    lines = [f"{i % 2},\"[0.{i % 7}, 0.5]\",\"['a', 'b{i % 3}']\",v{i % 5}\n" for i in range(90)]
    path.write_text("click,vector,tags,item\n" + "".join(lines))
    assert roles_of(path)["left out"] == ["vector", "tags"]


@pytest.mark.parametrize(
    ("header", "comment"),
    [(",X1,X2\ny,b,c", ","), ("# from SNAP\n# nodes: 9\ny,b,c", "#"), ("#y,b,c", "")],
)
def test_lines_ahead_of_the_header_are_no_rows(header, comment, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n" + "".join(f"{i % 2},{i % 7},{i % 5}\n" for i in range(90)))
    log = look([path])
    assert log.frame.columns == header.split("\n")[-1].split(",") and log.rows == 90
    assert log.dialect.comment == comment


def test_a_label_of_one_value_and_a_single_row_are_said(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("click,item\n" + "".join(f"1,v{i % 7}\n" for i in range(ROWS)))
    drafted = write_config([path], tmp_path / "a.toml", Wishes())
    label = next(line for line in drafted.said if line.startswith("label: "))
    assert label.startswith(
        "label: click, it is 1 in all rows, so there is nothing to learn. A log"
    )
    assert "categories: item" in drafted.said
    path.write_text("click,item\n" + "".join(f"{i % 2},v\n" for i in range(ROWS)))
    with pytest.raises(ConfigError, match="no column looks like a category or a number"):
        write_config([path], tmp_path / "b.toml", Wishes())
    for text, fault in (("click,item\n1,v\n", "one row only"), ("click,item\n", "no rows")):
        path.write_text(text)
        with pytest.raises(DataError, match=f"has {fault}"):
            write_config([path], tmp_path / "b.toml", Wishes())


def test_the_label_is_asked_for_where_nothing_shows_it(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "".join(f"x{i % 3},{i % 5}\n" for i in range(40)))
    with pytest.raises(ConfigError, match=r"which column is the label.*--label COLUMN"):
        roles_of(path)
    with pytest.raises(ConfigError, match="no column 'c'; the log has 'a', 'b'"):
        roles_of(path, Roles(label="c"))


def test_clk_is_a_click_as_in_logs_of_alimama(tmp_path):
    path = tmp_path / "raw_sample.csv"
    rows = [f"u{i % 7},{int(i % 3 > 0)},{int(i % 3 == 0)}\n" for i in range(60)]
    path.write_text("user,nonclk,clk\n" + "".join(rows))
    assert roles_of(path)["label"] == ["clk"] and "nonclk" in roles_of(path)["left out"]
    path.write_text(path.read_text().replace("nonclk,clk", "a,b"))
    with pytest.raises(ConfigError, match=r"2 columns hold 0 and 1 only.*the log has [^.]*$"):
        roles_of(path)


def test_dense_columns_have_the_kind_and_transform_of_their_numbers(tmp_path):
    draw = np.random.default_rng(2)
    normal = draw.normal(size=ROWS)
    table = {
        "y": draw.integers(0, 2, ROWS),
        "halves": (2 * normal).round() / 2,
        "whole": draw.integers(-5, 6, ROWS).astype(float),
        "wide": np.abs(normal) * 1e6,
        "signed": normal * 1e6,
        "above 0": np.linspace(0.5, 1e6 + 0.5, ROWS),
        "from 0": np.arange(ROWS) * 1000.0,
        "to 0": np.arange(-ROWS + 1, 1) * 1000.0,
    }
    path = tmp_path / "log.parquet"
    pl.DataFrame(table).write_parquet(path)
    roles = Roles(label="y", dense=tuple(table)[1:])
    dense = by_role(columns_of(look([path]), roles))["dense"]
    assert [(column.name, column.kind, column.transform) for column in dense] == [
        ("halves", "float", "none"),
        ("whole", "int", "standard"),
        ("wide", "float", "standard"),
        ("signed", "float", "standard"),
        ("above 0", "float", "standard"),
        ("from 0", "int", "standard"),
        ("to 0", "int", "standard"),
    ]


@pytest.mark.parametrize(
    ("lines", "dialect"),
    [
        (["a,b", "1,2"], (",", '"', True)),
        (["1\t2", "3\t4"], ("\t", "", False)),
        (["y;t", '1;"a;b"', "0;c"], (";", '"', True)),
        (["x|y|z", "1|p|q"], ("|", "", True)),
        # a name that is a value, too, is none, unless there are numbers below
        (["a,b", "a,1", "b,c"], (",", '"', True)),
        (["a,b", "a,x", "c,y"], (",", '"', False)),
    ],
)
def test_delimiter_quotes_and_header_are_guessed(lines, dialect):
    guessed = guess_dialect(lines)
    assert (guessed.delimiter, guessed.quote, guessed.header) == dialect


def test_a_known_log_is_known_and_only_a_part_of_a_large_one_is_read(tmp_path):
    log = look([CRITEO])
    assert log.kind == "criteo" and log.whole
    path = tmp_path / "large.tsv"
    path.write_bytes(gzip.decompress(CRITEO.read_bytes()) * 2)
    part = look([path], looked_at=1 << 20)
    assert not part.whole
    assert part.rows == pytest.approx(2 * log.rows, rel=0.05)
    columns = by_role(columns_of(part, Roles()))["category"]
    assert max(column.grown / column.distinct for column in columns) > 1.1


def without_folders(path):
    """A config that names files without their folders, which are those of this machine."""
    return re.sub(r'"[^"\n]*/(?=[^/"\n]+")', '"', path.read_text())


def edges(rows=100):
    """A table whose columns lie on both sides of what divides the roles."""
    number = range(rows)
    label = [int(i * 7 % 10 < 3) for i in number]
    return {
        "label": label,
        "unique of 97": [f"u{min(i, 96)}" for i in number],
        "unique of 98": [f"u{min(i, 97)}" for i in number],
        "lists of 19": ["a|b" if i < 19 else f"c{i % 3}" for i in number],
        "lists of 20": ["a|b" if i < 20 else f"c{i % 3}" for i in number],
        "weighted": [f"a:{i % 4}.5|b:1" if i % 2 else "c:2" for i in number],
        "numbers of 98": [str(i * 7 % 31 / 4) if i < 98 else "x" for i in number],
        "numbers of 99": [str(i * 7 % 31 / 4) if i < 99 else "x" for i in number],
        "up to 5": [i % 21 / 2 - 5 for i in number],
        "up to 6": [i % 23 / 2 - 5 for i in number],
        "from 999": [999 + i * i % 10 * 500 for i in number],
        "from 1000": [1000 + i * i % 10 * 500 for i in number],
        "dense gaps": [1000 + i * i % 10 * 50 for i in number],
        "many gaps": [1000 + i % 50 * 500 for i in number],
        "few gaps": [1000 + i % 49 * 500 for i in number],
        "shop_id": [i % 9 for i in number],
        "ts": [1_700_000_000 + i * 3600 for i in number],
        "not seen": [1_700_000_000 + i % 40 * 3600 for i in number],
        "day": [f"2024-01-{1 + i % 28:02d}" for i in number],
        "hour": [f"2401{1 + i % 28:02d}{i % 24:02d}" for i in number],
        "given away": [f"{'no' if label[i] else 'yes'}{i % 5}" for i in number],
        "half given": [f"g{label[i]}" if i < 50 else f"h{i}" for i in number],
        "more given": [f"g{label[i]}" if i < 52 else f"h{i}" for i in number],
        "rare": [f"r{i % 3}" if i % 4 else "" for i in number],
        "one": [1] * rows,
    }


def test_roles_at_the_edges_are_those_that_were_recorded(tmp_path):
    path = tmp_path / "edges.csv"
    pl.DataFrame(edges()).write_csv(path)
    for least in (1, 3):
        columns = columns_of(look([path]), Roles(min_count=least))
        recorded.check(f"roles from {least}", [(str(column), []) for column in columns])
    drafted = write_config([path], tmp_path / "a.toml", Wishes())
    text = "\n".join([drafted.text, *drafted.said]).replace(str(tmp_path), "")
    recorded.check("config for edges", recorded.lines_of(text))


@pytest.mark.parametrize("source", ["criteo", "csv"])
def test_the_config_trains_at_once(source, csv, tmp_path, capsys):
    data = CRITEO if source == "criteo" else csv
    run(["init", str(data), "--out", str(tmp_path)])
    said = capsys.readouterr().out
    (path,) = tmp_path.glob("*.toml")
    assert f"neocpu train {path}" in said and "label: " in said and "careful" not in said
    recorded.check(f"config for {source}", recorded.lines_of(without_folders(path)))
    config = configs.load(path, ["training.steps=3"])
    summary = Trainer(config, None, tmp_path / "run").run()
    assert summary["steps"] == 3 and summary["metrics"]["test"]["samples"] > 0


def test_from_python_a_frame_becomes_a_config(tmp_path):
    path = neocpu.init(clicks(), tmp_path, label="clicked", left_out=["score"])
    config = configs.load(path)
    names = ["shop", "item_id", "tags", "when_hour", "when_weekday"]
    assert [table.name for table in config.tables] == names
    dense = config.data.schema["dense"]
    assert [(group["columns"], group["transform"]) for group in dense] == [
        (["price"], "standard"),
        (["age"], "standard"),
    ]
    assert (tmp_path / "data.parquet").exists()
    with pytest.raises(ConfigError, match="exists; force=True replaces it"):
        neocpu.init(clicks(), tmp_path)
    with pytest.raises(DataError, match="no table"):
        neocpu.init(3, tmp_path / "b")


def test_a_split_is_parts_of_one_file_in_its_order(tmp_path):
    text = f"""
[data]
train = "{CRITEO}"
split = [0.5, 0.3, 0.2]
rows_by = "vocabulary"
min_count = 3
[tables]
C1.rows = 3000
"""
    splits = open_splits(configs.loads(text), SingleComm(), tmp_path, silent)
    whole = Dataset(splits.datasets["train"].paths)
    sizes = [splits.datasets[name].rows for name in ("train", "valid", "test")]
    assert sum(sizes) == whole.rows and sizes[0] == round(0.5 * whole.rows)
    first = splits.datasets["test"].take(splits.datasets["test"].rows * 0 + _numbers(5))
    expected = whole.take(_numbers(5) + sizes[0] + sizes[1])
    assert (first.dense == expected.dense).all()
    assert (first.features["C1"].codes == expected.features["C1"].codes).all()
    codes = pl.Series(whole.take(_numbers(sizes[0])).features["C1"].codes).value_counts()
    vocabulary = splits._vocabularies["C1"]
    assert set(vocabulary.tolist()) == set(codes.filter(pl.col("count") >= 3)[:, 0].to_list())
    for wrong in ("[0.5, 0.5]", "[0.5, 0.4, 0.2]", "[0.0, 0.5, 0.5]"):
        with pytest.raises(ConfigError, match=r"data.split: give three shares"):
            configs.loads(text, "a.toml", [f"data.split={wrong}"])
    with pytest.raises(ConfigError, match=r"data.split: it makes valid and test"):
        configs.loads(text, "a.toml", ["data.test=x.h5"])


def _numbers(count):
    import numpy as np

    return np.arange(count)


def test_sizes_follow_the_number_of_samples():
    assert [batch_of(10**power) for power in (2, 4, 5, 6, 9)] == [16, 16, 32, 128, 2048]
    assert colliding(1000, 1000) == pytest.approx(0.63, abs=0.01)
    assert colliding(1000, 10_000) < 0.1


def test_no_log_is_overwritten_by_its_config(csv, tmp_path):
    log = tmp_path / "log.toml"
    log.write_bytes(csv.read_bytes())
    (tmp_path / "other.toml").hardlink_to(log)
    for target in (log, tmp_path / "other.toml"):
        with pytest.raises(DataError, match="is read by the same command"):
            write_config([log], target, Wishes())
        with pytest.raises(DataError, match="is read by the same command"):
            write_config([csv], target, Wishes(valid=(str(log),)))
    assert log.read_bytes() == csv.read_bytes()


def test_a_log_that_is_sorted_by_its_label_is_said(tmp_path):
    path = tmp_path / "sorted.csv"
    rows = sorted(range(ROWS), key=lambda number: number % 5 == 0)
    lines = [f"{int(number % 5 == 0)},v{number % 7}\n" for number in rows]
    path.write_text("click,value\n" + "".join(lines))
    drafted = write_config([path], tmp_path / "a.toml", Wishes())
    assert any(line.startswith("careful: ") for line in drafted.said)


def test_lines_of_endless_fields_are_no_table(tmp_path):
    (tmp_path / "log.csv").write_text("a,b\n" + "x" * 200_000 + ",1\n")
    with pytest.raises(DataError, match="its first lines cannot be cut into fields"):
        look([tmp_path / "log.csv"])


def test_a_small_log_gets_what_serves_it(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("click,item\n" + "".join(f"{i % 2},v{i % 7}\n" for i in range(4_000)))
    write_config([path], tmp_path / "a.toml", Wishes())
    settings = configs.load(tmp_path / "a.toml")
    assert settings.model.interaction == "cat"
    assert settings.eval.baseline
    # 3,200 samples are 200 steps of 16: a tenth of the pass
    assert settings.eval.ema == 0.95
    log = look([path])
    for samples, interaction, ema in (
        (100, "cat", 0.0),
        (59_999, "cat", 0.995),
        (60_000, "dot", 0),
    ):
        sizes = sizes_of(log, samples)
        assert (sizes.interaction, sizes.ema) == (interaction, pytest.approx(ema, abs=1e-3))


def test_quotes_may_come_late(tmp_path):
    path = tmp_path / "a.csv"
    users = ['""' if i == 300 else str(i % 40) for i in range(ROWS)]
    path.write_text("click,user\n" + "".join(f"{i * i % 7 % 2},{u}\n" for i, u in enumerate(users)))
    drafted = write_config([path], tmp_path / "a.toml", Wishes())
    (user,) = by_role(drafted.columns)["category"]
    assert (user.kind, user.distinct) == ("int", 40) and user.missing == pytest.approx(1 / ROWS)
    assert configs.load(tmp_path / "a.toml").data.schema["quote"] == '"'


def test_a_header_that_names_a_column_twice_is_a_header(tmp_path):
    path = tmp_path / "log.csv"
    rows = [f"{i % 3 % 2},{i % 7}.5,{i % 4},s{i % 5}" for i in range(60)]
    path.write_text("\n".join(["is_click,x, x,k", *rows]) + "\n")
    with pytest.raises(DataError, match=r"its first line names 'x' more than once; give each"):
        look([path])
    # rows of texts that agree are no header
    path.write_text("1,a,a,s1\n" + "0,a,b,s2\n" * 60)
    assert look([path]).frame.columns == ["c0", "c1", "c2", "c3"]


def test_a_column_without_a_name_weighs_nothing(tmp_path):
    path = tmp_path / "log.parquet"
    pl.DataFrame({"y": [0, 1] * 9, "": [1, 2] * 9, "c": ["a", "b", "c"] * 6}).write_parquet(path)
    assert roles_of(path)["left out"] == [""]


def test_a_column_weighs_rows(csv, tmp_path):
    weights = [1 + i % 3 for i in range(ROWS)]
    path = tmp_path / "my log.csv"
    pl.DataFrame({**clicks(), "weight": weights}).write_csv(path)
    assert run(["init", str(path), "--weight", "weight", "--out", str(tmp_path / "a.toml")]) == 0
    drafted = configs.load(tmp_path / "a.toml")
    assert drafted.data.sample_weight == "weight" and "weight" not in drafted.data.schema["dense"]
    splits = open_splits(drafted, SingleComm(), tmp_path / "cache", silent)
    assert splits.datasets["train"].more_label("weight").tolist() == weights[: ROWS * 8 // 10]
    # without it, the message says what to write
    plain = neocpu.init(path, tmp_path / "b.toml", left_out=["weight"])
    unknown = configs.load(plain, ["data.sample_weight=weight"])
    with pytest.raises(DataError, match=r"no label 'weight' .*\[\[data.schema.label\]\] with colu"):
        Trainer(unknown, SingleComm(), tmp_path / "run").run()
    for weight, fault in (
        ("clicked", "it is the label"),
        ("shop", "each row needs a number there"),
        ("score", "from 0 on"),
        ("none", "no column 'none'"),
    ):
        with pytest.raises(ConfigError, match=fault):
            neocpu.init(path, tmp_path / "c.toml", weight=weight)
    with pytest.raises(ConfigError, match="the columns of this log are known"):
        neocpu.init(CRITEO, tmp_path / "c.toml", weight="I1")


def test_commands_are_quoted_for_a_shell(csv, tmp_path, capsys):
    target = tmp_path / "train log.toml"
    assert run(["init", str(csv), "--out", str(target)]) == 0
    assert capsys.readouterr().out.endswith(f"neocpu train '{target}'\n")
    assert "#   neocpu train 'train log.toml'\n" in target.read_text()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_test_file_without_labels_is_refused(csv, kind, tmp_path):
    path = tmp_path / f"test.{kind}"
    frame = pl.DataFrame(clicks()).drop("clicked")
    frame.write_csv(path) if kind == "csv" else frame.write_parquet(path)
    with pytest.raises(DataError, match=r"test\.\w+: lacks the label 'clicked', so nothing"):
        neocpu.init(csv, tmp_path, test=[path])
    # without names, the number of columns tells
    rows = [f"{i % 3 % 2},{i % 7},s{i % 5}" for i in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    (tmp_path / "b.csv").write_text("\n".join(row[2:] for row in rows))
    with pytest.raises(DataError, match="lacks the label 'c0'"):
        neocpu.init(tmp_path / "a.csv", tmp_path, test=[tmp_path / "b.csv"])
    neocpu.init(tmp_path / "a.csv", tmp_path, test=[tmp_path / "a.csv"])


def test_ends_of_lines_in_quotes_empty_labels_and_money_are_said(tmp_path):
    path = tmp_path / "log.csv"
    table = clicks()
    table["shop"][7] = "north\nmain"
    table["cost"] = [f"${1 + i % 9},234.50" for i in range(ROWS)]
    pl.DataFrame(table).write_csv(path)
    drafted = write_config([path], tmp_path / "log.toml", Wishes())
    said = "\n".join(drafted.said)
    assert "fields have an end of line inside their quotes: shop (1); a row ends" in said
    assert "left out: cost, numbers with marks between thousands" in said
    table["clicked"][9] = None
    pl.DataFrame(table).write_csv(path)
    with pytest.raises(ConfigError, match=r"1 empty fields.* data\.on_error=skip"):
        write_config([path], tmp_path / "log.toml", Wishes())
