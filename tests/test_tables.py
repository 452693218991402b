"""Do the same rows have the same codes, whatever file or frame they are in?

Quotes, missing values, times, labels, lists with weights, buckets, standardised numbers.
"""

import dataclasses
import datetime
import io
import json

import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.core.errors import ConfigError, DataError
from neocpu.ingest.dataset.card import make_card
from neocpu.ingest.dataset.convert import convert
from neocpu.ingest.dataset.convert_options import ConvertOptions
from neocpu.ingest.dataset.copies import ensure_dataset
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.fitting import mean_and_deviation, quantiles
from neocpu.ingest.formats.frames import as_frame, parse_frame
from neocpu.ingest.formats.schema import MISSING_INTEGER
from neocpu.ingest.formats.table import MOST_BUCKETS, MOST_INPUTS, table_schema
from neocpu.ingest.formats.text import TextParser
from neocpu.kernels.twins.numbers.philox import fnv1a64
from neocpu.serve.exports.raw_values import RawValues

TREE = {
    "label": {"column": "y"},
    "dense": [
        {"columns": ["price"], "kind": "float", "transform": "none"},
        {"columns": ["age"], "transform": "standard"},
    ],
    "category": [
        {"columns": ["site", "flag"]},
        {"columns": ["id"], "kind": "int"},
        {"columns": ["price"], "kind": "bucket", "buckets": 3, "name": "price_bucket"},
        {"columns": ["when"], "kind": "hour", "time": "iso"},
        {"columns": ["when"], "kind": "date", "time": "iso", "name": "date"},
        {"columns": ["tags"], "separator": "|", "weight_separator": ":"},
    ],
}
START = datetime.datetime(2014, 10, 21, 5, 30)  # noqa: DTZ001
ROWS = {
    "y": [True, False, True, False] * 5,
    "price": [1.5, None, -2.0, 1e-3] * 5,
    "age": [30, 40, None, 50] * 5,
    "site": ["a", "", 'b "c", d', None] * 5,
    "flag": [True, None, False, True] * 5,
    "id": [0, None, -1, 7] * 5,
    "when": [START + datetime.timedelta(hours=7 * i) for i in range(20)],
    "tags": ["x:0.5|y", None, "z", "x|x:2"] * 5,
}


def made(folder, data, tree, name="log", **options):
    """The dataset of a file with these bytes, or of a frame as a Parquet file."""
    path = folder / name
    if isinstance(data, polars.DataFrame):
        data.write_parquet(path)
    else:
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    target = folder / "out.h5"
    convert([path], target, "table", ConvertOptions(schema=tree, **options))
    return Dataset(target)


def everything(data):
    rows = data.take(np.arange(data.rows))
    bags = {
        name: [None if part is None else part.tobytes() for part in bag]
        for name, bag in rows.features.items()
    }
    columns = {name: (column.dtype, column.kind) for name, column in data.features.items()}
    missing = data.missing, data.missing_dense.tolist()
    return rows.labels.tobytes(), rows.dense.tobytes(), bags, columns, missing


def csv(frame, **options):
    return frame.write_csv(**options).encode()


def test_a_table_is_the_same_in_every_form(tmp_path):
    frame = polars.DataFrame(ROWS)
    expected = everything(made(tmp_path, frame, TREE))
    pandas = pytest.importorskip("pandas")
    forms = {
        "csv": (csv(frame), TREE),
        "crlf": (csv(frame, line_terminator="\r\n", quote_style="always"), TREE),
        "tsv": (csv(frame, separator="\t"), TREE | {"delimiter": "\t", "quote": '"'}),
        "multi": (
            csv(frame, separator="\t", quote_style="never").replace(b"\t", b"::: "),
            TREE | {"delimiter": "::: "},
        ),
        "tokens": (csv(frame, null_value="NULL"), TREE | {"missing": ["NULL", "-"]}),
        "pandas": (as_frame(pandas.DataFrame(ROWS)), TREE),
        "strings": (frame.select(polars.all().cast(polars.String)), TREE),
        "small": (frame.with_columns(polars.col("age", "id").cast(polars.Float32)), TREE),
        "categorical": (frame.with_columns(polars.col("site").cast(polars.Categorical)), TREE),
    }
    for name, (data, tree) in forms.items():
        assert everything(made(tmp_path, data, tree)) == expected, name
    schema = table_schema(Dataset(tmp_path / "out.h5").schema)
    for data in (frame, frame.to_arrow(), ROWS, pandas.DataFrame(ROWS)):
        parsed = parse_frame(as_frame(data), schema)
        assert parsed.labels.tobytes() == expected[0] and parsed.dense.tobytes() == expected[1]
        for bag, parts in zip(parsed.features.values(), expected[2].values()):
            assert [None if part is None else part.tobytes() for part in bag] == parts


def test_what_is_missing_has_a_code_of_its_own(tmp_path):
    text = 'y,s,i,h\n1,a,0,0\n0,"",,\n1,NULL,NULL,\n0,"NULL",-1,ff\n'
    tree = {
        "label": {"column": "y"},
        "missing": ["NULL"],
        "category": [
            {"columns": ["s"]},
            {"columns": ["i"], "kind": "int"},
            {"columns": ["h"], "kind": "hex"},
        ],
    }
    data = made(tmp_path, text, tree)
    rows = data.take(np.arange(4)).features
    assert rows["s"].codes.tolist() == [fnv1a64("a"), 0, 0, 0]
    assert rows["i"].codes.tolist() == [0, MISSING_INTEGER, MISSING_INTEGER, 2**64 - 1]
    assert rows["h"].codes.tolist() == [0, 0, 0, 255]
    assert data.missing == {"s": 3, "i": 2, "h": 2} and data.features["i"].kind == "int64"
    old = made(tmp_path, text, tree | {"version": 1, "quote": '"'})
    assert old.take(np.arange(4)).features["i"].codes.tolist() == [0, 0, 0, 2**64 - 1]
    assert old.features["i"].kind == "int"
    with pytest.raises(DataError, match="kinds differ"):
        made(tmp_path, text, tree)
        (tmp_path / "out.h5").rename(tmp_path / "new.h5")
        made(tmp_path, text, tree | {"version": 1})
        Dataset([tmp_path / "new.h5", tmp_path / "out.h5"])
    with pytest.raises(DataError, match=r"'-9223372036854775808' is too large"):
        made(tmp_path, text.replace("-1", "-9223372036854775808"), tree)


CATEGORY = {"category": [{"columns": ["c"]}]}
NUMBERS = ["3", "n/a", "", "3.5", "true", "9223372036854775808", "1e39", "nan", "-7"]


@pytest.mark.parametrize(
    ("kind", "expected", "invalid"),
    [
        ("int", [3, 0, 0, 0, 1, 0, 0, 0, -7], 5),
        ("float", [3, 0, 0, 3.5, 1, 2.0**63, 0, 0, -7], 3),
    ],
)
def test_a_text_that_is_no_number_may_be_missing(tmp_path, kind, expected, invalid):
    entry = {"columns": ["n"], "kind": kind, "transform": "none"}
    tree = {"label": {"column": "y"}, "dense": [entry], "category": CATEGORY["category"]}
    text = "y,n,c\n" + "".join(f"1,{number},a\n" for number in NUMBERS)
    with pytest.raises(DataError, match="'n/a' is not a"):
        made(tmp_path, text, tree)
    entry["invalid"] = "missing"
    data = made(tmp_path, text + "1,oops\n", tree, on_error="skip")
    assert data.take(np.arange(9)).dense[:, 0].tolist() == expected and data.rows == 9
    assert data.missing_dense.tolist() == [invalid + 1] and data.invalid == [{"n": invalid}]
    assert make_card(data).attributes["invalid"] == {"n": invalid}
    card = {"missing": (), "dense": [entry | {"column": "n", "fitted": None}]}
    assert RawValues(card).dense({"n": NUMBERS})[:, 0].tolist() == expected
    # mean, deviation and edges are those of the numbers alone
    entry["transform"] = "standard"
    bucket = {"columns": ["n"], "kind": "bucket", "buckets": 2, "name": "level"}
    tree["category"] = [*CATEGORY["category"], bucket]
    data = made(tmp_path, "y,n,c\n0,1,a\n0,3,a\n0,?,a\n", tree)
    rows = data.take(np.arange(3))
    assert rows.dense[:, 0].tolist() == [-1, 1, 0]
    assert rows.features["level"].codes.tolist() == [1, 2, 0]
    with pytest.raises(ConfigError, match="choose one of error, missing"):
        table_schema(tree | {"dense": [entry | {"invalid": "zero"}]})


@pytest.mark.parametrize(
    ("label", "values", "expected"),
    [
        ({}, ["1", "1.0", "true", "True", "0", "0.0", "-1", "false"], [1] * 4 + [0] * 4),
        ({"threshold": 4}, ["4", "4.5", "3.99", "-1"], [1, 1, 0, 0]),
        ({"positive": ["buy", "cart"]}, ["buy", "view", "cart", "1"], [1, 0, 1, 0]),
        ({"kind": "number"}, ["0.25", "-3", "true"], [0.25, -3, 1]),
    ],
)
def test_labels(tmp_path, label, values, expected):
    tree = CATEGORY | {"label": {"column": "y", **label}}
    text = "y,c\n" + "".join(f"{value},a\n" for value in values)
    data = made(tmp_path, text, tree)
    assert data.take(np.arange(data.rows)).labels.tolist() == expected
    assert data.label_range() == (min(expected), max(expected)) and data.label_names == ["y"]
    with pytest.raises(DataError, match="column y: '' is empty, but a label is needed"):
        made(tmp_path, "y,c\n,a\n", tree)


def test_a_file_without_header_and_labels_has_fewer_columns(tmp_path):
    tree = CATEGORY | {"label": {"column": "y"}, "header": False, "columns": ["c", "y", "x"]}
    data = made(tmp_path, "a,3\nb,4\n", tree, labelled=False)
    assert not data.labelled and data.take(np.arange(2)).features["c"].codes[1] == fnv1a64("b")


def test_a_click_that_is_none_says_what_helps(tmp_path):
    tree = CATEGORY | {"label": {"column": "y"}}
    for text in ("y,c\n5,a\n", "y,c\nyes,a\n"):
        with pytest.raises(DataError, match=r"click label.*positive"):
            made(tmp_path, text, tree)


def test_several_labels(tmp_path):
    tree = CATEGORY | {"label": [{"column": "y"}, {"column": "z", "threshold": 3, "name": "like"}]}
    data = made(tmp_path, "y,z,c\n1,2,a\n0,5,b\n", tree | {"session": "c"})
    assert data.label_names == ["y", "like"]
    path = tmp_path / "out.h5"
    for name, labels in (("", [1, 0]), ("y", [1, 0]), ("like", [0, 1])):
        assert Dataset(path, name).take(np.arange(2)).labels.tolist() == labels
    with pytest.raises(DataError, match="no label 'x'; its labels are y, like"):
        Dataset(path, "x")
    parsed = parse_frame(as_frame({"c": ["a"], "z": [4]}), table_schema(tree))
    assert parsed.labels.tolist() == [1] and not parsed.more_labels


@pytest.mark.parametrize(
    ("time", "texts"),
    [
        ("YYMMDDHH", ["14102105", "14102123"]),
        ("unix", ["1413867600", "1413932400.5"]),
        ("unix_ms", ["1413867600000", "1413932400500"]),
        ("iso", ["2014-10-21T05:00:00Z", "2014-10-22 01:59+02:59"]),
        ("%d/%b/%Y %H:%M", ["21/Oct/2014 05:59", "21/Oct/2014 23:00"]),
        ("%Y%m%d%H", ["2014102105", "2014102123"]),
    ],
)
def test_times(tmp_path, time, texts):
    kinds = ("hour", "weekday", "day", "month", "date")
    entries = [{"columns": ["t"], "kind": kind, "time": time, "name": kind} for kind in kinds]
    rows = made(tmp_path, "\n".join(["t", *texts, '""']) + "\n", {"category": entries})
    bags = rows.take(np.arange(3)).features
    codes = {name: bag.codes.tolist() for name, bag in bags.items()}
    assert codes["hour"] == [6, 24, 0]
    assert codes["weekday"] == [2, 2, 0] and codes["date"] == [20141021, 20141021, 0]
    assert codes["day"] == [21, 21, 0] and codes["month"] == [10, 10, 0]
    with pytest.raises(DataError, match=f"'x' is not (a time {time}|an integer|a number)"):
        made(tmp_path, "t\nx\n", {"category": entries})


def test_times_of_frames(tmp_path):
    tree = {"category": [{"columns": ["t"], "kind": "hour", "time": "unix"}]}
    zone = polars.Series([START]).dt.replace_time_zone("Europe/Berlin")
    for series, hour in ((zone, 4), (zone.dt.replace_time_zone(None), 6), ([START.date()], 1)):
        parsed = parse_frame(polars.DataFrame({"t": series}), table_schema(tree))
        assert parsed.features["t"].codes.tolist() == [hour]


def test_lists_with_weights(tmp_path):
    entry = {"columns": ["t"], "weights": "w"}
    frame = polars.DataFrame(
        {"t": [["a", "b"], [], ["c"]], "w": [[0.5, None], None, [2]]},
        schema_overrides={"w": polars.List(polars.Float32)},
    )
    text = "t,w\na|b,0.5|\n,\nc,2\n"
    structs = polars.DataFrame(
        {"t": [[{"v": "a", "w": 0.5}, {"v": "b", "w": None}], None, [{"v": "c", "w": 2.0}]]}
    )
    lists = {"category": [entry | {"list": True}]}
    split = {"category": [entry | {"separator": "|"}]}
    colon = {"category": [{"columns": ["t"], "separator": "|", "weight_separator": ":"}]}
    for data, tree in (
        (frame, lists),
        (structs, lists),
        (frame, split),
        (text, split),
        ("t\na:0.5|b\n\nc:2\n".replace("\n\n", '\n""\n'), colon),
    ):
        bag = made(tmp_path, data, tree).take(np.arange(3)).features["t"]
        assert bag.codes.tolist() == [fnv1a64("a"), fnv1a64("b"), fnv1a64("c")]
        assert bag.lengths.tolist() == [2, 0, 1] and bag.weights.tolist() == [0.5, 1, 2]
    with pytest.raises(DataError, match="line 2, column w: '1 weights for 2 items'"):
        made(tmp_path, "t,w\na|b,0.5\n", split)
    with pytest.raises(DataError, match="lists in a text need a separator"):
        made(tmp_path, text, lists)
    with pytest.raises(DataError, match="lists as text need a separator"):
        made(tmp_path, polars.DataFrame({"t": ["a"], "w": ["1"]}), lists)
    with pytest.raises(DataError, match=r"'t' holds lists of structs \(v, w\)"):
        made(tmp_path, structs, {"category": [{"columns": ["t"], "list": True}]})


def test_numbers_are_fitted_once_and_stored(tmp_path):
    tree = {
        "dense": [{"columns": ["x"], "kind": "float", "transform": "standard"}],
        "category": [{"columns": ["x"], "kind": "bucket", "buckets": 4, "name": "b"}],
    }
    train = "x\n" + "".join(f"{x}\n" for x in range(100))
    data = made(tmp_path, train, tree)
    rows = data.take(np.arange(100))
    assert np.bincount(rows.features["b"].codes).tolist() == [0, 25, 25, 25, 25]
    assert abs(float(rows.dense.mean())) < 1e-6 and abs(float(rows.dense.std()) - 1) < 1e-6
    (tmp_path / "out.h5").rename(tmp_path / "train.h5")
    test = made(
        tmp_path, "x\n0\n\n99\n".replace("\n\n", '\n""\n'), tree, fitted=tmp_path / "train.h5"
    )
    samples = test.take(np.arange(3))
    assert samples.features["b"].codes.tolist() == [1, 0, 4]
    assert samples.dense[:, 0].tolist() == [rows.dense[0, 0], 0, rows.dense[99, 0]]
    assert not data.other_dense(test)
    other = made(tmp_path, train.replace("99", "999"), tree)
    assert "dense transforms differ" in other.other_dense(data)
    edges = {"category": [{"columns": ["x"], "kind": "bucket", "edges": [1, 2.5]}]}
    codes = made(tmp_path, "x\n0\n1\n3\n", edges).take(np.arange(3)).features["x"].codes
    assert codes.tolist() == [1, 2, 3]
    for options, message in (
        ({"fitted": tmp_path / "gone.h5"}, "no such file"),
        ({"labelled": False}, "fitted"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            made(tmp_path, train, tree, **options)


def test_fitting_depends_on_rows_only(tmp_path, monkeypatch):
    monkeypatch.setattr("neocpu.ingest.dataset.fitting.MOST_ROWS", 100)
    tree = {"dense": [{"columns": ["x"], "transform": "standard"}]}
    text = "x\n" + "".join(f"{x * x % 1009}\n" for x in range(1000))
    whole = made(tmp_path, text, tree).schema
    assert whole["dense"][0]["fitted"]["x"] == list(
        mean_and_deviation(np.array([x * x % 1009 for x in range(0, 1000, 16)], float))
    )
    frame = polars.read_csv(io.BytesIO(text.encode()))
    monkeypatch.setattr("neocpu.ingest.formats.files.columnar.ROWS", 7)
    assert made(tmp_path, frame, tree).schema == whole
    assert quantiles(np.array([1.0, 1, 1, 5]), 10) == [5] and quantiles(np.empty(0), 3) == []


def test_raw_train_files_are_fitted_together(tmp_path):
    tree = {"dense": [{"columns": ["x"], "transform": "standard"}]}
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path, number in zip(paths, (1, 3)):
        path.write_text(f"x\n{number}\n")
    files = ensure_dataset(paths, "table", ConvertOptions(schema=tree))
    assert len(files) == 1
    assert Dataset(files).take(np.arange(2)).dense[:, 0].tolist() == [-1, 1]
    again = ConvertOptions(schema=json.loads(json.dumps(Dataset(files).schema)))
    assert len(ensure_dataset(paths, "table", again)) == 2


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=8)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(st.tuples(WORDS, WORDS | st.none()), min_size=1, max_size=20))
def test_any_text_is_the_same_in_text_and_frame(rows):
    schema = table_schema({"category": [{"columns": ["a", "b"]}], "missing": ["0"]})
    frame = polars.DataFrame(rows, schema={"a": polars.String, "b": polars.String}, orient="row")
    parsed = parse_frame(frame, schema)
    text = np.frombuffer(bytearray(csv(frame, include_header=False)), np.uint8)
    other = TextParser(dataclasses.replace(schema, columns=("a", "b"))).parse(text)
    assert not other.faults and not parsed.faults
    for name in ("a", "b"):
        assert np.array_equal(parsed.features[name].codes, other.features[name].codes)
    assert parsed.missing == other.missing


def test_all_problems_of_a_schema_are_said_at_once():
    tree = {
        "delimter": ",",
        "columns": ["a"],
        "label": {"kind": "click", "threshold": "4"},
        "dense": [{"columns": ["b"], "transform": "sqrt"}],
        "category": [
            {"columns": ["a"], "kind": "hour", "time": "noon"},
            {"columns": ["a"], "kind": "bucket"},
        ],
    }
    with pytest.raises(ConfigError) as caught:
        table_schema(tree, where="s.toml")
    message = str(caught.value)
    for part in (
        "s.toml: 8 problems: ",
        "unknown key 'delimter'; did you mean 'delimiter'?",
        "label: threshold = '4' is not a number",
        "label: column is missing",
        "dense 1: transform = 'sqrt'; choose one of log1p, none, standard",
        "category 1: time = 'noon' must be YYMMDDHH, unix, unix_ms, iso, or a format",
        "category 2: kind = 'bucket' needs buckets",
        "columns '', 'b' are missing; columns has 'a'",
        "feature 'a' occurs twice",
    ):
        assert part in message
    assert "class" not in message


def test_nothing_left_is_an_error(tmp_path):
    tree = CATEGORY | {"label": {"column": "y"}}
    with pytest.raises(
        DataError, match=r"log: no row is left, 2 faulty lines skipped; the first: .*line 2"
    ):
        made(tmp_path, "y,c\nx,a\nz,a\n", tree, on_error="skip")
    for text in ("y,c\n", "y,c", polars.DataFrame({"y": [1], "c": ["a"]}).head(0)):
        with pytest.raises(DataError, match="has no rows"):
            made(tmp_path, text, tree, on_error="skip")
    assert not (tmp_path / "out.h5").exists()


VECTORS = {"columns": ["v"], "kind": "float", "transform": "standard"}


def test_each_number_of_a_vector_is_an_input(tmp_path):
    tree = {"label": {"column": "y"}, "dense": [VECTORS | {"width": 3, "separator": " "}]}
    text = made(tmp_path, 'y,v\n1,1 2 3\n0,\n1,-1  5\n0,"4.5 0 1"\n', tree, "log.csv")
    assert text.dense_columns == ("v.0", "v.1", "v.2")
    # one mean for all of its numbers; what is missing is 0 afterwards
    numbers = np.array([1, 2, 3, -1, 5, 4.5, 0, 1])
    expected = np.array([[1, 2, 3], [np.nan] * 3, [-1, np.nan, 5], [4.5, 0, 1]])
    expected = np.nan_to_num((expected - numbers.mean()) / numbers.std()).astype(np.float32)
    assert (text.take(np.arange(4), []).dense == expected).all()
    assert text.missing_dense.tolist() == [1, 2, 1]
    lists = [[1.0, 2.0, 3.0], None, [-1.0, None, 5.0], [4.5, 0.0, 1.0]]
    frame = polars.DataFrame({"y": [1, 0, 1, 0], "v": lists})
    tree = {"label": {"column": "y"}, "dense": [VECTORS | {"width": 3}]}
    parquet = made(tmp_path, frame, tree, "log.parquet")
    assert (parquet.take(np.arange(4), []).dense == expected).all()


def test_a_vector_of_another_length_is_a_fault_or_missing(tmp_path):
    entry = VECTORS | {"width": 2, "transform": "none", "separator": "|"}
    tree = {"label": {"column": "y"}, "dense": [entry]}
    with pytest.raises(DataError, match=r"line 3, column v: '1\|2\|x' has 3 numbers, expected 2"):
        made(tmp_path, "y,v\n1,1|2\n0,1|2|x\n", tree)
    lenient = tree | {"dense": [entry | {"invalid": "missing"}]}
    read = made(tmp_path, "y,v\n1,1|2\n0,1|2|x\n", lenient)
    assert read.take(np.arange(2), []).dense.tolist() == [[1, 2], [0, 0]]
    with pytest.raises(DataError, match=r"line 3, column v\.1: 'y' is not a number"):
        made(tmp_path, "y,v\n1,1|2\n0,1|y\n", tree)
    with pytest.raises(ConfigError, match="separator goes with width"):
        table_schema({"dense": [{"columns": ["v"], "separator": " "}]})
    with pytest.raises(ConfigError, match="width = 0 must be from 1"):
        table_schema({"dense": [entry | {"width": 0}]})
    with pytest.raises(DataError, match="lists in a text need a separator"):
        made(tmp_path, "y,v\n1,1 2\n", tree | {"dense": [VECTORS | {"width": 2}]})


LABEL = {"column": "y"}
CLICK = CATEGORY | {"label": LABEL}


def label(**keys):
    return CATEGORY | {"label": LABEL | keys}


def dense(**keys):
    return {"dense": [{"columns": ["x"]} | keys]}


def category(**keys):
    return {"category": [{"columns": ["c"]} | keys]}


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (CATEGORY | {"label": {}}, "label: column is missing"),
        (label(threshold=1, positive=["a"]), "label: threshold and positive exclude each other"),
        (label(kind="click", threshold=1), ""),
        (label(kind="number"), ""),
        (label(kind="number", threshold=1), "with threshold the label is a click, so kind cannot"),
        (label(positive=[]), "positive must name at least one text"),
        (dense(width=0), f"width = 0 must be from 1 to {MOST_INPUTS}"),
        (dense(width=1), ""),
        (dense(width=MOST_INPUTS + 1), f"width = {MOST_INPUTS + 1} must be from 1"),
        (dense(separator=" "), "separator goes with width"),
        (dense(width=2, separator=" "), ""),
        (dense(transform="standard", fitted={"x": [1.0, 0.5]}), ""),
        (dense(transform="standard", fitted={"x": [1.0, 0.0]}), "a mean and a positive deviation"),
        (dense(transform="standard", fitted={"x": [1.0]}), "fitted of 'x' must be a mean and"),
        (dense(transform="standard", fitted={"x": [1, 2, 3]}), "fitted of 'x' must be a mean and"),
        (category(kind="hex", digits=0), "digits = 0 must be from 1 to 16"),
        (category(kind="hex", digits=1), ""),
        (category(kind="hex", digits=16), ""),
        (category(kind="hex", digits=17), "digits = 17 must be from 1 to 16"),
        (category(kind="hour", time="noon"), "time = 'noon' "),
        (category(kind="hour", time="unix"), ""),
        (category(kind="int", time="unix"), "time goes with the kinds "),
        (category(buckets=4), 'buckets and edges go with kind = "bucket"'),
        (category(edges=[1.0]), 'buckets and edges go with kind = "bucket"'),
        (category(kind="bucket"), "kind = 'bucket' needs buckets, from 2 to"),
        (category(kind="bucket", buckets=1), "kind = 'bucket' needs buckets, from 2 to"),
        (category(kind="bucket", buckets=2), ""),
        (category(kind="bucket", buckets=MOST_BUCKETS), ""),
        (category(kind="bucket", buckets=MOST_BUCKETS + 1), "needs buckets, from 2 to"),
        (category(kind="bucket", edges=[1.0, 2.0]), ""),
        (category(kind="bucket", edges=[1.0, 1.0]), "edges must ascend"),
        (category(weight_separator=":"), "weight_separator needs a separator"),
        (category(separator=":", weight_separator=":"), "are both ':'"),
        (category(separator="|", weight_separator=":"), ""),
        (category(weights="w"), "weights needs a separator, or list = true"),
        (category(weights="w", list=True), ""),
        (category(weights="w", separator="|", weight_separator=":"), "exclude each other"),
        (category(kind="hour", list=True), "a list cannot be of kind hour"),
        (category(kind="bucket", buckets=3, separator="|"), "a list cannot be of kind bucket"),
        (CLICK | {"version": 4}, "version = 4; choose one of 1, 2, 3"),
        (CLICK | {"encoding": "utf-9"}, "encoding = 'utf-9' is no encoding of text"),
        (CLICK | {"encoding": "hex"}, "encoding = 'hex' is no encoding of text"),
        (CLICK | {"encoding": "latin-1"}, ""),
        ({"label": LABEL}, "no column is used; add"),
        (CLICK | {"header": False}, "header = false needs columns = [...]"),
        (CLICK | {"quote": ",", "delimiter": ","}, "quote and delimiter are both ','"),
        (CLICK | {"quote": "'", "delimiter": "||"}, "quote goes with a delimiter of one character"),
        (CLICK | {"quote": "'", "delimiter": "|"}, ""),
        ({"category": [{"columns": ["c", "c"]}]}, "feature 'c' occurs twice; give one a name"),
        ({"dense": [{"columns": ["x", "x"]}]}, "dense column 'x' occurs twice"),
        (CLICK | {"session": "d"}, "session = 'd' is no category with one value a row"),
        (category(separator="|") | {"session": "c"}, "session = 'c' is no category with one"),
        (CLICK | {"session": "c"}, ""),
    ],
)
def test_what_a_schema_may_say(tree, why):
    if why:
        with pytest.raises(ConfigError) as caught:
            table_schema(tree)
        assert why in str(caught.value)
    else:
        table_schema(tree)
