"""Which data do the readers of logs and data sets get from `tests.fuzz`?"""

import datetime
import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bench_formats
import h5py
import numpy as np
from fuzzing import Random, Reader, damaged, mutate_bytes
from sealed_files import edit

from neocpu.ingest.dataset.card import make_card
from neocpu.ingest.dataset.convert import convert
from neocpu.ingest.dataset.convert_options import ConvertOptions
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.vocabulary import frequencies
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import BagColumn, FeatureColumn
from neocpu.ingest.formats.table import table_schema

SAMPLES = 5000  # two blocks
FORMS = (
    *("json lines", "json array", "arrow", "arrow stream", "npz", "npy"),
    *("bzip2", "xz", "zstd", "zip", "utf-16"),
)
LIBFFM = {
    "label": {"column": "label"},
    "category": [
        {"columns": ["field_0"], "kind": "int"},
        {"columns": ["field_1"], "kind": "int", "separator": " ", "weight_separator": ":"},
    ],
}


def readers() -> dict[str, Reader]:
    """All readers of data, by name."""
    known = {
        "dataset": Reader(lambda folder: _dataset(folder, "none"), _read_dataset, _mutate_hdf5),
        "dataset-labels": Reader(
            lambda folder: _dataset(folder, "none", ("y", "z")), _read_dataset, _mutate_hdf5
        ),
        "dataset-gzip": Reader(
            lambda folder: _dataset(folder, "gzip"), _read_dataset, _mutate_hdf5
        ),
        "dataset-0.1.0": Reader(_old_dataset, _read_dataset, _mutate_hdf5),
        "criteo": Reader(_criteo, _convert("criteo"), mutate_text),
        "criteo-gzip": Reader(_criteo_gzip, _convert("criteo"), mutate_text),
        "avazu": Reader(_avazu, _convert("avazu"), mutate_text),
        "table": Reader(_table, _convert("table"), mutate_text),
        "table-rich": Reader(_rich_table, _convert("table"), mutate_text),
        "table-schema": Reader(_schema, _read_schema, mutate_schema),
        "table-schema-rich": Reader(_rich_schema, _read_schema, mutate_schema),
        "parquet": Reader(_parquet, _convert("table"), _mutate_binary),
        "parquet-rich": Reader(_rich_parquet, _convert("table"), _mutate_binary),
        "libffm": Reader(_libffm, convert_tree(LIBFFM), mutate_text),
    }
    for form in FORMS:
        mutate = mutate_text if form in ("json lines", "json array") else _mutate_binary
        name = form.replace(" ", "-")
        read = convert_tree(bench_formats.schema_of(form))
        known[name] = Reader(partial(_form, form), read, mutate)
    return known


# ---- inputs ----


def _dataset(folder: Path, compress: str, labels: tuple[str, ...] = ()) -> Path:
    """All kinds of columns: labels, dense, fixed, multi-hot, ragged, weighted, counted."""
    path = folder / "data.h5"
    rng = np.random.default_rng(1)
    features = [
        FeatureColumn("C1"),
        FeatureColumn("C2", "uint64", 3),
        FeatureColumn("C3", "uint64", 0, weighted=True, kind="text"),
    ]
    lengths = rng.integers(0, 4, SAMPLES).astype(np.int32)
    bags = BagColumn(
        rng.integers(0, 99, int(lengths.sum()), np.uint64), lengths, np.ones(int(lengths.sum()))
    )
    with DatasetWriter(
        path,
        ["a", "b"],
        features,
        attributes={"note": [1, "x"]},
        compress=compress,
        labels=labels,
    ) as writer:
        writer.schema = {"version": 2} if labels else None
        writer.append(
            rng.integers(0, 2, SAMPLES),
            rng.random((SAMPLES, 2)),
            {
                "C1": rng.integers(0, 50, SAMPLES),
                "C2": rng.integers(0, 50, (SAMPLES, 3)),
                "C3": bags,
            },
            more_labels={name: rng.random(SAMPLES) for name in labels[1:]},
        )
        writer.vocabularies["C1"] = np.arange(20, dtype=np.uint64)
        writer.frequencies["C2"] = (np.arange(9, dtype=np.uint64), np.arange(9)[::-1].copy(), 1)
    return path


def _old_dataset(folder: Path) -> Path:
    """As neocpu 0.1.0 wrote it: no seal, no checksums, text of variable length."""
    path = _dataset(folder, "none")

    def change(file: h5py.File) -> None:
        del file.attrs["sealed"]
        for name in _names(file):
            if name.endswith("_crc32"):
                del file[name]
                continue
            for key, value in file[name].attrs.items():
                if isinstance(value, bytes):
                    file[name].attrs[key] = value.decode()

    edit(path, change, reseal=False)
    return path


def _criteo_lines() -> bytes:
    rng = np.random.default_rng(2)
    lines = []
    for _ in range(40):
        numbers = [str(n) if n else "" for n in rng.integers(-1, 500, 13)]
        codes = [f"{c:08x}" if c % 7 else "" for c in rng.integers(0, 2**32, 26)]
        lines.append("\t".join([str(rng.integers(2)), *numbers, *codes]))
    return ("\n".join(lines) + "\n").encode()


def _criteo(folder: Path) -> Path:
    path = folder / "log.tsv"
    path.write_bytes(_criteo_lines())
    return path


def _criteo_gzip(folder: Path) -> Path:
    path = folder / "log.tsv.gz"
    path.write_bytes(gzip.compress(_criteo_lines(), mtime=0))
    return path


def _avazu(folder: Path) -> Path:
    path = folder / "log.csv"
    names = "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,"
    names += "app_category,device_id,device_ip,device_model,device_type,device_conn_type,"
    names += ",".join(f"C{i}" for i in range(14, 22))
    row = ",".join(["7", "1", "14102101", *(f'"t{i}"' for i in range(21))])
    path.write_text("\n".join([names, *[row] * 20]) + "\n")
    return path


SCHEMA = """
delimiter = ","
quote = '"'
[label]
column = "y"
kind = "number"
[[dense]]
columns = ["price", "age"]
kind = "float"
[[category]]
columns = ["site"]
kind = "hex"
digits = 8
[[category]]
columns = ["tags"]
separator = "|"
weight_separator = ":"
[[category]]
columns = ["time"]
kind = "hour"
"""


def _schema(folder: Path) -> Path:
    path = folder / "schema.toml"
    path.write_text(SCHEMA)
    return path


# every key that SCHEMA lacks; numbers are fitted
RICH_SCHEMA = """
version = 3
delimiter = "::"
missing = ["NULL", "-"]
session = "site"
[[label]]
column = "y"
threshold = 1.0
[[label]]
column = "site"
name = "bought"
positive = ["a", "b"]
[[dense]]
columns = ["price"]
kind = "float"
transform = "standard"
invalid = "missing"
[[category]]
columns = ["site"]
[[category]]
columns = ["age"]
kind = "int"
[[category]]
columns = ["price"]
name = "bucket"
kind = "bucket"
buckets = 3
[[category]]
columns = ["tags"]
separator = "|"
list = true
weights = "weights"
[[category]]
columns = ["time"]
kind = "date"
time = "iso"
[[category]]
columns = ["seconds"]
kind = "hour"
time = "unix"
"""


def _rich_table(folder: Path) -> Path:
    (folder / "schema.toml").write_text(RICH_SCHEMA)
    path = folder / "log.csv"
    row = "1.5::3e4::-7::a::x|y::0.5|::2014-10-21T05:00Z::1.4e9\n"
    row += "0::-::true::NULL::::::2014-10-21::\n"
    path.write_text("y::price::age::site::tags::weights::time::seconds\n" + row * 20)
    return path


def _rich_schema(folder: Path) -> Path:
    path = folder / "schema.toml"
    path.write_text(RICH_SCHEMA)
    return path


def _rich_parquet(folder: Path) -> Path:
    import polars

    (folder / "schema.toml").write_text(RICH_SCHEMA)
    path = folder / "log.parquet"
    columns: dict[str, list[Any]] = {
        "y": [True, False] * 20,
        "price": [3e4, float("nan")] * 20,
        "age": [-7, None] * 20,
        "site": ["a", None] * 20,
        "tags": [["x", "y"], None] * 20,
        "weights": [[0.5, None], []] * 20,
        "time": [datetime.date(2014, 10, 21), None] * 20,
        "seconds": [1_400_000_000, None] * 20,
    }
    frame = polars.DataFrame(columns).with_columns(polars.col("site").cast(polars.Categorical))
    frame.write_parquet(path)
    return path


def _table(folder: Path) -> Path:
    _schema(folder)
    path = folder / "log.csv"
    row = '1.5,3e4,-7,00ff,"a:0.5|b",14102101\n0,,,"",,\n'
    path.write_text("y,price,age,site,tags,time\n" + row * 20)
    return path


def _parquet(folder: Path) -> Path:
    import polars

    _schema(folder)
    path = folder / "log.parquet"
    columns: dict[str, list[Any]] = {
        "y": [1.5, 0.0] * 20,
        "price": [3e4, None] * 20,
        "age": [-7.0, 2.5] * 20,
        "site": [255, 16] * 20,
        "tags": ["a:0.5|b", None] * 20,
        "time": [14102101, 14102102] * 20,
    }
    polars.DataFrame(columns).write_parquet(path)
    return path


def _form(form: str, folder: Path) -> Path:
    (path,) = bench_formats.LOGS[form](folder)
    return path


def _libffm(folder: Path) -> Path:
    path = folder / "log.ffm"
    path.write_text("1 0:3:1 1:17:1 1:18:0.5\n0 0:4:1.0 1:17:0.25\n" * 20)
    return path


# ---- what they hold ----


def _read_dataset(path: Path) -> Any:
    """All values and everything about them."""
    data = Dataset(path)
    try:
        return _all_of(data)
    finally:
        data.close()  # an error keeps it alive, and HDF5 opens no file for writing that it reads


def _all_of(data: Dataset) -> Any:
    samples = data.take(np.arange(data.rows, dtype=np.int64))
    bags = tuple(
        (name, *(None if part is None else part.tobytes() for part in bag))
        for name, bag in samples.features.items()
    )
    streams = tuple(
        (
            b"".join(block.tobytes() for block in data.code_blocks(name, 1000)),
            b"".join(block.tobytes() for block in data.length_blocks(name, 1000)),
            tuple(part.tobytes() for part in frequencies(data, name)),
        )
        for name in data.features
    )
    card = json.dumps(make_card(data).as_dict() | {"files": []}, sort_keys=True)
    words = tuple((name, codes.tobytes()) for name, codes in data.vocabularies.items())
    labels = (samples.labels.tobytes(), data.label_names, data.label_range(), data.schema)
    return labels, samples.dense.tobytes(), bags, streams, words, card


def _convert(kind: str) -> Callable[[Path], Any]:
    """What a log becomes, with all faulty lines left out."""

    def read(path: Path) -> Any:
        schema = path.parent / "schema.toml"
        options = ConvertOptions(
            on_error="skip", schema=schema if kind == "table" else None, min_count=1
        )
        target = path.parent / "converted.h5"
        convert([path], target, kind, options)
        return _read_dataset(target)

    return read


def convert_tree(tree: dict[str, Any]) -> Callable[[Path], Any]:
    """What a log becomes by this schema, with all faulty rows left out."""

    def read(path: Path) -> Any:
        target = path.parent / "converted.h5"
        convert([path], target, "table", ConvertOptions(on_error="skip", schema=tree))
        return _read_dataset(target)

    return read


def _read_schema(path: Path) -> Any:
    return repr(table_schema(path))


# ---- mutations of logs ----

PIECES = (
    *(b"\n", b"\n" * 5000, b"\r", b"\r\n", b"\0", b"\t", b",", b'"', b'""', b"|", b":", b"\x1f"),
    *(b"\xff\xfe", b"\xed\xa0\x80", "\u202e\u2028".encode(), b"[/bold]", b"9" * 500, b"-", b"."),
    *(b"1e999", b"nan", b"inf", b"0x", b"[" * 3000, b"{" * 3000, b"a" * 200_000, b"=", b"#"),
)


def _mutate_binary(path: Path, chance: Random) -> bool:
    """Bytes alone."""
    mutate_bytes(path, chance)
    return True


def mutate_text(path: Path, chance: Random) -> bool:
    """Bytes, or pieces that mean something to a parser; those of a gzip file inside, sometimes."""
    contents = bytearray(path.read_bytes())
    packed = contents[:2] == b"\x1f\x8b" and chance.random() < 0.5
    if packed:
        contents = bytearray(gzip.decompress(contents))
    for _ in range(1 + int(chance.integers(3))):
        if not contents or chance.random() < 0.5:
            contents = damaged(contents, chance)
            continue
        first = int(chance.integers(len(contents)))
        piece = PIECES[int(chance.integers(len(PIECES)))]
        replaced = int(chance.choice([0, 0, 1, 20]))
        contents[first : first + replaced] = piece
    path.write_bytes(gzip.compress(contents) if packed else contents)
    return True


TOML_VALUES = (
    *("1", "-1", "99999999999999999999", "1.5", "nan", "true", "[]", "{}", '""', '"y"', '"site"'),
    *('["site"]', '["site", "site"]', "[1]", '[["a"]]', '"\\u0000"', '"\\t"', '","', "'\"'"),
    *('"|"', '":"', '"int"', '"hex"', '"hour"', '"none"', "1979-05-27", "[" * 200 + "]" * 200),
    *('"bucket"', '"date"', '"standard"', '"iso"', '"%Y-%m-%d"', '"%Q"', '"%"', "1e400", "[2, 1]"),
    *('"::"', "{ price = [1, 2] }", "{ price = 1 }", "[1, 2.5]", "2", '["a"]', '"true"'),
    *('"missing"', '"error"', "3", "0"),
)


def mutate_schema(path: Path, chance: Random) -> bool:
    """Other values of keys, lines that are gone or there twice; else bytes."""
    if chance.random() < 0.3:
        return mutate_text(path, chance)
    lines = path.read_text().splitlines()
    for _ in range(1 + int(chance.integers(3))):
        number = int(chance.integers(len(lines)))
        way = int(chance.integers(5))
        key = lines[number].partition("=")[0].strip()
        if way == 0:
            del lines[number]
        elif way == 1:
            lines.insert(int(chance.integers(len(lines))), lines[number])
        elif key and "=" in lines[number]:
            lines[number] = f"{key} = {TOML_VALUES[int(chance.integers(len(TOML_VALUES)))]}"
    path.write_text("\n".join(lines))
    return True


# ---- mutations of HDF5's structure ----


def _mutate_hdf5(path: Path, chance: Random) -> bool:
    """Bytes as they are, or an edit by h5py, which may be sealed anew."""
    if chance.random() < 0.5:
        sealed = b"NEOSEAL1" in path.read_bytes()[-128:]
        mutate_bytes(path, chance)
        return not sealed
    change = EDITS[int(chance.integers(len(EDITS)))]
    edit(path, lambda file: change(file, chance), reseal=chance.random() < 0.8)
    return True


def _names(file: h5py.File) -> list[str]:
    """All objects below the root, and the root."""
    names = ["/"]
    file.visit(names.append)
    return names


def _arrays(file: h5py.File) -> list[str]:
    return [name for name in _names(file) if isinstance(file[name], h5py.Dataset)]


def _any(names: list[str], rng: Random) -> str:
    return names[int(rng.integers(len(names)))]


def _replace(file: h5py.File, name: str, values: Any, **options: Any) -> None:
    """Another array of the same name and attributes."""
    attributes = dict(file[name].attrs)
    del file[name]
    file.create_dataset(name, data=values, **options)
    for key, value in attributes.items():
        file[name].attrs[key] = value


def _other_type(file: h5py.File, rng: Random) -> str:
    name = _any(_arrays(file), rng)
    kind = _any(["f8", "f4", "f2", ">i4", "i8", "u1", "u8", "i4", "S3", "c8", "V4"], rng)
    values = np.zeros(file[name].shape, kind)
    if kind not in ("S3", "V4"):
        values = file[name][()].astype(kind)
    _replace(file, name, values)
    return f"/{name} as {kind}"


def _other_shape(file: h5py.File, rng: Random) -> str:
    name = _any(_arrays(file), rng)
    values = file[name][()]
    ways: list[Any] = [values[:-1], values[None], values.reshape(-1), values[:0], values.T]
    ways += [np.concatenate([values, values]), values[..., None]]
    number = int(rng.integers(len(ways)))
    _replace(file, name, ways[number])
    return f"/{name} has shape {ways[number].shape}"


def _other_storage(file: h5py.File, rng: Random) -> str:
    name = _any(_arrays(file), rng)
    ways: list[dict[str, Any]] = [
        {"compression": "gzip"},
        {"compression": "lzf"},
        {"fletcher32": True},
        {"scaleoffset": 0},
        {"chunks": True},
        {"maxshape": (None,) * file[name].ndim},
    ]
    values = file[name][()]
    options = ways[int(rng.integers(len(ways)))]
    if values.size and not ("scaleoffset" in options and values.dtype.kind == "f"):
        _replace(file, name, values, **options)
    return f"/{name} stored with {options}"


def _other_elements(file: h5py.File, rng: Random) -> str:
    name = _any(_arrays(file), rng)
    array = file[name]
    if not array.size:
        return "nothing"
    place = tuple(int(rng.integers(n)) for n in array.shape)
    value = _any(["-1", "0", "3", "536870912", "2147483647", "255"], rng)
    array[place] = np.array(int(value)).astype(array.dtype)
    return f"/{name}{list(place)} is {value}"


ODD_VALUES: tuple[Any, ...] = (
    *(-1, 0, 1, 2**31, 2**62, 1.5, float("nan"), "", "x", "[", "[" * 4000, "{}", '["a"]', "[1]"),
    *('["\\ud800", "b"]', '["a", "a"]', '["[/a]", "b"]', np.arange(3), np.zeros(0), b"\xff\xfe"),
    *([["a", "b"]], True, np.array(["a", "b"], "S1"), np.float32(3), h5py.Empty("f4")),
)


def _other_attribute(file: h5py.File, rng: Random) -> str:
    name = _any(_names(file), rng)
    keys = list(file[name].attrs)
    key = _any([*keys, "new"], rng)
    if key in keys and rng.random() < 0.2:
        del file[name].attrs[key]
        return f"{name} without {key}"
    value = ODD_VALUES[int(rng.integers(len(ODD_VALUES)))]
    file[name].attrs[key] = value
    return f"{key} of {name} is {value!r:.60}"


def _removed(file: h5py.File, rng: Random) -> str:
    name = _any(_names(file)[1:], rng)
    del file[name]
    return f"/{name} removed"


def _link(file: h5py.File, rng: Random) -> str:
    name = _any(_names(file)[1:], rng)
    way = int(rng.integers(4))
    target = _any(_names(file)[1:], rng)
    if way == 3:
        file[f"{name}-again"] = file[target]
        return f"/{name}-again is /{target}"
    del file[name]
    if way == 0:
        file[name] = h5py.ExternalLink("other.h5", "/x")
    elif way == 1:
        file[name] = h5py.SoftLink(f"/{target}")
    else:
        file[name] = np.dtype("f4")
    return f"/{name} is a link or a type"


NEW_NAMES = (
    b"x",
    b"[a]",
    b"a\nb",
    b"weights",
    b"lengths",
    b"codes_crc32",
    b"\xff",
    b"\xe2\x80\xae",
)


def _added(file: h5py.File, rng: Random) -> str:
    parent = _any(["/", "features", "features/C1"], rng)
    name = NEW_NAMES[int(rng.integers(len(NEW_NAMES)))]
    group = file[parent]
    if name in [child.encode("utf-8", "surrogateescape") for child in group]:
        return "nothing"
    if rng.random() < 0.5:
        h5py.h5g.create(group.id, name)
    else:
        array = file.create_dataset(None, data=np.arange(3))
        h5py.h5o.link(array.id, group.id, name)
    return f"{name!r} added to {parent}"


def _deep(file: h5py.File, rng: Random) -> str:
    depth = int(rng.integers(1, 60))
    file.create_group("/".join(["g"] * depth))
    return f"{depth} groups in groups"


EDITS: tuple[Callable[[h5py.File, Random], str], ...] = (
    _other_type,
    _other_shape,
    _other_storage,
    _other_elements,
    _other_attribute,
    _removed,
    _link,
    _added,
    _deep,
)
