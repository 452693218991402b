"""Which forms do logs have? One small log of each, all of the same rows.

`LOGS` maps a form to what writes its log into a folder and returns the paths that a user names.
Beside each folder of a form lies nothing: what it holds is the log.
"""

import bz2
import gzip
import json
import lzma
import random
import zipfile
from collections.abc import Callable
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

ROWS = 240
SHOPS = ("north, main", "s\u00fcd", "east", 'west "old"')
GENRES = ("drama", "war", "noir", "jazz", "film")
Table = dict[str, list[Any]]


@cache
def table(rows: int = ROWS) -> pl.DataFrame:
    """The rows of all logs: a label, numbers, categories, a list, a time; some fields are empty."""
    draw = random.Random(7)
    sold = [draw.random() < 0.4 for _ in range(rows)]
    days = [date(2014, 10, 21) + timedelta(row // (rows // 4)) for row in range(rows)]
    return pl.DataFrame(
        {
            "click": [int(one) for one in sold],
            "price": [round(draw.random() * 90 + 0.25, 2) for _ in range(rows)],
            "age": [draw.choice([None, 7, 31, 64, 250]) for _ in range(rows)],
            "user": [draw.randrange(1000, 1060) for _ in range(rows)],
            "shop": [draw.choice((*SHOPS, None)) for _ in range(rows)],
            "genres": ["|".join(draw.sample(GENRES, draw.randint(1, 3))) for _ in range(rows)],
            "day": [day.isoformat() for day in days],
        }
    )


def schema(**keys: Any) -> dict[str, Any]:
    """The schema of the rows, with further keys."""
    return {
        "label": {"column": "click"},
        "dense": [
            {"columns": ["price"], "kind": "float", "transform": "none"},
            {"columns": ["age"], "transform": "none"},
        ],
        "category": [
            {"columns": ["user"], "kind": "int"},
            {"columns": ["shop"]},
            {"columns": ["genres"], "separator": "|"},
            {"columns": ["day"], "kind": "date", "time": "iso"},
        ],
        **keys,
    }


def write_csv(path: Path, **options: Any) -> Path:
    """The rows as CSV."""
    path.write_bytes(csv_bytes(**options))
    return path


def csv_bytes(frame: pl.DataFrame | None = None, **options: Any) -> bytes:
    """The rows as the bytes of a CSV file."""
    return (table() if frame is None else frame).write_csv(**options).encode()


def _csv(folder: Path) -> list[Path]:
    return [write_csv(folder / "log.csv")]


def _tsv(folder: Path) -> list[Path]:
    return [write_csv(folder / "log.tsv", separator="\t", quote_style="never")]


def _windows(folder: Path) -> list[Path]:
    path = folder / "log.csv"
    path.write_bytes(b"\xef\xbb\xbf" + csv_bytes(line_terminator="\r\n"))
    return [path]


def _utf16(folder: Path) -> list[Path]:
    path = folder / "log.csv"
    path.write_bytes(csv_bytes().decode().encode("utf-16"))
    return [path]


def _latin1(folder: Path) -> list[Path]:
    path = folder / "log.csv"
    path.write_bytes(csv_bytes().decode().encode("latin-1"))
    return [path]


def _decimal_comma(folder: Path) -> list[Path]:
    frame = table().with_columns(
        pl.col("price").cast(pl.String).str.replace(".", ",", literal=True)
    )
    path = folder / "log.csv"
    path.write_bytes(csv_bytes(frame, separator=";"))
    return [path]


def _double_colon(folder: Path) -> list[Path]:
    lines = table().write_csv(separator="\x1f", quote_style="never")
    path = folder / "log.dat"
    path.write_text(lines.replace("\x1f", "::"), encoding="utf-8")
    return [path]


def _pandas_csv(folder: Path) -> list[Path]:
    lines = csv_bytes().decode().splitlines()
    numbered = [f",{lines[0]}", *(f"{row},{line}" for row, line in enumerate(lines[1:]))]
    path = folder / "log.csv"
    path.write_text("\n".join(numbered) + "\n", encoding="utf-8")
    return [path]


def _recbole(folder: Path) -> list[Path]:
    kinds = {"click": "float", "price": "float", "age": "float", "genres": "token_seq"}
    frame = table().with_columns(pl.col("genres").str.replace_all("|", " ", literal=True))
    lines = frame.write_csv(separator="\t", quote_style="never").split("\n", 1)[1]
    header = "\t".join(f"{name}:{kinds.get(name, 'token')}" for name in frame.columns)
    path = folder / "log.inter"
    path.write_text(f"{header}\n{lines}", encoding="utf-8")
    return [path]


def _compressed(name: str, compress: Callable[[bytes], bytes]) -> Callable[[Path], list[Path]]:
    def write(folder: Path) -> list[Path]:
        path = folder / name
        path.write_bytes(compress(csv_bytes()))
        return [path]

    return write


def _zstd(folder: Path) -> list[Path]:
    path = folder / "log.csv.zst"
    # polars writes what it reads
    table().lazy().sink_csv(path, compression="zstd")
    return [path]


def _zip(folder: Path) -> list[Path]:
    path = folder / "log.csv.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("log.csv", csv_bytes())
        archive.writestr("__MACOSX/._log.csv", b"\0")
    return [path]


def _objects() -> list[dict[str, Any]]:
    rows = []
    for row in table().to_dicts():
        row["genres"] = row["genres"].split("|")
        if row["age"] is None:
            del row["age"]
        rows.append(row)
    return rows


def _json_lines(folder: Path) -> list[Path]:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in _objects()), encoding="utf-8")
    return [path]


def _json_array(folder: Path) -> list[Path]:
    path = folder / "log.json"
    path.write_text(json.dumps(_objects(), indent=1, ensure_ascii=False), encoding="utf-8")
    return [path]


def _json_nested(folder: Path) -> list[Path]:
    rows = [{**row, "user": {"id": row["user"], "city": None}} for row in _objects()]
    path = folder / "log.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return [path]


def _parquet(folder: Path) -> list[Path]:
    path = folder / "log.parquet"
    table().write_parquet(path)
    return [path]


def _pandas_parquet(folder: Path) -> list[Path]:
    path = folder / "log.parquet"
    table().with_row_index("__index_level_0__").write_parquet(path)
    return [path]


def _arrow(folder: Path) -> list[Path]:
    path = folder / "log.feather"
    table().write_ipc(path)
    return [path]


def _arrow_stream(folder: Path) -> list[Path]:
    path = folder / "data-00000-of-00001.arrow"
    table().write_ipc_stream(path)
    return [path]


def _folder(folder: Path) -> list[Path]:
    log = folder / "log"
    log.mkdir()
    for part in range(3):
        frame = table().slice(part * ROWS // 3, ROWS // 3)
        (log / f"part-{part:05d}.csv").write_bytes(csv_bytes(frame))
    (log / "_SUCCESS").touch()
    return [log]


def _pattern(folder: Path) -> list[Path]:
    _folder(folder)
    return [folder / "log" / "part-*.csv"]


def _hive(folder: Path) -> list[Path]:
    log = folder / "log"
    for (day,), frame in table().group_by("day", maintain_order=True):
        (log / f"day={day}").mkdir(parents=True)
        frame.drop("day").write_parquet(log / f"day={day}" / "part-0.parquet")
    return [log]


def _hive_csv(folder: Path) -> list[Path]:
    log = folder / "log"
    for (day,), frame in table().group_by("day", maintain_order=True):
        (log / f"day={day}").mkdir(parents=True)
        (log / f"day={day}" / "part-0.csv.gz").write_bytes(
            gzip.compress(csv_bytes(frame.drop("day")))
        )
    return [log]


def _npz(folder: Path) -> list[Path]:
    frame = table()
    columns = {name: frame[name].to_numpy() for name in ("click", "price", "user")}
    texts = {name: frame[name].fill_null("").to_numpy() for name in ("shop", "genres", "day")}
    path = folder / "log.npz"
    np.savez_compressed(
        path,
        **columns,
        **{name: values.astype("U") for name, values in texts.items()},
        age=frame["age"].cast(pl.Float64).to_numpy(),
        counts=np.arange(3),
    )
    return [path]


def _npy(folder: Path) -> list[Path]:
    frame = table()
    texts = {name: frame[name].fill_null("") for name in ("shop", "genres", "day")}
    kinds = [("click", "i1"), ("price", "f8"), ("age", "f4"), ("user", "<i4")]
    kinds += [(name, f"U{values.str.len_chars().max()}") for name, values in texts.items()]
    matrix = np.zeros(ROWS, kinds)
    for name, kind in kinds:
        values = texts[name] if name in texts else frame[name]
        matrix[name] = values.cast(pl.Float64).to_numpy() if kind == "f4" else values.to_numpy()
    path = folder / "log.npy"
    np.save(path, matrix)
    return [path]


# forms whose rows have the columns of `table`
LOGS: dict[str, Callable[[Path], list[Path]]] = {
    "csv": _csv,
    "tsv": _tsv,
    "csv of Windows": _windows,
    "utf-16": _utf16,
    "latin-1": _latin1,
    "decimal comma": _decimal_comma,
    "double colon": _double_colon,
    "pandas csv": _pandas_csv,
    "recbole": _recbole,
    "gzip": _compressed("log.csv.gz", gzip.compress),
    "bzip2": _compressed("log.csv.bz2", bz2.compress),
    "xz": _compressed("log.csv.xz", lzma.compress),
    "zstd": _zstd,
    "zip": _zip,
    "json lines": _json_lines,
    "json array": _json_array,
    "json nested": _json_nested,
    "parquet": _parquet,
    "pandas parquet": _pandas_parquet,
    "arrow": _arrow,
    "arrow stream": _arrow_stream,
    "folder": _folder,
    "pattern": _pattern,
    "hive": _hive,
    "hive csv": _hive_csv,
    "npz": _npz,
    "npy": _npy,
}

# what the schema of a form says beyond that of CSV
KEYS: dict[str, dict[str, Any]] = {
    "tsv": {"delimiter": "\t"},
    "latin-1": {"encoding": "latin-1"},
    "decimal comma": {"delimiter": ";", "decimal": ","},
    "double colon": {"delimiter": "::"},
    "recbole": {"delimiter": "\t"},
}
LISTS: dict[str, dict[str, Any]] = {
    "recbole": {"separator": " "},
    "json lines": {"list": True},
    "json array": {"list": True},
    "json nested": {"list": True},
}


def schema_of(form: str) -> dict[str, Any]:
    """The schema with which the log of a form has the codes of the CSV."""
    tree = schema(**KEYS.get(form, {}))
    if form in LISTS:
        tree["category"][2] = {"columns": ["genres"], **LISTS[form]}
    if form == "json nested":
        tree["category"][0] = {"columns": ["user.id"], "name": "user", "kind": "int"}
    return tree
