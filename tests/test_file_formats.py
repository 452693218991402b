"""Does a log have the same samples in every form, and is each form looked at rightly?"""

import bz2
import gzip
import io
import json
import lzma
import pickle
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neocpu
from neocpu.core.errors import ConfigError, DataError
from neocpu.ingest.dataset.convert import convert, expected_dataset
from neocpu.ingest.dataset.convert_options import ConvertOptions
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.raw import RawLog, index_of
from neocpu.ingest.formats.files import columnar
from neocpu.ingest.formats.files.folders import log_files
from neocpu.ingest.formats.files.kinds import kind_of
from neocpu.ingest.formats.files.streams import byte_stream
from neocpu.ingest.formats.files.unpacked import unpacked
from neocpu.ingest.formats.readers import text_blocks
from neocpu.ingest.formats.schema import Schema
from neocpu.ingest.formats.sources import open_source
from neocpu.ingest.formats.table import table_schema
from neocpu.train.advice.look import look
from neocpu.train.advice.write import Wishes, write_config
from neocpu.train.config import config as configs
from neocpu.train.run.trainer import Trainer
from tests import bench_formats as bench
from tests import workers


def samples(paths: Sequence[Path], target: Path, tree: dict[str, Any]) -> Any:
    """All that a conversion stores of each row."""
    target.unlink(missing_ok=True)
    convert(paths, target, "table", ConvertOptions(schema=tree))
    data = Dataset(target)
    batch = data.take(np.arange(data.rows, dtype=np.int64))
    bags = {
        name: tuple(None if part is None else part.tolist() for part in bag)
        for name, bag in sorted(batch.features.items())
    }
    return batch.labels.tolist(), batch.dense.tolist(), bags


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return samples(bench.LOGS["csv"](folder), folder / "csv.h5", bench.schema())


@pytest.mark.parametrize("form", bench.LOGS)
def test_each_form_gives_the_samples_of_the_csv(form, plain, tmp_path):
    (tmp_path / "in").mkdir()
    paths = bench.LOGS[form](tmp_path / "in")
    assert samples(paths, tmp_path / "x.h5", bench.schema_of(form)) == plain


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_init_goes_by_the_names_of_each_part(kind, tmp_path):
    frame = pl.DataFrame({"y": [0, 1], "price": [2.5, 3.5], "item": ["a", "b"]})
    for number, names in enumerate((["y", "price", "item"], ["item", "y", "price"])):
        part = frame.select(names)
        write = part.write_csv if kind == "csv" else part.write_parquet
        write(tmp_path / f"part-{number}.{kind}")
    looked = look([tmp_path]).frame
    assert looked["item"].to_list() == ["a", "b"] * 2 and looked.columns == frame.columns
    other = part.rename({"y": "z"})
    (other.write_csv if kind == "csv" else other.write_parquet)(tmp_path / f"part-1.{kind}")
    with pytest.raises(DataError, match=r"part-1.*its columns are not those of .*part-0"):
        look([tmp_path])


def test_a_column_may_have_no_name(tmp_path):
    pl.DataFrame({"y": [0, 1], "": [1, 2]}).write_parquet(tmp_path / "log.parquet")
    log = look([tmp_path / "log.parquet"])
    assert log.rows == 2 and log.hints[""].kind == "left out"


def test_a_header_may_stand_below_empty_lines(tmp_path):
    log = tmp_path / "log.csv"
    log.write_bytes(b"\r\n\ny,c\n1,a\n0,b\nx,b\n")
    tree = {"label": {"column": "y"}, "category": [{"columns": ["c"]}]}
    assert "log.csv, line 6" in str(log) + faulty(tmp_path, log.name, log.read_bytes(), tree)
    log.write_bytes(log.read_bytes()[:-4])
    assert samples([log], tmp_path / "x.h5", tree)[0] == [1, 0]
    schema = table_schema(tree)
    counted = (index_of(log, schema, "fail"),)
    assert RawLog(counted, schema).open().take(np.arange(2)).labels.tolist() == [1, 0]
    assert look([log]).rows == 2


@pytest.mark.parametrize("form", bench.LOGS)
def test_init_sees_the_same_columns_in_each_form(form, tmp_path):
    (tmp_path / "in").mkdir()
    paths = bench.LOGS[form](tmp_path / "in")
    log = look(paths)
    assert log.rows == bench.ROWS and log.whole
    roles = {
        column.source or column.name.partition(".")[0]: column.role
        for column in write_config(paths, tmp_path / "x.toml", Wishes()).columns
        if column.name not in ("Unnamed: 0", "__index_level_0__", "user.city")
    }
    assert roles == {
        "click": "label",
        "price": "dense",
        "age": "dense",
        "user": roles["user"],
        "shop": "category",
        "genres": "list",
        "day": "time",
    }


LIBSVM = "+1 1:0.5 3:1 # a note\n-1 2:2\n\n-1 1:0 2:0.25 3:1.0\n"
LIBFFM = "1 0:3:1 1:17:1 1:18:0.5\n0 0:4:1.0 1:17:0.25\n0 0:3:1 2:9:1\n"


def test_libffm_is_a_category_for_each_field(tmp_path):
    log = tmp_path / "train.ffm"
    log.write_text(LIBFFM * 30)
    columns = {
        column.name: column for column in write_config([log], tmp_path / "x.toml", Wishes()).columns
    }
    assert {name: column.role for name, column in columns.items()} == {
        "label": "label",
        "field_0": "category",
        "field_1": "list",
        "field_2": "left out",  # one value in all rows
    }
    tree = {
        "label": {"column": "label"},
        "category": [
            {"columns": ["field_0"], "kind": "int"},
            {"columns": ["field_1"], "kind": "int", "separator": " ", "weight_separator": ":"},
        ],
    }
    labels, _, bags = samples([log], tmp_path / "x.h5", tree)
    assert labels[:3] == [1, 0, 0] and bags["field_0"][0][:3] == [3, 4, 3]
    codes, lengths, weights = bags["field_1"]
    assert (codes[:3], lengths[:3], weights[:3]) == ([17, 18, 17], [2, 1, 0], [1, 0.5, 0.25])


def test_points_of_thousands_stand_before_a_decimal_comma(tmp_path):
    log = tmp_path / "a.csv"
    prices = ("1.234,5", "2,25", "-12.345.678,0", "7") * 10
    lines = (f"{int(i % 3 == 0)};{price};1.5;v{i % 5}\n" for i, price in enumerate(prices))
    log.write_text(f"click;price;rate;item\n{''.join(lines)}")
    columns = write_config([log], tmp_path / "x.toml", Wishes()).columns
    assert [(each.role, each.width) for each in columns[1:2]] == [("dense", 0)]
    tree = {
        "delimiter": ";",
        "decimal": ",",
        "label": {"column": "click"},
        "dense": [{"columns": ["price", "rate"], "kind": "float", "transform": "none"}],
        "category": [{"columns": ["item"]}],
    }
    _, numbers, _ = samples([log], tmp_path / "x.h5", tree)
    assert numbers[:4] == [[1234.5, 1.5], [2.25, 1.5], [-12_345_678, 1.5], [7, 1.5]]


def test_libsvm_is_numbers_where_it_is_narrow_and_a_list_where_it_is_wide(tmp_path):
    log = tmp_path / "a.libsvm"
    log.write_text(LIBSVM * 30)
    frame = look([log]).frame
    assert frame.columns == ["label", "feature_1", "feature_2", "feature_3"]
    assert frame["feature_3"][:3].to_list() == ["1", "0", "1.0"]  # what is not there is 0
    dense = [{"columns": [f"feature_{i}" for i in (1, 2, 3)], "kind": "float", "transform": "none"}]
    tree = {
        "label": {"column": "label"},
        "dense": dense,
        "category": [
            {"columns": ["features"], "kind": "int", "separator": " ", "weight_separator": ":"}
        ],
    }
    labels, numbers, bags = samples([log], tmp_path / "x.h5", tree)
    assert labels[:3] == [1, 0, 0] and numbers[:3] == [[0.5, 0, 1], [0, 2, 0], [0, 0.25, 1]]
    codes, lengths, weights = bags["features"]
    assert codes[:6] == [1, 3, 2, 1, 2, 3] and lengths[:3] == [2, 1, 3]
    assert weights[:6] == [0.5, 1, 2, 0, 0.25, 1]
    log.write_text("".join(f"{i % 2} {i + 1}:1 {i + 500}:0.5\n" for i in range(300)))
    wide = look([log])
    assert wide.frame.columns == ["label", "features"] and wide.hints["features"].separator == " "


def test_libsvm_as_strangers_write_it(tmp_path):
    lines = [f"{i % 2} qid:{i // 9} {i + 1}:1 {i + 500}:0.5 # row {i}" for i in range(100)]
    log = tmp_path / "a.libsvm"
    log.write_text("# dumped by hand\n\n" + "\n".join([*lines[:50], "1", *lines[50:]]) + "\n")
    frame = look([log]).frame
    assert frame.columns == ["label", "qid", "features"] and frame.height == 101
    assert frame.row(50)[0] == "1" and not frame.row(50)[2]
    tree = {
        "label": {"column": "label"},
        "category": [
            {"columns": ["features"], "kind": "int", "separator": " ", "weight_separator": ":"}
        ],
    }
    lines[60] += " 7:"
    log.write_text("\n".join(lines[:61]).replace("# row 60", "") + "\n")
    with pytest.raises(DataError, match="row 61 has '7:' where libsvm has INDEX:VALUE"):
        samples([log], tmp_path / "x.h5", tree)
    # without labels, to be scored; one number behind another is a time
    log.write_text("\n".join(line.split(" ", 2)[2] for line in lines[:60]) + "\n")
    assert look([log]).frame.columns == ["features"]
    assert kind_of(log) == "libsvm"
    log.write_text("12:30\n12:31\n")
    assert kind_of(log) == "text"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("3:1 4:2\n9:1 4:1\n", "its rows have no labels: they can be scored, not learnt"),
        ("cat 3:1 4:2\ndog 3:1 4:2\n", "look like libsvm or libffm, but not all are: labels must"),
        ("1 1:23:1 2:5\n0 1:24:1 2:6:1\n", "look like libsvm or libffm, but not all are: labels"),
        ("1 12:30 13:45\n0 12:30 13:45\n", "no column looks like a category or a number"),
    ],
)
def test_what_is_nearly_libsvm_is_no_table(text, problem, tmp_path):
    (tmp_path / "log").write_text(text * 20)
    with pytest.raises((ConfigError, DataError), match=problem):
        write_config([tmp_path / "log"], tmp_path / "x.toml", Wishes())


def test_an_archive_of_dlrm_has_numbers_and_codes(tmp_path):
    draw = np.random.default_rng(1)
    log = tmp_path / "kaggle_processed.npz"
    arrays = {
        "X_int": np.asfortranarray(draw.integers(0, 50, (90, 3))),
        "X_cat": draw.integers(0, 9, (90, 2)),
        "y": draw.integers(0, 2, 90),
    }
    np.savez(log, **arrays, counts=np.array([9, 9]))
    columns = write_config([log], tmp_path / "x.toml", Wishes()).columns
    roles = {column.name: column.role for column in columns}
    assert roles == {
        **{f"X_int_{i}": "dense" for i in range(3)},
        **{f"X_cat_{i}": "category" for i in range(2)},
        "y": "label",
    }
    tree = {
        "label": {"column": "y"},
        "dense": [{"columns": ["X_int_0", "X_int_2"], "transform": "none"}],
        "category": [{"columns": ["X_cat_1"], "kind": "int"}],
    }
    labels, dense, bags = samples([log], tmp_path / "x.h5", tree)
    assert labels == arrays["y"].tolist() and dense == arrays["X_int"][:, [0, 2]].tolist()
    assert bags["X_cat_1"][0] == arrays["X_cat"][:, 1].tolist()


def faulty(tmp_path, name, content, tree=None):
    """What is said of a file that cannot be read."""
    log = tmp_path / name
    log.write_bytes(content)
    with pytest.raises(DataError) as error:
        samples([log], tmp_path / "x.h5", tree or bench.schema())
    message = str(error.value)
    assert message.startswith(str(log)) and "\n" not in message
    return message.removeprefix(str(log))


def test_files_that_are_not_read_say_what_to_do(tmp_path):
    archive = tmp_path / "sheet.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("[Content_Types].xml", "")
    two = tmp_path / "two.zip"
    with zipfile.ZipFile(two, "w") as file:
        file.writestr("a.csv", "a")
        file.writestr("b.csv", "b")
    parquet = bench.LOGS["parquet"](tmp_path)[0].read_bytes()
    objects = io.BytesIO()
    np.save(objects, np.array([{}, 1], object), allow_pickle=True)
    tar = bytes(257) + b"ustar" + bytes(250)
    for name, content, words in (
        ("log.xlsx", archive.read_bytes(), "(Excel workbook) is not read; save its sheet as CSV"),
        ("log.csv.zip", two.read_bytes(), "a zip archive of 2 files; unpack it"),
        ("log.db", b"SQLite format 3\0" + bytes(99), "(SQLite database) is not read"),
        ("log.pkl", pickle.dumps({"a": 1}), "(pickle) is not read; reading one runs the program"),
        ("log.tar.gz", gzip.compress(tar), "(tar archive) is not read; unpack it"),
        ("log.parquet.gz", gzip.compress(parquet), "a Parquet file that was compressed as a whole"),
        ("log.npy", objects.getvalue(), "holds Python objects, and reading them runs"),
        ("log.json", b'{"click":{"0":1,"1":0},"age":{"0":3,"1":4}}', "one JSON object of columns"),
        ("log.json", b"[[1, 2], [3, 4]]", "a value in its array is no JSON object; write it"),
        ("log.json", b'[{"click": 1}, {"click"', "damaged or truncated JSON array"),
        ("log.csv", "click,age\n1,2\n".encode("utf-16-le"), "no text that can be read: it has NUL"),
        ("log.csv", b"click,age\r1,2\r", "its lines end in carriage returns alone"),
        ("log.csv", b"<!DOCTYPE html>\n<html>", "a server may have sent it in place of the file"),
        ("log.csv", b"version https://git-lfs.github.com/spec/v1\n", "`git lfs pull` fetches"),
        ("log.orc", b"ORC\n\x1b\0\0", "(ORC file) is not read; write Parquet"),
        (
            "log",
            2 * (b"\x09" + bytes(11) + b"\n\0" * 4 + b"\n" + bytes(4)),
            "(TFRecord file) is not",
        ),
        ("part-00000", b"SEQ\6\x19org.apache.hadoop", "(Hadoop SequenceFile) is not read"),
        (
            "log.gz",
            gzip.compress(gzip.compress(b"a")),
            "a gzip file that was compressed as a whole",
        ),
        ("log.zip", b"PK\5\6" + bytes(18), "a zip archive of 0 files"),
        ("log.lz4", b"\x04\x22M\x18d@", "(lz4 file) is not read; unpack it, or pack it with gzip"),
        ("log.zst", b"P*M\x18\4\0\0\0", "as of pzstd) is not read; unpack it"),
        ("log.Z", b"\x1f\x9d\x90", "(file of compress) is not read"),
        ("log.json", b'{\n "click": 1\n}\n', "no row can be read; the first is no JSON object"),
        ("log.json", b'{"click": 1}{"click": 0}', "(Extra data)"),
    ):
        assert words in faulty(tmp_path, name, content)
    half = "click,age\n1,2\n".encode("utf-16")[:-1]
    tree = {"label": {"column": "click"}, "dense": [{"columns": ["age"], "kind": "float"}]}
    assert "is not text in the encoding utf-16" in faulty(tmp_path, "log.csv", half, tree)
    (tmp_path / "empty").mkdir()
    for path, words in (("empty", "a folder without any log"), ("part-*.csv", "no file fits it")):
        with pytest.raises(DataError, match=words):
            samples([tmp_path / path], tmp_path / "x.h5", bench.schema())
    log = tmp_path / "log.csv"
    log.write_bytes("click,age\n1,2\n".encode("utf-16-le"))
    with pytest.raises(DataError, match="it has NUL bytes"):
        look([log])


def test_rows_that_a_failed_disk_left_are_told(tmp_path):
    log = tmp_path / "log.csv"
    log.write_bytes(b"y,c\n1,a\n0,b" + bytes(4096) + b"d\n1,a\n")
    tree = {"label": {"column": "y"}, "category": [{"columns": ["c"]}]}
    assert "line 3 has NUL bytes" in faulty(tmp_path, log.name, log.read_bytes(), tree)
    options = ConvertOptions(schema=tree, on_error="skip")
    assert convert([log], tmp_path / "x.h5", "table", options).skipped == 1


def test_what_polars_panics_at_is_told_without_its_trace(tmp_path, capfd):
    pa = pytest.importorskip("pyarrow")
    log = tmp_path / "log.arrow"
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"]))
    with pa.ipc.new_file(log, pa.schema({"click": runs.type})) as file:
        file.write(pa.record_batch({"click": runs}))
    said = faulty(tmp_path, log.name, log.read_bytes())
    assert "polars does not read it (not yet implemented)" in said
    assert "panicked" not in capfd.readouterr().err


def test_columns_of_maps_and_structs_say_what_to_make_of_them(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    log = tmp_path / "log.parquet"
    maps = pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"y": [0, 1], "map": maps, "struct": [{"a": 1}] * 2}), log)
    for column, words in (
        ("map", "make lists of its keys|holds lists of structs"),
        ("struct", "make its fields"),
    ):
        tree = {"label": {"column": "y"}, "category": [{"columns": [column], "list": True}]}
        assert re.search(words, faulty(tmp_path, log.name, log.read_bytes(), tree))


def test_a_row_that_is_no_record_is_named_and_can_be_left_out(tmp_path):
    tree = {
        "label": {"column": "y"},
        "category": [{"columns": ["c"]}, {"columns": ["d"], "list": True}],
    }
    good = '{"y": 1, "c": "a", "d": [1, null]}\n'
    for bad, words in (
        ("{oops}", "row 2 is no JSON object (Expecting property name"),
        ("[1]", "row 2 is no JSON object: '[1]'"),
        ("[" * 9000, "row 2 is nested too deeply"),
        ('{"y": 1, "c": ["a"], "d": []}', "row 2, column c: "),
        ('{"y": 3, "c": "a"}', "row 2, column y: '3' is not a click label"),
    ):
        log = tmp_path / "log.jsonl"
        content = (good + bad + "\n" + good).encode()
        assert words in faulty(tmp_path, log.name, content, tree)
        options = ConvertOptions(schema=tree, on_error="skip")
        (tmp_path / "x.h5").unlink(missing_ok=True)
        assert convert([log], tmp_path / "x.h5", "table", options).skipped == 1
        assert Dataset(tmp_path / "x.h5").rows == 2
    sparse = {"label": {"column": "label"}, "category": [{"columns": ["field_0"], "kind": "int"}]}
    said = faulty(tmp_path, "a.ffm", b"1 0:1:1\n0 0:1\n", {**sparse})
    assert "missing" in said or "row 2 has '0:1' where libffm has FIELD:INDEX:VALUE" in said


def test_a_key_that_only_a_late_row_has_is_still_a_column(tmp_path, monkeypatch):
    monkeypatch.setattr("neocpu.ingest.formats.files.record_file.FIRST_ROWS", 2)
    monkeypatch.setattr(
        "neocpu.ingest.formats.files.record_file.text_blocks", lambda path: text_blocks(path, 64)
    )
    log = tmp_path / "log.jsonl"
    log.write_text('{"y": 0, "c": null}\n' * 20 + '{"y": 1, "c": [7], "late": "x"}\n')
    tree = {
        "label": {"column": "y"},
        "category": [{"columns": ["late"]}, {"columns": ["c"], "list": True}],
    }
    labels, _, bags = samples([log], tmp_path / "x.h5", tree)
    assert labels[-1] == 1 and bags["late"][0][:-1] == [0] * 20 and bags["late"][0][-1]
    assert bags["c"][1] == [0] * 20 + [1]
    tree["category"][0] = {"columns": ["nowhere"]}
    assert "column 'nowhere' is missing" in faulty(tmp_path, log.name, log.read_bytes(), tree)


def test_a_schema_that_cuts_lines_means_text_whatever_it_looks_like(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("1 3:0.5\n0 7:1\n")
    tree = {
        "delimiter": " ",
        "header": False,
        "columns": ["y", "pair"],
        "label": {"column": "y"},
        "category": [{"columns": ["pair"], "separator": ",", "weight_separator": ":"}],
    }
    assert samples([log], tmp_path / "x.h5", tree)[2]["pair"][2] == [0.5, 1]


TEXTS = st.text(
    st.characters(exclude_characters="\0\r\n\x1f", exclude_categories=["Cs"]), max_size=6
)
NUMBERS = st.sampled_from(["0", "-7", "2.50", "1e3", "", "x", "9" * 20, "1.5.2", "+4", " 5"])
SOME_ROWS = st.lists(
    st.tuples(st.sampled_from(["0", "1", "true", "2", ""]), NUMBERS, NUMBERS, TEXTS),
    min_size=1,
    max_size=12,
)


def parsed(path: Path, schema: Schema) -> Any:
    """Samples of a file, and what is wrong in which row and column."""
    source = open_source(path, schema)
    numbers, faults, first = [], [], 0
    for block in source.blocks:
        for fields in block.parts:
            rows = source.parser.parse_fields(fields)
            codes = [bag.codes.tolist() for bag in rows.features.values()]
            numbers.append((rows.labels.tolist(), rows.dense.tolist(), codes))
            faults += [(first + f.line, f.column, f.text, f.reason) for f in rows.faults]
            first += rows.lines
    return numbers, faults


@given(rows=SOME_ROWS)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_any_rows_have_the_samples_and_faults_of_csv_in_every_kind(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    frame = pl.DataFrame(rows, ["y", "x", "n", "c"], orient="row")
    tree = {
        "label": {"column": "y"},
        "dense": [{"columns": ["x"], "kind": "float"}, {"columns": ["n"]}],
        "category": [{"columns": ["c"]}],
    }
    schema = table_schema(tree)
    frame.write_csv(folder / "a.csv", quote_style="non_numeric")
    plain = frame.write_csv(quote_style="never", separator="\x1f")
    (folder / "a.txt").write_text(plain, "utf-8")
    expected = parsed(folder / "a.txt", table_schema({**tree, "delimiter": "\x1f"}))
    frame.write_ipc(folder / "a.arrow")
    frame.write_ipc_stream(folder / "s.arrow")
    frame.write_parquet(folder / "a.parquet")
    dicts = frame.to_dicts()
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in dicts))
    (folder / "a.json").write_text(json.dumps(dicts, indent=2, ensure_ascii=False), "utf-8")
    np.savez(folder / "a.npz", **{name: frame[name].to_numpy().astype("U") for name in "yxnc"})
    (folder / "a.csv.xz").write_bytes(lzma.compress((folder / "a.csv").read_bytes()))
    with pytest.MonkeyPatch.context() as patch:
        # files that polars has just written need no process that tries them
        patch.setattr(columnar, "trouble", lambda path: "")
        for name in ("a.arrow", "s.arrow", "a.parquet", "a.jsonl", "a.json", "a.npz"):
            assert parsed(folder / name, schema) == expected, name
    assert parsed(folder / "a.csv.xz", schema) == parsed(folder / "a.csv", schema)


def test_folders_name_a_column_of_lines_without_a_header_too(tmp_path):
    for day in ("2014-10-21", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"log/day={day}").mkdir(parents=True)
        (tmp_path / f"log/day={day}/part-0.csv").write_text("1,a\n0,b\n")
    tree = {
        "header": False,
        "columns": ["y", "c", "day"],
        "label": {"column": "y"},
        "category": [{"columns": ["day"], "kind": "date", "time": "iso"}, {"columns": ["c"]}],
    }
    labels, _, bags = samples([tmp_path / "log"], tmp_path / "x.h5", tree)
    assert labels == [1, 0, 1, 0] and bags["day"][0] == [20141021, 20141021, 0, 0]
    # a file that has the column keeps its own
    (tmp_path / "log/day=2014-10-21/part-0.csv").write_text("1,a,2020-01-01\n")
    (tmp_path / "log/day=__HIVE_DEFAULT_PARTITION__/part-0.csv").unlink()
    assert samples([tmp_path / "log"], tmp_path / "x.h5", tree)[2]["day"][0] == [20200101]


def test_files_of_records_may_lack_columns(tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log/a.ffm").write_text("1 0:1:1\n0 0:2:1\n0 0:1:1\n1 0:2:1\n" * 10)
    (tmp_path / "log/b.ffm").write_text("1 0:1:1 1:5:0.5\n0 0:1:1 1:6:1\n" * 20)
    assert look([tmp_path / "log"]).frame.columns == ["label", "field_0", "field_1"]
    columns = write_config([tmp_path / "log"], tmp_path / "x.toml", Wishes()).columns
    assert [column.role for column in columns] == ["label", "category", "list"]
    tree = {
        "label": {"column": "label"},
        "category": [
            {"columns": ["field_1"], "kind": "int", "separator": " ", "weight_separator": ":"}
        ],
    }
    lengths = samples([tmp_path / "log"], tmp_path / "x.h5", tree)[2]["field_1"][1]
    assert lengths == [0] * 40 + [1] * 40


@pytest.mark.parametrize("form", workers.covered(bench.LOGS, ["json lines", "hive"]))
def test_the_config_of_each_form_trains_and_predicts(form, tmp_path):
    (tmp_path / "in").mkdir()
    paths = bench.LOGS[form](tmp_path / "in")
    write_config(paths, tmp_path / "x.toml", Wishes())
    config = configs.load(tmp_path / "x.toml", ["training.steps=2", "training.batch_size=16"])
    Trainer(config, None, tmp_path / "run").run()
    scores = neocpu.load(tmp_path / "run").predict(paths)
    assert scores.shape == (bench.ROWS,) and np.isfinite(scores).all()


def test_half_a_character_in_json_is_no_character(tmp_path, monkeypatch):
    log = tmp_path / "log.jsonl"
    tree = {"label": {"column": "y"}, "category": [{"columns": ["c"]}]}
    pair = json.dumps("\U0001f600")
    lone = ('"\\ud83d"', '"\\ude00x"', '"\\uD83D\\uD83d"', pair, '"\U0001f600"', '"\ufffd"')
    log.write_text("".join(f'{{"y": 1, "c": {each}}}\n' for each in lone), "utf-8")
    codes = samples([log], tmp_path / "x.h5", tree)[2]["c"][0]
    array = tmp_path / "log.json"
    array.write_text(f"[{', '.join(log.read_text('utf-8').splitlines())}]", "utf-8")
    for size in (1, 7, 64):  # a piece may end inside a pair
        monkeypatch.setattr("neocpu.ingest.formats.files.json_records.BLOCK_BYTES", size)
        assert samples([array], tmp_path / "x.h5", tree)[2]["c"][0] == codes
    assert codes[3] == codes[4] and codes[0] == codes[5] and len(set(codes)) == 4


def test_objects_in_lists_are_lists_with_weights(tmp_path):
    log = tmp_path / "log.jsonl"
    rows = [
        {"y": 1, "cart": [{"id": 3, "n": 2}, {"id": 4, "n": None}], "user": {"geo": {"city": "x"}}},
        {"y": 0, "cart": []},
        {"y": 0, "cart": [{"id": 3, "n": 1}, None], "user": {"geo": None}},
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert look([log]).frame.columns == ["y", "cart.id", "cart.n", "user.geo.city"]
    tree = {
        "label": {"column": "y"},
        "category": [
            {"columns": ["cart.id"], "kind": "int", "list": True, "weights": "cart.n"},
            {"columns": ["user.geo.city"]},
        ],
    }
    bags = samples([log], tmp_path / "x.h5", tree)[2]
    codes, lengths, weights = bags["cart.id"]
    assert codes[:3] == [3, 4, 3] and lengths == [2, 0, 2] and weights[:2] == [2, 1]
    assert [bool(code) for code in bags["user.geo.city"][0]] == [True, False, False]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_parts_of_a_log_may_have_no_rows(kind, tmp_path):
    frame = pl.DataFrame({"y": [0, 1, 1], "c": ["a", "b", "a"]})
    tree = {"label": {"column": "y"}, "category": [{"columns": ["c"]}]}
    for number, part in enumerate((frame[:0], frame[:1], frame[:0], frame[1:])):
        write = part.write_csv if kind == "csv" else part.write_parquet
        folder = tmp_path / ("log" if number else "none")
        folder.mkdir(exist_ok=True)
        write(folder / f"part-{number}.{kind}")
    labels, _, bags = samples([tmp_path / "none", tmp_path / "log"], tmp_path / "x.h5", tree)
    assert labels == [0, 1, 1] and len(set(bags["c"][0])) == 2
    schema = table_schema(tree)
    counted = tuple(index_of(path, schema, "fail") for path in log_files(tmp_path / "log"))
    assert RawLog(counted, schema).open().take(np.arange(3)).labels.tolist() == [0, 1, 1]
    assert look([tmp_path / "log"]).rows == 3
    with pytest.raises(DataError, match="has no rows"):
        samples([tmp_path / "none"], tmp_path / "x.h5", tree)
    # what says nothing at all may have been cut off
    (tmp_path / "log" / "part-1").write_bytes(b"")
    with pytest.raises(DataError, match="part-1: has no rows"):
        samples([tmp_path / "log"], tmp_path / "x.h5", tree)
    with pytest.raises(DataError, match="part-1: has no rows"):
        index_of(tmp_path / "log" / "part-1", schema, "fail")


def test_packed_text_may_be_empty(tmp_path):
    schema = table_schema({"label": {"column": "y"}, "category": [{"columns": ["c"]}]})
    zstd = pl.DataFrame({"y": []}).lazy()
    zstd.sink_csv(tmp_path / "log.zst", include_header=False, compression="zstd")
    (tmp_path / "log.bz2").write_bytes(bz2.compress(b""))
    for log in (tmp_path / "log.zst", tmp_path / "log.bz2"):
        with pytest.raises(DataError, match=": has no rows"):
            index_of(log, schema, "fail")
    log.write_bytes(bz2.compress(b"") + bz2.compress(b"y,c\n1,a\n"))
    assert index_of(log, schema, "fail").lines == [1]


def test_the_place_in_a_zstd_file_is_estimated(tmp_path):
    rows = 60_000
    draw = np.random.default_rng(1)
    frame = pl.DataFrame(
        {"y": draw.integers(0, 2, rows), "c": draw.integers(0, 10**6, rows), "d": [7] * rows}
    )
    log = tmp_path / "log.csv.zst"
    frame.lazy().sink_csv(log, compression="zstd")
    done = [block.done for block in text_blocks(log, 1 << 16)]
    middle = done[len(done) // 2]
    assert done == sorted(done) and done[-1] <= log.stat().st_size
    assert 0.3 < middle / log.stat().st_size < 0.7
    tree = {"label": {"column": "y"}, "category": [{"columns": ["c", "d"], "kind": "int"}]}
    options = ConvertOptions(schema=tree)
    convert([log], tmp_path / "x.h5", "table", options)
    size = (tmp_path / "x.h5").stat().st_size
    assert 0.7 * size < expected_dataset([log], "table", options).bytes < 2.5 * size
    part = look([log], looked_at=1 << 16)
    assert part.rows == rows or 0.5 * rows < part.rows < 2 * rows


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_rows_of_any_place_are_those_of_the_frame(kind, tmp_path, monkeypatch):
    frame = pl.DataFrame({"x": range(5000), "y": [str(i) for i in range(5000)]})
    path = tmp_path / f"log.{kind}"
    frame.write_parquet(path) if kind == "parquet" else frame.write_ipc(path)
    file = columnar.Columnar(path)
    for first, last in ((0, 10), (10, 20), (20, 4000), (7, 9), (4999, 5000), (3000, 5000)):
        rows = file.rows_between({"a": "y", "b": "x"}, first, last)
        assert rows.frame.equals(frame.select(a="y", b="x")[first:last]) and not rows.faults
    monkeypatch.setattr(file, "_slab", None)
    for first, last in ((3000, 3001), (4999, 5000)):  # those that were read last are kept
        kept = rows.frame[first - 3000 : last - 3000]
        assert file.rows_between({"a": "y"}, first, last).frame.equals(kept)


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, gzip.compress])
def test_what_is_damaged_behind_a_sound_member_is_told(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "log"
    rows = bytes(np.random.default_rng(1).integers(48, 58, 300_000, np.uint8))
    more = pack(b"more\n")

    def text(packed: bytes) -> bytes:
        path.write_bytes(packed)
        with byte_stream(path) as stream:
            return b"".join(iter(lambda: stream.read(1 << 15), b""))

    assert text(pack(rows) + more + bytes(8)) == rows + b"more\n"
    assert text(pack(b"") + more) == b"more\n"
    for tail in (b"garbage", more[:-9], more[:12] + b"?" + more[13:]):
        with pytest.raises(DataError, match="truncated or damaged"):
            text(pack(rows) + tail)
    with pytest.raises(DataError, match="truncated or damaged"):
        text(pack(rows)[:-20])


def test_a_packed_log_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.bz2"
    log.write_bytes(bz2.compress(b"y,c\n1,a\n"))
    copy = unpacked(log, "")
    assert copy.read_bytes() == b"y,c\n1,a\n"
    # gone for whoever would read it again
    monkeypatch.setattr("neocpu.ingest.formats.files.unpacked.byte_stream", None)
    assert unpacked(log, "") == copy


def test_fields_of_structs_are_those_of_json_in_files_of_columns_too(tmp_path):
    users = [{"id": 7, "at": {"city": "Bern"}}, {"id": 8, "at": None}, None]
    items = [[{"id": 1, "n": 0.5}, {"id": None, "n": 2.0}], [], None]
    frame = pl.DataFrame({"y": [0, 1, 1], "user": users, "items": items})
    frame.write_ndjson(tmp_path / "log.jsonl")
    frame.write_parquet(tmp_path / "log.parquet")
    frame.write_ipc(tmp_path / "log.arrow")
    tree = {
        "version": 3,
        "label": {"column": "y"},
        "dense": [{"columns": ["user.id"]}],
        "category": [
            {"columns": ["user.at.city"]},
            {"columns": ["items.id"], "kind": "int", "list": True, "weights": "items.n"},
        ],
    }
    expected = samples([tmp_path / "log.jsonl"], tmp_path / "x.h5", tree)
    columns = {*look([tmp_path / "log.jsonl"]).frame.columns}
    for name in ("log.parquet", "log.arrow"):
        assert samples([tmp_path / name], tmp_path / "x.h5", tree) == expected
        assert {*look([tmp_path / name]).frame.columns} == columns
        log = RawLog((index_of(tmp_path / name, table_schema(tree), "fail"),), table_schema(tree))
        assert log.open().take(np.arange(3)).features["items.id"].lengths.tolist() == [2, 0, 0]


def test_bytes_that_are_texts_are_looked_at_as_texts(tmp_path):
    log = tmp_path / "log.parquet"
    texts = {"y": [0, 1], "site": ["ä", None], "tags": [["a"], ["b", "c"]]}
    types = {"site": pl.Binary, "tags": pl.List(pl.Binary)}
    frame = pl.DataFrame(texts).cast(types).with_columns(key=pl.lit(b"\xff"))
    frame.write_parquet(log)
    looked = look([log]).frame
    expected = pl.DataFrame(texts)
    assert looked.schema == {**expected.schema, "key": pl.Binary}
    assert looked.drop("key").equals(expected)


def test_files_that_are_not_one_log_are_told_apart_by_what_differs(tmp_path):
    for name, columns in (("dense", 13), ("labels", 1)):
        np.save(tmp_path / f"{name}.npy", np.zeros((4, columns)))
    with pytest.raises(DataError) as caught:
        look([tmp_path])
    assert str(caught.value).endswith(
        "it lacks 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'c8', 'c9', 'c10', 'c11', 'c12'; "
        "arrays of the same rows are read from one archive: numpy.savez"
    )


def test_hdf5_of_other_programs_is_no_converted_data_set(tmp_path):
    h5py = pytest.importorskip("h5py")
    log = tmp_path / "train.h5"
    with h5py.File(log, "w") as file:
        file["user"] = [1, 2]
    with pytest.raises(DataError, match=r"not a neocpu dataset.*; write its columns to Parquet"):
        look([log])
