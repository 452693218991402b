"""What is in a log? Its first rows as columns of text, and how many rows there are in all.

Any kind of file that is read; how text is written is guessed from its first lines (`dialect.py`).
Memory is bounded: of a large log the first `LOOKED_AT` bytes of text are looked at, or `ROWS_AT`
rows, and its number of rows is an estimate from its size.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl

from neocpu.core.errors import DataError, listed
from neocpu.core.forks import POLARS, check_fork
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.formats.avazu import avazu_schema
from neocpu.ingest.formats.criteo import CATEGORIES, DENSE, criteo_schema
from neocpu.ingest.formats.files.folders import all_files, folder_keys
from neocpu.ingest.formats.files.frame_file import Hint, open_frames
from neocpu.ingest.formats.files.kinds import KINDS, RECORDS, SPARSE, kind_of
from neocpu.ingest.formats.nested import with_texts
from neocpu.ingest.formats.readers import UNIT, comments, first_block, require_text, text_blocks
from neocpu.ingest.formats.schema import as_called
from neocpu.tables.hdf5.walk import one_line
from neocpu.train.advice.dialect import (
    CHECKED,
    Dialect,
    column_names,
    guess_comment,
    guess_dialect,
    guess_encoding,
    has_decimal_comma,
    names_twice,
    typed_hints,
    without_comments,
)

SHOWN = 12  # columns in a message
ONE_ARCHIVE = "; arrays of the same rows are read from one archive: numpy.savez"
LOOKED_AT = 512 << 20  # bytes of text that are looked at, of all files together
ROWS_AT = 4_000_000  # rows of files that are no text
GUESSED_FROM = 200  # lines that delimiter, quotes and header are guessed from
MISSING = ("NULL", "null", "NaN", "nan", "None", "NA", "N/A", "\\N")
NULS = 1024  # bytes of a text that are looked through for NULs
# how texts begin that no delimiter cuts into rows
NO_TABLES = {
    r"\{'": "its lines are Python dicts, not JSON: write json.dumps(ast.literal_eval(line))",
    # times, as 12:30, are no items
    r"\S+(?!(\s+\d\d?:\d\d(:\d\d)?)+\s*$)(\s+\d+:[-+.\deE:]+){2,}\s*$": (
        "its lines look like libsvm or libffm, but not all are: labels must be numbers, and items "
        "INDEX:VALUE or FIELD:INDEX:VALUE"
    ),
    r"\d+:$": "its rows stand in sections, under lines as '1:'; write the section into each row",
}
INDEX = re.compile(r"Unnamed: \d+|__index_level_\d+__")
# fields of Criteo's log
INTEGER = re.compile(r"(-?\d+)?")
HEX = re.compile(r"[0-9a-fA-F]{0,8}")


@dataclass(frozen=True)
class Log:
    """The first rows of a log.

    paths : as they were given, files or folders. kind : of `data.format`: "criteo", "avazu" or
    "table". frame : text columns, null where a field is empty; files with types have theirs, lists
    among them. rows : in all files; `whole` says whether the frame has all of them, otherwise it is
    an estimate. dialect : of text that is cut into fields. missing : texts that stand for empty
    fields, null in the frame. hints : what columns are by the form of the file. labelled : False
    where that form says that rows have no label.
    """

    paths: tuple[str, ...]
    kind: str
    frame: pl.DataFrame
    rows: int
    dialect: Dialect | None
    missing: tuple[str, ...] = ()
    hints: Mapping[str, Hint] = field(default_factory=dict)
    labelled: bool = True

    @property
    def whole(self) -> bool:
        """Whether every row was looked at."""
        return self.frame.height == self.rows


def look(paths: Sequence[str | Path], looked_at: int = LOOKED_AT, rows_at: int = ROWS_AT) -> Log:
    """Look at logs of the same columns, in the order given; their rows follow one another.

    looked_at : bytes of text. rows_at : rows of files that are no text.

    Raises DataError for a file that cannot be read, is empty, or differs from the first one.
    """
    check_fork(POLARS)
    files = all_files(paths)
    kinds = list(dict.fromkeys(kind_of(path) for path in files))
    if "hdf5" in kinds:
        converted = next(path for path in files if kind_of(path) == "hdf5")
        Dataset(converted)  # one of another program is told as that
        raise DataError(
            f"{converted}: a converted dataset has no names and kinds of its log's columns left; "
            "give the raw log"
        )
    if len(kinds) > 1:
        titles = ", ".join(KINDS[kind].title for kind in kinds)
        raise DataError(f"{paths[0]}: the files are of several kinds ({titles}); give one kind")
    log = _look_at_text(files, looked_at) if kinds == ["text"] else _look_at_frames(files, rows_at)
    hints = {**log.hints, **_no_inputs(log.frame)}
    return replace(log, paths=tuple(map(str, paths)), hints=hints)


def _no_inputs(frame: pl.DataFrame) -> dict[str, Hint]:
    """Columns that pandas made of the index of a frame, where it numbers the rows; and one without
    a name.
    """
    names = [name for name in frame.columns if INDEX.fullmatch(name)]
    hints = {
        name: Hint("left out", why="the row numbers of a pandas frame")
        for name in names
        if frame[name].n_unique() == frame.height
    }
    if "" in frame.columns:
        hints[""] = Hint("left out", why="it has no name")
    return hints


def _look_at_frames(files: Sequence[Path], rows_at: int) -> Log:
    parts = []
    rows = 0.0
    looked_at = 0
    hints: Mapping[str, Hint] = {}
    for path in files:
        file = open_frames(path)
        assert file is not None  # text is looked at elsewhere
        lists = {name: hint for name, hint in hints.items() if hint.separator}
        hints = {**file.hints, **lists}
        pieces = []
        share = 0.0
        for piece in file.batches({name: name for name in file.offered}):
            # a line that is no row at all says nothing of columns; whoever reads the log refuses it
            broken = [fault.line for fault in piece.faults if not fault.column]
            rows_here = pl.int_range(piece.frame.height, eager=True)
            pieces.append(piece.frame.filter(~rows_here.is_in(broken)))
            looked_at += piece.frame.height
            share = piece.done / max(path.stat().st_size, 1)
            if looked_at >= rows_at:
                break
        height = sum(piece.height for piece in pieces)
        if file.rows is not None:
            rows += file.rows
        elif looked_at >= rows_at and 0 < share < 1:
            rows += height / share
        else:
            rows += height
        if pieces:
            parts.append(_with_keys(pl.concat(pieces), path))
    if not parts:
        raise DataError(f"{files[0]}: has no rows")
    if kind_of(files[0]) in RECORDS:  # rows, and so whole files, may lack columns
        parts = [pl.concat(parts, how="diagonal_relaxed")]
    frame = with_texts(_joined(files, parts))
    if not frame.height:
        raise DataError(f"{files[0]}: has no rows")
    kind = "avazu" if _is_avazu(frame.columns) else "table"
    frame, missing = _without_missing(frame, kind)
    labelled = "label" in frame.columns or kind_of(files[0]) not in SPARSE
    return Log((), kind, frame, round(rows), None, missing, hints, labelled)


def _with_keys(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    """A frame with the columns that the folders of its file name."""
    keys = {name: value for name, value in folder_keys(path).items() if name not in frame.columns}
    return frame.with_columns(
        [pl.lit(value or None, pl.String).alias(name) for name, value in keys.items()]
    )


def _look_at_text(files: Sequence[Path], looked_at: int) -> Log:
    start, encoding = _first_lines(files[0])
    try:
        comment = guess_comment(start)
        start = without_comments(start, comment)
        dialect = replace(guess_dialect(start), encoding=encoding, comment=comment)
        if not dialect.header and (twice := names_twice(start, dialect.delimiter)):
            raise DataError(
                f"{files[0]}: its first line names {listed([*map(repr, twice)], 8)} more than "
                "once; give each column a name of its own there"
            )
        names = column_names(start, dialect)
        hints = typed_hints(start, dialect)
    except csv.Error as error:
        raise DataError(
            f"{files[0]}: its first lines cannot be cut into fields: {error}; is it a table?"
        ) from error
    kind = "table"
    if _is_criteo(start, dialect):
        kind = "criteo"
        names = list(criteo_schema().columns)
    elif dialect.header and _is_avazu(names):
        kind = "avazu"
    parts = []
    rows = 0.0
    known: dict[str, str] = {}
    for path in files:
        # of every file a little, so that different columns are found before training
        text, share = _text_of(path, max(looked_at, 1 << 20), encoding)
        looked_at -= len(text)
        frame = _parse(path, text, dialect, len(names))
        # each file may have its columns in an order of its own, as whoever reads it goes by names
        own = [name.strip() for name in frame.columns]
        known = known or dict(zip(own, names))
        frame.columns = [known.get(name, name) for name in own]
        parts.append(_with_keys(frame, path))
        # by compressed bytes: the only size that a compressed file tells
        rows += frame.height / share
    frame = _joined(files, parts)
    if not frame.height:
        raise DataError(f"{files[0]}: has no rows")
    frame, missing = _without_missing(frame, kind)
    frame, dialect = _with_points(frame, dialect)
    return Log((), kind, frame, round(rows), dialect, missing, hints)


def lacks_column(other: Log, log: Log, name: str) -> bool:
    """Does another file lack a column of a log? Without headers, the number of columns tells."""
    if log.dialect and other.dialect and not (log.dialect.header and other.dialect.header):
        headless = log.dialect.header == other.dialect.header
        return headless and other.frame.width < log.frame.width
    return name not in as_called(other.frame.columns, [name])


def broken_fields(log: Log) -> str:
    """A line about quoted fields with ends of lines in them, where rows are cut; "": none."""
    if log.dialect is None:
        return ""
    broken = log.frame.select(pl.col(pl.String).str.contains("\n", literal=True).sum()).row(0)
    counts = {name: count for name, count in zip(log.frame.columns, broken) if count}
    if not counts:
        return ""
    names = listed([f"{name} ({count:,})" for name, count in counts.items()], 8)
    return (
        f"careful: fields have an end of line inside their quotes: {names}; a row ends with its "
        "line, so that training refuses such rows, or leaves them out with data.on_error=skip. "
        "Write them without, or as Parquet"
    )


def _with_points(frame: pl.DataFrame, dialect: Dialect) -> tuple[pl.DataFrame, Dialect]:
    """A frame whose decimal commas are points, and the dialect that says so."""
    if dialect.delimiter == ",":
        return frame, dialect
    texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
    commas = [
        name
        for name in texts
        if has_decimal_comma(frame[name].drop_nulls().head(CHECKED).to_list())
    ]
    if not commas:
        return frame, dialect
    points = pl.col(commas).str.replace_all(".", "", literal=True).str.replace(",", ".")
    return frame.with_columns(points), replace(dialect, decimal=",")


def _without_missing(frame: pl.DataFrame, kind: str) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """A table with null for texts that stand for empty fields, and these texts."""
    texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
    missing = tuple(
        text
        for text in MISSING
        # a column of nothing else would be a constant, not missing values
        if kind == "table" and any(0 < (frame[name] == text).sum() < frame.height for name in texts)
    )
    columns = pl.col(texts)
    # an empty field in quotes is empty, too
    empty = pl.when(columns.is_in(("", *missing))).then(None).otherwise(columns)
    return frame.with_columns(empty.name.keep()) if texts else frame, missing


def _text_of(path: Path, most: int, encoding: str) -> tuple[bytes, float]:
    """The first lines of a file, about `most` bytes, and which share of the file they are."""
    blocks = []
    size = 0
    done = 0
    reader = text_blocks(path, encoding=encoding)
    for block in reader:
        blocks.append(block.text.tobytes())
        size += block.text.size
        done = block.done
        if size >= most:
            break
    else:
        return b"".join(blocks), 1.0
    reader.close()
    total = max(path.stat().st_size, 1)
    return b"".join(blocks), min(done / total, 1.0)


def _first_lines(path: Path) -> tuple[list[str], str]:
    """The first complete lines of a text log, and its encoding."""
    block = first_block(path)
    if block is None:
        raise DataError(f"{path}: is empty")
    content = block.text.tobytes()
    require_text(path, content[:NULS])
    encoding = guess_encoding(content)
    text = content[: 1 << 18].decode(encoding or "utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{path}: has no rows")
    for form, fault in NO_TABLES.items():
        if re.match(form, lines[0]):
            raise DataError(f"{path}: {fault}")
    return lines[:GUESSED_FROM], encoding


def _is_criteo(lines: Sequence[str], dialect: Dialect) -> bool:
    if dialect.delimiter != "\t":
        return False
    return all(_is_criteo_row(line.split("\t")) for line in lines)


def _is_criteo_row(fields: Sequence[str]) -> bool:
    """Label 0 or 1, 13 integers, 26 hexadecimal texts of eight digits; fields may be empty."""
    if len(fields) != 1 + DENSE + CATEGORIES or fields[0] not in ("0", "1"):
        return False
    numbers, codes = fields[1 : 1 + DENSE], fields[1 + DENSE :]
    return all(map(INTEGER.fullmatch, numbers)) and all(map(HEX.fullmatch, codes))


def _is_avazu(names: Sequence[str]) -> bool:
    return set(avazu_schema().used) <= set(names)


def _parse(path: Path, text: bytes, dialect: Dialect, width: int) -> pl.DataFrame:
    """Text columns of these lines, which have so many."""
    first, _ = comments(np.frombuffer(text, np.uint8), dialect.comment)
    text = text[first:]
    if width > 1:  # a row of one field may be empty
        text = text.rstrip(b"\r\n")
    separator = dialect.delimiter
    if len(separator) > 1:
        # polars takes a separator of one byte only
        text = text.replace(separator.encode(), UNIT.encode())
        separator = UNIT
    try:
        frame = pl.read_csv(
            text,
            separator=separator,
            quote_char=dialect.quote or None,
            has_header=dialect.header,
            # roles are guessed from the texts: 007 is a code, not a number
            infer_schema=False,
            encoding="utf8-lossy",
            # a malformed line is for `data.on_error` to judge, when the log is converted
            ignore_errors=True,
            truncate_ragged_lines=True,
        )
    except pl.exceptions.NoDataError as error:
        raise DataError(f"{path}: has no rows") from error
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path}: cannot be read as a table: {one_line(error)[:300]}") from error
    if frame.width != width:
        raise DataError(
            f"{path}: {frame.width} columns, but the first line of the first file has {width}"
        )
    return frame


def _joined(files: Sequence[Path], frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The rows of all files, which must have the same columns."""
    for path, frame in zip(files, frames):
        if sorted(frame.columns) != sorted(frames[0].columns):
            raise DataError(
                f"{path}: its columns are not those of {files[0]}: {_difference(frame, frames[0])}"
                f"{ONE_ARCHIVE if kind_of(path) == 'npy' else ''}"
            )
    try:
        ordered = [frame.select(frames[0].columns) for frame in frames]
        return pl.concat(ordered, how="vertical_relaxed")
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{files[0]} and the others differ in types: {one_line(error)}") from error


def _difference(frame: pl.DataFrame, first: pl.DataFrame) -> str:
    """Which columns a frame lacks that the first one has, and the other way round."""
    lacking = [repr(name) for name in first.columns if name not in frame.columns]
    more = [repr(name) for name in frame.columns if name not in first.columns]
    parts = [("it lacks", lacking), ("only it has", more)]
    return ", ".join(f"{words} {listed(names, SHOWN)}" for words, names in parts if names)
