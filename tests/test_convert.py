"""Does a raw log become the right columns, and does a broken one say which file, line, column and
text is to blame?
"""

import dataclasses
import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from real_data import real_data

from neocpu.cli import run
from neocpu.core.errors import ConfigError, DataError
from neocpu.ingest import copy_cache
from neocpu.ingest.dataset import assembly
from neocpu.ingest.dataset.convert import convert
from neocpu.ingest.dataset.convert_options import ConvertOptions
from neocpu.ingest.dataset.copies import CopyFolders, ensure_dataset
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset_layout import BLOCK, crc32_of
from neocpu.ingest.formats import readers
from neocpu.ingest.formats.files.kinds import kind_of
from neocpu.ingest.formats.schema import Schema
from neocpu.ingest.formats.sources import _pieces
from neocpu.ingest.formats.text import TextParser
from neocpu.ingest.read_ahead import read_ahead
from neocpu.kernels.twins.numbers.elementary import log1p
from neocpu.kernels.twins.numbers.philox import fnv1a64

INTEGERS = [str(i) for i in range(13)]
CATEGORIES = [f"{i:08x}" for i in range(26)]


def line(label="1", **changed):
    """A Criteo row; changed: I1..I13 and C1..C26 by name."""
    integers = [changed.pop(f"I{i + 1}", value) for i, value in enumerate(INTEGERS)]
    categories = [changed.pop(f"C{i + 1}", value) for i, value in enumerate(CATEGORIES)]
    assert not changed
    return "\t".join([label, *integers, *categories])


def source(folder, text, name="log.tsv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def made(folder, text, kind="criteo", **options):
    """The dataset of a log given as text."""
    done = convert([source(folder, text)], folder / "out.h5", kind, ConvertOptions(**options))
    data = Dataset(folder / "out.h5")
    assert data.rows == done.rows
    return data


def all_rows(data):
    return data.take(np.arange(data.rows))


def slow_criteo(text):
    """What a Criteo log means, field by field."""
    rows = [one.split("\t") for one in text.decode().splitlines()]
    labels = np.array([row[0] for row in rows], np.float32)
    integers = np.array([[max(int(x or 0), 0) for x in row[1:14]] for row in rows], np.float64)
    return (
        labels,
        log1p(integers).astype(np.float32),
        np.array([[int(x or "0", 16) for x in row[14:]] for row in rows]),
    )


@pytest.mark.parametrize("compress", ["none", "gzip"])
def test_the_real_log_field_by_field(tmp_path, compress):
    path = real_data("criteo_kaggle_8k.tsv.gz")
    labels, dense, codes = slow_criteo(gzip.decompress(path.read_bytes()))
    assert (
        convert([path], tmp_path / "x.h5", "criteo", ConvertOptions(compress=compress)).rows == 8000
    )
    data = Dataset(tmp_path / "x.h5")
    rows = all_rows(data)
    assert np.array_equal(rows.labels, labels) and rows.dense.tobytes() == dense.tobytes()
    assert np.array_equal(
        np.stack([rows.features[f"C{i}"].codes for i in range(1, 27)], axis=1), codes
    )
    assert (
        data.missing["C22"] == (codes[:, 21] == 0).sum() and data.features["C1"].dtype == "uint32"
    )
    assert data.attributes["source"] == [{"name": path.name, "bytes": path.stat().st_size}]


def test_blocks_of_any_size_give_the_same_file(tmp_path, monkeypatch):
    text = "\n".join(line(I1=str(i), C1=f"{i:x}") for i in range(500))
    whole = convert([source(tmp_path, text)], tmp_path / "a.h5", "criteo").path.read_bytes()
    for size in (100, 1000, 4097):

        def short(path, size=size, **options):
            return readers.text_blocks(path, size, **options)

        monkeypatch.setattr("neocpu.ingest.formats.sources.text_blocks", short)
        assert (
            convert([tmp_path / "log.tsv"], tmp_path / "b.h5", "criteo").path.read_bytes() == whole
        )


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_line_ends_gzip_and_order_of_sources(tmp_path, end):
    between = "\r\n" if end == "\r\n" else "\n"
    one = source(
        tmp_path,
        "\ufeff" + between.join([line("0"), line("1", I1="-5", I2="", C1="", C2="ABCDEF01")]) + end,
    )
    two = source(
        tmp_path,
        gzip.compress(line("1").encode()) + gzip.compress(("\n" + line("0")).encode()),
        "b.gz",
    )
    convert([one, two], tmp_path / "x.h5", "criteo")
    data = Dataset(tmp_path / "x.h5")
    rows = all_rows(data)
    assert rows.labels.tolist() == [0, 1, 1, 0] and rows.features["C2"].codes.tolist() == [
        1,
        0xABCDEF01,
        1,
        1,
    ]
    assert rows.dense[1, :2].tolist() == [0, 0] and rows.features["C1"].codes[1] == 0
    assert data.missing_dense.tolist() == [0, 1] + [0] * 11 and data.missing["C1"] == 1


def test_dense_transform_none_keeps_the_integers(tmp_path):
    data = made(tmp_path, line(I1="-5", I2="16777217"), dense_transform="none")
    assert all_rows(data).dense[0, :3].tolist() == [-5, 16777216, 2]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("1\t0\t1", r"line 2 has 3 columns, expected 40: '1\\t0\\t1'"),
        (line() + "\t7", "line 2 has 41 columns, expected 40"),
        ("", "line 2 has 1 column, expected 40: ''"),
        (line(I3="12x"), "line 2, column I3: '12x' is not an integer"),
        (line(I3="1.5"), "line 2, column I3: '1.5' is not an integer"),
        (line(I13="9" * 25), "line 2, column I13: '9999999999999999999999999' is too large"),
        (line(C5="123456789"), "line 2, column C5: '123456789' has more than 8 hexadecimal digits"),
        (line(C26="xyz"), "line 2, column C26: 'xyz' is not a hexadecimal number"),
        (line(C26="é" * 60), f"line 2, column C26: '{'é' * 60}' is not a hexadecimal number"),
        (line("2"), "line 2, column label: '2' is not a click label; it must be 0 or 1"),
        (line(""), "line 2, column label: '' is empty, but a label is needed"),
        (line("x", C1="y"), "line 2, column label: 'x' is not an integer"),
        (line(I1="-", C1="y"), "line 2, column I1: '-' is not an integer"),
    ],
)
def test_a_faulty_line_is_named_exactly(tmp_path, bad, message):
    path = source(tmp_path, "\n".join([line(), bad, line(), line("7")]) + "\n")
    with pytest.raises(DataError, match=message) as caught:
        convert([path], tmp_path / "x.h5", "criteo")
    assert str(caught.value).startswith(f"{path}, line 2") and "--on-error skip" in str(
        caught.value
    )
    assert os.listdir(tmp_path) == ["log.tsv"]


def test_skipping_counts_and_reports(tmp_path):
    lines = [line(I1=str(i)) if i % 2 else line(I1="x" * i) for i in range(2, 402)]
    path = source(tmp_path, "\n".join(lines))
    done = convert(
        [path], tmp_path / "x.h5", "criteo", ConvertOptions(on_error="skip", dense_transform="none")
    )
    assert (done.rows, done.skipped) == (200, 200)
    assert all_rows(Dataset(done.path)).dense[:, 0].tolist() == list(range(3, 402, 2))
    report = done.report.read_text().splitlines()
    assert (
        report[0] == "200 faulty lines were skipped"
        and len(report) == 102
        and report[-1] == "… and 100 more"
    )
    assert (
        report[1] == f"{path}, line 1, column I1: 'xx' is not an integer"
        and "line 199" in report[100]
    )
    convert(
        [source(tmp_path, line())], tmp_path / "x.h5", "criteo", ConvertOptions(on_error="skip")
    )
    assert not done.report.exists()


def test_files_that_are_not_logs(tmp_path):
    whole = gzip.compress(("\n".join([line()] * 5000)).encode())
    cases = [
        (b"", "has no rows"),
        (whole[: len(whole) // 2], "truncated or damaged gzip file"),
        (whole[:-4], "truncated or damaged gzip file"),
        (whole[:20] + b"\0\0\0\0" + whole[24:], "gzip|column"),
        (b"PAR1 no parquet", "not a readable Parquet file"),
        (b"\x89HDF\r\n\x1a\n", "already an HDF5 file"),
    ]
    for content, message in cases:
        with pytest.raises(DataError, match=message):
            convert([source(tmp_path, content)], tmp_path / "x.h5", "criteo")
    with pytest.raises(DataError, match=r"none\.tsv: cannot be read: No such file"):
        convert([tmp_path / "none.tsv"], tmp_path / "x.h5", "criteo")
    assert os.listdir(tmp_path) == ["log.tsv"]


def test_pipes_are_refused_at_once(tmp_path):
    pipe = tmp_path / "pipe.tsv"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # or opening it to read would block
    try:
        os.write(writer, b"0\t1\t2\t3\n")
        with pytest.raises(
            DataError, match=r"pipe\.tsv: not a regular file; .* write them to a file"
        ):
            convert([pipe], tmp_path / "log.h5", "criteo")
    finally:
        os.close(writer)
    for path in ("/dev/stdin", "/dev/null", "/proc/self/fd/0"):
        with pytest.raises(DataError, match="not a regular file"):
            kind_of(Path(path))
    with pytest.raises(DataError, match="embedded null"):
        kind_of(Path("a\0b"))


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LONGEST_LINE", 1 << 20)
    with pytest.raises(DataError, match="a line is longer than 1 MiB"):
        convert([source(tmp_path, b"x" * (3 << 20))], tmp_path / "x.h5", "criteo")


def test_criteo_without_labels_and_with_a_header(tmp_path):
    data = made(tmp_path, "a\tb\n" + line().partition("\t")[2], labelled=False, header=True)
    assert not data.labelled and data.rows == 1
    with pytest.raises(DataError, match="has 39 columns, expected 40"):
        made(tmp_path, line().partition("\t")[2])


def test_parquet_gives_the_bytes_of_the_text(tmp_path):
    polars = pytest.importorskip("polars")
    lines = []
    for i in range(9000):
        lines.append(
            line(
                str(i % 2),
                I1=str(i - 3),
                I2="" if i % 3 else "4",
                C1=f"{i:08x}",
                C2="" if i % 5 else "ff",
            )
        )
    text = convert([source(tmp_path, "\n".join(lines))], tmp_path / "a.h5", "criteo")
    fields = list(zip(*(one.split("\t") for one in lines)))
    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    columns = {name: [x or None for x in column] for name, column in zip(names, fields)}
    frame = polars.DataFrame(columns).with_columns(polars.col(names[:14]).cast(polars.Int64))
    expected = all_rows(Dataset(text.path))
    values = polars.col(names[14:]).str.to_integer(base=16)
    as_numbers = frame.with_columns(values, polars.col("I2").cast(polars.Float64))
    by_place = frame.rename({name: f"column_{name}" for name in names})
    shuffled = frame.select([*reversed(names), polars.lit("extra").alias("more")])
    for other in (
        frame,
        as_numbers,
        by_place,
        shuffled,
        frame.with_columns(polars.col("label") == 1),
    ):
        other.write_parquet(tmp_path / "x.parquet", row_group_size=1000)
        convert([tmp_path / "x.parquet"], tmp_path / "b.h5", "criteo")
        rows = all_rows(Dataset(tmp_path / "b.h5"))
        assert (
            rows.labels.tobytes() == expected.labels.tobytes()
            and rows.dense.tobytes() == expected.dense.tobytes()
        )
        for name, bags in expected.features.items():
            assert rows.features[name].codes.tobytes() == bags.codes.tobytes()
    wrong = polars.when(polars.int_range(9000) == 8500).then(polars.lit("zz")).otherwise("C3")
    faulty = frame.with_columns(wrong.alias("C3"))
    for other, message in (
        (faulty, "row 8501, column C3: 'zz' is not a hexadecimal number"),
        (
            frame.with_columns(polars.lit(0.5).alias("I3")),
            "row 1, column I3: '0.5' is not an integer",
        ),
        (frame.drop("C7"), "column 'C7' is missing; the file has 'label', 'I1'"),
    ):
        other.write_parquet(tmp_path / "x.parquet")
        with pytest.raises(DataError, match=message):
            convert([tmp_path / "x.parquet"], tmp_path / "b.h5", "criteo")


def test_avazu(tmp_path):
    path = real_data("avazu_10k.csv.gz")
    assert convert([path], tmp_path / "x.h5", "avazu").rows == 9999
    data = Dataset(tmp_path / "x.h5")
    rows = all_rows(data)
    first = gzip.decompress(path.read_bytes()).decode().splitlines()[1].split(",")
    assert (
        data.dense_columns == () and len(data.features) == 23 and rows.labels[0] == float(first[1])
    )
    assert rows.features["site_id"].codes[0] == fnv1a64(first[5])
    assert rows.features["C21"].codes[0] == fnv1a64(first[23])
    # 14102100 is midnight of 21 October 2014, a Tuesday.
    assert rows.features["hour"].codes[0] == 1 and rows.features["weekday"].codes[0] == 2
    with pytest.raises(
        DataError,
        match=r"columns 'click', 'C1', .* are missing; the file has 'id'.*An Avazu log has id",
    ):
        made(tmp_path, "id,hour\n1,14102100\n", "avazu")


SCHEMA = """
delimiter = ","
quote = '"'
[label]
column = "y"
kind = "number"
[[dense]]
columns = ["price"]
kind = "float"
transform = "none"
[[dense]]
columns = ["age"]
[[category]]
columns = ["site"]
[[category]]
columns = ["id"]
kind = "int"
[[category]]
columns = ["when"]
kind = "weekday"
[[category]]
columns = ["tags"]
separator = "|"
weight_separator = ":"
name = "topics"
"""
HEADER = "junk,site,price,tags,age,id,when,y\n"


def table(folder, text, schema=SCHEMA, **options):
    path = source(folder, schema, "schema.toml")
    return made(folder, text, "table", schema=path, **options)


def test_table_of_every_kind(tmp_path):
    text = HEADER + (
        'x,"a, ""b""",1.1,red:0.5|blue,7,-3,24022923,0.25\r\n'
        ",plain,,,,9223372036854775807,24010100,-1e3\r\n"
        ",,0.1234567890123456789,||green:1e-3,-9,,24123100,2\r\n"
    )
    data = table(tmp_path, text)
    rows = all_rows(data)
    assert rows.labels.tolist() == [0.25, -1000, 2]
    assert rows.dense[:, 0].tolist() == [
        float(np.float32(x)) for x in (1.1, 0, 0.1234567890123456789)
    ]
    assert rows.dense[:, 1].tolist() == [float(np.float32(np.log1p(7))), 0, 0]
    assert rows.features["site"].codes.tolist() == [fnv1a64('a, "b"'), fnv1a64("plain"), 0]
    assert rows.features["id"].codes.tolist() == [2**64 - 3, 2**63 - 1, 2**63]
    assert rows.features["when"].codes.tolist() == [4, 1, 2]  # 29 February 2024 was a Thursday
    topics = rows.features["topics"]
    assert topics.lengths.tolist() == [2, 0, 3]
    assert topics.codes.tolist() == [fnv1a64("red"), fnv1a64("blue"), 0, 0, fnv1a64("green")]
    assert topics.weights.tolist() == [0.5, 1, 1, 1, float(np.float32(1e-3))]
    assert data.missing == {
        "site": 1,
        "id": 1,
        "when": 0,
        "topics": 1,
    } and data.missing_dense.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("x,a,1e39,t,1,1,24010100,0", "line 2, column price: '1e39' is too large for its column"),
        ("x,a,1,t,1,1,24010100,1e39", "line 2, column .*: '1e39' is too large for its column"),
        ("x,a,nan,t,1,1,24010100,0", "column price: 'nan' is not a number"),
        ("x,a,1," + "t:x,1,1,24010100,0", "column tags: 'x' is not a number"),
        ("x,a,1,t,1,1,24023000,0", "column when: '24023000' is not a time YYMMDDHH"),
        ("x,a,1,t,1,1,24010124,0", "column when: '24010124' is not a time"),
        ('x,"a,1,t,1,1,24010124,0', "line 2 has a quote that is not closed: 'x,\"a,1"),
        ("x,a,1,t,1,1,24010100,", "column y: '' is empty, but a label is needed"),
    ],
)
def test_table_faults(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        table(tmp_path, HEADER + row + "\n")
    good = "x,a,1,t:2|u,1,1,24010100,3\n"
    data = table(tmp_path, HEADER + good + row + "\n" + good, on_error="skip")
    rows = all_rows(data)
    assert data.rows == 2 and data.features["topics"].hotness == 2
    assert rows.features["topics"].weights.tolist() == [2, 1, 2, 1] and rows.labels.tolist() == [
        3,
        3,
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[label]", "[lable]"), "unknown key 'lable'; did you mean 'label'"),
        (('kind = "float"', 'kind = "real"'), "dense 1: kind = 'real'; choose one of int, float"),
        (('column = "y"', ""), "label: column is missing"),
        (('columns = ["price"]', 'columns = "price"'), "dense 1: columns = 'price' is not a list"),
        (('columns = ["age"]', "columns = []"), "dense 2: columns must be a list"),
        (
            ('columns = ["tags"]', 'columns = ["tags", "id"]'),
            "category 4: name goes with exactly one column",
        ),
        (('separator = "|"', 'separator = "||"'), "separator = '||' must be one ASCII character"),
        (('separator = "|"\n', ""), "weight_separator needs a separator"),
        (('delimiter = ","', 'delimiter = ""'), "must be one ASCII character"),
        (('delimiter = ","', "header = false"), "header = false needs columns"),
        (("[label]", "[label"), "not a TOML file"),
    ],
)
def test_a_wrong_schema_names_key_and_choices(tmp_path, change, message):
    assert change[0] in SCHEMA
    with pytest.raises(ConfigError, match=message.replace("|", r"\|")):
        table(tmp_path, HEADER, SCHEMA.replace(*change))


def test_a_table_without_header_needs_its_columns(tmp_path):
    schema = (
        'header = false\ncolumns = ["y", "c"]\n[label]\ncolumn = "y"\n[[category]]\ncolumns '
        '= ["c"]\nkind = "hex"\n'
    )
    data = table(tmp_path, "1,ff\n0,10\n", schema)
    assert (
        all_rows(data).features["c"].codes.tolist() == [255, 16]
        and data.features["c"].dtype == "uint64"
    )
    with pytest.raises(ConfigError, match="column 'y' is missing; columns has 'z', 'c'"):
        table(tmp_path, "1,ff\n", schema.replace('"y", "c"]', '"z", "c"]'))


def test_vocabulary_is_fitted_stored_and_applied(tmp_path):
    text = "\n".join(line(C1=code, C2="7") for code in ["b"] * 3 + ["a"] * 3 + ["c"] * 2 + ["d"])
    data = made(tmp_path, text, min_count=2)
    assert data.vocabularies["C1"].tolist() == [0xA, 0xB, 0xC] and data.vocabularies[
        "C2"
    ].tolist() == [7]
    assert data.vocabularies["C1"].dtype == np.uint32
    train = ConvertOptions(vocabulary=tmp_path / "out.h5")
    convert([source(tmp_path, line(C1="e"))], tmp_path / "test.h5", "criteo", train)
    test = Dataset(tmp_path / "test.h5")
    assert test.vocabularies["C1"].tolist() == [0xA, 0xB, 0xC] and all_rows(test).features[
        "C1"
    ].codes.tolist() == [0xE]
    convert([source(tmp_path, line())], tmp_path / "plain.h5", "criteo")
    with pytest.raises(
        DataError, match="has no vocabulary; convert the train file with --min-count N"
    ):
        made(tmp_path, line(), vocabulary=tmp_path / "plain.h5")


def test_a_raw_log_is_converted_once_per_content_and_options(tmp_path):
    raw = source(tmp_path, line())
    first = ensure_dataset([raw], "criteo")
    assert (
        first[0].parent == copy_cache.cache_folder()
        and first[0].name.endswith(".converted.h5")
        and Dataset(first).rows == 1
    )
    stamp = first[0].stat().st_mtime_ns
    assert (
        ensure_dataset([raw, first[0]], "criteo") == [first[0], first[0]]
        and first[0].stat().st_mtime_ns == stamp
    )
    untransformed = ensure_dataset([raw], "criteo", ConvertOptions(dense_transform="none"))
    assert untransformed != first
    source(tmp_path, line() + "\n" + line())
    again = ensure_dataset([raw], "criteo")
    assert again != first and Dataset(again).rows == 2
    both = ensure_dataset([raw, raw], "criteo", ConvertOptions(min_count=1))
    assert len(both) == 1 and Dataset(both).rows == 4
    with pytest.raises(DataError, match="all train files raw or all converted"):
        ensure_dataset([raw, raw, first[0]], "criteo", ConvertOptions(min_count=1))


def test_a_cache_without_room_sends_the_copy_elsewhere(tmp_path, monkeypatch):
    raw = source(tmp_path, line())
    out = CopyFolders(tmp_path / "out")
    monkeypatch.setenv("NEOCPU_DATA_CACHE_GIB", "0")
    assert ensure_dataset([raw], "criteo", folders=out)[0].parent == tmp_path / "out"
    with pytest.raises(DataError, match=r"has no room in .*; give --out DIR, or another folder in"):
        ensure_dataset([source(tmp_path, line(), "b.tsv")], "criteo")
    monkeypatch.delenv("NEOCPU_DATA_CACHE_GIB")
    (tmp_path / "file").touch()
    monkeypatch.setenv("NEOCPU_DATA_CACHE", str(tmp_path / "file"))
    hidden = ensure_dataset([tmp_path / "b.tsv"], "criteo", folders=out)
    assert hidden[0].parent == tmp_path / "out"
    monkeypatch.setenv("NEOCPU_DATA_CACHE", str(tmp_path / "mine"))
    unseen = out._replace(cache=False)
    assert ensure_dataset([tmp_path / "b.tsv"], "criteo", folders=unseen) == hidden
    # a copy beside its log, as older versions made them, is found first
    beside = tmp_path / hidden[0].name
    hidden[0].rename(beside)
    assert ensure_dataset([tmp_path / "b.tsv"], "criteo") == [beside]


def test_options_are_checked(tmp_path):
    for kind, options, message in (
        ("criteo", ConvertOptions(dense_transform="sqrt"), "choose one of log1p, none"),
        ("criteo", ConvertOptions(on_error="ignore"), "choose one of fail, skip"),
        ("kaggle", ConvertOptions(), "choose one of criteo, avazu, table"),
        ("table", ConvertOptions(), "needs its SCHEMA.toml"),
        ("table", ConvertOptions(schema=tmp_path / "no.toml"), "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=message):
            convert([source(tmp_path, line())], tmp_path / "x.h5", kind, options)


def test_progress_reaches_the_end(tmp_path):
    path = source(tmp_path, "\n".join([line()] * 9000))
    calls = []
    convert([path, path], tmp_path / "x.h5", "criteo", progress=lambda *told: calls.append(told))
    assert calls[-1] == (2 * path.stat().st_size, 2 * path.stat().st_size, 18000) and len(calls) > 2


def test_reading_ahead_passes_items_errors_and_the_end():
    def failing():
        yield 1
        raise OSError("gone")

    for depth in (0, 1, 3):
        assert list(read_ahead(iter(range(9)), depth)) == list(range(9))
        items = read_ahead(failing(), depth)
        assert next(items) == 1
        with pytest.raises(OSError, match="gone"):
            next(items)
    closed = []

    def endless():
        try:
            while True:
                yield 0
        finally:
            closed.append(True)

    items = read_ahead(endless(), 2)
    next(items)
    items.close()
    assert closed == [True]


# ---- inputs that no log has ----


@pytest.mark.parametrize("kind", ["criteo", "avazu", "table"])
@pytest.mark.parametrize("contents", [b"", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_told(tmp_path, kind, contents):
    schema = source(tmp_path, '[[category]]\ncolumns = ["c"]\n', "s.toml")
    log = source(tmp_path, contents)
    options = ConvertOptions(schema=schema if kind == "table" else None)
    with pytest.raises(DataError, match=r"log\.tsv: has no rows"):
        convert([log], tmp_path / "x.h5", kind, options)
    skipping = dataclasses.replace(options, on_error="skip")
    with pytest.raises(DataError, match=r"log\.tsv: has no rows"):
        convert([log], tmp_path / "x.h5", kind, skipping)


def test_a_log_that_grows_while_it_is_read_is_told(tmp_path, monkeypatch):
    log = tmp_path / "log.csv"
    log.write_text("y,c\n1,a\n0,12")
    parsed = TextParser.parse_fields
    read = []

    def growing(parser, fields):
        read.append(fields)
        if len(read) == 2:  # what it ended with until now, which was no whole line yet
            with open(log, "a") as file:
                file.write("34\n")
        return parsed(parser, fields)

    monkeypatch.setattr(TextParser, "parse_fields", growing)
    tree = {"label": {"column": "y"}, "category": [{"columns": ["c"]}]}
    with pytest.raises(DataError, match=r"log\.csv: has changed while it was read"):
        convert([log], tmp_path / "x.h5", "table", ConvertOptions(schema=tree))
    assert not (tmp_path / "x.h5").exists()


def test_a_first_line_that_is_no_header_is_told(tmp_path):
    for text in ("a" * 200_000 + "\n1\n", '"y\rz",c\n1,2\n', "a\rb\n1\n"):
        with pytest.raises(DataError, match=r"log\.tsv: (its (first )?line|column)") as caught:
            table(tmp_path, text, 'quote = ""\n[[category]]\ncolumns = ["c"]\n')
        assert len(str(caught.value)) < 5000


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("a = " + "[" * 5000, "not a TOML file"),
        ("a = " + "9" * 5000, "not a TOML file"),
        ('columns = [1, 2]\n[[category]]\ncolumns = ["c"]\n', "list of column names"),
        ('columns = [["c"]]\n[[category]]\ncolumns = ["c"]\n', "list of column names"),
        ('quote = ","\n[[category]]\ncolumns = ["c"]\n', "quote and delimiter are both ','"),
        ('delimiter = "\\u0000"\n[[category]]\ncolumns = ["c"]\n', "one ASCII character"),
        ("x = 1\n", "unknown key 'x'; allowed: delimiter, quote, header"),
    ],
)
def test_odd_schemas_are_told(tmp_path, schema, message):
    with pytest.raises(ConfigError, match=message):
        table(tmp_path, "c\n1\n", schema)


@pytest.mark.parametrize("delimiter", [",", "::", "|||"])
def test_delimiters_have_any_length(delimiter):
    schema = Schema("table", None, (), (), delimiter=delimiter)
    assert schema.split_line(f" a {delimiter}{delimiter}b") == ["a", "", "b"]


def test_a_column_name_that_hdf5_cannot_hold_is_told(tmp_path):
    with pytest.raises(DataError, match="cannot name a column"):
        table(tmp_path, "c\0\n1\n", '[[category]]\ncolumns = ["c\\u0000"]\n')


def test_blocks_of_empty_lines_take_little_memory(tmp_path):
    text = np.full(1 << 20, ord("\n"), np.uint8)
    pieces = list(_pieces(text, 40))
    assert sum(piece.size for piece in pieces) == text.size
    assert max(piece.size for piece in pieces) * 40 < 2 * text.size
    good = np.frombuffer((line() + "\n").encode() * 100, np.uint8)
    assert len(list(_pieces(good, 40))) == 1


def test_a_panic_of_polars_is_an_error(tmp_path, monkeypatch):
    polars = pytest.importorskip("polars")

    def panic(*_):
        raise polars.exceptions.PanicException("index out of bounds:\nthe len is 3")

    polars.DataFrame({"c": [1]}).write_parquet(tmp_path / "log.parquet")
    (tmp_path / "s.toml").write_text('[[category]]\ncolumns = ["c"]\n')
    options = ConvertOptions(schema=tmp_path / "s.toml")
    for name in ("scan_parquet", "len"):
        with monkeypatch.context() as patch:
            patch.setattr(polars, name, panic)
            message = r"log\.parquet: .*: index out of bounds: the len is 3$"
            with pytest.raises(DataError, match=message):
                convert([tmp_path / "log.parquet"], tmp_path / "x.h5", "table", options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.parquet", "s.toml"]


def test_columns_of_parquet_that_are_no_fields_are_told(tmp_path):
    polars = pytest.importorskip("polars")
    polars.DataFrame({"c": [[1, 2], [3]]}).write_parquet(tmp_path / "log.parquet")
    (tmp_path / "s.toml").write_text('[[category]]\ncolumns = ["c"]\n')
    options = ConvertOptions(schema=tmp_path / "s.toml")
    with pytest.raises(DataError, match=r"log\.parquet: column 'c' holds lists"):
        convert([tmp_path / "log.parquet"], tmp_path / "x.h5", "table", options)


def test_a_report_that_cannot_be_written_is_told(tmp_path, capsys):
    (tmp_path / "x.h5.errors.txt").mkdir()
    log = source(tmp_path, line() + "\nwrong\n")
    done = convert([log], tmp_path / "x.h5", "criteo", ConvertOptions(on_error="skip"))
    assert done.report is None and done.trouble == "Is a directory" and done.skipped == 1
    assert Dataset(tmp_path / "x.h5").rows == 1
    run(
        [
            *("data", "convert", "criteo", str(log), str(tmp_path / "x.h5")),
            *("--on-error", "skip", "--force"),
        ]
    )
    assert "report of them cannot be written: Is a directory" in capsys.readouterr().out


@pytest.mark.parametrize(("rows", "width"), [(3, 1000), (9001, 3), (9001, 1)])
def test_columns_of_long_lists_are_copied_in_parts_of_blocks(rows, width, tmp_path, monkeypatch):
    monkeypatch.setattr(assembly, "COPY", 512)
    part = assembly.PartFile(tmp_path / "part", "<u8")
    entries = np.arange(rows * width, dtype=np.uint64).reshape(rows, width)
    part.append(entries)
    checksums = np.zeros(-(-rows // BLOCK), np.uint32)
    pieces = list(assembly._pieces(assembly._Column("codes", part, (rows, width)), checksums))
    np.testing.assert_array_equal(np.concatenate([piece for _, piece in pieces]), entries)
    assert max(piece.size for _, piece in pieces) <= max(512, width)
    expected = [crc32_of(entries[first : first + BLOCK]) for first in range(0, rows, BLOCK)]
    assert checksums.tolist() == expected
