"""Has a value one text, whatever holds it: a frame, an array, a column with missing values?"""

import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import neocpu
from neocpu.cli import cli
from neocpu.core.errors import DataError
from neocpu.ingest.formats.fields import joined
from neocpu.ingest.formats.frames import as_frame, parse_frame
from neocpu.ingest.formats.schema import Schema, as_called
from neocpu.ingest.formats.sources import open_source
from neocpu.ingest.formats.table import table_schema
from neocpu.kernels.twins.numbers.philox import fnv1a64
from neocpu.serve.exports.raw_values import RawValues
from neocpu.train.config import config
from neocpu.train.run.trainer import Trainer

TREE = {
    "version": 3,
    "dense": [
        {"columns": ["age"], "kind": "int", "transform": "none"},
        {"columns": ["price"], "kind": "float", "transform": "none"},
    ],
    "category": [
        {"columns": ["user", "stars", "site", "flag"]},
        {"columns": ["age"], "kind": "int", "name": "code"},
        {"columns": ["price"], "kind": "bucket", "edges": [1, 5], "name": "level"},
    ],
}
OBJECTS = ("user", "age", "flag", "stars")


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "user": optional(st.integers(0, 10**6)),
            "age": optional(st.integers(-5, 100)),
            "stars": optional(st.integers(0, 10).map(lambda n: n / 2)),
            "price": optional(st.integers(-8, 80).map(lambda n: n / 8)),
            "site": optional(st.sampled_from(["a", "größe", 'b "c", d', "4.0", "1"])),
            "flag": optional(st.booleans()),
        }
    ),
    min_size=1,
    max_size=8,
)
TYPES = {"user": pl.Int64, "age": pl.Int32, "stars": pl.Float64, "price": pl.Float64}
TYPES |= {"site": pl.String, "flag": pl.Boolean}


def text(value: object) -> str:
    """A value in a file, written by hand."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else '"' + str(value).replace('"', '""') + '"'


def arrow_forms(frame: pl.DataFrame) -> dict[str, Any]:
    arrow = frame.to_arrow()
    dictionary = {name: arrow[name].combine_chunks().dictionary_encode() for name in frame.columns}
    return {"arrow": arrow, "dictionary": arrow.from_pydict(dictionary)}


def pandas_forms(columns: dict[str, list[Any]], frame: pl.DataFrame) -> dict[str, Any]:
    pandas = pytest.importorskip("pandas")
    plain = pandas.DataFrame({name: pandas.Series(values) for name, values in columns.items()})
    nullable = frame.to_pandas(use_pyarrow_extension_array=False).convert_dtypes()
    return {
        "pandas": plain,
        "nullable": nullable,
        "objects": plain.astype(object),
        "categorical": plain.astype("category"),
        "series": {name: nullable[name] for name in columns},
    }


def forms(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """One table in every form; whole numbers are ints, floats, decimals, texts and bytes."""
    frame = pl.DataFrame(columns, schema=TYPES)
    holes = {name: [float("nan") if v is None else v for v in columns[name]] for name in OBJECTS}
    numbers = pl.col("user", "age", "stars", "price")
    decimals = {
        name: [None if v is None else Decimal(v).quantize(Decimal("0.000")) for v in columns[name]]
        for name in ("user", "stars", "price")
    }
    masks = {
        name: np.ma.array([v or 0 for v in columns[name]], mask=[v is None for v in columns[name]])
        for name in ("user", "age")
    }
    arrays = {name: np.array(columns[name], object) for name in columns}
    return {
        "polars": frame,
        "floats": frame.with_columns(numbers.cast(pl.Float64)),
        "narrow": frame.with_columns(pl.col("user", "price").cast(pl.Float32)),
        "texts": frame.with_columns(pl.col("user", "age").cast(pl.String)),
        "bytes": frame.with_columns(pl.col("site").cast(pl.Binary)),
        "enum": frame.with_columns(pl.col("site").cast(pl.Categorical)),
        "lists": columns,
        "holes": {**columns, **holes},
        "arrays": arrays,
        "holes in arrays": {**arrays, **{name: np.array(holes[name], object) for name in holes}},
        "masks": {**columns, **masks},
        "decimals": {**columns, **decimals},
        **pandas_forms(columns, frame),
        **arrow_forms(frame),
    }


def answer(parsed: Any) -> tuple[Any, ...]:
    assert not parsed.faults
    codes = {name: bags.codes.tolist() for name, bags in parsed.features.items()}
    return codes, parsed.dense.tolist(), parsed.missing, parsed.missing_dense.tolist()


def of_file(path: Path, schema: Schema) -> tuple[Any, ...]:
    source = open_source(path, schema)
    parts = [source.parser.parse_fields(part) for block in source.blocks for part in block.parts]
    return answer(joined(parts))


def write_csv(path: Path, columns: dict[str, list[Any]]) -> None:
    rows = [",".join(map(text, row)) for row in zip(*(columns[name] for name in TYPES))]
    path.write_text("\n".join([",".join(TYPES), *rows, ""]), encoding="utf-8")


@settings(max_examples=15, deadline=None)
@given(ROWS)
def test_a_table_has_the_same_codes_in_every_form(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    schema = table_schema(TREE)
    columns = {name: [row[name] for row in rows] for name in TYPES}
    path = tmp_path_factory.mktemp("forms", numbered=True) / "log.csv"
    write_csv(path, columns)
    expected = of_file(path, schema)
    for name, data in forms(columns).items():
        assert answer(parse_frame(as_frame(data), schema)) == expected, name


def test_a_table_has_the_same_codes_in_parquet(tmp_path: Path) -> None:
    schema = table_schema(TREE)
    columns: dict[str, list[Any]] = {"user": [196, None, 10**6], "age": [-5, 30, None]}
    columns |= {"stars": [4.0, 4.5, None], "price": [1.5, None, 2.0]}
    columns |= {"site": ["a", None, "größe"], "flag": [True, None, False]}
    write_csv(tmp_path / "log.csv", columns)
    expected = of_file(tmp_path / "log.csv", schema)
    every = forms(columns)
    for name in ("floats", "decimals", "bytes"):
        as_frame(every[name]).write_parquet(tmp_path / "log.parquet")
        assert of_file(tmp_path / "log.parquet", schema) == expected, name
    # a number in a column of hexadecimal words is its value, and a text of it another reading
    words = table_schema(
        {"category": [{"columns": ["user"], "kind": "hex"}, {"columns": ["user"], "name": "name"}]}
    )
    for name in ("polars", "floats", "decimals", "pandas"):
        features = parse_frame(as_frame(every[name]), words).features
        assert features["user"].codes.tolist() == [196, 0, 10**6]
        if name == "polars":
            assert features["name"].codes[0] == fnv1a64("196")


def test_the_text_of_a_value() -> None:
    """By the type of its column: version 3 writes whole numbers alike, version 2 as it did."""
    tree = {"category": [{"columns": ["c"]}]}
    values: list[tuple[Any, list[str], list[str]]] = [
        ([4.0, 4.5, -0.0, 1e20], ["4", "4.5", "0", "1e+20"], ["4.0", "4.5", "-0.0", "1e+20"]),
        (["4.0", "4", "04"], ["4.0", "4", "04"], ["4.0", "4", "04"]),
        ([Decimal("4.00"), Decimal("4.50")], ["4", "4.5"], ["4.00", "4.50"]),
        ([2**60, float("nan"), None], [str(2**60), "", ""], [str(2**60), "", ""]),
        ([1, "x", 2.0, None, True, b"y"], ["1", "x", "2", "", "true", "y"], []),
        ([b"\xff", None], [], []),
    ]
    for column, texts, old in values:
        for version, expected in ((3, texts), (2, old or texts)):
            schema = table_schema({**tree, "version": version})
            parsed = parse_frame(as_frame({"c": column}), schema)
            codes = parsed.features["c"].codes.tolist()
            if expected:
                assert codes == [fnv1a64(word) if word else 0 for word in expected]
    assert codes == [0xAF64724C8602EB6E, 0]  # a byte that is no UTF-8 is hashed as in a file
    raw = RawValues({"missing": [], "whole": True})
    assert raw.is_missing(pytest.importorskip("pandas").NA) and not raw.is_missing("x")
    feature = {"kind": "text", "missing": 0}
    for column, texts, _ in (values[0], values[1], values[4]):
        assert raw.codes(column, feature).tolist() == [fnv1a64(t) if t else 0 for t in texts]
    with pytest.raises(DataError, match="no table"):
        as_frame({"c": [1, {"a": 2}, object()]})


CONFIG = """
[data]
format = "table"
shuffle = false
[data.schema]
label.column = "y"
[[data.schema.category]]
columns = ["user"]
[model]
embedding_dim = 4
bottom = [4]
top = [1]
[tables]
user.rows = 500
[training]
batch_size = 16
[optimizer.sparse]
learning_rate = 0.5
"""


@pytest.mark.parametrize("keys", [(), ('data.rows_by="vocabulary"', "data.min_count=1")])
def test_a_missing_id_changes_no_other_score(tmp_path: Path, keys: tuple[str, ...]) -> None:
    """A model of a CSV file, of a schema without a version, looks up 196.0 as 196."""
    pandas = pytest.importorskip("pandas")
    users = [100 + i % 20 for i in range(120)]
    frame = pl.DataFrame({"y": [u % 2 for u in users], "user": users})
    frame.write_csv(tmp_path / "train.csv")
    overrides = [f'data.train="{tmp_path}/train.csv"', *keys]
    Trainer(config.loads(CONFIG, overrides=overrides), None, tmp_path / "run").run()
    model = neocpu.load(tmp_path / "run")
    expected = model.predict({"user": users[:20]})
    holed = pandas.DataFrame({"user": [*users[:20], None]})
    assert holed["user"].dtype == np.float64
    np.testing.assert_array_equal(model.predict(holed)[:20], expected)
    holed.to_parquet(tmp_path / "holed.parquet")
    np.testing.assert_array_equal(model.predict(tmp_path / "holed.parquet")[:20], expected)
    assert np.unique(expected).size > 2
    # values that training never saw are told once, if they are many
    strange = {"user": [f"u{user}" for user in users]}
    model.predict({"user": [*users, *strange["user"]]})
    with pytest.warns(UserWarning, match=r"most values of user \((5\d|[6-9]\d)%\) are unknown"):
        model.predict({"user": 4 * strange["user"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict({"user": 8 * strange["user"]})
        model.predict({"user": [None] * 200})
    pl.DataFrame(strange).write_csv(tmp_path / "strange.csv")
    command = ["predict", f"{tmp_path}/run", f"{tmp_path}/strange.csv", "--out"]
    done = CliRunner().invoke(cli, [*command, f"{tmp_path}/a.csv"], catch_exceptions=False)
    assert "(100%) are unknown" in done.stderr or keys == ()
    assert "are unknown to the model" in done.stderr


def test_a_vocabulary_tells_how_its_numbers_are_written(tmp_path: Path) -> None:
    """The text 4.0 of a CSV file, and 4.0 of Parquet that was read by a schema without version."""
    stars = [i % 9 / 2 for i in range(90)]
    frame = pl.DataFrame({"y": [int(s > 2) for s in stars], "user": stars})
    frame.write_csv(tmp_path / "train.csv")
    frame.write_parquet(tmp_path / "train.parquet")
    assert "4.0" in (tmp_path / "train.csv").read_text()
    for name in ("train.csv", "train.parquet"):
        overrides = [f'data.train="{tmp_path}/{name}"', 'data.rows_by="vocabulary"']
        overrides += ["data.min_count=1"]
        Trainer(config.loads(CONFIG, overrides=overrides), None, tmp_path / f"of {name}").run()
        model = neocpu.load(tmp_path / f"of {name}")
        expected = model.predict(tmp_path / "train.csv")
        np.testing.assert_array_equal(model.predict(frame), expected)
        assert np.unique(expected).size == 9


def truths_log(folder: Path) -> pl.DataFrame:
    """A log whose column vip tells most, as pandas writes it: fb.csv says True and False."""
    rows = 600
    vip = [i * 7 % 5 < 2 for i in range(rows)]
    clicks = [int(v != (i % 11 == 0)) for i, v in enumerate(vip)]
    frame = pl.DataFrame(
        {"is_click": clicks, "vip": vip, "site": [f"s{i % 7}" for i in range(rows)]}
    )
    spelled = pl.col("vip").cast(pl.String).str.to_titlecase()
    frame.with_columns(spelled).write_csv(folder / "fb.csv")
    frame.write_parquet(folder / "fb.parquet")
    return frame


def test_truths_of_pandas_csv_are_those_of_frames_and_parquet(tmp_path: Path) -> None:
    """True of a CSV file has the code of true: init says so by the kind int."""
    frame = truths_log(tmp_path)
    written = neocpu.init(tmp_path / "fb.csv", tmp_path)
    Trainer(config.load(written), None, tmp_path / "run").run()
    model = neocpu.load(tmp_path / "run")
    expected = model.predict(tmp_path / "fb.csv")
    assert expected[frame["vip"].to_numpy()].mean() > expected.mean() + 0.1
    for data in (frame, tmp_path / "fb.parquet"):
        np.testing.assert_array_equal(model.predict(data), expected)
    other = neocpu.init(tmp_path / "fb.parquet", tmp_path / "other")
    schemas = [config.load(path).data.schema for path in (written, other)]
    kinds = [schema["category"] for schema in schemas if not isinstance(schema, str)]
    assert kinds[0] == kinds[1]
    card = {"missing": []}
    feature = {"name": "vip", "kind": "int", "missing": 0}
    values = [True, "True", "false", np.True_, False, "FALSE"]
    assert RawValues(card).codes(values, feature).tolist() == [1, 1, 0, 1, 0, 0]


def test_texts_true_of_a_model_are_those_that_it_knows(tmp_path: Path) -> None:
    """A config with texts keeps its codes: a column of truths is spelled as the vocabulary is."""
    frame = truths_log(tmp_path)
    overrides = [
        f'data.train="{tmp_path}/fb.csv"',
        'data.schema.label.column="is_click"',
        'data.schema.category=[{columns=["vip"]}]',
        "tables={vip={rows=500}}",
    ]
    text = CONFIG.replace("user.rows = 500", "")
    counted = ['data.rows_by="vocabulary"', "data.min_count=1"]
    by_vocabulary = config.loads(text, overrides=[*overrides, *counted])
    Trainer(by_vocabulary, None, tmp_path / "run").run()
    model = neocpu.load(tmp_path / "run")
    expected = model.predict(tmp_path / "fb.csv")
    for data in (frame, tmp_path / "fb.parquet"):
        np.testing.assert_array_equal(model.predict(data), expected)
    raw = RawValues({"missing": []}, {"vip": np.array([fnv1a64("True")], np.uint64)})
    feature = {"name": "vip", "kind": "text", "missing": 0, "vocabulary": True}
    codes = raw.codes([True, "true", None, np.False_], feature)
    assert codes.tolist() == [fnv1a64("True"), fnv1a64("true"), 0, fnv1a64("False")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert raw.model_rows(codes, feature).tolist() == [1, 0, 0, 0]
    with pytest.warns(UserWarning, match="are unknown to the model") as exported:
        raw.model_rows(raw.codes(200 * ["yes"], feature), feature)
    with pytest.warns(UserWarning, match="are unknown to the model") as predicted:
        neocpu.load(tmp_path / "run").predict({"vip": 200 * ["yes"]})
    assert str(exported[0].message) == str(predicted[0].message)
    # by hash nobody knows which texts there were
    Trainer(config.loads(text, overrides=overrides), None, tmp_path / "hash").run()
    model = neocpu.load(tmp_path / "hash")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.evaluate(tmp_path / "fb.csv")
    unknown = r"most values of vip \(100%\) are unknown to the model"
    with pytest.warns(UserWarning, match=unknown):
        model.evaluate(frame)
    with pytest.warns(UserWarning, match=unknown):
        model.importances(frame, repeats=1)
    with pytest.warns(UserWarning, match=unknown) as told:
        model.evaluate(tmp_path / "fb.parquet")
    assert told[0].filename == __file__
    command = ["eval", f"{tmp_path}/hash", f"{tmp_path}/fb.parquet"]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert "most values of vip (100%) are unknown" in done.stderr


def test_a_fit_says_what_it_never_saw_when_it_is_measured(tmp_path: Path) -> None:
    frame = truths_log(tmp_path)
    fitted = neocpu.fit(tmp_path / "fb.csv", out=tmp_path / "fit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.evaluate(frame)
    other = frame.with_columns(site="new " + pl.col("site"))
    with pytest.warns(UserWarning, match=r"most values of site \(100%\) are unknown") as told:
        fitted.evaluate(other)
    assert told[0].filename == __file__
    other.write_csv(tmp_path / "other.csv")
    done = CliRunner().invoke(cli, ["eval", f"{tmp_path}/fit", f"{tmp_path}/other.csv"])
    assert "most values of site (100%) are unknown" in done.stderr


@pytest.mark.parametrize("trained_on", ["log.csv", "log.parquet"])
def test_names_with_blanks_around_them_are_found_in_every_kind_of_file(
    trained_on: str, tmp_path: Path
) -> None:
    pandas = pytest.importorskip("pandas")
    rows = 300
    columns = {
        " clicked": [i % 3 % 2 for i in range(rows)],
        "User Id ": [f"u{i % 9}" for i in range(rows)],
        "shop": [f"s{i * i % 5}" for i in range(rows)],
    }
    pl.DataFrame(columns).write_csv(tmp_path / "log.csv")
    pl.DataFrame(columns).write_parquet(tmp_path / "log.parquet")
    label = {"log.csv": "clicked", "log.parquet": " clicked"}[trained_on]
    written = neocpu.init(tmp_path / trained_on, tmp_path, label=label)
    Trainer(config.load(written), None, tmp_path / "run").run()
    model = neocpu.load(tmp_path / "run")
    expected = model.predict(tmp_path / trained_on)
    group = {"group": "User Id ", "at": (3,)}
    metrics = model.evaluate(tmp_path / trained_on, **group)
    frame = pandas.read_csv(tmp_path / "log.csv")
    for data in (frame, tmp_path / "log.csv", tmp_path / "log.parquet"):
        np.testing.assert_array_equal(model.predict(data), expected)
        assert model.evaluate(data, **group) == metrics
    for name in ("log.csv", "log.parquet"):
        for key in ("User Id ", "User Id"):
            out = tmp_path / f"{name}.scores.parquet"
            command = ["predict", tmp_path / "run", tmp_path / name, "--with", key, "--out", out]
            done = CliRunner().invoke(cli, [*map(str, command), "--force"])
            assert done.exit_code == 0, done.output
            assert pl.read_parquet(out).columns == ["row", key, "prediction"]


def test_the_only_column_that_differs_in_blanks_is_the_one() -> None:
    assert as_called(["a ", "b", " b "], ["a", "b"]) == ["a", "b", " b "]
    assert as_called([" b", "b "], ["b"]) == [" b", "b "]
    assert as_called(["x"], ["x", "x "]) == ["x"]
    assert as_called(["x", "y"], ["x ", "y", "z"]) == ["x ", "y"]
